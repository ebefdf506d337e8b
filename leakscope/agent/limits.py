"""How much memory this process may still take: system, control group, resource limits. Linux; absent elsewhere.

Control groups: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of the kernel. The page cache that the
kernel gives back without ado (inactive_file) is no use of memory.
"""

import os

from .thread import read_small

_NO_LIMIT = 1 << 60  # version 1 writes a number near 2**63 for "none"


class ControlGroup:
    """The control group with the tightest limit among ours and its parents; `limit_bytes` None where there is none."""

    def __init__(self, mount="/sys/fs/cgroup", membership="/proc/self/cgroup"):
        self._use_file = self._stat_file = None
        self.limit_bytes = None
        for folder, use, limit, stat in _candidates(mount, membership):
            try:
                self._use_file = self._use_file or _readable(os.path.join(folder, use))
                self._stat_file = self._stat_file or _readable(os.path.join(folder, stat))
                found = _number(read_small(os.path.join(folder, limit)))
            except OSError:
                continue
            if found is not None and found < _NO_LIMIT and (self.limit_bytes is None or found < self.limit_bytes):
                self.limit_bytes = found
                self._use_file = os.path.join(folder, use)
                self._stat_file = os.path.join(folder, stat)

    def read(self, row):
        """Add the cgroup columns to a row."""
        if self._use_file is None:
            return
        row["cgroup_bytes"] = _number(read_small(self._use_file))
        if self.limit_bytes is not None:
            row["cgroup_limit_bytes"] = self.limit_bytes
        if self._stat_file is not None:
            inactive = _field(read_small(self._stat_file), b"total_inactive_file ", b"inactive_file ")
            if inactive is not None:
                row["cgroup_inactive_file_bytes"] = inactive


class MemoryRoom:
    """What is left, and how near the limit is."""

    def __init__(self, group):
        self._group = group

    def left_bytes(self):
        """Return the bytes that can still be taken before something breaks, or None when that cannot be known."""
        rooms = []
        available = kilobytes(_read("/proc/meminfo"), b"MemAvailable:")
        if available is not None:
            rooms.append(available)
        row = self._group_row()
        if "cgroup_limit_bytes" in row:
            rooms.append(row["cgroup_limit_bytes"] - row["cgroup_bytes"] + row.get("cgroup_inactive_file_bytes", 0))
        rooms.extend(limit - used for used, limit in self._limited())
        return max(0, min(rooms)) if rooms else None

    def fullness(self):
        """Return (part, name) of the limit that is nearest, such as (0.93, "cgroup"); (0.0, "") without any limit."""
        parts = [(0.0, "")]
        row = self._group_row()
        if row.get("cgroup_limit_bytes"):
            used = row["cgroup_bytes"] - row.get("cgroup_inactive_file_bytes", 0)
            parts.append((used / row["cgroup_limit_bytes"], "limit of the control group"))
        parts.extend((used / limit, "resource limit") for used, limit in self._limited() if limit)
        return max(parts)

    def _group_row(self):
        row = {}
        try:
            self._group.read(row)
        except OSError:
            pass
        return row if row.get("cgroup_bytes") is not None else {}

    def _limited(self):
        """Yield (used, limit) in bytes for each resource limit on memory that is set."""
        limits = _read("/proc/self/limits")
        status = _read("/proc/self/status")
        for limit_name, used_name in ((b"Max address space", b"VmSize:"), (b"Max data size", b"VmData:")):
            at = limits.find(limit_name)
            soft = limits[at + len(limit_name):].split(None, 1)[0] if at >= 0 else b"unlimited"
            used = kilobytes(status, used_name)
            if soft.isdigit() and used is not None:
                yield used, int(soft)


def call_filters():
    """Return the lines of /proc on filters of system calls (seccomp) in this thread; b"" where there are none."""
    return b"".join(line for line in _read("/proc/thread-self/status").splitlines() if line.startswith(b"Seccomp"))


def available_cores():
    """Return how many cores this process may run on."""
    try:
        return len(os.sched_getaffinity(0)) or 1
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def _candidates(mount, membership):
    """Yield (folder, use, limit, stat) from the own group up to the root, for version 2 and version 1."""
    for line in _read(membership).decode("utf-8", "replace").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers == "":
            names, root = ("memory.current", "memory.max", "memory.stat"), mount
        elif "memory" in controllers.split(","):
            names = ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.stat")
            root = os.path.join(mount, "memory")
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."]
        # In a container the path is the host's while the mount shows our own group at its root: the climb ends there
        # anyway.
        for depth in range(len(parts), -1, -1):
            yield (os.path.join(root, *parts[:depth]),) + names


def _readable(path):
    return path if os.access(path, os.R_OK) else None


def _read(path):
    try:
        return read_small(path)
    except OSError:
        return b""


def _number(text):
    text = text.strip()
    return int(text) if text.isdigit() else None


def _field(text, *names):
    for name in names:
        at = 0 if text.startswith(name) else text.find(b"\n" + name) + 1
        if at or text.startswith(name):
            return int(text[at + len(name):].split(None, 1)[0])
    return None


def kilobytes(text, name):
    """Return the bytes behind `name` in a file that counts in kB, or None."""
    at = 0 if text.startswith(name) else text.find(b"\n" + name) + 1
    if not at and not text.startswith(name):
        return None
    return int(text[at + len(name):].split(None, 1)[0]) * 1024
