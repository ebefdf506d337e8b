/* What may be shown of files, of places in code, and of what a program called its threads and tasks: the rules of agent/names.py. */
#include "texts.h"

#include <stdio.h>
#include <unistd.h>

/* --- files and places --- */

static char here[4096]; /* the working directory with a "/" behind it; "/" where there is none */

Row name_file(PyObject *path)
{
    Text text;
    char slashed[TEXT_BYTES];
    return row_of_text(text_of(path, &text) ? file_part(text, here, slashed) : "?");
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
