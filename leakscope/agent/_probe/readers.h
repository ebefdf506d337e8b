/* What the readers of containers, code and instances share (containers.c, code.c, instances.c, layouts.c). */
#ifndef LEAKSCOPE_READERS_H
#define LEAKSCOPE_READERS_H

#include "probe.h"

#include <internal/pycore_moduleobject.h>
#include <internal/pycore_object.h>
#include <structmember.h>
#if AT_LEAST(11)
#include <internal/pycore_dict.h>
#endif

#define TYPE_EDGE LABEL(EDGE_TYPE, 0)
#define UNKNOWN_EDGE LABEL(EDGE_UNKNOWN, 0)
#define MOST_MEMBERS 512 /* of one type; what comes after them stays without a name */

/* One of our own words for what C code keeps. */
static inline uint32_t internal_edge(const char *word)
{
    return LABEL(EDGE_INTERNAL, name_own(word));
}

/* --- containers.c: the entries of a dict ------------------------------------------------------------------------------------ */

/* The keys and values of a dict in the order of its table: two columns, wherever they lie. An entry without value is none. */
typedef struct {
    const char *keys, *values;      /* of the first entry */
    size_t key_bytes, value_bytes;  /* from one entry to the next */
    size_t count;
    const uint8_t *order;           /* of a split table: places in the order in which they were filled; NULL: as they lie */
    ptrdiff_t order_step;
    bool is_embedded;               /* 3.13: the values are those of an instance, which shows them: tp_traverse shows nothing */
} Entries;

bool entries_of(PyObject *dict, Entries *entries); /* false: there are none */

/* The place of the nth entry, in the order of dict.items(). */
static inline size_t place_of(const Entries *entries, size_t nth)
{
    return entries->order == NULL ? nth : entries->order[(ptrdiff_t)nth * entries->order_step];
}

static inline PyObject *key_at(const Entries *entries, size_t place)
{
    return *(PyObject *const *)(entries->keys + place * entries->key_bytes);
}

static inline PyObject *value_at(const Entries *entries, size_t place)
{
    return *(PyObject *const *)(entries->values + place * entries->value_bytes);
}

void keys_note(PyObject *dict);                     /* keys.c: a dict may be a table */
PyObject *result_of_link(PyObject *link);           /* code.c: what a functools cache with a limit keeps under a key */
size_t bytes_of_keys(PyDictKeysObject *keys);       /* of a table with its entries: _PyDict_KeysSize */
size_t room_of_shared_keys(PyDictKeysObject *keys); /* values that a split dict has room for */

PyTypeObject *container_of(PyTypeObject *type); /* dict, list, tuple, set, frozenset or deque that it is or derives from; NULL */

/* Of the table that the instances of a class share, for their inline values (3.11 and later); false: there is none. Only keys. */
bool shared_entries(PyTypeObject *type, Entries *entries);

/* --- instances.c ------------------------------------------------------------------------------------------------------------ */

typedef struct {
    Py_ssize_t offset; /* of a PyObject * in the object */
    uint32_t label;
} Member;

/* Where the instances of a type keep what they hold, and how that is called. Kept at TypeInfo.layout. */
typedef struct {
    bool is_known;             /* tp_traverse is subtype_traverse: `slots`, the attributes and the type, then what `base` shows */
    bool shows_type;
    bool has_inline;           /* attributes inline, or a dict before the object (3.11 and later), and subtype_traverse shows them */
    Py_ssize_t dict_offset;    /* of a dict in the object that subtype_traverse shows; 0: none */
    Member *slots;             /* that subtype_traverse shows */
    size_t slot_count;
    Member *members;           /* everything that has a name, most derived class first; the slots among them */
    size_t member_count;
    uint32_t *key_labels;      /* of the inline attributes, by place */
    size_t key_count;
    uint32_t dict_label, rest_label;
    PyTypeObject *base;        /* the first with another tp_traverse */
} Layout;

Layout *layout_of(TypeInfo *info);
void read_own(const Layout *layout, PyObject *thing); /* the edges that subtype_traverse shows before it asks `base` */

PyObject *namespace_of(PyTypeObject *type);      /* the dict of the type itself; NULL: none yet */
PyObject *class_value(PyTypeObject *type, const char *name); /* what the first class of the MRO that has `name` keeps there */
PyObject *dict_of_instance(PyObject *thing);     /* its __dict__ if there is one; never makes it */
const char *ascii_of(PyObject *text);            /* of an exact str of ASCII, without making anything; NULL: something else */

/* --- layouts.c: fields of C types that have no member descriptor ------------------------------------------------------------ */

/* Calls take() with name and offset of the fields of `type` that only the source of its C code tells, as EXTRA in instances.py. */
void each_field(PyTypeObject *type, void (*take)(void *own, const char *name, Py_ssize_t offset), void *own);
uint32_t rest_of(PyTypeObject *type);            /* label of what else the instances of a C type show */
uint32_t label_by_type(PyTypeObject *type, PyObject *held); /* of a field without a name, told by the types of both; UNKNOWN_EDGE */

/* --- duplicates.c --- */

Reader duplicates_of(PyTypeObject *type); /* notes each str or bytes, which hold nothing; NULL: another type */

#endif
