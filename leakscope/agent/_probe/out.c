/* The text files of a snapshot: JSON in ASCII, buffered, under NAME.new until all is there. */
#include "engine.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

static void path_of(char *path, size_t room, const char *folder, const char *name, const char *ending)
{
    int length = snprintf(path, room, "%s/%s%s", folder, name, ending);
    if (length < 0 || (size_t)length >= room)
        walk_fail(ENAMETOOLONG, "path");
}

void output_use(Output *output, int file)
{
    output->file = file;
    output->used = 0;
}

int output_open(Output *output, const char *folder, const char *name)
{
    char path[4096];
    path_of(path, sizeof path, folder, name, ".new");
    output_use(output, open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (output->file < 0)
        walk_fail(errno, "open");
    return output->file;
}

void output_flush(Output *output)
{
    const char *bytes = output->bytes;
    while (output->used > 0) {
        ssize_t done = write(output->file, bytes, output->used);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0) {
            int error = done == 0 ? ENOSPC : errno;
            close(output->file);
            walk_fail(error, "write");
        }
        bytes += done;
        output->used -= (size_t)done;
    }
}

void output_close(Output *output, const char *folder, const char *name)
{
    char path[4096], made[4096];
    path_of(path, sizeof path, folder, name, "");
    path_of(made, sizeof made, folder, name, ".new");
    output_flush(output);
    if (close(output->file) < 0 || rename(made, path) < 0)
        walk_fail(errno, "write");
}

void output_remove(const char *folder, const char *name)
{
    char path[4096];
    path_of(path, sizeof path, folder, name, ".new");
    unlink(path);
    path_of(path, sizeof path, folder, name, "");
    unlink(path);
}

void out_bytes(Output *output, const char *bytes, size_t count)
{
    while (count > 0) {
        if (output->used == sizeof output->bytes)
            output_flush(output);
        size_t part = sizeof output->bytes - output->used;
        part = part < count ? part : count;
        memcpy(output->bytes + output->used, bytes, part);
        output->used += part;
        bytes += part;
        count -= part;
    }
}

void out(Output *output, const char *format, ...)
{
    char text[512];
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text, sizeof text, format, values);
    va_end(values);
    out_bytes(output, text, length < 0 ? 0 : (size_t)length < sizeof text ? (size_t)length : sizeof text - 1);
}

void out_raw(Output *output, const char *text)
{
    out_bytes(output, text, strlen(text));
}

/* One code point of UTF-8; moves on. What is no UTF-8 counts as a point for each byte. */
static uint32_t point_of(const char **text, const char *end)
{
    const unsigned char *at = (const unsigned char *)*text;
    uint32_t point = *at++;
    int more = point >= 0xF0 ? 3 : point >= 0xE0 ? 2 : point >= 0xC0 ? 1 : 0;
    if (more) {
        uint32_t whole = point & (0x3Fu >> more);
        for (int count = 0; count < more; count++, at++) {
            if ((const char *)at == end || (*at & 0xC0) != 0x80) {
                *text += 1;
                return point;
            }
            whole = whole << 6 | (*at & 0x3Fu);
        }
        point = whole;
    }
    *text = (const char *)at;
    return point;
}

size_t json_point(char *json, const char **text, const char *end)
{
    uint32_t point = point_of(text, end);
    if (point >= 0x10000)
        return (size_t)sprintf(json, "\\u%04x\\u%04x", 0xD800 + ((point - 0x10000) >> 10), 0xDC00 + ((point - 0x10000) & 0x3FF));
    if (point < 0x20 || point > 0x7E)
        return (size_t)sprintf(json, "\\u%04x", point);
    size_t used = 0;
    if (point == '"' || point == '\\')
        json[used++] = '\\';
    json[used++] = (char)point;
    return used;
}

void out_text(Output *output, const char *text)
{
    char json[JSON_POINT_BYTES];
    const char *end = text + strlen(text);
    out_bytes(output, "\"", 1);
    while (text < end)
        out_bytes(output, json, json_point(json, &text, end));
    out_bytes(output, "\"", 1);
}
