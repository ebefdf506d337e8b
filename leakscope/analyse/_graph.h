/* What the C files of the module _graph share. */
#ifndef LEAKSCOPE_GRAPH_H
#define LEAKSCOPE_GRAPH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX /* no node, not visited, no component */

enum { OK, OUT_OF_MEMORY, BAD_EDGES, BAD_NODE };

/* Node i holds target[start[i] .. start[i + 1]). */
typedef struct {
    uint32_t n;
    uint64_t edges;
    const uint64_t *start;
    const uint32_t *target;
} Graph;

static inline void *array(uint64_t count, size_t size) { return malloc(count ? count * size : 1); }

static inline void *zeros(uint64_t count, size_t size) { return calloc(count ? count : 1, size); }

#define COUNT(view, type) ((uint64_t)(view).len / sizeof(type))

/* Fill in `g` from the two buffers of edges; BAD_EDGES if they cannot be those of one graph. */
int graph_from(Graph *g, const Py_buffer *start, const Py_buffer *target);
void release(Py_buffer *views, int count);
int raise_for(int rc); /* sets the exception of a code that is not OK, and returns the code */
PyObject *finished(Py_buffer *views, int count, int rc); /* both, of a method that answers None */

extern PyMethodDef column_methods[];

#endif
