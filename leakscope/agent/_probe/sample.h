/* What the files of the sampler share: hooks.c (the allocators), sample.c (the live samples), stack.c (where they were made),
 * shown.c (what of a code object may be shown), survivors.c (what a walk writes of them).
 *
 * The method is heap profiling by a Poisson process over the bytes that are allocated, as in tcmalloc and jemalloc: the gap to the next
 * sampled byte is drawn from an exponential distribution with the mean m, so a block of s bytes is caught with the probability
 * P = 1 - exp(-s / m), and stands for s / P bytes. The sum of these weights over the blocks that live estimates their bytes without bias.
 *
 * Nothing here allocates by the allocators that it watches: memory comes from mmap. Everything but the gap of a thread is guarded by one
 * lock that is held for some microseconds, never while a function of the interpreter or the C library runs. */
#ifndef LEAKSCOPE_SAMPLE_H
#define LEAKSCOPE_SAMPLE_H

#include "probe.h"

#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define INLINE static inline __attribute__((always_inline))

/* --- hooks.c --- */
bool hooks_put(const char **reason); /* into all three domains; false: nothing was changed, and why not */
void hooks_take(void);               /* out, where nobody has put theirs on top; the others let everything pass */
bool hooks_are_reached(void);        /* whether allocations come by */
const char *hooks_mode(void);        /* "light": pymalloc's free is not hooked; "full" */

/* --- sample.c --- */

/* One sampled block that lives. */
typedef struct {
    uintptr_t address; /* 0: the place is free */
    uint64_t bytes;
    double weight;     /* bytes that it stands for */
    int64_t t_ns;      /* CLOCK_MONOTONIC */
    uint32_t stack;    /* row of a node of stack.c */
    bool is_small;     /* a request of pymalloc that went to the raw domain: its realloc is a new allocation */
    uint8_t level;     /* of the mean when it was taken; see sample.c */
} Sample;

/* What each thread keeps. Bytes are counted down to the next sampled one, of all domains in one. A gap is counted in pieces: at the end
 * of each the thread sees whether the mean is another one now. What is left of an exponential gap is distributed as a whole one, so it
 * is then drawn anew. */
typedef struct {
    int64_t left;    /* bytes of this piece until its last or the sampled one, never negative between two calls */
    int64_t rest;    /* bytes of the gap behind this piece */
    double mean;     /* that this gap was drawn with; 0: none was drawn yet */
    uint64_t random; /* state of the generator, 0: not seeded */
    size_t instead;  /* bytes that the raw domain shall give where it is asked for one more than pymalloc has; 0: what it is asked for */
    uint32_t depth;  /* inside an allocator that we have called: what it calls is not another allocation */
    uint8_t level;   /* of its mean */
    uint8_t ping;    /* 1: asked whether allocations come by; 2: yes */
    bool has_lock;   /* around a fork, when this thread has the lock all the time */
} Gap;

/* Static where the C library keeps room for it (initial-exec): one instruction. */
#if defined(__GLIBC__)
#define FAST_TLS __attribute__((tls_model("initial-exec")))
#else
#define FAST_TLS
#endif
extern __thread Gap gap FAST_TLS;

/* How many live samples there may be at addresses like this one: 0 says none, by one load and without the lock. */
#define FILTER_BITS 17
extern uint8_t filter[1u << FILTER_BITS];

INLINE size_t filter_slot(uintptr_t address)
{
    return (address >> 4 ^ address >> (4 + FILTER_BITS)) & ((1u << FILTER_BITS) - 1);
}

INLINE bool may_be_sampled(const void *block)
{
    return __atomic_load_n(&filter[filter_slot((uintptr_t)block)], __ATOMIC_RELAXED) != 0;
}

INLINE bool is_hit(size_t bytes)
{
    return UNLIKELY((gap.left -= (int64_t)bytes) < 0);
}

/* After is_hit(bytes): draws the next gap where this one has ended. True: the block is to be sampled, and `sample` has all but address
 * and bytes. */
bool sample_open(Sample *sample, bool has_gil, size_t bytes);
void sample_add(const Sample *sample);                   /* a block that lives from now on */
bool sample_remove(const void *block, Sample *removed);  /* it is freed, or moves; false: it was no sample */
bool lock_take(void); /* sample_lock.c. false: this thread has it, around a fork */
void lock_give(void);
Sample *samples_copy(size_t *count, size_t *bytes); /* with the lock: for pages_free(); NULL: off, or no memory */
int64_t samples_started_ns(void);
bool samples_are_on(void);
bool sample_is_on(void);
PyObject *sample_live(PyObject *module, PyObject *unused); /* sample_live.c */

/* --- stack.c --- */
#define NO_STACK 0u     /* no Python frame */
#define NATIVE_STACK 1u /* a thread without the GIL */
#define LOST_STACK 2u   /* the tables are full */
bool stacks_open(size_t limit_bytes);
void stacks_close(void);
uint32_t stack_now(PyThreadState *state, bool *is_own); /* state: of this thread, NULL without the GIL; is_own: the agent is on it */
bool stacks_are_full(void);
bool stacks_renew_begin(void);             /* keeps only what stacks_renew() is asked for until stacks_renew_end() */
uint32_t stacks_renew(uint32_t stack);
void stacks_renew_end(void);
uint32_t stack_places(uint32_t stack, uint32_t *places, uint32_t room); /* innermost first */
typedef struct {
    const char *text; /* UTF-8, without an end */
    size_t length;
} Words;
void place_read(uint32_t place, Words *file, uint32_t *line, Words *function);
size_t place_json(uint32_t place, char *json, size_t room); /* ["app.py",12,"parse"], without a 0 behind it; returns its bytes, 0: it does
    not fit */
uint32_t stacks_count(void);
size_t stacks_bytes(void);

/* --- shown.c; the rest of it is in shown.h --- */
void shown_open(const char *own, const char *library, const char *here); /* folders with a "/" at their end; "" where there is none */

#endif
