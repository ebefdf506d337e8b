"""Where torch keeps what its tensors hold: learned for the probe, which may call none of torch's functions while it walks.

torch promises no layout of its C++ objects. So before a walk, a few plain tensors that the target has are asked for their
addresses and sizes by the getters that expanders/torch_tensors.py uses, and the probe searches where in memory those stand
(_probe/torch.c). No tensor is made, none is kept, and no wrapper of a storage, which torch would keep.
"""

import sys

from . import classes

_MOST_SAMPLES = 256
_MOST_OF_STORAGE = 3  # views of one storage say little about storages
_MOST_LOOKS = 200_000  # objects of the collector's lists: 1 to 20 ms, until it is learned once a process
_WIDER, _MOST_FAILURES = 4, 8  # twice as many after each look that found none, up to 2 ** _WIDER times; so often
_MOST_TRIES = 4  # for views: a program may never have any
_NUMBERS = {"cpu": 0, "cuda": 1, "xpu": 12, "mps": 13}  # c10/core/DeviceType.h

_state = {"learned": False, "tries": 0, "failures": 0, "reason": ""}


def learn(probe):
    """Learn if torch is loaded and it is not learned yet. Call it with the GIL, before every walk and fork."""
    if "torch" not in sys.modules:
        return
    tensors = []
    try:
        if _state["learned"] and _state["tries"] >= _MOST_TRIES:
            probe.torch_learn([])  # that it is this process that is walked, or forked
            return
        parts = classes.space_named("torch._C")
        quiet = parts.get("DisableTorchFunction") or parts["DisableTorchFunctionSubclass"]
        tensors = probe.torch_samples(_MOST_SAMPLES, _looks())
        _state["failures"] += not tensors
        with quiet():
            samples = _few_of_each_storage(map(_Getters(parts), tensors))
            reason = probe.torch_learn(samples)
            has_views = any(sample[-1] for sample in samples)
            del samples
        if reason is None:
            _state["learned"] = True
            _state["tries"] = _MOST_TRIES if has_views else _state["tries"] + 1
        _state["reason"] = reason if tensors and not _state["learned"] else ""
    except Exception as error:  # another version, or something that only bears the name
        _state["reason"] = "its tensors could not be asked (%s)" % type(error).__name__


def _looks():
    """The tensors of a large heap may be neither old nor young: then the next look is a longer one, but not for ever."""
    failures = _state["failures"]
    return _MOST_LOOKS << min(failures, _WIDER) if not _state["learned"] and failures < _MOST_FAILURES else _MOST_LOOKS


def _few_of_each_storage(samples):
    """Return the samples that the probe learns from; `samples` may hold None."""
    kept, counts = [], {}
    for sample in samples:
        if sample is not None and counts.get(sample[2], 0) < _MOST_OF_STORAGE:
            counts[sample[2]] = counts.get(sample[2], 0) + 1
            kept.append(sample)
    return kept


def why_not():
    """Return why the probe cannot tell what the tensors of this process hold; "" if it can, or if no tensor was seen."""
    return _state["reason"]


class _Getters:
    """Gives the sample of a tensor as the probe wants it, None for a tensor that has no memory of a plain kind."""

    def __init__(self, parts):
        space = classes.namespace_of(parts.get("TensorBase") or parts["_TensorBase"])
        self.address_of, self.device_of = space["_cdata"].__get__, space["device"].__get__
        self.data_of, self.offset_of, self.size_of = space["data_ptr"], space["storage_offset"], space["element_size"]
        self.count_of, self.is_whole, self.is_view = space["numel"], space["is_contiguous"], space["_is_view"]
        self.storage_of, self.has_storage, self.is_lazy = (
            parts["_storage_id"], parts["_has_storage"], parts.get("_is_cow_tensor"))

    def __call__(self, tensor):
        try:
            device = self.device_of(tensor)
            number = _NUMBERS.get(device.type)
            if number is None or not self.has_storage(tensor) or not self.is_whole(tensor):
                return None
            if self.is_lazy is not None and self.is_lazy(tensor):  # data_ptr() would make the copy that is not made yet
                return None
            size, offset = self.size_of(tensor), self.offset_of(tensor)
            data = self.data_of(tensor) - offset * size
            shown = (offset + self.count_of(tensor)) * size
            if data <= 0 or shown == 0:
                return None
            return (tensor, self.address_of(tensor), self.storage_of(tensor), data, shown, number,
                    255 if device.index is None else device.index, self.is_view(tensor))
        except Exception:  # sparse and wrapper tensors
            return None
