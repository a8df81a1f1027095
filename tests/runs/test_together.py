"""The book's example of a run by several processes, started by torchrun and alone."""

import contextlib
import io
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from small_runs import bits, small_config

from lt_lib._processes import Processes, together
from lt_lib.runs import Store, run, run_together

PAGE = Path(__file__).resolve().parents[2] / "book" / "how-to-run.md"
(EXAMPLE,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
((SETTINGS, OPTIONS),) = re.findall(
    r"```bash\n(OMP_NUM_THREADS=.*?) \.venv/bin/torchrun (.*?) together\.py\n```",
    PAGE.read_text(encoding="utf-8"),
    re.DOTALL,
)
# notes who writes what, before the example runs
NOTING = """
import os
from lt_lib.runs import Store
def noted(name, what):
    write = getattr(Store, name)
    def writing(self, key, config, made, *more):
        with open(f"{os.environ['LT_RUNS']}.{os.environ['RANK']}", "a") as file:
            file.write(what(made) + " ")
        write(self, key, config, made, *more)
    setattr(Store, name, writing)
noted("save_checkpoint", lambda made: str(made.state.epoch))
noted("put", lambda made: "run")
"""
# at its end, who listens: this process and torchrun
LISTENING = """
    import psutil
    found = [s for pid in (os.getpid(), os.getppid()) for s in psutil.Process(pid).net_connections()]
    with open(f"{os.environ['LT_RUNS']}.ports.{os.environ['RANK']}", "w") as file:
        file.write(" ".join(s.laddr.ip for s in found if s.status == "LISTEN"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("torchrun")
    script = folder / "together.py"
    script.write_text(NOTING + EXAMPLE + "    run_together(config)  # the store answers\n" + LISTENING)
    command = ["-m", "torch.distributed.run", *OPTIONS.replace("\\", "").split(), str(script)]
    environment = {"CUDA_VISIBLE_DEVICES": "", "LT_RUNS": str(folder / "runs")}
    environment |= dict(setting.split("=") for setting in SETTINGS.split())
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"balanced accuracy 0\.\d+ by 2\n", done.stdout)
    return folder


def test_the_run_is_that_of_one_process(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("LT_RUNS", str(tmp_path))
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        exec(compile(EXAMPLE, "how-to-run.md", "exec"), names)
    assert printed.getvalue().endswith("by 1\n")
    alone, shared = names["run"], Store(folder / "runs").get(names["config"].key())
    assert shared.metrics["processes"] == 2
    assert "processes" not in alone.metrics
    for name, weight in alone.weights().items():
        np.testing.assert_allclose(shared.weights()[name], weight, rtol=1e-3, atol=1e-4, err_msg=name)
    losses = (found.history["train_class_loss"] for found in (shared, alone))
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_the_first_process_writes_once_and_the_second_never(folder):
    assert (folder / "runs.0").read_text().split() == ["1", "2", "run"]
    assert not (folder / "runs.1").exists()
    store = Store(folder / "runs")
    (key,) = store.keys()
    assert store.damage(key) is None


def test_no_port_is_open_to_other_machines(folder):
    listening = [(folder / f"runs.ports.{rank}").read_text().split() for rank in range(2)]
    assert len(listening[0]) >= 2  # where they meet, and gloo
    assert {*listening[0], *listening[1]} == {"127.0.0.1"}


def test_alone_it_is_the_run(tmp_path):
    config = small_config(epochs=1)
    assert bits(run_together(config, Store(tmp_path / "a"))) == bits(run(config, Store(tmp_path / "b")))


def test_an_edited_run_is_refused_to_several_processes(tmp_path):
    config = replace(small_config(epochs=1), after={"name": "tau_norm"})
    with together(Processes(0, 2)), pytest.raises(ValueError, match="`after`"):
        run_together(config, Store(tmp_path))
