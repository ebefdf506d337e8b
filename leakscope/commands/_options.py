"""What the options of the commands accept: durations, sizes, lists; each refusal says what would have been right."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from leakscope.errors import UsageError
from leakscope.units import parse_duration, parse_size

# What a person types, and the renderer that it means. Asking leakscope.render would load Jinja2 before the target starts.
FILE_FORMATS = {"html": "html", "md": "markdown", "markdown": "markdown", "json": "json"}
KNOWN_HELP = "A list of leaks that your team knows: findings that match say so. `leakscope explain known` shows its form."
GPU_MODES = ("auto", "off", "state", "trace")
GPU_HELP = ("What is read of a GPU that the program uses through torch: counters and the map of blocks; nothing; also where "
            "blocks were allocated, which torch then records; and what its allocator did last. recorded:DIR is for tests.")
_SITES = re.compile(r"off|sampled|tracemalloc(:[1-9]\d?)?")


class _Parsed(click.ParamType[float]):
    """A value that a function of leakscope.units reads."""

    def __init__(self, name: str, parse: Callable[[str], float], example: str) -> None:
        self.name, self.parse, self.example = name, parse, example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number; raises UsageError."""
        if not isinstance(value, str):
            return value
        option = param.opts[-1] if param else "the option"
        try:
            number = self.parse(value)
        except ValueError as error:
            raise UsageError(f"{option}: {error}.", f"{option} {self.example}") from error
        if number <= 0 and value != (param.default if param else None):
            raise UsageError(f"{option}: {value} is no time or space at all.", f"{option} {self.example}")
        return number


class _Formats(click.ParamType[tuple[str, ...]]):
    """A comma-separated list of FILE_FORMATS."""

    name = "list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Return the names of the renderers in the order given, each once; raises UsageError."""
        if not isinstance(value, str):
            return tuple(value)
        asked = tuple(dict.fromkeys(part.strip() for part in value.split(",") if part.strip()))
        unknown = [part for part in asked if part not in FILE_FORMATS]
        if unknown or not asked:
            raise UsageError(f"--format: there is no format '{', '.join(unknown) or value}'.", "--format html,md,json")
        return tuple(dict.fromkeys(FILE_FORMATS[part] for part in asked))


DURATION = _Parsed("duration", parse_duration, "30s")
SIZE = _Parsed("size", parse_size, "500M")
FORMATS = _Formats()


def choose_sites(_context: click.Context, _param: click.Parameter, value: str) -> str:
    """Return the value of --sites; raises UsageError."""
    if not _SITES.fullmatch(value):
        raise UsageError(f"--sites: '{value}' is neither sampled nor off nor tracemalloc with 1 to 99 frames.",
                         "--sites tracemalloc:8")
    return value


def choose_gpu(_context: click.Context, _param: click.Parameter, value: str) -> str:
    """Return the value of --gpu, the folder of a recorded device as an absolute path; raises UsageError."""
    kind, colon, folder = value.partition(":")
    if kind == "recorded":
        if not colon or not folder:
            raise UsageError("--gpu: recorded needs the folder that the device's records are in.", "--gpu recorded:DIR")
        if not Path(folder).is_dir():
            raise UsageError(f"--gpu: there is no folder '{folder}' with the records of a device.",
                             f"mkdir {shlex.quote(folder)}, and have the program write {folder}/device.json")
        return f"recorded:{Path(folder).absolute()}"
    if value not in GPU_MODES:
        raise UsageError(f"--gpu: '{value}' is neither auto nor off nor state nor trace nor recorded:DIR.", "--gpu state")
    return value


def only_structure(_context: click.Context, _param: click.Parameter, value: str) -> str:
    """Return the value of --redact; raises UsageError."""
    if value != "structure":
        raise UsageError(f"--redact: '{value}' is not available in this version, which never records values.",
                         "--redact structure")
    return value
