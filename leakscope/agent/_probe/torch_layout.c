/* Where torch keeps things: see torch.h. */
#include "torch.h"

#include "pycore_interp.h"

TorchLayout at;

enum { NODE_WORDS = 160 }; /* of an AccumulateGrad that are searched for its leaf */

/* One of the words of an object that points to an object of the kinds wanted; 0: none. */
size_t find_pointer(const uint64_t *words, size_t from, size_t to, int wanted)
{
    for (size_t place = from; place < to; place++)
        if (words[place] != 0 && words[place] % 8 == 0 && (kind_at(words[place]) & wanted) != 0)
            return place;
    return 0;
}

/* Where the AutogradMeta hangs at a TensorImpl, and in it the gradient, which is always there, be it undefined. */
uint64_t meta_of(const uint64_t *tensor)
{
    if (at.meta == 0) {
        at.meta = find_pointer(tensor, at.storage + 1, at.storage + 4, META | VIEW);
        if (at.meta == 0)
            return 0;
    }
    return tensor[at.meta];
}

bool learn_grad(const uint64_t *meta)
{
    if (at.grad == 0)
        at.grad = find_pointer(meta, 1, 16, TENSOR | UNDEFINED);
    if (at.undefined == 0 && at.grad != 0 && kind_at(meta[at.grad]) == UNDEFINED)
        at.undefined = meta[at.grad];
    return at.grad != 0;
}

/* The same where no plain tensor was a view when torch was asked (learn_views below). A DifferentiableViewMeta ends in two
 * optional ViewInfos and the byte that says whether the first is meant for both; in most views it is, and there is no second.
 * Only the first has room for another behind it. A ViewInfo is the base and a std::function, at the least. */
bool learn_base(const uint64_t *meta, uint64_t address)
{
    size_t count = at.base != 0 ? 0 : words_of_block(address);
    count = count < OBJECT_WORDS ? count : OBJECT_WORDS;
    for (size_t base = at.grad + 4; at.base == 0 && base < count; base++) {
        if (!meta[base] || kind_at(meta[base]) != TENSOR)
            continue;
        for (size_t flag = base + 5; at.base == 0 && 2 * flag - base + 2 < count; flag++) {
            size_t end = 2 * flag - base + 2;
            if ((uint8_t)meta[flag] == 1 && (uint8_t)meta[end - 1] == 0 && (uint8_t)meta[end] == 1) {
                at.is_view = flag;
                at.base = base;
            }
        }
    }
    return at.base != 0;
}

/* The edges of a Node: a vector whose items begin with pointers to Nodes, or with NULL. An Edge is such a pointer and a
 * number, and in earlier versions a count's address between them. */
static bool is_edges(const uint64_t *vector, size_t edge_words)
{
    size_t bytes = vector[1] - vector[0], nodes = 0;
    if (vector[0] == 0 || vector[1] <= vector[0] || vector[2] < vector[1] || bytes % (edge_words * 8) != 0 ||
        bytes > MOST_EDGE_BYTES)
        return false;
    for (uint64_t item = vector[0]; item < vector[1]; item += edge_words * 8) {
        uint64_t node = word_at(item);
        if (node != 0 && (kind_at(node) & (NODE | ACCUMULATE)) == 0)
            return false;
        nodes += node != 0;
    }
    return nodes > 0;
}

bool learn_edges(const uint64_t *node)
{
    for (size_t place = 2; at.edges == 0 && place + 4 < OBJECT_WORDS; place++)
        for (size_t edge_words = 2; edge_words <= 3; edge_words++)
            if (is_edges(node + place, edge_words)) {
                at.edges = place;
                at.edge_words = edge_words;
                at.node_slot = place + 3;
                return true;
            }
    return at.edges != 0;
}

/* The leaf that an AccumulateGrad works for: the tensor whose AutogradMeta names this node behind its grad_fn. */
uint64_t variable_of(uint64_t node)
{
    uint64_t words[NODE_WORDS], tensor[OBJECT_WORDS], meta[OBJECT_WORDS];
    if (!copy_words(node, words, at.variable != 0 ? at.variable + 1 : NODE_WORDS))
        return 0;
    if (at.variable != 0)
        return words[at.variable];
    for (size_t place = 2; place < NODE_WORDS; place++)
        if (words[place] != 0 && words[place] % 8 == 0 && copy_object(words[place], TENSOR, tensor) == TENSOR &&
            copy_object(meta_of(tensor), META | VIEW, meta) != OTHER && learn_grad(meta) &&
            (meta[at.grad + 2] == node || meta[at.grad + 3] == node)) {
            at.variable = place;
            return words[place];
        }
    return 0;
}

/* --- learning where the storages are -------------------------------------------------------------------------------------- */

static LibraryClass tensor_class = {.module = "torch", .name = "Tensor"},
                    parameter_class = {.module = "torch.nn.parameter", .name = "Parameter"};

/* What torch itself says of a tensor: torch_layout.py asks. */
typedef struct {
    PyObject *object;
    uint64_t tensor, storage, data; /* addresses of TensorImpl, StorageImpl, memory */
    uint64_t least_bytes;           /* that the storage must have for what the tensor shows of it */
    uint8_t device[2];              /* type and ordinal as in c10/core/Device.h */
    int is_view;
    uint64_t tensor_words[OBJECT_WORDS], storage_words[OBJECT_WORDS];
} Sample;

enum { MOST_SAMPLES = 256, HEAD_WORDS = 2, STORAGE_WORDS = 20, TENSOR_WORDS = 16 };

static uint64_t *words_of_object(Sample *sample) { return (uint64_t *)sample->object; }
static uint64_t *words_of_tensor(Sample *sample) { return sample->tensor_words; }
static uint64_t *words_of_storage(Sample *sample) { return sample->storage_words; }

/* The first word of all samples that gives what `wanted` (the offset of a field of Sample) says; 0: there is none. */
static size_t find_word(Sample *samples, size_t count, uint64_t *(*words_of)(Sample *), size_t to, size_t wanted, uint64_t mask)
{
    for (size_t place = 1; place < to; place++) {
        size_t right = 0;
        while (right < count &&
               (words_of(&samples[right])[place] & mask) == *(uint64_t *)((char *)&samples[right] + wanted))
            right++;
        if (right == count)
            return place;
    }
    return 0;
}

/* The two bytes of the device: in c10::DataPtr behind the pointers to the memory, its context and its deleter. Looked for
 * there first. */
static size_t find_device(const Sample *samples, size_t count, size_t data)
{
    const size_t places[] = {data + 3, data + 1, data + 2, data + 4, data + 5};
    for (size_t place = 0; place < sizeof places / sizeof places[0]; place++) {
        size_t right = 0;
        while (right < count && memcmp(&samples[right].storage_words[places[place]], samples[right].device, 2) == 0)
            right++;
        if (right == count)
            return places[place] * 8;
    }
    return 0;
}

/* Whether a sample shows all of its storage and is the first of the list to do so; without `bytes`: is the first of it. */
static bool is_first_of_storage(const Sample *samples, size_t index, size_t bytes)
{
    for (size_t before = 0; before < index; before++)
        if (samples[before].storage == samples[index].storage &&
            (bytes == 0 || samples[before].storage_words[bytes] == samples[before].least_bytes))
            return false;
    return bytes == 0 || samples[index].storage_words[bytes] == samples[index].least_bytes;
}

/* The size of the storage: never less than what a tensor shows of it, and just that for half of the storages. Where tensors
 * show parts of one or two storages only (rows of a table), none may show a whole one: then it is what c10/core/StorageImpl.h
 * has had behind the pointer to the memory since 1.0, if it can be a size; an address of today is larger. */
static size_t find_bytes(const Sample *samples, size_t count, size_t from)
{
    size_t storages = 0, few_storages = 2, most_bytes_bits = 44;
    for (size_t index = 0; index < count; index++)
        storages += is_first_of_storage(samples, index, 0);
    for (size_t place = from; place < from + 4; place++) {
        size_t enough = 0, equal = 0, sizes = 0;
        for (size_t index = 0; index < count; index++) {
            uint64_t bytes = samples[index].storage_words[place];
            enough += bytes >= samples[index].least_bytes && bytes >> 62 == 0;
            sizes += bytes >> most_bytes_bits == 0;
            equal += is_first_of_storage(samples, index, place);
        }
        if (enough == count && (equal * 2 >= storages || (place == from && sizes == count && storages <= few_storages)))
            return place;
    }
    return 0;
}

/* In the AutogradMeta of a view: the base, and behind it the byte that says whether there is one. torch says which tensors
 * are views: what is detached has such a thing as well, with another base further behind. */
static void learn_views(Sample *samples, size_t count)
{
    uint64_t meta[OBJECT_WORDS];
    for (size_t index = 0; index < count && at.base == 0; index++) {
        if (!samples[index].is_view || copy_object(meta_of(samples[index].tensor_words), VIEW, meta) == OTHER ||
            !learn_grad(meta))
            continue;
        size_t base = find_pointer(meta, at.grad + 4, OBJECT_WORDS - 12, TENSOR);
        for (size_t place = base + 1; base != 0 && place < base + 12; place++)
            if ((uint8_t)meta[place] == 1 && at.base == 0) {
                at.is_view = place;
                at.base = base;
            }
    }
}

static const char *learn_storages(Sample *samples, size_t count)
{
    for (size_t index = 0; index < count; index++)
        if (copy_object(samples[index].tensor, TENSOR, samples[index].tensor_words) == OTHER ||
            copy_object(samples[index].storage, STORAGE, samples[index].storage_words) == OTHER)
            return "its objects do not say of what class they are";
    size_t object_words = (size_t)Py_TYPE(samples[0].object)->tp_basicsize / 8;
    size_t impl = find_word(samples, count, words_of_object, object_words - HEAD_WORDS, offsetof(Sample, tensor), ~(uint64_t)0);
    if (impl == 0)
        return "its tensors are not where they were looked for";
    size_t slot = find_word(samples, count, words_of_tensor, TENSOR_WORDS, offsetof(Sample, object), SLOT_POINTER);
    size_t storage = find_word(samples, count, words_of_tensor, TENSOR_WORDS, offsetof(Sample, storage), ~(uint64_t)0);
    size_t data = find_word(samples, count, words_of_storage, STORAGE_WORDS, offsetof(Sample, data), ~(uint64_t)0);
    size_t device = data == 0 ? 0 : find_device(samples, count, data);
    size_t bytes = device == 0 ? 0 : find_bytes(samples, count, device / 8 + 1);
    if (slot == 0 || storage == 0 || bytes == 0)
        return "its storages are not where they were looked for";
    at.impl = impl;
    at.slot = slot;
    at.storage = storage;
    at.data = data;
    at.device = device;
    at.bytes = bytes;
    return NULL;
}

static PyObject *torch_learn(PyObject *self, PyObject *list)
{
    static Sample samples[MOST_SAMPLES];
    const char *reason = NULL;
    size_t count = 0;
    if (!PyList_Check(list))
        return PyErr_Format(PyExc_TypeError, "a list of samples is wanted");
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(list) && count < MOST_SAMPLES; index++, count++) {
        Sample *sample = &samples[count];
        memset(sample, 0, sizeof *sample);
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, index), "OKKKKBBp", &sample->object, &sample->tensor, &sample->storage,
                              &sample->data, &sample->least_bytes, &sample->device[0], &sample->device[1], &sample->is_view))
            return NULL;
    }
    uint64_t probe = 0;
    cxx_parent();
    cxx_open();
    if (!copy_memory((uintptr_t)&samples, &probe, sizeof probe))
        reason = "this system does not let a process read its own memory by process_vm_readv";
    else if (!is_learned())
        reason = count == 0 ? "there was no plain tensor to learn from" : learn_storages(samples, count);
    if (reason == NULL && at.base == 0)
        learn_views(samples, count);
    memset(samples, 0, sizeof samples[0] * count);
    return reason == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(reason);
}

/* Adds plain tensors of one of the collector's lists, which is `backwards` with the youngest first. Returns how many objects
 * it saw. */
static size_t find_tensors(PyGC_Head *list, bool backwards, size_t most_looks, PyObject *found, Py_ssize_t most)
{
    PyTypeObject *tensor = library_class(&tensor_class), *parameter = library_class(&parameter_class);
    PyGC_Head *head = list;
    size_t looks = 0;
    for (; looks < most_looks && PyList_GET_SIZE(found) < most; looks++) {
        head = (PyGC_Head *)((backwards ? head->_gc_prev : head->_gc_next) & ~(uintptr_t)3);
        if (head == NULL || head == list)
            break;
        PyObject *thing = (PyObject *)(head + 1);
        if ((Py_TYPE(thing) == tensor || Py_TYPE(thing) == parameter) && PyList_Append(found, thing) < 0)
            break;
    }
    return looks;
}

/* torch_samples(most, most_looks): a list of plain tensors that the collector knows, found by looking at so many objects at
 * most. */
static PyObject *torch_samples(PyObject *self, PyObject *args)
{
    struct _gc_runtime_state *collector = &PyInterpreterState_Get()->gc;
#if AT_LEAST(14)
    PyGC_Head *lists[] = {&collector->young.head, &collector->old[0].head, &collector->old[1].head,
#else
    PyGC_Head *lists[] = {&collector->generations[0].head, &collector->generations[1].head, &collector->generations[2].head,
#endif
                          &collector->permanent_generation.head};
    Py_ssize_t most;
    Py_ssize_t most_looks;
    if (!PyArg_ParseTuple(args, "nn", &most, &most_looks))
        return NULL;
    PyObject *found = PyList_New(0);
    if (found == NULL || library_class(&tensor_class) == NULL)
        return found;
    size_t left = (size_t)most_looks;
    /* The young ones first, then what has been there from the start. */
    for (size_t list = 0; list < sizeof lists / sizeof lists[0]; list++)
        left -= find_tensors(lists[list], true, left / 2, found, most);
    for (size_t list = 2; list < sizeof lists / sizeof lists[0] && PyList_GET_SIZE(found) == 0; list++)
        left -= find_tensors(lists[list], false, left / 2, found, most);
    if (PyErr_Occurred())
        Py_CLEAR(found);
    return found;
}

PyMethodDef torch_methods[] = {
    {"torch_samples", torch_samples, METH_VARARGS, "torch_samples(most, most_looks): plain tensors that the collector lists."},
    {"torch_learn", torch_learn, METH_O, "torch_learn(samples): learn where torch keeps things; None, or why that failed."},
    {NULL, NULL, 0, NULL},
};
