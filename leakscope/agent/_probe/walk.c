/* The loop of the walk: rows are given out in the order of discovery, every object is read once, edges go straight to their columns.
 *
 * The row of an object is looked up in memory that is rarely in the processor's cache. So edges wait in a short queue of their own
 * (`pending`) while the slots of their targets are on the way, and are settled together, in their order. An entry without a target
 * marks where the edges of the next row begin.
 */
#include "engine.h"

#include <frameobject.h>
#include <internal/pycore_object.h>

#define MOST_PENDING 256
#define AHEAD 12        /* rows whose object is fetched */
#define TYPE_AHEAD 5    /* rows whose type is fetched, from objects that have arrived */
#define LOOK_EVERY 16384 /* rows between two looks at the clock */

Walk walk;

typedef struct {
    uintptr_t held; /* an object, or a row << 1 | 1; 0: the edges of a row begin */
    uint32_t label;
} Pending;

static Pending pending[MOST_PENDING + 1];
static unsigned pending_count;
static uint64_t settled_rows;  /* begun in the column edge_start */
static Table closures;         /* tuple -> code */
static Vector late;            /* rows of dicts and tuples that were read before they had names */
static Vector natives;         /* Native, by the number in their entry of the queue */
static uint64_t next_row;      /* to be read */

/* Entries of the queue that are no objects; an object is at a multiple of 8. */
enum { TAG_OBJECT, TAG_MEMORY, TAG_FRAME, TAG_NATIVE, TAG_BITS = 7 };

typedef struct {
    TypeInfo *info;
    void *thing;
    uint64_t bytes;
    uint8_t kind, device;
} Native;

static Vector referents;

/* --- beginning and end --- */

void graph_open(void)
{
    memset(&walk, 0, sizeof walk);
    pending_count = 0;
    settled_rows = next_row = 0;
    vector_open(&walk.queue, sizeof(uintptr_t));
    vector_open(&walk.is_space, sizeof(uint8_t));
    vector_open(&late, sizeof(uint32_t));
    vector_open(&natives, sizeof(Native));
    bounds_open();
    vector_open(&referents, sizeof(PyObject *));
}

void graph_close(void)
{
    Vector *const vectors[] = {&walk.queue, &walk.is_space, &late, &natives, &referents};
    Table *const tables[] = {&closures, &walk.memories, &walk.owners, &walk.module_labels};
    for (size_t place = 0; place < sizeof vectors / sizeof *vectors; place++)
        vector_close(vectors[place]);
    for (size_t place = 0; place < sizeof tables / sizeof *tables; place++)
        table_close(tables[place]);
    bounds_close();
}

/* --- rows --- */

static uint32_t row_made(uintptr_t entry)
{
    if (walk.queue.count >= LEFT_OUT - 1)
        walk_fail(EOVERFLOW, "rows");
    uint32_t row = (uint32_t)walk.queue.count;
    if (walk.queue.count == walk.queue.room || walk.is_space.count == walk.is_space.room) {
        *(uintptr_t *)vector_add(&walk.queue, 1) = entry;
        *(uint8_t *)vector_add(&walk.is_space, 1) = 0;
    } else {
        AT(uintptr_t, walk.queue, walk.queue.count++) = entry;
        AT(uint8_t, walk.is_space, walk.is_space.count++) = 0;
    }
    return row;
}

static inline uint32_t row_of(uintptr_t thing)
{
    uint32_t *slot = map_find(thing);
    if (slot == NULL)
        slot = map_slot_made(thing);
    if (*slot == ABSENT)
        *slot = row_made(thing) + 1;
    return *slot == LEFT_OUT ? LEFT_OUT : *slot - 1;
}

uint32_t node_of(PyObject *thing)
{
    return row_of((uintptr_t)thing);
}

static uint32_t native_made(Native native, int tag)
{
    uintptr_t number = natives.count;
    *(Native *)vector_add(&natives, 1) = native;
    return row_made(number << 3 | (uintptr_t)tag);
}

uint32_t node_of_memory(uint64_t key, int kind, uint64_t bytes, int device)
{
    uint64_t row;
    if (table_find(&walk.memories, key, &row))
        return (uint32_t)row;
    row = native_made((Native){NULL, NULL, bytes, (uint8_t)kind, (uint8_t)device}, TAG_MEMORY);
    table_set(&walk.memories, key, row);
    return (uint32_t)row;
}

uint32_t node_of_native(TypeInfo *info, void *thing)
{
    uint32_t *slot = map_slot(thing);
    if (*slot == ABSENT)
        *slot = native_made((Native){info, thing, 0, info->kind, 0}, TAG_NATIVE) + 1;
    return *slot == LEFT_OUT ? LEFT_OUT : *slot - 1;
}

uint32_t node_of_frame(void *interpreter_frame)
{
    uint32_t *slot = map_slot(interpreter_frame);
    if (*slot == ABSENT)
        *slot = native_made((Native){NULL, interpreter_frame, 0, KIND_FRAME, 0}, TAG_FRAME) + 1;
    return *slot == LEFT_OUT ? LEFT_OUT : *slot - 1;
}

/* --- edges --- */

static inline void write_edge(uint32_t row, uint32_t label)
{
    put_u32(COLUMN_EDGE_TARGET, row);
    put_u32(COLUMN_EDGE_LABEL, label);
    walk.edge_count++;
}

/* The names of limits have the first rows of the string table. */
static inline bool is_limit(uint32_t label)
{
    return label - LABEL(EDGE_ATTRIBUTE, LIMIT_ROW_FIRST) < limit_names_count;
}

/* `label` names a limit, which the object in `row` may be. */
static void note_limit(uint64_t holder, uint32_t row, uint32_t label)
{
    uintptr_t entry = AT(uintptr_t, walk.queue, row);
    const char *name = limit_names[label - LABEL(EDGE_ATTRIBUTE, LIMIT_ROW_FIRST)];
    if (!(entry & TAG_BITS))
        bound_by((PyObject *)AT(uintptr_t, walk.queue, holder), (PyObject *)entry, name);
}

static void settle(void)
{
    for (unsigned place = 0; place < pending_count; place++) {
        uintptr_t held = pending[place].held;
        uint32_t label = pending[place].label, row;
        if (held == 0) {
            put_u64(COLUMN_EDGE_START, walk.edge_count);
            settled_rows++;
            continue;
        }
        row = held & 1 ? (uint32_t)(held >> 1) : row_of(held);
        if (row == LEFT_OUT)
            continue;
        write_edge(row, label);
        if (is_limit(label))
            note_limit(settled_rows - 1, row, label);
    }
    pending_count = 0;
}

static inline void wait_for(uintptr_t held, uint32_t label)
{
    pending[pending_count++] = (Pending){held, label};
    if (pending_count == MOST_PENDING)
        settle();
}

void edge(PyObject *held, uint32_t label)
{
    if (held == NULL)
        return;
    const uint32_t *slot = map_find((uintptr_t)held);
    if (slot != NULL)
        __builtin_prefetch(slot);
    wait_for((uintptr_t)held, label);
}

void edge_to_row(uint32_t row, uint32_t label)
{
    if (row != LEFT_OUT)
        wait_for((uintptr_t)row << 1 | 1, label);
}

/* --- names that come from a holder --- */

static void give_names(uint32_t row)
{
    if (row == LEFT_OUT || AT(uint8_t, walk.is_space, row))
        return;
    AT(uint8_t, walk.is_space, row) = 1;
    if (row < next_row)
        *(uint32_t *)vector_add(&late, 1) = row;
}

void name_space(PyObject *dict)
{
    if (dict != NULL)
        give_names(node_of(dict));
}

void name_closure(PyObject *tuple, PyCodeObject *code)
{
    uint64_t known;
    if (tuple == NULL || code == NULL || table_find(&closures, (uintptr_t)tuple, &known))
        return;
    table_set(&closures, (uintptr_t)tuple, (uintptr_t)code);
    give_names(node_of(tuple));
}

PyCodeObject *closure_of(uint32_t row)
{
    uint64_t code;
    bool is_known = AT(uint8_t, walk.is_space, row) && table_find(&closures, AT(uintptr_t, walk.queue, row), &code);
    return is_known ? (PyCodeObject *)(uintptr_t)code : NULL;
}

/* The free variables of a code object, in the order of a closure of `count` cells; NULL: not so many. */
static PyObject **cell_names(PyCodeObject *code, Py_ssize_t count)
{
#if AT_LEAST(11)
    PyObject *names = code->co_localsplusnames;
#else
    PyObject *names = code->co_freevars;
#endif
    if (names == NULL || !PyTuple_CheckExact(names) || PyTuple_GET_SIZE(names) < count)
        return NULL;
    return ((PyTupleObject *)names)->ob_item + PyTuple_GET_SIZE(names) - count;
}

/* Changes the label of the next edge of a late row to `held`, as walk.py's _name_late does: edges to what is left out are not there. */
static void name_edge(uint64_t holder, uint64_t *at, uint64_t end, PyObject *held, uint32_t label)
{
    uint32_t slot = map_get(held);
    if (*at >= end || slot == ABSENT || slot == LEFT_OUT || column_read(COLUMN_EDGE_TARGET, *at) != slot - 1)
        return;
    column_patch(COLUMN_EDGE_LABEL, *at, label);
    *at += 1;
    if (is_limit(label))
        note_limit(holder, slot - 1, label);
}

static void name_late(void)
{
    for (size_t place = 0; place < late.count; place++) {
        uint32_t row = AT(uint32_t, late, place);
        PyObject *thing = (PyObject *)AT(uintptr_t, walk.queue, row), *key, *value;
        uint64_t at = column_read(COLUMN_EDGE_START, row);
        uint64_t end = row + 1u < settled_rows ? column_read(COLUMN_EDGE_START, row + 1u) : walk.edge_count;
        PyCodeObject *code = closure_of(row);
        Py_ssize_t next = 0;
        if (PyTuple_CheckExact(thing)) {
            PyObject **names = code == NULL ? NULL : cell_names(code, PyTuple_GET_SIZE(thing));
            for (; names != NULL && next < PyTuple_GET_SIZE(thing); next++)
                name_edge(row, &at, end, PyTuple_GET_ITEM(thing, next), LABEL(EDGE_CELL, name_attribute(names[next])));
        } else if (PyDict_Check(thing)) {
            while (PyDict_Next(thing, &next, &key, &value))
                name_edge(row, &at, end, value, LABEL(EDGE_ATTRIBUTE, name_attribute(key)));
        }
    }
}

/* --- reading --- */

static int take_referent(PyObject *held, void *nothing)
{
    (void)nothing;
    if (!vector_room(&referents, 1)) {
        walk.trouble = ENOMEM; /* walk_fail would leave the middle of somebody's tp_traverse */
        return 1;
    }
    AT(PyObject *, referents, referents.count++) = held;
    return 0;
}

size_t referents_of(PyObject *thing, PyObject ***found)
{
    referents.count = 0;
    PyTypeObject *type = Py_TYPE(thing);
    *found = NULL;
    if (type == NULL || type->tp_traverse == NULL || !_PyObject_IS_GC(thing))
        return 0;
    /* The state of _asyncio shows a free list from 3.12 on, and must never be looked at: classes.module_referents says why. */
    PyObject *space = has_base(type, &PyModule_Type) ? PyModule_GetDict(thing) : NULL;
    PyObject *name = space == NULL ? NULL : dict_get(space, "__name__");
    if (name != NULL && is_text(name, "_asyncio"))
        take_referent(space, NULL);
    else
        type->tp_traverse(thing, take_referent, NULL);
    if (walk.trouble)
        walk_fail(walk.trouble, "memory");
    *found = referents.items;
    return referents.count;
}

static void write_node(uint64_t address, uint32_t type, uint64_t bytes, uint32_t refcount, int kind)
{
    put_u64(COLUMN_ADDRESS, address);
    put_u32(COLUMN_TYPE, type);
    put_u64(COLUMN_BYTES, bytes);
    put_u32(COLUMN_REFCOUNT, refcount);
    put_u8(COLUMN_KIND, (uint8_t)kind);
}

static void read_native(uint32_t row, uintptr_t entry)
{
    Native native = AT(Native, natives, entry >> 3);
    if ((entry & TAG_BITS) == TAG_FRAME) {
        write_node(0, type_info(&PyFrame_Type)->type_id, running_frame_bytes(native.thing), IMMORTAL_COUNT, KIND_FRAME);
        Row label = running_frame_label(native.thing);
        if (label)
            column_put(COLUMN_LABEL, row, label);
        running_frame_read(native.thing);
        return;
    }
    if (native.info == NULL) {
        write_node(0, type_of_memory(), native.bytes, IMMORTAL_COUNT, native.kind);
        if (native.device)
            column_put(COLUMN_DEVICE, row, native.device);
        return;
    }
    write_node(0, native.info->type_id, native.info->size(native.info, native.thing), IMMORTAL_COUNT, native.kind);
    if (native.info->read != NULL)
        native.info->read(native.info, native.thing);
}

static inline void read_object(uint32_t row, PyObject *thing)
{
    TypeInfo *info = type_info(Py_TYPE(thing));
    write_node((uintptr_t)thing, info->type_id, info->size(info, thing), refcount_of(thing), info->kind);
    if (info->length != NULL) {
        uint32_t length = info->length(thing);
        if (length)
            column_put(COLUMN_LENGTH, row, length);
    }
    if (info->state != NULL) {
        uint32_t state = info->state(thing);
        if (state)
            column_put(COLUMN_STATE, row, state);
    }
    if (info->label != NULL) {
        Row label = info->label(info, thing);
        if (label)
            column_put(COLUMN_LABEL, row, label);
    }
    if (info->bodies != NULL)
        info->bodies(thing, row);
    if (info->read != NULL)
        info->read(info, thing);
}

/* Reads until nothing is left to read. */
static void drain(void)
{
    for (;;) {
        while (next_row < walk.queue.count) {
            const uintptr_t *entries = &AT(uintptr_t, walk.queue, next_row);
            if (next_row + AHEAD < walk.queue.count) {
                __builtin_prefetch((const void *)(entries[AHEAD] & ~(uintptr_t)TAG_BITS));
                if (!(entries[TYPE_AHEAD] & TAG_BITS))
                    __builtin_prefetch(Py_TYPE((PyObject *)entries[TYPE_AHEAD]));
            }
            uintptr_t entry = entries[0]; /* the queue moves when it grows */
            uint32_t row = walk.row = (uint32_t)next_row++;
            wait_for(0, 0);
            if (entry & TAG_BITS)
                read_native(row, entry);
            else
                read_object(row, (PyObject *)entry);
            if (row % LOOK_EVERY == 0 && walk.deadline_ns && now_ns() > walk.deadline_ns)
                walk_fail(ETIMEDOUT, "deadline");
        }
        settle();
        if (next_row >= walk.queue.count)
            return;
    }
}

void root(PyObject *thing, int kind, Row label)
{
    if (thing != NULL)
        root_row(node_of(thing), kind, label);
}

void root_row(uint32_t row, int kind, Row label)
{
    if (row == LEFT_OUT)
        return;
    drain();
    column_add(COLUMN_ROOT_NODE, row);
    column_add(COLUMN_ROOT_KIND, (uint64_t)kind);
    column_add(COLUMN_ROOT_LABEL, label);
    walk.root_count++;
}

struct Later {
    Vector things; /* seen by the collector alone, so far */
};

static void walk_holder(PyObject *thing, void *own)
{
    struct Later *later = own;
    if (map_get(thing) != ABSENT)
        return;
    PyTypeObject *type = Py_TYPE(thing);
    if (type == &PyDict_Type || type == &PyTuple_Type || type == &PyCell_Type) {
        *(PyObject **)vector_add(&later->things, 1) = thing;
    } else {
        node_of(thing);
        drain();
    }
}

void graph_walk(void)
{
    struct Later later;
    roots_collect();
    vector_open(&later.things, sizeof(PyObject *));
    /* Holders first: a dict, a tuple or a cell is named by its holder. Those that no holder led to come after. */
    each_tracked(walk_holder, &later);
    for (size_t place = 0; place < later.things.count; place++) {
        node_of(AT(PyObject *, later.things, place));
        drain();
    }
    vector_close(&later.things);
    name_late();
    put_u64(COLUMN_EDGE_START, walk.edge_count);
}
