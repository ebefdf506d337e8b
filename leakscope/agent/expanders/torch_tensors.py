"""torch: tensors show neither their storage, nor their base, gradient and autograd graph, to the collector.

Only C getters are called, with __torch_function__ switched off for this thread. FakeTensors and tensors on "meta" have
no memory. `_saved_*` of autograd nodes are not asked: a hook of the target may unpack them.
"""

from .. import classes, device_torch
from ..format import FIRST_MPS, FIRST_XPU
from ..instances import InstanceReader

LIBRARY = "torch"
_MOST_AUTOGRAD_NODES = 200_000
_CODES = {"cuda": 1, "xpu": FIRST_XPU}
_GETTERS = ("_base", "grad_fn", "_backward_hooks", "_post_accumulate_grad_hooks")


def reader(walk, cls):
    """A tensor: STORAGE, `grad`, `_base`, `grad_fn`, hooks. An autograd node: `next_functions`, `variable`."""
    parts = classes.space_named("torch._C")
    base = parts.get("TensorBase") or parts.get("_TensorBase")
    if base is None:
        return None
    if any(one is base for one in classes.mro_of(cls)):
        return _TensorReader(walk, cls, base, parts)
    if any(one is parts.get("StorageBase") for one in classes.mro_of(cls)):
        return _StorageReader(walk, cls, parts)
    found, getter = classes.lookup(cls, "next_functions")
    if found and type(getter) is classes.GetSetDescriptorType:
        return _NodeReader(walk, cls, getter)
    return None


class _TensorReader:
    def __init__(self, walk, cls, base, parts):
        self.walk = walk
        self.plain = InstanceReader(walk, cls)
        self.getters = [(base.__dict__[name].__get__, self._label(name)) for name in _GETTERS if name in base.__dict__]
        self.grad_of, self.grad_label = base.__dict__["grad"].__get__, self._label("grad")
        self.is_leaf, self.keeps_grad = base.__dict__["is_leaf"].__get__, base.__dict__["retains_grad"].__get__
        self.plain.extra += [(name, base.__dict__[name].__get__) for name in _GETTERS if name in base.__dict__]
        self.device_of = base.__dict__["device"].__get__
        self.storage_of = classes.lookup(base, "untyped_storage")[1]
        self.is_lazy, self.place_of = parts.get("_is_cow_tensor"), parts.get("_data_address")
        self.quiet = parts.get("DisableTorchFunction") or parts["DisableTorchFunctionSubclass"]
        self.memory_of = _Memories(walk, parts)

    def _label(self, name):
        return self.walk.names.internal_label(name) if name[0] == "_" else self.walk.names.attribute_label(name)

    def __call__(self, thing):
        with self.quiet():
            targets, labels = self.plain(thing)
            targets, labels = list(targets), list(labels)
            shown = set(map(id, targets))
            getters = self.getters
            if self.is_leaf(thing) or self.keeps_grad(thing):  # else torch warns on the target's stderr
                getters = getters + [(self.grad_of, self.grad_label)]
            for getter, label in getters:
                try:
                    value = getter(thing)
                except Exception:  # a tensor that has no such thing
                    continue
                if value is not None and id(value) not in shown:
                    targets.append(value)
                    labels.append(label)
            memory = self._memory(thing)
        if memory is not None:
            targets.append(memory)
            labels.append(self.walk.storage_label)
        return targets, labels

    def _memory(self, thing):
        try:
            device = self.device_of(thing)
            if device.type == "meta" or classes.names_of(type(thing))[1] == "FakeTensor":
                return None
            address = None
            if self.is_lazy is not None and self.is_lazy(thing):  # data_ptr() of its storage would make the copy
                address = self.place_of(thing)  # of the storage
            return self.memory_of(self.storage_of(thing), device, address)
        except Exception:  # sparse and wrapper tensors have no storage of their own
            return None


class _Memories:
    """The node of the memory of a storage; None for one that has none. Raises what torch raises."""

    def __init__(self, walk, parts):
        self.walk = walk
        storage = parts["StorageBase"].__dict__
        self.address_of, self.bytes_of = storage["data_ptr"], storage["nbytes"]

    def __call__(self, storage, device, address=None):
        address, size = self.address_of(storage) if address is None else address, self.bytes_of(storage)
        if not address or not size:
            return None
        kind, place = device.type, 0
        if kind == "mps":
            device_torch.met.add(kind)
            place = FIRST_MPS
        elif kind in _CODES:
            place = _CODES[kind] + (device.index or 0)
        return self.walk.memory(("storage", place, address), "storage", size, place, address)


class _StorageReader:
    """An UntypedStorage, which a program may keep without a tensor. One that is copied on write is copied by this: nobody can
    ask a storage whether it is one. The native walk asks nothing.
    """

    def __init__(self, walk, cls, parts):
        self.walk = walk
        self.plain = InstanceReader(walk, cls)
        self.memory_of = _Memories(walk, parts)
        self.device_of = parts["StorageBase"].__dict__["device"].__get__

    def __call__(self, thing):
        targets, labels = self.plain(thing)
        try:
            memory = self.memory_of(thing, self.device_of(thing))
        except Exception:  # of a FakeTensor: it may not be asked for its data
            memory = None
        if memory is None:
            return targets, labels
        return [*targets, memory], [*labels, self.walk.storage_label]


class _NodeReader:
    def __init__(self, walk, cls, getter):
        self.walk = walk
        self.plain = InstanceReader(walk, cls)
        self.next_of = getter.__get__
        found, variable = classes.lookup(cls, "variable")
        self.variable_of = variable.__get__ if found and type(variable) is classes.GetSetDescriptorType else None
        self.next_label = walk.names.internal_label("next_functions")
        self.variable_label = walk.names.attribute_label("variable")
        self.left = _MOST_AUTOGRAD_NODES

    def __call__(self, thing):
        targets, labels = self.plain(thing)
        targets, labels = list(targets), list(labels)
        if self.left:
            self.left -= 1
            for node, _number in self.next_of(thing):
                if node is not None:
                    targets.append(node)
                    labels.append(self.next_label)
            if self.variable_of is not None:
                targets.append(self.variable_of(thing))
                labels.append(self.variable_label)
        return targets, labels
