"""`leakscope doctor`: what works on this machine and in these interpreters, and what to do about the rest.

With `--build-probe` it does something about one of them: see inject/_probes.py.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

import click

from leakscope import session as sessions
from leakscope.commands import _nvml
from leakscope.commands._interpreter import Check, ask, checks
from leakscope.errors import LeakScopeError
from leakscope.inject import _capabilities, _probes, environment
from leakscope.units import bytes_text

_MARKS = {True: "ok", None: "part", False: "no"}
_LITTLE_DISK_BYTES = 1 << 30
_NO_LIMIT_BYTES = 1 << 60  # version 1 of cgroups writes a number near 2**63 for "none"


@click.command(name="doctor")
@click.option("--python", "pythons", multiple=True, metavar="PATH", help="Look at this interpreter too; may be given again.")
@click.option("--build-probe", "built_for", metavar="PYTHON",
              help="Compile the probe for this interpreter, try it there, and keep it for every later run.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def command(pythons: tuple[str, ...], built_for: str | None, as_json: bool) -> None:
    """Say what leakscope can see on this machine, and in the interpreters that run your programs.

    The exit code is 1 if something that `leakscope run` needs does not work.

    \b
    leakscope doctor --python /opt/app/bin/python
    leakscope doctor --build-probe /opt/app/bin/python
    """
    if built_for is not None:
        _build_probe(built_for)
        return
    groups, probes = {"this machine": machine()}, []
    for python in dict.fromkeys((sys.executable, *pythons)):
        groups[python] = checks(python, ask(python))
    for python in dict.fromkeys((sys.executable, *pythons, *_probes.known())):
        probes.append(_capabilities.of(_probes.look_at(python)))
    if as_json:
        answer: dict[str, object] = {name: [vars(each) for each in found] for name, found in groups.items()}
        click.echo(json.dumps({**answer, "probe": [_as_json(each) for each in probes]}, indent=1))
    else:
        _print_table(groups)
        _print_probes(probes)
    if any(each.is_good is False for found in groups.values() for each in found):
        raise SystemExit(1)


def machine() -> list[Check]:
    """Return what this machine offers, whatever the interpreter."""
    reason = environment.usable()
    return [
        Check("leakscope run", reason is None, reason or "the agent can be staged"),
        _proc(), _memory_limit(), _ptrace(), _disk(), _graphviz(),
        _compiler(), _loops(), _device_use(),
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


def _compiler() -> Check:
    try:
        return Check("compiler", True, f"{_probes.compiler()[0]}: probes can be built for other interpreters")
    except LeakScopeError as error:
        return Check("compiler", None, f"{error.sentence} Only the probe that came along is used.", error.hint)


def _loops() -> Check:
    """The inner loops of the analyses; see analyse/kernel.py."""
    if importlib.util.find_spec("leakscope.analyse._graph"):
        return Check("analyses", True, "in C")
    return Check("analyses", None, "in Python: there was no C compiler when leakscope was installed; reports take longer",
                 "pip install --force-reinstall --no-deps leakscope-forensics, with a compiler")


def _device_use() -> Check:
    """Whether leakscope may ask the driver what is used of a device, and by whom; see _nvml.py."""
    driver = _nvml.connect()
    if isinstance(driver, str):
        if not _nvml.is_device_here():
            return Check("NVML", True, "there is no NVIDIA device here")
        return Check("NVML", None, f"{driver}: only what PyTorch's own allocator counts is known", _nvml.command_for(driver))
    driver.close()
    return Check("NVML", True, f"driver {driver.driver or 'unknown'}: what a device is used for is read, by process")


def _build_probe(python: str) -> None:
    """Compile the probe for an interpreter, try it there, and keep it.

    Raises:
        LeakScopeError: it cannot be built, or does not work there; then nothing is kept.
    """
    target = _probes.look_at(python)
    binary = _probes.compile_for(target, _probes.place(target))
    failures = _capabilities.of(target, binary).failures()
    if failures:
        binary.unlink()
        raise LeakScopeError(f"The probe for {target.name} was built, and does not work there ({'; '.join(failures)}).",
                             "leakscope run works without it, with the walk in Python")
    _probes.keep(target, binary)
    click.echo(f"The probe for {target.name} ({target.soabi}) works, and every later `leakscope run` uses it: {binary}")
    if _probes.preloaded() is None:
        try:
            click.echo(f"The sampler of native memory is built, too: {_probes.compile_preloaded()}")
        except LeakScopeError as error:
            click.echo(f"The sampler of native memory (--native) was not built. {error.sentence}")


def _as_json(found: _capabilities.Capabilities) -> dict[str, object]:
    return {"python": found.interpreter.python, "version": found.interpreter.name, "soabi": found.interpreter.soabi,
            "why_not": found.why_not or None, "hint": found.hint or None, **found.cells}


def _print_probes(probes: list[_capabilities.Capabilities]) -> None:
    """Print what the compiled part does in each interpreter, as a table, and below it why it is missing."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    table = Table("", *_capabilities.COLUMNS, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for each in probes:
        cells = [each.cells[name] for name in _capabilities.COLUMNS]
        styles = ["green" if cell == _capabilities.COMPILED[name] else "yellow"
                  for name, cell in zip(_capabilities.COLUMNS, cells, strict=True)]
        table.add_row(Text(f"  {each.interpreter.name}"), *map(Text, cells, styles))
    console.print(Text("the probe", "bold"))
    console.print(table)
    for each in probes:
        if each.why_not:
            hint = f"\n  hint: {each.hint}" if each.hint else ""
            console.print(Text(f"  {each.interpreter.name}: {each.why_not}{hint}"), soft_wrap=True)


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
