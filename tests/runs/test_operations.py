"""Surgery of stored runs: done once, the same after a kill, never trusted when damaged."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from small_runs import small_config

from lt_lib.runs import RunConfig, Store, run
from lt_lib.runs.operations import FILES, operate_run

SURGERY = {"iterations": 3, "spikes": 4, "radius": 0.02, "radius_unit": "nats", "minimum": 0.005}
OPTIONS = {"hessian": 40}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    store = Store(tmp_path_factory.mktemp("store"))
    return store, run(small_config(), store)


def content(operation) -> tuple[list, bytes]:
    """Return what must not depend on how an operation came about: trace without times, and weights."""
    story = json.loads((operation.folder / "operation.json").read_text())
    trace = [{name: value for name, value in entry.items() if name != "seconds"} for entry in story["trace"]]
    return trace, (operation.folder / "weights.safetensors").read_bytes()


def test_an_operation_is_made_once_and_leaves_the_run_alone(stored) -> None:
    store, base = stored
    before = {path.name: path.read_bytes() for path in base.folder.iterdir()}
    seen = []
    first = operate_run(base, SURGERY, store, seen.append, **OPTIONS)
    assert len(seen) == len(first.trace) >= 1
    again = operate_run(base, SURGERY, store, seen.append, **OPTIONS)
    assert len(seen) == len(first.trace)
    assert again.trace == first.trace
    assert {path.name: path.read_bytes() for path in base.folder.iterdir()} == before
    assert sorted(path.name for path in first.folder.iterdir()) == sorted((*FILES, "checksums.json"))
    other = operate_run(base, SURGERY | {"power": 2.0}, store, **OPTIONS)
    assert other.key != first.key
    weights = base.weights()
    moved = [name for name, value in first.weights().items() if not torch.equal(value, weights[name])]
    assert any(step.accepted for step in first.trace) == bool(moved)
    assert not [name for name in moved if "running" in name]
    assert len(first.table()["sigma_after"]) == len(first.trace)
    model = first.load_model()
    assert all(torch.equal(value, first.weights()[name]) for name, value in model.state_dict().items())


def test_a_damaged_operation_is_made_again(stored) -> None:
    store, base = stored
    first = operate_run(base, SURGERY, store, **OPTIONS)
    whole = content(first)
    path = first.folder / "weights.safetensors"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(bytes(damaged))
    assert content(operate_run(base, SURGERY, store, **OPTIONS)) == whole


def test_controls_by_name_and_phases_are_operations_too(stored) -> None:
    store, base = stored
    control = operate_run(
        base,
        {"iterations": 1, "spikes": 3, "directions": "random", "radius": 0.5},
        store,
        **OPTIONS,
    )
    assert control.settings["surgery"]["directions"] == "random"
    assert len(control.trace[0].values) == 3
    phased = operate_run(base, SURGERY | {"iterations": 1, "spikes": 3}, store, **OPTIONS, phases=2)
    assert {step.phase for step in phased.trace} <= {0, 1}
    assert len(phased.trace) == 2


def test_bad_settings_are_refused(stored) -> None:
    store, base = stored
    with pytest.raises(ValueError, match="Did you mean `radius`"):
        operate_run(base, {"radios": 1}, store)
    with pytest.raises(ValueError, match="an option of operate_run"):
        operate_run(base, SURGERY, store, hessians=3)
    with pytest.raises(ValueError, match="`kind` must be one of"):
        operate_run(base, SURGERY | {"directions": "spoke"}, store)
    config = small_config().to_dict()
    bare = RunConfig.from_dict(config | {"data": config["data"] | {"calibration": 0}})
    with pytest.raises(ValueError, match="no calibration part"):
        operate_run(run(bare, store), SURGERY, store)


CHILD = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from small_runs import small_config
from test_operations import OPTIONS, SURGERY
from lt_lib.runs import Store, run
from lt_lib.runs.operations import operate_run

def die(step):
    if step.done == 1:
        os.kill(os.getpid(), signal.SIGKILL)

store = Store({root!r})
base = run(small_config(), store)
print(base.key, flush=True)
operate_run(base, SURGERY, store, die, **OPTIONS)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_after_a_kill_surgery_goes_on_to_the_same_bits(stored, tmp_path, run_forked) -> None:
    store, base = stored
    whole = operate_run(base, SURGERY, store, **OPTIONS)
    assert len(whole.trace) > 1
    other = Store(tmp_path)
    copy = run(small_config(), other)
    script = CHILD.format(tests=str(Path(__file__).parent), root=str(tmp_path))
    died = run_forked(script)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert died.stdout.split() == [copy.key]
    seen = []
    after = operate_run(copy, SURGERY, other, seen.append, **OPTIONS)
    assert [step.done for step in seen] == list(range(2, len(whole.trace) + 1))
    assert content(after) == content(whole)
    assert [path.name for path in (tmp_path / ".operations").iterdir()] == [after.key]
