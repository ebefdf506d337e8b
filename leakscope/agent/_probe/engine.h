/* What the engine's own files share: the fast forms of what probe.h declares as functions. */
#ifndef LEAKSCOPE_ENGINE_H
#define LEAKSCOPE_ENGINE_H

#include "probe.h"

/* --- memory.c --- */

/* 48 bits of address: 16 choose a middle table (4 GiB), 14 a leaf in it (256 KiB), 14 a slot in that (16 bytes). */
#define ROW_SLOT_BITS 14
#define ROW_MIDDLE_BITS 14
#define ROW_TOP_BITS 16
extern uint32_t **map_top[1 << ROW_TOP_BITS];
uint32_t *map_slot_made(uintptr_t address);

static inline uint32_t *map_leaf(uintptr_t address)
{
    uint32_t **middle = map_top[(address >> (4 + ROW_SLOT_BITS + ROW_MIDDLE_BITS)) & ((1u << ROW_TOP_BITS) - 1)];
    return middle == NULL ? NULL : middle[(address >> (4 + ROW_SLOT_BITS)) & ((1u << ROW_MIDDLE_BITS) - 1)];
}

static inline uint32_t *map_find(uintptr_t address)
{
    uint32_t *leaf = map_leaf(address);
    return leaf == NULL ? NULL : leaf + ((address >> 4) & ((1u << ROW_SLOT_BITS) - 1));
}

bool vector_room(Vector *vector, size_t count); /* as vector_add without adding; false: no memory. For visitors */
void memory_limit(uint64_t bytes);              /* the most that may be held; 0: no limit. Ends what earlier walks counted */
void memory_close(void);                        /* gives back the map and the arena */
size_t memory_peak(void);

/* --- columns.c --- */

typedef struct {
    uint8_t *buffer, *next, *end; /* next: where the next value goes */
    uint64_t written;             /* bytes that lie before the buffer, in the file or as a hole */
    int file;
    uint8_t item;                 /* bytes of a value */
} Column;
extern Column columns[COLUMN_COUNT];
void column_flush(Column *column);

static inline void put_u64(int number, uint64_t value)
{
    Column *column = &columns[number];
    if (column->next == column->end)
        column_flush(column);
    memcpy(column->next, &value, 8);
    column->next += 8;
}

static inline void put_u32(int number, uint32_t value)
{
    Column *column = &columns[number];
    if (column->next == column->end)
        column_flush(column);
    memcpy(column->next, &value, 4);
    column->next += 4;
}

static inline void put_u8(int number, uint8_t value)
{
    Column *column = &columns[number];
    if (column->next == column->end)
        column_flush(column);
    *column->next++ = value;
}

void column_put(int number, uint64_t index, uint64_t value); /* a value that is not 0, of a column that is mostly 0; what lies before is 0 */
void columns_remove(const char *folder);                     /* after a failure: closes and deletes the files */
uint64_t column_count(int number);

/* --- out.c: text files, and JSON --- */

typedef struct {
    int file;
    size_t used;
    char bytes[16384];
} Output;

int output_open(Output *output, const char *folder, const char *name); /* as NAME.new; returns the descriptor */
void output_use(Output *output, int file);
void output_flush(Output *output);
void output_close(Output *output, const char *folder, const char *name); /* renames it to NAME */
void output_remove(const char *folder, const char *name);
void out(Output *output, const char *format, ...) __attribute__((format(printf, 2, 3))); /* ASCII, up to 500 bytes */
void out_text(Output *output, const char *text); /* quoted; UTF-8 in, ASCII out */
void out_raw(Output *output, const char *text);  /* as it is, of any length */
void out_bytes(Output *output, const char *bytes, size_t count);

/* --- strings.c --- */
void names_write_strings(Output *output); /* the JSON list */
#define LIMIT_ROW_FIRST 1  /* the rows of the names of limits, from "maxsize" on */
extern const char *const limit_names[];
extern const unsigned limit_names_count;

/* --- survivors.c --- */
void samples_write_sites(Output *output); /* the JSON list of sites; "[null]" where nothing was sampled */

/* --- walk.c --- */
void graph_open(void);
void graph_walk(void);           /* roots, and everything that the collector lists */
void graph_close(void);

/* --- bounds.c --- */
void bounds_open(void);
void bounds_close(void);
void bound_by(PyObject *holder, PyObject *limit, const char *name); /* `holder`'s attribute `name`, one of limit_names: if it is a
                                                                       positive int, the holder is bounded by it */
void bounds_write(Output *output); /* "bounds", "caches" and "tables" of names.json */

/* --- keys.c --- */
void keys_open(void);
void keys_close(void);
void keys_of_cache(Output *output, const CacheFacts *facts); /* "arguments" and "keys" of a cache, with a comma before */
void keys_of_tables(Output *output);                         /* "tables", after all caches */

/* --- duplicates.c --- */
void duplicates_open(void);
void duplicates_close(void);
void duplicates_write(Output *output);    /* "duplicates" of names.json */

/* --- own.c --- */
void own_open(const WalkOrder *order); /* leaves out the singletons and what is the agent's */
void own_close(void);
void own_measure(void);
uint32_t refcount_of(PyObject *thing); /* the column: without references of the agent */
extern uint64_t own_count, own_bytes;

/* --- types.c --- */
void types_open(void);
void types_close(void);
void types_write(Output *output);
uint32_t type_of_memory(void); /* the row of the type of nodes that are no objects */


/* --- sizes.c --- */
Sizer sizer_of(TypeInfo *info); /* sets what it needs in `info` */

#endif
