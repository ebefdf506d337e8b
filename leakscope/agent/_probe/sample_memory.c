/* The lock of the sampler, and its memory. */
#include "sample.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int lock;

bool lock_take(void)
{
    if (gap.has_lock)
        return false;
    for (int tries = 0; __atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE) != 0; tries++)
        if (tries > 100)
            sched_yield();
    return true;
}

void lock_give(void)
{
    __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
}

void samples_before_fork(void)
{
    gap.has_lock = lock_take();
}

void samples_after_fork(void)
{
    if (gap.has_lock) {
        gap.has_lock = false;
        lock_give();
    }
}

static size_t in_pages(size_t bytes)
{
    return (bytes + 4095) & ~(size_t)4095;
}

/* By system calls: a library in front of the C library's mmap (preload.c is one) would ask for the stack of this thread, which waits for
 * the lock that we hold. */
void *pages_resize(void *old, size_t old_bytes, size_t new_bytes)
{
    long pages;
    if (old == NULL || old_bytes == 0)
        pages = syscall(SYS_mmap, NULL, in_pages(new_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
    else
        pages = syscall(SYS_mremap, old, in_pages(old_bytes), in_pages(new_bytes), MREMAP_MAYMOVE);
    return pages == -1 ? NULL : (void *)pages;
}

void pages_free(void *pages, size_t bytes)
{
    if (pages != NULL && bytes > 0)
        syscall(SYS_munmap, pages, in_pages(bytes));
}
