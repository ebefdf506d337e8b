"""What is installed: the wheel made from the sdist and an editable install hold the agent and find the templates."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import site
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from leakscope import __version__

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {".py", ".j2", ".css", ".js", ".pyi", ".toml", ".typed"}
PROBE = "leakscope/agent/_probe"
NO_SOURCES = (".git", ".venv*", ".*_cache", "__pycache__", "*.so", "*.egg-info", "build", "dist", "leakscope-report*")
LOOK = """
import json, pathlib, leakscope, leakscope.agent, jinja2
agent = pathlib.Path(leakscope.agent.__file__).parent
print(json.dumps({
    "package": str(pathlib.Path(leakscope.__file__).parent),
    "boot": (agent / "boot" / "sitecustomize.py").is_file(),
    "probes": [path.name for path in agent.glob("_probe.*")], "sources": len(list((agent / "_probe").glob("*.c"))),
    "templates": jinja2.Environment(loader=jinja2.PackageLoader("leakscope.templates", "")).list_templates(),
}))
"""


def shipped_files() -> set[str]:
    """Where the files that a user needs lie in an installed tree, relative to site-packages."""
    found = {path.relative_to(ROOT) for path in (ROOT / "leakscope").rglob("*") if path.suffix in SHIPPED}
    templates = ROOT / "reports" / "templates"
    # So that `leakscope doctor --build-probe` can build the probe for another interpreter.
    found |= {path.relative_to(ROOT) for path in (ROOT / PROBE).glob("*.[ch]")}
    found |= {Path("leakscope/templates") / path.relative_to(templates) for path in templates.rglob("*")
              if path.suffix in SHIPPED}  # fmt: skip
    return {path.as_posix() for path in found}


def run(*command: object, cwd: Path, **variables: str) -> str:
    """Run a command far from the working tree, so that nothing is imported from it by accident."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, text=True,
                          stdin=subprocess.DEVNULL, capture_output=True)  # fmt: skip
    assert done.returncode == 0, f"{command} said:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def tree(tmp_path):
    """A clean copy of the sources: a build writes beside them."""
    copy = tmp_path / "tree"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NO_SOURCES))
    return copy


@pytest.fixture
def fresh(tmp_path):
    """The Python of a new environment that borrows the dependencies of this one, but not what is installed editable."""
    where = tmp_path / "fresh"
    venv.create(where, with_pip=False)
    library = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(where)}))
    library.joinpath("borrowed.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return where / "bin" / "python"


def test_setup_cfg_lists_every_package():
    listed = configparser.ConfigParser()
    listed.read(ROOT / "setup.cfg")
    folders = {path.parent.relative_to(ROOT) for path in ROOT.glob("leakscope/**/__init__.py")}
    packages = {folder.as_posix().replace("/", ".") for folder in folders}
    assert set(listed["options"]["packages"].split()) == packages | {"leakscope.templates"}


@pytest.mark.slow
def test_the_wheel_made_from_the_sdist_holds_every_file_and_runs(tree, fresh, tmp_path):
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", tree, cwd=tmp_path)
    [wheel], [sdist] = (tmp_path / "dist").glob("*.whl"), (tmp_path / "dist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert shipped_sources() - {name.partition("/")[2] for name in archive.getnames()} == set()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert shipped_files() - names == set()
    if shutil.which("cc") and sys.platform == "linux":
        soabi = sysconfig.get_config_var("SOABI")
        assert {f"{PROBE}.{soabi}.so", f"{PROBE}/libleakscope_native.so", f"leakscope/analyse/_graph.{soabi}.so"} <= names
    run(sys.executable, "-m", "pip", "--python", fresh, "install", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    look_at(fresh, tmp_path / "fresh", tmp_path)


@pytest.mark.slow
def test_an_editable_install_without_a_compiler_finds_the_templates_runs_and_says_what_it_lacks(tree, fresh, tmp_path):
    run(sys.executable, "-m", "pip", "--python", fresh, "install", "--no-index", "--no-deps", "--no-build-isolation",
        "--editable", tree, cwd=tmp_path, CC="/bin/false")  # fmt: skip
    seen = look_at(fresh, tree, tmp_path)
    assert (seen["probes"], seen["sources"]) == ([], len(list((ROOT / PROBE).glob("*.c"))))
    said = json.loads(run(fresh.with_name("leakscope"), "doctor", "--json", cwd=tmp_path, CC="no-such-cc",
                          XDG_CACHE_HOME=str(tmp_path / "cache")))  # fmt: skip
    details = {each["what"]: each["detail"] for each in said["this machine"]}
    assert details["compiler"].startswith("There is no C compiler 'no-such-cc', which CC names.")
    assert details["analyses"].startswith("in Python: there was no C compiler when leakscope was installed")
    assert said["probe"][0]["why_not"] == f"No probe is built for CPython {sys.version.split()[0]}."


def shipped_sources() -> set[str]:
    """Where what the C parts are built from lies in the sdist."""
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / "leakscope").rglob("*") if path.suffix in (".c", ".h")}


def look_at(python: Path, home: Path, cwd: Path) -> dict[str, object]:
    """The installed package comes from `home`, is whole, and its command answers."""
    seen = json.loads(run(python, "-c", LOOK, cwd=cwd))
    assert Path(seen["package"]).is_relative_to(home)
    assert seen["boot"]
    assert {"report.html.j2", "report.md.j2", "style.css"} <= set(seen["templates"])
    assert __version__ in run(python.with_name("leakscope"), "--version", cwd=cwd)
    return seen
