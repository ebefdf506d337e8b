/* Memory from mmap: growing arrays, tables of numbers, rows by address, an arena. Nothing here calls malloc.
 *
 * By system calls: what stands in front of the C library's mmap (preload.c) has locks, which nobody gives in a forked child; and it would
 * ask for the stack of a thread that holds the sampler's lock. */
#include "engine.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define PAGE_BYTES 4096u
#define BLOCK_BYTES ((size_t)1 << 20)

static size_t in_use, peak, limit;

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE_BYTES - 1) & ~(size_t)(PAGE_BYTES - 1);
}

void *pages_resize(void *old, size_t old_bytes, size_t new_bytes)
{
    long pages;
    if (old == NULL || old_bytes == 0)
        pages = syscall(SYS_mmap, NULL, whole_pages(new_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0L);
    else
        pages = syscall(SYS_mremap, old, whole_pages(old_bytes), whole_pages(new_bytes), MREMAP_MAYMOVE); /* moves pages, copies nothing */
    return pages == -1 ? NULL : (void *)pages;
}

void pages_free(void *pages, size_t bytes)
{
    if (pages != NULL && bytes > 0)
        syscall(SYS_munmap, pages, whole_pages(bytes));
}

/* --- what a walk holds: counted, and within its bound. Bytes are of whole pages --- */

static void *held_resize(void *old, size_t old_bytes, size_t new_bytes)
{
    if (limit && in_use - old_bytes + new_bytes > limit)
        return NULL;
    void *pages = pages_resize(old, old_bytes, new_bytes);
    if (pages != NULL) {
        in_use += new_bytes - old_bytes;
        peak = in_use > peak ? in_use : peak;
    }
    return pages;
}

static void *held_take(size_t bytes)
{
    return held_resize(NULL, 0, bytes);
}

static void held_give(void *pages, size_t bytes)
{
    pages_free(pages, bytes);
    in_use -= pages == NULL ? 0 : bytes;
}

void memory_limit(uint64_t bytes)
{
    limit = bytes;
    peak = in_use;
}

size_t memory_in_use(void)
{
    return in_use;
}

size_t memory_peak(void)
{
    return peak;
}

/* --- arrays --- */

void vector_open(Vector *vector, size_t item_bytes)
{
    memset(vector, 0, sizeof *vector);
    vector->item_bytes = item_bytes;
}

bool vector_room(Vector *vector, size_t count)
{
    if (vector->count + count <= vector->room)
        return true;
    size_t before = whole_pages(vector->room * vector->item_bytes);
    size_t wanted = vector->count + count;
    if (wanted < vector->room + vector->room / 2)
        wanted = vector->room + vector->room / 2;
    size_t bytes = whole_pages(wanted * vector->item_bytes);
    void *items = held_resize(vector->items, before, bytes);
    if (items == NULL)
        return false;
    vector->items = items;
    vector->room = bytes / vector->item_bytes;
    return true;
}

void *vector_add(Vector *vector, size_t count)
{
    if (!vector_room(vector, count))
        walk_fail(ENOMEM, "memory");
    void *first = (char *)vector->items + vector->count * vector->item_bytes;
    vector->count += count;
    return first;
}

void vector_close(Vector *vector)
{
    held_give(vector->items, whole_pages(vector->room * vector->item_bytes));
    vector_open(vector, vector->item_bytes);
}

/* --- numbers by keys: open addressing, at most half full --- */

static size_t place_of(uint64_t key, size_t room)
{
    key ^= key >> 32;
    key *= 0x9E3779B97F4A7C15u;
    return (size_t)(key >> 20) & (room - 1);
}

void table_open(Table *table)
{
    memset(table, 0, sizeof *table);
}

bool table_find(const Table *table, uint64_t key, uint64_t *value)
{
    if (table->room == 0)
        return false;
    for (size_t place = place_of(key, table->room);; place = (place + 1) & (table->room - 1)) {
        if (table->keys[place] == key) {
            *value = table->values[place];
            return true;
        }
        if (table->keys[place] == 0)
            return false;
    }
}

static void table_grow(Table *table)
{
    Table old = *table;
    table->room = old.room ? old.room * 2 : 256;
    table->keys = held_take(whole_pages(table->room * 16));
    if (table->keys == NULL) {
        *table = old;
        walk_fail(ENOMEM, "memory");
    }
    table->values = table->keys + table->room;
    table->count = 0;
    for (size_t place = 0; place < old.room; place++)
        if (old.keys[place])
            table_set(table, old.keys[place], old.values[place]);
    held_give(old.keys, whole_pages(old.room * 16));
}

void table_set(Table *table, uint64_t key, uint64_t value)
{
    if ((table->count + 1) * 2 > table->room)
        table_grow(table);
    size_t place = place_of(key, table->room);
    while (table->keys[place] != 0 && table->keys[place] != key)
        place = (place + 1) & (table->room - 1);
    if (table->keys[place] == 0)
        table->count++;
    table->keys[place] = key;
    table->values[place] = value;
}

void table_close(Table *table)
{
    held_give(table->keys, whole_pages(table->room * 16));
    table_open(table);
}

/* --- the arena, in blocks that are given back together --- */

typedef struct Block {
    struct Block *next;
    size_t bytes, used;
} Block;

static Block *arena, *map_blocks;

static void *block_take(Block **blocks, size_t bytes, size_t align)
{
    Block *block = *blocks;
    size_t start = block == NULL ? 0 : (block->used + align - 1) & ~(align - 1);
    if (block == NULL || start + bytes > block->bytes) {
        size_t room = whole_pages(bytes + align + sizeof(Block));
        room = room < BLOCK_BYTES ? BLOCK_BYTES : room;
        block = held_take(room);
        if (block == NULL)
            walk_fail(ENOMEM, "memory");
        *block = (Block){*blocks, room, sizeof(Block)};
        *blocks = block;
        start = (sizeof(Block) + align - 1) & ~(align - 1);
    }
    block->used = start + bytes;
    return (char *)block + start;
}

static void blocks_close(Block **blocks)
{
    while (*blocks != NULL) {
        Block *next = (*blocks)->next;
        held_give(*blocks, (*blocks)->bytes);
        *blocks = next;
    }
}

void *arena_take(size_t bytes)
{
    return block_take(&arena, bytes, 16);
}

void memory_close(void)
{
    map_close();
    blocks_close(&arena);
}

/* --- rows by address --- */

uint32_t **map_top[1 << ROW_TOP_BITS];

uint32_t *map_slot_made(uintptr_t address)
{
    uint32_t ***middle = &map_top[(address >> (4 + ROW_SLOT_BITS + ROW_MIDDLE_BITS)) & ((1u << ROW_TOP_BITS) - 1)];
    if (*middle == NULL)
        *middle = block_take(&map_blocks, sizeof(uint32_t *) << ROW_MIDDLE_BITS, 64);
    uint32_t **leaf = &(*middle)[(address >> (4 + ROW_SLOT_BITS)) & ((1u << ROW_MIDDLE_BITS) - 1)];
    if (*leaf == NULL) {
        *leaf = block_take(&map_blocks, sizeof(uint32_t) << ROW_SLOT_BITS, PAGE_BYTES);
        /* Objects lie close together, so all of it will be written: at once is much cheaper than by two faults a page, the first of
         * which only finds zeros. Older kernels than 5.14 refuse, and no harm is done. */
        madvise(*leaf, sizeof(uint32_t) << ROW_SLOT_BITS, MADV_POPULATE_WRITE);
    }
    return *leaf + ((address >> 4) & ((1u << ROW_SLOT_BITS) - 1));
}

uint32_t *map_slot(const void *address)
{
    uint32_t *slot = map_find((uintptr_t)address);
    return slot != NULL ? slot : map_slot_made((uintptr_t)address);
}

uint32_t map_get(const void *address)
{
    uint32_t *slot = map_find((uintptr_t)address);
    return slot == NULL ? ABSENT : *slot;
}

void map_close(void)
{
    for (size_t place = 0; place < sizeof map_top / sizeof *map_top; place++)
        if (map_top[place] != NULL)
            map_top[place] = NULL;
    blocks_close(&map_blocks);
}
