/* What of a code object may be shown: the rules of sites.shown_path and names.Names.dotted, for the sampler, which meets code while no
 * walk is going on and must copy its names because it keeps no reference. */
#include "sample.h"

#include <stdio.h>

#define LONGEST_NAME 60
#define LONGEST_NUMBER 5
#define LONGEST_DOTTED 200

static struct {
    char own[SHOWN_BYTES], library[SHOWN_BYTES], here[SHOWN_BYTES];
} folders;

static void keep(char *kept, const char *folder)
{
    snprintf(kept, SHOWN_BYTES, "%s", strlen(folder) < SHOWN_BYTES ? folder : "");
}

void shown_open(const char *own, const char *library, const char *here)
{
    keep(folders.own, own);
    keep(folders.library, library);
    keep(folders.here, here);
}

static bool is_letter(Py_UCS4 point)
{
    return (point >= 'A' && point <= 'Z') || (point >= 'a' && point <= 'z') || point == '_';
}

static bool is_digit(Py_UCS4 point)
{
    return point >= '0' && point <= '9';
}

static bool begins(const char *text, const char *beginning)
{
    return beginning[0] != 0 && strncmp(text, beginning, strlen(beginning)) == 0;
}

static bool ends(const char *text, const char *ending)
{
    size_t length = strlen(text), ending_length = strlen(ending);
    return length >= ending_length && strcmp(text + length - ending_length, ending) == 0;
}

static const char *last(const char *text, const char *part)
{
    const char *found = NULL;
    for (const char *next = strstr(text, part); next != NULL; next = strstr(next + 1, part))
        found = next;
    return found;
}

/* --- files --- */

/* Letters that a file name may have, and no long number (names._OF_FILES, names._has_long_number). */
static bool is_file_like(const char *path)
{
    size_t run = 0;
    for (const char *letter = path; *letter != 0; letter++) {
        unsigned char point = (unsigned char)*letter;
        if (!is_letter(point) && !is_digit(point) && strchr(" ./:-\\<>+", point) == NULL)
            return false;
        run = is_digit(point) ? run + 1 : 0;
        if (run > LONGEST_NUMBER)
            return false;
    }
    return true;
}

/* names.library_part: from "site-packages", else from "python3.N" on, where that is a folder of the path. */
static const char *library_part(const char *path)
{
    const char *version = NULL;
    for (const char *part = path, *slash; (slash = strchr(part, '/')) != NULL; part = slash + 1) {
        size_t length = (size_t)(slash - part);
        if (length == 13 && (strncmp(part, "site-packages", 13) == 0 || strncmp(part, "dist-packages", 13) == 0))
            return part;
        if (version == NULL && length > 8 && strncmp(part, "python3.", 8) == 0) {
            size_t digits = 8;
            while (digits < length && is_digit((unsigned char)part[digits]))
                digits++;
            version = digits == length ? part : NULL;
        }
    }
    return version;
}

static const char *last_two_parts(const char *path)
{
    const char *slash = strrchr(path, '/');
    while (slash > path && slash[-1] != '/')
        slash--;
    return slash == path ? path + 1 : slash; /* "/app.py" has one */
}

/* Returns the part of a ".py" path that is shown; `other` has room for a copy. */
static const char *shown_source(const char *path, char *other)
{
    const char *markers[] = {"/site-packages/", "/dist-packages/"};
    for (int marker = 0; marker < 2; marker++) {
        const char *found = last(path, markers[marker]);
        if (found != NULL)
            return found + strlen(markers[marker]);
    }
    if (begins(path, folders.library))
        return path + strlen(folders.library);
    strcpy(other, path);
    for (char *letter = other; *letter != 0; letter++)
        if (*letter == '\\')
            *letter = '/';
    const char *library = library_part(other);
    if (library != NULL)
        return library;
    if (begins(path, folders.here))
        return path + strlen(folders.here);
    return path[0] == '/' ? last_two_parts(path) : path;
}

static size_t copy(char *shown, const char *text)
{
    size_t length = strlen(text);
    memcpy(shown, text, length + 1);
    return length;
}

size_t shown_file(PyObject *path, char *shown, bool *is_own)
{
    char text[SHOWN_BYTES], other[SHOWN_BYTES];
    *is_own = false;
    if (path == NULL || !PyUnicode_Check(path) || !PyUnicode_IS_COMPACT_ASCII(path) || PyUnicode_GET_LENGTH(path) >= SHOWN_BYTES)
        return copy(shown, "?");
    memcpy(text, PyUnicode_DATA(path), (size_t)PyUnicode_GET_LENGTH(path) + 1);
    *is_own = begins(text, folders.own);
    if (strlen(text) != (size_t)PyUnicode_GET_LENGTH(path) || !is_file_like(text))
        return copy(shown, "?");
    if (text[0] == '<') {
        bool is_known = !strcmp(text, "<string>") || !strcmp(text, "<stdin>") || !strcmp(text, "<console>") || begins(text, "<frozen ");
        return copy(shown, is_known ? text : "<generated>");
    }
    return copy(shown, ends(text, ".py") ? shown_source(text, other) : "?");
}

/* --- functions --- */

/* A part of a name between two dots, or one letter of it; `points` in the kind of the str. */
typedef struct {
    int kind;
    const void *data;
    Py_ssize_t begin, end;
} Part;

static Py_UCS4 point_of(Part part, Py_ssize_t place)
{
    return PyUnicode_READ(part.kind, part.data, part.begin + place);
}

static bool has_long_number(Part part)
{
    int run = 0;
    for (Py_ssize_t place = part.begin; place < part.end; place++) {
        run = is_digit(PyUnicode_READ(part.kind, part.data, place)) ? run + 1 : 0;
        if (run > LONGEST_NUMBER)
            return true;
    }
    return false;
}

static bool is_identifier(Part part)
{
    Py_ssize_t length = part.end - part.begin;
    if (length < 1 || length > LONGEST_NAME)
        return false;
    bool is_ascii = true, is_plain = is_letter(point_of(part, 0));
    for (Py_ssize_t place = 0; place < length; place++) {
        Py_UCS4 point = point_of(part, place);
        is_ascii = is_ascii && point < 128;
        is_plain = is_plain && (is_letter(point) || is_digit(point));
    }
    if (is_plain || is_ascii)
        return is_plain;
    /* The interpreter's own tables, asked with a str on our stack: no object is made, and it only reads. */
    struct {
        PyCompactUnicodeObject head;
        Py_UCS4 points[LONGEST_NAME + 1];
    } asked;
    memset(&asked, 0, sizeof asked);
    Py_SET_TYPE((PyObject *)&asked, &PyUnicode_Type);
    asked.head._base.length = length;
    asked.head._base.hash = -1;
    asked.head._base.state.kind = PyUnicode_4BYTE_KIND;
    asked.head._base.state.compact = 1;
#if !AT_LEAST(12)
    asked.head._base.state.ready = 1;
#endif
    for (Py_ssize_t place = 0; place < length; place++)
        asked.points[place] = point_of(part, place);
    return PyUnicode_IsIdentifier((PyObject *)&asked) == 1;
}

static bool is_ascii_text(Part part, const char *text)
{
    if (part.end - part.begin != (Py_ssize_t)strlen(text))
        return false;
    for (Py_ssize_t place = 0; text[place] != 0; place++)
        if (point_of(part, place) != (unsigned char)text[place])
            return false;
    return true;
}

static bool is_of_the_compiler(Part part)
{
    static const char *const names[] = {"<locals>", "<lambda>", "<module>", "<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "?"};
    for (size_t name = 0; name < sizeof names / sizeof *names; name++)
        if (is_ascii_text(part, names[name]))
            return true;
    return false;
}

static size_t add_point(char *shown, Py_UCS4 point)
{
    if (point < 0x80) {
        shown[0] = (char)point;
        return 1;
    }
    size_t more = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
    shown[0] = (char)(0xFF00 >> (more + 1) | point >> 6 * more);
    for (size_t byte = 1; byte <= more; byte++)
        shown[byte] = (char)(0x80 | (point >> 6 * (more - byte) & 0x3F));
    return more + 1;
}

/* Adds points to a name until it is as long as it may be. */
static void add_part(Part part, char *shown, size_t *used, Py_ssize_t *room)
{
    for (Py_ssize_t place = 0; part.begin + place < part.end && *room > 0; place++, --*room)
        *used += add_point(shown + *used, point_of(part, place));
}

size_t shown_function(PyObject *name, char *shown)
{
    if (name == NULL || !PyUnicode_Check(name) || !PyUnicode_IS_COMPACT(name))
        return copy(shown, "?");
    Part part = {PyUnicode_KIND(name), PyUnicode_DATA(name), 0, 0};
    const Part dot = {PyUnicode_1BYTE_KIND, ".", 0, 1};
    Py_ssize_t length = PyUnicode_GET_LENGTH(name), room = LONGEST_DOTTED;
    size_t used = 0;
    for (; part.begin <= length; part.begin = part.end + 1) {
        for (part.end = part.begin; part.end < length && PyUnicode_READ(part.kind, part.data, part.end) != '.'; part.end++)
            ;
        if (part.begin > 0)
            add_part(dot, shown, &used, &room);
        if (part.end == part.begin || is_of_the_compiler(part) || (is_identifier(part) && !has_long_number(part))) {
            add_part(part, shown, &used, &room);
            continue;
        }
        char masked[32];
        int masked_length = snprintf(masked, sizeof masked, "str:%zd", part.end - part.begin);
        add_part((Part){PyUnicode_1BYTE_KIND, masked, 0, masked_length}, shown, &used, &room);
    }
    shown[used] = 0;
    return used;
}
