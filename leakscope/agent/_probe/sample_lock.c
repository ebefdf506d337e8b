/* The lock of the sampler. */
#include "sample.h"

#include <sched.h>

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
