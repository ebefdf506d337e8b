/* Texts of the target stay where they are; no reference is taken. What may be shown of them is put together here as UTF-8. */
#include "texts.h"

#include <stdio.h>

#define LONGEST_NUMBER 5

/* --- texts of the target: code points at an address --- */

bool text_of(PyObject *thing, Text *text)
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

bool same_as(Text text, const char *word)
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

static void add_bytes(Made *made, const char *bytes, size_t count)
{
    if (count > TEXT_BYTES - 1 - made->used)
        count = TEXT_BYTES - 1 - made->used;
    memcpy(made->bytes + made->used, bytes, count);
    made->used += count;
    made->bytes[made->used] = 0;
}

void add(Made *made, const char *text)
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

void add_text(Made *made, Text text)
{
    if (text.is_ascii) {
        add_bytes(made, text.data, (size_t)text.length);
        return;
    }
    for (Py_ssize_t place = 0; place < text.length && made->used < TEXT_BYTES - 4; place++)
        add_point(made, AT_POINT(text, place));
}

void add_masked(Made *made, Py_ssize_t length)
{
    char text[40];
    snprintf(text, sizeof text, "str:%zd", length);
    add(made, text);
}

void cut(Made *made, size_t points)
{
    for (size_t place = 0; place < made->used; place++)
        if (((unsigned char)made->bytes[place] & 0xC0) != 0x80 && points-- == 0) {
            made->used = place;
            made->bytes[place] = 0;
            return;
        }
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

bool is_name_character(Py_UCS4 point)
{
    return is_first(point) || is_digit(point) || point == ' ' || point == '.' || point == '/' || point == ':' || point == '-';
}

bool has_long_number(Text text)
{
    int run = 0;
    for (Py_ssize_t place = 0; place < text.length; place++) {
        run = is_digit(AT_POINT(text, place)) ? run + 1 : 0;
        if (run > LONGEST_NUMBER)
            return true;
    }
    return false;
}

bool is_name_like(Text text)
{
    if (text.length < 1 || text.length > LONGEST_NAME || !text.is_ascii || !is_first(AT_POINT(text, 0)))
        return false;
    for (Py_ssize_t place = 1; place < text.length; place++)
        if (!is_name_character(AT_POINT(text, place)))
            return false;
    return !has_long_number(text);
}

bool is_identifier(Text text)
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

/* --- names with dots --- */

const char *code_name(Text text)
{
    static const char *const names[] = {"<locals>", "<lambda>", "<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "?"};
    for (size_t place = 0; place < sizeof names / sizeof *names; place++)
        if (same_as(text, names[place]))
            return names[place];
    return NULL;
}

Text part_at(Text text, Py_ssize_t *next)
{
    Py_ssize_t start = *next, end = start;
    while (end < text.length && AT_POINT(text, end) != '.')
        end++;
    *next = end + 1;
    return (Text){(const char *)text.data + start * text.kind, end - start, text.kind, text.is_ascii};
}
