"""What torch says of the devices that the target uses, one provider for each kind of device.

A provider answers what devices.py asks, and asks torch only after the target has initialised the device by itself: nothing here
imports, initialises, resets a peak or allocates. `mem_get_info` is never asked, because it makes a context where there is none.
The differences of the versions of torch (2.1 to 2.14) end here:

    is_up()            whether the target uses such devices, in this very process; never raises, never initialises
    ordinals()         the devices that have something of this process
    stats(ordinal)     torch's statistics, nested or flat, {} where there are none
    host_stats()       the same of pinned host memory, {} where this version has none (before 2.7)
    snapshot(mode)     Blocks: the segments of all devices, or why there are none; `mode` is that of --gpu
    describe(ordinal)  what is known of a device: model, total_bytes, uuid, bus_id, capability
    backend()          name of the allocator behind it
"""

import sys

from . import classes

# A history is copied with each snapshot where torch cannot leave it out (before 2.11): 7 us an entry (pytorch#172672).
_MANY_TRACES = 10_000
_FUNCTION = classes.FunctionType

# Devices that a walk has met a tensor on: MPS has no way to ask whether it is initialised that would not initialise it.
met = set()


class Blocks:
    """A block map. `segments`: torch's dicts, [] where there is none, and then `why_not` says why; `settings`: of the allocator
    as torch tells them; `history`: what the allocator did, a list for each device, as torch tells it; empty where nobody has it
    recorded, or torch could leave it out."""

    def __init__(self, segments=(), why_not="", settings=None, history=()):
        self.segments, self.why_not, self.settings, self.history = segments, why_not, settings or {}, history


class Cuda:
    """NVIDIA's devices, and AMD's: a build for ROCm calls them cuda, too."""

    prefix = "cuda"

    def __init__(self, module="torch.cuda"):
        self._module = module
        self._memory = module + ".memory"
        self._traces = 0
        self._known_settings = None

    @property
    def name(self):
        """cuda, or rocm."""
        return "rocm" if classes.space_named("torch.version").get("hip") else self.prefix

    def is_up(self):
        """As torch.cuda.is_initialized() says, which is False in a child that was forked after that."""
        space = classes.space_named(self._module)
        ask = space.get("is_initialized") if space.get("_initialized") is True else None
        return ask is not None and ask() is True

    def ordinals(self):
        """Those that have a context of this process; all, where this build cannot tell: then their numbers are zeros."""
        parts = classes.space_named("torch._C") if self.prefix == "cuda" else {}
        # torch.cuda.device_count() loads NVML into the target, and warns on its stderr where there is none.
        count = (parts.get("_cuda_getDeviceCount") or classes.space_named(self._module)["device_count"])()
        has_context = parts.get("_cuda_hasPrimaryContext")
        if has_context is None:
            # Other allocators than torch's own would be asked on the device itself, which makes a context there.
            return list(range(count)) if self.backend() == "native" else []
        return [ordinal for ordinal in range(count) if has_context(ordinal)]

    def stats(self, ordinal):
        """memory_stats of one device."""
        space = classes.space_named(self._module)
        return (space.get("memory_stats_as_nested_dict") or space["memory_stats"])(ordinal) or {}

    def host_stats(self):
        """host_memory_stats (2.7 and later)."""
        space = classes.space_named(self._module)
        ask = space.get("host_memory_stats_as_nested_dict") or space.get("host_memory_stats")
        return ask() if ask is not None else {}

    def backend(self):
        """native, cudaMallocAsync, or what a program has put in its place."""
        ask = classes.space_named(self._module).get("get_allocator_backend")
        if ask is None:
            ask = classes.space_named(self._memory).get("get_allocator_backend")
        return str(ask()) if ask is not None else "native"

    def snapshot(self, mode):
        """Without the history where torch can leave it out; else not again where there is a long one that nobody asked for."""
        backend = self.backend()
        if backend != "native":
            return Blocks(why_not="The allocator behind torch is %s, which has no map of its blocks: only its counters are "
                                  "recorded." % (backend if backend.isidentifier() else "not torch's own"))
        if self._traces > _MANY_TRACES and mode not in ("state", "trace"):
            return Blocks(why_not="The program records a history of %d entries, which this version of torch copies with each "
                                  "map of its blocks: it was asked for once. --gpu trace asks for it each time." % self._traces)
        try:
            return self._blocks(mode == "trace")
        except Exception as error:  # "... is not meaningful", of an allocator that says nothing of its name
            return Blocks(why_not="torch gave no map of the blocks of its allocator (%s)." % type(error).__name__)

    def _blocks(self, is_history_asked):
        space, memory = classes.space_named(self._module), classes.space_named(self._memory)
        plain, whole = space.get("memory_snapshot") or memory.get("memory_snapshot"), memory.get("_snapshot")
        if plain is not None and "include_traces" in _parameters(plain) and not is_history_asked:  # 2.11 and later
            return Blocks(plain(include_traces=False), settings=self._settings())
        if whole is None:
            if plain is None:
                return Blocks(why_not="This version of torch has no map of the blocks of such devices: only its counters are "
                                      "recorded.")
            return Blocks(plain())
        found = whole()
        history = [list(entries) for entries in found.get("device_traces") or ()]
        self._traces = sum(map(len, history))
        return Blocks(found["segments"], settings=found.get("allocator_settings"), history=history if self._traces else ())

    def _settings(self):
        """Asked once: memory_snapshot drops what torch tells of them with every map, so that a second map is made for it."""
        if self._known_settings is None:
            self._known_settings = {}
            try:
                ask = classes.space_named("torch._C")["_%s_memorySnapshot" % self.prefix]
                self._known_settings = ask((0, 0, False)).get("allocator_settings")  # as memory_snapshot(include_traces=False)
            except Exception:
                pass
        return self._known_settings

    def describe(self, ordinal):
        """By get_device_properties, which needs no context of that device."""
        return _properties(classes.space_named(self._module)["get_device_properties"](ordinal))

    def record(self, is_history):
        """Let the allocator keep where its blocks come from (`is_history`: and what it did, at most 50,000 entries)."""
        record = classes.space_named(self._memory)["_record_memory_history"]
        try:
            if is_history:
                record(enabled="all", max_entries=50_000, stacks="python")
            else:
                record(enabled="state", context="state", stacks="python")
        except TypeError:  # torch 2.0
            record(True, trace_alloc_max_entries=50_000 if is_history else 1)


class Xpu(Cuda):
    """Intel's devices: the same questions (statistics from 2.5 on, the map of blocks from 2.11 on)."""

    prefix = "xpu"

    def __init__(self):
        super().__init__("torch.xpu")

    @property
    def name(self):
        """xpu."""
        return self.prefix

    def stats(self, ordinal):
        """memory_stats of one device; {} before 2.5."""
        space = classes.space_named(self._module)
        ask = space.get("memory_stats_as_nested_dict") or space.get("memory_stats")
        return ask(ordinal) if ask is not None else {}

    def backend(self):
        """There is no other."""
        return "native"


class Mps:
    """Apple's devices: three numbers, and no map. There is one device."""

    name = prefix = "mps"

    def is_up(self):
        """Once a walk has met a tensor there."""
        is_bad_fork = classes.space_named("torch._C").get("_mps_is_in_bad_fork")
        return "mps" in met and (is_bad_fork is None or not is_bad_fork())

    def ordinals(self):
        """The one."""
        return [0]

    def stats(self, ordinal):
        """What tensors use; what the driver has given to torch, caches included."""
        space = classes.space_named("torch.mps")
        return {"allocated_bytes.all.current": space["current_allocated_memory"](),
                "reserved_bytes.all.current": space["driver_allocated_memory"]()}

    def host_stats(self):
        """There are none: it is one memory."""
        return {}

    def snapshot(self, mode):
        """There is none."""
        return Blocks(why_not="torch has no map of the blocks of this kind of device: only its counters are recorded.")

    def describe(self, ordinal):
        """The bytes that a program is advised to use at most (2.5 and later)."""
        most = classes.space_named("torch.mps").get("recommended_max_memory")
        return {} if most is None else {"total_bytes": most()}

    def backend(self):
        """There is no other."""
        return "native"


class Generic:
    """Whatever torch calls an accelerator and is none of the others (2.9 and later)."""

    name = "generic"

    def __init__(self):
        self.prefix = ""
        self._modules_then = -1

    def is_up(self):
        """Whether the allocator of another accelerator is initialised; torch raises RuntimeError where there is none.

        A build for CUDA would count CUDA's devices first, which starts the driver, and no child could use it any more.
        """
        version, modules = classes.space_named("torch.version"), len(sys.modules)
        if modules == self._modules_then:  # to be refused by torch takes 0.3 ms; another kind of device comes with a module
            return False
        if not version or any(version.get(name) for name in ("cuda", "hip", "xpu")):
            return False
        try:
            if classes.space_named("torch._C")["_accelerator_isAllocatorInitialized"]() is not True:
                return False
            kind = classes.space_named("torch.accelerator")["current_accelerator"]().type
        except Exception:
            self._modules_then = modules
            return False
        if kind in ("cuda", "xpu", "mps") or type(kind) is not str or not kind.isidentifier():
            return False
        self.prefix = kind
        return not _is_bad_fork(kind)

    def ordinals(self):
        """All."""
        return list(range(classes.space_named("torch.accelerator")["device_count"]()))

    def stats(self, ordinal):
        """torch.accelerator.memory_stats."""
        memory = classes.space_named("torch.accelerator.memory") or classes.space_named("torch.accelerator")
        return memory["memory_stats"](ordinal)

    def host_stats(self):
        """Not told."""
        return {}

    def snapshot(self, mode):
        """There is none."""
        return Blocks(why_not="torch has no map of the blocks of this kind of device: only its counters are recorded.")

    def describe(self, ordinal):
        """Not told: get_memory_info would ask the driver, which may need a context."""
        return {}

    def backend(self):
        """Not told."""
        return "native"


def _is_bad_fork(kind):
    ask = classes.space_named("torch." + kind).get("_is_in_bad_fork")
    return ask is not None and ask() is True


def _parameters(function):
    code = getattr(function, "__code__", None) if type(function) is _FUNCTION else None
    return () if code is None else code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]


def _properties(found):
    """What torch's own object says of a device. Which of these it has depends on version and build."""
    said = {}
    model, total = getattr(found, "name", None), getattr(found, "total_memory", None)
    if type(model) is str:
        said["model"] = model
    if type(total) is int:
        said["total_bytes"] = total
    uuid = getattr(found, "uuid", None)
    if uuid is not None:
        said["uuid"] = str(uuid)
    major, minor = getattr(found, "major", None), getattr(found, "minor", None)
    if type(major) is int and type(minor) is int:
        said["capability"] = [major, minor]
    place = [getattr(found, "pci_%s_id" % part, None) for part in ("domain", "bus", "device")]
    if all(type(number) is int for number in place):
        said["bus_id"] = "%08X:%02X:%02X.0" % tuple(place)  # as NVML writes it
    return said
