/* The sampler: which bytes are sampled, and the table of the sampled blocks that live. See sample.h for the method.
 *
 * The mean follows the program. It begins at 64 KiB, while modules are loaded, and is doubled, up to 512 KiB, as long as more than
 * MOST_A_SECOND samples a second are taken, each of which costs some microseconds; and it is halved, down to 1 KiB, as long as fewer
 * than a quarter of these are. So a script of ten seconds, a server that keeps one small object a request and one that allocates a
 * gigabyte a second have about as many samples, and none pays more than about half a percent for them. The rate is looked at when
 * samples are taken and, because a program may allocate too little for any, on the agent's tick. Up it goes a step at a time, within
 * COUNT_BETWEEN_LOOKS samples: a sudden burst costs that many a step, which is milliseconds in all. Each sample keeps the weight of
 * its own time, so the sums stay right.
 *
 * When the table has reached its bound, the least mean is doubled and live samples are given up by toss of a coin, the weights of the
 * others raised: that is the table of a process that had the doubled mean from its start. Means below 64 KiB have a bound of their own,
 * FINE_LIVE: in a fuller table too many blocks that are no samples would have to be looked for.
 *
 * A forked child goes on with the table of its parent: what it describes was copied with it. */
#include "sample.h"

#include <math.h>
#include <time.h>

/* Bytes of level 0; each level has twice the mean of the one below. */
#define LEAST_MEAN 1024.0
#define FIRST_LEVEL 6
#define LARGEST_LEVEL 9
/* Where the old size of a block is unknown, each realloc counts in full; then the rate alone is the bound. */
#define UNBOUNDED_LEVEL 16
#define FINE_LIVE 16384u
#define MOST_A_SECOND 1000
#define COUNT_BETWEEN_LOOKS 256
#define MOST_STEPS_DOWN 3
#define SECOND_NS 1000000000LL
#define LOOK_NS (SECOND_NS / 2)
#define PIECE 4096
#define FIRST_ROOM 1024u
#define LEAST_CAP (1u << 20)
#define RENEWAL_COUNT 10000

__thread Gap gap;
uint8_t filter[1u << FILTER_BITS];

static struct {
    bool is_on, is_fixed; /* is_fixed: the caller chose the mean */
    double base;          /* mean of level 0 */
    uint8_t level, least; /* of now; below which it may not go */
    int64_t started_ns, look_ns;
    uint64_t look_count, seed;
    uint64_t taken, thinned, own, lost_stacks, renewed_at;
    size_t cap_bytes;
    Sample *live; /* open addressing by address; room is a power of two and at most half full */
    size_t count, room;
} sampler = {.base = LEAST_MEAN, .level = FIRST_LEVEL};

/* --- the gaps ---------------------------------------------------------------------------------------------------------------------- */

static uint64_t mixed(uint64_t seed) /* splitmix64, Steele, Lea, Flood 2014 */
{
    seed = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9u;
    seed = (seed ^ seed >> 27) * 0x94D049BB133111EBu;
    return seed ^ seed >> 31;
}

/* Evenly from (0, 1]: xorshift64*, Vigna 2016, a state for each thread. */
static double toss(void)
{
    if (gap.random == 0)
        gap.random = mixed(__atomic_add_fetch(&sampler.seed, 0x9E3779B97F4A7C15u, __ATOMIC_RELAXED)) | 1;
    gap.random ^= gap.random >> 12;
    gap.random ^= gap.random << 25;
    gap.random ^= gap.random >> 27;
    return (double)((gap.random * 0x2545F4914F6CDD1Du >> 11) + 1) * 0x1p-53;
}

static double mean_of(unsigned level)
{
    return sampler.base * (double)(1ull << level);
}

static void cut(int64_t bytes)
{
    gap.left = bytes < PIECE ? bytes : PIECE;
    gap.rest = bytes - gap.left;
}

static void draw(void)
{
    gap.level = __atomic_load_n(&sampler.level, __ATOMIC_RELAXED);
    gap.mean = mean_of(gap.level);
    cut((int64_t)(-gap.mean * log(toss())));
}

/* At the end of a piece. False: the gap goes on behind the block that was counted last. */
static bool has_gap_ended(void)
{
    int64_t left = gap.left + gap.rest;
    if (left < 0)
        return true;
    if (gap.mean != mean_of(__atomic_load_n(&sampler.level, __ATOMIC_RELAXED)))
        draw();
    else
        cut(left);
    return false;
}

static double caught(double bytes, double mean)
{
    return -expm1(-bytes / mean);
}

/* Every COUNT_BETWEEN_LOOKS samples, and whenever they have become rare. The agent's own cost little, their stacks are not kept. */
static void follow_the_rate(int64_t t_ns)
{
    int64_t passed_ns = t_ns - sampler.look_ns;
    uint64_t count = sampler.taken - sampler.own - sampler.look_count;
    if (sampler.is_fixed || (count < COUNT_BETWEEN_LOOKS && passed_ns < LOOK_NS))
        return;
    double a_second = (double)count * SECOND_NS / (double)(passed_ns > 0 ? passed_ns : 1);
    uint8_t level = sampler.level, most = hooks_mode()[0] == 'l' ? LARGEST_LEVEL : UNBOUNDED_LEVEL;
    if (sampler.count < FINE_LIVE / 8) /* what filled the table has gone */
        sampler.least = 0;
    if (a_second > MOST_A_SECOND && level < most)
        level++;
    for (int steps = 0; steps < MOST_STEPS_DOWN && a_second < MOST_A_SECOND / 4 && level > sampler.least; steps++) {
        a_second *= 2;
        level--;
    }
    __atomic_store_n(&sampler.level, level, __ATOMIC_RELAXED);
    sampler.look_ns = t_ns;
    sampler.look_count += count;
}

/* --- the live table, all with the lock ------------------------------------------------------------------------------------------- */

static size_t first_place(uintptr_t address)
{
    return (size_t)((address >> 4) * 0x9E3779B97F4A7C15u >> 20) & (sampler.room - 1);
}

static Sample *place_of(uintptr_t address)
{
    size_t place = first_place(address);
    while (sampler.live[place].address != 0 && sampler.live[place].address != address)
        place = (place + 1) & (sampler.room - 1);
    return &sampler.live[place];
}

static void count_in_filter(uintptr_t address, int change)
{
    uint8_t *count = &filter[filter_slot(address)];
    if (*count < UINT8_MAX) /* at its end it stays */
        __atomic_store_n(count, (uint8_t)(*count + change), __ATOMIC_RELAXED);
}

static void take_from_table(Sample *sample)
{
    count_in_filter(sample->address, -1);
    sampler.count--;
    size_t mask = sampler.room - 1, hole = (size_t)(sample - sampler.live);
    for (size_t place = (hole + 1) & mask; sampler.live[place].address != 0; place = (place + 1) & mask)
        /* May it go to the hole? Only if that lies between its first place and where it is. */
        if (((place - first_place(sampler.live[place].address)) & mask) >= ((place - hole) & mask)) {
            sampler.live[hole] = sampler.live[place];
            hole = place;
        }
    sampler.live[hole].address = 0;
}

static bool resize(size_t room)
{
    Sample *former = sampler.live, *live = pages_resize(NULL, 0, room * sizeof *live);
    size_t former_room = sampler.room;
    if (live == NULL)
        return false;
    sampler.live = live;
    sampler.room = room;
    for (size_t place = 0; place < former_room; place++)
        if (former[place].address != 0)
            *place_of(former[place].address) = former[place];
    pages_free(former, former_room * sizeof *former);
    return true;
}

/* The table as it would be had the least mean been twice as large from the start. */
static void thin(void)
{
    double mean = mean_of(++sampler.least);
    if (sampler.level < sampler.least)
        __atomic_store_n(&sampler.level, sampler.least, __ATOMIC_RELAXED);
    for (size_t place = 0; place < sampler.room;) {
        Sample *sample = &sampler.live[place];
        if (sample->address != 0 && sample->level < sampler.least) {
            double kept = caught((double)sample->bytes, mean) / caught((double)sample->bytes, mean_of(sample->level));
            if (toss() > kept) {
                take_from_table(sample); /* another one may have moved here */
                sampler.thinned++;
                continue;
            }
            sample->weight /= kept;
            sample->level = sampler.least;
        }
        place++;
    }
}

static bool has_room(void)
{
    if (!sampler.is_fixed && sampler.count >= FINE_LIVE && sampler.least < FIRST_LEVEL)
        return false;
    if (2 * sampler.count < sampler.room)
        return true;
    return sampler.room * 2 * sizeof(Sample) <= sampler.cap_bytes / 2 && resize(sampler.room * 2);
}

void sample_add(const Sample *sample)
{
    if (!lock_take())
        return;
    for (int tries = 0; sampler.is_on && !has_room() && tries < 40; tries++)
        thin();
    if (sampler.is_on) {
        Sample *place = place_of(sample->address);
        if (place->address == 0) {
            count_in_filter(sample->address, 1);
            sampler.count++;
        } /* else it was freed past us */
        *place = *sample;
    }
    lock_give();
}

bool sample_remove(const void *block, Sample *removed)
{
    if (block == NULL || !may_be_sampled(block) || !lock_take())
        return false;
    Sample *place = sampler.is_on ? place_of((uintptr_t)block) : NULL;
    bool was_there = place != NULL && place->address != 0;
    if (was_there) {
        if (removed != NULL)
            *removed = *place;
        take_from_table(place);
    }
    lock_give();
    return was_there;
}

/* Stacks whose blocks are gone are given up when the tables are full. */
static void renew_stacks(void)
{
    if (sampler.taken - sampler.renewed_at < RENEWAL_COUNT || !stacks_renew_begin())
        return;
    sampler.renewed_at = sampler.taken;
    for (size_t place = 0; place < sampler.room; place++)
        if (sampler.live[place].address != 0)
            sampler.live[place].stack = stacks_renew(sampler.live[place].stack);
    stacks_renew_end();
}

/* --- a hit -------------------------------------------------------------------------------------------------------------------------- */

/* The state of this thread if it holds the GIL. Up to CPython 3.11 the current state is one for all threads: it must be ours, and another
 * thread's may not even be looked at without the GIL, because it may be freed. From 3.12 on it is kept by thread. */
static PyThreadState *own_state(bool has_gil)
{
    PyThreadState *state = _PyThreadState_UncheckedGet();
#if !AT_LEAST(12)
    if (state == NULL || (!has_gil && state != PyGILState_GetThisThreadState()))
        return NULL;
    if (state->thread_id != PyThread_get_thread_ident())
        return NULL;
#endif
    return state;
}

bool sample_open(Sample *sample, bool has_gil, size_t bytes)
{
    if (gap.ping) {
        gap.ping = 2;
        gap.left = 0;
        return false;
    }
    if (gap.mean == 0) { /* the first of this thread: no gap was drawn before it */
        draw();
        if ((gap.left -= (int64_t)bytes) >= 0)
            return false;
    }
    if (!has_gap_ended())
        return false;
    uint8_t level = gap.level;
    double weight = (double)bytes / caught((double)bytes, gap.mean);
    draw();
    if (!sampler.is_on || gap.depth > 0)
        return false;
    PyThreadState *state = own_state(has_gil);
    *sample = (Sample){.weight = weight, .level = level, .t_ns = now_ns()};
    if (!lock_take())
        return false;
    bool is_own = false, is_on = sampler.is_on;
    if (is_on) {
        sampler.taken++;
        follow_the_rate(sample->t_ns);
        sample->stack = stack_now(state, &is_own);
        sampler.own += is_own;
        sampler.lost_stacks += sample->stack == LOST_STACK;
        if (UNLIKELY(stacks_are_full()))
            renew_stacks();
    }
    lock_give();
    return is_on && !is_own;
}

Sample *samples_copy(size_t *count, size_t *bytes)
{
    Sample *copy = NULL;
    *count = 0;
    *bytes = (sampler.count + 1) * sizeof *copy;
    if (sampler.is_on)
        copy = pages_resize(NULL, 0, *bytes);
    for (size_t place = 0; copy != NULL && place < sampler.room; place++)
        if (sampler.live[place].address != 0)
            copy[(*count)++] = sampler.live[place];
    return copy;
}

bool sample_is_on(void)
{
    return sampler.is_on;
}

bool samples_are_on(void)
{
    return sampler.is_on;
}

int64_t samples_started_ns(void)
{
    return sampler.started_ns;
}

/* --- from Python -------------------------------------------------------------------------------------------------------------------- */

static void clear(void)
{
    pages_free(sampler.live, sampler.room * sizeof *sampler.live);
    sampler.live = NULL;
    sampler.room = sampler.count = 0;
    memset(filter, 0, sizeof filter);
    stacks_close();
}

static void stop(void)
{
    if (lock_take()) {
        sampler.is_on = false;
        clear();
        lock_give();
    }
    hooks_take();
}

static const char *begin(double mean, size_t cap_bytes, int64_t started_ns, uint64_t seed)
{
    static bool is_prepared;
    const char *reason = NULL;
    if (!is_prepared && pthread_atfork(samples_before_fork, samples_after_fork, samples_after_fork) != 0)
        return "The system gave no memory for the allocation sampler.";
    is_prepared = true;
    if (!lock_take())
        return "The allocation sampler was asked for during a fork.";
    sampler.is_fixed = mean > 0;
    sampler.base = mean > 0 ? mean : LEAST_MEAN;
    sampler.level = mean > 0 ? 0 : FIRST_LEVEL;
    sampler.least = 0;
    sampler.started_ns = started_ns;
    sampler.look_ns = now_ns();
    sampler.taken = sampler.thinned = sampler.own = sampler.lost_stacks = sampler.renewed_at = sampler.look_count = 0;
    sampler.cap_bytes = cap_bytes < LEAST_CAP ? LEAST_CAP : cap_bytes;
    sampler.seed = seed ? seed : (uint64_t)now_ns() ^ (uint64_t)getpid() << 40;
    gap.random = 0;
    gap.mean = 0;
    gap.left = gap.rest = 0;
    if (stacks_open(sampler.cap_bytes / 2) && resize(FIRST_ROOM))
        sampler.is_on = true;
    else
        reason = "The system gave no memory for the allocation sampler.";
    if (reason != NULL)
        clear();
    lock_give();
    if (reason == NULL && !hooks_put(&reason))
        stop();
    return reason;
}

static PyObject *sample_start(PyObject *module, PyObject *args, PyObject *words)
{
    static char *names[] = {"mean_bytes", "cap_bytes", "started_monotonic_ns", "own", "library", "here", "seed", NULL};
    double mean = 0;
    Py_ssize_t cap_bytes = 16 << 20;
    long long started_ns = 0;
    unsigned long long seed = 0;
    const char *own = "", *library = "", *here = "";
    if (!PyArg_ParseTupleAndKeywords(args, words, "|dnLsssK", names, &mean, &cap_bytes, &started_ns, &own, &library, &here, &seed))
        return NULL;
    if (sampler.is_on) /* a forked child goes on */
        Py_RETURN_NONE;
    shown_open(own, library, here);
    const char *reason = begin(mean, (size_t)cap_bytes, started_ns, seed);
    if (reason != NULL)
        return PyUnicode_FromString(reason);
    Py_RETURN_NONE;
}

static PyObject *sample_stop(PyObject *module, PyObject *unused)
{
    stop();
    Py_RETURN_NONE;
}

static void begin_anew_if_out(void)
{
    if (!sampler.is_on || hooks_are_reached())
        return;
    double mean = sampler.is_fixed ? sampler.base : 0; /* another tool took them out: nobody knows what lives */
    int64_t started_ns = sampler.started_ns;
    uint64_t seed = sampler.seed;
    size_t cap_bytes = sampler.cap_bytes;
    stop();
    begin(mean, cap_bytes, started_ns, seed);
}

static PyObject *sample_tick(PyObject *module, PyObject *unused)
{
    begin_anew_if_out();
    if (lock_take()) {
        if (sampler.is_on)
            follow_the_rate(now_ns());
        lock_give();
    }
    return PyBool_FromLong(sampler.is_on);
}

static PyObject *sample_state(PyObject *module, PyObject *unused)
{
    begin_anew_if_out();
    return Py_BuildValue("{s:s,s:d,s:n,s:K,s:K,s:K,s:K,s:K,s:n}", "mode", sampler.is_on ? hooks_mode() : "off", "mean_bytes",
                         mean_of(sampler.level), "live_count", (Py_ssize_t)sampler.count, "taken_count", (unsigned long long)sampler.taken, "thinned_count",
                         (unsigned long long)sampler.thinned, "own_count", (unsigned long long)sampler.own, "lost_stack_count",
                         (unsigned long long)sampler.lost_stacks, "stack_count", (unsigned long long)stacks_count(), "table_bytes",
                         (Py_ssize_t)(sampler.room * sizeof(Sample) + stacks_bytes() + sizeof filter));
}

PyMethodDef sample_methods[] = {
    {"sample_start", (PyCFunction)(void (*)(void))sample_start, METH_VARARGS | METH_KEYWORDS,
     "sample_start(mean_bytes=0, cap_bytes=16 MiB, started_monotonic_ns=0, own='', library='', here='', seed=0) -> None or why not.\n\n"
     "mean_bytes: between two sampled bytes; 0: 1 to 512 KiB, as the program needs it. own: folder whose code is not the program's;\n"
     "library, here: folders that file names are shown without; all with a '/' at their end. Goes on where it is on already."},
    {"sample_stop", sample_stop, METH_NOARGS, "sample_stop(): gives up what is known, and takes the hooks out where no other tool is above."},
    {"sample_tick", sample_tick, METH_NOARGS,
     "sample_tick() -> whether it is on; lets the mean follow the rate, and begins anew if another tool took the hooks out."},
    {"sample_state", sample_state, METH_NOARGS, "sample_state() -> dict; begins anew if another tool took the hooks out."},
    {"sample_live", sample_live, METH_NOARGS,
     "sample_live() -> [(address, bytes, weight, t_ns, [(file, line, function), ...] innermost first), ...]"},
    {NULL, NULL, 0, NULL},
};
