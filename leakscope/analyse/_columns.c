/* Passes over the columns of one snapshot: who is held from outside, path classes and their sums.
 *
 * Every function has a twin of the same name in _columns_python.py with identical results; what the arguments mean is said there.
 * Each pass reads its columns once, in the order in which they lie, where numpy would make one temporary array after another.
 */
#include "_graph.h"

#define IMMORTAL UINT32_MAX
#define KINDS 32
#define STAR 0x5851F42D4C957F2Dull /* any entry */

enum { ANY, BY_NAME, BY_SHOWN_NAME, BY_PLACE }; /* what tells an edge from its siblings, by its kind */

static int all_below(const uint32_t *rows, uint64_t count, uint64_t limit) {
    uint32_t highest = 0;
    for (uint64_t i = 0; i < count; i++)
        if (rows[i] > highest) highest = rows[i];
    return !count || highest < limit;
}

static int all_from_minus_one_below(const int32_t *rows, uint64_t count, uint64_t limit) {
    uint32_t highest = 0;
    for (uint64_t i = 0; i < count; i++)
        if ((uint32_t)(rows[i] + 1) > highest) highest = (uint32_t)(rows[i] + 1);
    return highest <= limit;
}

/* --- what holds ------------------------------------------------------------------------------------------------------- */

static int outside(const uint32_t *target, uint64_t edges, const uint32_t *refcount, const uint64_t *address, uint64_t n,
                   uint8_t *mask) {
    if (!all_below(target, edges, n)) return BAD_EDGES;
    uint32_t *incoming = zeros(n, sizeof *incoming);
    if (!incoming) return OUT_OF_MEMORY;
    for (uint64_t e = 0; e < edges; e++) incoming[target[e]]++;
    for (uint64_t i = 0; i < n; i++)
        mask[i] = refcount[i] == IMMORTAL ? address[i] || !incoming[i] : refcount[i] > incoming[i] || (!address[i] && !incoming[i]);
    free(incoming);
    return OK;
}

static void border(const Graph *g, const int32_t *root, uint8_t *mask) {
    uint32_t unclaimed = 0;
    for (uint32_t i = 0; i < g->n; i++) unclaimed += root[i] < 0;
    memset(mask, 0, g->n);
    for (uint32_t i = 0; unclaimed && i < g->n; i++) {
        if (root[i] < 0) continue;
        for (uint64_t e = g->start[i]; e < g->start[i + 1] && !mask[i]; e++) mask[i] = root[g->target[e]] < 0;
    }
}

/* --- rows by a small number --------------------------------------------------------------------------------------------- */

static int order_by(const int32_t *values, uint64_t n, uint32_t *order, uint64_t count, uint64_t *start, uint64_t groups) {
    if (!all_from_minus_one_below(values, n, groups)) return BAD_NODE;
    memset(start, 0, (groups + 1) * sizeof *start);
    for (uint64_t i = 0; i < n; i++) start[values[i] + 1]++;
    uint64_t left_out = start[0], sum = 0;
    if (n - left_out != count) return BAD_NODE;
    start[0] = 0;
    for (uint64_t group = 1; group <= groups; group++) { /* start[g + 1] counts group g, and becomes where it begins */
        uint64_t size = start[group];
        start[group] = sum;
        sum += size;
    }
    for (uint64_t i = 0; i < n; i++)
        if (values[i] >= 0) order[start[values[i] + 1]++] = (uint32_t)i;
    return OK; /* each start[g + 1] has moved on to the end of group g, where group g + 1 begins */
}

/* --- path classes --------------------------------------------------------------------------------------------------------- */

static inline uint64_t mix(uint64_t left, uint64_t right) {
    uint64_t mixed = (left * 0x9E3779B97F4A7C15ull) ^ right;
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9ull;
}

typedef struct {
    uint64_t strings, types;
    const uint64_t *string_token;
    const uint8_t *string_shown, *is_tuple, *naming;
    uint32_t tuple_places;
} Naming;

static uint64_t token_of(const Naming *t, uint32_t label, uint32_t holder_type) {
    uint32_t kind = label >> 27, value = label & ((1u << 27) - 1), string = value < t->strings ? value : 0;
    uint64_t token = STAR;
    if (t->naming[kind] == BY_NAME || (t->naming[kind] == BY_SHOWN_NAME && t->string_shown[string])) token = t->string_token[string];
    if (t->naming[kind] == BY_PLACE && value < t->tuple_places && t->is_tuple[holder_type]) token = value;
    return mix(token, kind + 1);
}

typedef struct {
    uint64_t n, count; /* nodes; those in `order`, holders first */
    const uint32_t *order, *label, *type;
    const int32_t *parent, *depth;
    const int64_t *parent_edge;
} Paths;

static void path_keys(const Paths *p, const Naming *t, int32_t folded_depth, uint64_t *token, uint64_t *key) {
    for (uint64_t i = 0; i < p->count; i++) {
        uint32_t v = p->order[i];
        if (p->parent[v] < 0) {
            key[v] = token[v];
            continue;
        }
        uint32_t above = (uint32_t)p->parent[v];
        token[v] = token_of(t, p->label[p->parent_edge[v]], p->type[above]);
        int is_folded = (token[v] == token[above] && p->type[v] == p->type[above]) || p->depth[v] >= folded_depth;
        key[v] = is_folded ? key[above] : mix(key[above], token[v]);
    }
}

/* A hash table with open addressing; the keys are hashes already. */
typedef struct {
    uint64_t room, count;
    uint64_t *key;
    uint32_t *number; /* plus 1; 0: free */
} Classes;

static int make_room(Classes *c, uint64_t room) {
    Classes larger = {room, c->count, array(room, sizeof *c->key), zeros(room, sizeof *c->number)};
    if (!larger.key || !larger.number) {
        free(larger.key), free(larger.number);
        return OUT_OF_MEMORY;
    }
    for (uint64_t i = 0; i < c->room; i++) {
        if (!c->number[i]) continue;
        uint64_t at = c->key[i] & (room - 1);
        while (larger.number[at]) at = (at + 1) & (room - 1);
        larger.key[at] = c->key[i], larger.number[at] = c->number[i];
    }
    free(c->key), free(c->number);
    *c = larger;
    return OK;
}

static int classify(const uint32_t *order, uint64_t count, const uint64_t *key, int32_t *class_of, uint64_t n, uint64_t *found) {
    if (!all_below(order, count, n)) return BAD_NODE;
    Classes c = {0};
    int rc = make_room(&c, 1 << 12);
    memset(class_of, 0xff, n * sizeof *class_of);
    for (uint64_t i = 0; rc == OK && i < count; i++) {
        uint64_t wanted = key[order[i]], at = wanted & (c.room - 1);
        while (c.number[at] && c.key[at] != wanted) at = (at + 1) & (c.room - 1);
        if (!c.number[at]) c.key[at] = wanted, c.number[at] = (uint32_t)++c.count;
        class_of[order[i]] = (int32_t)(c.number[at] - 1);
        if (2 * c.count > c.room) rc = make_room(&c, 4 * c.room);
    }
    *found = c.count;
    free(c.key), free(c.number);
    return rc;
}

typedef struct {
    int64_t *count, *bytes, *subtree, *length;
} Sums;

/* Bytes go up from the deepest nodes; of a path that is folded into its own class only the first member counts its subtree. */
static int class_sums(const Paths *p, const int32_t *class_of, const uint64_t *bytes, const uint32_t *length, Sums *s) {
    uint64_t *below = array(p->n, sizeof *below);
    if (!below) return OUT_OF_MEMORY;
    memcpy(below, bytes, p->n * sizeof *below);
    for (uint64_t i = p->count; i-- > 0;) {
        uint32_t v = p->order[i];
        int32_t above = p->parent[v], class = class_of[v];
        if (above >= 0) below[above] += below[v];
        s->count[class]++;
        s->bytes[class] += (int64_t)bytes[v];
        s->length[class] += length[v];
        if (above < 0 || class_of[above] != class) s->subtree[class] += (int64_t)below[v];
    }
    free(below);
    return OK;
}

/* --- the methods ------------------------------------------------------------------------------------------------------------ */

static PyObject *py_outside(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[4] = {{0}};
    if (!PyArg_ParseTuple(args, "y*y*y*w*", &v[0], &v[1], &v[2], &v[3])) return NULL;
    uint64_t n = (uint64_t)v[3].len;
    int rc = n < INT32_MAX && COUNT(v[1], uint32_t) == n && COUNT(v[2], uint64_t) == n ? OK : BAD_NODE;
    Py_BEGIN_ALLOW_THREADS
    if (rc == OK) rc = outside(v[0].buf, COUNT(v[0], uint32_t), v[1].buf, v[2].buf, n, v[3].buf);
    Py_END_ALLOW_THREADS
    return finished(v, 4, rc);
}

static PyObject *py_border(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[4] = {{0}};
    if (!PyArg_ParseTuple(args, "y*y*y*w*", &v[0], &v[1], &v[2], &v[3])) return NULL;
    Graph g;
    int rc;
    Py_BEGIN_ALLOW_THREADS
    rc = graph_from(&g, &v[0], &v[1]);
    if (rc == OK && (COUNT(v[2], int32_t) != g.n || (uint64_t)v[3].len != g.n)) rc = BAD_NODE;
    if (rc == OK) border(&g, v[2].buf, v[3].buf);
    Py_END_ALLOW_THREADS
    return finished(v, 4, rc);
}

static PyObject *py_order_by(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[3] = {{0}};
    if (!PyArg_ParseTuple(args, "y*w*w*", &v[0], &v[1], &v[2])) return NULL;
    uint64_t n = COUNT(v[0], int32_t), starts = COUNT(v[2], uint64_t);
    int rc = n < INT32_MAX && starts > 0 ? OK : BAD_NODE;
    Py_BEGIN_ALLOW_THREADS
    if (rc == OK) rc = order_by(v[0].buf, n, v[1].buf, COUNT(v[1], uint32_t), v[2].buf, starts - 1);
    Py_END_ALLOW_THREADS
    return finished(v, 3, rc);
}

/* Nodes and their holders are nodes; every edge that leads to one of them exists. */
static int check_paths(const Paths *p, uint64_t edges) {
    if (!all_below(p->order, p->count, p->n) || !all_from_minus_one_below(p->parent, p->n, p->n)) return BAD_NODE;
    for (uint64_t i = 0; p->parent_edge && i < p->count; i++) {
        uint32_t v = p->order[i];
        if (p->parent[v] >= 0 && (uint64_t)p->parent_edge[v] >= edges) return BAD_NODE;
    }
    return OK;
}

static PyObject *py_path_keys(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[12] = {{0}};
    unsigned int places;
    int folded;
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*y*y*y*y*Iiw*w*", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8],
                          &v[9], &places, &folded, &v[10], &v[11]))
        return NULL;
    Paths p = {COUNT(v[1], int32_t), COUNT(v[0], uint32_t), v[0].buf, v[3].buf, v[5].buf, v[1].buf, v[4].buf, v[2].buf};
    Naming t = {COUNT(v[6], uint64_t), (uint64_t)v[8].len, v[6].buf, v[7].buf, v[8].buf, v[9].buf, places};
    int fits = COUNT(v[2], int64_t) == p.n && COUNT(v[4], int32_t) == p.n && COUNT(v[5], uint32_t) == p.n && t.strings > 0 &&
               (uint64_t)v[7].len == t.strings && v[9].len == KINDS && COUNT(v[10], uint64_t) == p.n && COUNT(v[11], uint64_t) == p.n;
    int rc = fits ? OK : BAD_NODE;
    Py_BEGIN_ALLOW_THREADS
    if (rc == OK) rc = check_paths(&p, COUNT(v[3], uint32_t));
    if (rc == OK && !all_below(p.type, p.n, t.types)) rc = BAD_NODE;
    if (rc == OK) path_keys(&p, &t, folded, v[10].buf, v[11].buf);
    Py_END_ALLOW_THREADS
    return finished(v, 12, rc);
}

static PyObject *py_classify(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[3] = {{0}};
    if (!PyArg_ParseTuple(args, "y*y*w*", &v[0], &v[1], &v[2])) return NULL;
    uint64_t n = COUNT(v[2], int32_t), found = 0;
    int rc = n < INT32_MAX && COUNT(v[1], uint64_t) == n ? OK : BAD_NODE;
    Py_BEGIN_ALLOW_THREADS
    if (rc == OK) rc = classify(v[0].buf, COUNT(v[0], uint32_t), v[1].buf, v[2].buf, n, &found);
    Py_END_ALLOW_THREADS
    release(v, 3);
    return raise_for(rc) ? NULL : PyLong_FromUnsignedLongLong(found);
}

static PyObject *py_class_sums(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[9] = {{0}};
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*w*w*w*w*", &v[0], &v[1], &v[2], &v[3], &v[4], &v[5], &v[6], &v[7], &v[8])) return NULL;
    Paths p = {.n = COUNT(v[1], int32_t), .count = COUNT(v[0], uint32_t), .order = v[0].buf, .parent = v[1].buf};
    Sums s = {v[5].buf, v[6].buf, v[7].buf, v[8].buf};
    uint64_t classes = COUNT(v[5], int64_t);
    const int32_t *class_of = v[2].buf;
    int rc = COUNT(v[2], int32_t) == p.n && COUNT(v[3], uint64_t) == p.n && COUNT(v[4], uint32_t) == p.n ? OK : BAD_NODE;
    for (int i = 6; i < 9; i++)
        if (COUNT(v[i], int64_t) != classes) rc = BAD_NODE;
    Py_BEGIN_ALLOW_THREADS
    if (rc == OK) rc = check_paths(&p, 0);
    if (rc == OK && !all_from_minus_one_below(class_of, p.n, classes)) rc = BAD_NODE;
    for (uint64_t i = 0; rc == OK && i < p.count; i++)
        if (class_of[p.order[i]] < 0) rc = BAD_NODE;
    if (rc == OK) rc = class_sums(&p, class_of, v[3].buf, v[4].buf, &s);
    Py_END_ALLOW_THREADS
    return finished(v, 9, rc);
}

static PyObject *py_sums_by(PyObject *Py_UNUSED(self), PyObject *args) {
    Py_buffer v[4] = {{0}};
    if (!PyArg_ParseTuple(args, "y*y*w*w*", &v[0], &v[1], &v[2], &v[3])) return NULL;
    uint64_t n = COUNT(v[0], uint32_t), groups = COUNT(v[2], int64_t);
    int rc = COUNT(v[1], uint64_t) == n && COUNT(v[3], int64_t) == groups ? OK : BAD_NODE;
    Py_BEGIN_ALLOW_THREADS
    if (rc == OK && !all_below(v[0].buf, n, groups)) rc = BAD_NODE;
    const uint32_t *row = v[0].buf;
    const uint64_t *value = v[1].buf;
    int64_t *count = v[2].buf, *sum = v[3].buf;
    for (uint64_t i = 0; rc == OK && i < n; i++) count[row[i]]++, sum[row[i]] += (int64_t)value[i];
    Py_END_ALLOW_THREADS
    return finished(v, 4, rc);
}

PyMethodDef column_methods[] = {
    {"outside", py_outside, METH_VARARGS, NULL},
    {"border", py_border, METH_VARARGS, NULL},
    {"order_by", py_order_by, METH_VARARGS, NULL},
    {"path_keys", py_path_keys, METH_VARARGS, NULL},
    {"classify", py_classify, METH_VARARGS, NULL},
    {"class_sums", py_class_sums, METH_VARARGS, NULL},
    {"sums_by", py_sums_by, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
