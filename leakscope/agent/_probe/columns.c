/* The .npy files of a snapshot (format 1.0): values are buffered and go out by write(2); the header, which says how many there are,
 * is written last. Stretches of zeros are not written: they stay holes of the file. */
#include "engine.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#define HEADER_BYTES 128u
#define BUFFER_BYTES 65536u

Column columns[COLUMN_COUNT];
static uint8_t *buffers;
static const char *folder_of_columns;

static const struct {
    const char *name;
    uint8_t item, of; /* of: nodes, edges ...; sampled blocks and memory of storages have files only where there are any */
} shape_of[COLUMN_COUNT] = {
    [COLUMN_ADDRESS] = {"address", 8, 'n'}, [COLUMN_TYPE] = {"type_id", 4, 'n'}, [COLUMN_BYTES] = {"shallow_bytes", 8, 'n'},
    [COLUMN_REFCOUNT] = {"refcount", 4, 'n'}, [COLUMN_LENGTH] = {"length", 4, 'n'}, [COLUMN_KIND] = {"kind", 1, 'n'},
    [COLUMN_STATE] = {"state", 1, 'n'}, [COLUMN_DEVICE] = {"device", 1, 'n'}, [COLUMN_BIRTH] = {"birth", 4, 'n'},
    [COLUMN_SITE] = {"site_id", 4, 'n'}, [COLUMN_LABEL] = {"label", 4, 'n'}, [COLUMN_EDGE_START] = {"edge_start", 8, 's'},
    [COLUMN_EDGE_TARGET] = {"edge_target", 4, 'e'}, [COLUMN_EDGE_LABEL] = {"edge_label", 4, 'e'},
    [COLUMN_ROOT_NODE] = {"root_node", 4, 'r'}, [COLUMN_ROOT_KIND] = {"root_kind", 1, 'r'}, [COLUMN_ROOT_LABEL] = {"root_label", 4, 'r'},
    [COLUMN_SAMPLE_NODE] = {"sample_node", 4, 'b'}, [COLUMN_SAMPLE_SITE] = {"sample_site", 4, 'b'},
    [COLUMN_SAMPLE_BYTES] = {"sample_bytes", 8, 'b'}, [COLUMN_SAMPLE_WEIGHT] = {"sample_weight", 8, 'b'},
    [COLUMN_SAMPLE_NS] = {"sample_ns", 8, 'b'}, [COLUMN_STORAGE_NODE] = {"storage_node", 4, 'm'},
    [COLUMN_STORAGE_ADDRESS] = {"storage_address", 8, 'm'}};

static void write_at(int file, const uint8_t *bytes, size_t count, uint64_t offset)
{
    while (count > 0) {
        ssize_t done = pwrite(file, bytes, count, (off_t)offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            walk_fail(done == 0 ? ENOSPC : errno, "write");
        bytes += done;
        offset += (uint64_t)done;
        count -= (size_t)done;
    }
}

static void path_of(char *path, size_t room, const char *folder, int number)
{
    int length = snprintf(path, room, "%s/%s.npy", folder, shape_of[number].name);
    if (length < 0 || (size_t)length >= room)
        walk_fail(ENAMETOOLONG, "path");
}

static void column_open(int number)
{
    char path[4096];
    Column *column = &columns[number];
    column->item = shape_of[number].item;
    column->buffer = column->next = buffers + (size_t)number * BUFFER_BYTES;
    column->end = column->buffer + BUFFER_BYTES;
    column->written = 0;
    path_of(path, sizeof path, folder_of_columns, number);
    column->file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (column->file < 0)
        walk_fail(errno, "open");
}

void columns_open(const char *folder)
{
    folder_of_columns = folder;
    for (int number = 0; number < COLUMN_COUNT; number++)
        columns[number] = (Column){.file = -1};
    buffers = arena_take((size_t)BUFFER_BYTES * COLUMN_COUNT);
    for (int number = 0; number < COLUMN_COUNT; number++)
        if (shape_of[number].of != 'b' && shape_of[number].of != 'm')
            column_open(number);
}

static void open_those_of(char of)
{
    for (int number = 0; number < COLUMN_COUNT; number++)
        if (shape_of[number].of == of && columns[number].file < 0)
            column_open(number);
}

void columns_open_samples(void)
{
    open_those_of('b');
}

void columns_open_storages(void)
{
    open_those_of('m');
}

static bool is_zero(const uint8_t *bytes, size_t count)
{
    return count == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0);
}

void column_flush(Column *column)
{
    size_t used = (size_t)(column->next - column->buffer);
    if (!is_zero(column->buffer, used))
        write_at(column->file, column->buffer, used, HEADER_BYTES + column->written);
    column->written += used;
    column->next = column->buffer;
}

void column_add(int number, uint64_t value)
{
    Column *column = &columns[number];
    if (column->next == column->end)
        column_flush(column);
    memcpy(column->next, &value, column->item); /* little-endian machines only, as the files */
    column->next += column->item;
}

uint64_t column_count(int number)
{
    const Column *column = &columns[number];
    return (column->written + (uint64_t)(column->next - column->buffer)) / column->item;
}

/* Adds zeros until the column has `count` values. */
static void pad(Column *column, uint64_t count)
{
    uint64_t have = column->written + (uint64_t)(column->next - column->buffer), wanted = count * column->item;
    if (have >= wanted)
        return;
    if (wanted - have > (uint64_t)(column->end - column->next)) {
        column_flush(column);
        column->written = wanted;
    } else {
        memset(column->next, 0, wanted - have);
        column->next += wanted - have;
    }
}

void column_put(int number, uint64_t index, uint64_t value)
{
    pad(&columns[number], index);
    column_add(number, value);
}

void column_patch(int number, uint64_t index, uint64_t value)
{
    Column *column = &columns[number];
    uint64_t offset = index * column->item;
    if (offset >= column->written)
        memcpy(column->buffer + (offset - column->written), &value, column->item);
    else
        write_at(column->file, (const uint8_t *)&value, column->item, HEADER_BYTES + offset);
}

uint64_t column_read(int number, uint64_t index)
{
    const Column *column = &columns[number];
    uint64_t offset = index * column->item, value = 0;
    if (offset >= column->written) {
        memcpy(&value, column->buffer + (offset - column->written), column->item);
        return value;
    }
    ssize_t done;
    do
        done = pread(column->file, &value, column->item, (off_t)(HEADER_BYTES + offset));
    while (done < 0 && errno == EINTR);
    if (done < 0)
        walk_fail(errno, "read");
    return value; /* behind the end of the file lie zeros that are not written yet */
}

/* numpy's format: magic, version, length of the text, a dictionary padded so that the data begin at a multiple of 64. */
static void write_header(const Column *column, uint64_t count)
{
    char header[HEADER_BYTES + 1];
    memset(header, ' ', HEADER_BYTES);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)(HEADER_BYTES - 10);
    header[9] = 0;
    int length = snprintf(header + 10, HEADER_BYTES - 10, "{'descr': '<u%d', 'fortran_order': False, 'shape': (%llu,), }",
                          column->item, (unsigned long long)count);
    header[10 + length] = ' ';
    header[HEADER_BYTES - 1] = '\n';
    write_at(column->file, (const uint8_t *)header, HEADER_BYTES, 0);
}

void columns_close(void)
{
    for (int number = 0; number < COLUMN_COUNT; number++) {
        Column *column = &columns[number];
        if (column->file < 0)
            continue;
        if (shape_of[number].of == 'n')
            pad(column, walk.queue.count);
        column_flush(column);
        if (ftruncate(column->file, (off_t)(HEADER_BYTES + column->written)) < 0)
            walk_fail(errno, "write");
        write_header(column, column->written / column->item);
        int file = column->file;
        column->file = -1;
        if (close(file) < 0)
            walk_fail(errno, "write");
    }
}

void columns_remove(const char *folder)
{
    char path[4096];
    for (int number = 0; number < COLUMN_COUNT; number++) {
        if (columns[number].file >= 0)
            close(columns[number].file);
        columns[number].file = -1;
        path_of(path, sizeof path, folder, number);
        unlink(path);
    }
}
