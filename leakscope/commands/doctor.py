"""`leakscope doctor`: what works on this machine and in these interpreters, and what to do about the rest."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

import click

from leakscope import session as sessions
from leakscope.commands._interpreter import Check, ask, checks
from leakscope.inject import environment
from leakscope.units import bytes_text

_MARKS = {True: "ok", None: "part", False: "no"}
_LITTLE_DISK_BYTES = 1 << 30
_NO_LIMIT_BYTES = 1 << 60  # version 1 of cgroups writes a number near 2**63 for "none"


@click.command(name="doctor")
@click.option("--python", "pythons", multiple=True, metavar="PATH", help="Look at this interpreter too; may be given again.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(pythons: tuple[str, ...], as_json: bool) -> None:
    """Say what leakscope can see on this machine, and in the interpreters that run your programs.

    The exit code is 1 if something that `leakscope run` needs does not work.
    """
    groups = {"this machine": machine()}
    for python in dict.fromkeys((sys.executable, *pythons)):
        groups[python] = checks(python, ask(python))
    if as_json:
        click.echo(json.dumps({name: [vars(each) for each in found] for name, found in groups.items()}, indent=1))
    else:
        _print_table(groups)
    if any(each.is_good is False for found in groups.values() for each in found):
        raise SystemExit(1)


def machine() -> list[Check]:
    """Return what this machine offers, whatever the interpreter."""
    reason = environment.usable()
    return [
        Check("leakscope run", reason is None, reason or "the agent can be staged"),
        _proc(), _memory_limit(), _ptrace(), _disk(), _graphviz(),
        Check("native probe", None, "not in this version: the pure-Python walk is used"),
    ]


def _proc() -> Check:
    if os.path.exists("/proc/self/smaps_rollup"):
        return Check("/proc", True, "RSS, PSS and USS are read")
    if os.path.exists("/proc/self/status"):
        return Check("/proc", None, "RSS only: the kernel has no smaps_rollup")
    return Check("/proc", None, f"absent on {platform.system()}: RSS only, children are not named when they lack the agent")


def _memory_limit() -> Check:
    total_bytes = sessions.memory_bytes()
    text = f"{bytes_text(total_bytes)} of memory" if total_bytes else "memory of the machine unknown"
    for file in _limit_files():
        try:
            limit_bytes = int(file.read_text("ascii"))
        except (OSError, ValueError):  # ValueError: version 2 writes "max"
            continue
        if limit_bytes < _NO_LIMIT_BYTES:
            return Check("memory limit", True, f"{text}, control group limit {bytes_text(limit_bytes)}")
    return Check("memory limit", True, f"{text}, no control group limit")


def _limit_files() -> list[Path]:
    """Return where our control group may say its limit, version 2 and version 1, innermost first."""
    try:
        lines = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            name = "memory.limit_in_bytes" if controllers else "memory.max"
            mount = Path("/sys/fs/cgroup", controllers)
            inner = mount / path.lstrip("/")
            found += [folder / name for folder in (inner, *inner.parents) if folder.is_relative_to(mount)]
    return found


def _ptrace() -> Check:
    """Not needed by `run`: processes are entered as they start. See Yama in the kernel's admin guide."""
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text("ascii"))
    except (OSError, ValueError):
        scope = 0
    meaning = ("of the same user", "of descendants only", "for root only", "not at all")[min(scope, 3)]
    return Check("ptrace", True if scope == 0 else None, f"allowed {meaning}; leakscope run does not need it")


def _disk() -> Check:
    free_bytes = shutil.disk_usage(".").free
    is_little = free_bytes < _LITTLE_DISK_BYTES
    return Check("disk", None if is_little else True, f"{bytes_text(free_bytes)} free in the working directory",
                 "leakscope run -o DIR, on a disk with 1 GiB or more" if is_little else "")


def _graphviz() -> Check:
    if shutil.which("dot"):
        return Check("graphviz", True, "dot is installed: reports have pictures of paths and cycles")
    beside = Path(sysconfig.get_path("scripts")) / "graphviz-pure"
    if shutil.which("graphviz-pure") or beside.exists():
        return Check("graphviz", True, "graphviz-pure is installed: reports have pictures of paths and cycles")
    return Check("graphviz", None, "absent: reports show paths and cycles as text", "pip install leakscope-forensics[dot]")


def _print_table(groups: dict[str, list[Check]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    styles = {True: "green", None: "yellow", False: "bold red"}
    for name, found in groups.items():
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        for each in found:
            detail = f"{each.detail}\nhint: {each.hint}" if each.hint else each.detail
            table.add_row(Text(f"  {_MARKS[each.is_good]}", styles[each.is_good]), Text(each.what), Text(detail))
        console.print(Text(name, "bold"))
        console.print(table)
