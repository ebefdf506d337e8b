/* What belongs to threads and to asyncio's tasks: names of threads, threading.local, contexts; and the states of things that end.
 *
 * Some structures are private to a C file of CPython; their beginnings are repeated here, and each is used only for a type of
 * that name and of at least that size. The twin is holders.py (ContextReader, LocalReader), threads.py (thread_names), roots.py
 * (_threads, task_label) and nodes.py (states, labels).
 */
#include "asyncio.h"

#include <internal/pycore_context.h>
#include <internal/pycore_gc.h>
#include <internal/pycore_runtime.h>

#include <stdio.h>

/* --- structures of CPython ------------------------------------------------------------------------------------------------- */

/* localobject and localdummyobject, Modules/_threadmodule.c */
typedef struct {
    PyObject_HEAD
#if !AT_LEAST(13)
    PyObject *key;
#endif
    PyObject *args, *keywords, *weak;
    PyObject *by_thread; /* "dummies", later "localdicts": values of each thread by (up to 3.12, a weak reference to) its dummy */
} Local;

/* PySocketSockObject, Modules/socketmodule.h, and fileio, Modules/_io/fileio.c: both begin with a descriptor. */
typedef struct {
    PyObject_HEAD
    int descriptor; /* -1: closed */
} Opened;

/* The nodes of the tree in a context, Python/hamt.c */
typedef struct {
    PyObject_VAR_HEAD
    uint32_t bitmap_or_hash;
    PyObject *pairs[1]; /* key, value; or in a bitmap node NULL, node below */
} PairNode;

typedef struct {
    PyObject_HEAD
    PyObject *below[32];
} ArrayNode;

bool is_c_type(PyTypeObject *type, const char *name, size_t bytes)
{
    /* What has the layout of a C type has it among its tp_base; a class made in Python bears no dot in tp_name. */
    for (; type != NULL && type->tp_basicsize >= (Py_ssize_t)bytes; type = type->tp_base)
        if (strcmp(type->tp_name, name) == 0)
            return true;
    return false;
}

static uint64_t fixed_bytes(TypeInfo *info, PyObject *thing)
{
    uint64_t items = info->type->tp_itemsize > 0 ? (uint64_t)Py_ABS(Py_SIZE(thing)) * (uint64_t)info->type->tp_itemsize : 0;
    return (PyType_IS_GC(info->type) ? sizeof(PyGC_Head) : 0) + (uint64_t)info->type->tp_basicsize + items;
}

/* --- names of threads ------------------------------------------------------------------------------------------------------- */

typedef struct {
    unsigned long ident;
    PyObject *thread, *name; /* of threading._active; name: NULL unless an exact str */
} KnownThread;

static KnownThread *known;
static size_t known_count;
static PyTypeObject *thread_class; /* threading.Thread, NULL: not loaded */

void threads_prepare(void)
{
    PyObject *threading = space_of_module("threading");
    PyObject *found = threading == NULL ? NULL : dict_get(threading, "Thread");
    thread_class = found != NULL && PyType_Check(found) ? (PyTypeObject *)found : NULL;
    known_count = 0;
    PyObject *active = threading == NULL ? NULL : dict_get(threading, "_active");
    if (active == NULL || !PyDict_CheckExact(active) || PyDict_GET_SIZE(active) == 0)
        return;
    known = arena_take((size_t)PyDict_GET_SIZE(active) * sizeof(KnownThread));
    Py_ssize_t place = 0, room = PyDict_GET_SIZE(active);
    PyObject *ident, *thread;
    while ((Py_ssize_t)known_count < room && PyDict_Next(active, &place, &ident, &thread)) {
        if (!PyLong_CheckExact(ident))
            continue;
        PyObject *name = attribute_of(thread, "_name");
        known[known_count++] = (KnownThread){PyLong_AsUnsignedLongMask(ident), thread,
                                             name != NULL && PyUnicode_CheckExact(name) ? name : NULL};
    }
}

Row thread_label(const char *before, unsigned long ident)
{
    char text[64];
    const char *name = "?";
    for (size_t i = 0; i < known_count; i++)
        if (known[i].ident == ident) {
            if (known[i].name == NULL)
                goto unnamed;
            snprintf(text, sizeof text, "%sthread ", before);
            return name_given(text, known[i].name);
        }
    if (ident == _PyRuntime.main_thread)
        name = "'MainThread'"; /* also in a program that never loads threading */
unnamed:
    snprintf(text, sizeof text, "%sthread %s", before, name);
    return name_own(text);
}

static Row label_of_thread(TypeInfo *info, PyObject *thing)
{
    for (size_t i = 0; i < known_count; i++)
        if (known[i].thread == thing)
            return thread_label("", known[i].ident);
    return 0;
}

/* --- threading.local --------------------------------------------------------------------------------------------------------- */

/* The values of a threading.local in one thread after another. Begin with place 0; false: no more. dummy: what stands for the
 * thread, in its state (3.13) or in the dict of its state; NULL: a thread that has ended. */
bool local_values(PyObject *local, Py_ssize_t *place, PyObject **dummy, PyObject **values)
{
    PyObject *by_thread = ((Local *)local)->by_thread, *key;
    if (by_thread == NULL || !PyDict_CheckExact(by_thread))
        return false;
    while (PyDict_Next(by_thread, place, &key, values)) {
        if (!PyDict_CheckExact(*values))
            continue;
        if (PyWeakref_CheckRefExact(key))
            key = ((PyWeakReference *)key)->wr_object;
        *dummy = key == Py_None ? NULL : key;
        return true;
    }
    return false;
}

/* KEY "thread 'x'" to the values of each thread. */
static void read_local(TypeInfo *info, PyObject *thing)
{
    PyObject **found;
    size_t count = referents_of(thing, &found), rest = 0;
    uint32_t state = LABEL(EDGE_INTERNAL, name_own("state"));
    PyObject *by_thread = ((Local *)thing)->by_thread, *dummy, *values;
    for (size_t i = 0; i < count; i++) {
        PyObject *held = found[i];
        if (!PyDict_CheckExact(held)) {
            found[rest++] = held;
            continue;
        }
        edge(held, state);
        uint32_t row = held == by_thread ? node_of(held) : LEFT_OUT;
        if (row != LEFT_OUT)
            AT(uint8_t, walk.is_space, row) = KEYS_ONLY;
    }
    Py_ssize_t place = 0;
    while (local_values(thing, &place, &dummy, &values)) {
        uint64_t owner;
        name_space(values);
        edge(values, LABEL(EDGE_KEY, table_find(&walk.owners, (uintptr_t)values, &owner) ? (Row)owner : name_own("thread ?")));
    }
    read_instance(info, thing, found, rest);
}

/* --- contexts ---------------------------------------------------------------------------------------------------------------- */

static bool is_node(PyObject *thing)
{
    /* "hamt", "hamt_array_node", "hamt_bitmap_node", "hamt_collision_node": static types that Python code cannot reach */
    return strncmp(Py_TYPE(thing)->tp_name, "hamt", 4) == 0 && !(Py_TYPE(thing)->tp_flags & Py_TPFLAGS_HEAPTYPE);
}

static void edges_of_tree(PyObject *node, int levels)
{
    if (node == NULL || levels == 0)
        return;
    const char *name = Py_TYPE(node)->tp_name;
    if (strcmp(name, "hamt_array_node") == 0) {
        for (int i = 0; i < 32; i++)
            edges_of_tree(((ArrayNode *)node)->below[i], levels - 1);
        return;
    }
    if (strcmp(name, "hamt_bitmap_node") != 0 && strcmp(name, "hamt_collision_node") != 0)
        return;
    PyObject **pairs = ((PairNode *)node)->pairs;
    for (Py_ssize_t i = 0; i + 1 < Py_SIZE(node); i += 2) {
        PyObject *variable = pairs[i], *value = pairs[i + 1];
        if (variable == NULL) {
            edges_of_tree(value, levels - 1);
        } else if (Py_IS_TYPE(variable, &PyContextVar_Type)) {
            Row row = name_key(((PyContextVar *)variable)->var_name);
            edge(value, LABEL(EDGE_KEY, row));
            edge(variable, LABEL(EDGE_KEY_OBJECT, row));
        }
    }
}

/* The values hang in nodes of a tree that copies of a context share: shown at the context, the nodes show each other only. */
static void read_context(TypeInfo *info, PyObject *thing)
{
    PyContext *context = (PyContext *)thing;
    uint32_t label = LABEL(EDGE_INTERNAL, name_own("hamt"));
    edge((PyObject *)context->ctx_prev, label);
    edge((PyObject *)context->ctx_vars, label);
    if (context->ctx_vars != NULL)
        edges_of_tree((PyObject *)context->ctx_vars->h_root, _Py_HAMT_MAX_TREE_DEPTH);
}

static void read_tree(TypeInfo *info, PyObject *thing)
{
    PyObject **found;
    size_t count = referents_of(thing, &found);
    uint32_t label = LABEL(EDGE_INTERNAL, name_own("hamt"));
    for (size_t i = 0; i < count; i++)
        if (is_node(found[i]))
            edge(found[i], label);
}

bool take_thread(TypeInfo *info)
{
    PyTypeObject *type = info->type;
    if (type == &PyContext_Type)
        info->read = read_context;
    else if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) && strncmp(type->tp_name, "hamt", 4) == 0)
        info->read = read_tree;
    else if (is_c_type(type, "_thread._local", sizeof(Local)))
        info->read = read_local;
    else
        return false;
    if (info->size == NULL)
        info->size = fixed_bytes;
    return true;
}

/* --- tasks and what ends ----------------------------------------------------------------------------------------------------- */

bool task_is_pending(PyObject *task)
{
    return ((Future *)task)->loop != NULL && ((Future *)task)->state == 0;
}

Row task_label(const char *before, PyObject *task)
{
    PyObject *name = ((Task *)task)->name;
    char text[64];
    if (name == NULL || !PyLong_CheckExact(name)) {
        snprintf(text, sizeof text, "%sTask ", before);
        return name_given(text, name);
    }
    /* A number that becomes the str Task-12 when somebody asks (3.12 and later). */
    unsigned long number = PyLong_AsUnsignedLongMask(name);
    if (number <= 99999)
        snprintf(text, sizeof text, "%sTask 'Task-%lu'", before, number);
    else
        snprintf(text, sizeof text, "%sTask str:%d", before, snprintf(NULL, 0, "Task-%lu", number));
    return name_own(text);
}

PyObject *task_context(PyObject *task)
{
    PyObject *context = ((Task *)task)->context;
    return context != NULL && PyContext_CheckExact(context) ? context : NULL;
}

static Row label_of_task(TypeInfo *info, PyObject *thing)
{
    return task_label("", thing);
}

static uint32_t future_state(PyObject *thing)
{
    return ((Future *)thing)->loop == NULL ? STATE_UNKNOWN : ((Future *)thing)->state == 0 ? STATE_LIVE : STATE_ENDED;
}

static uint32_t opened_state(PyObject *thing)
{
    return ((Opened *)thing)->descriptor < 0 ? STATE_ENDED : STATE_LIVE;
}

void take_life(TypeInfo *info)
{
    PyTypeObject *type = info->type;
    if (is_c_type(type, "_asyncio.Future", sizeof(Future)))
        info->state = future_state;
    else if (is_c_type(type, "_socket.socket", sizeof(Opened)) || is_c_type(type, "_io.FileIO", sizeof(Opened)))
        info->state = opened_state;
    if (is_c_type(type, "_asyncio.Task", sizeof(Task)))
        info->label = label_of_task;
    else if (thread_class != NULL && has_base(type, thread_class))
        info->label = label_of_thread;
}
