/* What the files of the preloaded sampler share: preload.c (in front of malloc),
 * preload_tables.c (the live samples), preload_record.c (native.json). */
#ifndef LEAKSCOPE_PRELOAD_H
#define LEAKSCOPE_PRELOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define THREAD_LOCAL __thread __attribute__((tls_model("initial-exec")))

enum {
    MOST_STACKS = 1 << 15, /* different stacks; later ones count as one without frames */
    STACK_PLACES = 2 * MOST_STACKS, /* of the hash table; one more row stands for all that found no room */
    FIRST_BLOCKS = 1 << 12,
    MOST_BLOCKS = 1 << 18, /* live samples; before the table is full the mean doubles */
};

typedef struct {
    uintptr_t address; /* 0: free place */
    uint64_t bytes, weight;
    uint32_t stack;
} Block;

typedef struct {
    uint64_t hash; /* 0: free place */
    uint32_t count, python_bytes;
    uintptr_t *frames; /* addresses inside the calls, innermost first; after them the Python frames as text */
} Stack;

extern Block *blocks;   /* `block_places`, a power of two; NULL until the sampler was woken */
extern uint32_t block_places;
extern bool are_blocks_held; /* with the lock: the table keeps its size, somebody goes through it piece by piece */
extern Stack *stacks;   /* STACK_PLACES + 1 */
extern uint32_t block_count;
extern uint64_t mean_now, taken_count, dropped_count;
extern THREAD_LOCAL bool is_inside; /* our own allocations, and those of the unwinder */

/* How many sampled blocks hash to a place; 255 stays 255. 0 says by one load that a block is none. */
#define FILTER_BITS 16
extern uint8_t filter[1 << FILTER_BITS];

static inline uint64_t mixed(uint64_t value)
{
    value *= 0x9E3779B97F4A7C15ULL;
    return value ^ value >> 29;
}

static inline uint8_t *filter_of(uintptr_t address)
{
    return &filter[mixed(address >> 4) >> 24 & ((1 << FILTER_BITS) - 1)];
}

static inline bool may_be_sampled(const void *address)
{
    return __builtin_expect(__atomic_load_n(filter_of((uintptr_t)address), __ATOMIC_RELAXED) != 0, 0);
}

bool tables_open(void); /* false: no memory */
void lock(void);        /* of both tables */
void unlock(void);
bool take_out(void *address, Block *was); /* false: it was no sample; ask may_be_sampled() first */
void put_in(Block block);
uint32_t row_of_stack(const uintptr_t *frames, uint32_t count, const char *python, size_t python_bytes); /* with the lock */
void *take_pages(size_t bytes); /* zeroed; NULL: no memory */
void give_pages(void *pages, size_t bytes);
void give_real(void *address); /* the C library's free, without a look */

#endif
