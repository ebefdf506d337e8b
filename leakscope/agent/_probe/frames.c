/* Frames, generators, coroutines and asynchronous generators: what they hold, by the names of their variables.
 *
 * Up to 3.10 each call has a frame object. From 3.11 on a call is a _PyInterpreterFrame on the thread's stack or in a generator, and
 * a frame object is made when somebody asks; the walk never asks. Structures: Include/internal/pycore_frame.h, genobject.h; what
 * is counted where: frame_traverse (Objects/frameobject.c), _PyFrame_Traverse (Python/frame.c), gen_traverse (Objects/genobject.c).
 *
 * The twin is readers.py (frame, generator), threads.py (Slots) and nodes.py (labels, states).
 */
#include "frames.h"

#include <internal/pycore_gc.h>
#if AT_LEAST(11)
#include <opcode.h>
#endif

#define MOST_VARIABLES 4096   /* of one frame that are named (twin: _MOST_SLOTS) */
#define MOST_REFERENTS 8192   /* of one frame or generator that are labelled */

/* The labels that readers of these types give, made once for each type (TypeInfo.own). */
typedef struct {
    uint32_t code, awaited, frame; /* gi_code, gi_yieldfrom, gi_frame of a generator */
    uint32_t f_code, f_back, f_func, f_globals, f_builtins, f_locals, name;
} Words;

/* What a referent is compared with. NULL: there is none. */
typedef struct {
    PyObject *code, *awaited, *frame, *globals, *builtins, *locals;
    bool is_generator;
} Parts;

/* --- the fields of a frame, by version ------------------------------------------------------------------------------------- */

static PyObject **slots_of(Frame *frame)
{
#if AT_LEAST(11)
    return frame->localsplus;
#else
    return frame->f_localsplus;
#endif
}

static int variable_count(PyCodeObject *code)
{
#if AT_LEAST(11)
    int count = code->co_nlocalsplus;
#else
    int count = code->co_nlocals + (int)(PyTuple_GET_SIZE(code->co_cellvars) + PyTuple_GET_SIZE(code->co_freevars));
#endif
    return count < MOST_VARIABLES ? count : MOST_VARIABLES;
}

/* The variable in a slot: arguments and locals, cells, free variables (twin: local_names). */
static PyObject *variable_name(PyCodeObject *code, int slot)
{
#if AT_LEAST(11)
    return PyTuple_GET_ITEM(code->co_localsplusnames, slot);
#else
    PyObject *names[] = {code->co_varnames, code->co_cellvars, code->co_freevars};
    int part = 0;
    for (; part < 2 && slot >= PyTuple_GET_SIZE(names[part]); part++)
        slot -= (int)PyTuple_GET_SIZE(names[part]);
    return slot < PyTuple_GET_SIZE(names[part]) ? PyTuple_GET_ITEM(names[part], slot) : NULL;
#endif
}

/* Values on the evaluation stack. A frame that runs in the interpreter's loop, or in C code that the loop called, keeps its stack
 * top in a register: then the answer is 0, and what lies there may be stale. One that waits for a Python function has saved it. */
static int stack_depth(Frame *frame)
{
#if AT_LEAST(11)
    PyCodeObject *code = code_of(frame);
    int depth = frame->stacktop - code->co_nlocalsplus;
    return depth < 0 ? 0 : depth > code->co_stacksize ? code->co_stacksize : depth;
#else
    return 0; /* a running frame shows none, and one that does not run shows it by itself */
#endif
}

static int line_of(Frame *frame)
{
#if !AT_LEAST(11)
    if (frame->f_lineno != 0) /* it is being traced */
        return frame->f_lineno < 0 ? 0 : frame->f_lineno;
#endif
    int line = PyCode_Addr2Line(code_of(frame), instruction_of(frame) * (int)sizeof(_Py_CODEUNIT)); /* reads tables, allocates nothing */
    return line < 0 ? 0 : line;
}

/* --- frames that run ------------------------------------------------------------------------------------------------------- */

void *running_frame_of(PyThreadState *thread)
{
    return innermost(thread);
}

void *running_frame_before(void *frame)
{
    return caller(frame);
}

PyFrameObject *running_frame_object(void *frame)
{
#if AT_LEAST(11)
    return ((Frame *)frame)->frame_obj;
#else
    return frame;
#endif
}

PyCodeObject *running_frame_code(void *frame)
{
    return code_of(frame);
}

PyObject *running_frame_globals(void *frame)
{
    return ((Frame *)frame)->f_globals;
}

/* The fixed part, variables and stack: what the frame takes of the thread's stack, or its frame object (without both headers). */
uint64_t running_frame_bytes(void *frame)
{
    PyCodeObject *code = code_of(frame);
    uint64_t slots = (uint64_t)variable_count(code) + (uint64_t)code->co_stacksize;
    return (uint64_t)((char *)slots_of(frame) - (char *)frame) + slots * sizeof(PyObject *);
}

Row running_frame_label(void *frame)
{
    return name_place("", code_of(frame), line_of(frame));
}

/* --- what is not a variable ------------------------------------------------------------------------------------------------ */

static Words *words_of(TypeInfo *info)
{
    return info->own;
}

static uint32_t internal(const char *word)
{
    return LABEL(EDGE_INTERNAL, name_own(word));
}

/* The label of a referent that is no variable: by what it is, then by its type; 0: there is no word (twin: _name_rest). */
static uint32_t label_of_part(const Words *words, const Parts *parts, PyObject *thing)
{
    if (thing == parts->awaited)
        return words->awaited;
    if (thing == parts->code)
        return words->code;
    if (thing == parts->frame)
        return words->frame;
    if (thing == parts->globals)
        return words->f_globals;
    if (thing == parts->builtins)
        return words->f_builtins;
    if (thing == parts->locals)
        return words->f_locals;
    PyTypeObject *type = Py_TYPE(thing);
    if (type == &PyUnicode_Type && parts->is_generator)
        return words->name;
    return type == &PyFrame_Type ? words->f_back : type == &PyFunction_Type ? words->f_func : type == &PyCode_Type ? words->f_code : 0;
}

static uint32_t labels[MOST_REFERENTS]; /* of the frame or generator that is being read; 0 (EDGE_UNKNOWN): none yet */

/* Labels referents that are variables: for each slot the first unlabelled referent that is its value. Referents come in the order
 * of the slots, so the search goes on where the last one ended. */
static void label_variables(PyObject **found, size_t count, Frame *frame)
{
    PyCodeObject *code = code_of(frame);
    int variables = variable_count(code);
    size_t next = 0;
    for (int slot = 0; slot < variables; slot++) {
        PyObject *value = slots_of(frame)[slot];
        if (value == NULL)
            continue;
        for (size_t tries = 0; tries < count; tries++) {
            size_t place = next + tries < count ? next + tries : next + tries - count;
            if (found[place] == value && labels[place] == 0) {
                labels[place] = LABEL(EDGE_LOCAL, name_attribute(variable_name(code, slot)));
                next = place + 1 < count ? place + 1 : 0;
                break;
            }
        }
    }
}

/* --- readers --------------------------------------------------------------------------------------------------------------- */

/* The dict of a module or class body that runs: its namespace. */
static PyObject *space_of(Frame *frame)
{
    PyObject *space = code_of(frame)->co_flags & CO_OPTIMIZED ? NULL : frame->f_locals;
    return space != NULL && PyDict_CheckExact(space) ? space : NULL;
}

void running_frame_read(void *interpreter_frame)
{
    Frame *frame = interpreter_frame;
    const Words *words = words_of(type_info(&PyFrame_Type));
    PyCodeObject *code = code_of(frame);
    int variables = variable_count(code);
    for (int slot = 0; slot < variables; slot++)
        if (slots_of(frame)[slot] != NULL)
            edge(slots_of(frame)[slot], LABEL(EDGE_LOCAL, name_attribute(variable_name(code, slot))));
    edge((PyObject *)code, words->f_code);
    int depth = stack_depth(frame);
    for (int slot = 0; slot < depth; slot++)
        edge(slots_of(frame)[variables + slot], LABEL(EDGE_STACK, slot));
    PyObject *space = space_of(frame);
    if (space != NULL) {
        name_space(space);
        edge(space, words->f_locals);
    }
}

static bool is_running(PyFrameObject *thing)
{
#if AT_LEAST(11)
    Frame *frame = thing->f_frame;
    if (is_own_space(frame->f_globals))
        return false;
    if (frame->owner == FRAME_OWNED_BY_THREAD)
        return true;
    if (frame->owner != FRAME_OWNED_BY_GENERATOR)
        return false;
    PyGenObject *generator = (PyGenObject *)((char *)frame - offsetof(PyGenObject, gi_iframe));
    return generator->gi_frame_state == FRAME_EXECUTING;
#else
    return thing->f_state == FRAME_EXECUTING && !is_own_space(thing->f_globals);
#endif
}

/* LOCAL and STACK. From 3.11 on frames that run show nothing to tp_traverse: their variables and stack are added. */
static void read_frame(TypeInfo *info, PyObject *thing)
{
    PyObject **found;
    size_t count = referents_of(thing, &found);
#if AT_LEAST(11)
    Frame *frame = ((PyFrameObject *)thing)->f_frame;
#else
    Frame *frame = (PyFrameObject *)thing;
#endif
    const Words *words = words_of(info);
    Parts parts = {.code = (PyObject *)code_of(frame), .globals = frame->f_globals, .builtins = frame->f_builtins,
                   .locals = space_of(frame)};
    bool runs = is_running((PyFrameObject *)thing);
    size_t labelled = count < MOST_REFERENTS ? count : MOST_REFERENTS;
    memset(labels, 0, labelled * sizeof labels[0]);
    if (runs && parts.locals != NULL)
        name_space(parts.locals);
    if (!AT_LEAST(11) || !runs)
        label_variables(found, labelled, frame);
    for (size_t place = 0; place < count; place++) {
        uint32_t label = place < labelled ? labels[place] : 0;
        if (label == 0)
            label = label_of_part(words, &parts, found[place]);
        if (label == 0 && !AT_LEAST(11)) /* the stack of a generator that waits */
            label = LABEL(EDGE_STACK, 0);
        edge(found[place], label);
    }
    if (AT_LEAST(11) && runs)
        running_frame_read(frame);
}

/* What a suspended generator waits for (as _PyGen_yf), NULL: nothing. */
static PyObject *awaited_by(PyGenObject *generator)
{
#if AT_LEAST(11)
    Frame *frame = (Frame *)generator->gi_iframe;
#if AT_LEAST(13)
    bool waits = generator->gi_frame_state == FRAME_SUSPENDED_YIELD_FROM;
#else
    /* It goes on at a RESUME, which says what it is there for: 2 after `yield from`, 3 after `await`. */
    bool waits = generator->gi_frame_state == FRAME_SUSPENDED && _Py_OPARG(frame->prev_instr[1]) >= 2;
    int opcode = waits ? _Py_OPCODE(frame->prev_instr[1]) : 0;
#if AT_LEAST(12)
    waits = opcode == RESUME || opcode == INSTRUMENTED_RESUME;
#else
    waits = opcode == RESUME || opcode == RESUME_QUICK;
#endif
#endif
    return waits && frame->stacktop > code_of(frame)->co_nlocalsplus ? frame->localsplus[frame->stacktop - 1] : NULL;
#else
    (void)generator;
    return NULL; /* the frame holds it, not the generator */
#endif
}

static PyCodeObject *code_of_generator(PyGenObject *generator)
{
#if AT_LEAST(11)
    return code_of((Frame *)generator->gi_iframe);
#else
    return (PyCodeObject *)generator->gi_code;
#endif
}

/* Its variables are gone. One that is closed before it has begun keeps them (3.12 and later). */
static bool has_ended(PyGenObject *generator)
{
#if AT_LEAST(11)
    return generator->gi_frame_state >= FRAME_CLEARED;
#else
    return generator->gi_frame == NULL;
#endif
}

/* LOCAL for the variables of a suspended frame, INTERNAL for what it waits for, STACK for the rest. */
static void read_generator(TypeInfo *info, PyObject *thing)
{
    PyGenObject *generator = (PyGenObject *)thing;
    PyObject **found;
    size_t count = referents_of(thing, &found);
    Parts parts = {.code = (PyObject *)code_of_generator(generator), .awaited = awaited_by(generator), .is_generator = true};
    bool runs = false;
    size_t labelled = count < MOST_REFERENTS ? count : MOST_REFERENTS;
    memset(labels, 0, labelled * sizeof labels[0]);
#if AT_LEAST(11)
    Frame *frame = (Frame *)generator->gi_iframe;
    runs = generator->gi_frame_state == FRAME_EXECUTING;
    if (!has_ended(generator)) {
        label_variables(found, labelled, frame);
        parts.frame = (PyObject *)frame->frame_obj;
    }
    if (runs && frame->frame_obj == NULL && !is_own_space(frame->f_globals))
        edge_to_row(node_of_frame(frame), words_of(info)->frame);
#else
    parts.frame = (PyObject *)generator->gi_frame;
#endif
    for (size_t place = 0; place < count; place++) {
        uint32_t label = place < labelled ? labels[place] : 0;
        if (label == 0)
            label = label_of_part(words_of(info), &parts, found[place]);
        if (label == 0)
            label = LABEL(EDGE_STACK, 0);
        /* Its frame is among the running ones and shows variables and stack; here they would be counted twice. */
        if (!runs || label >> 27 == EDGE_INTERNAL)
            edge(found[place], label);
    }
}

/* --- sizes, states, labels ------------------------------------------------------------------------------------------------- */

#define COLLECTOR_BYTES sizeof(PyGC_Head) /* before each object that the collector knows */

static uint64_t frame_bytes(TypeInfo *info, PyObject *thing)
{
#if AT_LEAST(11)
    return COLLECTOR_BYTES + offsetof(PyFrameObject, _f_frame_data) + running_frame_bytes(((PyFrameObject *)thing)->f_frame);
#else
    return COLLECTOR_BYTES + running_frame_bytes(thing);
#endif
}

static uint64_t generator_bytes(TypeInfo *info, PyObject *thing)
{
#if AT_LEAST(11)
    return COLLECTOR_BYTES + offsetof(PyGenObject, gi_iframe) + running_frame_bytes(((PyGenObject *)thing)->gi_iframe);
#else
    return COLLECTOR_BYTES + (uint64_t)info->type->tp_basicsize;
#endif
}

static uint32_t generator_state(PyObject *thing)
{
    return has_ended((PyGenObject *)thing) ? STATE_ENDED : STATE_LIVE;
}

static Row frame_label(TypeInfo *info, PyObject *thing)
{
#if AT_LEAST(11)
    PyFrameObject *frame = (PyFrameObject *)thing;
    if (frame->f_lineno > 0) /* it is being traced */
        return name_place("", code_of(frame->f_frame), frame->f_lineno);
    return running_frame_label(frame->f_frame);
#else
    return running_frame_label(thing);
#endif
}

static Row generator_label(TypeInfo *info, PyObject *thing)
{
    const char *word = info->type == &PyGen_Type ? "generator " : info->type == &PyCoro_Type ? "coroutine " : "async generator ";
    return name_place(word, code_of_generator((PyGenObject *)thing), 0);
}

bool take_frame(TypeInfo *info)
{
    bool is_frame = info->type == &PyFrame_Type;
    if (!is_frame && info->type != &PyGen_Type && info->type != &PyCoro_Type && info->type != &PyAsyncGen_Type)
        return false;
    Words *words = info->own = arena_take(sizeof(Words));
    *words = (Words){.f_code = internal("f_code"), .f_back = internal("f_back"), .f_func = internal("f_func"),
                     .f_globals = internal("f_globals"), .f_builtins = internal("f_builtins"), .f_locals = internal("f_locals"),
                     .name = internal("__name__")};
    if (is_frame) {
        words->code = words->f_code;
        info->read = read_frame;
        info->size = frame_bytes;
        info->label = frame_label;
        return true;
    }
    words->code = internal(info->type == &PyGen_Type ? "gi_code" : info->type == &PyCoro_Type ? "cr_code" : "ag_code");
    words->frame = internal(info->type == &PyGen_Type ? "gi_frame" : info->type == &PyCoro_Type ? "cr_frame" : "ag_frame");
    words->awaited = internal(info->type == &PyGen_Type ? "gi_yieldfrom" : info->type == &PyCoro_Type ? "cr_await" : "ag_await");
    info->read = read_generator;
    info->size = generator_bytes;
    info->state = generator_state;
    info->label = generator_label;
    return true;
}
