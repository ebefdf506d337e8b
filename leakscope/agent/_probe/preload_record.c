/* The record of the preloaded sampler: native.json (agent/format.py). */
#define _GNU_SOURCE
#include "preload.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    int fd;
    size_t used;
    int error;
    char text[8192];
} Out;

static void flush(Out *out)
{
    size_t done = 0;
    while (done < out->used && out->error == 0) {
        ssize_t count = write(out->fd, out->text + done, out->used - done);
        if (count >= 0)
            done += (size_t)count;
        else if (errno != EINTR)
            out->error = errno;
    }
    out->used = 0;
}

static void put(Out *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (out->used == sizeof out->text)
            flush(out);
        out->text[out->used++] = text[i];
    }
}

static void put_text(Out *out, const char *text) { put(out, text, strlen(text)); }

static void put_quoted(Out *out, const char *text) /* names of symbols and files; other letters than ASCII show as "?" */
{
    put_text(out, "\"");
    for (; *text != '\0'; text++) {
        bool is_plain = *text >= ' ' && *text <= '~' && *text != '"' && *text != '\\';
        put(out, is_plain ? text : "?", 1);
    }
    put_text(out, "\"");
}

static void put_number(Out *out, uint64_t number)
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    put(out, digits, (size_t)length);
}

typedef char *(*Demangler)(const char *, char *, size_t *, int *);

static void put_frame(Out *out, uintptr_t address, Demangler demangle)
{
    Dl_info found;
    const char *module = "?", *symbol = "";
    char *plain = NULL;
    uint64_t offset = 0;
    if (dladdr((void *)address, &found) != 0) {
        offset = address - (uintptr_t)found.dli_fbase;
        if (found.dli_fname != NULL) {
            const char *slash = strrchr(found.dli_fname, '/');
            module = slash == NULL ? found.dli_fname : slash + 1;
        }
        if (found.dli_sname != NULL) {
            int status = -1;
            symbol = found.dli_sname;
            if (demangle != NULL && symbol[0] == '_' && symbol[1] == 'Z')
                plain = demangle(symbol, NULL, NULL, &status);
            if (plain != NULL && status == 0)
                symbol = plain;
        }
    }
    put_text(out, "[");
    put_quoted(out, module);
    put_text(out, ",");
    put_quoted(out, symbol);
    put_text(out, ",");
    put_number(out, offset);
    put_text(out, "]");
    give_real(plain);
}

typedef struct {
    uint64_t bytes;
    double count;
} Sum;

/* Adds up by stack what is alive; the table is copied by pieces, so that no thread waits long. */
static void add_up(Sum *sums)
{
    enum { PIECE = 4096 };
    lock();
    are_blocks_held = true;
    unlock();
    for (uint32_t from = 0; from < block_places; from += PIECE) {
        lock();
        for (uint32_t place = from; place < from + PIECE; place++) {
            Block *block = &blocks[place];
            if (block->address != 0) {
                sums[block->stack].bytes += block->weight;
                sums[block->stack].count += block->bytes == 0 ? 0 : (double)block->weight / (double)block->bytes;
            }
        }
        unlock();
    }
    are_blocks_held = false;
}

/* Writes native.json to a file; 0, or an errno. Call it without the GIL: it asks the loader for symbols. */
EXPORT int leakscope_native_write(int fd)
{
    if (blocks == NULL)
        return ENODATA;
    size_t sums_bytes = (STACK_PLACES + 1) * sizeof(Sum);
    Sum *sums = take_pages(sums_bytes);
    if (sums == NULL)
        return ENOMEM;
    is_inside = true;
    add_up(sums);
    Demangler demangle;
    *(void **)&demangle = dlsym(RTLD_DEFAULT, "__cxa_demangle");
    Out out = {.fd = fd};
    put_text(&out, "{\"mean_bytes\":");
    put_number(&out, mean_now);
    put_text(&out, ",\"taken\":");
    put_number(&out, taken_count);
    put_text(&out, ",\"dropped\":");
    put_number(&out, dropped_count);
    put_text(&out, ",\"sites\":[");
    bool is_first = true;
    for (uint32_t row = 0; row <= STACK_PLACES && out.error == 0; row++) {
        if (sums[row].bytes == 0)
            continue;
        const Stack *stack = &stacks[row];
        put_text(&out, is_first ? "\n{\"native\":[" : ",\n{\"native\":[");
        is_first = false;
        for (uint32_t i = 0; i < stack->count; i++) {
            if (i > 0)
                put_text(&out, ",");
            put_frame(&out, stack->frames[i], demangle);
        }
        put_text(&out, "],\"python\":");
        if (stack->python_bytes > 0)
            put(&out, (const char *)(stack->frames + stack->count), stack->python_bytes);
        else
            put_text(&out, "[]");
        put_text(&out, ",\"bytes\":");
        put_number(&out, sums[row].bytes);
        put_text(&out, ",\"count\":");
        put_number(&out, (uint64_t)(sums[row].count + 0.5));
        put_text(&out, "}");
    }
    put_text(&out, "\n]}\n");
    flush(&out);
    give_pages(sums, sums_bytes);
    is_inside = false;
    return out.error;
}
