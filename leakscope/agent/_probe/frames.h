/* The frames that run in a thread, as the interpreter keeps them: for the walk (frames.c) and, whenever it takes a sample, for the
 * sampler (stack.c). Nothing here allocates, takes a reference or fails. Structures: Include/internal/pycore_frame.h. */
#ifndef LEAKSCOPE_FRAMES_H
#define LEAKSCOPE_FRAMES_H

#include "probe.h"

#if AT_LEAST(14)
#error "Frames of this version are not known yet."
#elif AT_LEAST(11)
#include <internal/pycore_frame.h>
typedef _PyInterpreterFrame Frame;
#else
#include <frameobject.h>
typedef PyFrameObject Frame;
#endif

static inline PyCodeObject *code_of(Frame *frame)
{
#if AT_LEAST(13)
    return (PyCodeObject *)frame->f_executable;
#else
    return frame->f_code;
#endif
}

#if AT_LEAST(11)
static inline _Py_CODEUNIT *place_in_code(Frame *frame)
{
#if AT_LEAST(13)
    return frame->instr_ptr;
#else
    return frame->prev_instr;
#endif
}
#endif

/* The number of the instruction, in units of code. */
static inline int instruction_of(Frame *frame)
{
#if AT_LEAST(11)
    return (int)(place_in_code(frame) - _PyCode_CODE(code_of(frame)));
#else
    return frame->f_lasti;
#endif
}

/* The first frame from `frame` on that has begun its code (as _PyFrame_IsIncomplete): one that is being set up has no line yet, and
 * entries of the interpreter are no frames. */
static inline Frame *first_complete(Frame *frame)
{
#if AT_LEAST(11)
    for (; frame != NULL; frame = frame->previous) {
#if AT_LEAST(12)
        if (frame->owner == FRAME_OWNED_BY_CSTACK)
            continue;
#endif
        if (frame->owner == FRAME_OWNED_BY_GENERATOR
            || place_in_code(frame) >= _PyCode_CODE(code_of(frame)) + code_of(frame)->_co_firsttraceable)
            break;
    }
#endif
    return frame;
}

static inline Frame *innermost(PyThreadState *thread)
{
#if AT_LEAST(13)
    return first_complete(thread->current_frame);
#elif AT_LEAST(11)
    return thread->cframe == NULL ? NULL : first_complete(thread->cframe->current_frame);
#else
    return thread->frame;
#endif
}

static inline Frame *caller(Frame *frame)
{
#if AT_LEAST(11)
    return first_complete(frame->previous);
#else
    return frame->f_back;
#endif
}

#endif
