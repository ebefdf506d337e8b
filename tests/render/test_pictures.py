"""Pictures by graphviz: with it, without it, and when it misbehaves."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
import sysconfig

import pytest

from leakscope.model import CycleStep
from leakscope.render import _pictures, html
from tests.render.reports import HOSTILE, delayed_garbage, hostile, python_leak


@pytest.fixture
def fresh_search():
    _pictures.program.cache_clear()
    yield
    _pictures.program.cache_clear()


def programs():
    beside = f"{sysconfig.get_path('scripts')}/graphviz-pure"
    found = {name: shutil.which(name) for name in ("dot", "graphviz-pure")}
    found["graphviz-pure"] = found["graphviz-pure"] or shutil.which(beside)
    return [pytest.param(path, id=name, marks=[] if path else pytest.mark.skip(reason=f"no {name} on this machine"))
            for name, path in found.items()]


@pytest.fixture(params=programs())
def drawing_program(request, monkeypatch):
    monkeypatch.setattr(_pictures, "program", lambda: request.param)


def test_a_cycle_is_drawn_with_the_names_of_its_attributes(drawing_program):
    picture = _pictures.picture(delayed_garbage().findings[0])
    assert re.findall(r"<text[^>]*>([^<]+)</text>", picture) == ["StreamParser", "Response", ".response", ".parser"] or {
        "StreamParser", "Response", ".response", ".parser"} == set(re.findall(r"<text[^>]*>([^<]+)</text>", picture))
    assert "<title>StreamParser.response holds Response</title>" in picture
    assert picture.count('class="edge suspect"') == 2


def test_a_path_is_drawn_root_first_with_its_suspect_edges(drawing_program):
    picture = _pictures.picture(python_leak().findings[0])
    assert "<title>module serve .store holds serve.SessionStore</title>" in picture
    assert picture.count('class="edge suspect"') == 3
    assert "logging.Handler.buffer" in picture


def test_a_picture_takes_the_colours_of_the_page_and_names_nothing_outside(drawing_program):
    picture = _pictures.picture(python_leak().findings[0])
    assert picture.startswith("<svg ")
    assert not re.search(r"black|white|#|http|xmlns|<a |href|font-family|id=", picture.replace('stroke-dasharray', ''))


def test_hostile_names_are_drawn_as_text(drawing_program):
    for finding in hostile().findings:
        picture = _pictures.picture(finding)
        assert picture is None or ("<script" not in picture and "<a" not in picture)


@pytest.mark.parametrize("name", ["\\N \\G \\E", "<b>bold</b>", "{a|b}", 'say "x"', "a:b:c", "", "é" * 500, "%s &amp; &#65;"])
def test_a_name_that_means_something_to_graphviz_is_only_a_name(drawing_program, name):
    cycle = (CycleStep(name, f".{name}"), CycleStep("Other", ".back"))
    finding = dataclasses.replace(delayed_garbage().findings[0], cycle=cycle)
    picture = _pictures.picture(finding)
    assert picture is not None
    assert "Other" in picture


def test_without_a_program_the_page_shows_the_path_as_text(monkeypatch, fresh_search):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/nowhere")
    assert _pictures.program() is None
    assert _pictures.picture(python_leak().findings[0]) is None
    text = html.text_of(python_leak())
    assert "no graphviz program was found" in text
    assert 'class="holders"' not in text


def test_the_program_of_graphviz_pure_is_found_where_its_wheel_puts_it(monkeypatch, tmp_path, fresh_search):
    (tmp_path / "graphviz-pure").write_text("")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert _pictures.program() == str(tmp_path / "graphviz-pure")


@pytest.mark.parametrize("script", [
    "import sys; sys.exit(3)", "print('<svg')", "print('<svg/>')", "import time; time.sleep(60)", "1"])
def test_a_program_that_misbehaves_costs_only_the_picture(script, monkeypatch, tmp_path):
    program = tmp_path / "dot"
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(_pictures, "program", lambda: str(program))
    monkeypatch.setattr(_pictures, "PATIENCE_S", 0.5)
    assert _pictures.picture(delayed_garbage().findings[0]) is None


def test_hostile_text_of_a_picture_ends_up_escaped(drawing_program):
    finding = dataclasses.replace(delayed_garbage().findings[0], cycle=(CycleStep(HOSTILE[:30], ".x"), CycleStep("B", ".y")))
    assert "&lt;/script&gt;" in _pictures.picture(finding)
