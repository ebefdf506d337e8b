/* Any object without a reader of its own: instances of classes, and objects of C types.
 *
 * For most instances of classes all that tp_traverse shows is known without asking it: slots, inline attributes or a dict, the type
 * (subtype_traverse in Objects/typeobject.c). For the others what it shows is named by what lies at the places that have a name:
 * a name fits where it holds the very same object. So there is never an edge that tp_traverse does not show. Nothing is made, no
 * descriptor is called. The twin: instances.py. */
#include "readers.h"

const char *ascii_of(PyObject *text)
{
    if (text == NULL || !PyUnicode_CheckExact(text) || !PyUnicode_IS_COMPACT_ASCII(text))
        return NULL;
    return (const char *)PyUnicode_1BYTE_DATA(text);
}

PyObject *namespace_of(PyTypeObject *type)
{
#if AT_LEAST(12)
    PyObject *space = _PyType_GetDict(type);
#else
    PyObject *space = type->tp_dict;
#endif
    return space != NULL && PyDict_Check(space) ? space : NULL;
}

/* Calls look() for each class of the MRO, most derived first; of a type without MRO along tp_base. */
static void each_base(PyTypeObject *type, void (*look)(PyTypeObject *base, void *own), void *own)
{
    PyObject *mro = type->tp_mro;
    if (mro == NULL || !PyTuple_Check(mro)) {
        for (PyTypeObject *base = type; base != NULL; base = base->tp_base)
            look(base, own);
        return;
    }
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(mro); place++) {
        PyObject *base = PyTuple_GET_ITEM(mro, place);
        if (base != NULL && PyType_Check(base))
            look((PyTypeObject *)base, own);
    }
}

typedef struct {
    const char *name;
    PyObject *found;
} Lookup;

static void look_up(PyTypeObject *base, void *own)
{
    Lookup *lookup = own;
    PyObject *space = namespace_of(base);
    if (lookup->found == NULL && space != NULL)
        lookup->found = dict_get(space, lookup->name);
}

PyObject *class_value(PyTypeObject *type, const char *name)
{
    Lookup lookup = {name, NULL};
    each_base(type, look_up, &lookup);
    return lookup.found;
}

/* --- where attributes lie --- */

/* The tp_traverse of classes that Python code makes, as a class that is surely one has it. NULL: none was found. */
static traverseproc subtype_traverse(void)
{
    static traverseproc found;
    PyObject *space = found == NULL ? space_of_module("_frozen_importlib") : NULL;
    PyObject *class = space == NULL ? NULL : dict_get(space, "ModuleSpec");
    if (class != NULL && Py_IS_TYPE(class, &PyType_Type)) {
        PyTypeObject *type = (PyTypeObject *)class;
        if (type->tp_base == &PyBaseObject_Type && type->tp_flags & Py_TPFLAGS_HEAPTYPE && PyType_IS_GC(type))
            found = type->tp_traverse;
    }
    return found;
}

static bool has_managed_dict(PyTypeObject *type)
{
#if AT_LEAST(11)
    return type->tp_flags & Py_TPFLAGS_MANAGED_DICT;
#else
    return false;
#endif
}

/* The attributes that lie in the instance itself or in a table of its own, in the order of the shared keys; NULL: none. */
static PyObject **inline_values(PyObject *thing, size_t *count)
{
#if AT_LEAST(11)
    PyTypeObject *type = Py_TYPE(thing);
    PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
    PyDictValues *values = NULL;
#if AT_LEAST(13)
    if (type->tp_flags & Py_TPFLAGS_INLINE_VALUES && _PyObject_InlineValues(thing)->valid)
        values = _PyObject_InlineValues(thing);
#elif AT_LEAST(12)
    PyDictOrValues held = *_PyObject_DictOrValuesPointer(thing);
    if (_PyDictOrValues_IsValues(held))
        values = _PyDictOrValues_GetValues(held);
#else
    values = *_PyObject_ValuesPointer(thing);
#endif
    if (values == NULL || keys == NULL)
        return NULL;
    *count = keys->dk_nentries;
#if AT_LEAST(13)
    if (*count > values->capacity)
        *count = values->capacity;
#endif
    return values->values;
#else
    return NULL;
#endif
}

/* The dict of an instance that keeps it before itself; NULL: none yet. */
static PyObject *managed_dict(PyObject *thing)
{
#if AT_LEAST(13)
    return (PyObject *)_PyObject_ManagedDictPointer(thing)->dict;
#elif AT_LEAST(12)
    PyDictOrValues held = *_PyObject_DictOrValuesPointer(thing);
    return _PyDictOrValues_IsValues(held) ? NULL : _PyDictOrValues_GetDict(held);
#elif AT_LEAST(11)
    return *_PyObject_ManagedDictPointer(thing);
#else
    return NULL;
#endif
}

static PyObject *dict_at(PyObject *thing, Py_ssize_t offset)
{
    if (offset < 0) { /* from the end of an object of variable size */
        Py_ssize_t count = Py_SIZE(thing);
        offset += (Py_ssize_t)_PyObject_VAR_SIZE(Py_TYPE(thing), count < 0 ? -count : count);
    }
    return offset < (Py_ssize_t)sizeof(PyObject) ? NULL : *(PyObject **)((char *)thing + offset);
}

PyObject *dict_of_instance(PyObject *thing)
{
    PyTypeObject *type = Py_TYPE(thing);
    PyObject *dict = has_managed_dict(type) ? managed_dict(thing) : type->tp_dictoffset == 0 ? NULL
        : dict_at(thing, type->tp_dictoffset);
    return dict != NULL && PyDict_Check(dict) ? dict : NULL;
}

static PyObject *member_at(PyObject *thing, Py_ssize_t offset)
{
    return *(PyObject **)((char *)thing + offset);
}

/* --- what is known of a type --- */

typedef struct {
    PyTypeObject *type;
    Member found[MOST_MEMBERS];
    size_t count;
} Learning;

static bool is_object_member(const PyMemberDef *member)
{
    return member != NULL && (member->type == T_OBJECT || member->type == T_OBJECT_EX);
}

/* As the twin: members that begin with an underscore are internal, but for names between two underscores that are no C type's. */
static uint32_t member_label(const char *name, Row row)
{
    static const char *const internal[] = {"__self__", "__func__", "__wrapped__", "__callback__", "__objclass__", "__thisclass__",
                                           "__self_class__", "__origin__", "__args__", "__parameters__", "__traceback__",
                                           "__context__", "__cause__"};
    size_t length = name == NULL ? 0 : strlen(name);
    bool is_internal = length > 0 && name[0] == '_';
    if (length > 4 && memcmp(name, "__", 2) == 0 && memcmp(name + length - 2, "__", 2) == 0) {
        is_internal = false;
        for (size_t place = 0; place < Py_ARRAY_LENGTH(internal); place++)
            is_internal = is_internal || strcmp(name, internal[place]) == 0;
    }
    return LABEL(is_internal ? EDGE_INTERNAL : EDGE_ATTRIBUTE, row);
}

static void add_member(Learning *learning, Py_ssize_t offset, uint32_t label)
{
    /* Only C code declares members of what has items, such as os.stat_result; they lie among the items. */
    bool lies_inside = offset >= (Py_ssize_t)sizeof(PyObject)
        && (offset + (Py_ssize_t)sizeof(PyObject *) <= learning->type->tp_basicsize || learning->type->tp_itemsize > 0);
    if (lies_inside && learning->count < MOST_MEMBERS)
        learning->found[learning->count++] = (Member){offset, label};
}

static void add_field(void *own, const char *name, Py_ssize_t offset)
{
    add_member(own, offset, member_label(name, name_own(name)));
}

/* Slots and C members of one class: descriptors in its namespace that belong to it or to a class it derives from. */
static void learn_members(PyTypeObject *base, void *own)
{
    Learning *learning = own;
    Entries entries;
    PyObject *space = namespace_of(base);
    if (space == NULL || !entries_of(space, &entries))
        return;
    for (size_t nth = 0; nth < entries.count; nth++) {
        PyObject *value = value_at(&entries, place_of(&entries, nth)), *key = key_at(&entries, place_of(&entries, nth));
        if (value == NULL || key == NULL || !Py_IS_TYPE(value, &PyMemberDescr_Type) || !PyUnicode_CheckExact(key))
            continue;
        PyMemberDescrObject *member = (PyMemberDescrObject *)value;
        if (is_object_member(member->d_member) && has_base(learning->type, member->d_common.d_type) && !is_text(key, "__dict__")) {
            const char *name = ascii_of(key);
            add_member(learning, member->d_member->offset, member_label(name, name_attribute(key)));
        }
    }
}

static uint32_t label_at(const Learning *learning, const PyMemberDef *slot)
{
    for (size_t place = 0; place < learning->count; place++)
        if (learning->found[place].offset == slot->offset)
            return learning->found[place].label;
    return member_label(slot->name, name_dotted_text(slot->name)); /* its descriptor was removed from the class */
}

/* What subtype_traverse shows of the instances of a type: `slots` and so on, down to `base`. */
static void learn_traverse(Layout *layout, const Learning *learning)
{
    PyTypeObject *type = learning->type, *base = type;
    Member slots[MOST_MEMBERS];
    size_t count = 0;
    traverseproc known = subtype_traverse();
    if (known == NULL || type->tp_traverse != known)
        return;
    for (; base != NULL && base->tp_traverse == known; base = base->tp_base) {
        PyMemberDef *members = (PyMemberDef *)((char *)base + Py_TYPE(base)->tp_basicsize);
        for (Py_ssize_t place = 0; place < Py_SIZE(base); place++)
            if (members[place].type == T_OBJECT_EX) {
                if (count == MOST_MEMBERS)
                    return;
                slots[count++] = (Member){members[place].offset, label_at(learning, &members[place])};
            }
    }
    if (base == NULL)
        return;
    layout->slots = arena_take((count + 1) * sizeof(Member));
    memcpy(layout->slots, slots, count * sizeof(Member));
    layout->slot_count = count;
    layout->base = base;
    if (type->tp_dictoffset != base->tp_dictoffset) {
        layout->has_inline = has_managed_dict(type);
        layout->dict_offset = layout->has_inline ? 0 : type->tp_dictoffset;
    }
#if AT_LEAST(11) && !AT_LEAST(12)
    layout->has_inline = has_managed_dict(type); /* 3.11 shows the values in any case */
#endif
    layout->shows_type = type->tp_flags & Py_TPFLAGS_HEAPTYPE
        && (base->tp_traverse == NULL || !(base->tp_flags & Py_TPFLAGS_HEAPTYPE));
    layout->is_known = true;
}

static void learn_inline(Layout *layout, PyTypeObject *type)
{
    Entries entries;
    if (!shared_entries(type, &entries))
        return;
    layout->key_labels = arena_take((entries.count + 1) * sizeof(uint32_t));
    for (size_t place = 0; place < entries.count; place++) {
        PyObject *key = key_at(&entries, place);
        layout->key_labels[place] = key == NULL ? UNKNOWN_EDGE : LABEL(EDGE_ATTRIBUTE, name_attribute(key));
    }
    layout->key_count = entries.count;
}

Layout *layout_of(TypeInfo *info)
{
    if (info->layout != NULL)
        return info->layout;
    Layout *layout = info->layout = arena_take(sizeof(Layout));
    Learning learning = {.type = info->type};
    each_base(info->type, learn_members, &learning);
    each_field(info->type, add_field, &learning);
    layout->members = arena_take((learning.count + 1) * sizeof(Member));
    memcpy(layout->members, learning.found, learning.count * sizeof(Member));
    layout->member_count = learning.count;
    layout->dict_label = internal_edge("__dict__");
    layout->rest_label = rest_of(info->type);
    learn_inline(layout, info->type);
    learn_traverse(layout, &learning);
    return layout;
}

/* --- reading --- */

static inline uint32_t key_label(const Layout *layout, size_t place)
{
    return place < layout->key_count ? layout->key_labels[place] : UNKNOWN_EDGE;
}

typedef struct {
    PyObject *wanted;
    bool is_shown;
} Shown;

static int look_for(PyObject *held, void *own)
{
    Shown *shown = own;
    shown->is_shown = shown->is_shown || held == shown->wanted;
    return 0;
}

/* A dict that stands for inline attributes which are still in use: 3.13 does not show it. */
static bool is_shown(PyObject *thing, PyObject *dict)
{
    Shown shown = {dict, false};
    Py_TYPE(thing)->tp_traverse(thing, look_for, &shown);
    return shown.is_shown;
}

void read_own(const Layout *layout, PyObject *thing)
{
    for (size_t place = 0; place < layout->slot_count; place++)
        edge(member_at(thing, layout->slots[place].offset), layout->slots[place].label);
    PyObject *dict = NULL;
    if (layout->has_inline) {
        size_t count = 0;
        PyObject **values = inline_values(thing, &count);
        for (size_t place = 0; values != NULL && place < count; place++)
            edge(values[place], key_label(layout, place));
        dict = managed_dict(thing);
        if (values != NULL && dict != NULL && !is_shown(thing, dict))
            dict = NULL;
    } else if (layout->dict_offset != 0) {
        dict = dict_at(thing, layout->dict_offset);
    }
    if (dict != NULL) {
        edge(dict, layout->dict_label);
        name_space(dict);
    }
    if (layout->shows_type)
        edge((PyObject *)Py_TYPE(thing), TYPE_EDGE);
}

static void read_known(TypeInfo *info, PyObject *thing)
{
    read_own(info->layout, thing);
}

/* What is not named yet of what an object shows. */
typedef struct {
    PyObject **referents;
    size_t count;
} Unnamed;

static bool take_named(Unnamed *unnamed, PyObject *held, uint32_t label)
{
    if (held == NULL)
        return false;
    for (size_t place = 0; place < unnamed->count; place++)
        if (unnamed->referents[place] == held) {
            unnamed->referents[place] = NULL;
            edge(held, label);
            return true;
        }
    return false;
}

void read_instance(TypeInfo *info, PyObject *thing, PyObject **referents, size_t count)
{
    const Layout *layout = layout_of(info);
    PyTypeObject *type = Py_TYPE(thing);
    for (size_t place = count; place-- > 0;) /* the type comes late, but before the items of a container */
        if (referents[place] == (PyObject *)type) {
            referents[place] = NULL;
            edge((PyObject *)type, TYPE_EDGE);
            break;
        }
    Unnamed unnamed = {referents, count};
    size_t inline_count = 0;
    PyObject **values = has_managed_dict(type) ? inline_values(thing, &inline_count) : NULL;
    for (size_t place = 0; values != NULL && place < inline_count; place++)
        take_named(&unnamed, values[place], key_label(layout, place));
    for (size_t place = 0; place < layout->member_count; place++)
        take_named(&unnamed, member_at(thing, layout->members[place].offset), layout->members[place].label);
    PyObject *dict = dict_of_instance(thing);
    if (take_named(&unnamed, dict, layout->dict_label))
        name_space(dict);
    for (size_t place = 0; place < count; place++)
        if (referents[place] != NULL) {
            uint32_t label = layout->rest_label;
            edge(referents[place], label != UNKNOWN_EDGE ? label : label_by_type(type, referents[place]));
        }
}

static void read_asking(TypeInfo *info, PyObject *thing)
{
    PyObject **referents;
    size_t count = referents_of(thing, &referents);
    if (count > 0)
        read_instance(info, thing, referents, count);
}

void take_instance(TypeInfo *info)
{
    PyTypeObject *type = info->type;
    if (!PyType_IS_GC(type) || type->tp_traverse == NULL) {
        info->read = NULL;
        return;
    }
    Layout *layout = layout_of(info);
    bool is_all = layout->is_known && layout->base->tp_traverse == NULL && type->tp_is_gc == NULL;
    info->read = is_all ? read_known : read_asking;
}

/* --- attributes for other readers --- */

static PyObject *inline_attribute(PyObject *thing, const char *name)
{
    size_t count = 0;
    Entries entries;
    PyObject **values = has_managed_dict(Py_TYPE(thing)) ? inline_values(thing, &count) : NULL;
    if (values == NULL || !shared_entries(Py_TYPE(thing), &entries))
        return NULL;
    for (size_t place = 0; place < count && place < entries.count; place++)
        if (values[place] != NULL && is_text(key_at(&entries, place), name))
            return values[place];
    return NULL;
}

typedef struct {
    const char *name;
    Py_ssize_t offset; /* 0: not found */
} FieldLookup;

static void find_field(void *own, const char *name, Py_ssize_t offset)
{
    FieldLookup *lookup = own;
    if (strcmp(name, lookup->name) == 0)
        lookup->offset = offset;
}

PyObject *attribute_of(PyObject *thing, const char *name)
{
    PyTypeObject *type = Py_TYPE(thing);
    PyObject *found = inline_attribute(thing, name);
    PyObject *dict = found == NULL ? dict_of_instance(thing) : NULL;
    if (dict != NULL)
        found = dict_get(dict, name);
    if (found != NULL)
        return found;
    PyObject *member = class_value(type, name);
    if (member != NULL && Py_IS_TYPE(member, &PyMemberDescr_Type)) {
        PyMemberDescrObject *descriptor = (PyMemberDescrObject *)member;
        if (is_object_member(descriptor->d_member) && has_base(type, descriptor->d_common.d_type))
            return member_at(thing, descriptor->d_member->offset);
    }
    FieldLookup lookup = {name, 0};
    each_field(type, find_field, &lookup);
    return lookup.offset == 0 ? NULL : member_at(thing, lookup.offset);
}
