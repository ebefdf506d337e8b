"""Which packages are loaded is told from the dicts of modules and the names of folders: no code of the target runs for it."""

from __future__ import annotations

import sys
import types

import pytest

from leakscope.agent import packages


class Trap(types.ModuleType):
    """A lazy module, as they stand in sys.modules: asked for anything, it runs code."""

    def __getattribute__(self, name):
        raise AssertionError(f"asked for {name}")


class Alive(str):
    """A version that is no plain str."""

    def __eq__(self, other):
        raise AssertionError("compared")

    __hash__ = str.__hash__


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty site-packages on sys.path, and nothing else loaded than what a test puts there."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(folder)])
    monkeypatch.setattr(sys, "modules", {"sys": sys})
    return folder


def loaded(name, module=types.ModuleType, **space):
    sys.modules[name] = made = module(name)
    vars_of = types.ModuleType.__dict__["__dict__"].__get__(made)
    vars_of.update(space)


def test_a_plain_version_in_the_dict_of_a_top_level_module_counts(site):
    loaded("shop", __version__="2.5.0")
    loaded("shop.parts", __version__="9.9")
    loaded("_shop", __version__="9.9")
    assert packages.versions() == {"shop": "2.5.0"}


def test_the_folder_of_a_distribution_says_what_the_module_does_not(site):
    for name in ("shop-2.5.0", "python_engine-4.6.1", "telemetry_sdk-1.27.0", "telemetry_api-1.27.0", "unused-1.0", "odd-x"):
        (site / f"{name}.dist-info").mkdir()
    for name in ("shop", "engine", "telemetry"):
        loaded(name)
    assert packages.versions() == {"engine": "4.6.1", "python_engine": "4.6.1", "shop": "2.5.0", "telemetry_api": "1.27.0",
                                   "telemetry_sdk": "1.27.0"}


def test_lazy_modules_and_other_things_in_sys_modules_are_not_asked(site):
    loaded("lazy", Trap, __version__="1.0")
    sys.modules["mock"] = object()
    sys.modules["none"] = None
    sys.modules[Alive("key")] = types.ModuleType("key")
    loaded("alive", __version__=Alive("1.0"))
    assert packages.versions() == {"lazy": "1.0"}


def test_the_number_of_packages_and_their_texts_are_bounded(site, monkeypatch):
    monkeypatch.setattr(packages, "MOST", 3)
    for number in range(9):
        loaded(f"shop{number}", __version__=f"1.{number}")
    assert packages.versions() == {"shop0": "1.0", "shop1": "1.1", "shop2": "1.2"}


@pytest.mark.parametrize("text, is_one", [
    ("2.5.0", True), ("1.0rc1+cu121", True), ("v3.2", True), ("", False), ("secret token", False), ("abc", False),
    ("1." + "0" * 60, False), (b"1.0", False), (1.0, False), ("1.0; rm", False), ("\u0661.0", False)])
def test_only_what_reads_like_a_version_is_written_down(text, is_one):
    assert packages.is_version(text) is is_one


def test_a_folder_that_cannot_be_read_is_passed(site):
    loaded("shop", __version__="2.5.0", __file__="/no/such/place/shop/__init__.py")
    assert packages.versions() == {"shop": "2.5.0"}
