"""The script behind `make env`: does nothing twice, and says what it needs."""

import sys
from pathlib import Path

import pytest

import environment


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of two files; its installer starts no process but notes the commands."""
    for name in ("requirements.txt", "pyproject.toml"):
        (tmp_path / name).write_text("a==1\n", encoding="utf-8")
    venv = tmp_path / ".venv"
    environment.python_of(venv).parent.mkdir(parents=True)
    environment.python_of(venv).touch()
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setattr(environment, "VENV", venv)
    monkeypatch.setattr(environment, "STAMP", venv / "installed.txt")
    return tmp_path


def test_installs_once_and_again_when_a_pin_changes(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(environment.subprocess, "call", lambda command, **_: commands.append(command) or 0)
    assert environment.main() == 0
    assert len(commands) == 3
    assert environment.main() == 0
    assert len(commands) == 3
    (elsewhere / "requirements.txt").write_text("a==2\n", encoding="utf-8")
    assert environment.main() == 0
    assert len(commands) == 6


def test_a_failed_installation_is_not_taken_for_a_whole_one(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environment.subprocess, "call", lambda command, **_: int("-r" in command))
    assert environment.main() == 1
    assert "failed; mend that and repeat the command" in capsys.readouterr().err
    assert not (elsewhere / ".venv" / "installed.txt").exists()


def test_an_unsupported_python_is_one_sentence(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 4))
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    assert environment.main() == 1
    assert "Python 3.10 was found, but this project needs 3.11, 3.12 or 3.13" in capsys.readouterr().err
    monkeypatch.setattr(environment.shutil, "which", lambda name: "/usr/bin/" + name)
    assert environment.interpreter() == "/usr/bin/python3.13"
