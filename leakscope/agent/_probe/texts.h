/* What the files of names.c share: texts of the target, the text of a row in the making, and what the program knows.
 *
 * What texts.c and files.c have keeps nothing and asks for no memory: the sampler uses it too (shown.c), while no walk goes on. */
#ifndef LEAKSCOPE_TEXTS_H
#define LEAKSCOPE_TEXTS_H

#include "engine.h"

#define LONGEST_NAME 60    /* code points */
#define LONGEST_DOTTED 200 /* the same */
#define TEXT_BYTES 2048    /* of one row at most */
#define SURE_TO_FIT (TEXT_BYTES / 4 - 1) /* code points */

/* --- texts.c: texts of the target, code points at an address; and what reads like a name --- */

typedef struct {
    const void *data;
    Py_ssize_t length;
    int kind; /* bytes of a code point */
    bool is_ascii;
} Text;

#define AT_POINT(text, place) PyUnicode_READ((text).kind, (text).data, place)

bool text_of(PyObject *thing, Text *text); /* false for what is no exact str, or one that is not ready (3.10, 3.11) */
bool same_as(Text text, const char *word);
bool is_name_character(Py_UCS4 point);     /* of names.py, after the first one */
bool is_name_like(Text text);
bool is_identifier(Text text);             /* str.isidentifier of up to LONGEST_NAME code points */
bool has_long_number(Text text);
const char *code_name(Text text);          /* if it is one that the compiler gives, "<lambda>": that; else NULL */
Text part_at(Text text, Py_ssize_t *next); /* from place *next to a dot or the end; *next is then behind that */

/* --- texts.c: a text in the making; what is too long is cut --- */

typedef struct {
    size_t used;
    char bytes[TEXT_BYTES];
} Made;

/* Not by an initialiser, which would clear the whole of it. */
static inline void made_open(Made *made)
{
    made->used = 0;
    made->bytes[0] = 0;
}

void add(Made *made, const char *text);
void add_text(Made *made, Text text);
void add_masked(Made *made, Py_ssize_t length); /* str:17 */
void cut(Made *made, size_t points);            /* after a number of code points */

/* --- files.c --- */

bool begins(const char *text, const char *beginning); /* never with "" */
bool ends(const char *text, const char *ending);
const char *file_part(Text path, const char *here, char *slashed); /* what names.file_name shows of it: a part of it, of `slashed`, which
    has room for TEXT_BYTES, or a word. here: the working directory, with a "/" behind it; "": there is none */

/* --- strings.c: the rows of the string table --- */

void strings_open(void);
void strings_close(void);
bool row_find(const Made *made, Row *row); /* false: it has none yet */
Row row_of_made(const Made *made);         /* found or added */
Row row_of_text(const char *text);

/* --- words.c: constants of the program --- */

typedef struct {
    PyObject *text;
    Py_hash_t hash;
    Row key; /* of 'text'; 0: not made yet */
} Constant;

void words_open(PyObject *words);                   /* frozenset of str, or NULL */
void words_close(void);
Py_hash_t hash_of_text(PyObject *text);             /* of a ready str: the one it keeps, or made the same way */
Py_hash_t hash_of_bytes(const void *bytes, Py_ssize_t count);
Constant *constant_of(PyObject *text);              /* of a ready str; NULL: the program does not know it */
bool is_word(const char *word, size_t length);      /* whether the program knows an ASCII word */

/* --- names.c --- */

Row masked(Py_ssize_t length);
Row qualname_row(PyTypeObject *type);

/* --- places.c --- */

void places_open(void); /* asks for the working directory */

#endif
