"""A surgery that was stopped between iterations ends with the same bits; a state goes through JSON."""

import json

import pytest
import torch
from toy_surgery import bits, config, data, same_bits, trained_net

from lt_lib.surgery.deflated import deflated_operate
from lt_lib.surgery.loop import operate
from lt_lib.surgery.state import SurgeryState
from lt_lib.surgery.trace import Iteration


class StoppedError(Exception):
    pass


def stopped_after(count: int, call, *arguments, **options) -> SurgeryState:
    """Run surgery, stop it after `count` iterations as a kill would, and return what was saved then."""
    saved = []

    def save(step) -> None:
        state = step.state()
        record = json.loads(json.dumps(state.record, allow_nan=False))
        shuffled = sorted(state.tensors.items(), reverse=True)  # a file keeps no order
        saved.append(SurgeryState({n: t.clone() for n, t in shuffled}, record))
        if step.done == count:
            raise StoppedError

    with pytest.raises(StoppedError):
        call(*arguments, **options, progress=save)
    return saved[-1]


CASES = {
    "snr": {},
    "gamma": {"amplitude": "gamma", "weights": "gap", "radius": 0.15, "minimum": 0.1},
    "nats": {"radius_unit": "nats", "radius": 0.2, "minimum": 0.1, "eps_unit": "nats", "eps": 0.01},
    "frozen": {"recompute": False},
    "refused": {"rollback_sigma": 0.0, "rollback_drop": 0.001, "radius": 1.0},
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 2])
def test_operate_goes_on_to_the_same_bits(name: str, count: int) -> None:
    settings = config(**CASES[name])
    whole, (hessian, calibration) = trained_net(torch.float32), data(torch.float32)
    start = bits(whole)
    done = operate(whole, hessian, calibration, settings)
    assert len(done.trace) > 1
    assert (name == "refused") == (not done.trace[0].accepted)
    count = min(count, len(done.trace) - 1)

    net = trained_net(torch.float32)
    state = stopped_after(count, operate, net, hessian, calibration, settings)
    assert same_bits(bits(net), start)  # an exception puts the first weights back
    again = operate(net, hessian, calibration, settings, state=state)

    assert again.trace == done.trace
    assert again.stopped == done.stopped
    assert again.digests == done.digests
    assert same_bits(bits(net), bits(whole))
    assert torch.equal(again.offset(), done.offset())
    again.restore()
    assert same_bits(bits(net), start)


@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_deflated_surgery_goes_on_to_the_same_bits(stale: bool, count: int) -> None:
    settings = config(iterations=2, radius=0.1)
    options = {"phases": 2, "per_phase": 2, "stale": stale}
    whole, (hessian, calibration) = trained_net(torch.float32), data(torch.float32)
    done = deflated_operate(whole, hessian, calibration, settings, **options)
    assert len(done.trace) == 4
    net = trained_net(torch.float32)
    state = stopped_after(count, deflated_operate, net, hessian, calibration, settings, **options)
    again = deflated_operate(net, hessian, calibration, settings, **options, state=state)
    assert again.trace == done.trace
    assert same_bits(bits(net), bits(whole))


def test_a_state_of_another_surgery_is_refused_and_the_model_untouched() -> None:
    net, (hessian, calibration) = trained_net(), data()
    state = stopped_after(1, operate, net, hessian, calibration, config())
    start = bits(net)
    with pytest.raises(ValueError, match=r"`power` was 1\.0 and is 2\.0"):
        operate(net, hessian, calibration, config(power=2.0), state=state)
    with pytest.raises(ValueError, match=r"other images.*`calibration`"):
        operate(net, hessian, data(count=160)[1], config(), state=state)
    with torch.no_grad():
        net[0].weight[0, 0] += 1
    other = bits(net)
    with pytest.raises(ValueError, match="other weights"):
        operate(net, hessian, calibration, config(), state=state)
    assert same_bits(bits(net), other)
    assert not same_bits(other, start)
    record = state.record | {"format": 0}
    with pytest.raises(ValueError, match="format"):
        operate(net, hessian, calibration, config(), state=SurgeryState(state.tensors, record))


def test_a_damaged_state_is_refused() -> None:
    net, (hessian, calibration) = trained_net(), data()
    state = stopped_after(1, operate, net, hessian, calibration, config())
    for record, tensors in (
        (state.record | {"at": {}}, state.tensors),
        (state.record, {n: 2 * t if n.startswith("current.") else t for n, t in state.tensors.items()}),
    ):
        with pytest.raises(ValueError, match="`state` is damaged"):
            operate(net, hessian, calibration, config(), state=SurgeryState(tensors, record))


def test_other_buffers_are_another_network() -> None:
    net, (hessian, calibration) = trained_net(), data()
    net.register_buffer("mean", torch.zeros(2).double())
    state = stopped_after(1, operate, net, hessian, calibration, config())
    net.mean += 1
    with pytest.raises(ValueError, match="saved with other tensors: `frozen weights and buffers`"):
        operate(net, hessian, calibration, config(), state=state)


def test_a_trace_goes_through_json_unchanged() -> None:
    net, (hessian, calibration) = trained_net(), data()
    done = operate(net, hessian, calibration, config(amplitude="gamma"))
    text = json.dumps([step.to_dict() for step in done.trace], allow_nan=False)
    again = tuple(Iteration.from_dict(record) for record in json.loads(text))
    assert again == done.trace
    assert again[0].seconds == done.trace[0].seconds
    assert again[0] != done.trace[1]
