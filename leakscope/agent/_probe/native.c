/* Python's frames for the sampler of native memory (preload.c), which is no extension and knows no interpreter.
 *
 * It asks at a sampled malloc, in any thread and mostly without the GIL. The frames of the asking thread stand still meanwhile, because it
 * is inside a call that one of them made; so its own chain of frames, and the code objects they hold, can be read all the same. */
#include "sample.h"

#include <dlfcn.h>
#include <stdio.h>

#define MOST_PLACES 16u

static size_t quote(char *out, size_t room, Words words) /* into JSON; what does not fit is left out */
{
    size_t used = 0;
    for (size_t i = 0; i < words.length && used + 3 < room; i++) {
        unsigned char letter = (unsigned char)words.text[i];
        if (letter == '"' || letter == '\\')
            out[used++] = '\\';
        out[used++] = letter < ' ' ? '?' : (char)letter;
    }
    return used;
}

static size_t write_place(char *out, size_t room, uint32_t place, bool is_first)
{
    Words file, function;
    uint32_t line;
    place_read(place, &file, &line, &function);
    if (line == 0 || file.length + function.length > room / 2 - 32) /* "no Python frame" and its like; or the room is at its end */
        return 0;
    size_t used = (size_t)snprintf(out, room, "%s[\"", is_first ? "" : ",");
    used += quote(out + used, room - used, file);
    used += (size_t)snprintf(out + used, room - used, "\",%u,\"", (unsigned)line);
    used += quote(out + used, room - used, function);
    used += (size_t)snprintf(out + used, room - used, "\"]");
    return used;
}

/* Writes the frames of this thread as a JSON list, innermost first; returns its length, 0: there are none, or they cannot be known now. */
static size_t python_frames(char *text, size_t room)
{
    PyThreadState *state = PyGILState_GetThisThreadState();
    if (state == NULL || !Py_IsInitialized() || gap.depth > 0)
        return 0;
    uint32_t places[MOST_PLACES];
    size_t used = 0;
    if (!lock_take()) /* around a fork */
        return 0;
    gap.depth++; /* what this asks for is not sampled */
    bool is_own = false;
    uint32_t stack = sample_is_on() ? stack_now(state, &is_own) : NO_STACK;
    uint32_t count = stack > LOST_STACK ? stack_places(stack, places, MOST_PLACES) : 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t more = write_place(text + used + 1, room - used - 2, places[i], used == 0);
        if (more == 0)
            break;
        used += more;
    }
    gap.depth--;
    lock_give();
    if (used == 0)
        return 0;
    text[0] = '[';
    text[used + 1] = ']';
    return used + 2;
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
