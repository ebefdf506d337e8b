/* What the readers of libraries share (numpy.c, torch.c). */
#ifndef LEAKSCOPE_LIBRARIES_H
#define LEAKSCOPE_LIBRARIES_H

#include "probe.h"

#include "pycore_gc.h"

/* A class of a library by the name it has in a module. Asked for with every type of the program, so it is kept as long as the
 * module has the same namespace. */
typedef struct {
    const char *module, *name;
    PyObject *space;
    PyTypeObject *type;
} LibraryClass;

/* NULL: the module is not loaded, or is something else of that name, or has no such class. */
static inline PyTypeObject *library_class(LibraryClass *class)
{
    PyObject *space = space_of_module(class->module);
    if (space != class->space) {
        PyObject *found = space == NULL ? NULL : dict_get(space, class->name);
        class->type = found != NULL && PyType_Check(found) ? (PyTypeObject *)found : NULL;
        class->space = class->type == NULL ? NULL : space;
    }
    return space == NULL ? NULL : class->type;
}

/* walk.py, basic_size: the fixed part of an instance and the collector's header. */
static inline uint64_t library_basic_bytes(PyTypeObject *type)
{
    return (uint64_t)type->tp_basicsize + (PyType_HasFeature(type, Py_TPFLAGS_HAVE_GC) ? sizeof(PyGC_Head) : 0);
}

#endif
