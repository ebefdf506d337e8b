/* What keys.c and key_marks.c share: where the parts of a key are counted. */
#ifndef LEAKSCOPE_KEYS_H
#define LEAKSCOPE_KEYS_H

#include "readers.h"
#include "texts.h"

#define MOST_POSITIONS 32
#define MOST_TYPES 6          /* of a position */
#define MOST_ITEMS 64         /* of a tuple; of what comes after them only the number counts */
#define MOST_STEPS 4          /* an argument, and three levels inside it */
#define MOST_PARTS 256        /* of a key; of a table of tables in it there may be 64 times 64 times ... */

typedef struct {
    Row name;   /* 0: the index */
    uint32_t index;
    char mark;  /* '.' field, '=' keyword */
} Step;

typedef struct {
    Step at[MOST_STEPS];
    unsigned depth;
    Row types[MOST_TYPES];
    uint32_t type_counts[MOST_TYPES], type_count, other_types;
    uint32_t distinct, shown, identity, opaque;
    uint32_t last_key; /* that was counted here: each is counted once, or `seen` would overflow */
    int32_t least, most;
    Vector seen; /* uint64_t, open addressing; kept from one cache to the next */
} Position;

extern Position *positions;
extern unsigned position_count;
extern uint64_t parts_seen; /* of all keys since marks_begin() */

void marks_open(void);
void marks_close(void);
void marks_begin(size_t looked);                /* forgets the positions; makes room for so many different values in each */
void marks_next_key(int32_t *sample);           /* before each key. sample: gets the ints that are shown, by position; NULL: nowhere */
void look_at(PyObject *thing);                  /* a key that has no parts */
void look_at_part(PyObject *part, Step step);   /* an argument or item of it */
bool is_plain(PyTypeObject *type);              /* of a value that is told by itself: int, bool, str, bytes, float, None */
bool has_items(PyObject *thing);                /* a tuple that is compared by its items */

#endif
