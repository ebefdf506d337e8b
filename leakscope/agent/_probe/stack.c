/* Where a thread is in Python: its frames as a row of a trie that all sampled blocks share.
 *
 * The interpreter's own frames are read, no profile hook is needed and nothing is allocated. A code object is known by its address and
 * instruction; because it may die and another be made at the same address, what is remembered of it is compared, the names to the
 * letter. Its names are copied, no reference is kept.
 *
 * Everything here is called with the sampler's lock. */
#include "frames.h"
#include "sample.h"
#include "shown.h"

#include <stdio.h>

/* Frames of a stack that are kept, innermost first. */
#define MOST_FRAMES 64
#define SEEN_BITS 12

/* --- tables: rows that are told by their first bytes ------------------------------------------------------------------------ */

typedef struct {
    uint64_t hash;
    uint32_t length, offset; /* in stacks.text */
} TextRow;

typedef struct {
    uint32_t file, function, line;
} Place;

typedef struct {
    uint32_t parent, place;
} Node;

typedef struct {
    void *items;
    uint32_t *index; /* by hash: row + 1; 0 is free; twice as many as there is room for items */
    uint32_t count, room;
    uint32_t item_bytes, key_bytes;
} Rows;

typedef struct {
    Rows texts, places, nodes;
    char *text;
    size_t text_count, text_room;
    bool is_full;
} Stacks;

static Stacks stacks, former;
static uint32_t *renewed; /* by former node: the new one */
static size_t limit_bytes, held_bytes, former_bytes;

#define ROW(type, rows, row) (((type *)(rows).items)[row])

static uint64_t hash_of(const void *key, size_t bytes)
{
    uint64_t hash = 0x9E3779B97F4A7C15u ^ bytes;
    const unsigned char *next = key;
    for (; bytes >= 8; next += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, next, 8);
        hash = (hash ^ word) * 0x9FB21C651E98DF25u;
        hash ^= hash >> 32;
    }
    for (; bytes > 0; next++, bytes--)
        hash = (hash ^ *next) * 0x9FB21C651E98DF25u;
    return hash ^ hash >> 29;
}

/* Grows one array; false when the bound is reached or there is no memory. */
static bool grow(void **items, size_t old_bytes, size_t new_bytes)
{
    if (held_bytes - old_bytes + new_bytes > limit_bytes)
        return false;
    void *grown = pages_resize(*items, old_bytes, new_bytes);
    if (grown == NULL)
        return false;
    held_bytes += new_bytes - old_bytes;
    *items = grown;
    return true;
}

static uint32_t *index_place(const Rows *rows, const void *key)
{
    uint32_t mask = rows->room * 2 - 1;
    uint32_t place = (uint32_t)hash_of(key, rows->key_bytes) & mask;
    while (rows->index[place] != 0
           && memcmp((char *)rows->items + (size_t)(rows->index[place] - 1) * rows->item_bytes, key, rows->key_bytes) != 0)
        place = (place + 1) & mask;
    return &rows->index[place];
}

static bool rows_grow(Rows *rows)
{
    uint32_t room = rows->room ? rows->room * 2 : 512;
    void *index = NULL;
    if (!grow(&index, 0, (size_t)room * 2 * sizeof(uint32_t)))
        return false;
    if (!grow(&rows->items, (size_t)rows->room * rows->item_bytes, (size_t)room * rows->item_bytes)) {
        pages_free(index, (size_t)room * 2 * sizeof(uint32_t));
        held_bytes -= (size_t)room * 2 * sizeof(uint32_t);
        return false;
    }
    pages_free(rows->index, (size_t)rows->room * 2 * sizeof(uint32_t));
    held_bytes -= (size_t)rows->room * 2 * sizeof(uint32_t);
    rows->index = index;
    rows->room = room;
    for (uint32_t row = 0; row < rows->count; row++)
        *index_place(rows, (char *)rows->items + (size_t)row * rows->item_bytes) = row + 1;
    return true;
}

/* Returns the row of an item, added if it is new; UINT32_MAX when there is no room. */
static uint32_t row_of(Rows *rows, const void *item)
{
    uint32_t *place = index_place(rows, item);
    if (*place != 0)
        return *place - 1;
    if (rows->count == rows->room) {
        if (!rows_grow(rows)) {
            stacks.is_full = true;
            return UINT32_MAX;
        }
        place = index_place(rows, item);
    }
    memcpy((char *)rows->items + (size_t)rows->count * rows->item_bytes, item, rows->item_bytes);
    *place = ++rows->count;
    return rows->count - 1;
}

static uint32_t text_row(const char *letters, size_t length)
{
    /* Told by 64 bits of hash and the length: the letters themselves are not compared. */
    TextRow text = {hash_of(letters, length), (uint32_t)length, (uint32_t)stacks.text_count};
    uint32_t count = stacks.texts.count, row = row_of(&stacks.texts, &text);
    if (row != count)
        return row;
    while (stacks.text_count + length > stacks.text_room) {
        if (!grow((void **)&stacks.text, stacks.text_room, stacks.text_room ? stacks.text_room * 2 : 16384)) {
            ROW(TextRow, stacks.texts, row).length = 0;
            stacks.is_full = true;
            return row;
        }
        stacks.text_room = stacks.text_room ? stacks.text_room * 2 : 16384;
    }
    memcpy(stacks.text + stacks.text_count, letters, length);
    stacks.text_count += length;
    return row;
}

static uint32_t place_row(const char *file, size_t file_length, const char *function, size_t function_length, uint32_t line)
{
    Place place = {text_row(file, file_length), text_row(function, function_length), line};
    return place.file == UINT32_MAX || place.function == UINT32_MAX ? UINT32_MAX : row_of(&stacks.places, &place);
}

/* A node below `parent` that is no frame of Python. */
static bool add_word(uint32_t parent, const char *words, uint32_t row)
{
    Node node = {parent, place_row("<native>", 8, words, strlen(words), 0)};
    return node.place != UINT32_MAX && row_of(&stacks.nodes, &node) == row;
}

/* After a failure close_tables() takes back what there is. */
static bool open_tables(void)
{
    stacks = (Stacks){.texts = {.item_bytes = sizeof(TextRow), .key_bytes = offsetof(TextRow, offset)},
                      .places = {.item_bytes = sizeof(Place), .key_bytes = sizeof(Place)},
                      .nodes = {.item_bytes = sizeof(Node), .key_bytes = sizeof(Node)}};
    return rows_grow(&stacks.texts) && rows_grow(&stacks.places) && rows_grow(&stacks.nodes)
           && add_word(UINT32_MAX, "no Python frame", NO_STACK) && add_word(UINT32_MAX, "native thread", NATIVE_STACK)
           && add_word(UINT32_MAX, "stack not kept", LOST_STACK);
}

static void close_rows(Rows *rows)
{
    pages_free(rows->items, (size_t)rows->room * rows->item_bytes);
    pages_free(rows->index, (size_t)rows->room * 2 * sizeof(uint32_t));
    held_bytes -= (size_t)rows->room * (rows->item_bytes + 2 * sizeof(uint32_t));
}

static void close_tables(Stacks *closed)
{
    close_rows(&closed->texts);
    close_rows(&closed->places);
    close_rows(&closed->nodes);
    pages_free(closed->text, closed->text_room);
    held_bytes -= closed->text_room;
    *closed = (Stacks){.text = NULL};
}

/* --- code that was met lately --------------------------------------------------------------------------------------------------- */

typedef struct {
    const PyCodeObject *code;
    const void *file, *function, *table; /* as the code object had them */
    uint64_t letters;                    /* hash of the ends of both names: their addresses are used again, too */
    int instruction, first_line;
    uint32_t place;
    bool is_own;
} Seen;
static Seen seen[1u << SEEN_BITS];

static PyObject *function_of(const PyCodeObject *code)
{
#if AT_LEAST(11)
    return code->co_qualname;
#else
    return code->co_name;
#endif
}

static const void *table_of(const PyCodeObject *code)
{
    return code->co_linetable;
}

/* The length and the last letters, where names that a program numbers differ. */
static uint64_t letters_of(PyObject *text)
{
    if (text == NULL || !PyUnicode_Check(text) || !PyUnicode_IS_COMPACT(text))
        return 0;
    size_t bytes = (size_t)PyUnicode_GET_LENGTH(text) * PyUnicode_KIND(text), tail = bytes < 40 ? bytes : 40;
    return hash_of((const char *)PyUnicode_DATA(text) + bytes - tail, tail) ^ bytes << 48;
}

static uint32_t learn(PyCodeObject *code, int instruction, bool *is_own)
{
    char slashed[TEXT_BYTES];
    Made function;
    const char *file = shown_file(code->co_filename, slashed, is_own);
    if (*is_own)
        return 0;
    shown_function(function_of(code), &function);
    int line = PyCode_Addr2Line(code, instruction * (int)sizeof(_Py_CODEUNIT));
    return place_row(file, strlen(file), function.bytes, function.used, (uint32_t)(line > 0 ? line : code->co_firstlineno));
}

static uint32_t place_of(PyCodeObject *code, int instruction, bool *is_own)
{
    Seen *known = &seen[((uintptr_t)code >> 4 ^ (uintptr_t)code >> 16 ^ (uint32_t)instruction * 0x9E3779B1u >> 8) & ((1u << SEEN_BITS) - 1)];
    uint64_t letters = letters_of(code->co_filename) * 3 ^ letters_of(function_of(code));
    if (known->code != code || known->instruction != instruction || known->file != code->co_filename
        || known->function != function_of(code) || known->table != table_of(code) || known->first_line != code->co_firstlineno
        || known->letters != letters) {
        *known = (Seen){code, code->co_filename, function_of(code), table_of(code), letters, instruction, code->co_firstlineno, 0, false};
        known->place = learn(code, instruction, &known->is_own);
        if (known->place == UINT32_MAX)
            known->code = NULL;
    }
    *is_own = known->is_own;
    return known->place;
}

/* --- the frames of a thread ------------------------------------------------------------------------------------------------------ */

uint32_t stack_now(PyThreadState *state, bool *is_own)
{
    uint32_t places[MOST_FRAMES], count = 0, node = NO_STACK;
    *is_own = false;
    if (state == NULL)
        return NATIVE_STACK;
    for (Frame *frame = innermost(state); frame != NULL && count < MOST_FRAMES; frame = caller(frame)) {
        places[count] = place_of(code_of(frame), instruction_of(frame), is_own);
        if (*is_own)
            return NO_STACK;
        if (places[count] == UINT32_MAX)
            return LOST_STACK;
        count++;
    }
    while (count > 0) {
        Node below = {node, places[--count]};
        node = row_of(&stacks.nodes, &below);
        if (node == UINT32_MAX)
            return LOST_STACK;
    }
    return node;
}

/* --- life -------------------------------------------------------------------------------------------------------------------------- */

bool stacks_open(size_t bytes)
{
    limit_bytes = bytes;
    memset(seen, 0, sizeof seen);
    return open_tables();
}

void stacks_close(void)
{
    close_tables(&stacks);
    held_bytes = 0;
}

bool stacks_are_full(void)
{
    return stacks.is_full;
}

/* Stacks whose blocks are all gone make room: the tables are built anew from those that live. */
bool stacks_renew_begin(void)
{
    former = stacks;
    former_bytes = held_bytes;
    limit_bytes += former_bytes; /* both exist for a moment */
    renewed = pages_resize(NULL, 0, (size_t)former.nodes.count * sizeof *renewed);
    if (renewed != NULL && open_tables()) {
        memset(seen, 0, sizeof seen);
        return true;
    }
    close_tables(&stacks);
    stacks = former;
    limit_bytes -= former_bytes;
    pages_free(renewed, (size_t)former.nodes.count * sizeof *renewed);
    return false;
}

uint32_t stacks_renew(uint32_t stack)
{
    uint32_t path[MOST_FRAMES], count = 0, node;
    if (stack <= LOST_STACK)
        return stack;
    for (; stack > LOST_STACK && renewed[stack] == 0 && count < MOST_FRAMES; stack = ROW(Node, former.nodes, stack).parent)
        path[count++] = stack;
    node = stack <= LOST_STACK ? NO_STACK : renewed[stack];
    while (count > 0) {
        Place place = ROW(Place, former.places, ROW(Node, former.nodes, path[--count]).place);
        TextRow file = ROW(TextRow, former.texts, place.file), function = ROW(TextRow, former.texts, place.function);
        Node below = {node, place_row(former.text + file.offset, file.length, former.text + function.offset, function.length, place.line)};
        node = below.place == UINT32_MAX ? UINT32_MAX : row_of(&stacks.nodes, &below);
        if (node == UINT32_MAX)
            return LOST_STACK;
        renewed[path[count]] = node;
    }
    return node;
}

void stacks_renew_end(void)
{
    pages_free(renewed, (size_t)former.nodes.count * sizeof *renewed);
    close_tables(&former);
    limit_bytes -= former_bytes;
}

uint32_t stack_places(uint32_t stack, uint32_t *places, uint32_t room)
{
    uint32_t count = 0;
    do {
        places[count++] = ROW(Node, stacks.nodes, stack).place;
        stack = ROW(Node, stacks.nodes, stack).parent;
    } while (stack > LOST_STACK && stack != UINT32_MAX && count < room);
    return count;
}

static Words words_of(uint32_t row)
{
    TextRow text = ROW(TextRow, stacks.texts, row);
    return (Words){stacks.text + text.offset, text.length};
}

void place_read(uint32_t row, Words *file, uint32_t *line, Words *function)
{
    Place place = ROW(Place, stacks.places, row);
    *file = words_of(place.file);
    *function = words_of(place.function);
    *line = place.line;
}

/* Returns where it ends; NULL: it does not fit before `end`. */
static char *put_quoted(char *json, const char *end, Words words)
{
    const char *next = words.text, *last = words.text + words.length;
    if (end - json < 2)
        return NULL;
    *json++ = '"';
    while (next < last) {
        if (end - json <= JSON_POINT_BYTES)
            return NULL;
        json += json_point(json, &next, last);
    }
    *json++ = '"';
    return json;
}

size_t place_json(uint32_t row, char *json, size_t room)
{
    Words file, function;
    uint32_t line;
    char number[16], *next = json + 1;
    const char *end = json + room;
    place_read(row, &file, &line, &function);
    size_t length = (size_t)snprintf(number, sizeof number, ",%u,", line);
    next = room == 0 ? NULL : put_quoted(next, end, file);
    if (next == NULL || (size_t)(end - next) < length)
        return 0;
    memcpy(next, number, length);
    next = put_quoted(next + length, end, function);
    if (next == NULL || next == end)
        return 0;
    json[0] = '[';
    *next++ = ']';
    return (size_t)(next - json);
}

uint32_t stacks_count(void)
{
    return stacks.nodes.count;
}

size_t stacks_bytes(void)
{
    return held_bytes + sizeof seen;
}
