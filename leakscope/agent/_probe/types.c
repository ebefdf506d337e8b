/* What is known of each type: its names, how its instances are read, measured and called. Nothing here runs code of a metaclass: types
 * are read field by field, as agent/classes.py does by the descriptors of `type` itself.
 */
#include "engine.h"

#include <frameobject.h>
#include <internal/pycore_interp.h>
#include <internal/pycore_object.h>

#define RECENT 1024
static TypeInfo *recent[RECENT]; /* direct-mapped by address */
static Table infos;              /* type -> TypeInfo * */
static Vector rows;              /* TypeInfo * by type_id */
static PyTypeObject *thread_type, *task_type, *cache_type;

/* --- names and kinds --- */

static const char *after_dot(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot == NULL ? name : dot + 1;
}

void names_of(PyTypeObject *type, PyObject **module, const char **module_text, PyObject **qualname, const char **qualname_text)
{
    *module = *qualname = NULL;
    *module_text = *qualname_text = NULL;
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        PyObject *found = type->tp_dict == NULL ? NULL : dict_get(type->tp_dict, "__module__");
        *module = found != NULL && PyUnicode_CheckExact(found) ? found : NULL;
        found = ((PyHeapTypeObject *)type)->ht_qualname;
        *qualname = found != NULL && PyUnicode_CheckExact(found) ? found : NULL;
        return;
    }
    static char before_dot[256]; /* valid until the next call */
    const char *name = type->tp_name == NULL ? "?" : type->tp_name;
    size_t length = (size_t)(after_dot(name) - name);
    *qualname_text = after_dot(name);
    if (length == 0) {
        *module_text = "builtins";
    } else {
        length = length - 1 < sizeof before_dot ? length - 1 : sizeof before_dot - 1;
        memcpy(before_dot, name, length);
        before_dot[length] = 0;
        *module_text = before_dot;
    }
}

bool has_base(PyTypeObject *type, PyTypeObject *base)
{
    if (type == base)
        return true;
    PyObject *mro = base == NULL || type == NULL ? NULL : type->tp_mro;
    if (mro != NULL && PyTuple_Check(mro)) {
        for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(mro); place++)
            if (PyTuple_GET_ITEM(mro, place) == (PyObject *)base)
                return true;
        return false;
    }
    /* A type that is still being made has no MRO: then itself and object (classes.mro_of). */
    return base == &PyBaseObject_Type;
}

PyObject *dict_get(PyObject *dict, const char *key)
{
    PyObject *name, *value;
    Py_ssize_t place = 0;
    if (dict == NULL || !PyDict_Check(dict))
        return NULL;
    while (PyDict_Next(dict, &place, &name, &value)) /* borrows, and runs no code */
        if (is_text(name, key))
            return value;
    return NULL;
}

PyObject *space_of_module(const char *name)
{
    PyObject *module = dict_get(PyImport_GetModuleDict(), name);
    if (module == NULL || !has_base(Py_TYPE(module), &PyModule_Type))
        return NULL;
    PyObject *space = PyModule_GetDict(module);
    return space != NULL && PyDict_CheckExact(space) ? space : NULL;
}

static PyTypeObject *type_in(const char *module, const char *name)
{
    PyObject *found = dict_get(space_of_module(module), name);
    return found != NULL && has_base(Py_TYPE(found), &PyType_Type) ? (PyTypeObject *)found : NULL;
}

static int kind_of(PyTypeObject *type)
{
    const struct {
        PyTypeObject *base;
        int kind;
    } kinds[] = {{&PyType_Type, KIND_TYPE}, {&PyModule_Type, KIND_MODULE}, {&PyFunction_Type, KIND_FUNCTION},
                 {&PyCFunction_Type, KIND_FUNCTION}, {&PyCode_Type, KIND_CODE}, {&PyFrame_Type, KIND_FRAME},
                 {&PyGen_Type, KIND_GENERATOR}, {&PyCoro_Type, KIND_GENERATOR}, {&PyAsyncGen_Type, KIND_GENERATOR},
                 {&_PyWeakref_RefType, KIND_WEAKREF}, {(PyTypeObject *)PyExc_BaseException, KIND_EXCEPTION},
                 {cache_type, KIND_CACHE}, {task_type, KIND_TASK}, {thread_type, KIND_THREAD}};
    for (size_t place = 0; place < sizeof kinds / sizeof *kinds; place++)
        if (kinds[place].base != NULL && has_base(type, kinds[place].base))
            return kinds[place].kind;
    return KIND_OBJECT;
}

/* --- learning --- */

static TypeInfo *info_made(PyTypeObject *type)
{
    TypeInfo *info = arena_take(sizeof *info);
    info->type = type;
    info->type_id = (uint32_t)rows.count;
    *(TypeInfo **)vector_add(&rows, 1) = info;
    return info;
}

static TypeInfo *learn(PyTypeObject *type)
{
    TypeInfo *info = info_made(type);
    table_set(&infos, (uintptr_t)type, (uintptr_t)info); /* before anything that may ask for it again */
    PyObject *module, *qualname;
    const char *module_text, *qualname_text;
    names_of(type, &module, &module_text, &qualname, &qualname_text);
    info->module = module_text != NULL ? name_dotted_text(module_text) : name_dotted(module);
    info->qualname = qualname_text != NULL ? name_dotted_text(qualname_text) : name_dotted(qualname);
    info->kind = (uint8_t)kind_of(type);
    info->size = sizer_of(info);
    if (!take_torch(info) && !take_numpy(info) && !take_mapping(info) && !take_frame(info) && !take_thread(info) && !take_code(info)
        && !take_container(info))
        take_instance(info);
    take_life(info);
    take_bodies(info);
    return info;
}

TypeInfo *type_info(PyTypeObject *type)
{
    TypeInfo **place = &recent[((uintptr_t)type >> 4 ^ (uintptr_t)type >> 12) & (RECENT - 1)];
    if (*place != NULL && (*place)->type == type)
        return *place;
    uint64_t found;
    TypeInfo *info = table_find(&infos, (uintptr_t)type, &found) ? (TypeInfo *)(uintptr_t)found : learn(type);
    *place = info;
    return info;
}

void types_open(void)
{
    memset(recent, 0, sizeof recent);
    table_open(&infos);
    vector_open(&rows, sizeof(TypeInfo *));
    thread_type = type_in("threading", "Thread");
    task_type = type_in("_asyncio", "Task");
    cache_type = type_in("functools", "_lru_cache_wrapper");
    if (cache_type == NULL)
        cache_type = type_in("_functools", "_lru_cache_wrapper");
    TypeInfo *memory = info_made(NULL);
    memory->qualname = name_own("memory");
}

uint32_t type_of_memory(void)
{
    return 0;
}

void types_close(void)
{
    table_close(&infos);
    vector_close(&rows);
}

static const char *flags_of(PyTypeObject *type, char *letters)
{
    size_t count = 0;
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE)
        letters[count++] = 'h';
    if (type->tp_flags & Py_TPFLAGS_HAVE_GC)
        letters[count++] = 'g';
#if AT_LEAST(11)
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT || type->tp_dictoffset != 0)
        letters[count++] = 'd';
#else
    if (type->tp_dictoffset != 0)
        letters[count++] = 'd';
#endif
    letters[count] = 0;
    return letters;
}

void types_write(Output *output)
{
    char letters[4];
    out(output, "[");
    for (size_t row = 0; row < rows.count; row++) {
        const TypeInfo *info = AT(TypeInfo *, rows, row);
        out(output, row ? ",[" : "[");
        out_text(output, name_text(info->module));
        out(output, ",");
        out_text(output, name_text(info->qualname));
        out(output, ",\"%s\"]", info->type == NULL ? "hg" : flags_of(info->type, letters));
    }
    out(output, "]");
}
