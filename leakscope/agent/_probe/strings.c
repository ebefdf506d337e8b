/* The string table: texts that may be shown, each in one row. Its first rows are "" and the names of limits. */
#include "texts.h"

const char *const limit_names[] = {"maxsize", "_maxsize", "max_size", "_max_size", "maxlen", "_maxlen", "capacity", "_capacity",
                                   "max_entries", "_max_entries", "max_items", "_max_items", "limit", "_limit",
                                   "_Cache__maxsize"};
const unsigned limit_names_count = sizeof limit_names / sizeof *limit_names;

typedef struct {
    const char *bytes;
    uint32_t hash;
} Shown;

static Vector rows;          /* Shown by Row */
static uint32_t *row_places; /* open addressing: Row + 1 */
static size_t row_room;
static Vector row_memory;

static uint32_t hash_of(const char *bytes, size_t count)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t place = 0; place < count; place++)
        hash = (hash ^ (unsigned char)bytes[place]) * 16777619u;
    return hash;
}

static void rows_grow(void)
{
    Vector memory;
    size_t room = row_room ? row_room * 2 : 4096;
    vector_open(&memory, sizeof(uint32_t));
    uint32_t *places = vector_add(&memory, room);
    for (uint32_t row = 0; row < rows.count; row++) {
        size_t place = AT(Shown, rows, row).hash & (room - 1);
        while (places[place])
            place = (place + 1) & (room - 1);
        places[place] = row + 1;
    }
    vector_close(&row_memory);
    row_memory = memory;
    row_places = places;
    row_room = room;
}

/* The place of a text among the rows: *place holds its Row + 1, or 0 where it would go. */
static uint32_t *row_place(const char *bytes, size_t count, uint32_t hash)
{
    size_t place = hash & (row_room - 1);
    while (row_places[place]) {
        const Shown *shown = &AT(Shown, rows, row_places[place] - 1);
        if (shown->hash == hash && strncmp(shown->bytes, bytes, count) == 0 && shown->bytes[count] == 0)
            break;
        place = (place + 1) & (row_room - 1);
    }
    return &row_places[place];
}

bool row_find(const Made *made, Row *row)
{
    uint32_t found = *row_place(made->bytes, made->used, hash_of(made->bytes, made->used));
    *row = found - 1;
    return found != 0;
}

Row row_of_made(const Made *made)
{
    uint32_t hash = hash_of(made->bytes, made->used);
    uint32_t *place = row_place(made->bytes, made->used, hash);
    if (*place)
        return *place - 1;
    char *kept = arena_take(made->used + 1);
    memcpy(kept, made->bytes, made->used + 1);
    Row row = (Row)rows.count;
    *(Shown *)vector_add(&rows, 1) = (Shown){kept, hash};
    *place = row + 1;
    if (rows.count * 2 > row_room)
        rows_grow();
    return row;
}

Row row_of_text(const char *text)
{
    Made made;
    made_open(&made);
    add(&made, text);
    return row_of_made(&made);
}

Row name_own(const char *text)
{
    return row_of_text(text);
}

const char *name_text(Row row)
{
    return AT(Shown, rows, row).bytes;
}

void names_write_strings(Output *output)
{
    out(output, "[");
    for (Row row = 0; row < rows.count; row++) {
        out(output, row ? "," : "");
        out_text(output, name_text(row));
    }
    out(output, "]");
}

void strings_open(void)
{
    vector_open(&rows, sizeof(Shown));
    vector_open(&row_memory, sizeof(uint32_t));
    row_room = 0;
    rows_grow();
    row_of_text("");
    for (unsigned place = 0; place < limit_names_count; place++)
        row_of_text(limit_names[place]);
}

void strings_close(void)
{
    vector_close(&rows);
    vector_close(&row_memory);
}
