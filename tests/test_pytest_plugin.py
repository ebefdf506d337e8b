"""The plug-in in real pytest sessions: what leaks fails with its holder, what does not passes, unused it is silent."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[1]

LEAKY = """
import pytest

class Order:
    def __init__(self, number):
        self.number = number

class Shop:
    orders = {}

KEPT = []

def test_fixture(no_leak):
    def handle(text):
        KEPT.append(text * 100)
    no_leak(handle, "xyz")

def test_block(no_leak):
    with no_leak(rounds=5) as rounds:
        for _ in rounds:
            Shop.orders[len(Shop.orders)] = Order(1)

@pytest.fixture
def shop():
    return []

@pytest.mark.no_leak(rounds=4)
@pytest.mark.parametrize("number", [7])
def test_marker(shop, number):
    shop.append(Order(number))

@pytest.mark.xfail(raises=AssertionError, strict=True)
@pytest.mark.no_leak
def test_known():
    KEPT.append(Order(1))
"""

HEALTHY = """
import functools, logging, re, sys, warnings
import pytest

calls = {"fixture": 0, "body": 0}

@functools.lru_cache(maxsize=16)
def price(number):
    return bytes(300)

def test_fixture(no_leak):
    seen = []
    no_leak(lambda: seen.append(None) if len(seen) < 3 else None)

@pytest.mark.no_leak
def test_temporary_objects():
    assert sum(len([number]) for number in range(200)) == 200

@pytest.mark.no_leak
def test_a_cache_that_fills(numbers=iter(range(10**6))):
    price(next(numbers))

@pytest.mark.no_leak
def test_logging(caplog):
    caplog.clear()
    logging.getLogger("shop").warning("an order %s", object())
    assert len(caplog.records) == 1

@pytest.mark.no_leak
def test_logging_that_nobody_looks_at():
    logging.getLogger("shop").error("an order of %s", "x" * 500)

@pytest.mark.no_leak
def test_warnings():
    warnings.simplefilter("always")
    warnings.warn("old " + "x" * 500, DeprecationWarning)

@pytest.mark.no_leak
def test_patterns_and_first_imports():
    import sqlite3
    re.compile("order-[0-9]{3}").match("order-777")

@pytest.mark.no_leak
def test_output_and_raises(capsys):
    with pytest.raises(ValueError, match="order"):
        raise ValueError("an order")
    print("an order")
    capsys.readouterr()

@pytest.fixture
def shop():
    calls["fixture"] += 1
    return {}

class TestShop:
    @pytest.mark.no_leak(rounds=2)
    def test_method(self, shop):
        calls["body"] += 1
        shop["order"] = object()

def test_the_fixture_was_set_up_once_and_the_body_repeated():
    assert calls == {"fixture": 1, "body": 14}

@pytest.mark.no_leak
def test_skip():
    pytest.skip("not today")

@pytest.mark.no_leak
@pytest.mark.xfail(strict=True)
def test_xfail():
    assert 1 == 2
"""


@pytest.fixture
def session(pytester, monkeypatch):
    """Run pytest on a file in a process of its own, with the plug-in named: nothing has to be installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    def run(text: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(text)
        return pytester.runpytest_subprocess("-p", "leakscope.pytest_plugin", "--strict-markers", "-rA", *options, timeout=170)

    return run


def test_the_plug_in_is_an_entry_point_of_the_distribution():
    listed = configparser.ConfigParser()
    listed.read(ROOT / "setup.cfg")
    assert listed["options.entry_points"]["pytest11"].strip() == "leakscope = leakscope.pytest_plugin"


@pytest.mark.slow
def test_tests_that_leak_fail_and_the_failure_names_the_holder(session):
    result = session(LEAKY)
    result.assert_outcomes(failed=3, xfailed=1)
    output = result.stdout.str()
    assert "test_fixture" in output and ".KEPT: +1 str per call" in output
    assert ".Shop.orders: +1 " in output
    assert re.search(r"held by (fixture 'shop'|a fixture of the test): \+1 \S+\.Order per call", output)
    assert "memory grows with every call: in each of 5 windows of 4 calls" in output
    assert "Traceback" not in output and "no_leak.py" not in output, "the judge's own frames say nothing about the leak"


@pytest.mark.slow
def test_the_walk_sees_the_tests_where_pytest_rewrites_our_modules_as_those_of_an_installed_plug_in(pytester, monkeypatch):
    folder = pytester.path / "site" / "leakscope_forensics-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: leakscope-forensics\nVersion: 0\n")
    (folder / "RECORD").write_text("leakscope/pytest_plugin.py,,\nleakscope/__init__.py,,\n")
    (folder / "entry_points.txt").write_text("[pytest11]\nleakscope = leakscope.pytest_plugin\n")
    monkeypatch.setenv("PYTHONPATH", f"{folder.parent}:{ROOT}")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    pytester.makepyfile("""
        import pytest

        class Order: pass

        @pytest.fixture
        def shop(): return []

        @pytest.mark.no_leak
        def test_marker(shop): shop.append(Order())
    """)
    result = pytester.runpytest_subprocess(timeout=170)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*objects per call: +1 *.Order*", "held by *fixture*: +1 *.Order per call*"])


@pytest.mark.slow
def test_healthy_tests_pass_and_skips_and_xfails_stay_what_they_are(session):
    result = session(HEALTHY)
    result.assert_outcomes(passed=10, skipped=1, xfailed=1)


def test_a_body_that_fails_fails_with_its_own_error(session):
    result = session("""
        import pytest

        @pytest.mark.no_leak
        def test_assertion():
            left = {"orders": 1}
            assert left == {"orders": 2}

        def test_error(no_leak):
            no_leak(lambda: 1 / 0)
    """)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(["E * assert {'orders': 1} == {'orders': 2}", "E * ZeroDivisionError: division by zero"])
    result.stdout.no_fnmatch_line("*memory grows*")


def test_what_cannot_be_judged_fails_with_a_sentence(session):
    result = session("""
        import unittest
        import pytest

        @pytest.mark.no_leak(round=3)
        def test_unknown_option(): pass

        @pytest.mark.no_leak(rounds=0)
        def test_no_rounds(): pass

        @pytest.mark.no_leak
        async def test_coroutine(): pass

        class TestOld(unittest.TestCase):
            @pytest.mark.no_leak
            def test_case(self): pass

        def test_early(no_leak):
            with no_leak() as rounds:
                for _ in rounds:
                    break
    """)
    assert result.parseoutcomes().get("passed", 0) == 0
    result.stdout.fnmatch_lines_random([
        "The marker no_leak does not know round=.", "rounds=0 is not a number of calls.",
        "The marker no_leak cannot repeat test_coroutine: *", "The marker no_leak cannot repeat test_case: *",
        "The block ended after 1 calls*", "  hint: *"])
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_the_log_of_the_warm_up_is_kept_for_the_report(session):
    result = session("""
        import logging
        import pytest

        @pytest.mark.no_leak
        def test_logs(caplog):
            caplog.clear()
            logging.getLogger("shop").warning("an order")

        def test_after(no_leak, caplog):
            no_leak(lambda: logging.getLogger("shop").warning("an order"), rounds=3)
            assert len(caplog.records) == 6
    """)
    result.assert_outcomes(passed=2)


def test_an_unused_plug_in_loads_nothing_and_leaves_the_session_alone(session):
    result = session("""
        import gc, sys

        def test_nothing():
            assert "leakscope.no_leak" not in sys.modules
            assert not [name for name in sys.modules if name.startswith(("numpy", "leakscope.")) and
                        name != "leakscope.pytest_plugin"]
            assert gc.callbacks == []
    """)
    result.assert_outcomes(passed=1)


def test_the_marker_explains_itself(session):
    session("", "--markers").stdout.fnmatch_lines(["@pytest.mark.no_leak(rounds=10): *"])


def test_importing_the_plug_in_loads_only_what_pytest_has_loaded():
    look = "import sys, json, pytest; before = set(sys.modules); import leakscope.pytest_plugin\n" \
           "print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", look], text=True, capture_output=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == ["leakscope", "leakscope.pytest_plugin"]
