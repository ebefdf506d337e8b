/* What the program knows: the constants and names of its code. They are looked up by their content, by the hash that a str keeps or one
 * made the same way.
 */
#include "texts.h"

#if AT_LEAST(13)
#include <internal/pycore_pyhash.h>
#endif

static Constant *constants;
static size_t constant_room, constant_count;
static Vector constant_memory;
static Table codes; /* those that were learnt */

#if AT_LEAST(14)
#define HASH_OF_BYTES Py_HashBuffer
#else
#define HASH_OF_BYTES _Py_HashBytes
#endif

Py_hash_t hash_of_bytes(const void *bytes, Py_ssize_t count)
{
    return HASH_OF_BYTES(bytes, count);
}

Py_hash_t hash_of_text(PyObject *text)
{
    Py_hash_t hash = ((PyASCIIObject *)text)->hash;
    if (hash != -1)
        return hash;
    return HASH_OF_BYTES(PyUnicode_DATA(text), PyUnicode_GET_LENGTH(text) * PyUnicode_KIND(text));
}

static bool same_text(PyObject *one, PyObject *other)
{
    return one == other || (PyUnicode_GET_LENGTH(one) == PyUnicode_GET_LENGTH(other) && PyUnicode_KIND(one) == PyUnicode_KIND(other)
                            && memcmp(PyUnicode_DATA(one), PyUnicode_DATA(other),
                                      (size_t)(PyUnicode_GET_LENGTH(one) * PyUnicode_KIND(one))) == 0);
}

/* The place of a ready str, where it is or would go. */
static Constant *constant_place(PyObject *text, Py_hash_t hash)
{
    size_t place = (size_t)hash & (constant_room - 1);
    while (constants[place].text != NULL && (constants[place].hash != hash || !same_text(constants[place].text, text)))
        place = (place + 1) & (constant_room - 1);
    return &constants[place];
}

static void constants_grow(void)
{
    Vector memory, old_memory = constant_memory;
    Constant *old = constants;
    size_t old_room = constant_room;
    vector_open(&memory, sizeof(Constant));
    constant_room = old_room ? old_room * 2 : 8192;
    constants = vector_add(&memory, constant_room);
    constant_memory = memory;
    for (size_t place = 0; place < old_room; place++)
        if (old[place].text != NULL) {
            size_t at = (size_t)old[place].hash & (constant_room - 1);
            while (constants[at].text != NULL)
                at = (at + 1) & (constant_room - 1);
            constants[at] = old[place];
        }
    vector_close(&old_memory);
}

static void learn_text(PyObject *text)
{
    Text ready;
    if (!text_of(text, &ready))
        return;
    Py_hash_t hash = hash_of_text(text);
    Constant *constant = constant_place(text, hash);
    if (constant->text != NULL)
        return;
    *constant = (Constant){text, hash, 0};
    if (++constant_count * 2 > constant_room)
        constants_grow();
}

/* Calls learn_text for the texts in a constant, however deep; code objects go to `waiting`. */
static void learn_constant(PyObject *value, Vector *waiting)
{
    if (value == NULL)
        return;
    if (PyUnicode_CheckExact(value)) {
        learn_text(value);
    } else if (PyTuple_CheckExact(value) || PyFrozenSet_CheckExact(value) || PyCode_Check(value)) {
        *(PyObject **)vector_add(waiting, 1) = value;
    }
}

/* The arguments of a code object: they become keys when it is called by keywords. */
static void learn_arguments(PyCodeObject *code)
{
#if AT_LEAST(11)
    PyObject *names = code->co_localsplusnames;
#else
    PyObject *names = code->co_varnames;
#endif
    Py_ssize_t count = code->co_argcount + code->co_kwonlyargcount;
    for (Py_ssize_t place = 0; names != NULL && PyTuple_CheckExact(names) && place < PyTuple_GET_SIZE(names) && place < count; place++)
        if (PyUnicode_CheckExact(PyTuple_GET_ITEM(names, place)))
            learn_text(PyTuple_GET_ITEM(names, place));
}

static void learn_items(PyObject *value, Vector *waiting)
{
    if (PyTuple_CheckExact(value)) {
        for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(value); place++)
            learn_constant(PyTuple_GET_ITEM(value, place), waiting);
    } else if (PyFrozenSet_CheckExact(value)) {
        PySetObject *set = (PySetObject *)value;
        for (Py_ssize_t place = 0; place <= set->mask; place++)
            learn_constant(set->table[place].key, waiting);
    } else {
        PyCodeObject *code = (PyCodeObject *)value;
        uint64_t known;
        if (table_find(&codes, (uintptr_t)code, &known))
            return;
        table_set(&codes, (uintptr_t)code, 1);
        if (code->co_names != NULL)
            learn_items(code->co_names, waiting);
        learn_arguments(code);
        if (code->co_consts != NULL)
            for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(code->co_consts); place++)
                learn_constant(PyTuple_GET_ITEM(code->co_consts, place), waiting);
    }
}

static Vector waiting;

void names_learn(PyCodeObject *code)
{
    uint64_t known;
    if (code == NULL || table_find(&codes, (uintptr_t)code, &known))
        return;
    size_t bottom = waiting.count;
    *(PyObject **)vector_add(&waiting, 1) = (PyObject *)code;
    while (waiting.count > bottom)
        learn_items(AT(PyObject *, waiting, --waiting.count), &waiting);
}

Constant *constant_of(PyObject *text)
{
    Constant *constant = constant_place(text, hash_of_text(text));
    return constant->text == NULL ? NULL : constant;
}

bool names_is_constant(PyObject *text)
{
    Text ready;
    return text_of(text, &ready) && is_name_like(ready) && constant_of(text) != NULL;
}

bool is_word(const char *word, size_t length)
{
    Py_hash_t hash = HASH_OF_BYTES(word, (Py_ssize_t)length);
    size_t place = (size_t)hash & (constant_room - 1);
    for (; constants[place].text != NULL; place = (place + 1) & (constant_room - 1))
        if (constants[place].hash == hash && (size_t)PyUnicode_GET_LENGTH(constants[place].text) == length
            && PyUnicode_IS_ASCII(constants[place].text) && memcmp(PyUnicode_DATA(constants[place].text), word, length) == 0)
            return true;
    return false;
}

void words_open(PyObject *words)
{
    vector_open(&constant_memory, sizeof(Constant));
    vector_open(&waiting, sizeof(PyObject *));
    table_open(&codes);
    constant_room = constant_count = 0;
    constants_grow();
    if (words != NULL && PyFrozenSet_CheckExact(words))
        learn_items(words, &waiting);
    waiting.count = 0;
}

void words_close(void)
{
    vector_close(&constant_memory);
    vector_close(&waiting);
    table_close(&codes);
}
