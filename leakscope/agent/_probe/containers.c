/* Readers of dict, list, tuple, set, frozenset, deque and their subclasses, and the types that hold nothing. The twin: Readers
 * in readers.py, ContainerReader in holders.py. Structures: Objects/dictobject.c. */
#include "deque.h"
#include "readers.h"

/* --- the entries of a dict --- */

#if !AT_LEAST(11)
/* Objects/dict-common.h of 3.10 */
typedef struct {
    Py_hash_t me_hash;
    PyObject *me_key, *me_value;
} DictEntry;
struct _dictkeysobject {
    Py_ssize_t dk_refcnt, dk_size;
    void *dk_lookup;
    Py_ssize_t dk_usable, dk_nentries;
    char dk_indices[];
};

static const char *entries_in(PyDictKeysObject *keys)
{
    size_t index_bytes = keys->dk_size <= 0xff ? 1 : keys->dk_size <= 0xffff ? 2 : keys->dk_size <= 0xffffffff ? 4 : 8;
    return keys->dk_indices + (size_t)keys->dk_size * index_bytes;
}
#endif

size_t bytes_of_keys(PyDictKeysObject *keys)
{
#if AT_LEAST(11)
    size_t entry = keys->dk_kind == DICT_KEYS_GENERAL ? sizeof(PyDictKeyEntry) : sizeof(PyDictUnicodeEntry);
    size_t size = (size_t)1 << keys->dk_log2_size;
    return sizeof(PyDictKeysObject) + ((size_t)1 << keys->dk_log2_index_bytes) + (size << 1) / 3 * entry;
#else
    size_t size = (size_t)keys->dk_size;
    return (size_t)(entries_in(keys) - (const char *)keys) + (size << 1) / 3 * sizeof(DictEntry);
#endif
}

size_t room_of_shared_keys(PyDictKeysObject *keys)
{
#if AT_LEAST(11)
    return (size_t)(keys->dk_nentries + keys->dk_usable);
#else
    return ((size_t)keys->dk_size << 1) / 3;
#endif
}

/* The keys of a table and, unless it is split, its values. */
static void entries_of_keys(PyDictKeysObject *keys, Entries *entries)
{
    *entries = (Entries){.count = (size_t)keys->dk_nentries};
#if AT_LEAST(11)
    const char *table = keys->dk_indices + ((size_t)1 << keys->dk_log2_index_bytes);
    bool is_general = keys->dk_kind == DICT_KEYS_GENERAL;
    entries->key_bytes = entries->value_bytes = is_general ? sizeof(PyDictKeyEntry) : sizeof(PyDictUnicodeEntry);
    entries->keys = table + (is_general ? offsetof(PyDictKeyEntry, me_key) : offsetof(PyDictUnicodeEntry, me_key));
    entries->values = table + (is_general ? offsetof(PyDictKeyEntry, me_value) : offsetof(PyDictUnicodeEntry, me_value));
#else
    entries->key_bytes = entries->value_bytes = sizeof(DictEntry);
    entries->keys = entries_in(keys) + offsetof(DictEntry, me_key);
    entries->values = entries_in(keys) + offsetof(DictEntry, me_value);
#endif
}

bool entries_of(PyObject *thing, Entries *entries)
{
    PyDictObject *dict = (PyDictObject *)thing;
    entries->count = 0;
    if (dict->ma_keys == NULL || dict->ma_used == 0)
        return false;
    entries_of_keys(dict->ma_keys, entries);
    if (dict->ma_values != NULL) {
        entries->value_bytes = sizeof(PyObject *);
#if AT_LEAST(13)
        entries->values = (const char *)dict->ma_values->values;
        entries->is_embedded = dict->ma_values->embedded;
        entries->order = get_insertion_order_array(dict->ma_values);
        entries->order_step = 1;
        entries->count = dict->ma_values->size;
#elif AT_LEAST(11)
        entries->values = (const char *)dict->ma_values->values;
        entries->order = (const uint8_t *)dict->ma_values - 3; /* before the values; their number is at -2 */
        entries->order_step = -1;
        entries->count = ((const uint8_t *)dict->ma_values)[-2];
#else
        entries->values = (const char *)dict->ma_values;
#endif
    }
    return entries->count > 0;
}

bool shared_entries(PyTypeObject *type, Entries *entries)
{
#if AT_LEAST(11)
    bool is_managed = type->tp_flags & Py_TPFLAGS_HEAPTYPE && type->tp_flags & Py_TPFLAGS_MANAGED_DICT;
    PyDictKeysObject *keys = is_managed ? ((PyHeapTypeObject *)type)->ht_cached_keys : NULL;
    if (keys == NULL || keys->dk_kind != DICT_KEYS_SPLIT || keys->dk_nentries > SHARED_KEYS_MAX_SIZE)
        return false;
    entries_of_keys(keys, entries);
    return true;
#else
    return false;
#endif
}

/* --- dict --- */

/* Labels of the keys of the dict at hand: those of the values and of the keys have the same rows. */
typedef struct {
    Row *rows;
    size_t room;
} KeyRows;

/* Values under KEY, then keys under KEY_OBJECT (added: tp_traverse hides the keys of most dicts), both in the order of the dict. */
static void read_entries(KeyRows *kept, const Entries *entries)
{
    if (kept->room < entries->count) {
        kept->room = entries->count + entries->count / 2 + 64;
        kept->rows = arena_take(kept->room * sizeof(Row));
    }
    Row *rows = kept->rows;
    for (size_t nth = 0; nth < entries->count; nth++) {
        size_t place = place_of(entries, nth);
        PyObject *value = value_at(entries, place), *key = key_at(entries, place);
        if (value != NULL && key != NULL) {
            rows[nth] = name_key(key);
            edge(value, LABEL(EDGE_KEY, rows[nth]));
        }
    }
    for (size_t nth = 0; nth < entries->count; nth++) {
        size_t place = place_of(entries, nth);
        if (value_at(entries, place) != NULL)
            edge(key_at(entries, place), LABEL(EDGE_KEY_OBJECT, rows[nth]));
    }
}

static void read_keys(const Entries *entries)
{
    for (size_t nth = 0; nth < entries->count; nth++) {
        PyObject *key = key_at(entries, place_of(entries, nth));
        if (key != NULL && value_at(entries, place_of(entries, nth)) != NULL)
            edge(key, LABEL(EDGE_KEY_OBJECT, name_key(key)));
    }
}

static void read_space(const Entries *entries)
{
    for (size_t nth = 0; nth < entries->count; nth++) {
        PyObject *key = key_at(entries, place_of(entries, nth)), *value = value_at(entries, place_of(entries, nth));
        if (key != NULL && value != NULL)
            edge(value, LABEL(EDGE_ATTRIBUTE, name_attribute(key)));
    }
}

static void read_dict(TypeInfo *info, PyObject *thing)
{
    Entries entries;
    if (!entries_of(thing, &entries))
        return;
    keys_note(thing);
    int space = AT(uint8_t, walk.is_space, walk.row);
    if (space == KEYS_ONLY)
        read_keys(&entries);
    else if (entries.is_embedded)
        return;
    else if (space)
        read_space(&entries);
    else
        read_entries(info->own, &entries);
}

static uint32_t length_of_dict(PyObject *thing)
{
    return (uint32_t)((PyDictObject *)thing)->ma_used;
}

/* --- sequences and sets --- */

static void read_items(PyObject **items, Py_ssize_t count)
{
    if (items != NULL)
        for (Py_ssize_t place = 0; place < count; place++)
            edge(items[place], LABEL(EDGE_INDEX, place));
}

static void read_list(TypeInfo *info, PyObject *thing)
{
    read_items(((PyListObject *)thing)->ob_item, Py_SIZE(thing));
}

/* The nth item of a closure is the nth of the last names of the code object: its free variables. */
uint32_t label_of_cell(PyCodeObject *code, PyObject *closure, Py_ssize_t nth)
{
#if AT_LEAST(11)
    PyObject *names = code->co_localsplusnames;
#else
    PyObject *names = code->co_freevars;
#endif
    if (names == NULL || !PyTuple_CheckExact(names) || PyTuple_GET_SIZE(names) < Py_SIZE(closure))
        return LABEL(EDGE_INDEX, nth);
    PyObject *name = PyTuple_GET_ITEM(names, PyTuple_GET_SIZE(names) - Py_SIZE(closure) + nth);
    return LABEL(EDGE_CELL, name == NULL ? 0 : name_attribute(name));
}

static void read_tuple(TypeInfo *info, PyObject *thing)
{
    PyObject **items = ((PyTupleObject *)thing)->ob_item;
    Py_ssize_t count = Py_SIZE(thing);
    bool has_cell = count > 0 && items[0] != NULL && Py_IS_TYPE(items[0], &PyCell_Type);
    PyCodeObject *code = has_cell ? closure_of(walk.row) : NULL;
    if (code == NULL)
        read_items(items, count);
    else
        for (Py_ssize_t nth = 0; nth < count; nth++)
            edge(items[nth], label_of_cell(code, thing, nth));
}

static uint32_t length_of_items(PyObject *thing)
{
    return (uint32_t)Py_SIZE(thing);
}

static void read_set(TypeInfo *info, PyObject *thing)
{
    PySetObject *set = (PySetObject *)thing;
    if (set->table == NULL)
        return;
    for (Py_ssize_t place = 0; place <= set->mask; place++)
        if (set->table[place].key != NULL && set->table[place].hash != -1) /* -1: something was here */
            edge(set->table[place].key, LABEL(EDGE_ELEMENT, 0));
}

static uint32_t length_of_set(PyObject *thing)
{
    return (uint32_t)((PySetObject *)thing)->used;
}

static void read_deque(TypeInfo *info, PyObject *thing)
{
    Deque *deque = (Deque *)thing;
    if (deque->maxlen >= 0)
        bound(thing, deque->maxlen, "maxlen");
    DequeBlock *block = deque->leftblock;
    Py_ssize_t index = deque->leftindex;
    for (Py_ssize_t place = 0; place < Py_SIZE(thing) && block != NULL; place++) {
        edge(block->items[index], LABEL(EDGE_INDEX, place));
        if (++index == DEQUE_BLOCK_ITEMS) {
            index = 0;
            block = block->right;
        }
    }
}

/* --- subclasses --- */

typedef struct {
    KeyRows rows;               /* first: read_dict() takes what a TypeInfo owns for this */
    PyTypeObject *container;
    Layout *layout;
    uint32_t *fields;           /* labels of a named tuple's items */
    Py_ssize_t field_count;     /* -1: another tuple */
    uint32_t order_label;       /* 0: not an OrderedDict */
} Derived;

static void read_contents(TypeInfo *info, PyObject *thing)
{
    Derived *derived = info->own;
    PyTypeObject *container = derived->container;
    Entries entries;
    if (container == &PyDict_Type) {
        if (entries_of(thing, &entries)) {
            keys_note(thing);
            read_entries(&derived->rows, &entries);
        }
    } else if (container == &PyList_Type) {
        read_list(info, thing);
    } else if (container == &PyTuple_Type) {
        PyObject **items = ((PyTupleObject *)thing)->ob_item;
        if (derived->field_count != Py_SIZE(thing))
            read_items(items, Py_SIZE(thing));
        else
            for (Py_ssize_t place = 0; place < Py_SIZE(thing); place++)
                edge(items[place], derived->fields[place]);
    } else if (container == &PySet_Type || container == &PyFrozenSet_Type) {
        read_set(info, thing);
    } else {
        read_deque(info, thing);
    }
}

static int count_one(PyObject *held, void *own)
{
    ++*(size_t *)own;
    return 0;
}

/* Takes what the container itself shows out of what the whole object shows. They come in the same order, in one piece. */
typedef struct {
    PyObject **referents;
    size_t count, at;
} Striking;

static int strike(PyObject *held, void *own)
{
    Striking *striking = own;
    for (size_t looked = 0; looked < striking->count; looked++, striking->at++) {
        if (striking->at >= striking->count)
            striking->at = 0;
        if (striking->referents[striking->at] == held) {
            striking->referents[striking->at++] = NULL;
            return 0;
        }
    }
    return 0;
}

/* Contents by the container's own table, then what else tp_traverse shows, by name. */
static void read_derived(TypeInfo *info, PyObject *thing)
{
    Derived *derived = info->own;
    const Layout *layout = derived->layout;
    PyTypeObject *container = derived->container;
    read_contents(info, thing);
    bool by_base = container->tp_flags & Py_TPFLAGS_HEAPTYPE; /* deque from 3.12 on: it shows the type, not subtype_traverse */
    if (layout->is_known && layout->base == container) {
        read_own(layout, thing);
        if (by_base)
            edge((PyObject *)Py_TYPE(thing), TYPE_EDGE);
        return;
    }
    PyObject **referents;
    size_t count = referents_of(thing, &referents), inner = 0;
    if (count == 0)
        return;
    container->tp_traverse(thing, count_one, &inner);
    size_t outer = inner < count ? count - inner : 0;
    Striking striking = {referents, count, outer};
    container->tp_traverse(thing, strike, &striking);
    if (by_base)
        edge((PyObject *)Py_TYPE(thing), TYPE_EDGE);
    if (derived->order_label != 0) {
        /* The nodes of its order show the keys once more, before what dict shows. Where dict does not show the keys, these are
         * the references that KEY_OBJECT stands for. */
        size_t length = length_of_dict(thing);
        bool is_general = inner > length;
        for (size_t place = outer > length ? outer - length : 0; place < outer; place++) {
            if (is_general)
                edge(referents[place], derived->order_label);
            referents[place] = NULL;
        }
    }
    read_instance(info, thing, referents, count);
}

/* --- types --- */

PyTypeObject *deque_type(void)
{
    PyObject *space = space_of_module("_collections");
    PyObject *found = space == NULL ? NULL : dict_get(space, "deque");
    if (found == NULL || !Py_IS_TYPE(found, &PyType_Type))
        return NULL;
    PyTypeObject *type = (PyTypeObject *)found; /* no class of Python code that stands in its place */
    return type->tp_itemsize == 0 && type->tp_basicsize >= (Py_ssize_t)sizeof(Deque) && type->tp_traverse != NULL
        && strcmp(type->tp_name, "collections.deque") == 0 ? type : NULL;
}

PyTypeObject *container_of(PyTypeObject *type)
{
    PyTypeObject *containers[] = {&PyDict_Type, &PyList_Type, &PyTuple_Type, &PySet_Type, &PyFrozenSet_Type, deque_type()};
    for (size_t place = 0; place < Py_ARRAY_LENGTH(containers); place++)
        if (containers[place] != NULL && has_base(type, containers[place]))
            return containers[place];
    return NULL;
}

static bool is_leaf(PyTypeObject *type)
{
    PyTypeObject *leaves[] = {&PyUnicode_Type, &PyBytes_Type, &PyLong_Type, &PyFloat_Type, &PyComplex_Type, &PyBool_Type,
                              &PyByteArray_Type, &PyRange_Type, Py_TYPE(Py_None), Py_TYPE(Py_Ellipsis),
                              Py_TYPE(Py_NotImplemented)};
    for (size_t place = 0; place < Py_ARRAY_LENGTH(leaves); place++)
        if (type == leaves[place])
            return true;
    return false;
}

/* The labels of a named tuple's items, from `_fields` of the class. */
static void learn_fields(Derived *derived, PyTypeObject *type)
{
    derived->field_count = -1;
    PyObject *fields = class_value(type, "_fields");
    if (fields == NULL || !PyTuple_CheckExact(fields))
        return;
    Py_ssize_t count = PyTuple_GET_SIZE(fields);
    for (Py_ssize_t place = 0; place < count; place++)
        if (PyTuple_GET_ITEM(fields, place) == NULL || !PyUnicode_CheckExact(PyTuple_GET_ITEM(fields, place)))
            return;
    derived->fields = arena_take((count + 1) * sizeof(uint32_t));
    for (Py_ssize_t place = 0; place < count; place++)
        derived->fields[place] = LABEL(EDGE_ATTRIBUTE, name_attribute(PyTuple_GET_ITEM(fields, place)));
    derived->field_count = count;
}

static Counter length_counter(PyTypeObject *container)
{
    if (container == &PyDict_Type)
        return length_of_dict;
    return container == &PySet_Type || container == &PyFrozenSet_Type ? length_of_set : length_of_items;
}

bool take_container(TypeInfo *info)
{
    PyTypeObject *type = info->type, *container;
    if (is_leaf(type)) {
        info->read = duplicates_of(type);
        return true;
    }
    container = container_of(type);
    if (container == NULL)
        return false;
    info->length = length_counter(container);
    if (type == container) {
        info->read = type == &PyDict_Type ? read_dict : type == &PyList_Type ? read_list : type == &PyTuple_Type ? read_tuple
            : type == &PySet_Type || type == &PyFrozenSet_Type ? read_set : read_deque;
        info->own = type == &PyDict_Type ? arena_take(sizeof(KeyRows)) : NULL;
        return true;
    }
    Derived *derived = info->own = arena_take(sizeof(Derived));
    derived->container = container;
    derived->layout = layout_of(info);
    if (has_base(type, &PyODict_Type))
        derived->order_label = internal_edge("order");
    derived->field_count = -1;
    if (container == &PyTuple_Type)
        learn_fields(derived, type);
    info->read = read_derived;
    return true;
}
