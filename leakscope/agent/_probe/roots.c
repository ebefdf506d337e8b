/* What lives by itself: modules, running frames, thread-locals, contexts, callbacks of the interpreter, tasks (twin: roots.py).
 *
 * Everything that names depend on is found first, because a root reads what it reaches at once.
 */
#include "probe.h"

#include <internal/pycore_gc.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#if AT_LEAST(12)
#include <internal/pycore_atexit.h>
#include <internal/pycore_import.h>
#endif

#include <stdio.h>

#define MOST_SIGNALS 64 /* Linux has 64; Py_NSIG is one more */

/* Tracked objects that are roots or have some, in the order of the collector's lists. */
static Vector locals, tasks, loops;
static Table dummies;     /* what stands for a thread in a threading.local -> Row of "thread 'x'" */
static Table seen_modules;

/* Also what a walk left that failed half-way. */
static void close_all(void)
{
    vector_close(&locals);
    vector_close(&tasks);
    vector_close(&loops);
    table_close(&dummies);
    table_close(&seen_modules);
}

static PyObject *modules(void)
{
#if AT_LEAST(12)
    PyObject *found = walk.interpreter->imports.modules;
#else
    PyObject *found = walk.interpreter->modules;
#endif
    return found != NULL && PyDict_CheckExact(found) ? found : NULL;
}

static PyThreadState *first_thread(void)
{
#if AT_LEAST(11)
    return walk.interpreter->threads.head;
#else
    return walk.interpreter->tstate_head;
#endif
}

/* The next thread state from `thread` on that is not the agent's. */
static PyThreadState *foreign(PyThreadState *thread)
{
    while (thread != NULL && is_own_thread(thread->thread_id))
        thread = thread->next;
    return thread;
}

#define EACH_THREAD(thread) \
    for (PyThreadState *thread = foreign(first_thread()); thread != NULL; thread = foreign(thread->next))

/* --- what names depend on -------------------------------------------------------------------------------------------------- */

static void label_modules(void)
{
    Py_ssize_t place = 0;
    PyObject *name, *module;
    while (modules() != NULL && PyDict_Next(modules(), &place, &name, &module))
        if (map_get(module) != LEFT_OUT && !table_find(&walk.module_labels, (uintptr_t)module, &(uint64_t){0}))
            table_set(&walk.module_labels, (uintptr_t)module,
                      is_text(name, "builtins") ? name_own("module builtins") : name_joined("module ", name_dotted(name), "", 0, ""));
}

enum { IS_LOCAL = 1, IS_TASK = 2, IS_LOOP = 4 };

/* What the last types were: the tracked objects are many, their types few. */
static struct {
    PyTypeObject *type;
    int is;
} seen[1024];
static PyTypeObject *loop_class;

static int what_is(PyTypeObject *type)
{
    size_t place = ((uintptr_t)type >> 4) % (sizeof seen / sizeof seen[0]);
    if (seen[place].type != type) {
        seen[place].type = type;
        seen[place].is = is_c_type(type, "_thread._local", sizeof(PyObject) + sizeof(void *)) ? IS_LOCAL : 0;
        if (loop_class != NULL)
            seen[place].is |= (is_c_type(type, "_asyncio.Task", sizeof(PyObject)) ? IS_TASK : 0) | (has_base(type, loop_class) ? IS_LOOP : 0);
    }
    return seen[place].is;
}

void roots_note(PyObject *thing)
{
    int is = what_is(Py_TYPE(thing));
    if (is == 0)
        return;
    if (is & IS_LOCAL)
        *(PyObject **)vector_add(&locals, 1) = thing;
    if (is & IS_TASK && task_is_pending(thing))
        *(PyObject **)vector_add(&tasks, 1) = thing;
    if (is & IS_LOOP)
        *(PyObject **)vector_add(&loops, 1) = thing;
}

void roots_begin(void)
{
    PyObject *events = space_of_module("asyncio.events");
    PyObject *found = events == NULL ? NULL : dict_get(events, "AbstractEventLoop");
    loop_class = found != NULL && PyType_Check(found) ? (PyTypeObject *)found : NULL;
    memset(seen, 0, sizeof seen);
    close_all();
    table_open(&dummies);
    table_open(&seen_modules);
    vector_open(&locals, sizeof(PyObject *));
    vector_open(&tasks, sizeof(PyObject *));
    vector_open(&loops, sizeof(PyObject *));
}

/* Which thread the values of a threading.local are of: by the dummy that the state of the thread holds. */
static void own_values(void)
{
    EACH_THREAD(thread) {
        Row label = thread_label("", thread->thread_id);
#if AT_LEAST(13)
        if (thread->threading_local_key != NULL)
            table_set(&dummies, (uintptr_t)thread->threading_local_key, label);
#else
        Py_ssize_t place = 0;
        PyObject *key, *dummy;
        while (thread->dict != NULL && PyDict_Next(thread->dict, &place, &key, &dummy))
            table_set(&dummies, (uintptr_t)dummy, label);
#endif
    }
    for (size_t i = 0; i < locals.count; i++) {
        Py_ssize_t place = 0;
        PyObject *dummy, *values;
        uint64_t label;
        while (local_values(AT(PyObject *, locals, i), &place, &dummy, &values))
            if (dummy != NULL && table_find(&dummies, (uintptr_t)dummy, &label))
                table_set(&walk.owners, (uintptr_t)values, label);
    }
}

/* --- the roots ------------------------------------------------------------------------------------------------------------- */

static void root_modules(void)
{
    Py_ssize_t place = 0;
    PyObject *name, *module;
    uint64_t label;
    while (modules() != NULL && PyDict_Next(modules(), &place, &name, &module))
        if (module != Py_None && table_find(&walk.module_labels, (uintptr_t)module, &label) &&
            !table_find(&seen_modules, (uintptr_t)module, &(uint64_t){0})) {
            table_set(&seen_modules, (uintptr_t)module, 1); /* under a second name it is the same: os.path, __mp_main__ */
            root(module, ROOT_MODULE, (Row)label);
        }
}

/* The frames of all threads, innermost first; those of the agent are left out. */
static void root_frames(void)
{
    EACH_THREAD(thread) {
        Row label = thread_label("", thread->thread_id);
        for (void *frame = running_frame_of(thread); frame != NULL; frame = running_frame_before(frame)) {
            if (is_own_space(running_frame_globals(frame)))
                continue;
            PyFrameObject *thing = running_frame_object(frame);
            if (thing != NULL)
                root((PyObject *)thing, ROOT_FRAME, label);
            else
                root_row(node_of_frame(frame), ROOT_FRAME, label);
        }
    }
}

/* Exceptions that a thread handles right now: the innermost, and those that wait below it in other generators or the thread. */
static void root_exceptions(void)
{
    EACH_THREAD(thread) {
        PyObject *last = NULL;
        for (_PyErr_StackItem *item = thread->exc_info; item != NULL; item = item->previous_item)
            if (item->exc_value != NULL && item->exc_value != Py_None && item->exc_value != last) {
                last = item->exc_value;
                root(last, ROOT_FRAME, thread_label("exception in ", thread->thread_id));
            }
    }
}

/* Contexts and dictionaries of the thread states, and the values of threading.local objects. */
static void root_threads(void)
{
    EACH_THREAD(thread) {
        if (thread->context != NULL)
            root(thread->context, ROOT_CONTEXTVAR, thread_label("context of ", thread->thread_id));
        if (thread->dict != NULL)
            root(thread->dict, ROOT_THREAD_LOCAL, thread_label("state of ", thread->thread_id));
        root(thread->c_profileobj, ROOT_THREAD_LOCAL, thread_label("sys.setprofile() of ", thread->thread_id));
        root(thread->c_traceobj, ROOT_THREAD_LOCAL, thread_label("sys.settrace() of ", thread->thread_id));
    }
    for (size_t i = 0; i < locals.count; i++) {
        Py_ssize_t place = 0;
        PyObject *dummy, *values;
        uint64_t label;
        while (local_values(AT(PyObject *, locals, i), &place, &dummy, &values))
            root(values, ROOT_THREAD_LOCAL,
                 table_find(&walk.owners, (uintptr_t)values, &label) ? (Row)label : name_own("thread ?"));
    }
}

/* Registries that only the interpreter's state holds (twin: interpreter.registries). */
static void root_registries(void)
{
    PyInterpreterState *state = walk.interpreter;
#if AT_LEAST(13)
    PyObject *search = state->codecs.search_path, *cache = state->codecs.search_cache, *errors = state->codecs.error_registry;
#else
    PyObject *search = state->codec_search_path, *cache = state->codec_search_cache, *errors = state->codec_error_registry;
#endif
    const struct {
        PyObject *held;
        const char *label;
    } found[] = {{search, "codecs.register()"},
                 {cache, "cache of codecs"},
                 {errors, "codecs.register_error()"},
#ifdef HAVE_FORK
                 {state->before_forkers, "os.register_at_fork(before)"},
                 {state->after_forkers_parent, "os.register_at_fork(after_in_parent)"},
                 {state->after_forkers_child, "os.register_at_fork(after_in_child)"},
#endif
                 {state->audit_hooks, "sys.addaudithook()"}};
    for (size_t place = 0; place < Py_ARRAY_LENGTH(found); place++)
        root(found[place].held, ROOT_INTERPRETER, name_own(found[place].label));
#if AT_LEAST(12)
    for (size_t tool = 0; tool < PY_MONITORING_TOOL_IDS; tool++)
        for (size_t event = 0; event < _PY_MONITORING_EVENTS; event++)
            root(state->monitoring_callables[tool][event], ROOT_INTERPRETER, name_own("sys.monitoring.register_callback()"));
#endif
}

static void root_interpreter(void)
{
    struct _gc_runtime_state *collector = &walk.interpreter->gc;
    if (modules() != NULL)
        root(modules(), ROOT_INTERPRETER, name_own("sys.modules"));
    if (collector->callbacks != NULL)
        root(collector->callbacks, ROOT_INTERPRETER, name_own("gc.callbacks"));
    if (collector->garbage != NULL)
        root(collector->garbage, ROOT_INTERPRETER, name_own("gc.garbage"));
    root_registries();
}

/* --- signal handlers ------------------------------------------------------------------------------------------------------- */

/* _signal.getsignal() itself, NULL if something else stands in its place. */
static PyObject *getsignal_of(PyObject *space)
{
    PyObject *found = space == NULL ? NULL : dict_get(space, "getsignal");
    if (found == NULL || !PyCFunction_CheckExact(found) || PyCFunction_GET_FLAGS(found) != METH_O)
        return NULL;
    return strcmp(((PyCFunctionObject *)found)->m_ml->ml_name, "getsignal") == 0 ? found : NULL;
}

static Row signal_label(PyObject *space, int number)
{
    char text[40];
    Py_ssize_t place = 0;
    PyObject *name, *value;
    while (PyDict_Next(space, &place, &name, &value)) {
        if (!PyLong_CheckExact(value) || PyLong_AsUnsignedLongMask(value) != (unsigned long)number || !PyUnicode_CheckExact(name) ||
            !PyUnicode_IS_COMPACT_ASCII(name))
            continue;
        const char *word = (const char *)PyUnicode_1BYTE_DATA(name);
        if (strncmp(word, "SIG", 3) == 0 && word[3] != '_' && strlen(word) < 20) {
            snprintf(text, sizeof text, "%s handler", word);
            return name_own(text);
        }
    }
    snprintf(text, sizeof text, "signal %d handler", number);
    return name_own(text);
}

/* The table of handlers is private to signalmodule.c up to 3.11. getsignal() with a small number only reads it: it allocates nothing
 * and takes no lock; the references that it gives are given back at once. */
static void root_signals(void)
{
    PyObject *space = space_of_module("_signal"), *getsignal = getsignal_of(space);
    if (getsignal == NULL || dict_get(modules(), "signal") == NULL)
        return;
    PyCFunction call = PyCFunction_GET_FUNCTION(getsignal);
    for (int number = 1; number <= MOST_SIGNALS; number++) {
        PyObject *small = PyLong_FromLong(number); /* there already */
        PyObject *handler = call(PyCFunction_GET_SELF(getsignal), small);
        Py_DECREF(small);
        if (handler == NULL) {
            PyErr_Clear();
            return;
        }
        Py_DECREF(handler); /* the table keeps it */
        if (handler != Py_None && !PyLong_CheckExact(handler) && !PyCFunction_CheckExact(handler))
            root(handler, ROOT_SIGNAL, signal_label(space, number));
    }
}

/* --- atexit ---------------------------------------------------------------------------------------------------------------- */

/* "atexit callback flush()" for functions and bound methods, "atexit callback" for other things. */
static Row callback_label(PyObject *function)
{
    if (PyMethod_Check(function))
        function = PyMethod_GET_FUNCTION(function);
    if (PyFunction_Check(function) && PyUnicode_CheckExact(((PyFunctionObject *)function)->func_qualname))
        return name_joined("atexit callback ", name_dotted(((PyFunctionObject *)function)->func_qualname), "", 0, "()");
    return name_own("atexit callback");
}

static void root_callback(PyObject *function, PyObject *arguments, PyObject *keywords)
{
    if (map_get(function) == LEFT_OUT)
        return;
    Row label = callback_label(function);
    root(function, ROOT_ATEXIT, label);
    if (arguments != NULL && PyTuple_GET_SIZE(arguments) > 0)
        root(arguments, ROOT_ATEXIT, label);
    if (keywords != NULL)
        root(keywords, ROOT_ATEXIT, label);
}

static void root_atexit(void)
{
    struct atexit_state *state = &walk.interpreter->atexit;
    for (int i = 0; i < state->ncallbacks; i++)
        if (state->callbacks[i] != NULL) /* NULL after atexit.unregister() */
            root_callback(state->callbacks[i]->func, state->callbacks[i]->args, state->callbacks[i]->kwargs);
}

/* Pending tasks and their contexts, and event loops: instances of AbstractEventLoop. */
static void root_asyncio(void)
{
    for (size_t i = 0; i < tasks.count; i++) {
        PyObject *task = AT(PyObject *, tasks, i);
        root(task, ROOT_TASK, task_label("", task));
        root(task_context(task), ROOT_CONTEXTVAR, task_label("context of ", task));
    }
    for (size_t i = 0; i < loops.count; i++)
        root(AT(PyObject *, loops, i), ROOT_EVENT_LOOP, name_own("event loop"));
}

void roots_collect(void)
{
    threads_prepare();
    label_modules();
    own_values();
    root_modules();
    root_frames();
    root_exceptions();
    root_threads();
    root_interpreter();
    root_signals();
    root_atexit();
    root_asyncio();
    close_all();
    if (_PyRuntime.interpreters.head != NULL && _PyRuntime.interpreters.head->next != NULL)
        walk_note("other interpreters of this process are not walked: their modules and frames are not seen");
}
