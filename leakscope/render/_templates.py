"""The only user of Jinja2: the environment of the templates in reports/templates (shipped as leakscope.templates)."""

from __future__ import annotations

import functools
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from leakscope.render import _text
from leakscope.units import bytes_text, count_text, seconds_text

__all__ = ["Markup", "fill", "source_of"]


@functools.cache
def _environment() -> Environment:
    """Return the one environment. The package path is "": the templates lie in the package itself (a named trap: a
    folder below would need its own mapping in package_dir)."""
    environment = Environment(loader=PackageLoader("leakscope.templates", ""), autoescape=True, undefined=StrictUndefined,
                              trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters.update(
        bytes=_measured(bytes_text), count=_measured(count_text), seconds=_measured(seconds_text), growth=_text.growth_text,
        ratio=_text.ratio_text, number=_text.number_text, grouped=_grouped, layer_word=_text.layer_word, clip=_text.clip,
        capital=_capital, names=_names_as_code, split_off=_split_off)
    return environment


def fill(template: str, **values: Any) -> str:
    """Return the template of that file name with the values in it."""
    return _environment().get_template(template).render(**values)


def source_of(name: str) -> str:
    """Return a file of the templates as it is, such as style.css."""
    environment = _environment()
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _measured(text_of: Any) -> Any:
    """Return the filter that says `not measured` for None, where `text_of` would fail."""
    return lambda number: _text.NOT_MEASURED if number is None else text_of(number)


def _grouped(text: str) -> str:
    """Return a signed number such as +19098 in groups: +19 098."""
    return text[0] + count_text(int(text[1:]))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _names_as_code(text: str) -> Markup:
    """Return the escaped sentence with the names of the program marked as code."""
    return Markup("").join(Markup("<code>{}</code>" if is_name else "{}").format(piece)
                           for is_name, piece in _text.prose(_text.typeset(_text.unticked(text))))


def _split_off(text: str) -> Markup:
    """Return what stands before the bar, and what stands after it in small letters."""
    before, _, after = text.partition("|")
    return Markup("{} <small>{}</small>").format(before, after) if after else Markup("{}").format(before)
