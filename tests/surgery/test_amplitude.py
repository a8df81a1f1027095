"""Controllers of the radius against the published trace and an independent Adam."""

import json
import math
from dataclasses import asdict

import pytest
import torch

from lt_lib.surgery import AmplitudeState, FixedAmplitude, GammaDecay, SignalToNoise

# arXiv 2605.07790, released log of the headline run: sigma before, and after each accepted iteration
BEFORE = 9.17
SIGMAS = (7.05, 5.97, 6.22, 5.80, 6.12, 6.62, 5.52, 5.24)
RADII = (0.020, 0.020, 0.020, 0.020, 0.020, 0.014, 0.014, 0.014, 0.0098, 0.0069)  # two rollbacks at the end


def test_gamma_decay_reproduces_the_published_radii() -> None:
    control = GammaDecay()
    state = control.begin(BEFORE / 100)
    found = []
    for sigma in SIGMAS:
        state = control.update(state, sigma / 100, accepted=True, drop=0.01)
        found.append(state.radius)
    for _ in range(2):
        state = control.update(state, 0.08, accepted=False, drop=0.09)
        found.append(state.radius)
    assert found == pytest.approx(RADII, abs=5e-5)
    assert state.sigma == pytest.approx(0.0524)  # of the weights that were kept
    for _ in range(9):
        state = control.update(state, 0.08, accepted=False, drop=0.09)
    assert state.radius == 0.002


@pytest.mark.parametrize("betas", [None, (0.9, 0.999)])
def test_signal_to_noise_is_adams_step(betas: tuple[float, float] | None) -> None:
    control = SignalToNoise(0.02, 0.002, iterations=15, betas=betas)
    b1, b2 = (1 - 4 / 15, 1 - 1 / 15) if betas is None else betas
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([weight], lr=1.0, betas=(b1, b2), eps=1e-8)
    state, kept = control.begin(0.0917), 0.0917
    for sigma, accepted in [(0.07, True), (0.06, True), (0.09, False), (0.062, True), (0.058, True)]:
        drop = 0.08
        signal = kept - sigma if accepted else -drop
        kept = sigma if accepted else kept
        state = control.update(state, sigma, accepted, drop)
        before, weight.grad = weight.item(), torch.tensor([-signal], dtype=torch.float64)
        adam.step()
        snr = weight.item() - before
        assert state.signal == pytest.approx(signal)
        assert state.snr == pytest.approx(snr)
        assert state.radius == pytest.approx(0.002 + 0.5 * (1 + math.tanh(5 * snr)) * 0.018)
        assert state.sigma == kept


def test_the_first_signal_is_all_or_nothing() -> None:
    control = SignalToNoise(0.02, 0.002, iterations=10)
    state = control.begin(0.09)
    assert state.radius == 0.02
    assert math.isnan(state.snr)
    up = control.update(state, 0.0899, accepted=True, drop=0.0)
    down = control.update(state, 0.2, accepted=False, drop=0.08)
    still = control.update(state, 0.09, accepted=True, drop=0.0)
    assert (up.snr, down.snr) == (pytest.approx(1, abs=1e-3), pytest.approx(-1, abs=1e-3))
    assert up.radius == pytest.approx(0.02, abs=1e-5)
    assert down.radius == pytest.approx(0.002, abs=1e-5)
    assert (still.snr, still.radius) == (0, pytest.approx(0.011))


def test_a_rollback_may_tell_the_rise_of_sigma_instead() -> None:
    control = SignalToNoise(rolled_back="sigma")
    state = control.update(control.begin(0.09), 0.10, accepted=False, drop=0.3)
    assert state.signal == pytest.approx(-0.01)
    assert state.sigma == 0.09


@pytest.mark.parametrize("iterations", [1, 2, 3, 4])
def test_short_runs_have_no_negative_decay(iterations: int) -> None:
    control = SignalToNoise(iterations=iterations)
    assert control.moments == (0.0, 1 - 1 / iterations)
    state = control.update(control.update(control.begin(0.1), 0.09, True, 0.0), 0.08, True, 0.0)
    assert 0.002 < state.radius <= 0.02


def test_fixed_amplitude_stays() -> None:
    control = FixedAmplitude(0.01)
    state = control.update(control.begin(0.1), 0.2, accepted=False, drop=0.1)
    assert (state.radius, state.step, state.sigma, state.signal) == (0.01, 1, 0.1, -0.1)


def test_a_state_survives_json() -> None:
    for control in (SignalToNoise(), GammaDecay(), FixedAmplitude(0.01)):
        state = control.update(control.begin(0.0917), 0.0705, True, 0.02)
        again = AmplitudeState(**json.loads(json.dumps(asdict(state))))
        after = control.update(again, 0.06, True, 0.01)
        assert repr(after) == repr(control.update(state, 0.06, True, 0.01))


def test_bad_settings_are_answered_in_words() -> None:
    with pytest.raises(ValueError, match=r"`floor` in 0\.\.start"):
        GammaDecay(start=0.001, floor=0.002)
    with pytest.raises(ValueError, match="`start` must be finite"):
        FixedAmplitude(0.0)
    with pytest.raises(ValueError, match="`factor` must lie between 0 and 1; found 1"):
        GammaDecay(factor=1.0)
    with pytest.raises(ValueError, match="`betas` must lie between 0 and 1; found 1"):
        SignalToNoise(betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="`iterations` must be at least 1"):
        SignalToNoise(iterations=0)
    with pytest.raises(ValueError, match="`sigma` must be finite"):
        GammaDecay().begin(math.nan)
    with pytest.raises(ValueError, match="`drop` must be at least 0"):
        FixedAmplitude(0.01).update(FixedAmplitude(0.01).begin(0.1), 0.1, True, -0.1)
