/* Fields of C types that have no member descriptor: where they lie and how they are called. The twin asks getters instead: EXTRA in
 * instances.py. */
#include "asyncio.h"
#include "readers.h"

#include <internal/pycore_context.h>

#define EXCEPTION(field) offsetof(PyBaseExceptionObject, field)

typedef struct {
    const char *name;
    Py_ssize_t offset;
} Field;

static const Field task_fields[] = {{"_coro", offsetof(Task, coroutine)}, {"_fut_waiter", offsetof(Task, waiter)}};
static const Field future_fields[] = {
    {"_loop", offsetof(Future, loop)}, {"_result", offsetof(Future, result)}, {"_exception", offsetof(Future, exception)}};
static const Field exception_fields[] = {{"args", EXCEPTION(args)}, {"__traceback__", EXCEPTION(traceback)},
                                         {"__context__", EXCEPTION(context)}, {"__cause__", EXCEPTION(cause)}};
static const Field traceback_fields[] = {{"tb_next", offsetof(PyTracebackObject, tb_next)},
                                         {"tb_frame", offsetof(PyTracebackObject, tb_frame)}};

static const Field token_fields[] = {{"var", offsetof(PyContextToken, tok_var)}, {"old_value", offsetof(PyContextToken, tok_oldval)}};

typedef void (*Take)(void *own, const char *name, Py_ssize_t offset);

static void each_of(const Field *fields, size_t count, Take take, void *own)
{
    for (size_t place = 0; place < count; place++)
        take(own, fields[place].name, fields[place].offset);
}

void each_field(PyTypeObject *type, Take take, void *own)
{
    if (has_base(type, (PyTypeObject *)PyExc_BaseException))
        each_of(exception_fields, Py_ARRAY_LENGTH(exception_fields), take, own);
    else if (type == &PyTraceBack_Type)
        each_of(traceback_fields, Py_ARRAY_LENGTH(traceback_fields), take, own);
    else if (type == &PyContextToken_Type)
        each_of(token_fields, Py_ARRAY_LENGTH(token_fields), take, own);
    else if (is_c_type(type, "_asyncio.Task", sizeof(Task))) {
        each_of(task_fields, Py_ARRAY_LENGTH(task_fields), take, own);
        each_of(future_fields, Py_ARRAY_LENGTH(future_fields), take, own);
    } else if (is_c_type(type, "_asyncio.Future", sizeof(Future)))
        each_of(future_fields, Py_ARRAY_LENGTH(future_fields), take, own);
}

/* --- what has no place of its own --- */

/* Whether the names of a class are `module` and one of `qualnames`, or with a NULL of those, that module. */
static bool is_called(PyTypeObject *type, const char *module, const char *qualname)
{
    PyObject *module_name, *name;
    const char *module_text, *text;
    names_of(type, &module_name, &module_text, &name, &text);
    bool fits = module == NULL || (module_text != NULL ? strcmp(module_text, module) == 0
                                                       : module_name != NULL && is_text(module_name, module));
    return fits && (qualname == NULL || (text != NULL ? strcmp(text, qualname) == 0 : name != NULL && is_text(name, qualname)));
}

/* The qualified name of a class as far as it is ASCII, else "". */
static const char *qualname_of(PyTypeObject *type)
{
    PyObject *module_name, *name;
    const char *module_text, *text;
    names_of(type, &module_name, &module_text, &name, &text);
    if (text == NULL && name != NULL)
        text = ascii_of(name);
    return text == NULL ? "" : text;
}

/* What C types hold without a name of its own: the table _REST of instances.py. A module or a held type of "": any. */
static const struct {
    const char *module, *holder, *held, *word;
} rests[] = {{"_asyncio", "Future", "traceback", "_exception_tb"},
             {"_asyncio", "Future", "Context", "_context"},
             {"_asyncio", "Future", "str", "_name"},
             {"_asyncio", "Future", "", "_callbacks"},
             {"", "Token", "Context", "_context"},
             {"", "ContextVar", "", "default"},
             {"builtins", "memoryview", "", "buffer"},
             {"builtins", "managedbuffer", "", "obj"},
             {"builtins", "mappingproxy", "", "mapping"},
             {"", "dict_keys", "", "mapping"},
             {"", "dict_values", "", "mapping"},
             {"", "dict_items", "", "mapping"},
             {"", "odict_keys", "", "mapping"},
             {"", "odict_values", "", "mapping"},
             {"", "odict_items", "", "mapping"},
             {"_queue", "SimpleQueue", "", "queue"},
             {"operator", "methodcaller", "", "args"},
             {"_csv", "reader", "", "iterated"},
             {"_csv", "writer", "", "write"},
             {"_pickle", "Pickler", "builtin_function_or_method", "write"},
             {"_pickle", "Pickler", "", "memo"},
             {"_pickle", "Unpickler", "builtin_function_or_method", "read"},
             {"_pickle", "Unpickler", "", "memo"},
             {"pyexpat", "xmlparser", "", "handlers"},
             {"_ctypes", "CFuncPtr", "", "callable"},
             {"_ctypes", "CThunkObject", "", "callable"},
             {"numpy", "ufunc", "", "callable"},
             {"torch._C", "TensorBase", "OrderedDict", "_backward_hooks"}, /* what C++ calls holds the same dict once more */
             {"torch._C", "_TensorBase", "OrderedDict", "_backward_hooks"},
             {"builtins", "coroutine_wrapper", "", "awaited"},
             {"builtins", "async_generator_asend", "", "awaited"},
             {"builtins", "async_generator_athrow", "", "awaited"},
             {"builtins", "anext_awaitable", "", "awaited"},
             {"_asyncio", "FutureIter", "", "awaited"}};

/* The first row of `rests` for a class that fits what is held; a held type of NULL: whatever it is. Py_ARRAY_LENGTH: there is none. */
static size_t row_of_rest(PyTypeObject *class, const char *held)
{
    size_t row = 0;
    for (; row < Py_ARRAY_LENGTH(rests); row++) {
        bool fits = held == NULL || rests[row].held[0] == 0 || strcmp(rests[row].held, held) == 0;
        if (fits && is_called(class, rests[row].module[0] == 0 ? NULL : rests[row].module, rests[row].holder))
            break;
    }
    return row;
}

/* The most derived class of the MRO that has rows. NULL: none has. */
static PyTypeObject *class_with_rests(PyTypeObject *type)
{
    PyObject *mro = type->tp_mro;
    for (Py_ssize_t base = 0; mro != NULL && PyTuple_CheckExact(mro) && base < PyTuple_GET_SIZE(mro); base++) {
        PyTypeObject *class = (PyTypeObject *)PyTuple_GET_ITEM(mro, base);
        if (row_of_rest(class, NULL) < Py_ARRAY_LENGTH(rests))
            return class;
    }
    return NULL;
}

static uint32_t label_of_rest(PyTypeObject *type, PyObject *held)
{
    PyTypeObject *class = class_with_rests(type);
    size_t row = class == NULL ? Py_ARRAY_LENGTH(rests) : row_of_rest(class, qualname_of(Py_TYPE(held)));
    return row < Py_ARRAY_LENGTH(rests) ? internal_edge(rests[row].word) : UNKNOWN_EDGE;
}

/* A C type with entries, which is no builtin container: what nothing names are its items. */
static bool is_opaque_container(PyTypeObject *type)
{
    PyObject *method = container_of(type) == NULL ? class_value(type, "__getitem__") : NULL;
    return method != NULL && (Py_IS_TYPE(method, &PyWrapperDescr_Type) || Py_IS_TYPE(method, &PyMethodDescr_Type));
}

uint32_t rest_of(PyTypeObject *type)
{
    static const char *const iterators[] = {"zip", "map", "filter", "enumerate", "reversed"};
    if (class_with_rests(type) != NULL)
        return UNKNOWN_EDGE;
    const char *name = qualname_of(type);
    bool is_iterator = strstr(name, "iterator") != NULL || is_called(type, "itertools", NULL);
    for (size_t place = 0; place < Py_ARRAY_LENGTH(iterators); place++)
        is_iterator = is_iterator || strcmp(name, iterators[place]) == 0;
    if (is_iterator)
        return internal_edge("iterated");
    PyTypeObject *weak[] = {&_PyWeakref_RefType, &_PyWeakref_ProxyType, &_PyWeakref_CallableProxyType};
    for (size_t place = 0; place < Py_ARRAY_LENGTH(weak); place++)
        if (has_base(type, weak[place]))
            return internal_edge("__callback__");
    return is_opaque_container(type) ? LABEL(EDGE_ELEMENT, 0) : UNKNOWN_EDGE;
}

/* Attributes of the classes that pandas writes in Cython: no descriptor says where they lie, but what they hold tells them apart. */
static uint32_t label_of_cython(PyTypeObject *type, PyObject *held)
{
    static const struct {
        const char *holder, *held, *name;
    } known[] = {{"BlockManager", "tuple", "blocks"},       {"BlockManager", "list", "axes"},
                 {"SharedBlock", "BlockPlacement", "_mgr_locs"}, {"SharedBlock", "BlockValuesRefs", "refs"},
                 {"Block", "BlockPlacement", "_mgr_locs"},  {"Block", "BlockValuesRefs", "refs"},
                 {"NumpyBlock", "ndarray", "values"},       {"Block", "", "values"}};
    PyObject *mro = type->tp_mro;
    for (Py_ssize_t base = 0; mro != NULL && PyTuple_CheckExact(mro) && base < PyTuple_GET_SIZE(mro); base++) {
        PyTypeObject *class = (PyTypeObject *)PyTuple_GET_ITEM(mro, base);
        if (!is_called(class, "pandas._libs.internals", NULL))
            continue;
        for (size_t place = 0; place < Py_ARRAY_LENGTH(known); place++)
            if (is_called(class, NULL, known[place].holder)
                && (known[place].held[0] == 0 || strcmp(qualname_of(Py_TYPE(held)), known[place].held) == 0))
                return LABEL(known[place].name[0] == '_' ? EDGE_INTERNAL : EDGE_ATTRIBUTE, name_own(known[place].name));
    }
    return UNKNOWN_EDGE;
}

uint32_t label_by_type(PyTypeObject *type, PyObject *held)
{
    uint32_t label = label_of_rest(type, held);
    return label != UNKNOWN_EDGE ? label : label_of_cython(type, held);
}
