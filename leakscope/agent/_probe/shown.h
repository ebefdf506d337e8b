/* What of a code object the sampler shows: shown.c. */
#ifndef LEAKSCOPE_SHOWN_H
#define LEAKSCOPE_SHOWN_H

#include "texts.h"

const char *shown_file(PyObject *path, char *slashed, bool *is_own); /* as sites.shown_path; for `slashed` see file_part() */
void shown_function(PyObject *name, Made *shown);                    /* as names.Names.dotted */

#endif
