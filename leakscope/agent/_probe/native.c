/* Python's frames for the sampler of native memory (preload.c), which is no extension and knows no interpreter.
 *
 * It asks at a sampled malloc, in any thread and mostly without the GIL. The frames of the asking thread stand still meanwhile, because it
 * is inside a call that one of them made; so its own chain of frames, and the code objects they hold, can be read all the same. */
#include "sample.h"

#include <dlfcn.h>

#define MOST_PLACES 16u

/* False: "no Python frame" and its like. */
static bool is_frame(uint32_t place)
{
    Words file, function;
    uint32_t line;
    place_read(place, &file, &line, &function);
    return line > 0;
}

/* Writes the frames of this thread as a JSON list, innermost first; returns its length, 0: there are none, or they cannot be known now. */
static size_t python_frames(char *text, size_t room)
{
    PyThreadState *state = PyGILState_GetThisThreadState();
    if (state == NULL || !Py_IsInitialized() || gap.depth > 0)
        return 0;
    uint32_t places[MOST_PLACES];
    size_t used = 1; /* "[", and behind each frame one letter more */
    if (!lock_take()) /* around a fork */
        return 0;
    gap.depth++; /* what this asks for is not sampled */
    bool is_own = false;
    uint32_t stack = sample_is_on() ? stack_now(state, &is_own) : NO_STACK;
    uint32_t count = stack > LOST_STACK ? stack_places(stack, places, MOST_PLACES) : 0;
    for (uint32_t i = 0; i < count && used < room; i++) {
        size_t more = is_frame(places[i]) ? place_json(places[i], text + used, room - used - 1) : 0;
        if (more == 0)
            break;
        used += more;
        text[used++] = ',';
    }
    gap.depth--;
    lock_give();
    if (used == 1)
        return 0;
    text[0] = '[';
    text[used - 1] = ']';
    return used;
}

static PyObject *native_begin(PyObject *module, PyObject *unused)
{
    void (*take)(size_t (*)(char *, size_t));
    *(void **)&take = dlsym(RTLD_DEFAULT, "leakscope_native_python");
    if (take != NULL)
        take(python_frames);
    return PyBool_FromLong(take != NULL);
}

PyMethodDef native_methods[] = {
    {"native_begin", native_begin, METH_NOARGS, "native_begin() -> whether there is a sampler of native memory that asks for Python's frames."},
    {NULL, NULL, 0, NULL},
};
