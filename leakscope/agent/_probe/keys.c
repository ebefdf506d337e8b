/* What the keys of caches and tables look like: which part of a key differs from entry to entry, and how. To names.json.
 * How parts are told apart without running code of the target: key_marks.c. The twin: keys.py. */
#include "keys.h"

#include <stdio.h>

#define MOST_KEYS 4096        /* of one cache or table, the newest ones */
#define MOST_TABLES 256       /* the longest ones */
#define MOST_KEY_PARTS (1u << 20) /* of all tables together, and of all caches: bounds the time of each, some 50 ms */
#define LEAST_TABLE 8
#define MOST_SAMPLES 64
#define MOST_ARGUMENTS 32

typedef struct {
    PyObject *dict;
    uint64_t size;
} Candidate;

static Vector candidates;
static Table inner; /* dicts of functools caches: they are no tables */
static int32_t (*samples)[MOST_POSITIONS];
static PyObject **sampled;
static size_t sample_count;
static uint64_t parts_of_caches, parts_of_tables; /* that were looked at */

void keys_open(void)
{
    marks_open();
    vector_open(&candidates, sizeof(Candidate));
    samples = NULL;
    parts_of_caches = parts_of_tables = 0;
}

void keys_close(void)
{
    marks_close();
    vector_close(&candidates);
    table_close(&inner);
}

/* --- a key --- */

static void look_at_argument(PyObject *part, uint32_t index)
{
    look_at_part(part, (Step){0, index, 0});
}

/* Arguments, then names and values behind the mark: Lib/functools.py, _make_key; cachetools.keys.hashkey. `typed`: their types follow. */
static void look_at_arguments(PyObject **items, Py_ssize_t count, Py_ssize_t mark, bool is_typed)
{
    Py_ssize_t given = mark >= 0 ? mark : is_typed ? count / 2 : count;
    Py_ssize_t pairs = mark < 0 ? 0 : is_typed ? (count - 2 * mark - 1) / 3 : (count - mark - 1) / 2;
    for (Py_ssize_t place = 0; place < given && place < MOST_ITEMS; place++)
        look_at_argument(items[place], (uint32_t)place);
    for (Py_ssize_t pair = 0; pair < pairs && pair < MOST_ITEMS; pair++) {
        PyObject *name = items[mark + 1 + 2 * pair], *value = items[mark + 2 + 2 * pair];
        Row word = name != NULL && names_is_constant(name) ? name_attribute(name) : name_own("?");
        look_at_part(value, (Step){word, 0, '='});
    }
}

static bool is_hashed_seq(PyObject *key)
{
    PyTypeObject *type = Py_TYPE(key);
    PyObject *space = has_base(type, &PyList_Type) && type != &PyList_Type ? space_of_module("functools") : NULL;
    return space != NULL && dict_get(space, "_HashedSeq") == (PyObject *)type;
}

static void look_at_items(PyObject *key, PyObject **items, Py_ssize_t count)
{
    Py_ssize_t mark = -1;
    for (Py_ssize_t place = 0; place < count && mark < 0; place++)
        if (items[place] != NULL && (Py_IS_TYPE(items[place], &PyBaseObject_Type) || items[place] == (PyObject *)Py_TYPE(key)))
            mark = place;
    look_at_arguments(items, count, mark, false);
}

static void look_at_table_key(PyObject *key)
{
    if (is_hashed_seq(key))
        look_at_items(key, ((PyListObject *)key)->ob_item, Py_SIZE(key));
    else if (has_items(key))
        look_at_items(key, ((PyTupleObject *)key)->ob_item, Py_SIZE(key));
    else
        look_at(key);
}

static void look_at_cache_key(PyObject *key, const CacheFacts *facts)
{
    if (!PyTuple_CheckExact(key)) {
        look_at_argument(key, 0); /* one str or int alone is its own key */
        return;
    }
    PyObject **items = ((PyTupleObject *)key)->ob_item;
    Py_ssize_t mark = -1;
    for (Py_ssize_t place = 0; place < Py_SIZE(key) && mark < 0; place++)
        if (items[place] == facts->kwd_mark)
            mark = place;
    look_at_arguments(items, Py_SIZE(key), mark, facts->is_typed);
}

/* --- all keys of one --- */

static bool is_of_use(PyObject *value)
{
    return value != NULL && (!is_plain(Py_TYPE(value)) || Py_IS_TYPE(value, &PyBytes_Type));
}

/* Makes room for the newest keys of a dict; returns the number of the first entry to look at. */
static size_t begin(const Entries *entries, size_t looked)
{
    size_t first = entries->count;
    if (samples == NULL) {
        samples = arena_take(MOST_SAMPLES * sizeof *samples);
        sampled = arena_take(MOST_SAMPLES * sizeof *sampled);
    }
    marks_begin(looked);
    sample_count = 0;
    for (size_t found = 0; first > 0 && found < looked; found += value_at(entries, place_of(entries, first)) != NULL)
        first--;
    return first;
}

/* Looks at the newest keys of a dict; returns at how many. facts NULL: of a table. */
static size_t look_at_keys(PyObject *dict, const CacheFacts *facts)
{
    Entries entries;
    if (dict == NULL || !PyDict_Check(dict) || !entries_of(dict, &entries))
        return 0;
    size_t used = (size_t)((PyDictObject *)dict)->ma_used, looked = used < MOST_KEYS ? used : MOST_KEYS, number = 0;
    for (size_t nth = begin(&entries, looked); nth < entries.count; nth++) {
        PyObject *key = key_at(&entries, place_of(&entries, nth)), *value = value_at(&entries, place_of(&entries, nth));
        if (key == NULL || value == NULL)
            continue;
        if (facts != NULL && facts->maxsize > 0)
            value = result_of_link(value);
        int32_t *sample = NULL;
        if (number + MOST_SAMPLES >= looked && sample_count < MOST_SAMPLES && is_of_use(value)) {
            sampled[sample_count] = value;
            sample = memset(samples[sample_count++], -1, sizeof *samples);
        }
        marks_next_key(sample);
        if (facts == NULL)
            look_at_table_key(key);
        else
            look_at_cache_key(key, facts);
        number++;
    }
    return number;
}

/* --- writing --- */

static void write_path(Output *output, const Position *position)
{
    out(output, "{\"at\":[");
    for (unsigned step = 0; step < position->depth; step++) {
        const Step *one = &position->at[step];
        char text[TEXT_BYTES + 2];
        out(output, step ? "," : "");
        if (one->name == 0) {
            out(output, "%u", one->index);
        } else {
            snprintf(text, sizeof text, "%s%s%s", one->mark == '.' ? "." : "", name_text(one->name), one->mark == '=' ? "=" : "");
            out_text(output, text);
        }
    }
    out(output, "],\"types\":{");
    for (uint32_t place = 0; place < position->type_count; place++) {
        out(output, place ? "," : "");
        out_text(output, name_text(position->types[place]));
        out(output, ":%u", position->type_counts[place]);
    }
    if (position->other_types)
        out(output, ",\"...\":%u", position->other_types);
    out(output, "},\"distinct\":%u", position->distinct);
}

static void write_position(Output *output, const Position *position)
{
    write_path(output, position);
    if (position->shown)
        out(output, ",\"min\":%d,\"max\":%d,\"shown\":%u", position->least, position->most, position->shown);
    else
        out(output, ",\"min\":null,\"max\":null,\"shown\":0");
    out(output, ",\"identity\":%u,\"opaque\":%u}", position->identity, position->opaque);
}

static void write_samples(Output *output)
{
    bool is_begun = false;
    for (size_t place = 0; place < sample_count; place++) {
        bool has_any = false;
        for (unsigned position = 0; position < position_count; position++)
            has_any = has_any || samples[place][position] >= 0;
        if (!has_any)
            continue;
        out(output, is_begun ? ",[[" : "[[");
        is_begun = true;
        for (unsigned position = 0; position < position_count; position++) {
            out(output, position ? "," : "");
            if (samples[place][position] < 0)
                out(output, "null");
            else
                out(output, "%d", samples[place][position]);
        }
        out(output, "],%llu]", (unsigned long long)(uintptr_t)sampled[place]);
    }
}

static void write_keys(Output *output, size_t looked)
{
    out(output, ",\"keys\":{\"looked\":%zu,\"positions\":[", looked);
    for (unsigned place = 0; looked && place < position_count; place++) {
        out(output, place ? "," : "");
        write_position(output, &positions[place]);
    }
    out(output, "],\"samples\":[");
    if (looked)
        write_samples(output);
    out(output, "]}");
}

static void write_arguments(Output *output, PyObject *function)
{
    PyCodeObject *code = (PyCodeObject *)((PyFunctionObject *)function)->func_code;
#if AT_LEAST(11)
    PyObject *names = code->co_localsplusnames;
#else
    PyObject *names = code->co_varnames;
#endif
    Py_ssize_t count = code->co_argcount + code->co_kwonlyargcount;
    out(output, ",\"arguments\":[");
    for (Py_ssize_t place = 0; names != NULL && PyTuple_CheckExact(names) && place < PyTuple_GET_SIZE(names) && place < count
                               && place < MOST_ARGUMENTS;
         place++) {
        out(output, place ? "," : "");
        out_text(output, name_text(name_attribute(PyTuple_GET_ITEM(names, place))));
    }
    out(output, "]");
}

void keys_of_cache(Output *output, const CacheFacts *facts)
{
    if (facts->dict != NULL)
        table_set(&inner, (uintptr_t)facts->dict, 1);
    write_arguments(output, facts->function);
    size_t looked = parts_of_caches < MOST_KEY_PARTS ? look_at_keys(facts->dict, facts) : 0;
    write_keys(output, looked);
    parts_of_caches += looked ? parts_seen : 0;
}

/* --- tables --- */

static bool goes_before(const Candidate *one, const Candidate *other)
{
    return one->size != other->size ? one->size > other->size : (uintptr_t)one->dict < (uintptr_t)other->dict;
}

static void sift(Candidate *items, size_t place, size_t count)
{
    for (size_t child; (child = 2 * place + 1) < count; place = child) {
        if (child + 1 < count && goes_before(&items[child], &items[child + 1]))
            child++;
        if (!goes_before(&items[place], &items[child]))
            return;
        Candidate kept = items[place];
        items[place] = items[child];
        items[child] = kept;
    }
}

/* Largest first (heapsort: the heap has the last one on top). */
static void sort_candidates(void)
{
    Candidate *items = candidates.items;
    for (size_t place = candidates.count / 2; place-- > 0;)
        sift(items, place, candidates.count);
    for (size_t end = candidates.count; end-- > 1;) {
        Candidate kept = items[0];
        items[0] = items[end];
        items[end] = kept;
        sift(items, 0, end);
    }
}

void keys_note(PyObject *dict)
{
    uint64_t size = (uint64_t)((PyDictObject *)dict)->ma_used;
    Entries entries;
    if (size < LEAST_TABLE || !entries_of(dict, &entries))
        return;
    size_t nth = entries.count;
    while (nth > 0 && value_at(&entries, place_of(&entries, nth - 1)) == NULL)
        nth--;
    PyObject *key = nth == 0 ? NULL : key_at(&entries, place_of(&entries, nth - 1));
    if (key == NULL || PyUnicode_Check(key) || !(PyLong_CheckExact(key) || PyTuple_Check(key) || is_hashed_seq(key)))
        return;
    *(Candidate *)vector_add(&candidates, 1) = (Candidate){dict, size};
    if (candidates.count >= 16 * MOST_TABLES) {
        sort_candidates();
        candidates.count = 2 * MOST_TABLES; /* some of them may be those of functools caches */
    }
}

void keys_of_tables(Output *output)
{
    uint64_t known;
    size_t written = 0;
    sort_candidates();
    out(output, ",\"tables\":[");
    for (size_t place = 0; place < candidates.count && written < MOST_TABLES && parts_of_tables < MOST_KEY_PARTS; place++) {
        const Candidate *one = &AT(Candidate, candidates, place);
        if (table_find(&inner, (uintptr_t)one->dict, &known))
            continue;
        out(output, "%s{\"address\":%llu,\"size\":%llu", written++ ? "," : "", (unsigned long long)(uintptr_t)one->dict,
            (unsigned long long)one->size);
        size_t looked = look_at_keys(one->dict, NULL);
        write_keys(output, looked);
        out(output, "}");
        parts_of_tables += looked ? parts_seen : 0;
    }
    out(output, "]");
}
