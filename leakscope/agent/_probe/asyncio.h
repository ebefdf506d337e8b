/* The beginnings of asyncio's futures and tasks, Modules/_asynciomodule.c (FutureObj, TaskObj): for layouts.c and threads.c. */
#ifndef LEAKSCOPE_ASYNCIO_H
#define LEAKSCOPE_ASYNCIO_H

#include "probe.h"

typedef struct {
    PyObject_HEAD
    PyObject *loop, *callback, *context, *callbacks, *exception, *exception_traceback, *result, *source_traceback, *cancel_message;
#if AT_LEAST(14)
    PyObject *cancelled, *awaited_by;
    int state; /* 0: pending */
    char is_task, awaited_by_is_set;
    unsigned log_traceback : 1, blocking : 1;
#elif AT_LEAST(13)
    PyObject *cancelled;
    int state;
    unsigned log_traceback : 1, blocking : 1;
#else
    int state, log_traceback, blocking;
    PyObject *dict, *weak;
#if AT_LEAST(11)
    PyObject *cancelled;
#else
    _PyErr_StackItem cancelled;
#endif
#endif
} Future;

typedef struct {
    Future future;
#if AT_LEAST(13)
    unsigned must_cancel : 1, log_destroy_pending : 1;
    int cancels_requested;
#endif
    PyObject *waiter, *coroutine, *name, *context;
} Task;

#endif
