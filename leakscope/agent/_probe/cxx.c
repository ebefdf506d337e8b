/* The C++ objects of torch: their memory, which may not be there, and their classes. How: see cxx.h. */
#include "cxx.h"

#include <sys/uio.h>
#include <unistd.h>

/* --- reading what may not be there ---------------------------------------------------------------------------------------- */

enum { PAGE = 4096, LOWEST = 1 << 16, ADDRESS_BITS = 47, PAGES_KNOWN = 1 << 14 };

static pid_t own_pid, parent_pid;
static uint64_t pages[PAGES_KNOWN]; /* that are there, by the end of their numbers; kept only where nothing can change */

void cxx_parent(void)
{
    parent_pid = getpid();
}

void cxx_open(void)
{
    own_pid = getpid();
}

static bool ask_for(uint64_t address, void *into, size_t bytes)
{
    struct iovec here = {into, bytes}, there = {(void *)(uintptr_t)address, bytes};
    return process_vm_readv(own_pid, &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

static bool is_page_there(uint64_t page)
{
    uint64_t *known = &pages[page % PAGES_KNOWN];
    char first;
    if (*known != page && ask_for(page * PAGE, &first, 1))
        *known = page;
    return *known == page;
}

/* Word by word: the memory belongs to another library, whose objects a sanitizer knows the ends of. */
__attribute__((no_sanitize("address"), noinline)) static void copy_bytes(uint64_t address, char *into, size_t bytes)
{
    const volatile char *from = (const volatile char *)(uintptr_t)address;
    size_t done = 0;
    for (; address % 8 == 0 && done + 8 <= bytes; done += 8) {
        uint64_t word = *(const volatile uint64_t *)(from + done);
        __builtin_memcpy(into + done, &word, 8);
    }
    for (; done < bytes; done++)
        into[done] = from[done];
}

bool copy_memory(uint64_t address, void *into, size_t bytes)
{
    if (address < LOWEST || address >> ADDRESS_BITS != 0)
        return false;
    if (own_pid == parent_pid)
        return ask_for(address, into, bytes);
    for (uint64_t page = address / PAGE; page <= (address + bytes - 1) / PAGE; page++)
        if (!is_page_there(page))
            return false;
    copy_bytes(address, into, bytes);
    return true;
}

/* The words of an object that may be shorter than that, at the end of what is mapped; those that are not there are 0. */
bool copy_words(uint64_t address, uint64_t *words, size_t count)
{
    size_t bytes = count * sizeof *words;
    if (address % sizeof *words != 0)
        return false;
    if (copy_memory(address, words, bytes))
        return true;
    memset(words, 0, bytes);
    size_t to_page_end = PAGE - address % PAGE;
    return to_page_end < bytes && copy_memory(address, words, to_page_end);
}

uint64_t word_at(uint64_t address)
{
    uint64_t word;
    return address % sizeof word == 0 && copy_memory(address, &word, sizeof word) ? word : 0;
}

/* --- classes of C++ objects ----------------------------------------------------------------------------------------------- */

enum { LONGEST_NAME = 120, DEEPEST = 8, CLASS_ROOM = 2048, MOST_CLASSES = 1500 };

static Class classes[CLASS_ROOM];
static size_t class_count;

/* Copies the name in a type_info: mangled, "N5torch8autograd4NodeE". */
static bool class_name(uint64_t type_info, char *name)
{
    uint64_t address = word_at(type_info + 8);
    memset(name, 0, LONGEST_NAME + 1);
    if (copy_memory(address, name, LONGEST_NAME))
        return true;
    size_t to_page_end = PAGE - address % PAGE; /* the last name of its page */
    memset(name, 0, LONGEST_NAME + 1);
    return to_page_end < LONGEST_NAME && copy_memory(address, name, to_page_end);
}

/* The first base of a class, if it stands at the beginning of it: __si_class_type_info has a pointer there,
 * __vmi_class_type_info two 32-bit numbers, flags and count, and then pairs of a base and its offset (2.9.5). 0: it has
 * none, a wild word at the worst. */
static uint64_t base_of_class(uint64_t type_info)
{
    uint64_t words[3];
    if (!copy_memory(type_info + 16, words, sizeof words))
        return 0;
    if ((uint32_t)words[0] <= 3 && words[0] >> 32 > 0 && words[0] >> 32 < 32)
        return words[2] >> 8 == 0 ? words[1] : 0;
    return words[0];
}

static int kind_of_name(const char *name)
{
    static const struct {
        const char *name;
        int kind;
    } known[] = {{"N3c1019UndefinedTensorImplE", UNDEFINED}, {"N3c1010TensorImplE", TENSOR}, {"N3c1011StorageImplE", STORAGE},
                 {"N5torch8autograd22DifferentiableViewMetaE", VIEW}, {"N5torch8autograd12AutogradMetaE", META},
                 {"N5torch8autograd14AccumulateGradE", ACCUMULATE}, {"N5torch8autograd4NodeE", NODE},
                 {"N5torch8autograd20PySavedVariableHooksE", SAVED_HOOKS},
                 {"N5torch8autograd23PyFunctionTensorPreHookE", HOOK}, {"N5torch8autograd17PyFunctionPreHookE", HOOK},
                 {"N5torch8autograd18PyFunctionPostHookE", HOOK}};
    for (size_t index = 0; index < sizeof known / sizeof known[0]; index++)
        if (strcmp(name, known[index].name) == 0)
            return known[index].kind;
    return OTHER;
}

/* "AddBackward0" of "N5torch8autograd9generated12AddBackward0E": the last part of a nested name without templates, else "". */
static void last_part(const char *name, char *part, size_t room)
{
    part[0] = 0;
    if (*name++ != 'N')
        return;
    while (*name >= '0' && *name <= '9') {
        size_t length = 0;
        while (*name >= '0' && *name <= '9' && length < LONGEST_NAME)
            length = length * 10 + (size_t)(*name++ - '0');
        if (length >= room || strnlen(name, length) < length)
            break;
        memcpy(part, name, length);
        part[length] = 0;
        name += length;
    }
    if (*name != 'E')
        part[0] = 0;
}

static Class class_read(uint64_t table)
{
    Class found = {.table = table};
    char name[LONGEST_NAME + 1];
    uint64_t before[2]; /* offset to the whole object, type_info */
    if (table % 8 != 0 || !copy_memory(table - 16, before, sizeof before) || before[0] != 0 || !class_name(before[1], name))
        return found;
    last_part(name, found.name, sizeof found.name);
    uint64_t type_info = before[1];
    for (int depth = 0; depth < DEEPEST; depth++) {
        found.kind = (uint16_t)kind_of_name(name);
        type_info = found.kind != OTHER ? 0 : base_of_class(type_info);
        if (type_info == 0 || !class_name(type_info, name))
            break;
    }
    return found;
}

/* The class whose virtual functions are at `table`. What was seen is kept for the life of the process: libraries stay
 * loaded. */
Class *class_by_table(uint64_t table)
{
    static Class last;
    size_t place = (size_t)((table >> 3) * 0x9E3779B97F4A7C15u >> 32) % CLASS_ROOM;
    while (classes[place].table != 0 && classes[place].table != table)
        place = (place + 1) % CLASS_ROOM;
    if (classes[place].table == table)
        return &classes[place];
    last = class_read(table);
    if (last.kind == OTHER || class_count >= MOST_CLASSES)
        return &last;
    class_count++;
    classes[place] = last;
    return &classes[place];
}

int kind_at(uint64_t address)
{
    uint64_t table = word_at(address);
    return table == 0 ? OTHER : class_by_table(table)->kind;
}

/* Copies an object of one of the kinds wanted, and says which. */
int copy_object(uint64_t address, int wanted, uint64_t *words)
{
    if (address == 0 || !copy_words(address, words, OBJECT_WORDS) || words[0] == 0)
        return OTHER;
    return class_by_table(words[0])->kind & wanted;
}
