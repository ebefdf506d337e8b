/* collections.deque, Modules/_collectionsmodule.c: the same from 3.10 on, as far as it is needed here. */
#ifndef LEAKSCOPE_DEQUE_H
#define LEAKSCOPE_DEQUE_H

#include "probe.h"

#define DEQUE_BLOCK_ITEMS 64

typedef struct DequeBlock {
    struct DequeBlock *left;
    PyObject *items[DEQUE_BLOCK_ITEMS];
    struct DequeBlock *right;
} DequeBlock;

typedef struct {
    PyObject_VAR_HEAD
    DequeBlock *leftblock, *rightblock;
    Py_ssize_t leftindex, rightindex;
    size_t state;
    Py_ssize_t maxlen; /* -1: none */
} Deque;

PyTypeObject *deque_type(void); /* containers.c; NULL: it is not loaded, or something else is in its place */

#endif
