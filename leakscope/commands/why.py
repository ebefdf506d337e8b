"""`leakscope why SESSION --type T`: who keeps these objects alive, in names."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from leakscope import session as sessions
from leakscope.errors import LeakScopeError, UsageError

if TYPE_CHECKING:
    from leakscope.analyse.holders import Holder
    from leakscope.heap.graph import HeapGraph

MOST_SHOWN = 20
MOST_SEARCHED = 3  # snapshots of a process, ours


@click.command("why")
@click.argument("session", type=click.Path(path_type=Path))
@click.option("--type", "type_name", metavar="TYPE", help="Objects of this type: module.Class, or Class alone.")
@click.option("--address", metavar="ADDRESS", help="The object with this id(), such as 0x7f3c2a9d1e50.")
@click.option("--pid", type=int, metavar="PID", help="Only in this process; default: the first that has such objects.")
@click.option("--snapshot", type=int, metavar="N",
              help="Number of the snapshot; default: the last before the exit that has such objects.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of text.")
def command(session: Path, type_name: str | None, address: str | None, pid: int | None, snapshot: int | None,
            as_json: bool) -> None:
    """Say who keeps objects of SESSION alive: the path from a root to them, by names.

    One entry for each distinct holder; entries of one list or dict are the same holder.
    """
    if (type_name is None) == (address is None):
        raise UsageError("leakscope why needs --type or --address, and only one of them.",
                         f"leakscope why {session} --type module.Class")
    number = _number(address) if address else None
    evidence = sessions.open(session)
    found = _find(evidence, type_name, number, pid, snapshot)
    entries = [_entry(holder) for holder in found]
    if as_json:
        click.echo(json.dumps(entries, indent=1, sort_keys=True))
        return
    for holder in found[:MOST_SHOWN]:
        click.echo(_text(holder))
    if len(found) > MOST_SHOWN:
        click.echo(f"... and {len(found) - MOST_SHOWN} more holders (all of them: --json)")


def _number(address: str) -> int:
    try:
        return int(address, 0)
    except ValueError:
        raise UsageError(f"--address {address} is no address.", "--address 0x7f3c2a9d1e50") from None


def _graphs(evidence: sessions.Session, pid: int | None, snapshot: int | None) -> Iterator[HeapGraph]:
    """The snapshots to look at, process by process, newest first: the last one may have been taken while the program ended."""
    from leakscope.heap.load import load

    found = []
    for process in evidence.processes():
        folders = process.snapshots()
        running = [folder for folder in folders if folder.done.get("kind") != "exit"] or folders
        if snapshot is not None:
            running = [folder for folder in folders if folder.done.get("index") == snapshot]
        if running and pid in (None, process.pid):
            found += [folder.path for folder in running[:-MOST_SEARCHED - 1:-1]]
    if not found:
        there = "; ".join(f"--pid {process.pid} --snapshot {', '.join(str(folder.done.get('index')) for folder in folders)}"
                          for process in evidence.processes() if (folders := process.snapshots()))
        raise LeakScopeError(f"The session '{evidence.path}' has no such snapshot to look at.",
                             f"there are: {there}" if there else "leakscope run --every 1s -- COMMAND")
    yield from map(load, found)


def _find(evidence: sessions.Session, type_name: str | None, address: int | None, pid: int | None,
          snapshot: int | None) -> list[Holder]:
    """The holders in the first process that has such objects."""
    from leakscope.analyse import holders

    known: set[str] = set()
    for graph in _graphs(evidence, pid, snapshot):
        if address is not None:
            nodes = holders.at_address(graph, address)
        else:
            nodes = holders.of_type(graph, str(type_name))
            known.update(holders.type_names(graph))
        if len(nodes):
            return holders.holders(graph, nodes)
    if address is not None:
        raise LeakScopeError(f"No object had the address {address:#x} when the snapshot was taken.",
                             f"leakscope why {evidence.path} --type TYPE")
    close = difflib.get_close_matches(str(type_name), sorted(known), 3, 0.5)
    raise LeakScopeError(f"No object of type '{type_name}' was alive when the snapshot was taken.",
                         f"did you mean {' or '.join(close)}?" if close else "")


def _entry(holder: Holder) -> dict[str, Any]:
    path = holder.path
    # What the interpreter keeps for a module, such as codecs.register(), is a registry of that module to whoever asks why.
    kind = "module" if path.root_kind == "interpreter" else path.root_kind
    entry = {"type": holder.type, "path": [{"name": step.name, "edge": step.edge} for step in path.steps],
             "path_text": path.text, "root_kind": kind, "owner": path.owner, "object_count": holder.count,
             "retained_bytes": holder.retained_bytes}
    if holder.cycle:
        entry["cycle"] = [{"type": step.type, "edge": step.edge} for step in holder.cycle]
    return entry


def _text(holder: Holder) -> str:
    from leakscope.units import bytes_text, count_text

    path = holder.path
    lines = [f"{count_text(holder.count)} {holder.type}, {bytes_text(holder.retained_bytes)} retained, held by {path.owner} "
             f"({path.root_kind})", f"  {path.text}"]
    for depth, step in enumerate(path.steps):
        lines.append(f"  {'  ' * min(depth, 10)}{step.name}  {step.edge}".rstrip())
    if holder.cycle:
        lines.append("  cycle: " + " -> ".join(f"{step.type}{step.edge}" for step in holder.cycle))
    return "\n".join(lines) + "\n"
