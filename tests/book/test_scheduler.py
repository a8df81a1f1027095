"""`make book SCHEDULER=...`: notebooks train on the cluster that is named, and nowhere without a name."""

import os
import socket
import subprocess

import pytest

import build
from lt_lib.runs import cluster
from pipeline.layout import ROOT, Layout


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("LT_SCHEDULER", "")  # so that it is undone after the test
    monkeypatch.delenv("LT_SCHEDULER")
    monkeypatch.setattr(build, "prepare", lambda layout: None)
    monkeypatch.setattr("pipeline.execute.run_notebooks", lambda layout, force: None)
    return Layout("digits")


def test_a_named_scheduler_reaches_the_kernels(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(cluster, "check_scheduler", asked.append)
    build.build(layout, run_only=True, scheduler="tcp://127.0.0.1:8786")
    assert asked == ["tcp://127.0.0.1:8786"]
    assert os.environ["LT_SCHEDULER"] == "tcp://127.0.0.1:8786"


def test_without_a_name_there_is_none(layout: Layout) -> None:
    build.build(layout, run_only=True)
    assert "LT_SCHEDULER" not in os.environ


@pytest.mark.parametrize("port", [None, "free"])
def test_a_scheduler_that_cannot_be_used_stops_the_build(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], port: str | None
) -> None:
    monkeypatch.setattr(cluster, "_PATIENCE", 0.2)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = "127.0.0.1" if port is None else f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert build.main(["--run-only", "--scheduler", address]) == 1
    expected = "must look like tcp://" if port is None else "No Dask scheduler answers at tcp://127.0.0.1:"
    assert expected in capsys.readouterr().err


def recipe(*settings: str) -> str:
    command = ["make", "-n", "book", *settings]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_make_passes_the_address_on() -> None:
    settings = ["PROFILE=fashion", "SCHEDULER=tcp://10.0.0.1:8786"]
    assert "build.py --profile fashion --scheduler tcp://10.0.0.1:8786" in recipe(*settings)
    assert "--scheduler" not in recipe(settings[0])
