"""A heap at random: SEED is set before it."""
# ruff: noqa
# mypy: ignore-errors

import collections, functools, random, types, weakref

RANDOM = random.Random(SEED)
KEEP = []
NAMES = ["alpha", "beta", "gamma", "delta", "epsilon"]


class Base:
    pass


def some():
    return (
        RANDOM.choice(KEEP)
        if KEEP and RANDOM.random() < 0.7
        else RANDOM.choice([None, 1, 2.5, "x", "alpha", b"y", (), True, 10**30])
    )


def hashable():
    thing = some()
    try:
        hash(thing)
    except Exception:
        return RANDOM.randrange(100)
    return thing


def make_class():
    bases = [
        Base,
        dict,
        list,
        tuple,
        set,
        int,
        str,
        collections.deque,
        collections.OrderedDict,
        Exception,
        Slotted,
        types.ModuleType,
    ]
    base = RANDOM.choice(bases)
    space = {name: [some()] for name in RANDOM.sample(NAMES, 2)}  # the twin tells attributes by their values if RANDOM.random() < 0.5 else {}
    if RANDOM.random() < 0.3 and base in (Base, list, dict, set, Slotted):
        space["__slots__"] = tuple("slot_" + name for name in RANDOM.sample(NAMES, RANDOM.randrange(1, 3)))
    try:
        return type("Made%d" % len(KEEP), (base,), space)
    except TypeError:
        return type("Made%d" % len(KEEP), (Base,), {})


class Slotted:
    __slots__ = ("one", "two", "__weakref__")


CLASSES = [Base, Slotted]


def make_instance():
    cls = RANDOM.choice(CLASSES)
    args = ("name",) if issubclass(cls, types.ModuleType) else ()
    thing = cls(*args)
    for name in RANDOM.sample(NAMES, RANDOM.randrange(6)):
        try:
            setattr(thing, name, some())
        except AttributeError:
            pass
    for name in NAMES:
        if RANDOM.random() < 0.3:
            try:
                setattr(thing, "slot_" + name, some())
            except AttributeError:
                pass
    return thing


def make_closure():
    first, second = some(), [some()]

    def closure(default=some()):
        return first, second, default

    return closure


def generator(kept):
    local = [kept]
    other = yield local
    del kept
    yield other


def make_generator():
    made = generator(some())
    for _ in range(RANDOM.randrange(3)):
        next(made)
    return made


def change():
    thing = some()
    kind = RANDOM.randrange(6)
    try:
        if isinstance(thing, list) and kind < 3:
            list.append(thing, some())
        elif isinstance(thing, dict) and kind < 4:
            methods = collections.OrderedDict if isinstance(thing, collections.OrderedDict) else dict
            methods.__setitem__(thing, hashable(), some())
            if RANDOM.random() < 0.2:
                methods.popitem(thing)
        elif kind == 4:
            vars(thing)[RANDOM.choice(NAMES)] = some()
        elif kind == 5:
            delattr(thing, RANDOM.choice(NAMES))
        else:
            setattr(thing, RANDOM.choice(NAMES), some())
    except (AttributeError, TypeError, RuntimeError):
        pass


def make():
    kind = RANDOM.randrange(17)
    if kind == 0:
        return [some() for _ in range(RANDOM.randrange(8))]
    if kind == 1:
        return {hashable(): some() for _ in range(RANDOM.randrange(8))}
    if kind == 2:
        return tuple(some() for _ in range(RANDOM.randrange(5)))
    if kind == 3:
        return {hashable() for _ in range(RANDOM.randrange(8))}
    if kind == 4:
        return collections.deque((some() for _ in range(RANDOM.randrange(100))), RANDOM.choice([None, 50]))
    if kind == 5:
        CLASSES.append(make_class())
        return CLASSES[-1]
    if kind in (6, 7, 8, 9):
        return make_instance()
    if kind == 10:
        return make_closure()
    if kind == 11:
        return make_generator()
    if kind == 12:
        return functools.partial(print, some(), key=some())
    if kind == 13:
        thing = make_instance()
        KEEP.append(thing)
        try:
            return weakref.ref(thing, RANDOM.choice([None, print]))
        except TypeError:
            return None
    if kind == 14:
        return types.SimpleNamespace(**{name: some() for name in RANDOM.sample(NAMES, 2)})
    if kind == 15:
        return types.MethodType(print, some() or 1)
    return collections.OrderedDict((hashable(), some()) for _ in range(4))


for _ in range(2500):
    if RANDOM.random() < 0.3:
        change()
    else:
        KEEP.append(make())
both()
