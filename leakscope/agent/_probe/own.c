/* What is no part of a snapshot: the singletons, and the agent's own objects, with the references that they hold to others. Also what
 * the collector and the interpreter list.
 */
#include "engine.h"

#include <frameobject.h>
#if AT_LEAST(11)
#include <internal/pycore_frame.h>
#endif
#include <internal/pycore_gc.h>
#include <internal/pycore_interp.h>

#define IMMORTAL_FROM ((Py_ssize_t)1 << 29)
#define HELD_BITS 16

uint64_t own_count, own_bytes;
static Vector own_things; /* PyObject *; those from `own_read` on are still to be read */
static Table own_spaces, stops;
static Table held;        /* address -> references that own objects hold to it */
static uint64_t held_bits[(1 << HELD_BITS) / 64]; /* few addresses are in `held`: this says so quickly */
static const unsigned long *own_idents;
static size_t own_idents_count;

/* --- what the interpreter lists --- */

static void each_of(PyGC_Head *list, void (*take)(PyObject *, void *), void *own)
{
    for (PyGC_Head *head = (PyGC_Head *)(list->_gc_next & ~(uintptr_t)3); head != NULL && head != list;) {
        PyGC_Head *next = (PyGC_Head *)(head->_gc_next & ~(uintptr_t)3);
        __builtin_prefetch(next);
        if (Py_TYPE((PyObject *)(head + 1)) != NULL)
            take((PyObject *)(head + 1), own);
        head = next;
    }
}

void each_tracked(void (*take)(PyObject *, void *), void *own)
{
    struct _gc_runtime_state *collector = &walk.interpreter->gc;
#if AT_LEAST(14)
    each_of(&collector->young.head, take, own);
    each_of(&collector->old[0].head, take, own);
    each_of(&collector->old[1].head, take, own);
#else
    for (int generation = 0; generation < NUM_GENERATIONS; generation++)
        each_of(&collector->generations[generation].head, take, own);
#endif
    each_of(&collector->permanent_generation.head, take, own);
}

bool is_own_thread(unsigned long ident)
{
    for (size_t place = 0; place < own_idents_count; place++)
        if (own_idents[place] == ident)
            return true;
    return false;
}

/* --- the agent's objects --- */

bool is_own_space(PyObject *globals)
{
    uint64_t known;
    return globals != NULL && table_find(&own_spaces, (uintptr_t)globals, &known);
}

/* The name of a class's module begins with that of the agent's package. */
static bool is_own_class(PyTypeObject *type, const char *package)
{
    PyObject *module, *qualname;
    const char *module_text, *qualname_text, *text = NULL;
    names_of(type, &module, &module_text, &qualname, &qualname_text);
    if (module_text != NULL)
        text = module_text;
    else if (module != NULL && PyUnicode_IS_COMPACT_ASCII(module))
        text = PyUnicode_DATA(module);
    return text != NULL && strncmp(text, package, strlen(package)) == 0;
}

static PyObject *globals_of(PyFrameObject *frame)
{
#if AT_LEAST(11)
    return frame->f_frame->f_globals;
#else
    return frame->f_globals;
#endif
}

/* True unless `thing` is somebody else's: walk.py's _is_own. */
static bool is_own(PyObject *thing, const char *package)
{
    PyTypeObject *type = Py_TYPE(thing);
    if (type == &PyFunction_Type)
        return is_own_space(((PyFunctionObject *)thing)->func_globals);
    if (type == &PyModule_Type)
        return is_own_space(PyModule_GetDict(thing));
    if (type == &PyFrame_Type)
        return is_own_space(globals_of((PyFrameObject *)thing));
    if (type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type || type == &PyMemberDescr_Type || type == &PyGetSetDescr_Type
        || type == &PyClassMethodDescr_Type)
        thing = (PyObject *)((PyDescrObject *)thing)->d_type;
    if (has_base(Py_TYPE(thing), &PyType_Type))
        return is_own_class((PyTypeObject *)thing, package);
    if (type == &PyTuple_Type)
        return PyTuple_GET_SIZE(thing) > 0; /* there is one empty tuple for all */
    return type != &PyUnicode_Type && type != &PyBytes_Type && type != &PyLong_Type && type != &PyFloat_Type
           && type != &PyCFunction_Type;
}

static void consider(PyObject *thing, const char *package)
{
    uint64_t known;
    if (thing == NULL || map_get(thing) == LEFT_OUT || table_find(&stops, (uintptr_t)thing, &known) || !is_own(thing, package))
        return;
    *map_slot(thing) = LEFT_OUT;
    *(PyObject **)vector_add(&own_things, 1) = thing;
}

static void stop_at(PyObject *thing)
{
    if (thing != NULL)
        table_set(&stops, (uintptr_t)thing, 1);
}

static bool is_of_package(PyObject *name, const char *package)
{
    size_t length = strlen(package);
    if (!PyUnicode_CheckExact(name) || !PyUnicode_IS_COMPACT_ASCII(name) || (size_t)PyUnicode_GET_LENGTH(name) < length)
        return false;
    const char *text = PyUnicode_DATA(name);
    return memcmp(text, package, length) == 0 && (text[length] == 0 || text[length] == '.');
}

static void find_modules(const char *package)
{
    PyObject *modules = PyImport_GetModuleDict(), *name, *module;
    Py_ssize_t place = 0;
    stop_at(modules);
    stop_at(dict_get(space_of_module("os"), "environ"));
    stop_at(dict_get(space_of_module("sys"), "path"));
    while (modules != NULL && PyDict_Next(modules, &place, &name, &module)) {
        if (Py_TYPE(module) != &PyModule_Type)
            continue;
        PyObject *space = PyModule_GetDict(module);
        if (is_of_package(name, package)) {
            table_set(&own_spaces, (uintptr_t)space, 1);
            /* What imported us is not ours: in a test process that is pytest's hook, which holds session and tests. */
            stop_at(dict_get(space, "__loader__"));
        } else {
            stop_at(module);
            stop_at(space);
        }
    }
    place = 0;
    while (modules != NULL && PyDict_Next(modules, &place, &name, &module))
        if (Py_TYPE(module) == &PyModule_Type && is_of_package(name, package))
            consider(module, package);
}

static void visit_own(const char *package)
{
    for (size_t place = 0; place < own_things.count; place++) {
        PyObject *thing = AT(PyObject *, own_things, place), **found;
        size_t count = referents_of(thing, &found);
        for (size_t each = 0; each < count; each++)
            consider(found[each], package);
        if (PyCode_Check(thing)) {
            consider(((PyCodeObject *)thing)->co_consts, package);
            consider(((PyCodeObject *)thing)->co_names, package);
        }
    }
}

static size_t bit_of(uintptr_t address)
{
    return (address >> 4) * 0x9E3779B97F4A7C15u >> (64 - HELD_BITS);
}

static void count_held(void)
{
    for (size_t place = 0; place < own_things.count; place++) {
        PyObject **found;
        size_t count = referents_of(AT(PyObject *, own_things, place), &found);
        for (size_t each = 0; each < count; each++) {
            uintptr_t address = (uintptr_t)found[each];
            uint64_t before = 0;
            if (map_get(found[each]) == LEFT_OUT)
                continue;
            table_find(&held, address, &before);
            table_set(&held, address, before + 1);
            held_bits[bit_of(address) / 64] |= (uint64_t)1 << bit_of(address) % 64;
        }
    }
}

void own_open(const WalkOrder *order)
{
    PyObject *const singletons[] = {Py_None, Py_True, Py_False, Py_Ellipsis, Py_NotImplemented};
    vector_open(&own_things, sizeof(PyObject *));
    table_open(&own_spaces);
    table_open(&stops);
    table_open(&held);
    memset(held_bits, 0, sizeof held_bits);
    own_idents = order->own_idents;
    own_idents_count = order->own_idents_count;
    for (size_t place = 0; place < sizeof singletons / sizeof *singletons; place++)
        *map_slot(singletons[place]) = LEFT_OUT;
    find_modules(order->package);
    if (order->own != NULL && PyList_CheckExact(order->own)) {
        consider(order->own, order->package);
        for (Py_ssize_t place = 0; place < PyList_GET_SIZE(order->own); place++)
            consider(PyList_GET_ITEM(order->own, place), order->package);
    }
    visit_own(order->package);
    count_held();
    own_count = own_things.count;
    own_bytes = 0;
}

/* Not by type_info(): types that only the agent has are no types of the snapshot, and their names no strings. */
void own_measure(void)
{
    Table infos;
    table_open(&infos);
    for (size_t place = 0; place < own_things.count; place++) {
        PyObject *thing = AT(PyObject *, own_things, place);
        uint64_t known;
        TypeInfo *info;
        if (table_find(&infos, (uintptr_t)Py_TYPE(thing), &known)) {
            info = (TypeInfo *)(uintptr_t)known;
        } else {
            info = arena_take(sizeof *info);
            info->type = Py_TYPE(thing);
            info->size = sizer_of(info);
            table_set(&infos, (uintptr_t)info->type, (uintptr_t)info);
        }
        own_bytes += info->size(info, thing);
    }
    table_close(&infos);
}

void own_close(void)
{
    vector_close(&own_things);
    table_close(&own_spaces);
    table_close(&stops);
    table_close(&held);
}

uint32_t refcount_of(PyObject *thing)
{
    Py_ssize_t count = Py_REFCNT(thing);
    if (count >= IMMORTAL_FROM)
        return IMMORTAL_COUNT;
    size_t bit = bit_of((uintptr_t)thing);
    uint64_t ours;
    if (held_bits[bit / 64] >> bit % 64 & 1 && table_find(&held, (uintptr_t)thing, &ours))
        count = (uint64_t)count > ours ? count - (Py_ssize_t)ours : 0;
    return (uint32_t)count;
}
