/* A walk in a forked child: the target stands still for the fork alone, and an accident of the walk is the child's.
 *
 * The child is made by a bare clone, not by fork() or _Fork():
 * - fork() runs the handlers of pthread_atfork, and OpenBLAS's froze the target (shared/knowledge/cpython-heap.md, on forking).
 * - _Fork() gives the child SIGCHLD as its exit signal: the target's handler would be called, its os.wait() would answer with a
 *   child that it never made. With exit signal 0 there is no signal, and the kernel shows the child only to a wait with __WALL or
 *   __WCLONE (eligible_child() in kernel/exit.c). What _Fork() mends in the child, the C library's idea of its own thread, is of
 *   use to locks and raise() only; the child has system calls and memory.
 * - CLONE_FILES: the descriptors are shared, not copied, until the child's first step leaves them behind without ever owning
 *   one. So the end of a pipe or of a connection comes when the target closes it, and the fork is the cheaper for it.
 * - CLONE_UNTRACED: a debugger that follows the target's children does not follow this one.
 *
 * What the target can see of it: one child more in /proc, for a while, and its time and size in getrusage(RUSAGE_CHILDREN).
 */
#include "engine.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE (1U << 1)
#endif

#define SECOND_NS 1000000000LL
/* The walk itself ends at its deadline; a walk that cannot (an endless tp_traverse, a disk that does not answer) is killed later. */
#define GRACE_NS (1 * SECOND_NS)
/* Where both want one core, the target gets three quarters of it (weights of kernel/sched/core.c: 1024 to 335). */
#define CHILD_NICE 5
#define MOST_DESCRIPTORS 65536

/* The one child that walks. A process forked off meanwhile inherits this and has no such child: `parent` says whose it is. */
static struct {
    pid_t pid, parent;
    WalkResult *result; /* a page shared with the child */
} child;

/* Returns the bytes of a line "name   123 kB" of a file of /proc; 0: not there. System calls only. */
static uint64_t kilobytes_of(const char *path, const char *name)
{
    char text[4096];
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    const char *found = strstr(text, name);
    if (!found)
        return 0;
    uint64_t value = 0;
    for (found += strlen(name); *found == ' '; found++)
        ;
    for (; *found >= '0' && *found <= '9'; found++)
        value = value * 10 + (uint64_t)(*found - '0');
    return value << 10;
}

/* Private_Dirty of this process: in a child at its end, what the snapshot cost in memory: the child's own tables, and the pages that
 * the target has changed meanwhile and of which the child has the former state. */
uint64_t snapshot_dirtied_bytes(void)
{
    return kilobytes_of("/proc/self/smaps_rollup", "Private_Dirty:");
}

/* --- the child ------------------------------------------------------------------------------------------------------------- */

/* Leaves the shared table of descriptors. Until then the child opens and closes nothing: it would do so in the target. */
static void leave_descriptors(void)
{
    if (syscall(SYS_close_range, 0U, ~0U, CLOSE_RANGE_UNSHARE) != 0) { /* Linux before 5.9 */
        if (unshare(CLONE_FILES) != 0)
            _exit(1);
        struct rlimit limit = {MOST_DESCRIPTORS, 0};
        getrlimit(RLIMIT_NOFILE, &limit);
        for (int file = 0; file < MOST_DESCRIPTORS && (rlim_t)file < limit.rlim_cur; file++)
            close(file);
    }
    /* Whoever writes to 0, 1 or 2 (the C library, when it aborts) must not write into a column. */
    if (open("/dev/null", O_RDWR) == 0) {
        dup(0);
        dup(0);
    }
}

/* Steps back behind the target in everything that the system shares out, and sets an end. */
static void step_back(int64_t deadline_ns)
{
    int score = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (score >= 0) {
        (void)!write(score, "1000", 4); /* short of memory, the system takes the child */
        close(score);
    }
    struct sched_param none = {0};
    syscall(SYS_sched_setscheduler, 0, SCHED_BATCH, &none); /* not the target's, which may be one of real time */
    setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + CHILD_NICE);
    /* No core file: it would be taken for the target's. */
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_NAME, "leakscope");
    if (deadline_ns) {
        /* All signals are blocked but this one, which kills. So a child ends also when nobody is left to watch it. A fault needs no
         * signal to be let through: a blocked SIGSEGV kills, and no handler of the target (faulthandler) is called. */
        struct { void *handler; unsigned long flags; void *restorer; uint64_t mask; } plain = {0};
        syscall(SYS_rt_sigaction, SIGALRM, &plain, NULL, sizeof plain.mask);
        int64_t left_us = (deadline_ns + GRACE_NS - now_ns()) / 1000;
        if (left_us < 1)
            left_us = 1;
        setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {left_us / 1000000, left_us % 1000000}}, NULL);
        uint64_t alarm = 1ULL << (SIGALRM - 1);
        syscall(SYS_rt_sigprocmask, SIG_UNBLOCK, &alarm, NULL, sizeof alarm);
    }
}

static void walk_and_end(const WalkOrder *order, WalkResult *result) __attribute__((noreturn));
static void walk_and_end(const WalkOrder *order, WalkResult *result)
{
    leave_descriptors();
    step_back(order->deadline_ns);
    _exit(walk_run(order, result) != 0);
}

/* --- the parent ------------------------------------------------------------------------------------------------------------ */

static void forget_child(void)
{
    if (child.result)
        munmap(child.result, sizeof(WalkResult));
    memset(&child, 0, sizeof child);
}

/* Whether a child of this very process walks or was not fetched yet. */
static bool has_child(void)
{
    if (child.pid && child.parent != getpid())
        forget_child();
    return child.pid != 0;
}

PyDoc_STRVAR(fork_walk_doc,
"fork_walk(...) -> (pid, pause_ns)\n\n"
"Walk in a forked child, with the arguments of walk(). forked_walk() says what became of it. One at a time.\n"
"Raises OSError where the system gives no child.");
static PyObject *fork_walk(PyObject *module, PyObject *args)
{
    WalkOrder order = {.is_forked = true};
    if (!walk_order_of(args, &order))
        return NULL;
    if (has_child()) {
        errno = EALREADY;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    WalkResult *result = mmap(NULL, sizeof *result, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (result == MAP_FAILED)
        return PyErr_SetFromErrno(PyExc_OSError);
    /* In the raw form: the C library's keeps two signals of its own open, and their handlers wait for other threads. */
    uint64_t all = ~0ULL, before;
    samples_before_fork();
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof all);
    order.started_ns = now_ns();
    long pid = syscall(SYS_clone, (unsigned long)(CLONE_FILES | CLONE_UNTRACED), 0UL, 0UL, 0UL, 0UL);
    if (pid == 0)
        walk_and_end(&order, result);
    int error = errno;
    int64_t pause_ns = result->pause_ns = now_ns() - order.started_ns;
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof all);
    samples_after_fork();
    if (pid < 0) {
        munmap(result, sizeof *result);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    child.pid = (pid_t)pid;
    child.parent = getpid();
    child.result = result;
    return Py_BuildValue("(lL)", pid, (long long)pause_ns);
}

PyDoc_STRVAR(forked_walk_doc,
"forked_walk() -> None while the child walks, then once a dict: what walk() answers, and of the process signal (that killed it;\n"
"0: none) and cpu_ns. Raises ProcessLookupError where there is no child. Never waits.");
static PyObject *forked_walk(PyObject *module, PyObject *unused)
{
    int status = 0;
    struct rusage usage = {0};
    if (!has_child()) {
        errno = ESRCH;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    /* Not waitpid() of the C library: a process may have another in its place (gevent patches Python's, LD_PRELOAD this one). */
    long found = syscall(SYS_wait4, child.pid, &status, WNOHANG | __WALL, &usage);
    if (found == 0)
        Py_RETURN_NONE;
    WalkResult result = *child.result;
    if (found < 0)
        status = 0; /* somebody waited for it with __WALL: the result says what became of it */
    bool is_killed = WIFSIGNALED(status);
    if (!result.error && (is_killed || WEXITSTATUS(status)))
        result.error = is_killed ? EINTR : EIO;
    result.reason[sizeof result.reason - 1] = 0;
    long long cpu_ns = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * SECOND_NS
                       + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000LL;
    forget_child();
    PyObject *answer = walk_answer(&result), *more;
    more = answer == NULL ? NULL : Py_BuildValue("{s:i,s:L}", "signal", is_killed ? WTERMSIG(status) : 0, "cpu_ns", cpu_ns);
    if (more == NULL || PyDict_Update(answer, more) < 0)
        Py_CLEAR(answer);
    Py_XDECREF(more);
    return answer;
}

PyDoc_STRVAR(kill_forked_walk_doc,
"kill_forked_walk() -> whether there was a child to kill. It is fetched by forked_walk() as ever: until then its number is its own.");
static PyObject *kill_forked_walk(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(has_child() && syscall(SYS_kill, child.pid, SIGKILL) == 0);
}

PyMethodDef snapshot_methods[] = {
    {"fork_walk", fork_walk, METH_VARARGS, fork_walk_doc},
    {"forked_walk", forked_walk, METH_NOARGS, forked_walk_doc},
    {"kill_forked_walk", kill_forked_walk, METH_NOARGS, kill_forked_walk_doc},
    {NULL, NULL, 0, NULL},
};
