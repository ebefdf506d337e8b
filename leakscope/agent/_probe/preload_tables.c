/* The tables of the preloaded sampler: live samples by address, and their stacks. */
#define _GNU_SOURCE
#include "preload.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

Block *blocks;
Stack *stacks;
uint32_t block_count, block_places;
bool are_blocks_held;
uint64_t dropped_count;
uint8_t filter[1 << FILTER_BITS];
static uint32_t stack_count;
static char *arena;
static size_t arena_left;

/* --- the lock: held for some dozens of instructions, also over fork() --- */

static int lock_word;
static THREAD_LOCAL bool is_forking; /* this thread holds the lock from before its fork() until after it; other handlers may allocate */

void lock(void)
{
    while (!is_forking && __atomic_exchange_n(&lock_word, 1, __ATOMIC_ACQUIRE))
        sched_yield();
}

void unlock(void)
{
    if (!is_forking)
        __atomic_store_n(&lock_word, 0, __ATOMIC_RELEASE);
}

static void begin_fork(void)
{
    lock();
    is_forking = true;
}

static void end_fork(void)
{
    is_forking = false;
    unlock();
}

static void end_fork_in_child(void)
{
    are_blocks_held = false; /* whoever went through them is not here */
    end_fork();
}

static uint32_t place_of(uintptr_t address) /* of the block, or the free place where it would be; linear probing */
{
    uint32_t place = mixed(address >> 4) >> 20 & (block_places - 1);
    while (blocks[place].address != 0 && blocks[place].address != address)
        place = (place + 1) & (block_places - 1);
    return place;
}

static void remove_place(uint32_t hole) /* backward shift deletion: Knuth, volume 3, algorithm 6.4 R */
{
    uint32_t place = hole;
    for (;;) {
        blocks[hole].address = 0;
        uint32_t home;
        do {
            place = (place + 1) & (block_places - 1);
            if (blocks[place].address == 0)
                return;
            home = mixed(blocks[place].address >> 4) >> 20 & (block_places - 1);
        } while (hole <= place ? hole < home && home <= place : hole < home || home <= place);
        blocks[hole] = blocks[place];
        hole = place;
    }
}

bool take_out(void *address, Block *was)
{
    uint8_t *counter = filter_of((uintptr_t)address);
    lock();
    uint32_t place = place_of((uintptr_t)address);
    bool is_there = blocks[place].address != 0;
    if (is_there) {
        *was = blocks[place];
        remove_place(place);
        block_count--;
        if (*counter != 255)
            (*counter)--;
    }
    unlock();
    return is_there;
}

/* The table has the size of what is in it: a large one, of which every block touches another page, would look like growth. */
static void make_room(void)
{
    if (block_count < block_places / 2 || block_places == MOST_BLOCKS || are_blocks_held)
        return;
    Block *former = blocks, *larger = take_pages(2 * block_places * sizeof *blocks);
    if (larger == NULL)
        return;
    uint32_t former_places = block_places;
    blocks = larger;
    block_places *= 2;
    for (uint32_t place = 0; place < former_places; place++)
        if (former[place].address != 0)
            blocks[place_of(former[place].address)] = former[place];
    give_pages(former, former_places * sizeof *former);
}

void put_in(Block block)
{
    lock();
    make_room();
    if (block_count < block_places / 4 * 3) {
        uint32_t place = place_of(block.address);
        if (blocks[place].address == 0) {
            block_count++;
            uint8_t *counter = filter_of(block.address);
            if (*counter != 255)
                (*counter)++;
        }
        blocks[place] = block;
    } else {
        dropped_count++;
    }
    unlock();
}

/* The row of a stack; the last row stands for all that found no room. Called with the lock held. */
uint32_t row_of_stack(const uintptr_t *frames, uint32_t count, const char *python, size_t python_bytes)
{
    uint64_t hash = 1;
    for (uint32_t i = 0; i < count; i++)
        hash = mixed(hash ^ frames[i]);
    for (size_t i = 0; i < python_bytes; i++)
        hash = (hash ^ (unsigned char)python[i]) * 0x100000001B3ULL; /* FNV-1a */
    hash = mixed(hash) | 1;
    uint32_t place = hash >> 20 & (STACK_PLACES - 1);
    while (stacks[place].hash != 0 && stacks[place].hash != hash)
        place = (place + 1) & (STACK_PLACES - 1);
    if (stacks[place].hash == hash)
        return place;
    size_t bytes = count * sizeof *frames + ((python_bytes + 7) & ~(size_t)7);
    if (arena_left < bytes) {
        arena = take_pages(1 << 20);
        arena_left = arena == NULL ? 0 : 1 << 20;
    }
    if (stack_count >= MOST_STACKS || arena_left < bytes)
        return STACK_PLACES;
    stack_count++;
    stacks[place] = (Stack){hash, count, (uint32_t)python_bytes, (uintptr_t *)arena};
    memcpy(arena, frames, count * sizeof *frames);
    memcpy(arena + count * sizeof *frames, python, python_bytes);
    arena += bytes;
    arena_left -= bytes;
    return place;
}

bool tables_open(void)
{
    blocks = take_pages(FIRST_BLOCKS * sizeof *blocks);
    block_places = FIRST_BLOCKS;
    stacks = take_pages((STACK_PLACES + 1) * sizeof *stacks);
    return blocks != NULL && stacks != NULL && pthread_atfork(begin_fork, end_fork, end_fork_in_child) == 0;
}
