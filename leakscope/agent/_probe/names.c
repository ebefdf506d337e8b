/* The string table, and what may be shown: the rules of agent/names.py, letter by letter. The text of a row is made here from what may
 * be shown, so nothing else ever leaves the process.
 *
 * Texts of the target stay where they are; no reference is taken. They are looked up by their content: by the hash that a str keeps,
 * or one made the same way.
 */
#include "engine.h"

#if AT_LEAST(13)
#include <internal/pycore_pyhash.h>
#endif

#include <stdio.h>
#include <unistd.h>

#define LONGEST_NAME 60
#define LONGEST_NUMBER 5
#define LONGEST_DOTTED 200 /* code points */
#define TEXT_BYTES 2048    /* of one row at most */

const char *const limit_names[] = {"maxsize", "_maxsize", "max_size", "_max_size", "maxlen", "_maxlen", "capacity", "_capacity",
                                   "max_entries", "_max_entries", "_Cache__maxsize"};
const unsigned limit_names_count = sizeof limit_names / sizeof *limit_names;

/* --- texts of the target: code points at an address --- */

typedef struct {
    const void *data;
    Py_ssize_t length;
    int kind; /* bytes of a code point */
    bool is_ascii;
} Text;

#define AT_POINT(text, place) PyUnicode_READ((text).kind, (text).data, place)

/* False for what is no exact str, or one that is not ready (3.10, 3.11). */
static bool text_of(PyObject *thing, Text *text)
{
    if (thing == NULL || !PyUnicode_CheckExact(thing))
        return false;
#if !AT_LEAST(12)
    if (!PyUnicode_IS_READY(thing))
        return false;
#endif
    *text = (Text){PyUnicode_DATA(thing), PyUnicode_GET_LENGTH(thing), PyUnicode_KIND(thing), PyUnicode_IS_ASCII(thing)};
    return true;
}

static Text text_of_c(const char *bytes)
{
    return (Text){bytes, (Py_ssize_t)strlen(bytes), 1, true};
}

static Text part_of(Text text, Py_ssize_t start, Py_ssize_t end)
{
    return (Text){(const char *)text.data + start * text.kind, end - start, text.kind, text.is_ascii};
}

static bool same_as(Text text, const char *word)
{
    Py_ssize_t length = (Py_ssize_t)strlen(word);
    if (text.length != length)
        return false;
    for (Py_ssize_t place = 0; place < length; place++)
        if (AT_POINT(text, place) != (Py_UCS4)(unsigned char)word[place])
            return false;
    return true;
}

bool is_text(PyObject *thing, const char *word)
{
    Text text;
    return text_of(thing, &text) && same_as(text, word);
}

/* --- a text in the making --- */

typedef struct {
    size_t used;
    char bytes[TEXT_BYTES];
} Made;

/* Not by an initialiser, which would clear the whole of it. */
static void made_open(Made *made)
{
    made->used = 0;
    made->bytes[0] = 0;
}

static void add_bytes(Made *made, const char *bytes, size_t count)
{
    if (count > TEXT_BYTES - 1 - made->used)
        count = TEXT_BYTES - 1 - made->used;
    memcpy(made->bytes + made->used, bytes, count);
    made->used += count;
    made->bytes[made->used] = 0;
}

static void add(Made *made, const char *text)
{
    add_bytes(made, text, strlen(text));
}

static void add_point(Made *made, Py_UCS4 point)
{
    char bytes[4];
    size_t count = 0;
    if (point < 0x80) {
        bytes[count++] = (char)point;
    } else if (point < 0x800) {
        bytes[count++] = (char)(0xC0 | point >> 6);
        bytes[count++] = (char)(0x80 | (point & 0x3F));
    } else {
        if (point < 0x10000) {
            bytes[count++] = (char)(0xE0 | point >> 12);
        } else {
            bytes[count++] = (char)(0xF0 | point >> 18);
            bytes[count++] = (char)(0x80 | (point >> 12 & 0x3F));
        }
        bytes[count++] = (char)(0x80 | (point >> 6 & 0x3F));
        bytes[count++] = (char)(0x80 | (point & 0x3F));
    }
    if (count <= TEXT_BYTES - 1 - made->used) /* no half letters */
        add_bytes(made, bytes, count);
}

static void add_text(Made *made, Text text)
{
    if (text.is_ascii) {
        add_bytes(made, text.data, (size_t)text.length);
        return;
    }
    for (Py_ssize_t place = 0; place < text.length && made->used < TEXT_BYTES - 4; place++)
        add_point(made, AT_POINT(text, place));
}

/* --- rows --- */

typedef struct {
    const char *bytes;
    uint32_t hash;
} Shown;

static Vector rows;          /* Shown by Row */
static uint32_t *row_places; /* open addressing: Row + 1 */
static size_t row_room;
static Vector row_memory;

static uint32_t hash_of(const char *bytes, size_t count)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (size_t place = 0; place < count; place++)
        hash = (hash ^ (unsigned char)bytes[place]) * 16777619u;
    return hash;
}

static void rows_grow(void)
{
    Vector memory;
    size_t room = row_room ? row_room * 2 : 4096;
    vector_open(&memory, sizeof(uint32_t));
    uint32_t *places = vector_add(&memory, room);
    for (uint32_t row = 0; row < rows.count; row++) {
        size_t place = AT(Shown, rows, row).hash & (room - 1);
        while (places[place])
            place = (place + 1) & (room - 1);
        places[place] = row + 1;
    }
    vector_close(&row_memory);
    row_memory = memory;
    row_places = places;
    row_room = room;
}

/* The place of a text among the rows: *place holds its Row + 1, or 0 where it would go. */
static uint32_t *row_place(const char *bytes, size_t count, uint32_t hash)
{
    size_t place = hash & (row_room - 1);
    while (row_places[place]) {
        const Shown *shown = &AT(Shown, rows, row_places[place] - 1);
        if (shown->hash == hash && strncmp(shown->bytes, bytes, count) == 0 && shown->bytes[count] == 0)
            break;
        place = (place + 1) & (row_room - 1);
    }
    return &row_places[place];
}

static bool row_find(const Made *made, Row *row)
{
    uint32_t found = *row_place(made->bytes, made->used, hash_of(made->bytes, made->used));
    *row = found - 1;
    return found != 0;
}

static Row row_of(const Made *made)
{
    uint32_t hash = hash_of(made->bytes, made->used);
    uint32_t *place = row_place(made->bytes, made->used, hash);
    if (*place)
        return *place - 1;
    char *kept = arena_take(made->used + 1);
    memcpy(kept, made->bytes, made->used + 1);
    Row row = (Row)rows.count;
    *(Shown *)vector_add(&rows, 1) = (Shown){kept, hash};
    *place = row + 1;
    if (rows.count * 2 > row_room)
        rows_grow();
    return row;
}

static Row row_of_text(const char *text)
{
    Made made;
    made_open(&made);
    add(&made, text);
    return row_of(&made);
}

Row name_own(const char *text)
{
    return row_of_text(text);
}

const char *name_text(Row row)
{
    return AT(Shown, rows, row).bytes;
}

void names_write_strings(int file)
{
    Output output;
    output_use(&output, file);
    out(&output, "[");
    for (Row row = 0; row < rows.count; row++) {
        out(&output, row ? "," : "");
        out_text(&output, name_text(row));
    }
    out(&output, "]");
    output_flush(&output);
}

/* --- what reads like a name --- */

static bool is_digit(Py_UCS4 point)
{
    return point >= '0' && point <= '9';
}

static bool is_first(Py_UCS4 point)
{
    return (point >= 'A' && point <= 'Z') || (point >= 'a' && point <= 'z') || point == '_';
}

static bool is_further(Py_UCS4 point)
{
    return is_first(point) || is_digit(point) || point == ' ' || point == '.' || point == '/' || point == ':' || point == '-';
}

static bool has_long_number(Text text)
{
    int run = 0;
    for (Py_ssize_t place = 0; place < text.length; place++) {
        run = is_digit(AT_POINT(text, place)) ? run + 1 : 0;
        if (run > LONGEST_NUMBER)
            return true;
    }
    return false;
}

static bool is_name_like(Text text)
{
    if (text.length < 1 || text.length > LONGEST_NAME || !text.is_ascii || !is_first(AT_POINT(text, 0)))
        return false;
    for (Py_ssize_t place = 1; place < text.length; place++)
        if (!is_further(AT_POINT(text, place)))
            return false;
    return !has_long_number(text);
}

/* str.isidentifier of up to LONGEST_NAME code points. */
static bool is_identifier(Text text)
{
    if (text.length < 1 || text.length > LONGEST_NAME)
        return false;
    bool is_plain = is_first(AT_POINT(text, 0));
    for (Py_ssize_t place = 1; place < text.length && is_plain; place++)
        is_plain = is_first(AT_POINT(text, place)) || is_digit(AT_POINT(text, place));
    if (is_plain || text.is_ascii)
        return is_plain;
    /* The interpreter's own tables, asked with a str on our stack: no object is made, and it only reads. */
    struct {
        PyCompactUnicodeObject head;
        Py_UCS4 points[LONGEST_NAME + 1];
    } asked;
    memset(&asked, 0, sizeof asked);
    Py_SET_TYPE((PyObject *)&asked, &PyUnicode_Type);
    asked.head._base.length = text.length;
    asked.head._base.hash = -1;
    asked.head._base.state.kind = PyUnicode_4BYTE_KIND;
    asked.head._base.state.compact = 1;
#if !AT_LEAST(12)
    asked.head._base.state.ready = 1;
#endif
    for (Py_ssize_t place = 0; place < text.length; place++)
        asked.points[place] = AT_POINT(text, place);
    return PyUnicode_IsIdentifier((PyObject *)&asked) == 1;
}

/* --- constants of the program --- */

#define NOT_NAME_LIKE UINT32_MAX

typedef struct {
    PyObject *text;
    Py_hash_t hash;
    Row key; /* of 'text'; 0: not made yet */
} Constant;

static Constant *constants;
static size_t constant_room, constant_count;
static Vector constant_memory;
static Table codes; /* those that were learnt */

#if AT_LEAST(14)
#define HASH_OF_BYTES Py_HashBuffer
#else
#define HASH_OF_BYTES _Py_HashBytes
#endif

static Py_hash_t text_hash(PyObject *text)
{
    Py_hash_t hash = ((PyASCIIObject *)text)->hash;
    if (hash != -1)
        return hash;
    return HASH_OF_BYTES(PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text) * PyUnicode_KIND(text));
}

static bool same_text(PyObject *one, PyObject *other)
{
    return one == other || (PyUnicode_GET_LENGTH(one) == PyUnicode_GET_LENGTH(other) && PyUnicode_KIND(one) == PyUnicode_KIND(other)
                            && memcmp(PyUnicode_DATA(one), PyUnicode_DATA(other),
                                      (size_t)(PyUnicode_GET_LENGTH(one) * PyUnicode_KIND(one))) == 0);
}

/* The place of a ready str, where it is or would go. */
static Constant *constant_place(PyObject *text, Py_hash_t hash)
{
    size_t place = (size_t)hash & (constant_room - 1);
    while (constants[place].text != NULL && (constants[place].hash != hash || !same_text(constants[place].text, text)))
        place = (place + 1) & (constant_room - 1);
    return &constants[place];
}

static void constants_grow(void)
{
    Vector memory, old_memory = constant_memory;
    Constant *old = constants;
    size_t old_room = constant_room;
    vector_open(&memory, sizeof(Constant));
    constant_room = old_room ? old_room * 2 : 8192;
    constants = vector_add(&memory, constant_room);
    constant_memory = memory;
    for (size_t place = 0; place < old_room; place++)
        if (old[place].text != NULL) {
            size_t at = (size_t)old[place].hash & (constant_room - 1);
            while (constants[at].text != NULL)
                at = (at + 1) & (constant_room - 1);
            constants[at] = old[place];
        }
    vector_close(&old_memory);
}

static void learn_text(PyObject *text)
{
    Text ready;
    if (!text_of(text, &ready))
        return;
    Py_hash_t hash = text_hash(text);
    Constant *constant = constant_place(text, hash);
    if (constant->text != NULL)
        return;
    *constant = (Constant){text, hash, 0};
    if (++constant_count * 2 > constant_room)
        constants_grow();
}

/* Calls learn_text for the texts in a constant, however deep; code objects go to `waiting`. */
static void learn_constant(PyObject *value, Vector *waiting)
{
    if (value == NULL)
        return;
    if (PyUnicode_CheckExact(value)) {
        learn_text(value);
    } else if (PyTuple_CheckExact(value) || PyFrozenSet_CheckExact(value) || PyCode_Check(value)) {
        *(PyObject **)vector_add(waiting, 1) = value;
    }
}

static void learn_items(PyObject *value, Vector *waiting)
{
    if (PyTuple_CheckExact(value)) {
        for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(value); place++)
            learn_constant(PyTuple_GET_ITEM(value, place), waiting);
    } else if (PyFrozenSet_CheckExact(value)) {
        PySetObject *set = (PySetObject *)value;
        for (Py_ssize_t place = 0; place <= set->mask; place++)
            learn_constant(set->table[place].key, waiting);
    } else {
        PyCodeObject *code = (PyCodeObject *)value;
        uint64_t known;
        if (table_find(&codes, (uintptr_t)code, &known))
            return;
        table_set(&codes, (uintptr_t)code, 1);
        if (code->co_names != NULL)
            learn_items(code->co_names, waiting);
        if (code->co_consts != NULL)
            for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(code->co_consts); place++)
                learn_constant(PyTuple_GET_ITEM(code->co_consts, place), waiting);
    }
}

static Vector waiting;

void names_learn(PyCodeObject *code)
{
    uint64_t known;
    if (code == NULL || table_find(&codes, (uintptr_t)code, &known))
        return;
    size_t bottom = waiting.count;
    *(PyObject **)vector_add(&waiting, 1) = (PyObject *)code;
    while (waiting.count > bottom)
        learn_items(AT(PyObject *, waiting, --waiting.count), &waiting);
}

bool names_is_constant(PyObject *text)
{
    Text ready;
    return text_of(text, &ready) && is_name_like(ready) && constant_place(text, text_hash(text))->text != NULL;
}

/* Whether the program knows an ASCII word. */
static bool is_word(const char *word, size_t length)
{
    Py_hash_t hash = HASH_OF_BYTES(word, (Py_ssize_t)length);
    size_t place = (size_t)hash & (constant_room - 1);
    for (; constants[place].text != NULL; place = (place + 1) & (constant_room - 1))
        if (constants[place].hash == hash && (size_t)PyUnicode_GET_LENGTH(constants[place].text) == length
            && PyUnicode_IS_ASCII(constants[place].text) && memcmp(PyUnicode_DATA(constants[place].text), word, length) == 0)
            return true;
    return false;
}

/* --- keys, attributes --- */

#define RECENT 4096
typedef struct {
    PyObject *text;
    Row row;
} Recent;
static Recent *recent_attributes; /* direct-mapped by address: most names are interned */
static Row *lengths;              /* rows of str:0 ... */
#define MOST_LENGTHS 1024

static Row masked(Py_ssize_t length)
{
    if (length < MOST_LENGTHS && lengths[length])
        return lengths[length];
    char text[40];
    snprintf(text, sizeof text, "str:%zd", length);
    Row row = row_of_text(text);
    if (length < MOST_LENGTHS)
        lengths[length] = row;
    return row;
}

static Row counted(const char *word, Py_ssize_t count)
{
    char text[60];
    snprintf(text, sizeof text, "%s:%zd", word, count);
    return row_of_text(text);
}

/* The row of what may be an attribute's name, given as text; and whether it is shown as it is. */
static Row attribute_row(Text text)
{
    Made made;
    made_open(&made);
    Row row;
    if (text.length <= TEXT_BYTES / 4 - 1) {
        add_text(&made, text);
        if (row_find(&made, &row))
            return row;
        if (is_identifier(text) && !has_long_number(text))
            return row_of(&made);
        bool is_number = text.length > 1 && AT_POINT(text, 0) == '.';
        for (Py_ssize_t place = 1; place < text.length && is_number; place++)
            is_number = Py_UNICODE_ISDIGIT(AT_POINT(text, place));
        if (is_number) /* the iterable of a comprehension */
            return row_of(&made);
    }
    return masked(text.length);
}

Row name_attribute(PyObject *name)
{
    Recent *recent = &recent_attributes[(uintptr_t)name >> 4 & (RECENT - 1)];
    if (recent->text == name)
        return recent->row;
    Text text;
    if (!text_of(name, &text))
        return name_key(name);
    Row row = attribute_row(text);
    *recent = (Recent){name, row};
    return row;
}

static Row qualname_row(PyTypeObject *type)
{
    PyObject *module, *qualname;
    const char *module_text, *qualname_text;
    names_of(type, &module, &module_text, &qualname, &qualname_text);
    return qualname_text != NULL ? name_dotted_text(qualname_text) : name_dotted(qualname);
}

static Row builtin_function_row(PyObject *key)
{
    PyCFunctionObject *function = (PyCFunctionObject *)key;
    const char *name = function->m_ml != NULL && function->m_ml->ml_name != NULL ? function->m_ml->ml_name : "?";
    PyObject *self = function->m_self;
    if (self == NULL || has_base(Py_TYPE(self), &PyModule_Type))
        return name_dotted_text(name);
    Row before = qualname_row(PyType_Check(self) ? (PyTypeObject *)self : Py_TYPE(self));
    return name_joined("", before, ".", name_dotted_text(name), "");
}

static Row other_key(PyObject *key)
{
    PyTypeObject *type = Py_TYPE(key);
    if (key == Py_None)
        return row_of_text("None");
    if (type == &PyBool_Type)
        return row_of_text(key == Py_True ? "True" : "False");
    if (type == &PyBytes_Type)
        return counted("bytes", PyBytes_GET_SIZE(key));
    if (type == &PyTuple_Type)
        return counted("tuple", PyTuple_GET_SIZE(key));
    if (type == &PyFrozenSet_Type)
        return counted("frozenset", ((PySetObject *)key)->used);
    if (type == &PyLong_Type)
        return row_of_text("int");
    if (type == &PyFloat_Type)
        return row_of_text("float");
    if (type == &PyComplex_Type)
        return row_of_text("complex");
    if (type == &PyFunction_Type) {
        PyObject *name = ((PyFunctionObject *)key)->func_qualname;
        return name != NULL && PyUnicode_CheckExact(name) ? name_dotted(name) : row_of_text("function");
    }
    if (type == &PyCFunction_Type)
        return builtin_function_row(key);
    return qualname_row(has_base(type, &PyType_Type) ? (PyTypeObject *)key : type);
}

Row name_key(PyObject *key)
{
    if (key == NULL)
        return row_of_text("?");
    Text text;
    if (!text_of(key, &text))
        return PyUnicode_CheckExact(key) ? row_of_text("?") : other_key(key);
    Constant *constant = constant_place(key, text_hash(key));
    if (constant->text == NULL || constant->key == NOT_NAME_LIKE)
        return masked(text.length);
    if (constant->key == 0) {
        if (!is_name_like(text)) {
            constant->key = NOT_NAME_LIKE;
            return masked(text.length);
        }
        Made made;
        made_open(&made);
        add(&made, "'");
        add_text(&made, text);
        add(&made, "'");
        constant->key = row_of(&made);
    }
    return constant->key;
}

/* --- names with dots --- */

static const char *const code_names[] = {"<locals>", "<lambda>", "<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>",
                                         "?"};

static Row dotted_part(Text part)
{
    for (size_t place = 0; place < sizeof code_names / sizeof *code_names; place++)
        if (same_as(part, code_names[place]))
            return row_of_text(code_names[place]);
    return attribute_row(part);
}

/* Cuts a text after a number of code points. */
static void cut(Made *made, size_t points)
{
    for (size_t place = 0; place < made->used; place++)
        if (((unsigned char)made->bytes[place] & 0xC0) != 0x80 && points-- == 0) {
            made->used = place;
            made->bytes[place] = 0;
            return;
        }
}

static Row dotted_row(Text text)
{
    Made made;
    made_open(&made);
    Row row;
    if (text.length <= TEXT_BYTES / 4 - 1) {
        add_text(&made, text);
        if (row_find(&made, &row))
            return row;
    }
    made.used = 0;
    Py_ssize_t start = 0;
    for (Py_ssize_t place = 0; place <= text.length && made.used <= 4 * LONGEST_DOTTED; place++)
        if (place == text.length || AT_POINT(text, place) == '.') {
            add(&made, start ? "." : "");
            add(&made, name_text(dotted_part(part_of(text, start, place))));
            start = place + 1;
        }
    cut(&made, LONGEST_DOTTED);
    return row_of(&made);
}

Row name_dotted(PyObject *name)
{
    Text text;
    return text_of(name, &text) ? dotted_row(text) : row_of_text("?");
}

Row name_dotted_text(const char *name)
{
    return dotted_row(text_of_c(name));
}

Row name_joined(const char *before, Row first, const char *between, Row second, const char *after)
{
    Made made;
    made_open(&made);
    const char *parts[2] = {name_text(first), name_text(second)};
    bool is_begun = false;
    add(&made, before);
    for (int part = 0; part < 2; part++)
        if (parts[part][0] != 0 && (strcmp(parts[part], "builtins") != 0 || parts[1 - part][0] == 0)) {
            add(&made, is_begun ? between : "");
            add(&made, parts[part]);
            is_begun = true;
        }
    add(&made, after);
    return row_of(&made);
}

/* --- files and places --- */

static char here[4096]; /* the working directory with a "/" behind it; "/" where there is none */

static bool ends_with(const char *text, size_t length, const char *ending)
{
    size_t count = strlen(ending);
    return length >= count && memcmp(text + length - count, ending, count) == 0;
}

/* Where a path goes on from site-packages or the standard library; NULL: a file of neither. `path` has "/" only. */
static const char *library_part(const char *path)
{
    for (int round = 0; round < 2; round++)
        for (const char *part = path, *end; (end = strchr(part, '/')) != NULL; part = end + 1) {
            size_t length = (size_t)(end - part);
            if (round == 0 && ((length == 13 && memcmp(part, "site-packages", 13) == 0)
                               || (length == 13 && memcmp(part, "dist-packages", 13) == 0)))
                return part;
            if (round == 1 && length > 8 && memcmp(part, "python3.", 8) == 0 && strspn(part + 8, "0123456789") == length - 8)
                return part;
        }
    return NULL;
}

Row name_file(PyObject *path)
{
    Text text;
    char bytes[TEXT_BYTES], *slashed;
    if (!text_of(path, &text) || !text.is_ascii || text.length >= TEXT_BYTES || has_long_number(text))
        return row_of_text("?");
    size_t length = (size_t)text.length;
    memcpy(bytes, text.data, length);
    bytes[length] = 0;
    for (size_t place = 0; place < length; place++)
        if (!is_further((unsigned char)bytes[place]) && strchr("\\<>+", bytes[place]) == NULL)
            return row_of_text("?");
    if (bytes[0] == '<') {
        bool is_known = !strcmp(bytes, "<string>") || !strcmp(bytes, "<stdin>") || !strcmp(bytes, "<console>")
                        || !strncmp(bytes, "<frozen ", 8);
        return row_of_text(is_known ? bytes : "<generated>");
    }
    if (!ends_with(bytes, length, ".py"))
        return row_of_text("?");
    char other[TEXT_BYTES];
    memcpy(other, bytes, length + 1);
    while ((slashed = strchr(other, '\\')) != NULL)
        *slashed = '/';
    const char *library = library_part(other);
    if (library != NULL)
        return row_of_text(library);
    if (strncmp(bytes, here, strlen(here)) == 0)
        return row_of_text(bytes + strlen(here));
    if (bytes[0] != '/')
        return row_of_text(bytes);
    char *last = strrchr(bytes, '/');
    *last = 0;
    const char *parent = strrchr(bytes, '/');
    *last = '/';
    return row_of_text(parent != NULL ? parent + 1 : last + 1);
}

Row name_place(const char *before, PyCodeObject *code, int line)
{
#if AT_LEAST(11)
    PyObject *name = code->co_qualname;
#else
    PyObject *name = code->co_name;
#endif
    if (name == NULL || !PyUnicode_CheckExact(name))
        name = code->co_name;
    Made made;
    made_open(&made);
    char number[16];
    snprintf(number, sizeof number, ":%d", line ? line : code->co_firstlineno);
    add(&made, before);
    add(&made, name_text(name_dotted(name)));
    add(&made, is_text(name, "<module>") ? " at " : "() at ");
    add(&made, name_text(name_file(code->co_filename)));
    add(&made, number);
    return row_of(&made);
}

/* --- names of threads and tasks --- */

static bool is_default_stem(const char *stem, size_t length)
{
    static const char *const stems[] = {"Thread", "Dummy", "Task", "asyncio", "ThreadPoolExecutor", "MainThread", "QueueFeederThread",
                                        "QueueManagerThread"};
    for (size_t place = 0; place < sizeof stems / sizeof *stems; place++)
        if (strlen(stems[place]) == length && memcmp(stems[place], stem, length) == 0)
            return true;
    return false;
}

/* True for a word of the program or the standard library with a number: feed-3, Thread-12 (run), asyncio_0. */
static bool is_numbered(const char *name)
{
    const char *target = strstr(name, " (");
    size_t length = target == NULL ? strlen(name) : (size_t)(target - name);
    target = target == NULL ? "" : target + 2;
    size_t target_length = strlen(target);
    if (target_length) {
        Text inside = {target, (Py_ssize_t)target_length - 1, 1, true};
        if (target[target_length - 1] != ')' || !is_identifier(inside))
            return false;
    }
    while (length > 0 && strchr("0123456789-_", name[length - 1]) != NULL)
        length--;
    if (is_default_stem(name, length))
        return true;
    if (target_length)
        return false;
    char word[LONGEST_NAME * 3];
    memcpy(word, name, length);
    bool is_known = is_word(word, length);
    word[length] = '-';
    is_known = is_known || is_word(word, length + 1);
    word[length] = '_';
    is_known = is_known || is_word(word, length + 1);
    return is_known || (name[length] != 0 && is_word(name, length + 1));
}

/* is_name_like() of the name without parentheses, and is_numbered(). */
static bool is_given_word(Text text)
{
    char name[LONGEST_NAME * 2 + 1], plain[LONGEST_NAME * 2 + 1];
    size_t length = 0, plain_length = 0;
    if (!text.is_ascii || text.length > LONGEST_NAME * 2)
        return false;
    for (Py_ssize_t place = 0; place < text.length; place++) {
        char letter = name[length++] = (char)AT_POINT(text, place);
        if (letter == 0)
            return false;
        if (letter != '(' && letter != ')')
            plain[plain_length++] = letter;
    }
    name[length] = 0;
    Text without = {plain, (Py_ssize_t)plain_length, 1, true};
    return is_name_like(without) && is_numbered(name);
}

Row name_given(const char *before, PyObject *name)
{
    Made made;
    made_open(&made);
    Text text;
    add(&made, before);
    if (name == NULL || !text_of(name, &text)) {
        add(&made, name == NULL ? "?" : name_text(qualname_row(Py_TYPE(name))));
    } else if (names_is_constant(name) || is_given_word(text)) {
        add(&made, "'");
        add_text(&made, text);
        add(&made, "'");
    } else {
        add(&made, name_text(masked(text.length)));
    }
    return row_of(&made);
}

/* --- beginning and end --- */

void names_open(PyObject *words)
{
    vector_open(&rows, sizeof(Shown));
    vector_open(&row_memory, sizeof(uint32_t));
    vector_open(&constant_memory, sizeof(Constant));
    vector_open(&waiting, sizeof(PyObject *));
    table_open(&codes);
    row_room = constant_room = constant_count = 0;
    recent_attributes = arena_take(RECENT * sizeof(Recent));
    lengths = arena_take(MOST_LENGTHS * sizeof(Row));
    rows_grow();
    constants_grow();
    row_of_text("");
    for (unsigned place = 0; place < limit_names_count; place++)
        row_of_text(limit_names[place]);
    if (words != NULL && PyFrozenSet_CheckExact(words))
        learn_items(words, &waiting);
    waiting.count = 0;
    if (getcwd(here, sizeof here - 1) == NULL)
        here[0] = 0;
    if (strcmp(here, "/") != 0 || here[0] == 0)
        strcat(here, "/");
}

void names_close(void)
{
    vector_close(&rows);
    vector_close(&row_memory);
    vector_close(&constant_memory);
    vector_close(&waiting);
    table_close(&codes);
}

/* --- the face in Python, for tests --- */

/* mask(kind, text, words): the text that the rules make of a text, `words` being what the program knows. */
static PyObject *face_mask(PyObject *module, PyObject *arguments)
{
    (void)module;
    const char *kind;
    PyObject *text, *words;
    if (!PyArg_ParseTuple(arguments, "sOO!", &kind, &text, &PyFrozenSet_Type, &words))
        return NULL;
    names_open(words);
    Row row = strcmp(kind, "key") == 0 ? name_key(text)
              : strcmp(kind, "attribute") == 0 ? name_attribute(text)
              : strcmp(kind, "dotted") == 0 ? name_dotted(text)
              : strcmp(kind, "given") == 0 ? name_given("", text)
              : strcmp(kind, "file") == 0 ? name_file(text)
                                          : 0;
    PyObject *shown = PyUnicode_FromString(name_text(row));
    names_close();
    memory_close();
    return shown;
}

PyMethodDef name_methods[] = {
    {"mask", face_mask, METH_VARARGS, "mask(kind, text, words)\n--\n\nWhat is shown of a text: key, attribute, dotted, given or file."},
    {NULL, NULL, 0, NULL}};
