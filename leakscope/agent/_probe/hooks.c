/* The sampler in the allocators of the interpreter: PyMem_SetAllocator on all three domains.
 *
 * Light, where the object and mem domains are plain pymalloc: their free is not hooked. A sampled request that pymalloc would serve
 * itself (up to 512 bytes) is asked of it as 513 bytes: it hands that on to the raw domain, as it does with all large ones, counts it as
 * it counts those, and when the block is freed it tells by the address that it is not its own and hands it on again, to the one hooked
 * free. So what is not sampled pays a subtraction at its allocation and nothing at its end (Objects/obmalloc.c: _PyObject_Malloc,
 * pymalloc_alloc, pymalloc_realloc, address_in_range). The raw domain gives it only the bytes that it needs (Gap.instead): where a good
 * part of the small blocks is sampled, the process does not grow by it.
 *
 * Full, everywhere else (PYTHONMALLOC, a tool that was there before us): all functions of all domains. What an allocator asks of
 * another one while it serves a request is not another allocation: Gap.depth says so.
 *
 * The context of a domain stays as it was, ours is not needed: so a thread that reads the table while it is being exchanged finds a
 * function and a context that go together.
 *
 * A block that grows is a new allocation of what it grew by; see regrow() and renew(). */
#include "sample.h"

#include <malloc.h>
#if AT_LEAST(13)
#include <internal/pycore_pymem.h> /* _PyMem_GetCurrentAllocatorName */
#endif

#define SMALL 512u /* SMALL_REQUEST_THRESHOLD of pymalloc */
#define PAGE 4096u
enum { RAW = PYMEM_DOMAIN_RAW, MEM = PYMEM_DOMAIN_MEM, OBJ = PYMEM_DOMAIN_OBJ, DOMAINS };

typedef size_t (*SizeOf)(void *block);

static struct {
    PyMemAllocatorEx under, ours;
    SizeOf size_of; /* bytes of a block, as asked for or some more; NULL: there is no telling */
    bool is_in, is_light;
} domains[DOMAINS];

/* --- the rare cases ---------------------------------------------------------------------------------------------------------- */

#define RARE static __attribute__((noinline, cold))

/* Starts a sample if this hit is one to keep. */
static bool open_sample(Sample *sample, int domain, size_t bytes)
{
    return sample_open(sample, domain != RAW, bytes);
}

static void keep(Sample *sample, void *block, size_t bytes)
{
    sample->address = (uintptr_t)block;
    sample->bytes = bytes;
    sample_add(sample);
}

static bool is_on_top(int domain)
{
    PyMemAllocatorEx now;
    PyMem_GetAllocator((PyMemAllocatorDomain)domain, &now);
    return domains[domain].is_in && now.malloc == domains[domain].ours.malloc;
}

static void *ask_under(int domain, void *context, size_t count, size_t each, bool is_zeroed)
{
    PyMemAllocatorEx *under = &domains[domain].under;
    gap.depth++;
    void *block = is_zeroed ? under->calloc(context, count, each) : under->malloc(context, count * each);
    gap.depth--;
    return block;
}

/* A small block from the raw domain, by way of pymalloc. A tool above us there might write to all that was asked for: then it is given. */
static void *allocate_apart(int domain, void *context, size_t bytes, bool is_zeroed)
{
    if (!is_on_top(RAW))
        return ask_under(domain, context, 1, SMALL + 1, is_zeroed);
    int64_t left = gap.left;
    gap.left = 0; /* so that it comes to allocate_sampled() there */
    gap.instead = bytes;
    void *block = ask_under(domain, context, 1, SMALL + 1, is_zeroed);
    gap.instead = 0;
    gap.left = left;
    return block;
}

RARE void *allocate_sampled(int domain, void *context, size_t count, size_t each, bool is_zeroed)
{
    size_t bytes = count * each;
    if (domain == RAW && gap.instead != 0 && bytes == SMALL + 1)
        return ask_under(RAW, context, 1, gap.instead, is_zeroed);
    Sample sample;
    bool is_kept = open_sample(&sample, domain, bytes);
    sample.is_small = is_kept && domains[domain].is_light && bytes <= SMALL;
    void *block = is_kept && sample.is_small ? allocate_apart(domain, context, bytes, is_zeroed)
                                             : ask_under(domain, context, count, each, is_zeroed);
    if (is_kept && block != NULL)
        keep(&sample, block, bytes);
    return block;
}

/* A new size where nobody knows the old one, or where the block comes from pymalloc: the end of one block and the allocation of another,
 * of `bytes`. `is_hit`: that one is hit. pymalloc_realloc copies what it finds, so a small block moves to the raw domain by itself. */
RARE void *renew(int domain, void *context, void *old, size_t bytes, bool is_hit)
{
    Sample removed, sample;
    bool was_sampled = sample_remove(old, &removed), is_kept = is_hit && open_sample(&sample, domain, bytes);
    bool is_moved = is_kept && domains[domain].is_light && bytes <= SMALL;
    gap.depth++;
    void *block = domains[domain].under.realloc(context, old, is_moved ? SMALL + 1 : bytes);
    gap.depth--;
    if (block == NULL && was_sampled)
        sample_add(&removed);
    if (block != NULL && is_kept) {
        sample.is_small = is_moved;
        keep(&sample, block, bytes);
    }
    return block;
}

/* `bytes` were added to a block and one of them was hit: it is sampled from now on, or stands for that much more. */
RARE void hit_growth(int domain, void *block, size_t size, size_t bytes, Sample *known)
{
    Sample sample;
    if (open_sample(&sample, domain, bytes)) {
        if (known != NULL)
            known->weight += sample.weight;
        else
            keep(&sample, block, size);
    }
}

/* realloc of a block that may be sampled: it keeps its place and time. Of what shrinks, the same part is taken from its weight. The sample
 * is out of the table meanwhile: as soon as the block has moved, its former place is another thread's. */
RARE void *regrow_known(int domain, void *context, void *old, size_t bytes)
{
    Sample known;
    size_t size_before = domains[domain].size_of(old);
    bool was_sampled = sample_remove(old, &known);
    gap.depth++;
    void *block = domains[domain].under.realloc(context, old, bytes);
    gap.depth--;
    if (block == NULL) {
        if (was_sampled)
            sample_add(&known);
        return NULL;
    }
    size_t size = domains[domain].size_of(block), added = size > size_before ? size - size_before : 0;
    if (was_sampled && known.is_small) { /* it was pymalloc's, which would have allocated another one now */
        was_sampled = false;
        added = bytes;
    }
    if (was_sampled && bytes < known.bytes)
        known.weight *= (double)bytes / (double)known.bytes;
    if (is_hit(added))
        hit_growth(domain, block, bytes, added, was_sampled ? &known : NULL);
    if (was_sampled && bytes > 0)
        keep(&known, block, bytes);
    return block;
}

/* Out of the table first: as soon as it is freed, another thread may have it. */
RARE void free_known(int domain, void *context, void *block)
{
    sample_remove(block, NULL);
    domains[domain].under.free(context, block);
}

/* The block has moved though it had room. */
RARE void move(void *old, void *block, size_t bytes)
{
    Sample known;
    if (sample_remove(old, &known))
        keep(&known, block, bytes);
}

/* --- the fast paths: inlined into one function for each domain ------------------------------------------------------------------ */

INLINE void *serve_malloc(int domain, bool is_nested, void *context, size_t bytes)
{
    if (is_hit(bytes))
        return allocate_sampled(domain, context, 1, bytes, false);
    if (!is_nested)
        return domains[domain].under.malloc(context, bytes);
    gap.depth++;
    void *block = domains[domain].under.malloc(context, bytes);
    gap.depth--;
    return block;
}

INLINE void *serve_calloc(int domain, bool is_nested, void *context, size_t count, size_t each)
{
    if (is_hit(count * each))
        return allocate_sampled(domain, context, count, each, true);
    if (!is_nested)
        return domains[domain].under.calloc(context, count, each);
    gap.depth++;
    void *block = domains[domain].under.calloc(context, count, each);
    gap.depth--;
    return block;
}

INLINE void *serve_realloc(int domain, bool is_nested, void *context, void *old, size_t bytes)
{
    if (old == NULL)
        return serve_malloc(domain, is_nested, context, bytes);
    if (gap.depth > 0)
        return domains[domain].under.realloc(context, old, bytes);
    SizeOf size_of = domains[domain].size_of;
    if (size_of == NULL)
        return renew(domain, context, old, bytes, is_hit(bytes));
    size_t size_before = size_of(old);
    bool has_room = bytes <= size_before;
    /* A large str that grows letter by letter stays within its last page, and its sample as it is. */
    bool stays = has_room && size_before >= 4 * PAGE && bytes + PAGE > size_before;
    if (UNLIKELY(may_be_sampled(old)) && !stays)
        return regrow_known(domain, context, old, bytes);
    gap.depth += is_nested;
    void *block = domains[domain].under.realloc(context, old, bytes);
    gap.depth -= is_nested;
    if (UNLIKELY(stays && block != old && block != NULL))
        move(old, block, bytes);
    if (!has_room && block != NULL) {
        size_t size = size_of(block);
        if (size > size_before && is_hit(size - size_before))
            hit_growth(domain, block, bytes, size - size_before, NULL);
    }
    return block;
}

INLINE void serve_free(int domain, void *context, void *block)
{
    if (UNLIKELY(may_be_sampled(block)))
        free_known(domain, context, block);
    else
        domains[domain].under.free(context, block);
}

/* pymalloc: what it does not serve itself comes by again in the raw domain and is counted there. */
INLINE void *light_malloc(int domain, void *context, size_t bytes)
{
    if (bytes <= SMALL && is_hit(bytes))
        return allocate_sampled(domain, context, 1, bytes, false);
    return domains[domain].under.malloc(context, bytes);
}

INLINE void *light_calloc(int domain, void *context, size_t count, size_t each)
{
    if (count * each <= SMALL && is_hit(count * each))
        return allocate_sampled(domain, context, count, each, true);
    return domains[domain].under.calloc(context, count, each);
}

INLINE void *light_realloc(int domain, void *context, void *old, size_t bytes)
{
    if (bytes > SMALL)
        return domains[domain].under.realloc(context, old, bytes);
    if (old == NULL)
        return light_malloc(domain, context, bytes);
    bool was_hit = is_hit(bytes);
    if (UNLIKELY(was_hit || may_be_sampled(old)))
        return renew(domain, context, old, bytes, was_hit);
    return domains[domain].under.realloc(context, old, bytes);
}

#define FULL(name, domain, is_nested) \
    static void *name##_malloc(void *context, size_t bytes) { return serve_malloc(domain, is_nested, context, bytes); } \
    static void *name##_calloc(void *context, size_t count, size_t each) \
    { return serve_calloc(domain, is_nested, context, count, each); } \
    static void *name##_realloc(void *context, void *old, size_t bytes) \
    { return serve_realloc(domain, is_nested, context, old, bytes); } \
    static void name##_free(void *context, void *block) { serve_free(domain, context, block); }

#define LIGHT(name, domain) \
    static void *name##_malloc(void *context, size_t bytes) { return light_malloc(domain, context, bytes); } \
    static void *name##_calloc(void *context, size_t count, size_t each) { return light_calloc(domain, context, count, each); } \
    static void *name##_realloc(void *context, void *old, size_t bytes) { return light_realloc(domain, context, old, bytes); }

FULL(raw, RAW, false)
FULL(full_mem, MEM, true)
FULL(full_obj, OBJ, true)
LIGHT(light_mem, MEM)
LIGHT(light_obj, OBJ)

/* --- putting them in, taking them out --------------------------------------------------------------------------------------------- */

/* Of the C library: of the chunk, which has up to 23 bytes more, or a page where it is a mapping of its own. */
static size_t size_of_chunk(void *block)
{
    return malloc_usable_size(block);
}

/* Objects/obmalloc.c, _PyMem_DebugRawAlloc: the size that was asked for lies before the block, the highest byte first. */
static size_t size_in_debug_header(void *block)
{
    const uint8_t *next = (const uint8_t *)block - 2 * sizeof(size_t);
    size_t size = 0;
    for (size_t byte = 0; byte < sizeof(size_t); byte++)
        size = size << 8 | next[byte];
    return size;
}

static SizeOf size_of_allocator(const char *name, int domain)
{
    if (name == NULL)
        return NULL; /* another tool's */
    if (strstr(name, "_debug") != NULL || strcmp(name, "debug") == 0)
        return size_in_debug_header;
    return domain == RAW || strcmp(name, "malloc") == 0 ? size_of_chunk : NULL;
}

static PyMemAllocatorEx hooks_of(int domain, const PyMemAllocatorEx *under, bool is_light)
{
    static const PyMemAllocatorEx full[DOMAINS] = {
        [RAW] = {NULL, raw_malloc, raw_calloc, raw_realloc, raw_free},
        [MEM] = {NULL, full_mem_malloc, full_mem_calloc, full_mem_realloc, full_mem_free},
        [OBJ] = {NULL, full_obj_malloc, full_obj_calloc, full_obj_realloc, full_obj_free}};
    PyMemAllocatorEx ours = full[domain];
    if (is_light && domain == MEM)
        ours = (PyMemAllocatorEx){NULL, light_mem_malloc, light_mem_calloc, light_mem_realloc, under->free};
    if (is_light && domain == OBJ)
        ours = (PyMemAllocatorEx){NULL, light_obj_malloc, light_obj_calloc, light_obj_realloc, under->free};
    ours.ctx = under->ctx;
    return ours;
}

static bool is_reached(int domain)
{
    int64_t left = gap.left;
    gap.left = 0;
    gap.ping = 1;
    void *block = domain == RAW ? PyMem_RawMalloc(64) : domain == MEM ? PyMem_Malloc(64) : PyObject_Malloc(64);
    bool was_reached = gap.ping == 2;
    gap.ping = 0;
    gap.left = left;
    if (domain == RAW)
        PyMem_RawFree(block);
    else if (domain == MEM)
        PyMem_Free(block);
    else
        PyObject_Free(block);
    return was_reached;
}

bool hooks_are_reached(void)
{
    for (int domain = 0; domain < DOMAINS; domain++)
        if (!domains[domain].is_in || !is_reached(domain))
            return false;
    return true;
}

const char *hooks_mode(void)
{
    return domains[OBJ].is_light && domains[MEM].is_light ? "light" : "full";
}

static void take_out(int domain)
{
    if (is_on_top(domain)) {
        PyMem_SetAllocator((PyMemAllocatorDomain)domain, &domains[domain].under);
        domains[domain].is_in = false;
    }
}

void hooks_take(void)
{
    for (int domain = 0; domain < DOMAINS; domain++)
        take_out(domain);
}

bool hooks_put(const char **reason)
{
    hooks_take(); /* what another tool put back when it went */
    const char *name = _PyMem_GetCurrentAllocatorName();
    for (int domain = 0; domain < DOMAINS; domain++) {
        if (name != NULL)
            domains[domain].is_in = false; /* the interpreter's own: whoever knew ours has gone */
        if (domains[domain].is_in && !is_reached(domain)) {
            *reason = "Another tool has put its allocators in the place of the sampler's.";
            return false;
        }
    }
    bool is_pymalloc = name != NULL && strcmp(name, "pymalloc") == 0;
    for (int domain = 0; domain < DOMAINS; domain++) {
        if (domains[domain].is_in) /* below another tool's, still */
            continue;
        PyMem_GetAllocator((PyMemAllocatorDomain)domain, &domains[domain].under);
        domains[domain].size_of = size_of_allocator(name, domain);
        domains[domain].is_light = is_pymalloc && domain != RAW;
        domains[domain].ours = hooks_of(domain, &domains[domain].under, domains[domain].is_light);
        domains[domain].is_in = true;
        PyMem_SetAllocator((PyMemAllocatorDomain)domain, &domains[domain].ours);
    }
    return true;
}
