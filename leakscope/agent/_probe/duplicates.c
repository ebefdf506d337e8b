/* Texts that are in memory more than once: exact str and bytes with the same content. What is written is which rows are equal,
 * neither content nor hash. */
#include "engine.h"
#include "readers.h"

#define LEAST_LENGTH 32           /* letters or bytes (twin: duplicates.py) */
#define MOST_LENGTH (1 << 20)
#define MOST_READ_BYTES (2u << 20) /* in one walk: some 40,000 texts, 3 ms */
#define MOST_ROWS (1u << 18)      /* written */

typedef struct {
    const uint8_t *content;
    uint64_t hash;
    uint32_t bytes, row, next; /* next: the place of the next with the same content; 0: none */
    uint32_t kind;             /* bytes of a letter; 0: a bytes object */
} Text;
static Vector texts;
static Vector slots; /* uint64_t: half of a hash, then 1 + the place of the first text with it; 0: free. A table like memory.c's, but made in
                        one go. It and the texts are fetched ahead: most of what it costs is waiting for memory */
#define AHEAD 16
#define SPREAD 0x9E3779B97F4A7C15u
static uint64_t read_bytes_count;

void duplicates_open(void)
{
    vector_open(&texts, sizeof(Text));
    read_bytes_count = 0;
    vector_open(&slots, sizeof(uint64_t));
}

void duplicates_close(void)
{
    vector_close(&texts);
    vector_close(&slots);
}

/* Eight bytes at a time, fast rather than strong: it is not written, and two texts that only seem equal mislead a sum. */
static uint64_t hash_of(const uint8_t *content, size_t bytes, uint64_t seed)
{
    uint64_t hash = seed * SPREAD, word;
    for (; bytes >= sizeof word; content += sizeof word, bytes -= sizeof word) {
        memcpy(&word, content, sizeof word);
        hash = (hash ^ word) * SPREAD;
        hash ^= hash >> 29;
    }
    word = 0;
    memcpy(&word, content, bytes);
    hash = (hash ^ word) * SPREAD;
    return hash ^ hash >> 32;
}

static void note(const void *content, Py_ssize_t length, size_t bytes, uint32_t kind)
{
    if (length < LEAST_LENGTH || length > MOST_LENGTH || read_bytes_count >= MOST_READ_BYTES)
        return;
    read_bytes_count += bytes;
    *(Text *)vector_add(&texts, 1) = (Text){content, 0, (uint32_t)bytes, walk.row, 0, kind};
}

static void read_str(TypeInfo *info, PyObject *thing)
{
    (void)info;
    size_t length = (size_t)((PyASCIIObject *)thing)->length;
    if (length >= LEAST_LENGTH && PyUnicode_IS_COMPACT(thing))
        note(PyUnicode_DATA(thing), (Py_ssize_t)length, length * PyUnicode_KIND(thing), PyUnicode_KIND(thing));
}

static void read_bytes(TypeInfo *info, PyObject *thing)
{
    (void)info;
    note(((PyBytesObject *)thing)->ob_sval, Py_SIZE(thing), (size_t)Py_SIZE(thing), 0);
}

Reader duplicates_of(PyTypeObject *type)
{
    return type == &PyUnicode_Type ? read_str : type == &PyBytes_Type ? read_bytes : NULL;
}

static void hash_all(void)
{
    Text *all = texts.items;
    for (size_t place = 0; place < texts.count; place++) {
        if (place + AHEAD < texts.count) {
            __builtin_prefetch(all[place + AHEAD].content);
            __builtin_prefetch(all[place + AHEAD].content + 64);
        }
        all[place].hash = hash_of(all[place].content, all[place].bytes, (uint64_t)all[place].bytes << 3 ^ all[place].kind);
    }
}

/* Chains the texts with the same content, each new one behind the first. Returns how many have a first before them. */
static uint32_t chain(void)
{
    unsigned bits = 4;
    uint32_t again = 0;
    while ((size_t)1 << bits < texts.count * 2)
        bits++;
    hash_all();
    uint64_t *table = vector_add(&slots, (size_t)1 << bits);
    const size_t mask = ((size_t)1 << bits) - 1;
    memset(table, 0, sizeof(uint64_t) << bits);
    for (uint32_t place = 0; place < texts.count; place++) {
        Text *text = &AT(Text, texts, place);
        if (place + AHEAD < texts.count)
            __builtin_prefetch(&table[text[AHEAD].hash >> 40 & mask], 1);
        const uint64_t half = text->hash << 32;
        for (size_t slot = text->hash >> 40 & mask;; slot = (slot + 1) & mask) {
            if (table[slot] == 0) {
                table[slot] = half | (place + 1);
                break;
            }
            Text *first = &AT(Text, texts, (uint32_t)table[slot] - 1);
            if ((table[slot] ^ half) >> 32 == 0 && first->hash == text->hash) {
                text->next = first->next;
                first->next = place;
                text->hash = 0; /* it is told with the first */
                again++;
                break;
            }
        }
    }
    return again;
}

static char *number(char *to, uint32_t value)
{
    char digits[10];
    size_t count = 0;
    do
        digits[count++] = (char)('0' + value % 10);
    while (value /= 10);
    while (count)
        *to++ = digits[--count];
    return to;
}

/* The rows of a text and of those that are equal to it, first the first; returns how many. */
static uint32_t write_rows(Output *output, const Text *first)
{
    uint32_t written = 0;
    char before = '[', word[12];
    for (const Text *text = first;; text = &AT(Text, texts, text->next)) {
        word[0] = before;
        out_bytes(output, word, (size_t)(number(word + 1, text->row) - word));
        before = ',';
        written++;
        if (text->next == 0)
            break;
    }
    out_bytes(output, "]", 1);
    return written;
}

void duplicates_write(Output *output)
{
    uint32_t written = 0;
    out(output, ",\"duplicates\":[");
    if (texts.count > 0 && chain() > 0)
        for (uint32_t place = 0; place < texts.count && written < MOST_ROWS; place++) {
            const Text *text = &AT(Text, texts, place);
            if (text->next == 0 || text->hash == 0)
                continue;
            if (written)
                out_bytes(output, ",", 1);
            written += write_rows(output, text);
        }
    out(output, "]");
}
