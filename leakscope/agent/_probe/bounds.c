/* What a program says itself of its containers: limits, and what caches count. They go to names.json as "bounds" and "caches"; what
 * the keys look like: keys.c. */
#include "engine.h"

typedef struct {
    uint64_t address, limit;
    Row what;
} Bound;
static Vector bounds;

static Vector caches; /* CacheFacts */

void bounds_open(void)
{
    vector_open(&bounds, sizeof(Bound));
    vector_open(&caches, sizeof(CacheFacts));
    keys_open();
}

void bounds_close(void)
{
    vector_close(&bounds);
    vector_close(&caches);
    keys_close();
}

void bound(PyObject *container, uint64_t limit, const char *what)
{
    *(Bound *)vector_add(&bounds, 1) = (Bound){(uintptr_t)container, limit, name_own(what)};
}

void cache_info(CacheFacts facts)
{
    *(CacheFacts *)vector_add(&caches, 1) = facts;
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
        const CacheFacts *one = &AT(CacheFacts, caches, place);
        uint64_t held = one->dict == NULL ? 0 : (uint64_t)((PyDictObject *)one->dict)->ma_used;
        out(output, "%s{\"address\":%llu,\"name\":", place ? "," : "", (unsigned long long)(uintptr_t)one->cache);
        out_text(output, name_text(one->name));
        if (one->maxsize < 0)
            out(output, ",\"maxsize\":null");
        else
            out(output, ",\"maxsize\":%lld", (long long)one->maxsize);
        out(output, ",\"currsize\":%llu,\"hits\":%llu,\"misses\":%llu", (unsigned long long)held,
            (unsigned long long)one->hits, (unsigned long long)one->misses);
        keys_of_cache(output, one);
        out(output, "}");
    }
    out(output, "]");
    keys_of_tables(output);
}
