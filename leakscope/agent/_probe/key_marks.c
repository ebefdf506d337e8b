/* Parts of keys as fingerprints, and positions that count them.
 *
 * No code of the target runs: an int, a str, a float ... is told by its value, a tuple or a dataclass by its parts, what is compared by
 * identity by its address; of anything else, whose own code would have to compare it, only the type is known ("opaque"). Values
 * become a hash and leave the process only as how many there are; small ints are lengths and shapes, and are shown.
 * The twin: keys.py. */
#include "keys.h"

#define MOST_INNER 8          /* parts of a part that are told one by one */
#define MOST_FIELDS 16        /* of a dataclass */
#define MOST_DIGITS 512       /* first and last ones of an int that are looked at */
#define SHOWN_BELOW (1 << 20) /* a larger int may be a secret */

enum { BY_VALUE, BY_ITEMS, BY_ELEMENTS, BY_FIELDS, BY_IDENTITY, OPAQUE };

typedef struct {
    int by;
    Row name;
    size_t field_count;
    Row fields[MOST_FIELDS];
    const char *words[MOST_FIELDS];
} Kind;

Position *positions;
unsigned position_count;
static Table kinds; /* type -> place in kind_rows */
static Vector kind_rows;
static unsigned expected; /* the position that probably comes next */
static size_t room;       /* of Position.seen, a power of two */
static Step at[MOST_STEPS];
static unsigned depth;
static int32_t *sample_now;
uint64_t parts_seen;
static uint64_t parts_most; /* parts_seen when the key of now has had all its parts */
static uint32_t key_now;    /* from 1 on */

void marks_open(void)
{
    vector_open(&kind_rows, sizeof(Kind));
    positions = NULL;
}

void marks_close(void)
{
    for (unsigned place = 0; positions != NULL && place < MOST_POSITIONS; place++)
        vector_close(&positions[place].seen);
    positions = NULL;
    vector_close(&kind_rows);
    table_close(&kinds);
}

void marks_begin(size_t looked)
{
    if (positions == NULL) {
        positions = arena_take(MOST_POSITIONS * sizeof(Position));
        for (unsigned place = 0; place < MOST_POSITIONS; place++)
            vector_open(&positions[place].seen, sizeof(uint64_t));
    }
    for (room = 16; room < 2 * looked;)
        room *= 2;
    position_count = expected = depth = 0;
    parts_seen = key_now = 0;
}

void marks_next_key(int32_t *sample)
{
    sample_now = sample;
    expected = 0;
    parts_most = parts_seen + MOST_PARTS;
    key_now++;
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

bool is_plain(PyTypeObject *type)
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
    mark = mix(mark, count);
    for (size_t place = 0; place < count; place++) {
        if (place == MOST_DIGITS && count > 2 * MOST_DIGITS)
            place = count - MOST_DIGITS;
        mark = mix(mark, digits[place]);
    }
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
    if (parts_seen >= parts_most)
        return 15;
    parts_seen++;
    const Kind *kind = kind_of(thing);
    int by = kind->by;
    Row type = name_of_type(kind, thing);
    Position *position = is_told ? position_here() : NULL;
    int32_t shown = -1;
    uint64_t mark = mark_of(kind, thing, &shown, is_told);
    if (position == NULL || position->last_key == key_now) /* keywords and fields without a name share a path */
        return mark;
    position->last_key = key_now;
    count_type(position, type);
    count_mark(position, mark);
    position->identity += by == BY_IDENTITY;
    position->opaque += by == OPAQUE;
    if (shown >= 0) {
        position->shown++;
        position->least = shown < position->least ? shown : position->least;
        position->most = shown > position->most ? shown : position->most;
        if (sample_now != NULL)
            sample_now[position - positions] = shown;
    }
    return mark;
}

void look_at(PyObject *thing)
{
    look(thing, true);
}

void look_at_part(PyObject *part, Step step)
{
    look_into(part, step, true);
}

bool has_items(PyObject *thing)
{
    return kind_of(thing)->by == BY_ITEMS;
}
