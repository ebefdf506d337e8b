"""What the allocators of the target's devices say, read only where the target itself has brought them up.

Nothing here imports, initialises or allocates on a device: no context comes into being because of us. What the driver says
(NVML) is read by the supervisor, in its own process. In a forked child torch says that nothing is initialised, and nothing is
asked.

Each row has a few numbers of each device; each snapshot has devices.json (format.py): statistics and block map as they were
just before the fork or the walk, written after it. `--gpu` says how much: off, auto, state (blocks with where they were
allocated), trace (and a history), recorded:DIR (device_recorded.py).
"""

import gc
import os

from . import classes, device_map, device_settings
from . import format as fmt
from .device_recorded import Recorded
from .device_torch import Cuda, Generic, Mps, Xpu

MODES = ("auto", "off", "state", "trace")
RECORDED = "recorded:"

# column -> the spellings of its key: (statistic, pool, part), flat "statistic.pool.part" or as nested dicts. torch's manual
# says "allocated" for the count, the key of CUDA's is "allocation".
_COLUMNS = (
    ("allocated_bytes", ("allocated_bytes", "all", "current")),
    ("reserved_bytes", ("reserved_bytes", "all", "current")),
    ("active_bytes", ("active_bytes", "all", "current")),
    ("inactive_split_bytes", ("inactive_split_bytes", "all", "current")),
    ("allocated_peak_bytes", ("allocated_bytes", "all", "peak")),
    ("requested_bytes", ("requested_bytes", "all", "current")),
    ("allocations", ("allocation", "all", "current"), ("allocated", "all", "current")),
    ("segments", ("segment", "all", "current")),
    ("allocated_total_bytes", ("allocated_bytes", "all", "allocated")),
    ("freed_total_bytes", ("allocated_bytes", "all", "freed")),
    ("alloc_retries", ("num_alloc_retries",)),
    ("ooms", ("num_ooms",)),
    ("device_allocs", ("num_device_alloc",)),
    ("device_frees", ("num_device_free",)),
)
_PRIVATE_POOLS = "reserved_bytes_by_private_pools"
# The collector's own bookkeeping of what torch makes for a map: it must not start because of that.
_NO_COLLECTION = 0


class Taken:
    """What was asked before a walk, for devices.json: its fields, the segments with the table of their stacks, and what the
    allocator did, a list for each device."""

    def __init__(self, said, segments=(), given_frames=(), history=()):
        self.said, self.segments, self.given_frames, self.history = said, segments, given_frames, history


class Devices:
    """The devices of one process. `mode`: the value of --gpu; `note`: takes a sentence; `at_start(provider)`: called once, from
    the thread of the agent, when the target has initialised a device."""

    def __init__(self, mode, note, at_start=None):
        mode = mode or "auto"
        self.mode = mode if mode in MODES else "auto"
        self._note = note
        self._at_start = at_start
        self._provider = None
        self._about = {}  # what is known of each device
        self.recording = "off"
        self._is_recording_due = False
        if mode == "off":
            self._providers = ()
        elif mode.startswith(RECORDED):
            self._providers = (Recorded(mode[len(RECORDED):]),)
        else:
            self._providers = (Cuda(), Xpu(), Mps(), Generic())

    @property
    def is_on(self):
        """Whether devices are to be asked at all."""
        return bool(self._providers)

    def provider(self):
        """Return the one of the devices in use, None where there are none (any more: in a child of a fork)."""
        for provider in self._providers if self._provider is None else (self._provider,):
            if provider.is_up():
                if self._provider is None:
                    self._provider = provider
                    self._begin(provider)
                return provider
        return None

    def _begin(self, provider):
        if provider.name == "recorded":
            return
        self._is_recording_due = self.mode in ("state", "trace")
        try:
            if self._at_start is not None:
                self._at_start(provider)
        except Exception as error:
            self._note("Nothing will be seen of the moment at which the device runs out of memory (%s)." % type(error).__name__)

    def _record(self, provider):
        """Let the allocator record where blocks come from, unless the program does that.

        Nobody can ask whether it does, but stacks and history show it once there is a block in use; until then this waits: the
        program's own wish would be lost.
        """
        try:
            blocks = provider.snapshot("trace")
            if not (blocks.why_not or blocks.history or device_map.has_blocks_in_use(blocks.segments)):
                return
            self._is_recording_due = False
            if blocks.why_not:
                self._note("Where blocks of the device were allocated is not recorded: %s" % _inside(blocks.why_not))
            elif blocks.history or device_map.has_frames(blocks.segments):
                self.recording = "program"
            else:
                provider.record(self.mode == "trace")
                self.recording = self.mode
        except Exception as error:
            self._is_recording_due = False
            self._note("Where blocks of the device were allocated is not recorded: this version of torch refused (%s)."
                       % type(error).__name__)

    # --- a row ---

    def read(self, row):
        """Add the columns `cudaN_*` (xpuN_*, mpsN_*) of each device in use, and those of pinned memory."""
        provider = self.provider()
        if provider is None:
            return
        if self._is_recording_due:
            self._record(provider)
        for name, statistics in self._statistics(provider):
            prefix = name.replace(":", "") + "_"
            for column, *keys in _COLUMNS:
                value = next((found for key in keys if (found := _statistic(statistics, key)) is not None), None)
                if value is not None:
                    row[prefix + column] = value
            private = _private_pool_bytes(statistics)
            if private is not None:
                row[prefix + "private_pool_bytes"] = private
        _read_pinned(row, self._answer("pinned memory", provider.host_stats))

    def _statistics(self, provider):
        """Yield (name, statistics) of each device that has some."""
        if provider.name == "recorded":
            for device in provider.devices():
                if type(device.get("stats")) is dict and device_map.word(device["name"]):
                    yield device["name"], device["stats"]
            return
        for ordinal in provider.ordinals():
            yield "%s:%d" % (provider.prefix, ordinal), self._answer("counters", provider.stats, ordinal)

    def _answer(self, what, ask, *arguments):
        """Return what torch answers, {} where it refuses: of an allocator that a program brought along it knows nothing."""
        try:
            return ask(*arguments) or {}
        except Exception as error:
            self._note("The allocator behind torch does not tell its %s (%s)." % (what, type(error).__name__))
            return {}

    # --- a snapshot ---

    def take(self, oom=None):
        """Ask for what devices.json is to say, before the walk; None where no device is in use. Never raises."""
        try:
            provider = self.provider()
            if provider is None:
                return None
            return self._recorded(provider) if provider.name == "recorded" else self._taken(provider, oom)
        except Exception as error:
            self._note("What the allocators of the devices say could not be asked for a snapshot (%s)." % type(error).__name__)
            return None

    def write(self, folder, taken):
        """Write devices.json into the folder of a snapshot that is being taken or was; a failure is a note."""
        if taken is None:
            return
        try:
            if self.recording == "off" and taken.said["provider"] != "recorded" and (
                    taken.history or device_map.has_frames(taken.segments)):
                self.recording = taken.said["recording"] = "program"
            for device in taken.said["devices"]:
                device["stats"] = device_map.flat(device["stats"])
            taken.said["host_stats"] = device_map.flat(taken.said["host_stats"])
            taken.said.setdefault("libraries", device_settings.libraries())
            history = taken.history if self.mode == "trace" else ()
            device_map.write(os.path.join(folder, fmt.DEVICES_FILE), taken.said, taken.segments, taken.given_frames, history)
        except Exception as error:
            self._note("What the allocators of the devices say could not be written (%s)." % type(error).__name__)

    def _taken(self, provider, oom):
        notes, devices, blocks_count = [], [], 0
        for name, statistics in self._statistics(provider):
            ordinal = int(name.rpartition(":")[2])
            devices.append({"name": name, "ordinal": ordinal, **self._described(provider, ordinal), "stats": statistics})
            blocks_count += sum(_statistic(statistics, (kind, "all", "current")) or 0 for kind in ("active", "inactive_split"))
        if blocks_count > device_map.MOST_BLOCKS:
            notes.append("The block map was left out: the allocator has %d blocks, more than %d."
                         % (blocks_count, device_map.MOST_BLOCKS))
            segments, told, history = [], None, ()
        else:
            blocks = _without_collection(lambda: provider.snapshot(self.mode))
            segments, told, history = blocks.segments, blocks.settings, blocks.history
            if blocks.why_not:
                notes.append(blocks.why_not)
        version = classes.space_named("torch.version").get("__version__")
        said = {"provider": provider.name, "simulated": False, "torch": device_map.word(version),
                "backend": device_map.word(provider.backend()), "recording": self.recording,
                "settings": device_settings.settings(provider.name, told), "devices": devices,
                "host_stats": self._answer("pinned memory", provider.host_stats),
                "process_groups": device_settings.process_groups(), "oom": oom,
                "notes": notes}
        return Taken(said, list(segments), (), history)

    def _described(self, provider, ordinal):
        """Return what is known of a device; it does not change, so it is asked once."""
        known = self._about.get(ordinal)
        if known is None:
            try:
                known = {key: value if type(value) is not str else device_map.word(value)
                         for key, value in provider.describe(ordinal).items()}
            except Exception:
                known = {}
            workspace = device_settings.workspace_bytes(known.get("capability")) if provider.name == "cuda" else None
            if workspace is not None:
                known["cublas_workspace_bytes"] = workspace
            self._about[ordinal] = known
        return known

    def _recorded(self, provider):
        """What a recorded file says, by its known fields."""
        given = provider.said
        devices = []
        for place, device in enumerate(provider.devices()):
            known = {"name": device_map.word(device["name"]), "ordinal": device.get("ordinal", place)}
            known.update({key: device_map.word(device[key]) for key in ("uuid", "bus_id", "model") if key in device})
            known.update({key: device[key] for key in ("total_bytes", "cublas_workspace_bytes")
                          if type(device.get(key)) is int})
            capability = device.get("capability")
            if type(capability) is list and all(type(number) is int for number in capability):
                known["capability"] = capability
            stats = device.get("stats")
            devices.append({**known, "stats": stats if type(stats) is dict else {}})
        groups, oom = given.get("process_groups"), given.get("oom")
        blocks = provider.snapshot(self.mode)
        recording = given.get("recording")
        said = {"provider": "recorded", "simulated": given.get("simulated") is True,
                "torch": device_map.word(given.get("torch")), "backend": device_map.word(provider.backend()),
                "recording": recording if recording in ("off", "state", "trace", "program") else "off",
                "settings": device_settings.settings("recorded", blocks.settings), "devices": devices,
                "host_stats": provider.host_stats(), "process_groups": groups if type(groups) is int else None,
                "oom": {key: value for key, value in oom.items() if type(value) is int or key == "device" and
                        device_map.word(value)} if type(oom) is dict else None, "notes": []}
        if type(given.get("libraries")) is list:
            said["libraries"] = list(filter(None, map(device_map.word, given["libraries"])))
        return Taken(said, blocks.segments, given.get("frames"))


def _without_collection(ask):
    """torch makes a dict for each block: the collector must not start in our thread because of them (see walk.take)."""
    thresholds = gc.get_threshold()
    gc.set_threshold(_NO_COLLECTION, *thresholds[1:])
    try:
        return ask()
    finally:
        if gc.get_threshold() == (_NO_COLLECTION, *thresholds[1:]):  # else the target set its own meanwhile, and that stays
            gc.set_threshold(*thresholds)


def _inside(sentence):
    """A sentence within another."""
    return sentence[:1].lower() + sentence[1:]


def _statistic(statistics, key):
    """Return one number by either spelling of its key, or None."""
    value = statistics.get(".".join(key))
    if value is None:
        value = statistics
        for part in key:
            value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, int) else None


def _private_pool_bytes(statistics):
    """Return what private pools hold, of graphs and MemPools (torch 2.13 and later); None where torch does not tell."""
    pools = statistics.get(_PRIVATE_POOLS)
    if isinstance(pools, dict):
        found = device_map.flat(pools)
    else:
        found = {key: value for key, value in statistics.items()
                 if type(key) is str and key.startswith(_PRIVATE_POOLS + ".") and type(value) is int}
        if not found:
            return None
    return sum(value for key, value in found.items() if key.endswith("all.current"))


def _read_pinned(row, host):
    """Add the columns of pinned host memory. What the keys mean has changed: where there is `active_bytes` (2.9 and later) that
    is in use, and allocated_bytes is all that is held; before, allocated_bytes is in use and reserved_bytes held."""
    if not host:
        return
    allocated, reserved, active = (_of_host(host, name) for name in ("allocated_bytes", "reserved_bytes", "active_bytes"))
    held, used = (reserved, allocated) if active is None else (allocated, active)
    counts = (("pinned_allocs", _statistic(host, ("num_host_alloc",))), ("pinned_frees", _statistic(host, ("num_host_free",))))
    for column, value in (("pinned_held_bytes", held), ("pinned_used_bytes", used), *counts):
        if value is not None:
            row[column] = value


def _of_host(host, name):
    value = _statistic(host, (name, "current"))
    return _statistic(host, (name, "all", "current")) if value is None else value
