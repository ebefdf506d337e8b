/* What of a code object may be shown: the rules of sites.shown_path and names.Names.dotted, for the sampler, which meets code while no
 * walk is going on and must copy its names because it keeps no reference. It has no string table, so it never takes a part of a name
 * for a row that reads so: that is all in which it differs from name_dotted(). */
#include "shown.h"
#include "sample.h"

#include <stdio.h>

#define FOLDER_BYTES 1024

static struct {
    char own[FOLDER_BYTES], library[FOLDER_BYTES], here[FOLDER_BYTES];
} folders;

static void keep(char *kept, const char *folder)
{
    snprintf(kept, FOLDER_BYTES, "%s", strlen(folder) < FOLDER_BYTES ? folder : "");
}

void shown_open(const char *own, const char *library, const char *here)
{
    keep(folders.own, own);
    keep(folders.library, library);
    keep(folders.here, here);
}

/* Whoever asks is inside an allocation of the interpreter: only what is whole at any moment is read, its letters behind its header. */
static bool compact_text_of(PyObject *thing, Text *text)
{
    return thing != NULL && PyUnicode_CheckExact(thing) && PyUnicode_IS_COMPACT(thing) && text_of(thing, text);
}

/* What follows the last `part` of a path; NULL: it is nowhere in it. */
static const char *behind_last(const char *path, const char *part)
{
    const char *found = NULL;
    for (const char *next = strstr(path, part); next != NULL; next = strstr(next + 1, part))
        found = next + strlen(part);
    return found;
}

const char *shown_file(PyObject *path, char *slashed, bool *is_own)
{
    Text text;
    *is_own = false;
    if (!compact_text_of(path, &text) || !text.is_ascii)
        return "?";
    const char *whole = text.data, *shown = file_part(text, folders.here, slashed);
    *is_own = begins(whole, folders.own);
    if (!ends(shown, ".py"))
        return shown;
    const char *package = behind_last(whole, "/site-packages/");
    if (package == NULL)
        package = behind_last(whole, "/dist-packages/");
    if (package != NULL)
        return package;
    return begins(whole, folders.library) ? whole + strlen(folders.library) : shown;
}

void shown_function(PyObject *name, Made *shown)
{
    Text text;
    made_open(shown);
    if (!compact_text_of(name, &text)) {
        add(shown, "?");
        return;
    }
    for (Py_ssize_t next = 0; next <= text.length && shown->used <= 4 * LONGEST_DOTTED;) {
        add(shown, next ? "." : "");
        Text part = part_at(text, &next);
        if (part.length == 0 || code_name(part) != NULL || (is_identifier(part) && !has_long_number(part)))
            add_text(shown, part);
        else
            add_masked(shown, part.length);
    }
    cut(shown, LONGEST_DOTTED);
}
