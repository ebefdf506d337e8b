/* How much memory the arenas of pymalloc take, and how much of it is in use: the interpreter's arena allocator, counted.
 *
 * pymalloc asks for an arena when no pool is free, and gives one back only when not a single block of it is in use (Objects/obmalloc.c,
 * new_arena and insert_to_freepool): one small object that lives long keeps a whole arena. What is in use stands in the header of each
 * pool. Arenas that were there before us are counted by what the interpreter says of them then; it says so only while nobody's hooks are
 * in its allocators, so this comes up before the sampler. The interpreter calls the arena allocator with the GIL held; those with a GIL of
 * their own (3.12) share it, hence the lock. */
#include "probe.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#if AT_LEAST(13)
#include <internal/pycore_pymem.h> /* _PyMem_GetCurrentAllocatorName */
#endif

#define ARENA_BYTES (1u << 20) /* obmalloc.c, ARENA_BITS; other sizes are chunks of a thread's stack of frames */
#define POOL_BYTES (1u << 14)  /* POOL_BITS */
#define BLOCK_STEP 16u         /* ALIGNMENT */
#define SPARSE 4u              /* a pool of which less than one part in so many is in use is nearly empty; ours */

/* Objects/obmalloc.c, struct pool_header: the same from 3.10 to 3.13. */
typedef struct {
    union {
        uint8_t *padding;
        uint32_t count; /* blocks in use */
    } ref;
    uint8_t *free_block;
    void *next, *previous;
    uint32_t arena_index, size_index, next_offset, most_next_offset;
} Pool;

/* What sys._debugmallocstats() prints. Weak: where a version does not export it, the probe loads all the same. */
extern int _PyObject_DebugMallocStats(FILE *out) __attribute__((weak));

static struct {
    PyObjectArenaAllocator under, ours;
    uintptr_t *arenas; /* those since the start */
    size_t count, room;
    int64_t held_before, used_before, uncounted; /* uncounted: arenas that the table had no room for */
    bool is_in;
} counted;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void note_arena(void *arena)
{
    pthread_mutex_lock(&lock);
    if (counted.count == counted.room) {
        size_t room = counted.room ? 2 * counted.room : 512;
        uintptr_t *grown = pages_resize(counted.arenas, counted.room * sizeof *grown, room * sizeof *grown);
        if (grown != NULL) {
            counted.arenas = grown;
            counted.room = room;
        }
    }
    if (counted.count < counted.room)
        counted.arenas[counted.count++] = (uintptr_t)arena;
    else
        counted.uncounted++;
    pthread_mutex_unlock(&lock);
}

static void forget_arena(void *arena)
{
    pthread_mutex_lock(&lock);
    size_t place = counted.count;
    while (place > 0 && counted.arenas[place - 1] != (uintptr_t)arena) /* the youngest are the first to go */
        place--;
    if (place > 0)
        counted.arenas[place - 1] = counted.arenas[--counted.count];
    else if (counted.held_before >= ARENA_BYTES) { /* empty, so what was in use is less by what an arena had on average */
        counted.used_before -= counted.used_before / (counted.held_before / ARENA_BYTES);
        counted.held_before -= ARENA_BYTES;
    }
    else if (counted.uncounted > 0)
        counted.uncounted--;
    pthread_mutex_unlock(&lock);
}

static void *arena_alloc(void *context, size_t bytes)
{
    void *arena = counted.under.alloc(context, bytes);
    if (arena != NULL && bytes == ARENA_BYTES)
        note_arena(arena);
    return arena;
}

static void arena_free(void *context, void *arena, size_t bytes)
{
    if (bytes == ARENA_BYTES)
        forget_arena(arena);
    counted.under.free(context, arena, bytes);
}

/* --- the start -------------------------------------------------------------------------------------------------------------- */

/* The number behind `name` in a line such as "# bytes in allocated blocks        =            1,234,567". */
static int64_t number_behind(const char *text, const char *name)
{
    const char *at = strstr(text, name), *end = at == NULL ? NULL : strchr(at, '\n');
    int64_t number = 0;
    for (at = at == NULL ? NULL : strchr(at, '='); at != NULL && *at != '\0' && at != end; at++)
        if (*at >= '0' && *at <= '9')
            number = 10 * number + (*at - '0');
    return number;
}

static bool ask_the_interpreter(void)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = _PyObject_DebugMallocStats == NULL ? NULL : open_memstream(&text, &length);
    if (out == NULL)
        return false;
    bool is_told = _PyObject_DebugMallocStats(out) != 0;
    is_told = fclose(out) == 0 && is_told;
    if (is_told) {
        counted.held_before = number_behind(text, " bytes/arena");
        counted.used_before = number_behind(text, "# bytes in allocated blocks");
        is_told = counted.held_before > 0;
    }
    free(text);
    return is_told;
}

static const char *put(void)
{
    const char *name = _PyMem_GetCurrentAllocatorName();
    if (name == NULL)
        return "Another tool has its hooks in the allocators, so the arenas of pymalloc are not counted.";
    if (strncmp(name, "pymalloc", 8) != 0)
        return "The interpreter does not use pymalloc (PYTHONMALLOC), so there are no arenas to count.";
    if (!ask_the_interpreter())
        return "The interpreter does not say what its arenas hold, so they are not counted.";
    PyObject_GetArenaAllocator(&counted.under);
    counted.ours = (PyObjectArenaAllocator){counted.under.ctx, arena_alloc, arena_free}; /* the context stays: see hooks.c */
    counted.count = 0;
    counted.uncounted = 0;
    counted.is_in = true;
    PyObject_SetArenaAllocator(&counted.ours);
    return NULL;
}

static bool is_on_top(void)
{
    PyObjectArenaAllocator now;
    PyObject_GetArenaAllocator(&now);
    return now.alloc == arena_alloc;
}

/* Around a fork nobody may hold the lock: the child would wait for a thread that it does not have. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static PyObject *arenas_start(PyObject *module, PyObject *unused)
{
    static bool is_prepared;
    if (counted.is_in) /* a forked child goes on */
        Py_RETURN_NONE;
    if (!is_prepared && pthread_atfork(before_fork, after_fork, after_fork) != 0)
        return PyUnicode_FromString("The system gave no memory for the counter of arenas.");
    is_prepared = true;
    const char *reason = put();
    if (reason != NULL)
        return PyUnicode_FromString(reason);
    Py_RETURN_NONE;
}

static PyObject *arenas_stop(PyObject *module, PyObject *unused)
{
    if (counted.is_in && is_on_top()) {
        PyObject_SetArenaAllocator(&counted.under);
        pages_free(counted.arenas, counted.room * sizeof *counted.arenas);
        counted.arenas = NULL;
        counted.count = counted.room = 0;
        counted.is_in = false;
    }
    Py_RETURN_NONE;
}

/* --- reading ------------------------------------------------------------------------------------------------------------------ */

typedef struct {
    int64_t used;
    long long pools, sparse;
} Occupancy;

static void add_arena(uintptr_t arena, Occupancy *sum)
{
    uintptr_t end = arena + ARENA_BYTES;
    for (uintptr_t at = (arena + POOL_BYTES - 1) & ~(uintptr_t)(POOL_BYTES - 1); at + POOL_BYTES <= end; at += POOL_BYTES) {
        const Pool *pool = (const Pool *)at;
        if (pool->next_offset == 0) /* never served: those behind it neither */
            return;
        uint64_t used = (uint64_t)pool->ref.count * (pool->size_index + 1) * BLOCK_STEP;
        sum->used += (int64_t)used;
        sum->pools += used > 0;
        sum->sparse += used > 0 && used * SPARSE < POOL_BYTES;
    }
}

static PyObject *arenas_read(PyObject *module, PyObject *unused)
{
    if (!counted.is_in || !is_on_top()) /* above ours there may be one that does not ask us */
        Py_RETURN_NONE;
    pthread_mutex_lock(&lock);
    Occupancy sum = {counted.used_before, 0, 0};
    int64_t held = counted.held_before + (int64_t)counted.count * ARENA_BYTES;
    bool is_whole = counted.uncounted == 0;
    for (size_t place = 0; is_whole && place < counted.count; place++)
        add_arena(counted.arenas[place], &sum);
    pthread_mutex_unlock(&lock);
    if (!is_whole)
        Py_RETURN_NONE;
    return Py_BuildValue("(LLLL)", (long long)held, (long long)sum.used, sum.pools, sum.sparse);
}

PyMethodDef arena_methods[] = {
    {"arenas_start", arenas_start, METH_NOARGS, "arenas_start() -> None or why not: counts the arenas of pymalloc from now on."},
    {"arenas_stop", arenas_stop, METH_NOARGS, "arenas_stop(): leaves the interpreter's arena allocator as it was."},
    {"arenas_read", arenas_read, METH_NOARGS,
     "arenas_read() -> (bytes held, bytes of blocks in use, pools in use, pools nearly empty), or None: not counted.\n\n"
     "Pools are those of the arenas since the start; of those before it, bytes in use are what they were then."},
    {NULL, NULL, 0, NULL},
};
