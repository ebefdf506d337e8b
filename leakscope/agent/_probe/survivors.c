/* What a walk writes of the sampled blocks that live: the object that each is, or is the body of, and the sites. */
#include "sample.h"

#include <stdio.h>
#include <unistd.h>

/* Frames of all sites together: a bound of names.json, at about 50 bytes a frame. */
#define MOST_FRAMES_WRITTEN 262144u
#define MOST_FRAMES 64u
#define NO_NODE UINT32_MAX
#define NOT_SHOWN (UINT32_MAX - 1) /* the agent's: no part of the snapshot */
/* Objects that are fetched ahead, and of those the types. */
#define AHEAD 16
#define TAG_BITS 7u /* walk.c: entries of the queue that are no objects */

typedef struct {
    uint32_t stack;
    double bytes, count;
} Site;

/* Of the walk that goes on; all mmap'd, freed when the next one begins or the sites are written. */
static struct {
    Sample *samples;
    size_t count, samples_bytes;
    uint32_t *nodes, *rows; /* by sample: its node; the row of its site */
    Site *sites;
    size_t site_count;
    uint32_t *places;       /* by hash of the address: sample + 1 of those that are no objects */
    size_t place_count;
    char *text;
    size_t text_count, text_room;
} found;

static void close_found(void)
{
    pages_free(found.samples, found.samples_bytes);
    pages_free(found.nodes, found.count * sizeof *found.nodes + 1);
    pages_free(found.rows, found.count * sizeof *found.rows + 1);
    pages_free(found.sites, (found.count + 1) * sizeof *found.sites);
    pages_free(found.places, found.place_count * sizeof *found.places);
    pages_free(found.text, found.text_room);
    memset(&found, 0, sizeof found);
}

/* --- sites: with the lock, because stacks may be renewed ------------------------------------------------------------------------ */

static bool add(const char *text, size_t length)
{
    if (found.text_count + length > found.text_room) {
        size_t room = (found.text_room + length) * 2 + 65536;
        char *grown = pages_resize(found.text, found.text_room, room);
        if (grown == NULL)
            return false;
        found.text = grown;
        found.text_room = room;
    }
    memcpy(found.text + found.text_count, text, length);
    found.text_count += length;
    return true;
}

static bool add_quoted(Words words)
{
    bool is_added = add("\"", 1);
    for (size_t place = 0; place < words.length; place++) { /* what is shown has no control characters */
        if (words.text[place] == '"' || words.text[place] == '\\')
            is_added = add("\\", 1) && is_added;
        is_added = add(words.text + place, 1) && is_added;
    }
    return add("\"", 1) && is_added;
}

static bool add_site(const Site *site, uint32_t most)
{
    char numbers[96];
    uint32_t places[MOST_FRAMES], count = stack_places(site->stack, places, most), line;
    bool is_added = add(",{\"frames\":[", 12);
    for (uint32_t frame = 0; frame < count; frame++) {
        Words file, function;
        place_read(places[frame], &file, &line, &function);
        int length = snprintf(numbers, sizeof numbers, ",%u,", line);
        is_added = is_added && add(frame ? ",[" : "[", frame ? 2 : 1) && add_quoted(file) && add(numbers, (size_t)length)
                   && add_quoted(function) && add("]", 1);
    }
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

/* --- bodies: blocks that belong to an object and are not where it is ------------------------------------------------------------ */

static uint32_t *body_place(uintptr_t address)
{
    size_t mask = found.place_count - 1, place = (address >> 4 ^ address >> 20) & mask;
    while (found.places[place] != 0 && found.samples[found.places[place] - 1].address != address)
        place = (place + 1) & mask;
    return &found.places[place];
}

static inline void body(const void *block, uint32_t row)
{
    if (block != NULL && may_be_sampled(block)) {
        uint32_t number = *body_place((uintptr_t)block);
        if (number != 0)
            found.nodes[number - 1] = row;
    }
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

static void bodies_of_dict(PyDictObject *dict, uint32_t row)
{
    if (dict->ma_values == NULL)
        body(dict->ma_keys, row);
    else /* the keys belong to the class */
        body_of_values(dict->ma_values, row);
}

#if AT_LEAST(11) && !AT_LEAST(13) /* else they lie in a dict, or in the object */
static void bodies_of_instance(PyObject *thing, uint32_t row)
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

/* Modules/_collectionsmodule.c */
typedef struct DequeBlock {
    struct DequeBlock *left;
    PyObject *items[64];
    struct DequeBlock *right;
} DequeBlock;
typedef struct {
    PyObject_VAR_HEAD
    DequeBlock *left, *right;
} Deque;

static void bodies_of_deque(const Deque *deque, uint32_t row)
{
    for (const DequeBlock *block = deque->left; block != NULL; block = block == deque->right ? NULL : block->right)
        body(block, row);
}

static void bodies_of(PyObject *thing, PyTypeObject *deque, uint32_t row)
{
    PyTypeObject *type = Py_TYPE(thing);
    unsigned long flags = type->tp_flags;
    if (flags & Py_TPFLAGS_LIST_SUBCLASS)
        body(((PyListObject *)thing)->ob_item, row);
    else if (flags & Py_TPFLAGS_DICT_SUBCLASS)
        bodies_of_dict((PyDictObject *)thing, row);
    else if (type == &PySet_Type || type == &PyFrozenSet_Type)
        body(((PySetObject *)thing)->table, row);
    else if (type == &PyByteArray_Type)
        body(((PyByteArrayObject *)thing)->ob_bytes, row);
    else if (type == deque)
        bodies_of_deque((Deque *)thing, row);
    else if (flags & Py_TPFLAGS_TYPE_SUBCLASS && ((PyTypeObject *)thing)->tp_flags & Py_TPFLAGS_HEAPTYPE)
        body(((PyHeapTypeObject *)thing)->ht_cached_keys, row);
#if AT_LEAST(11) && !AT_LEAST(13)
    if (flags & Py_TPFLAGS_MANAGED_DICT)
        bodies_of_instance(thing, row);
#endif
}

static PyTypeObject *deque_type(void)
{
    PyObject *space = space_of_module("_collections");
    PyObject *type = space == NULL ? NULL : dict_get(space, "deque");
    if (type == NULL || !PyType_Check(type) || strcmp(((PyTypeObject *)type)->tp_name, "collections.deque") != 0)
        return NULL; /* another one's */
    return (PyTypeObject *)type;
}

/* One look at each object of the snapshot, its type fetched some objects ahead. */
static void find_bodies(void)
{
    const uintptr_t *queue = walk.queue.items;
    size_t count = walk.queue.count;
    PyTypeObject *deque = deque_type();
    for (size_t row = 0; row < count; row++) {
        if (row + AHEAD < count)
            __builtin_prefetch((const void *)(queue[row + AHEAD] & ~(uintptr_t)TAG_BITS));
        if ((queue[row] & TAG_BITS) == 0)
            bodies_of((PyObject *)queue[row], deque, (uint32_t)row);
    }
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

static void find_owners(size_t unknown)
{
    for (found.place_count = 1024; found.place_count < 4 * unknown; found.place_count *= 2)
        ;
    found.places = pages_resize(NULL, 0, found.place_count * sizeof *found.places);
    if (found.places == NULL)
        return;
    for (size_t number = 0; number < found.count; number++)
        if (found.nodes[number] == NO_NODE)
            *body_place(found.samples[number].address) = (uint32_t)number + 1;
    find_bodies();
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
    close_found();
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

static void write_all(int fd, const char *text, size_t count)
{
    while (count > 0) {
        ssize_t done = write(fd, text, count);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            walk_fail(done == 0 ? ENOSPC : errno, "write");
        text += done;
        count -= (size_t)done;
    }
}

void samples_write_sites(int fd)
{
    write_all(fd, found.text_count ? found.text : "[null]", found.text_count ? found.text_count : 6);
    close_found();
}
