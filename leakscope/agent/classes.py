"""What can be said of a type without running its code.

A metaclass may override `__getattribute__`, `__mro__`, `__module__`, `__qualname__`, `__eq__` or `__hash__`. So types
are read through the descriptors of `type` itself, accepted only when they give an exact str or tuple, and told apart by
id().
"""

import gc
import sys

# The module `types` would load `functools` and more before the target's first line (see jsontext.py).
ModuleType, FunctionType, BuiltinFunctionType = type(sys), type(lambda: 0), type(len)
CodeType, FrameType, GeneratorType = type((lambda: 0).__code__), type(sys._getframe()), type(_ for _ in ())
CellType = type((lambda x: lambda: x)(0).__closure__[0])
MemberDescriptorType, GetSetDescriptorType = type(FunctionType.__globals__), type(FunctionType.__code__)
MethodDescriptorType, WrapperDescriptorType = type(str.join), type(object.__init__)
ClassMethodDescriptorType = type(dict.__dict__["fromkeys"])


DESCRIPTORS = (MethodDescriptorType, WrapperDescriptorType, MemberDescriptorType, GetSetDescriptorType,
               ClassMethodDescriptorType)


async def _coroutine():
    """A coroutine for its type."""


async def _async_generator():
    yield


_made = _coroutine()
CoroutineType, AsyncGeneratorType = type(_made), type(_async_generator())
_made.close()
del _made

_mro = type.__dict__["__mro__"].__get__
qualname_of = type.__dict__["__qualname__"].__get__
dict_of = type.__dict__["__dict__"].__get__
flags_of = type.__dict__["__flags__"].__get__
dictoffset_of = type.__dict__["__dictoffset__"].__get__
basicsize_of = type.__dict__["__basicsize__"].__get__

HEAP_TYPE = 1 << 9
HAVE_GC = 1 << 14
MANAGED_DICT = 1 << 4 if sys.version_info >= (3, 11) else 0
_MISSING = object()


def mro_of(cls):
    """Return the MRO; a type that is still being made has none: then itself and `object`."""
    return _mro(cls) or (cls, object)


space_of = ModuleType.__dict__["__dict__"].__get__


def module_referents(module):
    """Return what a module refers to: its dict, and the state of a C module.

    From 3.12 on the state of `_asyncio` shows a free list. To make references to the dead objects on it and drop them
    puts them on the list once more; it then has no end, and the next traversal takes all memory. So that state is never
    looked at.
    """
    space = space_of(module)
    name = dict.get(space, "__name__") if type(space) is dict else None
    if type(name) is str and name == "_asyncio":
        return [space]
    return gc.get_referents(module)


def space_named(name):
    """Return the dict of the loaded module `name`, {} where none is loaded or something else stands in its place.

    Programs put None, mocks and lazy modules into sys.modules: to ask one of those for an attribute runs its code.
    """
    module = dict.get(sys.modules, name)
    if not any(base is ModuleType for base in mro_of(type(module))):
        return {}
    space = space_of(module)
    return space if type(space) is dict else {}


def sets_of_tasks(space):
    """Yield the sets in which asyncio keeps its tasks, or weak references to them; `space` is the dict of asyncio.tasks.

    _all_tasks until 3.11, then tasks are kept apart by how they began. `.data` is the set of weak references: no code runs.
    """
    for name in ("_all_tasks", "_scheduled_tasks", "_eager_tasks"):
        kept = space.get(name)
        if kept is not None:
            yield getattr(kept, "data", kept)


def is_one_of(cls, kinds):
    """True if `cls` is one of `kinds`. `cls in kinds` would ask a metaclass for its __eq__."""
    return any(cls is kind for kind in kinds)


def is_class(thing):
    """True if `thing` is a type; asks the type of the thing, never the thing."""
    return any(base is type for base in mro_of(type(thing)))


def mro_ids(cls):
    """Return the set of id() of the classes in the MRO of `cls`."""
    return set(map(id, mro_of(cls)))


def namespace_of(cls):
    """Return the dict of a class itself (not a proxy, not a copy)."""
    proxy = gc.get_referents(dict_of(cls))
    return proxy[0] if proxy else {}  # a static type that nobody has used yet has no dict


def lookup(cls, name):
    """Return (found, value) of the first class in the MRO that has `name`, as the interpreter would find it."""
    for base in mro_of(cls):
        value = dict.get(namespace_of(base), name, _MISSING)
        if value is not _MISSING:
            return True, value
    return False, None


def has_get(thing):
    """True if `thing` is a descriptor: a read through it could run code."""
    return any("__get__" in namespace_of(base) for base in mro_of(type(thing)))


def is_safe_name(cls, name):
    """True if object.__getattribute__(instance, name) cannot run code of the target.

    Plain values, functions (they would be bound, no more) and C members are safe; every other descriptor is not.
    """
    found, value = lookup(cls, name)
    if not found:
        return True
    return type(value) is MemberDescriptorType or type(value) is FunctionType or not has_get(value)


def names_of(cls):
    """Return (module, qualname) of a type, "?" where the type hides them."""
    qualname = qualname_of(cls)
    if type(qualname) is not str:
        qualname = "?"
    if flags_of(cls) & HEAP_TYPE:
        module = dict.get(namespace_of(cls), "__module__")
        return (module if type(module) is str else "?"), qualname
    # The name of a static type is "module.name" in C; type.__module__ splits it and runs nothing else.
    module = type.__dict__["__module__"].__get__(cls)
    return (module if type(module) is str else "builtins"), qualname


def flag_letters(cls):
    """Return the flags of names.json: "h" heap type, "g" tracked by the collector, "d" instances have a __dict__."""
    flags = flags_of(cls)
    letters = ("h" if flags & HEAP_TYPE else "") + ("g" if flags & HAVE_GC else "")
    return letters + ("d" if flags & MANAGED_DICT or dictoffset_of(cls) else "")


def is_managed(cls):
    """True if instances keep their attributes inline until somebody asks for __dict__ (3.11 and later)."""
    return bool(flags_of(cls) & MANAGED_DICT)


def has_dict(cls):
    """True if instances of `cls` may have a __dict__."""
    return bool(flags_of(cls) & MANAGED_DICT or dictoffset_of(cls))


def has_safe_size(cls):
    """True if sys.getsizeof runs C code only: the first __sizeof__ of the MRO belongs to a C type."""
    found, value = lookup(cls, "__sizeof__")
    return found and type(value) is MethodDescriptorType


def members_of(cls):
    """Return [(name, descriptor)] of the C members and slots of `cls`, most derived class first."""
    members = []
    for base in mro_of(cls):
        for name, value in list(namespace_of(base).items()):
            if type(value) is MemberDescriptorType and type(name) is str and name[:2] + name[-2:] != "____":
                members.append((name, value))
            elif type(value) is MemberDescriptorType and type(name) is str and name in _DUNDER_MEMBERS:
                members.append((name, value))
    return members


# Members with two underscores that hold objects; the others (__dictoffset__, __weakrefoffset__, ...) hold numbers.
_DUNDER_MEMBERS = frozenset(("__self__", "__func__", "__wrapped__", "__callback__", "__objclass__", "__thisclass__",
                             "__self_class__", "__origin__", "__args__", "__parameters__"))
