"""What will be started for a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakscope.commands._command import find
from leakscope.errors import UsageError


def test_a_script_without_an_interpreter_is_run_by_the_shell_as_a_shell_would(tmp_path: Path) -> None:
    script = tmp_path / "go"
    script.write_text("echo go\n")
    script.chmod(0o755)
    assert find([str(script), "1"]).argv == ["/bin/sh", str(script), "1"]


def test_the_command_keeps_the_name_it_was_called_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "serve"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find(["serve", "--now"])
    assert (found.path, found.argv) == (str(script), ["serve", "--now"])


def test_a_command_with_a_typing_mistake_gets_the_nearest_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gunicorn").write_text("#!/bin/sh\n")
    (tmp_path / "gunicorn").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError) as caught:
        find(["gunicron", "app:app"])
    assert caught.value.hint == "leakscope run -- gunicorn app:app"
