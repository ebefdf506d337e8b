"""`leakscope report SESSION`: make the report of a recorded session again."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from leakscope import baseline
from leakscope import session as sessions
from leakscope.commands._options import FILE_FORMATS, KNOWN_HELP
from leakscope.errors import UsageError

FORMATS = {**FILE_FORMATS, "terminal": "terminal"}  # what a person types, and the renderer that it means
DEFAULT_FORMATS = "html,md,json,terminal"
SESSION_FOLDER = "session"  # what `leakscope run -o DIR` calls it in DIR


def output_of(session: Path) -> Path:
    """Return where the report of a session belongs: beside it where `run` put it, else in the session itself."""
    session = session.resolve()
    return session.parent if session.name == SESSION_FOLDER else session


def chosen(_context: click.Context, _param: click.Parameter, value: str) -> tuple[str, ...]:
    """Return the renderers of a list such as `html,md`, each once; raises UsageError."""
    asked = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
    unknown = [part for part in asked if part not in FORMATS]
    if unknown or not asked:
        raise UsageError(f"--format: there is no format '{', '.join(unknown) or value}'.", f"--format {DEFAULT_FORMATS}")
    return tuple(dict.fromkeys(FORMATS[part] for part in asked))


@click.command("report")
@click.argument("session", type=click.Path(path_type=Path), required=False)
@click.option("-o", "output", type=click.Path(path_type=Path), metavar="DIR",
              help="Folder for the files; default: beside the session. A report that is there is replaced.")
@click.option("--format", "formats", default=DEFAULT_FORMATS, show_default=True, metavar="LIST", callback=chosen,
              help="What to make, separated by commas; terminal is the short text on standard output.")
@click.option("--known", "known_file", type=click.Path(path_type=Path), metavar="FILE.toml", help=KNOWN_HELP)
@click.option("--memory-snapshot", "pickle_file", type=click.Path(path_type=Path), metavar="FILE.pickle",
              help="A memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot). Without SESSION: a report on it alone, "
                   "in FILE-report; with it: its map of device memory joined with the session's last snapshot.")
def command(session: Path | None, output: Path | None, formats: tuple[str, ...], known_file: Path | None,
            pickle_file: Path | None) -> None:
    """Make the report of SESSION again, or one of a memory snapshot of PyTorch.

    SESSION is the folder given to `leakscope run -o`, or the session/ in it. A session whose target or whose leakscope
    was killed is read up to its last complete sample and snapshot.
    """
    # numpy and Jinja2: not for a mistake in the usage
    from leakscope.commands import _make_report, _snapshot_report

    if session is None and pickle_file is None:
        raise UsageError("There is nothing to report on: no SESSION was given.", "leakscope report SESSION")
    team = baseline.own_list(known_file) if known_file else baseline.NO_LIST
    evidence = sessions.open(session) if session else None
    place = output or (output_of(evidence.path) if evidence else _snapshot_report.place_of(pickle_file or Path()))
    if place.exists() and not place.is_dir():
        asked = " ".join(map(str, filter(None, (session, pickle_file and f"--memory-snapshot {pickle_file}"))))
        raise UsageError(f"-o {place} is a file, the report needs a folder.", f"leakscope report {asked} -o {place}-report")
    if pickle_file is None:
        assert evidence is not None
        _make_report.make_report(evidence, place, formats, sys.stdout, team)
    elif evidence is None:
        _make_report.write(_snapshot_report.build(pickle_file), place, formats, sys.stdout)
    else:
        report = _snapshot_report.beside(_make_report.build(evidence, team), evidence, pickle_file)
        _make_report.write(report, place, formats, sys.stdout)
