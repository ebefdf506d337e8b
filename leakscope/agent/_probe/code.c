/* Readers of functions, code objects, modules, types, cells, C functions, descriptors and functools caches. The twin: Readers in
 * readers.py, CacheReader in holders.py; labels: Nodes in nodes.py. */
#include "readers.h"

/* What a reader calls the fields of its type, told by what they hold. */
typedef struct {
    PyObject *held;
    uint32_t label;
} Named;

static uint32_t label_of(PyObject *held, const Named *named, size_t count)
{
    for (size_t place = 0; place < count; place++)
        if (named[place].held == held)
            return named[place].label;
    return UNKNOWN_EDGE;
}

/* The rows of what is kept as an exact str, or nothing. */
static Row dotted_if_text(PyObject *name)
{
    return name != NULL && PyUnicode_CheckExact(name) ? name_dotted(name) : 0;
}

/* --- functions --- */

enum { FUNCTION_CLOSURE, FUNCTION_QUALNAME, FUNCTION_NAME, FUNCTION_MODULE, FUNCTION_DOC, FUNCTION_KWDEFAULTS, FUNCTION_DEFAULTS,
       FUNCTION_GLOBALS, FUNCTION_CODE, FUNCTION_BUILTINS, FUNCTION_DICT, FUNCTION_ANNOTATIONS, FUNCTION_TYPE_PARAMS, FUNCTION_PARTS };
/* In the order in which the twin decides where two parts are the same object. */
static const char *const function_words[FUNCTION_PARTS] = {
    "__closure__", "__qualname__", "__name__", "__module__", "__doc__", "__kwdefaults__", "__defaults__", "__globals__", "__code__",
    "__builtins__", "__dict__", "__annotations__", "__type_params__"};

static uint32_t *labels_of_words(const char *const *words, size_t count)
{
    uint32_t *labels = arena_take(count * sizeof(uint32_t));
    for (size_t place = 0; place < count; place++)
        labels[place] = internal_edge(words[place]);
    return labels;
}

static void read_function(TypeInfo *info, PyObject *thing)
{
    PyFunctionObject *function = (PyFunctionObject *)thing;
    const uint32_t *labels = info->own;
    PyObject *parts[FUNCTION_PARTS] = {
        [FUNCTION_CLOSURE] = function->func_closure, [FUNCTION_QUALNAME] = function->func_qualname,
        [FUNCTION_NAME] = function->func_name, [FUNCTION_MODULE] = function->func_module, [FUNCTION_DOC] = function->func_doc,
        [FUNCTION_KWDEFAULTS] = function->func_kwdefaults, [FUNCTION_DEFAULTS] = function->func_defaults,
        [FUNCTION_GLOBALS] = function->func_globals, [FUNCTION_CODE] = function->func_code,
        [FUNCTION_BUILTINS] = function->func_builtins, [FUNCTION_DICT] = function->func_dict,
        [FUNCTION_ANNOTATIONS] = function->func_annotations,
#if AT_LEAST(12)
        [FUNCTION_TYPE_PARAMS] = function->func_typeparams,
#endif
    };
    if (function->func_closure != NULL && PyTuple_Check(function->func_closure) && function->func_code != NULL)
        name_closure(function->func_closure, (PyCodeObject *)function->func_code);
    if (function->func_dict != NULL && PyDict_Check(function->func_dict))
        name_space(function->func_dict);
    Named named[FUNCTION_PARTS];
    for (size_t place = 0; place < FUNCTION_PARTS; place++)
        named[place] = (Named){parts[place], labels[place]};
    PyObject **referents;
    size_t count = referents_of(thing, &referents);
    for (size_t place = 0; place < count; place++)
        edge(referents[place], label_of(referents[place], named, FUNCTION_PARTS));
}

static Row label_function(TypeInfo *info, PyObject *thing)
{
    PyFunctionObject *function = (PyFunctionObject *)thing;
    return name_joined("", dotted_if_text(function->func_module), ".", dotted_if_text(function->func_qualname), "()");
}

static void read_c_function(TypeInfo *info, PyObject *thing)
{
    PyObject *self = PyCFunction_GET_SELF(thing), **referents;
    uint32_t of_self = internal_edge("__self__"), of_module = internal_edge("__module__");
    size_t count = referents_of(thing, &referents);
    for (size_t place = 0; place < count; place++)
        edge(referents[place], referents[place] == self ? of_self : of_module);
}

static Row label_c_function(TypeInfo *info, PyObject *thing)
{
    return name_joined("", name_dotted_text(((PyCFunctionObject *)thing)->m_ml->ml_name), "", 0, "()");
}

static void read_cell(TypeInfo *info, PyObject *thing)
{
    edge(((PyCellObject *)thing)->ob_ref, LABEL(EDGE_CONTENTS, 0));
}

/* The class that a slot or C method belongs to; without it no class with slots could be garbage. */
static void read_descriptor(TypeInfo *info, PyObject *thing)
{
    PyObject **referents;
    uint32_t label = internal_edge("__objclass__");
    size_t count = referents_of(thing, &referents);
    for (size_t place = 0; place < count; place++)
        edge(referents[place], label);
}

/* --- code objects: constants and names (added: they have no tp_traverse) --- */

static void read_code(TypeInfo *info, PyObject *thing)
{
    edge(((PyCodeObject *)thing)->co_consts, internal_edge("co_consts"));
    edge(((PyCodeObject *)thing)->co_names, internal_edge("co_names"));
}

static Row label_code(TypeInfo *info, PyObject *thing)
{
    return name_place("code of ", (PyCodeObject *)thing, 0);
}

/* --- modules --- */

static PyObject *dict_of_module(PyObject *thing)
{
    PyObject *dict = ((PyModuleObject *)thing)->md_dict;
    return dict != NULL && PyDict_Check(dict) ? dict : NULL;
}

static void read_module(TypeInfo *info, PyObject *thing)
{
    PyObject *dict = dict_of_module(thing), **referents;
    uint32_t of_dict = internal_edge("__dict__"), of_state = internal_edge("<state>");
    size_t count = referents_of(thing, &referents);
    if (dict != NULL)
        name_space(dict);
    for (size_t place = 0; place < count; place++)
        edge(referents[place], referents[place] == dict ? of_dict : of_state);
}

static Row label_module(TypeInfo *info, PyObject *thing)
{
    uint64_t label;
    if (table_find(&walk.module_labels, (uint64_t)(uintptr_t)thing, &label))
        return (Row)label;
    PyObject *dict = dict_of_module(thing);
    return name_joined("module ", dotted_if_text(dict == NULL ? NULL : dict_get(dict, "__name__")), "", 0, "");
}

/* --- types --- */

static void read_type(TypeInfo *info, PyObject *thing)
{
    PyTypeObject *type = (PyTypeObject *)thing;
    PyObject **referents;
    size_t count = referents_of(thing, &referents);
    if (count == 0)
        return;
    const uint32_t *labels = info->own;
    PyObject *space = type->tp_dict;
    if (space != NULL && PyDict_Check(space))
        name_space(space);
    const Named named[] = {{space, labels[0]},
                           {type->tp_mro, labels[1]},
                           {type->tp_bases, labels[2]},
                           {(PyObject *)type->tp_base, labels[3]},
                           {(PyObject *)Py_TYPE(thing), TYPE_EDGE}};
    for (size_t place = 0; place < count; place++) {
        uint32_t label = label_of(referents[place], named, Py_ARRAY_LENGTH(named));
        if (label == UNKNOWN_EDGE && Py_IS_TYPE(referents[place], &PyModule_Type))
            label = labels[4];
        edge(referents[place], label);
    }
}

static Row row_of_part(PyObject *name, const char *text)
{
    return name != NULL ? name_dotted(name) : text != NULL ? name_dotted_text(text) : name_own("?");
}

static Row label_type(TypeInfo *info, PyObject *thing)
{
    PyObject *module, *qualname;
    const char *module_text, *qualname_text;
    names_of((PyTypeObject *)thing, &module, &module_text, &qualname, &qualname_text);
    return name_joined("class ", row_of_part(module, module_text), ".", row_of_part(qualname, qualname_text), "");
}

/* --- functools.lru_cache: Modules/_functoolsmodule.c --- */

typedef struct Link {
    PyObject_HEAD
    struct Link *before, *after;
    Py_hash_t hash;
    PyObject *key, *result;
} Link;

typedef struct {
    Link root;
    void *wrapper;
    int typed;
    PyObject *cache;
    Py_ssize_t hits;
    PyObject *function;
    Py_ssize_t maxsize; /* -1: none */
    Py_ssize_t misses;
    PyObject *kwd_mark;
    PyTypeObject *link_type;
    PyObject *cache_info_type, *dict;
} Cache;

enum { CACHE_TYPE_OF_LINK, CACHE_KEY, CACHE_RESULT, CACHE_DICT, CACHE_ITSELF, CACHE_MARK, CACHE_FUNCTION, CACHE_WORDS };
static const char *const cache_words[CACHE_WORDS] = {"link type", "cache key", "cache[*]", "__dict__", "cache", "kwd_mark",
                                                     "__wrapped__"};

PyObject *result_of_link(PyObject *link)
{
    return ((Link *)link)->result;
}

/* A link is no object that the collector knows: with a limit, the cache itself shows key, value and type of its links. */
static void read_cache(TypeInfo *info, PyObject *thing)
{
    Cache *cache = (Cache *)thing;
    const uint32_t *labels = info->own;
    PyObject **referents;
    size_t count = referents_of(thing, &referents), done = 0;
    Link *link = cache->root.after;
    if (cache->dict != NULL && PyDict_Check(cache->dict))
        name_space(cache->dict);
    const Named named[] = {{(PyObject *)Py_TYPE(thing), TYPE_EDGE},
                           {cache->cache, labels[CACHE_ITSELF]},
                           {cache->function, labels[CACHE_FUNCTION]},
                           {cache->kwd_mark, labels[CACHE_MARK]},
                           {(PyObject *)cache->link_type, labels[CACHE_TYPE_OF_LINK]},
                           {cache->cache_info_type, labels[CACHE_TYPE_OF_LINK]},
                           {cache->dict, labels[CACHE_DICT]}};
    for (size_t place = 0; place < count; place += done) {
        done = 1;
        PyObject **three = referents + place; /* key, value and type of the next link, in whatever order */
        bool is_link = link != NULL && link != &cache->root && place + 3 <= count;
        bool has_key = false, has_result = false, has_type = false;
        for (size_t part = 0; is_link && part < 3; part++) {
            has_key = has_key || three[part] == link->key;
            has_result = has_result || three[part] == link->result;
            has_type = has_type || three[part] == (PyObject *)Py_TYPE(link);
        }
        if (is_link && has_key && has_result && has_type) {
            edge(link->key, labels[CACHE_KEY]);
            edge(link->result, labels[CACHE_RESULT]);
            edge((PyObject *)Py_TYPE(link), labels[CACHE_TYPE_OF_LINK]);
            link = link->after;
            done = 3;
        } else {
            edge(referents[place], label_of(referents[place], named, Py_ARRAY_LENGTH(named)));
        }
    }
}

static Row label_cache(TypeInfo *info, PyObject *thing)
{
    Cache *cache = (Cache *)thing;
    if (cache->function == NULL || !Py_IS_TYPE(cache->function, &PyFunction_Type))
        return 0;
    PyFunctionObject *function = (PyFunctionObject *)cache->function;
    Row name = name_joined("", dotted_if_text(function->func_module), ".", dotted_if_text(function->func_qualname), "");
    cache_info((CacheFacts){thing, cache->cache != NULL && PyDict_Check(cache->cache) ? cache->cache : NULL, cache->function,
                            cache->kwd_mark, name, cache->maxsize, (uint64_t)cache->hits, (uint64_t)cache->misses, cache->typed != 0});
    if (cache->maxsize >= 0)
        bound(thing, cache->maxsize, "maxsize");
    return name_joined("lru_cache of ", name, "", 0, "()");
}

/* --- types that these readers take --- */

static void take(TypeInfo *info, int kind, Reader read, Labeller label)
{
    info->kind = kind;
    info->read = read;
    info->label = label;
}

bool take_code(TypeInfo *info)
{
    static const char *const type_words[] = {"__dict__", "__mro__", "__bases__", "__base__", "__module__"};
    PyTypeObject *type = info->type;
    PyTypeObject *descriptors[] = {&PyMethodDescr_Type, &PyWrapperDescr_Type, &PyMemberDescr_Type, &PyGetSetDescr_Type,
                                   &PyClassMethodDescr_Type};
    for (size_t place = 0; place < Py_ARRAY_LENGTH(descriptors); place++)
        if (type == descriptors[place]) {
            info->read = read_descriptor;
            return true;
        }
    if (type == &PyCell_Type) {
        info->read = read_cell;
    } else if (type == &PyFunction_Type) {
        take(info, KIND_FUNCTION, read_function, label_function);
        info->own = labels_of_words(function_words, FUNCTION_PARTS);
    } else if (has_base(type, &PyCFunction_Type)) {
        take(info, KIND_FUNCTION, read_c_function, label_c_function);
    } else if (type == &PyCode_Type) {
        take(info, KIND_CODE, read_code, label_code);
    } else if (is_c_type(type, "functools._lru_cache_wrapper", sizeof(Cache))) {
        take(info, KIND_CACHE, read_cache, label_cache);
        info->own = labels_of_words(cache_words, CACHE_WORDS);
    } else if (has_base(type, &PyType_Type)) {
        take(info, KIND_TYPE, read_type, label_type);
        info->own = labels_of_words(type_words, Py_ARRAY_LENGTH(type_words));
    } else if (has_base(type, &PyModule_Type)) {
        take(info, KIND_MODULE, read_module, label_module);
    } else {
        return false;
    }
    return true;
}
