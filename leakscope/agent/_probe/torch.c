/* torch: tensors, their storages and the autograd graph, read from the memory of its C++ objects, as torch.h and cxx.h say.
 * The twin is agent/expanders/torch_tensors.py. */
#include "torch.h"

/* --- nodes and edges ------------------------------------------------------------------------------------------------------ */

enum { HOOKS, POST_HOOKS, GRAD, GRAD_FN, BASE, FORWARD_BASE, NEXT, VARIABLE, SAVED, LABEL_COUNT };

/* What is kept for a type: how its C++ objects are read that have no Python object, and the labels of edges. */
typedef struct {
    TypeInfo native;
    uint32_t labels[LABEL_COUNT];
    bool is_fake; /* a FakeTensor: says that it has memory, and has none */
    size_t node;  /* in an instance of a node's type: the word that points to the Node; 0: not known */
} Kept;

static LibraryClass tensor_base = {.module = "torch._C", .name = "TensorBase"},
                    tensor_class = {.module = "torch", .name = "Tensor"},
                    function_base = {.module = "torch._C", .name = "_FunctionBase"},
                    storage_base = {.module = "torch._C", .name = "StorageBase"};

/* The Python type for the nodes of a class: torch/csrc/autograd/functions/init.cpp and the generated python_functions
 * register them by name. Nodes of classes that have no type of their own are of "CppFunction" there, and of
 * torch._C._FunctionBase here. */
static PyTypeObject *type_of_class(Class *class)
{
    if (class->type == NULL) {
        PyObject *space = space_of_module("torch._C"), *module = space == NULL ? NULL : dict_get(space, "_functions");
        PyObject *found = NULL;
        if (module != NULL && PyModule_Check(module) && class->name[0] != 0)
            found = dict_get(PyModule_GetDict(module), class->name);
        class->type = found != NULL && PyType_Check(found) ? (PyTypeObject *)found : library_class(&function_base);
    }
    return class->type;
}

static void read_tensor(TypeInfo *info, PyObject *thing);
static void read_node(TypeInfo *info, PyObject *thing);

static void edge_to_native(PyTypeObject *type, uint64_t address, uint32_t label)
{
    TypeInfo *info = type_info(type);
    if (info->read == read_tensor || info->read == read_node)
        edge_to_row(node_of_native(&((Kept *)info->own)->native, (void *)(uintptr_t)address), label);
}

/* A C++ object that is held, and its Python object if it has one. */
typedef struct {
    uint64_t address;
    PyObject *object;
    PyTypeObject *type; /* of what has no Python object; NULL: there is nothing */
    uint32_t label;
} Held;

static void emit(const Held *held)
{
    if (held->object != NULL)
        edge(held->object, held->label);
    else if (held->type != NULL)
        edge_to_native(held->type, held->address, held->label);
}

static Held held_tensor(uint64_t tensor, uint32_t label)
{
    uint64_t words[OBJECT_WORDS];
    Held held = {.address = tensor, .label = label};
    if (tensor == at.undefined || copy_object(tensor, TENSOR, words) == OTHER)
        return held;
    uint64_t object = words[at.slot] & SLOT_POINTER;
    if (object == 0)
        held.type = library_class(&tensor_class);
    else if (word_at(object + at.impl * 8) == tensor) /* it points back */
        held.object = (PyObject *)(uintptr_t)object;
    return held;
}

/* True if `object` is the Python object of a node: it points back, from behind its head, or, where the node is written in
 * Python, from somewhere in its part that is made in C. In versions of torch in which the slot does not own, it may be
 * stale. */
static bool points_back(uint64_t object, uint64_t node)
{
    uint64_t words[OBJECT_WORDS];
    PyTypeObject *base = library_class(&function_base);
    size_t count = base == NULL ? 3 : (size_t)base->tp_basicsize / 8;
    if (!copy_words(object, words, OBJECT_WORDS))
        return false;
    for (size_t place = 2; place < count && place < OBJECT_WORDS; place++)
        if (words[place] == node)
            return true;
    return false;
}

static Held held_node(uint64_t node, uint32_t label)
{
    uint64_t words[OBJECT_WORDS];
    Held held = {.address = node, .label = label};
    if (copy_object(node, NODE | ACCUMULATE, words) == OTHER)
        return held;
    uint64_t object = learn_edges(words) ? words[at.node_slot] & SLOT_POINTER : 0;
    if (object != 0 && points_back(object, node))
        held.object = (PyObject *)(uintptr_t)object;
    else
        held.type = type_of_class(class_by_table(words[0]));
    return held;
}

/* --- tensors -------------------------------------------------------------------------------------------------------------- */

enum { MOST_HELD = 4 };

/* c10/core/DeviceType.h; what ROCm builds call "cuda" has that number as well. `code`: of the column `device`, format.py. */
static const struct {
    int8_t type, codes; /* how many of them there are */
    uint8_t code;
} device_types[] = {{1, 127, 1}, {12, 64, 128}, {13, 1, 192}}; /* CUDA, XPU, MPS */

static int code_of_device(const int8_t *device)
{
    for (size_t number = 0; number < sizeof device_types / sizeof device_types[0]; number++)
        if (device[0] == device_types[number].type)
            return device_types[number].code + (device[1] > 0 && device[1] < device_types[number].codes ? device[1] : 0);
    return 0;
}

/* The memory of a StorageImpl. */
static void read_storage(uint64_t storage)
{
    uint64_t words[OBJECT_WORDS], known;
    if (copy_object(storage, STORAGE, words) == OTHER)
        return;
    int place = code_of_device((const int8_t *)words + at.device);
    uint64_t data = words[at.data], bytes = words[at.bytes];
    if (data == 0 || bytes == 0 || bytes >> 62 != 0) /* no memory of its own; a size that is a symbol */
        return;
    uint64_t key = (uint64_t)KIND_STORAGE << 60 | (uint64_t)place << 52 | (data & (((uint64_t)1 << 52) - 1));
    bool is_new = !table_find(&walk.memories, key, &known);
    uint32_t row = node_of_memory(key, KIND_STORAGE, bytes, place);
    if (is_new) {
        columns_open_storages();
        column_add(COLUMN_STORAGE_NODE, row);
        column_add(COLUMN_STORAGE_ADDRESS, data);
    }
    edge_to_row(row, LABEL(EDGE_STORAGE, 0));
}

/* An UntypedStorage, which a program may keep without a tensor. torch/csrc/Storage.h: behind its head, a pointer to the
 * StorageImpl, and whether that is its own. */
static void read_storage_object(TypeInfo *info, PyObject *thing)
{
    PyObject **found;
    size_t count = referents_of(thing, &found);
    read_instance(info, thing, found, count);
    size_t place = is_learned() ? find_pointer((uint64_t *)thing, 2, (size_t)library_class(&storage_base)->tp_basicsize / 8, STORAGE) : 0;
    if (place != 0)
        read_storage(((uint64_t *)thing)[place]);
}

/* Gradient, graph and base of a tensor, from its AutogradMeta. Returns how many there may be. */
static size_t held_by_tensor(const uint64_t *tensor, const uint32_t *labels, Held *held)
{
    uint64_t meta[OBJECT_WORDS];
    size_t count = 0;
    int kind = copy_object(meta_of(tensor), META | VIEW, meta);
    if (kind == OTHER || !learn_grad(meta))
        return 0;
    held[count++] = held_tensor(meta[at.grad], labels[GRAD]);
    held[count++] = held_node(meta[at.grad + 1], labels[GRAD_FN]);
    if (kind != VIEW || !learn_base(meta, meta_of(tensor)))
        return count;
    size_t info_words = at.is_view - at.base + 1; /* two of them, one after the other: one for each mode of differentiating */
    if ((uint8_t)meta[at.is_view] == 1)
        held[count++] = held_tensor(meta[at.base], labels[BASE]);
    if (at.is_view + info_words < OBJECT_WORDS && (uint8_t)meta[at.is_view + info_words] == 1)
        held[count++] = held_tensor(meta[at.base + info_words], labels[FORWARD_BASE]);
    return count;
}

/* In the snapshot, references are those of Python and of C++, so that each edge from here counts for one. */
static void count_references(uint64_t references)
{
    column_patch(COLUMN_REFCOUNT, walk.row, references);
}

static void count_left_out(const uint64_t *words, uint64_t address)
{
    uint64_t count = column_read(COLUMN_REFCOUNT, walk.row), more = references_left_out(words, address);
    if (more != 0 && count + more < IMMORTAL_COUNT)
        count_references(count + more);
}

static void count_native(const uint64_t *words, uint64_t address)
{
    uint32_t count = references_to(words, address);
    if (count != 0)
        count_references(count);
}

/* A tensor that has no Python object: a gradient nobody has looked at, the base of a view. */
static void read_native_tensor(TypeInfo *info, PyObject *thing)
{
    uint64_t tensor[OBJECT_WORDS];
    Held held[MOST_HELD];
    if (copy_object((uintptr_t)thing, TENSOR, tensor) == OTHER)
        return;
    count_native(tensor, (uintptr_t)thing);
    size_t count = held_by_tensor(tensor, ((Kept *)info->own)->labels, held);
    for (size_t index = 0; index < count; index++)
        emit(&held[index]);
    read_storage(tensor[at.storage]);
}

/* Takes out of the referents what has a name here, so that it is emitted once. */
static size_t without(PyObject *held, PyObject **found, size_t count)
{
    for (size_t index = 0; index < count; index++)
        if (found[index] == held) {
            memmove(found + index, found + index + 1, (count - index - 1) * sizeof *found);
            return count - 1;
        }
    return count;
}

static void read_tensor(TypeInfo *info, PyObject *thing)
{
    const Kept *kept = info->own;
    PyObject **found;
    uint64_t tensor[OBJECT_WORDS];
    Held held[MOST_HELD + 2];
    size_t count = referents_of(thing, &found), held_count = 0;
    bool is_known = is_learned() && copy_object(((uint64_t *)thing)[at.impl], TENSOR, tensor) != OTHER;
    if (is_known) {
        count_left_out(tensor, ((uint64_t *)thing)[at.impl]);
        held_count = held_by_tensor(tensor, kept->labels, held);
        /* THPVariable, torch/csrc/autograd/python_variable.h: behind the tensor stand two pointers to hooks. */
        PyObject **hooks = (PyObject **)thing + at.impl + 1;
        held[held_count++] = (Held){.object = hooks[0], .label = kept->labels[HOOKS]};
        held[held_count++] = (Held){.object = hooks[1], .label = kept->labels[POST_HOOKS]};
    }
    for (size_t index = 0; index < held_count; index++)
        count = held[index].object == NULL ? count : without(held[index].object, found, count);
    read_instance(info, thing, found, count);
    for (size_t index = 0; index < held_count; index++)
        emit(&held[index]);
    if (is_known && !kept->is_fake)
        read_storage(tensor[at.storage]);
}

/* --- nodes of the graph --------------------------------------------------------------------------------------------------- */

static void give_saved(void *own, uint64_t address, PyObject *object)
{
    const uint32_t *labels = own;
    Held held = {.object = object, .label = labels[SAVED]};
    if (object == NULL)
        held = kind_at(address) & (NODE | ACCUMULATE) ? held_node(address, labels[SAVED]) : held_tensor(address, labels[SAVED]);
    emit(&held);
}

static void give_hooks(void *own, uint64_t address, PyObject *object)
{
    (void)address;
    emit(&(Held){.object = object, .label = ((uint32_t *)own)[HOOKS]});
}

static void held_by_node(const uint64_t *words, uint64_t node, int kind, uint32_t *labels)
{
    Held held;
    if (learn_edges(words) && words[at.edges + 1] - words[at.edges] <= MOST_EDGE_BYTES)
        for (uint64_t item = words[at.edges]; item < words[at.edges + 1]; item += at.edge_words * 8) {
            held = held_node(word_at(item), labels[NEXT]);
            emit(&held);
        }
    hooks_of_node(words, node, give_hooks, labels);
    if (kind == ACCUMULATE) {
        held = held_tensor(variable_of(node), labels[VARIABLE]);
        emit(&held);
    } else {
        saved_by_node(node, give_saved, labels);
    }
}

static void read_native_node(TypeInfo *info, PyObject *thing)
{
    uint64_t words[OBJECT_WORDS];
    int kind = copy_object((uintptr_t)thing, NODE | ACCUMULATE, words);
    if (kind == OTHER)
        return;
    count_native(words, (uintptr_t)thing);
    held_by_node(words, (uintptr_t)thing, kind, ((Kept *)info->own)->labels);
}

static void read_node(TypeInfo *info, PyObject *thing)
{
    Kept *kept = info->own;
    PyObject **found;
    size_t count = referents_of(thing, &found);
    read_instance(info, thing, found, count);
    if (!is_learned())
        return;
    if (kept->node == 0)
        kept->node = find_pointer((uint64_t *)thing, 2, (size_t)info->type->tp_basicsize / 8, NODE | ACCUMULATE);
    uint64_t words[OBJECT_WORDS], node = kept->node == 0 ? 0 : ((uint64_t *)thing)[kept->node];
    int kind = copy_object(node, NODE | ACCUMULATE, words);
    if (kind == OTHER)
        return;
    count_left_out(words, node);
    held_by_node(words, node, kind, kept->labels);
    PyTypeObject *base = library_class(&function_base);
    if (base != NULL && has_base(info->type, base))
        saved_by_function((uint64_t *)thing, (size_t)base->tp_basicsize / 8, node, give_saved, kept->labels);
}

/* As classes.lookup: what the first class of the MRO keeps under "next_functions" is a getter. */
static bool is_node_type(PyTypeObject *type)
{
    PyObject *bases = type->tp_mro;
    for (Py_ssize_t index = 0; bases != NULL && index < PyTuple_GET_SIZE(bases); index++) {
        PyObject *space = ((PyTypeObject *)PyTuple_GET_ITEM(bases, index))->tp_dict;
        PyObject *found = space == NULL ? NULL : dict_get(space, "next_functions");
        if (found != NULL)
            return Py_TYPE(found) == &PyGetSetDescr_Type;
    }
    return false;
}

static bool is_called(PyTypeObject *type, const char *wanted)
{
    PyObject *module, *qualname;
    const char *module_text, *text;
    names_of(type, &module, &module_text, &qualname, &text);
    return qualname != NULL ? is_text(qualname, wanted) : text != NULL && strcmp(text, wanted) == 0;
}

static uint64_t native_bytes(TypeInfo *info, PyObject *thing)
{
    return library_basic_bytes(info->type); /* as much as the twin sees: the Python object that it makes to look at it */
}

static void keep(TypeInfo *info, Reader read, Reader read_native)
{
    static const char *const names[LABEL_COUNT] = {"_backward_hooks", "_post_accumulate_grad_hooks", "grad", "grad_fn", "_base",
                                                   "forward_base", "next_functions", "variable", "saved"};
    Kept *kept = arena_take(sizeof *kept);
    for (int index = 0; index < LABEL_COUNT; index++) {
        bool is_attribute = index == GRAD || index == GRAD_FN || index == VARIABLE;
        kept->labels[index] = LABEL(is_attribute ? EDGE_ATTRIBUTE : EDGE_INTERNAL, name_own(names[index]));
    }
    kept->is_fake = is_called(info->type, "FakeTensor");
    info->read = read;
    info->own = kept;
    kept->native = *info;
    kept->native.read = read_native;
    kept->native.size = native_bytes;
    kept->native.length = kept->native.state = NULL;
    kept->native.label = NULL;
}

bool take_torch(TypeInfo *info)
{
    if (library_class(&tensor_base) == NULL)
        return false;
    cxx_open();
    if (has_base(info->type, library_class(&tensor_base))) {
        take_instance(info);
        keep(info, read_tensor, read_native_tensor);
        if (!is_learned())
            walk_note("what tensors hold beyond Python objects is not shown: where torch keeps it was not learned here");
        return true;
    }
    if (library_class(&storage_base) != NULL && has_base(info->type, library_class(&storage_base))) {
        take_instance(info);
        info->read = read_storage_object;
        return true;
    }
    if (!is_node_type(info->type))
        return false;
    take_instance(info);
    keep(info, read_node, read_native_node);
    return true;
}
