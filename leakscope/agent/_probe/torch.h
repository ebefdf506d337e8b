/* Where torch keeps things: what torch_layout.c finds out and torch.c uses.
 *
 * torch promises no layout. Where its storages are is learned, once a process, in the parent: torch_layout.py asks plain
 * tensors of the target for addresses and sizes, and here is searched where those stand. Where the pointers of the autograd graph stand is
 * told by what they point to (cxx.h), when the first of each is met.
 *
 * Names and order of the fields: c10/core/TensorImpl.h, c10/core/StorageImpl.h, torch/csrc/autograd/{variable,node}.h. */
#ifndef LEAKSCOPE_TORCH_H
#define LEAKSCOPE_TORCH_H

#include "cxx.h"
#include "libraries.h"

#define SLOT_POINTER (~(uint64_t)7) /* in earlier versions the lowest bit of the slot of a tensor says who owns whom */
#define MOST_EDGE_BYTES (1 << 20)

/* In words, but for the device. 0: not known yet. */
typedef struct {
    size_t impl;                                 /* of the Python object: TensorImpl */
    size_t storage, slot, meta;                  /* of a TensorImpl: StorageImpl, Python object, AutogradMeta */
    size_t data, device, bytes;                  /* of a StorageImpl; device: two bytes, type and ordinal */
    size_t grad;                                 /* of an AutogradMeta: TensorImpl; behind it comes grad_fn, a Node */
    size_t base, is_view;                        /* of that of a view: TensorImpl; the byte that says whether it is set */
    size_t edges, edge_words, node_slot;         /* of a Node: three pointers of a vector; words of an Edge; Python object */
    size_t variable;                             /* of an AccumulateGrad: TensorImpl */
    uint64_t undefined;                          /* address of the tensor that stands for none: most gradients */
} TorchLayout;
extern TorchLayout at;

static inline bool is_learned(void)
{
    return at.bytes != 0;
}

size_t find_pointer(const uint64_t *words, size_t from, size_t to, int wanted); /* the first to one of those; 0 */
uint64_t meta_of(const uint64_t *tensor);     /* address of the AutogradMeta of a TensorImpl */
bool learn_grad(const uint64_t *meta);        /* true: at.grad is known; the same for the edges of a node */
bool learn_edges(const uint64_t *node);
bool learn_base(const uint64_t *meta, uint64_t address); /* of the AutogradMeta of a view */
uint64_t variable_of(uint64_t node);          /* the TensorImpl of the leaf that an AccumulateGrad works for */

size_t words_of_block(uint64_t address);      /* of what malloc gave, torch_saved.c; 0: not known */

/* torch_saved.c. Called for each reference of what is saved: to a TensorImpl or a Node, or to an object of Python. */
typedef void (*GiveSaved)(void *own, uint64_t address, PyObject *object);
void saved_by_node(uint64_t node, GiveSaved give_one, void *own);
void hooks_of_node(const uint64_t *words, uint64_t node, GiveSaved give_one, void *own); /* dicts of functions that it calls */
void saved_by_function(const uint64_t *object, size_t count, uint64_t node, GiveSaved give_one, void *own);
uint32_t references_to(const uint64_t *words, uint64_t address);
uint32_t references_left_out(const uint64_t *words, uint64_t address);

#endif
