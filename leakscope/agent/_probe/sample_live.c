/* The live samples as Python objects: for the tests of the sampler. */
#include "sample.h"

static PyObject *frames_of(uint32_t stack)
{
    uint32_t places[64], count = stack_places(stack, places, 64), line;
    PyObject *frames = PyList_New(count);
    for (uint32_t frame = 0; frames != NULL && frame < count; frame++) {
        Words file, function;
        place_read(places[frame], &file, &line, &function);
        PyObject *row = Py_BuildValue("(s#Is#)", file.text, (Py_ssize_t)file.length, line, function.text, (Py_ssize_t)function.length);
        if (row == NULL)
            Py_CLEAR(frames);
        else
            PyList_SET_ITEM(frames, frame, row);
    }
    return frames;
}

/* [(address, bytes, weight, t_ns, [(file, line, function), ...] innermost first), ...] */
PyObject *sample_live(PyObject *module, PyObject *unused)
{
    size_t count = 0, bytes = 0;
    Sample *samples = NULL;
    if (lock_take()) {
        samples = samples_copy(&count, &bytes);
        lock_give();
    }
    gap.depth++; /* what is made here is no allocation of the program, and leaves the stacks alone */
    PyObject *list = PyList_New(0);
    for (size_t place = 0; list != NULL && place < count; place++) {
        const Sample *sample = &samples[place];
        PyObject *row = Py_BuildValue("(KKdLN)", (unsigned long long)sample->address, (unsigned long long)sample->bytes, sample->weight,
                                      (long long)(sample->t_ns - samples_started_ns()), frames_of(sample->stack));
        if (row == NULL || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    gap.depth--;
    pages_free(samples, bytes);
    return list;
}
