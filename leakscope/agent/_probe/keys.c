/* What the keys of caches and tables look like: which part of a key differs from entry to entry, and how. To names.json.
 *
 * No code of the target runs: an int, a str, a float ... is told by its value, a tuple or a dataclass by its parts, what is compared by
 * identity by its address; of anything else, whose own code would have to compare it, only the type is known ("opaque"). Values
 * become a hash and leave the process only as how many there are; small ints are lengths and shapes, and are shown.
 * The twin: keys.py. */
#include "readers.h"
#include "texts.h"

#include <stdio.h>

#define MOST_KEYS 4096        /* of one cache or table, the newest ones */
#define MOST_TABLES 256       /* the longest ones */
#define MOST_TABLE_KEYS (1u << 18) /* of all tables together: bounds the time, some 20 ms */
#define LEAST_TABLE 8
#define MOST_POSITIONS 32
#define MOST_INNER 8          /* parts of a part that are told one by one */
#define MOST_ITEMS 64         /* of a tuple; of what comes after them only the number counts */
#define MOST_FIELDS 16        /* of a dataclass */
#define MOST_TYPES 6          /* of a position */
#define MOST_SAMPLES 64
#define MOST_STEPS 4          /* an argument, and three levels inside it */
#define MOST_ARGUMENTS 32
#define SHOWN_BELOW (1 << 20) /* a larger int may be a secret */

enum { BY_VALUE, BY_ITEMS, BY_ELEMENTS, BY_FIELDS, BY_IDENTITY, OPAQUE };

typedef struct {
    int by;
    Row name;
    size_t field_count;
    Row fields[MOST_FIELDS];
    const char *words[MOST_FIELDS];
} Kind;

typedef struct {
    Row name;   /* 0: the index */
    uint32_t index;
    char mark;  /* '.' field, '=' keyword */
} Step;

typedef struct {
    Step at[MOST_STEPS];
    unsigned depth;
    Row types[MOST_TYPES];
    uint32_t type_counts[MOST_TYPES], type_count, other_types;
    uint32_t distinct, shown, identity, opaque;
    int32_t least, most;
    Vector seen; /* uint64_t, open addressing; kept from one cache to the next */
} Position;

typedef struct {
    PyObject *dict;
    uint64_t size;
} Candidate;

static Table kinds; /* type -> place in kind_rows + 1 */
static Vector kind_rows, candidates;
static Table inner; /* dicts of functools caches: they are no tables */
static Position *positions;
static unsigned position_count, expected;
static size_t room; /* of Position.seen, a power of two */
static Step at[MOST_STEPS];
static unsigned depth;
static int32_t (*samples)[MOST_POSITIONS];
static PyObject **sampled;
static size_t sample_count, sample_place;
static bool is_sampled;
static uint64_t keys_left; /* of MOST_TABLE_KEYS */

void keys_open(void)
{
    vector_open(&kind_rows, sizeof(Kind));
    vector_open(&candidates, sizeof(Candidate));
    positions = NULL;
    keys_left = MOST_TABLE_KEYS;
}

void keys_close(void)
{
    for (unsigned place = 0; positions != NULL && place < MOST_POSITIONS; place++)
        vector_close(&positions[place].seen);
    positions = NULL;
    vector_close(&kind_rows);
    vector_close(&candidates);
    table_close(&kinds);
    table_close(&inner);
}

/* --- how the objects of a type are compared --- */

static bool is_identity_hash(PyObject *method)
{
    if (method == dict_get(namespace_of(&PyBaseObject_Type), "__hash__"))
        return true;
    if (method == NULL || !PyFunction_Check(method))
        return false;
    PyObject *names = ((PyCodeObject *)((PyFunctionObject *)method)->func_code)->co_names; /* `return id(self)`, as torch.Tensor has it */
    return names != NULL && PyTuple_CheckExact(names) && PyTuple_GET_SIZE(names) == 1 && is_text(PyTuple_GET_ITEM(names, 0), "id");
}

static bool is_enum(PyTypeObject *type)
{
    PyObject *space = space_of_module("enum");
    PyObject *meta = space == NULL ? NULL : dict_get(space, "EnumMeta");
    return meta != NULL && PyType_Check(meta) && has_base(Py_TYPE(type), (PyTypeObject *)meta);
}

/* A field takes part in comparing and hashing unless it says otherwise (dataclasses.Field). */
static bool is_compared(PyObject *field)
{
    PyObject *hash = attribute_of(field, "hash"), *compare = attribute_of(field, "compare");
    return hash == Py_True || ((hash == NULL || hash == Py_None) && compare != Py_False);
}

static void learn_fields(Kind *kind, PyObject *fields)
{
    PyObject *name, *field;
    Py_ssize_t next = 0;
    while (PyDict_Next(fields, &next, &name, &field) && kind->field_count < MOST_FIELDS) {
        const char *word = name == NULL ? NULL : ascii_of(name);
        if (word == NULL || field == NULL || !is_compared(field))
            continue;
        kind->words[kind->field_count] = word;
        kind->fields[kind->field_count++] = name_attribute(name);
    }
}

static bool is_plain(PyTypeObject *type)
{
    PyTypeObject *plain[] = {&PyLong_Type, &PyBool_Type, &PyUnicode_Type, &PyBytes_Type, &PyFloat_Type, Py_TYPE(Py_None)};
    for (size_t place = 0; place < Py_ARRAY_LENGTH(plain); place++)
        if (type == plain[place])
            return true;
    return false;
}

static Kind kind_made(PyTypeObject *type)
{
    TypeInfo *info = type_info(type);
    Kind kind = {.by = OPAQUE, .name = name_joined("", info->module, ".", info->qualname, "")};
    PyObject *hash = class_value(type, "__hash__"), *fields;
    if (is_plain(type)) {
        kind.by = BY_VALUE;
    } else if (has_base(type, &PyTuple_Type) && hash == dict_get(namespace_of(&PyTuple_Type), "__hash__")) {
        kind.by = BY_ITEMS;
    } else if (type == &PyFrozenSet_Type) {
        kind.by = BY_ELEMENTS;
    } else if (type == &PyFunction_Type || is_identity_hash(hash) || is_enum(type)) {
        kind.by = BY_IDENTITY;
    } else if ((fields = class_value(type, "__dataclass_fields__")) != NULL && PyDict_CheckExact(fields)) {
        learn_fields(&kind, fields);
        kind.by = kind.field_count ? BY_FIELDS : OPAQUE;
    }
    return kind;
}

static const Kind *kind_of(PyObject *thing)
{
    uint64_t place;
    uint64_t type = (uintptr_t)Py_TYPE(thing);
    if (!table_find(&kinds, type, &place)) {
        Kind kind = kind_made(Py_TYPE(thing));
        place = kind_rows.count;
        *(Kind *)vector_add(&kind_rows, 1) = kind;
        table_set(&kinds, type, place);
    }
    return &AT(Kind, kind_rows, place);
}

static Row name_of_type(const Kind *kind, PyObject *thing)
{
    if (Py_IS_TYPE(thing, &PyFunction_Type)) {
        PyCodeObject *code = (PyCodeObject *)((PyFunctionObject *)thing)->func_code;
        if (code != NULL && code->co_name != NULL && is_text(code->co_name, "<lambda>"))
            return name_own("lambda");
    }
    return kind->name;
}

/* --- fingerprints --- */

static inline uint64_t mix(uint64_t one, uint64_t other)
{
    uint64_t mixed = (one ^ (other + 0x9E3779B97F4A7C15u + (one << 6) + (one >> 2))) * 0xBF58476D1CE4E5B9u;
    return mixed ^ mixed >> 31;
}

static uint64_t number_mark(PyObject *number, int32_t *shown)
{
    const PyLongObject *value = (const PyLongObject *)number;
#if AT_LEAST(12)
    size_t count = value->long_value.lv_tag >> 3, sign = value->long_value.lv_tag & 3;
    const digit *digits = value->long_value.ob_digit;
    if (sign == 1) /* zero */
        count = 0;
#else
    size_t count = (size_t)Py_ABS(Py_SIZE(number)), sign = Py_SIZE(number) < 0 ? 2 : 0;
    const digit *digits = value->ob_digit;
#endif
    if (sign != 2 && (count == 0 || (count == 1 && digits[0] < SHOWN_BELOW)))
        *shown = count == 0 ? 0 : (int32_t)digits[0];
    uint64_t mark = mix(1, sign == 2 ? 2 : 0);
    for (size_t place = 0; place < count; place++)
        mark = mix(mark, digits[place]);
    return mark;
}

static uint64_t value_mark(PyObject *thing, int32_t *shown)
{
    PyTypeObject *type = Py_TYPE(thing);
    Text text;
    if (type == &PyLong_Type)
        return number_mark(thing, shown);
    if (type == &PyUnicode_Type)
        return text_of(thing, &text) ? mix(mix(2, (uint64_t)hash_of_text(thing)), (uint64_t)text.length) : mix(3, (uintptr_t)thing);
    if (type == &PyBytes_Type)
        return mix(mix(4, (uint64_t)hash_of_bytes(PyBytes_AS_STRING(thing), PyBytes_GET_SIZE(thing))), (uint64_t)PyBytes_GET_SIZE(thing));
    if (type == &PyFloat_Type) {
        double value = PyFloat_AS_DOUBLE(thing);
        uint64_t bits = 0;
        memcpy(&bits, &value, sizeof value);
        return mix(5, value != value ? 0x7FF8000000000000u : bits);
    }
    return mix(6, (uintptr_t)thing); /* None, True, False */
}

static uint64_t look(PyObject *thing, bool is_told);

static uint64_t look_into(PyObject *part, Step step, bool is_told)
{
    if (part == NULL)
        return 0;
    at[depth++] = step;
    uint64_t mark = look(part, is_told);
    depth--;
    return mark;
}

static uint64_t items_mark(PyObject **items, Py_ssize_t count, bool is_told)
{
    uint64_t mark = mix(7, (uint64_t)count);
    for (Py_ssize_t place = 0; place < count && place < MOST_ITEMS; place++)
        mark = mix(mark, look_into(items[place], (Step){0, (uint32_t)place, 0}, is_told && (depth == 0 || place < MOST_INNER)));
    return mark;
}

static uint64_t elements_mark(PyObject *thing)
{
    PySetObject *set = (PySetObject *)thing;
    uint64_t sum = 0, seen = 0;
    for (Py_ssize_t place = 0; set->table != NULL && place <= set->mask && seen < MOST_ITEMS; place++)
        if (set->table[place].key != NULL && set->table[place].hash != -1) {
            sum += look_into(set->table[place].key, (Step){0, 0, 0}, false);
            seen++;
        }
    return mix(mix(8, (uint64_t)set->used), sum);
}

/* What a field holds: of the instance, else a plain value of the class. */
static PyObject *field_of(PyObject *thing, const char *word)
{
    PyObject *of_class = class_value(Py_TYPE(thing), word);
    bool is_safe = of_class == NULL || Py_IS_TYPE(of_class, &PyMemberDescr_Type) || Py_IS_TYPE(of_class, &PyFunction_Type)
        || Py_TYPE(of_class)->tp_descr_get == NULL;
    if (!is_safe)
        return NULL;
    PyObject *found = attribute_of(thing, word);
    return found == NULL && of_class != NULL && !Py_IS_TYPE(of_class, &PyMemberDescr_Type) ? of_class : found;
}

static uint64_t fields_mark(size_t number, PyObject *thing, bool is_told)
{
    uint64_t mark = mix(9, (uintptr_t)Py_TYPE(thing));
    for (size_t place = 0; place < AT(Kind, kind_rows, number).field_count; place++) {
        Kind *kind = &AT(Kind, kind_rows, number); /* the rows move when a new type is met */
        Step step = {kind->fields[place], 0, '.'};
        mark = mix(mark, look_into(field_of(thing, kind->words[place]), step, is_told && place < MOST_INNER));
    }
    return mark;
}

/* --- positions --- */

static bool is_here(const Position *position)
{
    if (position->depth != depth)
        return false;
    for (unsigned step = 0; step < depth; step++)
        if (position->at[step].name != at[step].name || position->at[step].index != at[step].index)
            return false;
    return true;
}

/* The position of the path `at`, made if need be; NULL: there are too many. Keys have their parts in the same order. */
static Position *position_here(void)
{
    if (expected < position_count && is_here(&positions[expected]))
        return &positions[expected++];
    for (unsigned place = 0; place < position_count; place++)
        if (is_here(&positions[place])) {
            expected = place + 1;
            return &positions[place];
        }
    if (position_count == MOST_POSITIONS)
        return NULL;
    Position *position = &positions[position_count++];
    Vector seen = position->seen;
    *position = (Position){.depth = depth, .least = INT32_MAX, .most = -1, .seen = seen};
    memcpy(position->at, at, sizeof at);
    if (position->seen.count < room)
        vector_add(&position->seen, room - position->seen.count);
    memset(position->seen.items, 0, room * sizeof(uint64_t));
    expected = position_count;
    return position;
}

static void count_type(Position *position, Row type)
{
    for (uint32_t place = 0; place < position->type_count; place++)
        if (position->types[place] == type) {
            position->type_counts[place]++;
            return;
        }
    if (position->type_count == MOST_TYPES) {
        position->other_types++;
        return;
    }
    position->types[position->type_count] = type;
    position->type_counts[position->type_count++] = 1;
}

static void count_mark(Position *position, uint64_t mark)
{
    mark += mark == 0;
    uint64_t *marks = position->seen.items;
    size_t place = (size_t)mark & (room - 1);
    while (marks[place] != 0 && marks[place] != mark)
        place = (place + 1) & (room - 1);
    position->distinct += marks[place] == 0;
    marks[place] = mark;
}

static uint64_t mark_of(const Kind *kind, PyObject *thing, int32_t *shown, bool is_told)
{
    size_t number = (size_t)(kind - &AT(Kind, kind_rows, 0));
    bool is_deep = depth == MOST_STEPS;
    switch (kind->by) {
    case BY_VALUE:
        return value_mark(thing, shown);
    case BY_ITEMS:
        return is_deep ? mix(10, (uint64_t)Py_SIZE(thing)) : items_mark(((PyTupleObject *)thing)->ob_item, Py_SIZE(thing), is_told);
    case BY_ELEMENTS:
        return is_deep ? 11 : elements_mark(thing);
    case BY_FIELDS:
        return is_deep ? mix(12, (uintptr_t)Py_TYPE(thing)) : fields_mark(number, thing, is_told);
    case BY_IDENTITY:
        return mix(13, (uintptr_t)thing);
    default:
        return mix(14, (uintptr_t)Py_TYPE(thing));
    }
}

/* The fingerprint of what lies at `at`; if it is told, the position there counts it. */
static uint64_t look(PyObject *thing, bool is_told)
{
    const Kind *kind = kind_of(thing);
    int by = kind->by;
    Row type = name_of_type(kind, thing);
    Position *position = is_told ? position_here() : NULL;
    int32_t shown = -1;
    uint64_t mark = mark_of(kind, thing, &shown, is_told);
    if (position == NULL)
        return mark;
    count_type(position, type);
    count_mark(position, mark);
    position->identity += by == BY_IDENTITY;
    position->opaque += by == OPAQUE;
    if (shown >= 0) {
        position->shown++;
        position->least = shown < position->least ? shown : position->least;
        position->most = shown > position->most ? shown : position->most;
        if (is_sampled)
            samples[sample_place][position - positions] = shown;
    }
    return mark;
}

/* --- a key --- */

static void look_at_argument(PyObject *part, uint32_t index)
{
    look_into(part, (Step){0, index, 0}, true);
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
        look_into(value, (Step){word, 0, '='}, true);
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
    else if (kind_of(key)->by == BY_ITEMS)
        look_at_items(key, ((PyTupleObject *)key)->ob_item, Py_SIZE(key));
    else
        look(key, true);
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

static size_t begin(const Entries *entries, size_t used)
{
    if (positions == NULL) {
        positions = arena_take(MOST_POSITIONS * sizeof(Position));
        for (unsigned place = 0; place < MOST_POSITIONS; place++)
            vector_open(&positions[place].seen, sizeof(uint64_t));
        samples = arena_take(MOST_SAMPLES * sizeof *samples);
        sampled = arena_take(MOST_SAMPLES * sizeof *sampled);
    }
    size_t looked = used < MOST_KEYS ? used : MOST_KEYS, first = entries->count;
    for (room = 16; room < 2 * looked;)
        room *= 2;
    position_count = expected = depth = 0;
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
    for (size_t nth = begin(&entries, used); nth < entries.count; nth++) {
        PyObject *key = key_at(&entries, place_of(&entries, nth)), *value = value_at(&entries, place_of(&entries, nth));
        if (key == NULL || value == NULL)
            continue;
        if (facts != NULL && facts->maxsize > 0)
            value = result_of_link(value);
        is_sampled = number + MOST_SAMPLES >= looked && sample_count < MOST_SAMPLES && is_of_use(value);
        if (is_sampled) {
            sample_place = sample_count++;
            sampled[sample_place] = value;
            memset(samples[sample_place], -1, sizeof *samples);
        }
        expected = 0;
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
    write_keys(output, look_at_keys(facts->dict, facts));
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
    for (size_t place = 0; place < candidates.count && written < MOST_TABLES && keys_left > 0; place++) {
        const Candidate *one = &AT(Candidate, candidates, place);
        if (table_find(&inner, (uintptr_t)one->dict, &known))
            continue;
        out(output, "%s{\"address\":%llu,\"size\":%llu", written++ ? "," : "", (unsigned long long)(uintptr_t)one->dict,
            (unsigned long long)one->size);
        size_t looked = look_at_keys(one->dict, NULL);
        write_keys(output, looked);
        out(output, "}");
        keys_left -= looked < keys_left ? looked : keys_left;
    }
    out(output, "]");
}
