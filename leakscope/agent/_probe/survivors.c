/* What a walk writes of the sampled blocks that live: the object that each is, or is the body of, and the sites. */
#include "deque.h"
#include "engine.h"
#include "sample.h"

#include <stdio.h>

/* Frames of all sites together: a bound of names.json, at about 50 bytes a frame. */
#define MOST_FRAMES_WRITTEN 262144u
#define MOST_FRAMES 64u
#define NO_NODE UINT32_MAX
#define NOT_SHOWN (UINT32_MAX - 1) /* the agent's: no part of the snapshot */

typedef struct {
    uint32_t stack;
    double bytes, count;
} Site;

typedef struct {
    const void *block;
    uint32_t row; /* of the object whose body it is */
} Body;

/* Of the walk that goes on; all mmap'd, freed when the next one begins or the sites are written. */
static struct {
    Sample *samples;
    size_t count, samples_bytes;
    uint32_t *nodes, *rows; /* by sample: its node; the row of its site */
    Site *sites;
    size_t site_count;
    Body *bodies;           /* blocks that may be sampled, as the walk came by */
    size_t body_count, body_room;
    char *text;
    size_t text_count, text_room;
} found;

static void close_found(void)
{
    pages_free(found.samples, found.samples_bytes);
    pages_free(found.nodes, found.count * sizeof *found.nodes + 1);
    pages_free(found.rows, found.count * sizeof *found.rows + 1);
    pages_free(found.sites, (found.count + 1) * sizeof *found.sites);
    pages_free(found.bodies, found.body_room * sizeof *found.bodies);
    pages_free(found.text, found.text_room);
    memset(&found, 0, sizeof found);
}

/* --- sites: with the lock, because stacks may be renewed ------------------------------------------------------------------------ */

static bool make_room(size_t bytes)
{
    size_t room = (found.text_room + bytes) * 2 + 65536;
    char *grown = pages_resize(found.text, found.text_room, room);
    if (grown == NULL)
        return false;
    found.text = grown;
    found.text_room = room;
    return true;
}

static bool add(const char *text, size_t length)
{
    if (found.text_count + length > found.text_room && !make_room(length))
        return false;
    memcpy(found.text + found.text_count, text, length);
    found.text_count += length;
    return true;
}

static bool add_place(uint32_t place)
{
    size_t length;
    while ((length = place_json(place, found.text + found.text_count, found.text_room - found.text_count)) == 0)
        if (!make_room(0))
            return false;
    found.text_count += length;
    return true;
}

static bool add_site(const Site *site, uint32_t most)
{
    char numbers[96];
    uint32_t places[MOST_FRAMES], count = stack_places(site->stack, places, most);
    bool is_added = add(",{\"frames\":[", 12);
    for (uint32_t frame = 0; frame < count; frame++)
        is_added = is_added && add(",", frame ? 1 : 0) && add_place(places[frame]);
    int length = snprintf(numbers, sizeof numbers, "],\"bytes\":%.0f,\"count\":%.0f}", site->bytes, site->count);
    return is_added && add(numbers, (size_t)length);
}

/* Gives each stack that a live block has a row of "sites", and writes them down. */
static bool make_sites(void)
{
    size_t table_bytes = (size_t)stacks_count() * sizeof(uint32_t);
    uint32_t *row_of = pages_resize(NULL, 0, table_bytes);
    found.sites = pages_resize(NULL, 0, (found.count + 1) * sizeof *found.sites);
    if (row_of == NULL || found.sites == NULL)
        return false;
    for (size_t number = 0; number < found.count; number++) {
        const Sample *sample = &found.samples[number];
        uint32_t *row = &row_of[sample->stack];
        if (found.nodes[number] == NOT_SHOWN)
            continue;
        if (*row == 0) {
            *row = (uint32_t)++found.site_count;
            found.sites[*row].stack = sample->stack;
        }
        found.rows[number] = *row;
        found.sites[*row].bytes += sample->weight;
        found.sites[*row].count += sample->weight / (double)(sample->bytes ? sample->bytes : 1);
    }
    pages_free(row_of, table_bytes);
    size_t most = MOST_FRAMES_WRITTEN / (found.site_count + 1);
    bool is_added = add("[null", 5);
    for (size_t row = 1; row <= found.site_count && is_added; row++)
        is_added = add_site(&found.sites[row], most > MOST_FRAMES ? MOST_FRAMES : most < 4 ? 4 : (uint32_t)most);
    return is_added && add("]", 1);
}

/* --- bodies: blocks that belong to an object and are not where it is. Noted while the walk has the object in the cache --------- */

static __attribute__((noinline)) void note_body(const void *block, uint32_t row)
{
    if (found.body_count == found.body_room) {
        size_t room = found.body_room ? found.body_room * 2 : 4096;
        Body *grown = pages_resize(found.bodies, found.body_room * sizeof *grown, room * sizeof *grown);
        if (grown == NULL)
            return;
        found.bodies = grown;
        found.body_room = room;
    }
    found.bodies[found.body_count++] = (Body){block, row};
}

INLINE void body(const void *block, uint32_t row)
{
    if (UNLIKELY(may_be_sampled(block)))
        note_body(block, row);
}

/* The values of attributes apart from their object: of 3.11 and 3.12 with a prefix, whose length is the byte before them. */
static inline void body_of_values(const void *values, uint32_t row)
{
#if AT_LEAST(11) && !AT_LEAST(13)
    if (values != NULL)
        values = (const char *)values - ((const uint8_t *)values)[-1];
#endif
    body(values, row);
}

static void body_of_list(PyObject *thing, uint32_t row)
{
    body(((PyListObject *)thing)->ob_item, row);
}

static void body_of_dict(PyObject *thing, uint32_t row)
{
    const PyDictObject *dict = (PyDictObject *)thing;
    if (dict->ma_values == NULL)
        body(dict->ma_keys, row);
    else /* the keys belong to the class */
        body_of_values(dict->ma_values, row);
}

static void body_of_set(PyObject *thing, uint32_t row)
{
    body(((PySetObject *)thing)->table, row);
}

static void body_of_bytearray(PyObject *thing, uint32_t row)
{
    body(((PyByteArrayObject *)thing)->ob_bytes, row);
}

static void body_of_type(PyObject *thing, uint32_t row)
{
    if (((PyTypeObject *)thing)->tp_flags & Py_TPFLAGS_HEAPTYPE)
        body(((PyHeapTypeObject *)thing)->ht_cached_keys, row);
}

#if AT_LEAST(11) && !AT_LEAST(13) /* else they lie in a dict, or in the object */
static void body_of_instance(PyObject *thing, uint32_t row)
{
#if AT_LEAST(12)
    const char *values = ((char **)thing)[-3]; /* pycore_object.h, _PyObject_DictOrValuesPointer: odd if they are values */
    if ((uintptr_t)values & 1)
        body_of_values(values + 1, row);
#else
    body_of_values(((void **)thing)[-4], row); /* pycore_object.h, _PyObject_ValuesPointer */
#endif
}
#endif

static void bodies_of_deque(PyObject *thing, uint32_t row)
{
    const Deque *deque = (Deque *)thing;
    for (const DequeBlock *block = deque->leftblock; block != NULL; block = block == deque->rightblock ? NULL : block->right)
        body(block, row);
}

void take_bodies(TypeInfo *info)
{
    PyTypeObject *type = info->type;
    if (info->type_id == 0) /* the first type: a walk begins, and the one before it may have failed */
        close_found();
    if (!samples_are_on())
        return;
    if (type->tp_flags & Py_TPFLAGS_LIST_SUBCLASS)
        info->bodies = body_of_list;
    else if (type->tp_flags & Py_TPFLAGS_DICT_SUBCLASS)
        info->bodies = body_of_dict;
    else if (type->tp_flags & Py_TPFLAGS_TYPE_SUBCLASS)
        info->bodies = body_of_type;
    else if (has_base(type, &PySet_Type) || has_base(type, &PyFrozenSet_Type))
        info->bodies = body_of_set;
    else if (has_base(type, &PyByteArray_Type))
        info->bodies = body_of_bytearray;
    else if (has_base(type, deque_type()))
        info->bodies = bodies_of_deque;
#if AT_LEAST(11) && !AT_LEAST(13)
    else if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT)
        info->bodies = body_of_instance;
#endif
}

/* --- nodes ----------------------------------------------------------------------------------------------------------------------- */

/* The object in a block begins with it, or behind the collector's header (16 bytes), or behind that and two pointers of attributes and
 * weak references (Include/internal/pycore_object.h, _PyType_PreHeaderSize). */
static uint32_t node_in(const Sample *sample)
{
    for (size_t before = 0; before <= 32 && before < sample->bytes; before += 16) {
        uint32_t known = map_get((const void *)(sample->address + before));
        if (known != ABSENT)
            return known == LEFT_OUT ? NOT_SHOWN : known - 1;
    }
    return NO_NODE;
}

/* The nodes of the blocks that are objects. With the rows known and no lock needed, but the sites must know what is not shown. */
static size_t find_objects(void)
{
    size_t unknown = 0;
    for (size_t number = 0; number < found.count; number++) {
        found.nodes[number] = node_in(&found.samples[number]);
        unknown += found.nodes[number] == NO_NODE;
    }
    return unknown;
}

/* Open addressing: sample + 1 of those that are no objects. */
static uint32_t *place_in(uint32_t *places, size_t mask, uintptr_t address)
{
    size_t place = (address >> 4 ^ address >> 20) & mask;
    while (places[place] != 0 && found.samples[places[place] - 1].address != address)
        place = (place + 1) & mask;
    return &places[place];
}

static void find_owners(size_t unknown)
{
    size_t count = 1024;
    while (count < 4 * unknown)
        count *= 2;
    uint32_t *places = pages_resize(NULL, 0, count * sizeof *places);
    if (places == NULL)
        return;
    for (size_t number = 0; number < found.count; number++)
        if (found.nodes[number] == NO_NODE)
            *place_in(places, count - 1, found.samples[number].address) = (uint32_t)number + 1;
    for (size_t number = 0; number < found.body_count; number++) {
        uint32_t sample = *place_in(places, count - 1, (uintptr_t)found.bodies[number].block);
        if (sample != 0)
            found.nodes[sample - 1] = found.bodies[number].row;
    }
    pages_free(places, count * sizeof *places);
}

static bool find_all(size_t *unknown)
{
    bool is_found = false, has_lock = lock_take(); /* false in a forked child: it was taken for the fork */
    found.samples = samples_copy(&found.count, &found.samples_bytes);
    if (found.samples != NULL) {
        found.nodes = pages_resize(NULL, 0, found.count * sizeof *found.nodes + 1);
        found.rows = pages_resize(NULL, 0, found.count * sizeof *found.rows + 1);
        if (found.nodes != NULL && found.rows != NULL) {
            *unknown = find_objects();
            is_found = make_sites();
        }
    }
    if (has_lock)
        lock_give();
    return is_found;
}

void samples_of_walk(void)
{
    size_t unknown = 0;
    if (!find_all(&unknown)) {
        close_found();
        return;
    }
    if (unknown > 0)
        find_owners(unknown);
    columns_open_samples();
    for (size_t number = 0; number < found.count; number++) {
        const Sample *sample = &found.samples[number];
        int64_t t_ns = sample->t_ns - samples_started_ns();
        if (found.nodes[number] == NOT_SHOWN)
            continue;
        column_add(COLUMN_SAMPLE_NODE, found.nodes[number]);
        column_add(COLUMN_SAMPLE_SITE, found.rows[number]);
        column_add(COLUMN_SAMPLE_BYTES, sample->bytes);
        column_add(COLUMN_SAMPLE_WEIGHT, (uint64_t)(sample->weight + 0.5));
        column_add(COLUMN_SAMPLE_NS, (uint64_t)(t_ns > 0 ? t_ns : 0));
    }
}

void samples_write_sites(Output *output)
{
    if (found.text_count)
        out_bytes(output, found.text, found.text_count);
    else
        out(output, "[null]");
    close_found();
}
