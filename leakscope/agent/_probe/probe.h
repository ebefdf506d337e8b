/* The probe: the native heap walk, the fork snapshot and the allocation sampler of one CPython version.
 *
 * What every file here can rely on:
 *
 * - One walk at a time, with the GIL held or in a forked child that has no other thread. So the state of the walk is global.
 * - The walk takes no reference, allocates no Python object, calls no Python code, takes no lock and uses no malloc: memory comes
 *   from mmap (memory.c), output goes through write(2) (columns.c). In a forked child nothing else would be safe.
 * - leakscope/agent/walk.py and the modules it uses are the same walk in Python. What an edge is called, which roots there are,
 *   what is left out and what may be shown is said there; tests/agent/test_probe_twin.py compares the two.
 * - A function that cannot get memory or cannot write calls walk_fail(), which does not return. Only a visitor called by a
 *   tp_traverse must not: it notes the failure in walk.trouble.
 */
#ifndef LEAKSCOPE_PROBE_H
#define LEAKSCOPE_PROBE_H

#ifndef Py_BUILD_CORE_MODULE
#define Py_BUILD_CORE_MODULE 1
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030A0000 || defined(Py_GIL_DISABLED) || SIZEOF_VOID_P != 8
#error "The probe knows CPython 3.10 and later with a GIL, on 64-bit machines."
#endif

#define AT_LEAST(minor) (PY_VERSION_HEX >= (0x03000000 | (minor) << 16))

/* --- memory.c: memory from mmap ------------------------------------------------------------------------------------------ */

/* Whole pages, whatever is asked for; nobody counts them. The rest of this part is what a walk holds, and may hold. */
void *pages_resize(void *old, size_t old_bytes, size_t new_bytes); /* zeroed where new; NULL: no memory, `old` stays */
void pages_free(void *pages, size_t bytes);

/* A growing array. Its memory moves when it grows. */
typedef struct {
    void *items;
    size_t count, room, item_bytes;
} Vector;

void vector_open(Vector *vector, size_t item_bytes);
void *vector_add(Vector *vector, size_t count); /* room for `count` more, not set; returns the first of them */
void vector_close(Vector *vector);
#define AT(type, vector, index) (((type *)(vector).items)[index])

/* Numbers by 64-bit keys, for the few thousand things that need it. No key is 0. */
typedef struct {
    uint64_t *keys, *values;
    size_t count, room;
} Table;

void table_open(Table *table);
bool table_find(const Table *table, uint64_t key, uint64_t *value);
void table_set(Table *table, uint64_t key, uint64_t value);
void table_close(Table *table);

/* Rows by address of an object: a radix map with one uint32_t for 16 bytes of address space (no two objects begin in the same 16). */
#define ABSENT 0u          /* not seen yet; rows are kept plus 1 */
#define LEFT_OUT UINT32_MAX /* known, and no part of the snapshot */
uint32_t *map_slot(const void *address); /* the slot, made if need be: ABSENT, LEFT_OUT, or row + 1 */
uint32_t map_get(const void *address);   /* the same without making one */
void map_close(void);
size_t memory_in_use(void); /* bytes of mmap that the probe holds now */

/* --- columns.c: the .npy files of a snapshot ------------------------------------------------------------------------------ */

enum { COLUMN_ADDRESS, COLUMN_TYPE, COLUMN_BYTES, COLUMN_REFCOUNT, COLUMN_LENGTH, COLUMN_KIND, COLUMN_STATE, COLUMN_DEVICE,
       COLUMN_BIRTH, COLUMN_SITE, COLUMN_LABEL, COLUMN_EDGE_START, COLUMN_EDGE_TARGET, COLUMN_EDGE_LABEL, COLUMN_ROOT_NODE,
       COLUMN_ROOT_KIND, COLUMN_ROOT_LABEL,
       COLUMN_SAMPLE_NODE, COLUMN_SAMPLE_SITE, COLUMN_SAMPLE_BYTES, COLUMN_SAMPLE_WEIGHT, COLUMN_SAMPLE_NS,
       COLUMN_STORAGE_NODE, COLUMN_STORAGE_ADDRESS, COLUMN_COUNT };

void columns_open(const char *folder);
void columns_open_samples(void); /* makes the files of the columns SAMPLE_...: to be called before the first value, if the sampler ran */
void columns_open_storages(void); /* the same for STORAGE_..., where there is a storage; to be called before each value */
void column_add(int column, uint64_t value);                      /* appends one value; buffered */
void column_patch(int column, uint64_t index, uint64_t value);    /* changes a value that was written; rare */
uint64_t column_read(int column, uint64_t index);                 /* reads one back; rare */
void columns_close(void);                                         /* flushes, pads columns of zeros, writes the headers */

/* --- names.c (texts.c, strings.c, words.c, places.c): the string table, and what may be shown: the rules of agent/names.py -- */

typedef uint32_t Row; /* of names.json["strings"]; 0 is "" */

void names_open(PyObject *words);              /* frozenset of str: words of the program's sources; may be NULL */
void names_learn(PyCodeObject *code);          /* constants and names of a code object and of those inside it */
bool names_is_constant(PyObject *text);        /* exact str: a word of the program that reads like a name */
Row name_own(const char *text);                /* one of our own words, shown as it is (ASCII) */
const char *name_text(Row row);                /* UTF-8, until the walk ends */
Row name_attribute(PyObject *name);            /* attribute, variable */
Row name_key(PyObject *key);                   /* key of a mapping: 'orders', str:17, int, tuple:2, a class ... */
Row name_dotted(PyObject *name);               /* module, class or function name */
Row name_dotted_text(const char *name);        /* the same for a C string */
Row name_joined(const char *before, Row first, const char *between, Row second, const char *after); /* of shown rows; a part that is "", or "builtins" beside another, is skipped with `between` */
Row name_place(const char *before, PyCodeObject *code, int line);  /* "parse() at app.py:12"; line 0: the first */
Row name_given(const char *before, PyObject *name);                /* what the program called a thread or task, quoted or masked */
Row name_file(PyObject *path);
void names_close(void);

/* --- walk.c, bounds.c: the graph ------------------------------------------------------------------------------------------- */

/* As in format.py. */
enum { EDGE_UNKNOWN, EDGE_ATTRIBUTE, EDGE_KEY, EDGE_INDEX, EDGE_KEY_OBJECT, EDGE_ELEMENT, EDGE_LOCAL, EDGE_CELL, EDGE_CONTENTS,
       EDGE_TYPE, EDGE_INTERNAL, EDGE_STACK, EDGE_STORAGE };
enum { KIND_OBJECT, KIND_STORAGE, KIND_MAPPING, KIND_MODULE, KIND_TYPE, KIND_FUNCTION, KIND_CODE, KIND_FRAME, KIND_GENERATOR,
       KIND_TASK, KIND_THREAD, KIND_WEAKREF, KIND_EXCEPTION, KIND_CACHE };
enum { STATE_UNKNOWN, STATE_LIVE, STATE_ENDED };
enum { ROOT_MODULE, ROOT_FRAME, ROOT_THREAD_LOCAL, ROOT_TASK, ROOT_EVENT_LOOP, ROOT_CONTEXTVAR, ROOT_ATEXIT, ROOT_SIGNAL,
       ROOT_INTERPRETER };
#define IMMORTAL_COUNT UINT32_MAX
#define LABEL(kind, value) ((uint32_t)(kind) << 27 | ((uint32_t)(value) < 0x7FFFFFFu ? (uint32_t)(value) : 0x7FFFFFFu))

typedef struct TypeInfo TypeInfo;
/* Emits the edges of `thing` by edge(), in any order, one for each reference that tp_traverse shows, plus what the twin adds. */
typedef void (*Reader)(TypeInfo *info, PyObject *thing);
/* Bytes of `thing` as sys.getsizeof gives them, plus inline attributes (walk.py, _inline_size). */
typedef uint64_t (*Sizer)(TypeInfo *info, PyObject *thing);
typedef uint32_t (*Counter)(PyObject *thing);               /* length; state */
typedef Row (*Labeller)(TypeInfo *info, PyObject *thing);   /* what a person calls the node; 0: by its type */

struct TypeInfo {
    PyTypeObject *type;
    uint32_t type_id;
    uint8_t kind;
    Reader read;      /* NULL: holds nothing */
    Sizer size;
    Counter length, state; /* NULL: 0 */
    Labeller label;   /* NULL: 0 */
    void (*bodies)(PyObject *thing, uint32_t row); /* take_bodies(): tells the sampler of the blocks that it has apart from itself; NULL */
    Row module, qualname; /* as in names.json["types"] */
    void *own;        /* whatever the reader keeps for this type, from arena_take() */
    void *layout;     /* instances.c: where its instances keep what they hold; made when it is asked for */
    uint64_t fixed_bytes; /* sizes.c: of every instance, headers and inline attributes with them. `size` is set before a reader takes the
                             type: one that knows better sets its own, the others leave it */
};

typedef struct {
    Vector queue;             /* PyObject * or Pseudo key by row */
    Vector is_space;          /* uint8_t by row: 1: a dict whose keys are attribute names (twin: name_spaces); KEYS_ONLY */
    uint64_t edge_count, root_count, left_out_count;
    Table memories;           /* key -> row of nodes that are no objects */
    Table owners;             /* dict of a threading.local's values -> Row of "thread 'x'" (twin: local_owners) */
    Table module_labels;      /* module -> Row of "module app", by its first name in sys.modules (twin: labels); set by
                                 roots_collect() before anything is read. A module that is not there: by its __name__ */
    int trouble;              /* errno noted by a visitor */
    PyThreadState *own_thread; /* the state of the thread that walks. It may be one of the target's: ask is_own_thread() */
    PyInterpreterState *interpreter; /* the one that is walked */
    int64_t deadline_ns;      /* CLOCK_MONOTONIC; 0: none */
    uint32_t row;             /* of the node that is being read */
} Walk;
extern Walk walk;
/* In is_space: a dict that shows its keys (KEY_OBJECT) and not its values: those by thread of a threading.local, which shows them
 * itself (twin: local_spaces). Stronger than name_space(). */
#define KEYS_ONLY 2

void walk_fail(int error, const char *what) __attribute__((noreturn)); /* error: errno; what: one word for the note */
void walk_note(const char *format, ...) __attribute__((format(printf, 1, 2))); /* a sentence of done.json; counted when repeated */
void *arena_take(size_t bytes);  /* zeroed memory that lives as long as the walk */

uint32_t node_of(PyObject *thing);                     /* row, added if new; LEFT_OUT if not part of the snapshot */
uint32_t node_of_memory(uint64_t key, int kind, uint64_t bytes, int device); /* a storage, a mapping: no Python object */
uint32_t node_of_native(TypeInfo *info, void *thing);  /* an object of a library that has no Python object (autograd nodes): a node with
    address 0 and no count, as a memory, of the type and kind of `info`. The loop reads it in its turn by info->read and info->size,
    called with it; it is no PyObject, so info->label, length and state are NULL. `info` is a copy of a type_info() in the arena.
    One row for each address, by map_slot(): no PyObject can be where it is. (torch.c asks, walk.c answers) */
uint32_t node_of_frame(void *interpreter_frame);       /* a running frame that has no frame object: kind frame, address 0 */
void edge(PyObject *held, uint32_t label);             /* from the node being read; NULL, singletons and what is left out: nothing */
void edge_to_row(uint32_t row, uint32_t label);
void name_space(PyObject *dict);                       /* its keys are attribute names; also if it was read already */
void name_closure(PyObject *tuple, PyCodeObject *code); /* its items are the free variables of `code` */
void root(PyObject *thing, int kind, Row label);       /* reads all that the root reaches before it returns */
void root_row(uint32_t row, int kind, Row label);
void bound(PyObject *container, uint64_t limit, const char *what); /* names.json["bounds"] */
bool is_own_space(PyObject *globals);                  /* the namespace of one of the agent's modules */
bool is_own_thread(unsigned long ident);               /* a thread of the agent: none of its frames, exceptions, contexts is a root */
PyCodeObject *closure_of(uint32_t row);                /* what name_closure() said of the tuple in this row; NULL: nothing */

typedef struct { /* what a functools cache says of itself */
    PyObject *cache, *dict, *function, *kwd_mark; /* dict: NULL where it is none; function: a Python function */
    Row name;
    int64_t maxsize; /* -1: none */
    uint64_t hits, misses;
    bool is_typed;
} CacheFacts;
void cache_info(CacheFacts facts);                     /* names.json["caches"]. A labeller calls it, and bound() where there is a
    limit, as Nodes._label_cache does */
void each_tracked(void (*take)(PyObject *thing, void *own), void *own); /* the objects that the collector lists, all generations */

/* What tp_traverse of `thing` shows, in its order, as gc.get_referents: nothing for an object that the collector does not know.
 * Of the module _asyncio only its dict (classes.module_referents says why). The array is valid until the next call. */
size_t referents_of(PyObject *thing, PyObject ***found);

int64_t now_ns(void); /* CLOCK_MONOTONIC */

/* What a walk is told. The strings and objects belong to the caller and outlive the walk. */
typedef struct {
    const char *folder;       /* of the snapshot; exists and is empty */
    const char *done;         /* beginning of done.json as the caller knows it: "{...," of members, without an end */
    const char *notes;        /* sentences to carry into done.json: members of a JSON list, "" or "\"...\",\"...\"" */
    const char *package;      /* "_leakscope_agent": its modules are the agent's */
    PyObject *own;            /* list of objects to leave out with what only they hold; may be NULL */
    PyObject *words;          /* as of names_open */
    const unsigned long *own_idents; /* threads of the agent */
    size_t own_idents_count;
    uint64_t max_bytes;       /* the most that the probe may take for itself; 0: no limit */
    int64_t deadline_ns;      /* CLOCK_MONOTONIC; 0: none */
    int64_t started_ns;       /* CLOCK_MONOTONIC, when the target stopped; pause_ns and walk_ns count from here */
    bool is_forked;           /* in a child: pause_ns is what the parent puts into the result */
} WalkOrder;

/* What became of it; of a forked child in memory that it shares with its parent. */
typedef struct {
    volatile int64_t pause_ns; /* forked: set by the parent as soon as the target goes on */
    int64_t walk_ns;
    uint64_t node_count, edge_count, root_count, own_count, own_bytes, peak_bytes, dirtied_bytes;
    int error;                /* errno; 0: the snapshot is there */
    char reason[160];         /* where there was an error: what failed, one line without values of the target */
} WalkResult;

/* Walks and writes the whole snapshot, done.json last. Returns 0, or -1 after removing the files it wrote. Takes no reference and
 * runs no Python code; the GIL is held, or this is the only thread of a forked child. */
int walk_run(const WalkOrder *order, WalkResult *result);
bool walk_order_of(PyObject *arguments, WalkOrder *order); /* of the arguments of _probe.walk; false: an exception is set */
PyObject *walk_answer(const WalkResult *result);           /* a dict: what done.json says of the walk; with "error": errno, "reason" */

/* --- types.c --- */
TypeInfo *type_info(PyTypeObject *type);               /* found or learned; never fails */
bool has_base(PyTypeObject *type, PyTypeObject *base); /* `base` is in the MRO (or among tp_base of a type that has none yet) */
void names_of(PyTypeObject *type, PyObject **module, const char **module_text, PyObject **qualname, const char **qualname_text);
    /* classes.names_of: each part either a str object or a C text of static types; both NULL: hidden, "?" */
bool is_text(PyObject *thing, const char *text);       /* an exact str that reads so (ASCII) */
PyObject *space_of_module(const char *name);           /* dict of the loaded module, NULL: not loaded or something else in its place */
PyObject *dict_get(PyObject *dict, const char *key);   /* value under an exact str key, by comparing text; borrowed; no hashing of target's code */
PyObject *attribute_of(PyObject *thing, const char *name); /* value of an instance attribute read from inline values, __dict__ or slot; NULL */

/* --- readers, by file: each returns true if it took the type (and set read, size, label ... of `info`) --- */
bool take_container(TypeInfo *info);  /* containers.c: dict list tuple set frozenset deque and subclasses, str bytes int ... */
bool take_code(TypeInfo *info);       /* code.c: function, code, module, type, cell, builtin function, descriptors, lru_cache */
bool take_frame(TypeInfo *info);      /* frames.c: frame, generator, coroutine, asynchronous generator */
bool take_thread(TypeInfo *info);     /* threads.c: threading.local, Context and its tree */
bool take_numpy(TypeInfo *info);      /* numpy.c */
bool take_torch(TypeInfo *info);      /* torch.c */
bool take_mapping(TypeInfo *info);    /* numpy.c: mmap */
void take_instance(TypeInfo *info);   /* instances.c: everything else */
void take_life(TypeInfo *info);       /* threads.c: state of futures, sockets, files; label of tasks and threads. types.c calls it for
                                         each type after the one that took it */
void read_instance(TypeInfo *info, PyObject *thing, PyObject **referents, size_t count); /* names and emits referents of any object: for readers that add something */

/* --- frames.c: what walk.c asks about a row of node_of_frame(); its type is PyFrame_Type --- */
void running_frame_read(void *interpreter_frame);      /* emits its edges: variables, code, stack, namespace */
uint64_t running_frame_bytes(void *interpreter_frame);
Row running_frame_label(void *interpreter_frame);      /* "parse() at app.py:12" */

/* The frames that run, innermost first, of a thread; those that are part way through being made are left out. On 3.10 they are
 * frame objects, later _PyInterpreterFrame *, whose frame object, if it has one, running_frame_object() gives. */
void *running_frame_of(PyThreadState *thread);
void *running_frame_before(void *frame);
PyFrameObject *running_frame_object(void *frame);      /* NULL: there is none */
PyCodeObject *running_frame_code(void *frame);
PyObject *running_frame_globals(void *frame);

/* --- threads.c: what roots.c asks --- */
void threads_prepare(void);                            /* names of threads; before the first label */
Row thread_label(const char *before, unsigned long ident); /* before "thread 'feed-eu'" */
bool local_values(PyObject *local, Py_ssize_t *place, PyObject **dummy, PyObject **values); /* of one thread after another */
bool is_c_type(PyTypeObject *type, const char *name, size_t bytes); /* derived from the C type "module.name" of that size or more */
Row task_label(const char *before, PyObject *task);    /* of a _asyncio.Task: before "Task 'reader-eu'" */
PyObject *task_context(PyObject *task);                /* in which it runs; NULL: none */
bool task_is_pending(PyObject *task);

/* --- roots.c --- */
void roots_begin(void);               /* before the first roots_note() */
void roots_note(PyObject *thing);     /* each tracked object, before roots_collect(): keeps those that are roots or have some */
void roots_collect(void);             /* calls root() for all of them, in the order of roots.py */

/* --- out.c: text as it stands in a JSON string ---------------------------------------------------------------------------------- */

#define JSON_POINT_BYTES 13
size_t json_point(char *json, const char **text, const char *end); /* the next point of UTF-8, in ASCII; has room for JSON_POINT_BYTES,
    one of them for a 0. Returns how many it is without that */

/* --- sample.c: what a walk asks of the sampler -------------------------------------------------------------------------------- */
void take_bodies(TypeInfo *info);      /* types.c calls it for each type: sets info->bodies while samples are taken */
void samples_of_walk(void);           /* writes the columns sample_* and names.json["sites"] of the blocks that live now */

/* Around a fork for a snapshot, in the parent, with the GIL held: nobody may be changing the sampler's tables while they are copied.
 * The child finds them so, lock included; samples_of_walk() in a child (WalkOrder.is_forked) takes no lock. */
void samples_before_fork(void);
void samples_after_fork(void);

/* --- snapshot.c: a walk in a forked child ------------------------------------------------------------------------------------- */
uint64_t snapshot_dirtied_bytes(void); /* what the forked child has cost in memory so far; asked once, before done.json is written */

/* Each file that has a face in Python answers a table of methods for module.c. */
extern PyMethodDef walk_methods[], snapshot_methods[], sample_methods[], name_methods[], torch_methods[], native_methods[],
    arena_methods[];

#endif
