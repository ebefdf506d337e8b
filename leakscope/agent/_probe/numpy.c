/* numpy arrays and mmap: what they hold and how much, read from their structs. The twins are agent/expanders/numpy_arrays.py
 * and mappings.py. No function of the libraries is called: in a forked child one could wait for a lock that nobody will
 * release. */
#include "libraries.h"

/* numpy/_core/include/numpy/ndarraytypes.h (numpy/core/... up to 1.26), PyArrayObject_fields: the same in 1.x and 2.x. */
typedef struct {
    PyObject_HEAD
    char *data;
    int nd;
    Py_ssize_t *dimensions, *strides;
    PyObject *base;
    PyObject *descr;
    int flags;
} Array;

/* The same file, PyArray_Descr. The beginning is common; behind it 1.x has three int, 2.x 64 bits of flags and two sizes. */
typedef struct {
    PyObject_HEAD
    PyTypeObject *typeobj;
    char kind, type, byteorder, former_flags;
    int type_num;
    union {
        struct {
            int elsize, alignment;
            void *subarray;
            PyObject *fields, *names;
        } one;
        struct {
            uint64_t flags;
            Py_ssize_t elsize, alignment;
            PyObject *metadata;
            Py_hash_t hash;
            void *reserved[2], *subarray; /* from here on: _PyArray_LegacyDescr, as all of numpy's own types are */
            PyObject *fields, *names;
        } two;
    };
} Descr;

enum { MOST_DIMENSIONS = 64, LARGEST_ALIGNMENT = 64, NUMBER_OF_OBJECT = 17, NUMBER_OF_VOID = 20 }; /* NPY_MAXDIMS of 2.x; NPY_OBJECT,
    NPY_VOID */

static LibraryClass array_class = {.module = "numpy", .name = "ndarray"}, mapping_class = {.module = "mmap", .name = "mmap"};

static bool is_alignment(Py_ssize_t value)
{
    return value > 0 && value <= LARGEST_ALIGNMENT && (value & (value - 1)) == 0;
}

static bool is_of_numpy_1(const Descr *descr)
{
    return is_alignment(descr->one.alignment) && descr->one.elsize >= 0;
}

/* Bytes of one element; -1 if the descriptor is of neither layout. In the place of the alignment of 1.x, 2.x has the upper half
 * of its flags, which is 0; in the place of that of 2.x, 1.x has a pointer or NULL. So no descriptor fits both. */
static Py_ssize_t element_bytes(const Descr *descr)
{
    if (is_of_numpy_1(descr))
        return descr->one.elsize;
    if (descr->one.alignment == 0 && is_alignment(descr->two.alignment) && descr->two.elsize >= 0)
        return descr->two.elsize;
    return -1;
}

/* The number of elements, and -1 for what is no array as we know it. */
static Py_ssize_t element_count(const Array *array)
{
    Py_ssize_t count = 1;
    if (array->descr == NULL || array->nd < 0 || array->nd > MOST_DIMENSIONS ||
        (array->nd > 0 && (array->dimensions == NULL || array->strides == NULL)))
        return -1;
    for (int axis = 0; axis < array->nd; axis++)
        if (array->dimensions[axis] < 0 || __builtin_mul_overflow(count, array->dimensions[axis], &count))
            return -1;
    return count;
}

/* Elements of an object array in C order whatever its strides are, as the twin's flattened tolist(); of a record array one field of
 * them, under its name.
 */
static void read_elements(const Array *array, Py_ssize_t count, Py_ssize_t offset, Row field)
{
    Py_ssize_t place[MOST_DIMENSIONS] = {0};
    const char *item = array->data + offset;
    for (Py_ssize_t index = 0; index < count; index++) {
        PyObject *element;
        memcpy(&element, item, sizeof element); /* a field of a packed record need not be aligned */
        edge(element, field ? LABEL(EDGE_KEY, field) : LABEL(EDGE_INDEX, index));
        for (int axis = array->nd - 1; axis >= 0; axis--) {
            item += array->strides[axis];
            if (++place[axis] < array->dimensions[axis])
                break;
            item -= array->strides[axis] * place[axis];
            place[axis] = 0;
        }
    }
}

static bool is_of_objects(const Descr *descr)
{
    return descr->type_num == NUMBER_OF_OBJECT && descr->kind == 'O' && element_bytes(descr) == sizeof(PyObject *);
}

static bool has_fields(const Descr *descr)
{
    size_t end = (is_of_numpy_1(descr) ? offsetof(Descr, one.names) : offsetof(Descr, two.names)) + sizeof(PyObject *);
    return Py_TYPE((PyObject *)descr)->tp_basicsize >= (Py_ssize_t)end;
}

/* The fields of a record that hold objects; those of a record inside a record are not looked for. */
static void read_fields(const Array *array, const Descr *descr, Py_ssize_t count)
{
    PyObject *fields = is_of_numpy_1(descr) ? descr->one.fields : descr->two.fields;
    PyObject *names = is_of_numpy_1(descr) ? descr->one.names : descr->two.names;
    Py_ssize_t bytes = element_bytes(descr), next = 0;
    PyObject *name, *field;
    if (fields == NULL || names == NULL || !PyDict_CheckExact(fields) || !PyTuple_CheckExact(names))
        return;
    while (PyDict_Next(fields, &next, &name, &field)) {
        bool is_name = false; /* else it is a title, under which the same field stands once more */
        for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(names); place++)
            is_name = is_name || PyTuple_GET_ITEM(names, place) == name;
        if (!is_name || !PyTuple_CheckExact(field) || PyTuple_GET_SIZE(field) < 2 || !PyLong_CheckExact(PyTuple_GET_ITEM(field, 1)))
            continue;
        Py_ssize_t offset = PyLong_AsSsize_t(PyTuple_GET_ITEM(field, 1)); /* of an exact int: nothing is made */
        if (is_of_objects((const Descr *)PyTuple_GET_ITEM(field, 0)) && offset >= 0 && offset + (Py_ssize_t)sizeof(PyObject *) <= bytes)
            read_elements(array, count, offset, name_key(name));
    }
}

static void read_array(TypeInfo *info, PyObject *thing)
{
    const Array *array = (const Array *)thing;
    if (array->base != NULL) {
        if (array->base != Py_None)
            edge(array->base, LABEL(EDGE_STORAGE, 0));
        return;
    }
    Py_ssize_t count = element_count(array);
    if (count <= 0 || array->data == NULL)
        return;
    const Descr *descr = (const Descr *)array->descr;
    if (is_of_objects(descr))
        read_elements(array, count, 0, 0);
    else if (descr->type_num == NUMBER_OF_VOID && has_fields(descr))
        read_fields(array, descr, count);
}

/* An array of a subclass has attributes; numpy.ndarray itself shows nothing to the collector. */
static void read_subclass(TypeInfo *info, PyObject *thing)
{
    PyObject **found;
    size_t count = referents_of(thing, &found);
    read_instance(info, thing, found, count);
    read_array(info, thing);
}

static uint64_t array_bytes(TypeInfo *info, PyObject *thing)
{
    const Array *array = (const Array *)thing;
    uint64_t bytes = library_basic_bytes(info->type);
    Py_ssize_t count, each;
    if ((array->base != NULL && array->base != Py_None) || (count = element_count(array)) < 0)
        return bytes;
    each = element_bytes((const Descr *)array->descr);
    if (each < 0) {
        walk_note("the elements of a numpy array are laid out in a way that is not known: its bytes are not counted");
        return bytes;
    }
    return bytes + (uint64_t)count * (uint64_t)each;
}

bool take_numpy(TypeInfo *info)
{
    PyTypeObject *array = library_class(&array_class);
    if (array == NULL || !has_base(info->type, array))
        return false;
    if (array->tp_basicsize < (Py_ssize_t)sizeof(Array)) {
        walk_note("numpy could not be asked for what its arrays hold: it is laid out in a way that is not known");
        return false;
    }
    take_instance(info);
    info->read = info->type == array ? read_array : read_subclass;
    info->size = array_bytes;
    return true;
}

/* Modules/mmapmodule.c, mmap_object, 3.10 to 3.14: the beginning of it. */
typedef struct {
    PyObject_HEAD
    char *data;
    Py_ssize_t size;
} Mapping;

static void read_mapping(TypeInfo *info, PyObject *thing)
{
    const Mapping *mapping = (const Mapping *)thing;
    PyObject **found;
    size_t count = referents_of(thing, &found);
    read_instance(info, thing, found, count);
    if (mapping->data != NULL) /* else it is closed */
        edge_to_row(node_of_memory((uint64_t)KIND_MAPPING << 60 | (uintptr_t)thing, KIND_MAPPING, (uint64_t)mapping->size, 0),
                    LABEL(EDGE_STORAGE, 0));
}

bool take_mapping(TypeInfo *info)
{
    PyTypeObject *mapping = library_class(&mapping_class);
    if (mapping == NULL || !has_base(info->type, mapping) || mapping->tp_basicsize < (Py_ssize_t)sizeof(Mapping))
        return false;
    take_instance(info);
    info->read = read_mapping;
    return true;
}
