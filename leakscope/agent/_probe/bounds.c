/* What a program says itself of its containers: limits, and what caches count. They go to names.json as "bounds" and "caches". */
#include "engine.h"

typedef struct {
    uint64_t address, limit;
    Row what;
} Bound;
static Vector bounds;

typedef struct {
    uint64_t address, currsize, hits, misses;
    int64_t maxsize;
    Row name;
} Cache;
static Vector caches;

void bounds_open(void)
{
    vector_open(&bounds, sizeof(Bound));
    vector_open(&caches, sizeof(Cache));
}

void bounds_close(void)
{
    vector_close(&bounds);
    vector_close(&caches);
}

void bound(PyObject *container, uint64_t limit, const char *what)
{
    *(Bound *)vector_add(&bounds, 1) = (Bound){(uintptr_t)container, limit, name_own(what)};
}

void cache_info(PyObject *cache, Row name, int64_t maxsize, uint64_t currsize, uint64_t hits, uint64_t misses)
{
    *(Cache *)vector_add(&caches, 1) = (Cache){(uintptr_t)cache, currsize, hits, misses, maxsize, name};
}

void bound_by(PyObject *holder, PyObject *limit, const char *name)
{
    if (!PyLong_CheckExact(limit))
        return;
    uint64_t value = 0;
#if AT_LEAST(12)
    const PyLongObject *number = (const PyLongObject *)limit;
    if (number->long_value.lv_tag & 3) /* 0: not 0, and positive (pycore_long.h) */
        return;
    size_t count = number->long_value.lv_tag >> 3;
    const digit *digits = number->long_value.ob_digit;
#else
    const PyLongObject *number = (const PyLongObject *)limit;
    size_t count = Py_SIZE(number) > 0 ? (size_t)Py_SIZE(number) : 0;
    const digit *digits = number->ob_digit;
#endif
    if (count == 0)
        return;
    for (size_t place = count; place-- > 0;)
        value = count > 2 ? UINT64_MAX >> 1 : value << PyLong_SHIFT | digits[place];
    bound(holder, value, name[0] == '_' && name[1] == 'C' ? "maxsize" : name);
}

void bounds_write(Output *output)
{
    out(output, ",\"bounds\":[");
    for (size_t place = 0; place < bounds.count; place++) {
        const Bound *one = &AT(Bound, bounds, place);
        out(output, "%s[%llu,%llu,\"%s\"]", place ? "," : "", (unsigned long long)one->address, (unsigned long long)one->limit,
            name_text(one->what));
    }
    out(output, "],\"caches\":[");
    for (size_t place = 0; place < caches.count; place++) {
        const Cache *one = &AT(Cache, caches, place);
        out(output, "%s{\"address\":%llu,\"name\":", place ? "," : "", (unsigned long long)one->address);
        out_text(output, name_text(one->name));
        if (one->maxsize < 0)
            out(output, ",\"maxsize\":null");
        else
            out(output, ",\"maxsize\":%lld", (long long)one->maxsize);
        out(output, ",\"currsize\":%llu,\"hits\":%llu,\"misses\":%llu}", (unsigned long long)one->currsize,
            (unsigned long long)one->hits, (unsigned long long)one->misses);
    }
    out(output, "]");
}
