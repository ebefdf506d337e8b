/* The inner loops of the graph analyses: reachability, components, dominators, retained sizes, breadth-first paths.
 *
 * Every function has a twin of the same name in _graph_python.py with identical results; what the arguments mean is said
 * there. Edges are in compressed rows: node i holds edge_target[edge_start[i] .. edge_start[i + 1]). Nodes are uint32.
 * The passes over columns are in _columns.c. Arrays come in through the buffer protocol and results go into arrays that
 * the caller made, so numpy is not needed to build this file. All loops are iterative (a linked list of a million nodes is
 * a normal heap) and run without the GIL; the caller must not change the arrays meanwhile.
 */
#include "_graph.h"

/* The lengths of the buffers are checked by graph_from, what is in them here: an index out of range would be a wild read. */
static int check(const Graph *g) {
    if (g->start[0] != 0 || g->start[g->n] != g->edges) return BAD_EDGES;
    for (uint32_t i = 0; i < g->n; i++)
        if (g->start[i] > g->start[i + 1]) return BAD_EDGES;
    uint32_t highest = 0;
    for (uint64_t e = 0; e < g->edges; e++)
        if (g->target[e] > highest) highest = g->target[e];
    return g->edges && highest >= g->n ? BAD_EDGES : OK;
}

static int check_nodes(const uint32_t *nodes, uint64_t count, uint32_t n) {
    for (uint64_t i = 0; i < count; i++)
        if (nodes[i] >= n) return BAD_NODE;
    return OK;
}

/* --- reachability ------------------------------------------------------------------------------------------------- */

static int reach(const Graph *g, const uint32_t *sources, uint64_t count, const uint8_t *edge_allowed, uint8_t *seen,
                 uint8_t *fresh) {
    int rc = check_nodes(sources, count, g->n);
    if (rc) return rc;
    uint32_t *stack = array(g->n, sizeof *stack), depth = 0;
    if (!stack) return OUT_OF_MEMORY;
    for (uint64_t s = 0; s < count; s++) {
        fresh[s] = !seen[sources[s]];
        if (!fresh[s]) continue;
        seen[sources[s]] = 1;
        stack[depth++] = sources[s];
        while (depth) {
            uint32_t v = stack[--depth];
            for (uint64_t e = g->start[v]; e < g->start[v + 1]; e++) {
                uint32_t w = g->target[e];
                if (seen[w] || (edge_allowed && !edge_allowed[e])) continue;
                seen[w] = 1;
                stack[depth++] = w;
            }
        }
    }
    free(stack);
    return OK;
}

/* What a search will look at next of v: a heap whose rows lie in another order than its edges misses the cache at each of them. */
#define PREFETCHED 8
static inline void fetch_row(const Graph *g, uint32_t v, const uint32_t *state) {
    uint64_t e = g->start[v], end = g->start[v + 1];
    if (end > e + PREFETCHED) end = e + PREFETCHED;
    for (; e < end; e++) {
        __builtin_prefetch(&state[g->target[e]]);
        __builtin_prefetch(&g->start[g->target[e]]);
    }
}

/* --- strongly connected components: Tarjan 1972, iterative, in the space of Pearce, "A Space-Efficient Algorithm for Finding
 * Strongly Connected Components", 2016 -------------------------------------------------------------------------------------
 * One number for each node: 0 not visited; while it is on a stack the least visit that it reaches, from 1 on; then n less the
 * number of its component, which is more than any visit that is still going on, and so never the least. The two stacks grow
 * towards each other in one array: a node is on one of them at most. */

static int components(const Graph *g, const uint8_t *allowed, int32_t *component, int32_t *found) {
    uint32_t n = g->n, clock = 1, next_number = n, depth = 0, waiting = n;
    uint32_t *number = (uint32_t *)component;
    uint32_t *stack = array(n, sizeof *stack);   /* from 0: the path; from n down: left, component not known yet */
    uint32_t *cursor = array(n, sizeof *cursor); /* of each node on the path: how many of its edges were followed */
    uint8_t *is_least = array(n, 1);             /* of each node on the path: no earlier visit was reached from it */
    int rc = stack && cursor && is_least ? OK : OUT_OF_MEMORY;
    for (uint32_t i = 0; i < n; i++) number[i] = allowed && !allowed[i] ? NONE : 0;
    for (uint32_t first = 0; rc == OK && first < n; first++) {
        if (number[first]) continue;
        uint32_t next = first;
        for (;;) {
            if (next != NONE) { /* enter next */
                number[next] = clock++;
                stack[depth] = next;
                is_least[depth] = 1;
                cursor[depth++] = 0;
                fetch_row(g, next, number);
                next = NONE;
            }
            uint32_t v = stack[depth - 1];
            uint64_t e = g->start[v] + cursor[depth - 1], end = g->start[v + 1];
            for (; e < end; e++) {
                uint32_t w = g->target[e];
                if (!number[w]) {
                    next = w;
                    break;
                }
                if (number[w] < number[v]) number[v] = number[w], is_least[depth - 1] = 0;
            }
            if (next != NONE) {
                cursor[depth - 1] = (uint32_t)(e - g->start[v]); /* looked at again when it has been left */
                continue;
            }
            if (is_least[--depth]) { /* leave v */
                clock--;
                for (; waiting < n && number[stack[waiting]] >= number[v]; waiting++, clock--) number[stack[waiting]] = next_number;
                number[v] = next_number--;
            } else {
                stack[--waiting] = v;
            }
            if (!depth) break;
        }
    }
    for (uint32_t i = 0; i < n; i++) component[i] = number[i] == NONE ? -1 : (int32_t)(n - number[i]);
    *found = (int32_t)(n - next_number);
    free(stack), free(cursor), free(is_least);
    return rc;
}

/* --- dominators: semi-NCA (Georgiadis, "Linear-Time Algorithms for Dominators and Related Problems", 2005) ------------
 * All loops after the depth-first search work on its preorder numbers; number 0 is the virtual root that holds the roots. */

typedef struct {
    uint32_t count;                       /* numbers 0 .. count - 1 are in use */
    uint32_t *number, *node, *parent;     /* number of a node (0: not reached), node of a number, parent by number */
    uint32_t *semi, *ancestor, *best;     /* by number; `best` is the least semi on the compressed path */
    uint32_t *holder_start, *holder;      /* incoming edges of each number, as numbers, without the one from its parent */
    uint32_t *path;
    struct { uint32_t holder, held; } *edge; /* all of them, as the search meets them */
    uint64_t edges;
} Dominators;

static int search(const Graph *g, const uint32_t *roots, uint64_t root_count, Dominators *d) {
    uint32_t *cursor = d->semi; /* not in use yet: how many edges of each node on the path were followed */
    d->edge = array(g->edges, sizeof *d->edge);
    if (!d->edge) return OUT_OF_MEMORY;
    d->count = 1;
    for (uint64_t r = 0; r < root_count; r++) {
        if (d->number[roots[r]]) continue;
        uint32_t next = roots[r], above = 0, depth = 0;
        for (;;) {
            if (next != NONE) {
                d->number[next] = d->count;
                d->node[d->count] = next;
                d->parent[d->count] = above;
                d->path[depth] = d->count++;
                cursor[depth++] = 0;
                fetch_row(g, next, d->number);
                next = NONE;
            }
            above = d->path[depth - 1];
            uint64_t start = g->start[d->node[above]], e = start + cursor[depth - 1], end = g->start[d->node[above] + 1];
            for (; e < end; e++) {
                uint32_t held = d->number[g->target[e]];
                if (!held) break;
                d->edge[d->edges].holder = above, d->edge[d->edges++].held = held;
            }
            if (e < end) {
                next = g->target[e];
                cursor[depth - 1] = (uint32_t)(e + 1 - start);
            } else if (--depth == 0) {
                break;
            }
        }
    }
    return OK;
}

static int holders(Dominators *d) {
    d->holder = array(d->edges, sizeof *d->holder);
    if (!d->holder) return OUT_OF_MEMORY;
    for (uint64_t e = 0; e < d->edges; e++) d->holder_start[d->edge[e].held]++;
    /* Counts become ends; filling from the back moves each end down to its start. */
    for (uint32_t i = 1; i <= d->count; i++) d->holder_start[i] += d->holder_start[i - 1];
    for (uint64_t e = d->edges; e-- > 0;) d->holder[--d->holder_start[d->edge[e].held]] = d->edge[e].holder;
    free(d->edge);
    d->edge = NULL;
    return OK;
}

/* The least semi on the path from v up to the last number above `done`; the path is compressed on the way. */
static uint32_t least(Dominators *d, uint32_t v, uint32_t done) {
    uint32_t depth = 0;
    while (d->ancestor[v] > done) {
        d->path[depth++] = v;
        v = d->ancestor[v];
    }
    while (depth) {
        uint32_t above = v;
        v = d->path[--depth];
        if (d->best[above] < d->best[v]) d->best[v] = d->best[above];
        d->ancestor[v] = d->ancestor[above];
    }
    return d->best[v];
}

/* `semi` comes in with 0 for roots, because the virtual root holds them besides whoever else does, and NONE for the rest.
 * When it returns, `parent` is the immediate dominator. */
static void semi_nca(Dominators *d) {
    for (uint32_t w = d->count - 1; w >= 1; w--) {
        uint32_t semi = d->semi[w] < d->parent[w] ? d->semi[w] : d->parent[w];
        for (uint32_t e = d->holder_start[w]; e < d->holder_start[w + 1]; e++) {
            uint32_t v = d->holder[e], candidate = v <= w ? v : least(d, v, w);
            if (candidate < semi) semi = candidate;
        }
        d->semi[w] = d->best[w] = semi;
        d->ancestor[w] = d->parent[w];
    }
    for (uint32_t w = 1; w < d->count; w++) {
        uint32_t v = d->parent[w];
        while (v > d->semi[w]) v = d->parent[v];
        d->parent[w] = v;
    }
}

static int dominators(const Graph *g, const uint32_t *roots, uint64_t root_count, int32_t *idom) {
    uint64_t n = (uint64_t)g->n + 1;
    int rc = check_nodes(roots, root_count, g->n);
    if (rc) return rc;
    Dominators d = {0};
    d.number = zeros(n, 4), d.node = array(n, 4), d.parent = array(n, 4), d.semi = array(n, 4);
    d.ancestor = array(n, 4), d.best = array(n, 4), d.path = array(n, 4), d.holder_start = zeros(n + 1, 4);
    rc = d.number && d.node && d.parent && d.semi && d.ancestor && d.best && d.path && d.holder_start ? OK : OUT_OF_MEMORY;
    if (rc == OK) rc = search(g, roots, root_count, &d);
    if (rc == OK) rc = holders(&d);
    if (rc == OK) {
        memset(d.semi, 0xff, n * 4);
        for (uint64_t r = 0; r < root_count; r++) d.semi[d.number[roots[r]]] = 0;
        semi_nca(&d);
        for (uint32_t i = 0; i < g->n; i++) idom[i] = -1;
        d.node[0] = g->n;
        for (uint32_t w = 1; w < d.count; w++) idom[d.node[w]] = (int32_t)d.node[d.parent[w]];
    }
    free(d.number), free(d.node), free(d.parent), free(d.semi), free(d.ancestor), free(d.best), free(d.path);
    free(d.holder_start), free(d.holder), free(d.edge);
    return rc;
}

/* Sizes are added up from the leaves of the dominator tree: a node is passed on once all its children are in. */
static int retained(const int32_t *idom, const uint64_t *sizes, uint32_t n, uint64_t *bytes) {
    for (uint32_t i = 0; i < n; i++)
        if (idom[i] < -1 || idom[i] > (int64_t)n) return BAD_NODE;
    uint32_t *missing = zeros(n, sizeof *missing);
    if (!missing) return OUT_OF_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        bytes[i] = idom[i] < 0 ? 0 : sizes[i];
        if (idom[i] >= 0 && (uint32_t)idom[i] < n) missing[idom[i]]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint32_t v = i, soon = i + 2 * PREFETCHED < n && idom[i + 2 * PREFETCHED] > 0 ? (uint32_t)idom[i + 2 * PREFETCHED] : 0;
        __builtin_prefetch(&missing[soon == n ? 0 : soon], 1);
        __builtin_prefetch(&bytes[soon == n ? 0 : soon], 1);
        while (missing[v] == 0) {
            missing[v] = NONE; /* passed on */
            if (idom[v] < 0 || (uint32_t)idom[v] == n) break;
            uint32_t above = (uint32_t)idom[v];
            bytes[above] += bytes[v];
            missing[above]--;
            v = above;
        }
    }
    free(missing);
    return OK;
}

/* --- breadth-first paths ------------------------------------------------------------------------------------------ */

typedef struct {
    const uint32_t *label;        /* of each edge: kind << 27 | value */
    const uint32_t *string_order; /* rank of each string in alphabetical order */
    const uint8_t *string_pass;   /* from which pass on an edge of that name may be used */
    uint32_t strings;
    const uint8_t *kinds;         /* three rows of 32: order of the kind, its pass, whether its value is a string */
} Taste;

static int allowed_in(const Taste *t, uint64_t e, uint8_t pass) {
    uint32_t kind = t->label[e] >> 27, value = t->label[e] & ((1u << 27) - 1);
    return t->kinds[32 + kind] <= pass && !(t->kinds[64 + kind] && value < t->strings && t->string_pass[value] > pass);
}

static uint64_t order_of(const Taste *t, uint64_t e) {
    uint32_t kind = t->label[e] >> 27, value = t->label[e] & ((1u << 27) - 1);
    if (t->kinds[64 + kind] && value < t->strings) value = t->string_order[value];
    return (uint64_t)t->kinds[kind] << 32 | value;
}

/* The next level is complete before it is expanded, so the best edge of a level wins, whichever came first. */
static int expand(const Graph *g, const Taste *t, uint8_t pass, const uint32_t *frontier, uint64_t count,
                  int64_t *parent_edge, int32_t *parent, int32_t *root, int32_t *depth) {
    int rc = check_nodes(frontier, count, g->n);
    if (rc) return rc;
    uint32_t *queue = array(g->n, sizeof *queue), head = 0, tail = 0;
    uint8_t *mine = zeros(g->n, 1); /* claimed in this call */
    rc = queue && mine ? OK : OUT_OF_MEMORY;
    uint64_t f = 0;
    while (rc == OK && (head < tail || f < count)) {
        int32_t level = head < tail ? depth[queue[head]] : depth[frontier[f]];
        uint32_t level_end = tail;
        for (;;) {
            uint32_t v;
            if (f < count && depth[frontier[f]] <= level) v = frontier[f++];
            else if (head < level_end) v = queue[head++];
            else break;
            if (root[v] < 0) continue; /* no frontier of this caller's making: it could not claim anything for a root */
            for (uint64_t e = g->start[v]; e < g->start[v + 1]; e++) {
                uint32_t w = g->target[e];
                if (root[w] >= 0 && !(mine[w] && depth[w] == level + 1)) continue;
                if (!allowed_in(t, e, pass)) continue;
                if (root[w] < 0) {
                    mine[w] = 1;
                    queue[tail++] = w;
                } else if (order_of(t, e) >= order_of(t, (uint64_t)parent_edge[w])) {
                    continue;
                }
                parent_edge[w] = (int64_t)e;
                parent[w] = (int32_t)v;
                root[w] = root[v];
                depth[w] = level + 1;
            }
        }
    }
    free(queue), free(mine);
    return rc;
}

/* --- the module --------------------------------------------------------------------------------------------------- */

int graph_from(Graph *g, const Py_buffer *start, const Py_buffer *target) {
    uint64_t rows = COUNT(*start, uint64_t);
    if (rows == 0 || rows > INT32_MAX) return BAD_EDGES;
    g->n = (uint32_t)(rows - 1);
    g->edges = COUNT(*target, uint32_t);
    g->start = start->buf;
    g->target = target->buf;
    return g->edges < NONE ? check(g) : BAD_EDGES;
}

void release(Py_buffer *views, int count) {
    for (int i = 0; i < count; i++)
        if (views[i].obj) PyBuffer_Release(&views[i]);
}

int raise_for(int rc) {
    if (rc == OUT_OF_MEMORY) PyErr_NoMemory();
    if (rc == BAD_EDGES) PyErr_SetString(PyExc_ValueError, "edge_start and edge_target are not the edges of one graph");
    if (rc == BAD_NODE) PyErr_SetString(PyExc_ValueError, "an array is of another length than the graph, or holds no node of it");
    return rc;
}

PyObject *finished(Py_buffer *views, int count, int rc) {
    release(views, count);
    if (raise_for(rc)) return NULL;
    Py_RETURN_NONE;
}

/* An optional argument: None, or a buffer of `length` bytes. */
static int optional(PyObject *object, Py_buffer *view, uint64_t length) {
    if (object == Py_None) return OK;
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE)) return -1;
    return (uint64_t)view->len == length ? OK : BAD_NODE;
}

static PyObject *py_reach(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[6] = {{0}};
    PyObject *allowed;
    if (!PyArg_ParseTuple(args, "y*y*y*Ow*w*", &v[0], &v[1], &v[2], &allowed, &v[3], &v[4])) return NULL;
    Graph g;
    int rc = optional(allowed, &v[5], COUNT(v[1], uint32_t));
    if (rc == OK) {
        Py_BEGIN_ALLOW_THREADS
        rc = graph_from(&g, &v[0], &v[1]);
        if (rc == OK && ((uint64_t)v[3].len != g.n || (uint64_t)v[4].len != COUNT(v[2], uint32_t))) rc = BAD_NODE;
        if (rc == OK) rc = reach(&g, v[2].buf, COUNT(v[2], uint32_t), v[5].buf, v[3].buf, v[4].buf);
        Py_END_ALLOW_THREADS
    }
    return finished(v, 6, rc);
}

static PyObject *py_components(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[4] = {{0}};
    PyObject *allowed;
    if (!PyArg_ParseTuple(args, "y*y*Ow*", &v[0], &v[1], &allowed, &v[2])) return NULL;
    Graph g;
    int32_t found = 0;
    int rc = optional(allowed, &v[3], COUNT(v[2], int32_t));
    if (rc == OK) {
        Py_BEGIN_ALLOW_THREADS
        rc = graph_from(&g, &v[0], &v[1]);
        if (rc == OK && COUNT(v[2], int32_t) != g.n) rc = BAD_NODE;
        if (rc == OK) rc = components(&g, v[3].buf, v[2].buf, &found);
        Py_END_ALLOW_THREADS
    }
    release(v, 4);
    return raise_for(rc) ? NULL : PyLong_FromLong(found);
}

static PyObject *py_dominators(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[4] = {{0}};
    if (!PyArg_ParseTuple(args, "y*y*y*w*", &v[0], &v[1], &v[2], &v[3])) return NULL;
    Graph g;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = graph_from(&g, &v[0], &v[1]);
    if (rc == OK && COUNT(v[3], int32_t) != g.n) rc = BAD_NODE;
    if (rc == OK) rc = dominators(&g, v[2].buf, COUNT(v[2], uint32_t), v[3].buf);
    Py_END_ALLOW_THREADS
    return finished(v, 4, rc);
}

static PyObject *py_retained(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[3] = {{0}};
    if (!PyArg_ParseTuple(args, "y*y*w*", &v[0], &v[1], &v[2])) return NULL;
    uint64_t n = COUNT(v[0], int32_t);
    int rc = n < INT32_MAX && COUNT(v[1], uint64_t) == n && COUNT(v[2], uint64_t) == n ? OK : BAD_NODE;
    if (rc == OK) {
        Py_BEGIN_ALLOW_THREADS
        rc = retained(v[0].buf, v[1].buf, (uint32_t)n, v[2].buf);
        Py_END_ALLOW_THREADS
    }
    return finished(v, 3, rc);
}

static PyObject *py_expand(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[11] = {{0}};
    unsigned char pass;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*by*w*w*w*w*", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &pass, &v[6], &v[7],
                          &v[8], &v[9], &v[10]))
        return NULL;
    Graph g;
    Taste t = {v[2].buf, v[3].buf, v[4].buf, (uint32_t)v[4].len, v[5].buf};
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = graph_from(&g, &v[0], &v[1]);
    if (rc == OK && (COUNT(v[2], uint32_t) != g.edges || COUNT(v[3], uint32_t) != t.strings || v[5].len != 96 ||
                     COUNT(v[7], int64_t) != g.n || COUNT(v[8], int32_t) != g.n || COUNT(v[9], int32_t) != g.n ||
                     COUNT(v[10], int32_t) != g.n))
        rc = BAD_NODE;
    if (rc == OK) rc = expand(&g, &t, pass, v[6].buf, COUNT(v[6], uint32_t), v[7].buf, v[8].buf, v[9].buf, v[10].buf);
    Py_END_ALLOW_THREADS
    return finished(v, 11, rc);
}

static PyMethodDef methods[] = {
    {"reach", py_reach, METH_VARARGS, NULL},
    {"components", py_components, METH_VARARGS, NULL},
    {"dominators", py_dominators, METH_VARARGS, NULL},
    {"retained", py_retained, METH_VARARGS, NULL},
    {"expand", py_expand, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_graph", "Inner loops of the graph analyses; the twin _graph_python says what they mean.", -1,
    methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__graph(void) {
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddFunctions(made, column_methods)) Py_CLEAR(made);
    return made;
}
