"""The command line: the group of all commands, and the way from an error to a sentence and an exit code."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from typing import Any

import click

import leakscope
from leakscope import plugins
from leakscope.commands._say import say
from leakscope.errors import LeakScopeError

UNEXPECTED = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT, as a shell shows it

_EPILOG = """\b
Exit codes of `leakscope run`, the first that applies:
  N      the command's own exit code, where it is not 0
  128+N  the command was killed by signal N
  1      leakscope could not do its part: no session, no report
  2      the command line cannot be carried out
  3      --fail-on: the report claims a leak, or growth
  70     an error in leakscope itself
  130    Ctrl-C while leakscope was writing the report
  0      everything else
"""


class _Commands(click.Group):
    """Every public module of leakscope.commands; only the one that is asked for is imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(plugins.load("leakscope.commands", ("command",)))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, or None."""
        module_name = f"leakscope.commands.{cmd_name}"
        if not cmd_name.isidentifier() or cmd_name.startswith("_") or not importlib.util.find_spec(module_name):
            return None
        found = importlib.import_module(module_name).command
        assert isinstance(found, click.Command)
        return found


@click.group(cls=_Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(leakscope.__version__, prog_name="leakscope", message="%(prog)s %(version)s")
def group() -> None:
    """Find out which owner keeps the memory of a Python program, and what frees it.

    Start here: leakscope run -- python serve.py
    """


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code; a person's mistake never shows a traceback."""
    try:
        return _run(arguments)
    except LeakScopeError as error:
        say(error.sentence, error.hint)
        return error.exit_code
    except click.ClickException as error:
        say(*_in_our_words(error))
        return error.exit_code if isinstance(error, click.UsageError) else 1
    except (KeyboardInterrupt, click.Abort):
        say("Stopped by Ctrl-C.")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered would fail again at exit
        return 0
    except Exception as error:
        if os.environ.get("LEAKSCOPE_DEBUG"):
            traceback.print_exc()
        say(f"An error in leakscope itself: {type(error).__name__}: {error}",
            "run again with LEAKSCOPE_DEBUG=1 to see the traceback")
        return UNEXPECTED


def _run(arguments: list[str] | None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    result: Any = group.main(args=arguments or ["--help"], prog_name="leakscope", standalone_mode=False)
    if sys.stdout is not None:  # it was closed before we started
        sys.stdout.flush()
    return result if isinstance(result, int) else 0


def _in_our_words(error: click.ClickException) -> tuple[str, str]:
    """Return what click found wrong as a sentence and a hint."""
    sentence, _, suggestion = error.format_message().partition(" Did you mean ")
    hint = f"did you mean {suggestion.removeprefix('one of: ').rstrip('?')}?" if suggestion else ""
    if not hint and isinstance(error, click.UsageError) and error.ctx:
        hint = f"{error.ctx.command_path} --help"
    return sentence if sentence.endswith(".") else f"{sentence}.", hint
