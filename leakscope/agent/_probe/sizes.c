/* How large objects are: what sys.getsizeof says, computed from their fields, for a call of __sizeof__ would make an int; and inline
 * attributes, which sys.getsizeof leaves out (walk.py, _inline_size). Whose __sizeof__ counts is decided by the MRO, as the
 * interpreter does. */
#include "deque.h"
#include "engine.h"
#include "readers.h"

#include <internal/pycore_code.h>
#if AT_LEAST(12)
#include <internal/pycore_long.h>
#endif

/* As far as sizes need them: Objects/odictobject.c, Modules/arraymodule.c, Modules/_io/bytesio.c and
 * bufferedio.c and stringio.c, Modules/_elementtree.c, Modules/_struct.c. */
typedef struct {
    PyDictObject dict;
    void *first, *last, **table;
    Py_ssize_t table_size;
} Ordered;
enum { ORDERED_NODE_BYTES = 4 * sizeof(void *) };

typedef struct {
    PyObject_VAR_HEAD
    char *items;
    Py_ssize_t allocated;
    const struct {
        char typecode;
        int item_bytes;
    } *description;
} Array;

typedef struct {
    PyObject_HEAD
    PyObject *buffer;
} BytesIO;

typedef struct {
    PyObject_HEAD
    Py_UCS4 *buffer;
    Py_ssize_t position, length;
    size_t allocated;
    int state; /* STRING_IS_REALIZED: the text is in the buffer; else in what follows */
#if AT_LEAST(12)
    _PyUnicodeWriter writer;
#endif /* until 3.11 two lists of what was written, which the collector knows */
} StringIO;
enum { STRING_IS_REALIZED = 1 };

typedef struct {
    PyObject_HEAD
    PyObject *raw;
    int ok, detached, readable, writable;
    char finalizing;
    int fast_closed_checks;
    int64_t abs_pos;
    char *buffer;
    int64_t pos, raw_pos, read_end, write_pos, write_end;
    void *lock;
    volatile unsigned long owner;
    Py_ssize_t buffer_size;
} Buffered;

typedef struct {
    PyObject *attributes;
    Py_ssize_t count, allocated;
    PyObject **children, *first_children[4];
} ElementExtra;

typedef struct {
    PyObject_HEAD
    PyObject *tag, *text, *tail;
    ElementExtra *extra;
} Element;

typedef struct {
    const void *kind; /* NULL: the last */
    Py_ssize_t offset, size, repeat;
} StructCode;

typedef struct {
    PyObject_HEAD
    Py_ssize_t size, count;
    StructCode *codes;
} Struct;

static uint64_t size_fixed(TypeInfo *info, PyObject *thing)
{
    return info->fixed_bytes;
}

static uint64_t size_items(TypeInfo *info, PyObject *thing)
{
    return info->fixed_bytes + (uint64_t)Py_ABS(Py_SIZE(thing)) * (uint64_t)info->type->tp_itemsize;
}

static uint64_t size_dict(TypeInfo *info, PyObject *thing)
{
    PyDictObject *dict = (PyDictObject *)thing;
    uint64_t bytes = info->fixed_bytes;
    if (dict->ma_keys == NULL)
        return bytes;
    if (dict->ma_values != NULL)
        bytes += room_of_shared_keys(dict->ma_keys) * sizeof(PyObject *);
    /* The keys of a split table belong to the type. Their count of references comes first, on every version. */
    return *(const Py_ssize_t *)dict->ma_keys == 1 ? bytes + bytes_of_keys(dict->ma_keys) : bytes;
}

static uint64_t size_ordered(TypeInfo *info, PyObject *thing)
{
    Ordered *ordered = (Ordered *)thing;
    uint64_t nodes = ordered->first == NULL ? 0 : (uint64_t)ordered->dict.ma_used;
    return size_dict(info, thing) + (uint64_t)ordered->table_size * sizeof(void *) + nodes * ORDERED_NODE_BYTES;
}

static uint64_t size_list(TypeInfo *info, PyObject *thing)
{
    return info->fixed_bytes + (uint64_t)((PyListObject *)thing)->allocated * sizeof(PyObject *);
}

static uint64_t size_set(TypeInfo *info, PyObject *thing)
{
    PySetObject *set = (PySetObject *)thing;
    return info->fixed_bytes + (set->table == set->smalltable ? 0 : (uint64_t)(set->mask + 1) * sizeof(setentry));
}

static uint64_t size_deque(TypeInfo *info, PyObject *thing)
{
    uint64_t items = (uint64_t)(((Deque *)thing)->leftindex + Py_SIZE(thing));
    return info->fixed_bytes + (items + DEQUE_BLOCK_ITEMS - 1) / DEQUE_BLOCK_ITEMS * sizeof(DequeBlock);
}

static uint64_t size_bytearray(TypeInfo *info, PyObject *thing)
{
    return info->fixed_bytes + (uint64_t)((PyByteArrayObject *)thing)->ob_alloc;
}

static uint64_t size_int(TypeInfo *info, PyObject *thing)
{
#if AT_LEAST(12)
    uint64_t digits = (uint64_t)_PyLong_DigitCount((PyLongObject *)thing);
    return info->fixed_bytes + (digits == 0 ? 1 : digits) * sizeof(digit);
#else
    uint64_t digits = (uint64_t)Py_ABS(Py_SIZE(thing));
    if (AT_LEAST(11) && digits == 0)
        digits = 1;
    return info->fixed_bytes + offsetof(PyLongObject, ob_digit) + digits * sizeof(digit);
#endif
}

/* Bytes of the other forms of a str that it keeps beside its letters: UTF-8, and until 3.11 wchar_t. */
static uint64_t other_forms(PyObject *thing, const void *letters)
{
    PyCompactUnicodeObject *text = (PyCompactUnicodeObject *)thing;
    uint64_t bytes = 0;
#if !AT_LEAST(12)
    const void *wide = text->_base.wstr;
    if (wide != NULL && wide != letters)
        bytes += ((uint64_t)text->wstr_length + 1) * sizeof(wchar_t);
#endif
    if (text->utf8 != NULL && (const void *)text->utf8 != letters)
        bytes += (uint64_t)text->utf8_length + 1;
    return bytes;
}

static uint64_t size_text(TypeInfo *info, PyObject *thing)
{
    uint64_t letters = ((uint64_t)((PyASCIIObject *)thing)->length + 1) * PyUnicode_KIND(thing);
    if (PyUnicode_IS_COMPACT_ASCII(thing)) {
        uint64_t bytes = info->fixed_bytes + sizeof(PyASCIIObject) + letters;
#if !AT_LEAST(12)
        bytes += ((PyASCIIObject *)thing)->wstr == NULL ? 0 : letters * sizeof(wchar_t);
#endif
        return bytes;
    }
    if (PyUnicode_IS_COMPACT(thing))
        return info->fixed_bytes + sizeof(PyCompactUnicodeObject) + letters
            + other_forms(thing, (PyCompactUnicodeObject *)thing + 1);
    const void *data = ((PyUnicodeObject *)thing)->data.any; /* of a subclass: it lies elsewhere */
    return info->fixed_bytes + sizeof(PyUnicodeObject) + (data == NULL ? 0 : letters) + other_forms(thing, data);
}

static uint64_t size_type(TypeInfo *info, PyObject *thing)
{
    PyTypeObject *type = (PyTypeObject *)thing;
    uint64_t bytes = info->fixed_bytes;
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
        return bytes + sizeof(PyHeapTypeObject) + (keys == NULL ? 0 : bytes_of_keys(keys));
    }
#if AT_LEAST(13) || !AT_LEAST(11)
    bytes -= sizeof(PyGC_Head); /* a static type has none; 3.11 and 3.12 count it all the same */
#endif
    return bytes + sizeof(PyTypeObject);
}

static uint64_t size_code(TypeInfo *info, PyObject *thing)
{
    PyCodeObject *code = (PyCodeObject *)thing;
    const Py_ssize_t *extra = code->co_extra; /* how many there are, then those */
    uint64_t extra_bytes = extra == NULL ? 0 : sizeof(Py_ssize_t) + (uint64_t)*extra * sizeof(void *);
#if AT_LEAST(11)
    uint64_t fixed = (uint64_t)info->type->tp_basicsize, items = (uint64_t)(Py_SIZE(thing) * info->type->tp_itemsize);
    return info->fixed_bytes - fixed + ((fixed + items + 7) & ~(uint64_t)7) + extra_bytes;
#else
    uint64_t bytes = info->fixed_bytes + extra_bytes;
    if (code->co_cell2arg != NULL && code->co_cellvars != NULL)
        bytes += (uint64_t)PyTuple_GET_SIZE(code->co_cellvars) * sizeof(Py_ssize_t);
    if (code->co_opcache != NULL)
        bytes += (uint64_t)PyBytes_GET_SIZE(code->co_code) / sizeof(_Py_CODEUNIT) + code->co_opcache_size * sizeof(_PyOpcache);
    return bytes;
#endif
}

static uint64_t size_array(TypeInfo *info, PyObject *thing)
{
    Array *array = (Array *)thing;
    uint64_t item = array->description == NULL ? 0 : (uint64_t)array->description->item_bytes;
    return info->fixed_bytes + (uint64_t)array->allocated * item;
}

static uint64_t size_bytes_io(TypeInfo *info, PyObject *thing)
{
    PyObject *buffer = ((BytesIO *)thing)->buffer;
    bool is_own = buffer != NULL && PyBytes_CheckExact(buffer) && Py_REFCNT(buffer) == 1;
    return info->fixed_bytes + (is_own ? (uint64_t)(PyBytes_Type.tp_basicsize + Py_SIZE(buffer)) : 0);
}

/* StringIO has no __sizeof__ of its own: what it has written is beside it, four bytes a letter once it was read or moved in. */
static uint64_t size_string_io(TypeInfo *info, PyObject *thing)
{
    StringIO *file = (StringIO *)thing;
    uint64_t bytes = info->fixed_bytes + (file->buffer == NULL ? 0 : (uint64_t)file->allocated * sizeof(Py_UCS4));
#if AT_LEAST(12)
    PyObject *text = file->writer.buffer; /* after one write what was written, which others may hold */
    if (file->state != STRING_IS_REALIZED && text != NULL && Py_REFCNT(text) == 1)
        bytes += (uint64_t)((char *)file->writer.data - (char *)text) + ((uint64_t)file->writer.size + 1) * file->writer.kind;
#endif
    return bytes;
}

static uint64_t size_buffered(TypeInfo *info, PyObject *thing)
{
    Buffered *buffered = (Buffered *)thing;
    return info->fixed_bytes + (buffered->buffer == NULL ? 0 : (uint64_t)buffered->buffer_size);
}

static uint64_t size_element(TypeInfo *info, PyObject *thing)
{
    ElementExtra *extra = ((Element *)thing)->extra;
    if (extra == NULL)
        return info->fixed_bytes;
    uint64_t children = extra->children == extra->first_children ? 0 : (uint64_t)extra->allocated * sizeof(PyObject *);
    return info->fixed_bytes + sizeof(ElementExtra) + children;
}

static uint64_t size_struct(TypeInfo *info, PyObject *thing)
{
    uint64_t bytes = info->fixed_bytes + sizeof(StructCode);
    for (const StructCode *code = ((Struct *)thing)->codes; code != NULL && code->kind != NULL; code++)
        bytes += sizeof(StructCode);
    return bytes;
}

/* --- which of them: the others that have a __sizeof__ (itertools.product, ctypes' types ...) count as their fixed part --- */

static const struct {
    PyTypeObject *owner; /* of __sizeof__ */
    const char *name;    /* of an owner that is not exported */
    Sizer size;
    bool counts_all;     /* the object itself, whatever the basic size of a subclass is */
} sizers[] = {
    {&PyODict_Type, NULL, size_ordered, false},
    {&PyDict_Type, NULL, size_dict, false},
    {&PyList_Type, NULL, size_list, false},
    {&PySet_Type, NULL, size_set, false},
    {&PyFrozenSet_Type, NULL, size_set, false},
    {&PyByteArray_Type, NULL, size_bytearray, false},
    {&PyLong_Type, NULL, size_int, !AT_LEAST(12)},
    {&PyUnicode_Type, NULL, size_text, true},
    {&PyType_Type, NULL, size_type, true},
    {&PyCode_Type, NULL, size_code, false},
    {NULL, "collections.deque", size_deque, false},
    {NULL, "array.array", size_array, false},
    {NULL, "_io.BytesIO", size_bytes_io, false},
    {NULL, "_io.BufferedReader", size_buffered, false},
    {NULL, "_io.BufferedWriter", size_buffered, false},
    {NULL, "_io.BufferedRandom", size_buffered, false},
    {NULL, "_struct.Struct", size_struct, false},
    {NULL, "xml.etree.ElementTree.Element", size_element, false}};

static uint64_t inline_bytes(PyTypeObject *type)
{
    Entries keys;
    if (!shared_entries(type, &keys) || keys.count == 0)
        return 0;
    /* Values, their header (one byte each, rounded up), and on 3.11 the two words before the object. */
    return keys.count * 8 + (keys.count + 11) / 8 * 8 + (AT_LEAST(12) ? 0 : 16);
}

static uint64_t header_bytes(PyTypeObject *type)
{
#if AT_LEAST(11)
    return _PyType_PreHeaderSize(type);
#else
    return PyType_IS_GC(type) ? sizeof(PyGC_Head) : 0;
#endif
}

Sizer sizer_of(TypeInfo *info)
{
    PyTypeObject *type = info->type;
    uint64_t basic = (uint64_t)type->tp_basicsize;
    PyObject *method = class_value(type, "__sizeof__");
    if (method == NULL || !Py_IS_TYPE(method, &PyMethodDescr_Type)) { /* code of the target, which is not asked: walk.basic_size */
        info->fixed_bytes = basic + (PyType_IS_GC(type) ? sizeof(PyGC_Head) : 0) + inline_bytes(type);
        return size_fixed;
    }
    info->fixed_bytes = header_bytes(type) + inline_bytes(type);
    const PyTypeObject *owner = ((PyMethodDescrObject *)method)->d_common.d_type;
    for (size_t place = 0; owner != NULL && place < Py_ARRAY_LENGTH(sizers); place++) {
        const char *name = sizers[place].name;
        if (name == NULL ? sizers[place].owner == owner : strcmp(owner->tp_name, name) == 0) {
            info->fixed_bytes += sizers[place].counts_all ? 0 : basic;
            return sizers[place].size;
        }
    }
    info->fixed_bytes += basic;
    if (owner == &PyBaseObject_Type && is_c_type(type, "_io.StringIO", sizeof(StringIO)))
        return size_string_io;
    return type->tp_itemsize != 0 ? size_items : size_fixed;
}
