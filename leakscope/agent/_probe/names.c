/* What may be shown: the rules of agent/names.py, letter by letter. The text of a row is made from what may be shown, so nothing else
 * ever leaves the process. Here are keys, attributes and names with dots; places.c has files, places and what threads are called.
 */
#include "texts.h"

#include <stdio.h>

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
    Made made;
    made_open(&made);
    add_masked(&made, length);
    Row row = row_of_made(&made);
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

/* Puts a text into `made`. True: a row reads so, whatever it was made for, and that is shown. */
static bool has_row(Made *made, Text text, Row *row)
{
    made_open(made);
    if (text.length > SURE_TO_FIT)
        return false;
    add_text(made, text);
    return row_find(made, row);
}

/* ".0": the iterable of a comprehension. */
static bool is_iterable(Text text)
{
    bool is_number = text.length > 1 && text.length <= SURE_TO_FIT && AT_POINT(text, 0) == '.';
    for (Py_ssize_t place = 1; place < text.length && is_number; place++)
        is_number = Py_UNICODE_ISDIGIT(AT_POINT(text, place));
    return is_number;
}

/* The row of what may be an attribute's name. */
static Row attribute_row(Text text)
{
    Made made;
    Row row;
    if (has_row(&made, text, &row))
        return row;
    return (is_identifier(text) && !has_long_number(text)) || is_iterable(text) ? row_of_made(&made) : masked(text.length);
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

static Row dotted_part(Text part)
{
    const char *name = code_name(part);
    return name != NULL ? row_of_text(name) : attribute_row(part);
}

static Row dotted_row(Text text)
{
    Made made;
    Row row;
    if (has_row(&made, text, &row))
        return row;
    made_open(&made);
    for (Py_ssize_t next = 0; next <= text.length && made.used <= 4 * LONGEST_DOTTED;) {
        add(&made, next ? "." : "");
        add(&made, name_text(dotted_part(part_at(text, &next))));
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
