/* What may be shown: the rules of agent/names.py, letter by letter. The text of a row is made from what may be shown, so nothing else
 * ever leaves the process. Here are keys, attributes and names with dots; places.c has files, places and what threads are called.
 */
#include "texts.h"

#include <stdio.h>

#define LONGEST_DOTTED 200 /* code points */

/* --- keys, attributes --- */

#define NOT_NAME_LIKE UINT32_MAX
#define RECENT 4096
typedef struct {
    PyObject *text;
    Row row;
} Recent;
static Recent *recent_attributes; /* direct-mapped by address: most names are interned */
static Row *lengths;              /* rows of str:0 ... */
#define MOST_LENGTHS 1024

Row masked(Py_ssize_t length)
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
            return row_of_made(&made);
        bool is_number = text.length > 1 && AT_POINT(text, 0) == '.';
        for (Py_ssize_t place = 1; place < text.length && is_number; place++)
            is_number = Py_UNICODE_ISDIGIT(AT_POINT(text, place));
        if (is_number) /* the iterable of a comprehension */
            return row_of_made(&made);
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

Row qualname_row(PyTypeObject *type)
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
    Constant *constant = constant_of(key);
    if (constant == NULL || constant->key == NOT_NAME_LIKE)
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
        constant->key = row_of_made(&made);
    }
    return constant->key;
}

/* --- names with dots --- */

static const char *const code_names[] = {"<locals>", "<lambda>", "<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>",
                                         "?"};

static Text part_of(Text text, Py_ssize_t start, Py_ssize_t end)
{
    return (Text){(const char *)text.data + start * text.kind, end - start, text.kind, text.is_ascii};
}

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
    return row_of_made(&made);
}

Row name_dotted(PyObject *name)
{
    Text text;
    return text_of(name, &text) ? dotted_row(text) : row_of_text("?");
}

Row name_dotted_text(const char *name)
{
    return dotted_row((Text){name, (Py_ssize_t)strlen(name), 1, true});
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
    return row_of_made(&made);
}

/* --- beginning and end --- */

void names_open(PyObject *words)
{
    recent_attributes = arena_take(RECENT * sizeof(Recent));
    lengths = arena_take(MOST_LENGTHS * sizeof(Row));
    strings_open();
    words_open(words);
    places_open();
}

void names_close(void)
{
    strings_close();
    words_close();
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
