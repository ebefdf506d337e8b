/* How large objects are: what sys.getsizeof says without a call of __sizeof__, which would make an int, and what it leaves out
 * (walk.py, _inline_size).
 */
#include "engine.h"

#include <internal/pycore_object.h>
#if AT_LEAST(11)
#include <internal/pycore_dict.h>
#endif

#define MOST_KEYS 30
#define SPLIT 2

/* Bytes of the inline attributes, which sys.getsizeof omits, estimated by the names in use: values, a byte each, rounded up, and on 3.11
 * the two words before the object. */
static uint32_t inline_bytes(PyTypeObject *type)
{
#if AT_LEAST(11)
    if (!(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || !(type->tp_flags & Py_TPFLAGS_MANAGED_DICT))
        return 0;
    PyDictKeysObject *keys = ((PyHeapTypeObject *)type)->ht_cached_keys;
    if (keys == NULL || keys->dk_kind != SPLIT || keys->dk_nentries <= 0 || keys->dk_nentries > MOST_KEYS)
        return 0;
    uint32_t count = (uint32_t)keys->dk_nentries;
    return count * 8 + (count + 11) / 8 * 8 + (AT_LEAST(12) ? 0 : 16);
#else
    (void)type;
    return 0;
#endif
}

uint64_t around_of(TypeInfo *info, PyObject *thing)
{
#if AT_LEAST(11)
    (void)thing;
    return info->around_bytes;
#else
    return info->around_bytes + (_PyObject_IS_GC(thing) ? sizeof(PyGC_Head) : 0);
#endif
}

uint64_t object_size(TypeInfo *info, PyObject *thing)
{
    uint64_t bytes = (uint64_t)info->type->tp_basicsize;
    if (info->type->tp_itemsize > 0) {
        Py_ssize_t count = Py_SIZE(thing);
        bytes += (uint64_t)(count < 0 ? -count : count) * (uint64_t)info->type->tp_itemsize;
    }
    return bytes + around_of(info, thing);
}

Sizer sizer_of(TypeInfo *info)
{
    PyTypeObject *type = info->type;
#if AT_LEAST(11)
    info->around_bytes = (uint32_t)_PyType_PreHeaderSize(type) + inline_bytes(type);
#else
    info->around_bytes = inline_bytes(type);
#endif
    return object_size;
}
