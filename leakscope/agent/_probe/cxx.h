/* Reading the C++ objects of torch where no function of torch may be called.
 *
 * All is read through process_vm_readv: a guess that is wrong, or an object that a thread of C++ frees meanwhile, costs an
 * edge and never a fault. In a forked child, where nothing changes any more, it is asked once a page (a call takes 0.7 us).
 * And no pointer is followed unless the thing behind it bears the right name: every one of those C++ classes has virtual
 * functions, so an object of it begins with the address of its table, and the entry before the table leads to the name of the
 * class (Itanium C++ ABI, 2.9.5). */
#ifndef LEAKSCOPE_CXX_H
#define LEAKSCOPE_CXX_H

#include "probe.h"

#define OBJECT_WORDS 48 /* that are copied of an object */

void cxx_parent(void); /* this process is the one that is walked or forked; before every walk */
void cxx_open(void);   /* a walk begins here, in that process or in its child */
bool copy_memory(uint64_t address, void *into, size_t bytes);
bool copy_words(uint64_t address, uint64_t *words, size_t count); /* what is beyond the end of what is mapped is 0 */
uint64_t word_at(uint64_t address);                               /* 0: not there */

/* What a class is, or derives from: c10::TensorImpl, UndefinedTensorImpl, StorageImpl; torch::autograd::AutogradMeta,
 * DifferentiableViewMeta, Node, AccumulateGrad, PySavedVariableHooks, PyFunction...Hook. */
enum { OTHER = 0, TENSOR = 1, UNDEFINED = 2, STORAGE = 4, META = 8, VIEW = 16, NODE = 32, ACCUMULATE = 64, SAVED_HOOKS = 128,
       HOOK = 256 };

typedef struct {
    uint64_t table;     /* address of the virtual functions; 0: an empty place */
    PyTypeObject *type; /* of Python objects for nodes of this class; found when it is asked for */
    uint16_t kind;
    char name[46];      /* without namespaces */
} Class;

Class *class_by_table(uint64_t table); /* by the first word of an object; if OTHER, until the next call */
int kind_at(uint64_t address);         /* of the object that is there */
int copy_object(uint64_t address, int wanted, uint64_t *words); /* OBJECT_WORDS of it; its kind, OTHER: none of those wanted */

#endif
