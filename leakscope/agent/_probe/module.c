/* The module `_probe`: the faces of all files, in one table. */
#include "probe.h"

#define MOST_METHODS 64

static PyMethodDef methods[MOST_METHODS];

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_probe", .m_doc = "The probe: native heap walk, fork snapshot and allocation sampler.",
    .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__probe(void)
{
    PyMethodDef *const tables[] = {walk_methods,  snapshot_methods, sample_methods, name_methods,
                                   torch_methods, native_methods,   arena_methods};
    size_t count = 0;
    for (size_t table = 0; table < sizeof tables / sizeof *tables; table++)
        for (PyMethodDef *method = tables[table]; method->ml_name != NULL && count + 1 < MOST_METHODS; method++)
            methods[count++] = *method;
    methods[count] = (PyMethodDef){NULL, NULL, 0, NULL};
    PyObject *module = PyModule_Create(&definition);
    if (module != NULL && PyModule_AddStringConstant(module, "version", PY_VERSION) < 0)
        Py_CLEAR(module);
    return module;
}
