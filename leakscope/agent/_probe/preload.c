/* The preloaded sampler of `leakscope run --native`: which native code keeps the memory that nobody gives back.
 *
 * It stands in front of the C library's allocator by LD_PRELOAD, is asleep until the agent calls leakscope_native_start(), and
 * then samples allocations at exponential distances in bytes (Poisson sampling, as in tcmalloc's heap profiler and Go's
 * runtime/mprof.go): a block of s bytes is caught with probability 1 - exp(-s/m), stands for s / probability bytes, and its
 * C stack and Python stack are kept until it is freed. A block that is not sampled costs a subtraction when it is made
 * and one look at a table of 64 KiB when it is freed.
 *
 * Nothing in here allocates by malloc: tables come from mmap and are bounded. No lock is held while a stack is read.
 */
#define _GNU_SOURCE
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unwind.h>

enum {
    MOST_FRAMES = 48,
    PYTHON_BYTES = 2048,
    SMALLEST_MEAN = 64 << 10, /* of a program that has just begun, so that a script of ten seconds has sites */
    SAMPLES_A_MEAN = 4096,    /* the mean follows the bytes seen so far: about this many samples, then fewer */
    ARENA_BYTES = 1 << 20,    /* of pymalloc from 3.10 on, where objects lie, which the heap walk counts */
    OLD_ARENA_BYTES = 256 << 10, /* on 3.9 */
};

/* What the probe offers (native.c): writes the Python frames of this thread as a JSON list, and returns its length or 0. */
typedef size_t (*PythonFrames)(char *text, size_t room);

static void *(*real_malloc)(size_t);
static void *(*real_calloc)(size_t, size_t);
static void *(*real_realloc)(void *, size_t);
static void (*real_free)(void *);
static int (*real_posix_memalign)(void **, size_t, size_t);
static void *(*real_aligned_alloc)(size_t, size_t);
static void *(*real_memalign)(size_t, size_t);
static void *(*real_mmap)(void *, size_t, int, int, int, off_t);
static int (*real_munmap)(void *, size_t);
static void *(*real_mremap)(void *, size_t, size_t, int, ...);

static bool is_awake, is_unwinding_possible;
static uint64_t largest_mean, seen_bytes;
uint64_t mean_now, taken_count;
static PythonFrames python_frames;

static THREAD_LOCAL int64_t bytes_left;
THREAD_LOCAL bool is_inside;
static THREAD_LOCAL bool is_seeded;
static THREAD_LOCAL uint64_t random_state;

/* --- chance --- */

static uint64_t random_bits(void) /* xorshift64* (Vigna, 2016) */
{
    if (!is_seeded) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        random_state = ((uint64_t)now.tv_nsec << 32 ^ (uint64_t)(uintptr_t)&random_state ^ (uint64_t)now.tv_sec) | 1;
        is_seeded = true;
    }
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545F4914F6CDD1DULL;
}

static int64_t next_distance(uint64_t mean)
{
    double uniform = (double)((random_bits() >> 11) + 1) * 0x1p-53; /* in (0, 1] */
    return (int64_t)(-log(uniform) * (double)mean) + 1;
}

/* --- for the other files --- */

void *take_pages(size_t bytes)
{
    void *pages = real_mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? NULL : pages;
}

void give_pages(void *pages, size_t bytes)
{
    real_munmap(pages, bytes);
}

void give_real(void *address)
{
    real_free(address);
}

/* --- taking a sample --- */

typedef struct {
    uintptr_t *frames;
    uint32_t count;
} Unwinding;

/* Where this shared object lies; the linker knows. */
extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern const char _end[] __attribute__((visibility("hidden")));

static _Unwind_Reason_Code add_frame(struct _Unwind_Context *context, void *argument)
{
    Unwinding *unwinding = argument;
    uintptr_t address = _Unwind_GetIP(context);
    if (address == 0 || unwinding->count == MOST_FRAMES)
        return _URC_END_OF_STACK;
    if (address < (uintptr_t)__ehdr_start || address >= (uintptr_t)_end)
        unwinding->frames[unwinding->count++] = address - 1; /* inside the call, not after it */
    return _URC_NO_REASON;
}

static __attribute__((noinline)) void sample(void *address, size_t bytes, uint64_t mean)
{
    uintptr_t frames[MOST_FRAMES];
    Unwinding unwinding = {frames, 0};
    if (is_unwinding_possible)
        _Unwind_Backtrace(add_frame, &unwinding);
    char python[PYTHON_BYTES];
    size_t python_bytes = python_frames == NULL ? 0 : python_frames(python, sizeof python);
    double probability = -expm1(-(double)bytes / (double)mean);
    Block block = {(uintptr_t)address, bytes, (uint64_t)((double)bytes / probability + 0.5), 0};
    lock();
    block.stack = row_of_stack(frames, unwinding.count, python, python_bytes);
    taken_count++;
    unlock();
    put_in(block);
}

/* Where the unwinder's code lies. It asks for memory while it holds the lock of the tables that programs which compile at run time
 * have registered with it (libgcc before 13, unwind-dw2-fde.c, init_object): to unwind there would wait for that lock for ever. */
static uintptr_t unwinder_begin, unwinder_end;

static int note_unwinder(struct dl_phdr_info *object, size_t size, void *unused)
{
    (void)size, (void)unused;
    uintptr_t inside = (uintptr_t)_Unwind_Backtrace;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        uintptr_t begin = object->dlpi_addr + object->dlpi_phdr[i].p_vaddr, end = begin + object->dlpi_phdr[i].p_memsz;
        if (object->dlpi_phdr[i].p_type == PT_LOAD && begin <= inside && inside < end) {
            unwinder_begin = begin;
            unwinder_end = end;
            return 1;
        }
    }
    return 0;
}

/* The countdown of this thread has ended. */
static __attribute__((noinline)) void look_closer(void *address, size_t bytes, const void *caller)
{
    bool is_of_unwinder = (uintptr_t)caller >= unwinder_begin && (uintptr_t)caller < unwinder_end;
    if (is_inside || !is_awake || is_of_unwinder) {
        bytes_left = 1 << 20; /* asleep, or not to be looked at: look again after another MiB */
        return;
    }
    if (!is_seeded) { /* the first look of a thread: its distance begins here, else each thread would give a sample */
        bytes_left = next_distance(mean_now) - (int64_t)bytes;
        if (bytes_left > 0)
            return;
    }
    is_inside = true;
    int error = errno;
    uint64_t mean = mean_now;
    if (address != NULL)
        sample(address, bytes, mean);
    uint64_t seen = __atomic_add_fetch(&seen_bytes, mean, __ATOMIC_RELAXED);
    uint64_t wanted = seen / SAMPLES_A_MEAN;
    if (block_count > MOST_BLOCKS / 2)
        wanted = largest_mean *= 2;
    if (wanted > mean)
        mean_now = wanted < largest_mean ? wanted : largest_mean;
    bytes_left = next_distance(mean_now);
    errno = error;
    is_inside = false;
}

static inline void *counted_for(const void *caller, void *address, size_t bytes)
{
    bytes_left -= (int64_t)bytes;
    if (__builtin_expect(bytes_left < 0, 0))
        look_closer(address, bytes, caller);
    return address;
}

/* In a function that somebody else calls. */
#define counted(address, bytes) counted_for(__builtin_return_address(0), address, bytes)

/* --- in front of the C library ------------------------------------------------------------------------------------------- */

/* dlsym() itself may ask for memory before we know whom to ask. */
static char first_memory[16 << 10] __attribute__((aligned(16)));
static size_t first_used;

static bool is_first_memory(void *address)
{
    return (char *)address >= first_memory && (char *)address < first_memory + sizeof first_memory;
}

static void *take_first_memory(size_t bytes)
{
    bytes = (bytes + 31) & ~(size_t)15;
    if (first_used + bytes > sizeof first_memory)
        return NULL;
    char *address = first_memory + first_used + 16;
    *(size_t *)(address - 16) = bytes - 16;
    first_used += bytes;
    return address;
}

static void find_real(void)
{
    static bool is_finding;
    if (is_finding)
        return;
    is_finding = true;
    *(void **)&real_calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&real_realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&real_free = dlsym(RTLD_NEXT, "free");
    *(void **)&real_posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    *(void **)&real_aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    *(void **)&real_memalign = dlsym(RTLD_NEXT, "memalign");
    *(void **)&real_mmap = dlsym(RTLD_NEXT, "mmap");
    *(void **)&real_munmap = dlsym(RTLD_NEXT, "munmap");
    *(void **)&real_mremap = dlsym(RTLD_NEXT, "mremap");
    *(void **)&real_malloc = dlsym(RTLD_NEXT, "malloc"); /* last: with it all are known */
}

EXPORT void *malloc(size_t bytes)
{
    if (__builtin_expect(real_malloc == NULL, 0)) {
        find_real();
        if (real_malloc == NULL)
            return take_first_memory(bytes);
    }
    return counted(real_malloc(bytes), bytes);
}

EXPORT void *calloc(size_t count, size_t bytes)
{
    if (__builtin_expect(real_malloc == NULL, 0)) {
        find_real();
        if (real_malloc == NULL)
            return take_first_memory(count * bytes); /* of zeros, as static memory is */
    }
    return counted(real_calloc(count, bytes), count * bytes);
}

EXPORT void free(void *address)
{
    Block was;
    if (__builtin_expect(real_malloc == NULL, 0) || is_first_memory(address))
        return;
    if (may_be_sampled(address))
        take_out(address, &was);
    real_free(address);
}

/* A block that grows is an allocation of the new size: the old sample is dropped, and the new block may be sampled. */
EXPORT void *realloc(void *address, size_t bytes)
{
    Block was;
    if (__builtin_expect(real_malloc == NULL, 0) || is_first_memory(address)) {
        void *moved = malloc(bytes);
        if (moved != NULL && address != NULL) {
            size_t before = *(size_t *)((char *)address - 16);
            memcpy(moved, address, before < bytes ? before : bytes);
        }
        return moved;
    }
    bool was_sampled = may_be_sampled(address) && take_out(address, &was);
    void *moved = real_realloc(address, bytes);
    if (moved == NULL && bytes != 0) {
        if (was_sampled)
            put_in(was);
        return NULL;
    }
    return counted(moved, bytes);
}

EXPORT void *reallocarray(void *address, size_t count, size_t bytes)
{
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all)) {
        errno = ENOMEM;
        return NULL;
    }
    return realloc(address, all);
}

EXPORT int posix_memalign(void **address, size_t alignment, size_t bytes)
{
    if (real_malloc == NULL)
        find_real();
    if (real_posix_memalign == NULL)
        return ENOMEM;
    int error = real_posix_memalign(address, alignment, bytes);
    if (error == 0)
        counted(*address, bytes);
    return error;
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes)
{
    if (real_malloc == NULL)
        find_real();
    return real_aligned_alloc == NULL ? NULL : counted(real_aligned_alloc(alignment, bytes), bytes);
}

EXPORT void *memalign(size_t alignment, size_t bytes)
{
    if (real_malloc == NULL)
        find_real();
    return real_memalign == NULL ? NULL : counted(real_memalign(alignment, bytes), bytes);
}

/* Anonymous memory that a library maps by itself. What the C library's malloc maps does not pass here, nor do thread stacks.
 * Like a malloc of that size; pieces of it that are unmapped later are not followed, only the whole. */
EXPORT void *mmap(void *wish, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (real_malloc == NULL)
        find_real();
    if (real_mmap == NULL) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *address = real_mmap(wish, bytes, protection, flags, fd, offset);
    bool is_counted = address != MAP_FAILED && flags & MAP_ANONYMOUS && !(flags & (MAP_FIXED | MAP_NORESERVE)) &&
                      protection & PROT_WRITE && bytes != ARENA_BYTES && bytes != OLD_ARENA_BYTES;
    if (is_counted && !is_inside)
        counted(address, bytes);
    return address;
}

EXPORT void *mmap64(void *wish, size_t bytes, int protection, int flags, int fd, off_t offset)
    __attribute__((alias("mmap")));

EXPORT int munmap(void *address, size_t bytes)
{
    Block was;
    if (real_malloc == NULL)
        find_real();
    if (real_munmap != NULL && may_be_sampled(address))
        take_out(address, &was);
    return real_munmap == NULL ? -1 : real_munmap(address, bytes);
}

EXPORT void *mremap(void *address, size_t before, size_t bytes, int flags, ...)
{
    Block was;
    va_list more;
    va_start(more, flags);
    void *wish = flags & MREMAP_FIXED ? va_arg(more, void *) : NULL;
    va_end(more);
    if (real_malloc == NULL)
        find_real();
    if (real_mremap == NULL) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    bool was_sampled = may_be_sampled(address) && take_out(address, &was);
    void *moved = real_mremap(address, before, bytes, flags, wish);
    if (was_sampled) { /* moved or not, it goes on */
        if (moved != MAP_FAILED)
            was.address = (uintptr_t)moved;
        put_in(was);
    }
    return moved;
}

/* --- what the agent calls -------------------------------------------------------------------------------------------------- */

/* Begins to sample, once a process; 0, or an errno. `mean`: the largest mean distance in bytes. */
EXPORT int leakscope_native_start(uint64_t mean)
{
    if (is_awake)
        return 0;
    if (real_malloc == NULL)
        find_real();
    largest_mean = mean > SMALLEST_MEAN ? mean : SMALLEST_MEAN;
    if (blocks == NULL) {
        if (!tables_open())
            return ENOMEM;
        is_inside = true;
        uintptr_t frames[MOST_FRAMES];
        Unwinding first = {frames, 0};
        _Unwind_Backtrace(add_frame, &first); /* whatever the unwinder loads it loads now */
        dl_iterate_phdr(note_unwinder, NULL);
        is_unwinding_possible = first.count > 0;
        is_inside = false;
    }
    mean_now = SMALLEST_MEAN;
    is_awake = true;
    return 0;
}

/* Sleeps again: blocks that are known are still followed to their end. */
EXPORT void leakscope_native_stop(void)
{
    is_awake = false;
}

/* The probe brings Python's frames. */
EXPORT void leakscope_native_python(PythonFrames frames)
{
    python_frames = frames;
}
