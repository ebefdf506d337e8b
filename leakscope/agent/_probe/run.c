/* A whole walk: what is learnt first, the graph, the files; and its face in Python. */
#include "engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>

#define LONGEST_FOLDER 3900
#define MOST_NOTES 200
#define MOST_IDENTS 64

static jmp_buf failure;
static WalkResult *result_now;

int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

void walk_fail(int error, const char *what)
{
    result_now->error = error ? error : EIO;
    snprintf(result_now->reason, sizeof result_now->reason, "%s", what);
    longjmp(failure, 1);
}

/* --- notes --- */

typedef struct {
    const char *text;
    uint64_t count;
} Note;
static Vector notes;

void walk_note(const char *format, ...)
{
    char text[300];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    for (size_t place = 0; place < notes.count; place++)
        if (strcmp(AT(Note, notes, place).text, text) == 0) {
            AT(Note, notes, place).count++;
            return;
        }
    if (notes.count == MOST_NOTES)
        return;
    char *kept = arena_take(strlen(text) + 1);
    strcpy(kept, text);
    *(Note *)vector_add(&notes, 1) = (Note){kept, 1};
}

static void write_notes(Output *output, const char *before)
{
    char text[360];
    out(output, "\"notes\":[");
    out_raw(output, before);
    for (size_t place = 0; place < notes.count; place++) {
        const Note *note = &AT(Note, notes, place);
        if (note->count == 1)
            snprintf(text, sizeof text, "%s", note->text);
        else
            snprintf(text, sizeof text, "%s; %llu times", note->text, (unsigned long long)note->count);
        out(output, place || before[0] ? "," : "");
        out_text(output, text);
    }
    out(output, "]");
}

/* --- the walk --- */

/* One look at all that the collector lists, for the words of functions and for what roots.c looks for. */
static void look_at(PyObject *thing, void *nothing)
{
    (void)nothing;
    if (Py_TYPE(thing) == &PyFunction_Type)
        names_learn((PyCodeObject *)((PyFunctionObject *)thing)->func_code);
    else
        roots_note(thing);
}

/* The words of the program come first: what is shown of the first key must not depend on what is read later. */
static void learn_program(void)
{
    roots_begin();
    each_tracked(look_at, NULL);
    for (PyThreadState *thread = PyInterpreterState_ThreadHead(walk.interpreter); thread != NULL; thread = PyThreadState_Next(thread))
        for (void *frame = running_frame_of(thread); frame != NULL; frame = running_frame_before(frame))
            names_learn(running_frame_code(frame));
}

static void write_names(const char *folder)
{
    Output output;
    output_open(&output, folder, "names.json");
    out(&output, "{\"types\":");
    types_write(&output);
    out(&output, ",\"sites\":");
    samples_write_sites(&output);
    bounds_write(&output);
    duplicates_write(&output);
    out(&output, ",\"line_growth\":[],\"strings\":");
    names_write_strings(&output); /* last: what was written before may have made rows */
    out(&output, "}");
    output_close(&output, folder, "names.json");
}

static void write_done(const WalkOrder *order, WalkResult *result)
{
    Output output;
    output_open(&output, order->folder, "done.json");
    out_raw(&output, order->done);
    out(&output, "\"node_count\":%llu,\"edge_count\":%llu,\"root_count\":%llu,", (unsigned long long)result->node_count,
        (unsigned long long)result->edge_count, (unsigned long long)result->root_count);
    out(&output, "\"excluded_count\":%llu,\"agent_bytes\":%llu,\"walk\":\"native\",", (unsigned long long)result->own_count,
        (unsigned long long)result->own_bytes);
    write_notes(&output, order->notes == NULL ? "" : order->notes);
    result->walk_ns = now_ns() - order->started_ns;
    if (order->is_forked) {
        result->dirtied_bytes = snapshot_dirtied_bytes();
        out(&output, ",\"dirtied_bytes\":%llu", (unsigned long long)result->dirtied_bytes);
    } else {
        result->pause_ns = result->walk_ns;
    }
    out(&output, ",\"pause_ns\":%lld,\"walk_ns\":%lld}", (long long)result->pause_ns, (long long)result->walk_ns);
    output_close(&output, order->folder, "done.json");
}

static void open_all(const WalkOrder *order)
{
    vector_open(&notes, sizeof(Note));
    graph_open();
    duplicates_open();
    walk.own_thread = PyThreadState_Get();
    walk.interpreter = PyThreadState_GetInterpreter(walk.own_thread);
    walk.deadline_ns = order->deadline_ns;
    names_open(order->words);
    types_open();
    own_open(order);
    columns_open(order->folder);
}

static void close_all(void)
{
    own_close();
    types_close();
    names_close();
    graph_close();
    duplicates_close();
    vector_close(&notes);
    memory_close();
}

int walk_run(const WalkOrder *order, WalkResult *result)
{
    result_now = result;
    result->error = 0;
    result->reason[0] = 0;
    if (strlen(order->folder) > LONGEST_FOLDER) {
        result->error = ENAMETOOLONG;
        return -1;
    }
    memory_limit(order->max_bytes);
    if (setjmp(failure)) {
        columns_remove(order->folder);
        output_remove(order->folder, "names.json");
        output_remove(order->folder, "done.json");
        close_all();
        return -1;
    }
    open_all(order);
    learn_program();
    graph_walk();
    samples_of_walk();
    own_measure();
    columns_close();
    write_names(order->folder);
    result->node_count = walk.queue.count;
    result->edge_count = walk.edge_count;
    result->root_count = walk.root_count;
    result->own_count = own_count;
    result->own_bytes = own_bytes;
    result->peak_bytes = memory_peak();
    write_done(order, result);
    close_all();
    return 0;
}

/* --- the face in Python --- */

bool walk_order_of(PyObject *arguments, WalkOrder *order)
{
    static unsigned long idents[MOST_IDENTS];
    PyObject *threads;
    unsigned long long max_bytes;
    long long deadline_ns;
    if (!PyArg_ParseTuple(arguments, "ssssOOO!KL", &order->folder, &order->done, &order->notes, &order->package, &order->own,
                          &order->words, &PyTuple_Type, &threads, &max_bytes, &deadline_ns))
        return false;
    order->own = order->own == Py_None ? NULL : order->own;
    order->words = order->words == Py_None ? NULL : order->words;
    order->max_bytes = max_bytes;
    order->deadline_ns = deadline_ns;
    order->own_idents = idents;
    order->own_idents_count = 0;
    for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(threads) && place < MOST_IDENTS; place++) {
        idents[order->own_idents_count++] = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(threads, place));
        if (PyErr_Occurred())
            return false;
    }
    return true;
}

PyObject *walk_answer(const WalkResult *result)
{
    if (result->error)
        return Py_BuildValue("{s:i,s:s}", "error", result->error, "reason", result->reason);
    return Py_BuildValue("{s:K,s:K,s:K,s:K,s:K,s:L,s:L,s:K,s:K}", "node_count", (unsigned long long)result->node_count, "edge_count",
                         (unsigned long long)result->edge_count, "root_count", (unsigned long long)result->root_count,
                         "excluded_count", (unsigned long long)result->own_count, "agent_bytes",
                         (unsigned long long)result->own_bytes, "pause_ns", (long long)result->pause_ns, "walk_ns",
                         (long long)result->walk_ns, "peak_bytes", (unsigned long long)result->peak_bytes, "dirtied_bytes",
                         (unsigned long long)result->dirtied_bytes);
}

static PyObject *face_walk(PyObject *module, PyObject *arguments)
{
    (void)module;
    WalkOrder order = {.is_forked = false};
    WalkResult result = {.error = 0};
    if (!walk_order_of(arguments, &order))
        return NULL;
    order.started_ns = now_ns();
    walk_run(&order, &result);
    return walk_answer(&result);
}

PyMethodDef walk_methods[] = {
    {"walk", face_walk, METH_VARARGS,
     "walk(folder, done, notes, package, own, words, own_idents, max_bytes, deadline_ns)\n--\n\n"
     "Walk in place: a WalkOrder of probe.h. Returns what done.json says of the walk, or {\"error\": errno, \"reason\": a word}."},
    {NULL, NULL, 0, NULL}};
