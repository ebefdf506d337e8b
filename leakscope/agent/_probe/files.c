/* What may be shown of the name of a file: the rules of names.file_name. */
#include "texts.h"

bool begins(const char *text, const char *beginning)
{
    return beginning[0] != 0 && strncmp(text, beginning, strlen(beginning)) == 0;
}

bool ends(const char *text, const char *ending)
{
    size_t length = strlen(text), ending_length = strlen(ending);
    return length >= ending_length && strcmp(text + length - ending_length, ending) == 0;
}

/* names._OF_FILES */
static bool is_file_like(Text path)
{
    for (Py_ssize_t place = 0; place < path.length; place++) {
        Py_UCS4 point = AT_POINT(path, place);
        if (!is_name_character(point) && point != '\\' && point != '<' && point != '>' && point != '+')
            return false;
    }
    return !has_long_number(path);
}

/* Where a path goes on from site-packages or the standard library; NULL: a file of neither. `path` has "/" only. */
static const char *library_part(const char *path)
{
    const char *version = NULL;
    for (const char *part = path, *end; (end = strchr(part, '/')) != NULL; part = end + 1) {
        if (begins(part, "site-packages/") || begins(part, "dist-packages/"))
            return part;
        size_t length = (size_t)(end - part);
        if (version == NULL && length > 8 && begins(part, "python3.") && strspn(part + 8, "0123456789") == length - 8)
            version = part;
    }
    return version;
}

static const char *last_two_parts(const char *path)
{
    const char *part = strrchr(path, '/');
    while (part > path && part[-1] != '/')
        part--;
    return part[0] == '/' ? part + 1 : part; /* "/app.py" has only one */
}

const char *file_part(Text path, const char *here, char *slashed)
{
    if (!path.is_ascii || path.length >= TEXT_BYTES || !is_file_like(path))
        return "?";
    const char *whole = path.data; /* there is a 0 behind it, as behind every ASCII text, and none in it */
    if (whole[0] == '<') {
        bool is_known = !strcmp(whole, "<string>") || !strcmp(whole, "<stdin>") || !strcmp(whole, "<console>") || begins(whole, "<frozen ");
        return is_known ? whole : "<generated>";
    }
    if (!ends(whole, ".py"))
        return "?";
    for (Py_ssize_t place = 0; place <= path.length; place++)
        slashed[place] = whole[place] == '\\' ? '/' : whole[place];
    const char *library = library_part(slashed);
    if (library != NULL)
        return library;
    if (begins(whole, here))
        return whole + strlen(here);
    return whole[0] == '/' ? last_two_parts(whole) : whole;
}
