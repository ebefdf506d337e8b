/* What may be shown of files, of places in code, and of what a program called its threads and tasks: the rules of agent/names.py. */
#include "texts.h"

#include <stdio.h>
#include <unistd.h>

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
        if (!is_name_character((unsigned char)bytes[place]) && strchr("\\<>+", bytes[place]) == NULL)
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
    return row_of_made(&made);
}

void places_open(void)
{
    if (getcwd(here, sizeof here - 1) == NULL)
        here[0] = 0;
    if (strcmp(here, "/") != 0 || here[0] == 0)
        strcat(here, "/");
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
    return row_of_made(&made);
}
