"""leakscope run: start a command, watch every Python process in it, and write the report when it has ended."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
import traceback
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from leakscope import baseline
from leakscope import session as sessions
from leakscope.commands._command import find
from leakscope.commands._options import DURATION, FORMATS, GPU_HELP, KNOWN_HELP, SIZE, choose_gpu, choose_sites, only_structure
from leakscope.commands._say import say
from leakscope.commands._status import StatusLine, wants_status
from leakscope.commands._target import Ending, Target, leave_streams_to_target
from leakscope.commands._watch import Watch
from leakscope.errors import LeakScopeError, UsageError
from leakscope.inject import environment
from leakscope.model import VerdictClass
from leakscope.report import Report
from leakscope.session import Session
from leakscope.units import bytes_text

DEFAULT_OUT = "leakscope-report"
LEAK_EXIT_CODE = 3
_DISK_CEILING_BYTES = 2 << 30
_MEMORY_CEILING_BYTES = 1 << 30
_LEAST_DISK_BYTES = 32 << 20  # ours: room for one small snapshot and the report


@dataclass(frozen=True)
class Wish:
    """What the person asked for, beyond what the agent has to know."""

    out: Path
    formats: tuple[str, ...]
    fail_on: str | None
    duration_s: float | None
    label: str
    opens: bool
    quiet: bool
    team: baseline.OwnList = baseline.NO_LIST


@click.command(name="run", context_settings={"allow_interspersed_args": False})
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="DIR",
              help="Where the report and the session go.  [default: leakscope-report, leakscope-report-2, ...]")
@click.option("--every", type=DURATION, help="Take a snapshot this often.  [default: on a ladder that fits any duration]")
@click.option("--duration", type=DURATION, help="Stop recording and write the report after this time; the command goes on.")
@click.option("--warmup", type=DURATION, help="Take the first snapshot after this time.  [default: when importing has ended]")
@click.option("--settle", type=DURATION,
              help="Take a snapshot when the program has had nothing to do for this time, after each load: what is still there "
                   "then was not under way.")
@click.option("--settle-collect", is_flag=True,
              help="Collect garbage, in the program's main thread, before the snapshot of --settle.")
@click.option("--max-disk", type=SIZE, help="Ceiling of the session on disk.  [default: 2GiB, at most half of what is free]")
@click.option("--max-memory", type=SIZE,
              help="Ceiling of the agent's own memory.  [default: 1GiB, at most a quarter of the machine]")
@click.option("--sites", default="sampled", show_default=True, callback=choose_sites,
              metavar="sampled|off|tracemalloc[:FRAMES]",
              help="Where objects were allocated: some of them, or all; tracemalloc slows the command down many times over.")
@click.option("--native", is_flag=True,
              help="Sample native allocations (malloc, mmap) with their C stacks too, by a preloaded library. Linux, glibc.")
@click.option("--gpu", default="auto", show_default=True, callback=choose_gpu, metavar="auto|off|state|trace|recorded:DIR",
              help=GPU_HELP)
@click.option("--redact", default="structure", show_default=True, callback=only_structure, metavar="structure",
              help="What is recorded: names and sizes, no values.")
@click.option("--format", "formats", type=FORMATS, default="html,md,json", show_default=True, metavar="LIST",
              help="The files to write.")
@click.option("--known", type=click.Path(path_type=Path), metavar="FILE.toml", help=KNOWN_HELP)
@click.option("--fail-on", type=click.Choice(["leak", "growth"]), help="Exit with 3 if the report claims that.")
@click.option("--label", default="", metavar="TEXT", help="A name for this run, shown in the report.")
@click.option("--open", "opens", is_flag=True, help="Show report.html in the browser at the end.")
@click.option("--no-follow", is_flag=True, help="Observe the first Python process alone, not those it starts.")
@click.option("--quiet", is_flag=True, help="No status line and no report text on the terminal.")
@click.argument("command_line", metavar="-- COMMAND ...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(context: click.Context, /, command_line: tuple[str, ...], **given: Any) -> None:
    """Run COMMAND, watch its memory, and write a report.

    COMMAND is anything that ends up in Python: `python serve.py`, `uvicorn app:app --workers 2`, a shell script. It keeps its
    terminal, streams, signals, working directory and exit code; leakscope itself speaks on stderr only.

    \b
    leakscope run -- python serve.py
    leakscope run -o out --duration 10m -- uvicorn app:app
    leakscope run --fail-on leak -- python -m pytest tests/soak
    """
    reason = environment.usable()
    if reason:
        raise LeakScopeError(f"leakscope run does not work here: {reason}.", "leakscope doctor")
    if given["settle_collect"] and not given["settle"]:
        raise UsageError("--settle-collect says what to do in the settle step, and there is none.",
                         "leakscope run --settle 30s --settle-collect -- COMMAND")
    found = find(list(command_line))
    team = baseline.own_list(given["known"]) if given["known"] else baseline.NO_LIST
    options = _agent_options(given)
    out = _choose_out(given["output"])
    wish = Wish(out, given["formats"], given["fail_on"], given["duration"], given["label"], given["opens"], given["quiet"],
                team)
    session = sessions.create(out / "session", environment.masked(command_line), options, wish.label)
    reporting = _Reporting(session, wish)
    try:
        boot = environment.stage(session, session.info["options"])
        ending = _observe(session, Target(found, environment.bring_in(boot, os.environ)), reporting)
    except LeakScopeError:
        session.discard()  # the command was never started
        raise
    if wish.opens and reporting.report and "html" in wish.formats:
        webbrowser.open((out / "report.html").as_uri())
    context.exit(_exit_code(ending, reporting.report, wish))


def _agent_options(given: dict[str, Any]) -> dict[str, Any]:
    """Return what the agent is told, see agent/format.py.

    Raises:
        LeakScopeError: the disk is full already.
    """
    out = (given["output"] or Path()).absolute()
    free_bytes = shutil.disk_usage(next(folder for folder in (out, *out.parents) if folder.is_dir())).free
    if free_bytes < _LEAST_DISK_BYTES:
        raise LeakScopeError(f"The disk of '{out}' has {bytes_text(free_bytes)} left, too little for a session.",
                             "leakscope run -o DIR -- COMMAND, with a DIR on another disk")
    machine_bytes = sessions.memory_bytes() or 4 * _MEMORY_CEILING_BYTES
    return {
        "every_s": given["every"], "warmup_s": given["warmup"], "duration_s": given["duration"],
        "settle_s": given["settle"], "settle_collect": given["settle_collect"],
        "max_disk_bytes": given["max_disk"] or min(_DISK_CEILING_BYTES, free_bytes // 2),
        "max_memory_bytes": given["max_memory"] or min(_MEMORY_CEILING_BYTES, machine_bytes // 4),
        "sites": given["sites"], "redact": given["redact"], "follow": not given["no_follow"], "keep_snapshots": 5,
        "native": given["native"], "gpu": given["gpu"],
    }


def _choose_out(asked: Path | None) -> Path:
    """Make and return the folder for the report; without a wish the first free one of leakscope-report, -2, -3 ...

    Raises:
        UsageError: the folder asked for holds a report already, or is no folder.
        LeakScopeError: it cannot be made.
    """
    try:
        if asked is None:
            return _make_numbered()
        if asked.exists() and not asked.is_dir():
            raise UsageError(f"'{asked}' is a file, not a folder for a report.", f"leakscope run -o {asked}-report -- COMMAND")
        taken = sessions.is_taken(asked)
        if taken:
            raise UsageError(f"The folder '{asked}' already holds '{taken}'.",
                             f"leakscope run -o {asked}-2 -- COMMAND, or remove the old one")
        asked.mkdir(parents=True, exist_ok=True)
        if not os.access(asked, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise LeakScopeError(f"The report folder '{asked or DEFAULT_OUT}' cannot be made: {error.strerror}.",
                             "leakscope run -o DIR -- COMMAND, with a DIR that you may write to") from error
    return asked.absolute()


def _make_numbered() -> Path:
    number = 1
    while True:
        folder = Path(DEFAULT_OUT if number == 1 else f"{DEFAULT_OUT}-{number}").absolute()
        try:
            folder.mkdir()  # also the check: two runs at once get two folders
            return folder
        except FileExistsError:
            number += 1


class _Reporting:
    """Makes the report of a session, once; `report` is None if that failed."""

    def __init__(self, session: Session, wish: Wish) -> None:
        self.session, self.wish = session, wish
        self.report: Report | None = None

    def make_early(self) -> None:
        """Make it while the target goes on."""
        _note(self.session, state="complete", duration_s=self.wish.duration_s)
        self.make()

    def make(self) -> None:
        """Make it; whatever goes wrong, the session stays and the target's exit code is handed on."""
        try:
            from leakscope.commands._make_report import make_report  # numpy and Jinja2: only now, the target has had its start

            is_quiet = self.wish.quiet or sys.stderr is None  # None: it was closed before we started
            formats = self.wish.formats if is_quiet else (*self.wish.formats, "terminal")
            self.report = make_report(self.session, self.wish.out, formats, sys.stderr, self.wish.team)
        except LeakScopeError as error:
            say(error.sentence, error.hint or self._again())
        except Exception as error:
            if os.environ.get("LEAKSCOPE_DEBUG"):
                traceback.print_exc()
            say(f"The report could not be made ({type(error).__name__}: {error}); the session is kept.", self._again())

    def _again(self) -> str:
        return f"leakscope report {shlex.quote(str(self.session.path))}"


def _observe(session: Session, target: Target, reporting: _Reporting) -> Ending:
    """Run the target to its end, with its evidence in the session, and have the report made."""
    wish = reporting.wish
    target.start()
    leave_streams_to_target()
    watch = Watch(session, target, StatusLine(sys.stderr) if wants_status(sys.stderr) and not wish.quiet else None)
    try:
        _note(session, pid=target.pid)
        if wish.duration_s:
            watch.after(wish.duration_s, reporting.make_early)
        ending = target.wait(watch.tick)
        elapsed_s = round(time.monotonic() - watch.started_s, 3)
        watch.let_snapshots_finish()
        is_reported = watch.end()
        _note(session, state="died" if ending.signal else "complete", exit_code=ending.exit_code, signal=ending.signal,
              **({} if is_reported else {"duration_s": elapsed_s}))
        watch.say_what_is_absent()
    finally:
        target.close()
    if not is_reported:
        reporting.make()
    watch.pack()
    return ending


def _note(session: Session, **changes: Any) -> None:
    """Write to session.json; a full disk stops the recording, not the target."""
    try:
        session.write_info(**changes)
    except OSError as error:
        if session.path.is_dir():  # else Watch says what happened
            say(f"The session '{session.path}' can no longer be written: {error.strerror}.")


def _exit_code(ending: Ending, report: Report | None, wish: Wish) -> int:
    """Return the target's own code where it says something, then what leakscope has to say."""
    if ending.shell_code:
        return ending.shell_code
    if report is None:
        return 1
    kind = report.verdict.kind
    is_growth = kind.is_claim or kind is VerdictClass.BOUNDED_GROWTH
    return LEAK_EXIT_CODE if (wish.fail_on == "leak" and kind.is_claim) or (wish.fail_on == "growth" and is_growth) else 0
