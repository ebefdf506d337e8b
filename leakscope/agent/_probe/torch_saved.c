/* What the nodes of torch's graph have saved for the backward pass, and how often C++ refers to what has a Python object.
 *
 * The getters `_saved_*` may not be called: they run hooks of the program. So an object's memory is searched for
 * SavedVariables (torch/csrc/autograd/saved_variable.h), which stand in a node behind what all nodes have, or in a vector that
 * the node or its Python object has. A counted pointer (intrusive_ptr, unique_ptr) is always one of its members: a
 * word that only happens to be the address of a tensor is none, for the flags of a SavedVariable must say of it what its
 * constructor makes them say. How much memory a node has is what malloc wrote before it and behind it; where another
 * allocator than that of glibc made it, or the two do not fit, nothing is looked for. */
#include "torch.h"

enum { MOST_NODE_WORDS = 512, MOST_STEPS = 20000, MOST_VECTOR_BYTES = 1 << 20, MOST_HOOK_BYTES = 8 << 10 };

/* Members, in words; pairs are shared_ptr. In versions of torch in which a node counts its own references, a pointer to
 * it is one word. The five flags are bytes, in this order: was_default_constructed_, is_inplace_on_view_,
 * saved_original_, is_leaf_, is_output_. */
typedef struct {
    size_t forward, flags, hooks, grad_fn, accumulator, requires_grad, words;
} SavedLayout;
static const SavedLayout counting = {1, 5, 6, 7, 8, 9, 10}, shared = {1, 6, 7, 8, 10, 12, 13};

enum { MOST_SAVED_WORDS = 13 };

/* A shared_ptr's object knows itself: std::enable_shared_from_this comes first in the Node of earlier versions. */
static bool is_shared(const uint64_t *node, uint64_t address)
{
    return node[1] == address;
}

/* --- counts --------------------------------------------------------------------------------------------------------------- */

#define MOST_REFERENCES (1u << 24)
#define HAS_OBJECT ((uint64_t)1 << 63) /* c10/util/intrusive_ptr.h, kHasPyObject */

/* How many references from C++ there are to a TensorImpl or a Node; 0: not known. */
uint32_t references_to(const uint64_t *words, uint64_t address)
{
    /* the control block of a shared_ptr: a table, then two counts of 32 bits */
    uint32_t count = (uint32_t)(is_shared(words, address) ? word_at(words[2] + 8) : words[1]);
    return count < MOST_REFERENCES ? count : 0;
}

/* How many references to it the count of its Python object leaves out, which itself has one of those from C++. Where the bit
 * is, all the others together have one to the Python object; in earlier versions they have none, or, where the Python object
 * is kept by the C++ one, it has one in their place. */
uint32_t references_left_out(const uint64_t *words, uint64_t address)
{
    uint32_t count = references_to(words, address), shown = !is_shared(words, address) && words[1] & HAS_OBJECT ? 2 : 1;
    return count > shown ? count - shown : 0;
}

/* --- where to look -------------------------------------------------------------------------------------------------------- */

static size_t steps; /* in this walk or an earlier one, to find what has no end */

/* Where the members of derived classes begin: AccumulateGrad has nothing but its leaf there. Every graph ends in some. */
static bool learn_node_size(uint64_t node)
{
    uint64_t words[OBJECT_WORDS], next;
    while (at.variable == 0 && node != 0 && steps++ < MOST_STEPS) {
        int kind = copy_object(node, NODE | ACCUMULATE, words);
        if (kind == ACCUMULATE)
            return variable_of(node) != 0;
        if (kind == OTHER || !learn_edges(words) || words[at.edges + 1] - words[at.edges] > MOST_EDGE_BYTES)
            return false;
        next = 0;
        for (uint64_t item = words[at.edges]; next == 0 && item < words[at.edges + 1]; item += at.edge_words * 8)
            next = word_at(item);
        node = next;
    }
    return at.variable != 0;
}

/* The words of a block of glibc's malloc that begins at `address`: its size stands before it, with three flags, and the next
 * block says that this one is in use (malloc/malloc.c, struct malloc_chunk). 0: it is none. */
size_t words_of_block(uint64_t address)
{
    enum { IN_USE_BEFORE = 1, MAPPED = 2, FLAGS = 7, LEAST = 32 };
    uint64_t size = word_at(address - 8), next;
    if (address % 16 != 0 || size & MAPPED || (size & ~(uint64_t)FLAGS) % 16 != 0)
        return 0;
    size &= ~(uint64_t)FLAGS;
    if (size < LEAST || size > MOST_NODE_WORDS * 8)
        return 0;
    next = word_at(address + size - 8);
    return next & IN_USE_BEFORE && (next & ~(uint64_t)FLAGS) % 16 == 0 && next >= LEAST ? size / 8 - 1 : 0;
}

/* --- SavedVariables ------------------------------------------------------------------------------------------------------- */

static bool is_pointer(uint64_t word)
{
    return word % 8 == 0 && word >> 47 == 0 && (word == 0 || word >> 16 != 0);
}

/* What hangs in its hooks, written in Python, if it is that: see PySavedVariableHooks. */
static bool are_hooks(uint64_t address, uint64_t *words)
{
    return copy_object(address, SAVED_HOOKS, words) != OTHER;
}

enum { NO_SAVED, EMPTY, SAVED_TENSOR, SAVED_BY_HOOKS };

/* What could stand here: a SavedVariable, and what it has saved. */
static int saved_at(const uint64_t *words, const SavedLayout *layout)
{
    uint64_t flags = words[layout->flags];
    uint8_t made = flags & 0xFF, original = flags >> 16 & 0xFF, leaf = flags >> 24 & 0xFF, output = flags >> 32 & 0xFF;
    uint64_t hooks = words[layout->hooks], hook_words[OBJECT_WORDS];
    if ((flags & 0xFEFEFEFEFEu) != 0 || (words[layout->requires_grad] & 0xFE) != 0 || words[0] == 0 || !is_pointer(words[0]))
        return NO_SAVED;
    for (size_t place = 1; place < layout->forward + 3; place++)
        if (!is_pointer(words[place]))
            return NO_SAVED;
    if ((words[layout->forward] == 0) != (words[layout->forward + 1] == 0) || !is_pointer(words[layout->grad_fn]) ||
        !is_pointer(words[layout->accumulator]))
        return NO_SAVED;
    int kind = kind_at(words[0]);
    if (kind == TENSOR) /* the tensor itself, if that makes no cycle; without hooks, and so without what only they need */
        return !made && original != (output && !leaf) && hooks == 0 && words[layout->grad_fn] == 0 &&
               words[layout->accumulator] == 0 ? SAVED_TENSOR : NO_SAVED;
    if (kind != UNDEFINED)
        return NO_SAVED;
    if (hooks == 0)
        return EMPTY;
    return !made && are_hooks(hooks, hook_words) ? SAVED_BY_HOOKS : NO_SAVED;
}

/* An object of Python, as far as can be seen: its type's type is a type. */
static PyObject *object_at(uint64_t address)
{
    uint64_t type = address % 8 == 0 ? word_at(address + 8) : 0, meta = type == 0 ? 0 : word_at(type + 8);
    return meta != 0 && word_at(meta + 8) == (uintptr_t)&PyType_Type ? (PyObject *)(uintptr_t)address : NULL;
}

static void give(const uint64_t *words, const SavedLayout *layout, GiveSaved give_one, void *own)
{
    uint64_t hooks[OBJECT_WORDS];
    if (!are_hooks(words[layout->hooks], hooks)) {
        give_one(own, words[0], NULL);
        return;
    }
    /* Its table, the hook that packs, which was let go when it had packed, the hook that unpacks, and what was packed. */
    for (size_t place = 2; place < 4; place++)
        if (hooks[place] != 0)
            give_one(own, 0, object_at(hooks[place]));
    for (size_t place = 0; place < 2; place++)
        give_one(own, words[place == 0 ? layout->grad_fn : layout->accumulator], NULL);
}

/* A vector, all items of which are SavedVariables. */
static void give_vector(const uint64_t *vector, const SavedLayout *layout, GiveSaved give_one, void *own)
{
    uint64_t bytes = vector[1] - vector[0], item_bytes = layout->words * 8, words[MOST_SAVED_WORDS];
    if (vector[0] == 0 || vector[1] <= vector[0] || vector[2] < vector[1] || !is_pointer(vector[0]) ||
        bytes > MOST_VECTOR_BYTES || bytes % item_bytes != 0 || (vector[2] - vector[0]) % item_bytes != 0)
        return;
    for (uint64_t item = vector[0]; item < vector[1]; item += item_bytes)
        if (!copy_memory(item, words, item_bytes) || saved_at(words, layout) == NO_SAVED)
            return;
    for (uint64_t item = vector[0]; item < vector[1]; item += item_bytes)
        if (copy_memory(item, words, item_bytes) && saved_at(words, layout) > EMPTY)
            give(words, layout, give_one, own);
}

static void search(const uint64_t *words, size_t from, size_t count, const SavedLayout *layout, GiveSaved give_one, void *own)
{
    for (size_t place = from; place + 3 <= count; place++) {
        int found = place + layout->words <= count ? saved_at(words + place, layout) : NO_SAVED;
        if (found > EMPTY)
            give(words + place, layout, give_one, own);
        if (found != NO_SAVED)
            place += layout->words - 1;
        else
            give_vector(words + place, layout, give_one, own);
    }
}

void saved_by_node(uint64_t node, GiveSaved give_one, void *own)
{
    uint64_t words[MOST_NODE_WORDS];
    size_t count = learn_node_size(node) ? words_of_block(node) : 0;
    if (count > at.variable && copy_memory(node, words, count * 8))
        search(words, at.variable, count, is_shared(words, node) ? &shared : &counting, give_one, own);
}

/* torch/csrc/autograd/python_hook.h: a table, then the dict of the hooks. They hang in vectors of unique_ptr that every node has. */
void hooks_of_node(const uint64_t *words, uint64_t node, GiveSaved give_one, void *own)
{
    size_t count = learn_node_size(node) ? at.variable : 0;
    for (size_t place = 1; place + 3 <= count && place + 3 <= OBJECT_WORDS; place++) {
        uint64_t first = words[place], end = words[place + 1], room = words[place + 2];
        if (first == 0 || !is_pointer(first) || end <= first || room < end || (end - first) % 8 != 0 || end - first > MOST_HOOK_BYTES)
            continue;
        for (uint64_t item = first; item < end && kind_at(word_at(item)) == HOOK; item += 8)
            give_one(own, 0, object_at(word_at(word_at(item) + 8)));
    }
}

/* torch/csrc/autograd/python_function.h: THPFunction has a vector of them. */
void saved_by_function(const uint64_t *object, size_t count, uint64_t node, GiveSaved give_one, void *own)
{
    uint64_t words[OBJECT_WORDS];
    if (copy_object(node, NODE, words) != OTHER)
        for (size_t place = 2; place + 3 <= count; place++)
            give_vector(object + place, is_shared(words, node) ? &shared : &counting, give_one, own);
}
