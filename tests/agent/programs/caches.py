"""Caches and tables by what their keys look like."""
# ruff: noqa: UP031, UP033  (as programs for 3.9 write it; the words of a text must not be words of the source)

import enum
import functools
import sys
from collections import OrderedDict
from dataclasses import dataclass, field


class Value:
    pass


class ByIdentity:
    def __hash__(self):
        return id(self)

    def __eq__(self, other):
        return self is other


class ByValue:
    def __init__(self, number):
        self.number = number

    def __hash__(self):
        assert not getattr(sys, "watched", False)
        return 7

    def __eq__(self, other):
        assert not getattr(sys, "watched", False)
        return self.number == other.number


@dataclass(frozen=True)
class Config:
    name: str
    bucket: object
    cost: float = field(default=0.5, compare=False)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@functools.lru_cache(maxsize=None)
def module_of(dtype, head_dim, seq_len, *, causal=True):
    return Value()


@functools.cache
def single(length):
    return Value()


@functools.lru_cache(maxsize=16)
def bounded(shape, color):
    return bytearray(shape[0])


@functools.lru_cache(maxsize=None, typed=True)
def typed(one, two=None):
    return Value()


@functools.lru_cache(maxsize=None)
def tuned(config, shape):
    return Value()


@functools.cache
def of_objects(thing):
    return Value()


@functools.cache
def of_words(**words):
    return Value()


def fill():
    for number in range(40):
        module_of("bfloat16", 128, 17 + 100 * number, causal=number % 2 == 0)
        single(number)
        bounded((number + 1, 4096), Color.RED)
        typed(number, two=1.0)
        tuned(Config("moe", lambda m: m), ((number, 4), (4, 8)))
        of_objects(ByIdentity())
        of_objects(ByValue(number))
        of_objects(None if number else True)
        of_words(**{"hunter2%d" % place: number * 5 + place for place in range(5)})
    for number in (-1, 1 << 20, (1 << 20) - 1, 1 << 70, -5):
        single(number)
        single("hunter2%d" % number)


PURE = {}
BY_LENGTH = {number: bytearray(number * 10) for number in range(30)}
BY_SHAPE = OrderedDict((((number, 8), "SECRET%d" % number, float(number), b"hunter2", frozenset((number, "x"))), Value())
                       for number in range(20))
NAMED = {"k%d" % number: number for number in range(50)}
SHORT = {1: 2}
for _number in range(12):
    PURE[functools._make_key((_number, 4), {"dtype": "int8"}, False)] = Value()
DEEP = {(((0,) * 60,) * 7 + ((number,),), 1): Value() for number in range(14)}
HOLES = {number: Value() for number in range(100)}
for _number in range(50, 100):
    del HOLES[_number]

fill()
sys.watched = True
both()  # noqa: F821
sys.watched = False
