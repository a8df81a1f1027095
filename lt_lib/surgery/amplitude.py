"""How long a step of surgery may be: controllers of the radius as pure functions of a frozen state.

    control = SignalToNoise(start=0.02, floor=0.002, iterations=15)
    state = control.begin(sigma)                                 # population std of class accuracies before
    ... solve with radius=state.radius, try the step ...
    state = control.update(state, sigma_of_candidate, accepted, largest_drop)

Accuracies and sigma are shares (0.01 is one percentage point). A state holds plain numbers, so `asdict` of it
goes to JSON and back. To control an energy, run the controller in multiples (start=1, floor=0.1) of
`energy_radius(energy, lambda_1)`, which follows lambda_1 from iteration to iteration.
"""

import math
from dataclasses import dataclass, replace
from typing import Protocol

from lt_lib._checks import check_choice

SIGNALS = ("drop", "sigma")
_TINY = 1e-8  # Adam's, beside the root of the second moment; the paper gives no value


@dataclass(frozen=True)
class AmplitudeState:
    """What a controller remembers."""

    radius: float  # of the next step
    sigma: float  # population std of class accuracies, of the weights that were kept
    step: int = 0  # updates so far
    signal: float = 0.0  # g_t, the last improvement signal
    first: float = 0.0  # m_t, moving average of signals
    second: float = 0.0  # v_t, of their squares
    snr: float = math.nan  # bias-corrected m_t / (sqrt(v_t) + 1e-8), as last used; nan before and without one
    average: float = math.nan  # moving average of sigma; nan without one


class Amplitude(Protocol):
    """A controller of the radius."""

    def begin(self, sigma: float) -> AmplitudeState:
        """Return the state before the first step, at the `sigma` of the untouched model."""

    def update(self, state: AmplitudeState, sigma: float, accepted: bool, drop: float) -> AmplitudeState:
        """Return the state after a step that was tried.

        Args:
            state: the one whose radius was used.
            sigma: of the candidate, also where it was rolled back.
            accepted: whether the candidate was kept.
            drop: largest loss of accuracy of a single class in the candidate, at least 0.
        """


@dataclass(frozen=True)
class FixedAmplitude:
    """The same radius at each step."""

    start: float  # > 0

    def __post_init__(self) -> None:
        _check_lengths(self.start, self.start)

    def begin(self, sigma: float) -> AmplitudeState:
        """Return the state before the first step."""
        return AmplitudeState(self.start, _number(sigma, "sigma"))

    def update(self, state: AmplitudeState, sigma: float, accepted: bool, drop: float) -> AmplitudeState:
        """Return the state with another step counted; `Amplitude` describes the arguments."""
        signal = _signal(state, sigma, accepted, drop, "drop")
        return replace(state, step=state.step + 1, signal=signal, sigma=sigma if accepted else state.sigma)


@dataclass(frozen=True)
class GammaDecay:
    """Radius times `factor` whenever sigma stops falling: the rule of the released headline table.

    The paper's text has it not. `average` weighs the past in the moving average of sigma, which starts at the
    untouched model's. The radius shrinks, down to `floor`, on a rollback and where the average falls by less
    than `tolerance`. These defaults reproduce the published radii (0.02 for five steps, 0.014 for three,
    0.0098 and 0.0069 after two rollbacks). The released CIFAR-100 runs say 0.3 for the average, which is read
    here as the weight of the new value, so that the rule is the same.
    """

    start: float = 0.02
    floor: float = 0.002
    factor: float = 0.7
    average: float = 0.7
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        _check_lengths(self.start, self.floor)
        _check_share(self.factor, "factor")
        _check_share(self.average, "average")

    def begin(self, sigma: float) -> AmplitudeState:
        """Return the state before the first step."""
        return AmplitudeState(self.start, _number(sigma, "sigma"), average=sigma)

    def update(self, state: AmplitudeState, sigma: float, accepted: bool, drop: float) -> AmplitudeState:
        """Return the state after a step; `Amplitude` describes the arguments."""
        signal = _signal(state, sigma, accepted, drop, "drop")
        kept = sigma if accepted else state.sigma
        average = self.average * state.average + (1 - self.average) * kept
        shrink = not accepted or state.average - average < self.tolerance
        radius = max(self.floor, self.factor * state.radius) if shrink else state.radius
        return replace(state, radius=radius, sigma=kept, step=state.step + 1, signal=signal, average=average)


@dataclass(frozen=True)
class SignalToNoise:
    """Radius from the signal-to-noise ratio of the improvement, as in Adam (MB4, arXiv 2605.07790).

    Signal `g = sigma_before - sigma` of an accepted step, `-drop` of one rolled back ("drop", the paper's
    text; "sigma": minus the rise of sigma, released ISIC-2019 runs). `m = b1 m + (1 - b1) g`, `v = b2 v +
    (1 - b2) g^2`, both divided by `1 - b^t`, `SNR = m / (sqrt(v) + 1e-8)`, and the radius is
    `floor + (1 + tanh(gain SNR)) / 2 (start - floor)`, from `start` down to `floor`.

    `betas` None: `b1 = 1 - 4 / T` (0 for T < 4, where that is negative) and `b2 = 1 - 1 / T`; the released
    runs mostly take (0.9, 0.999). The first signal makes SNR +-1, so after it the radius is almost `start` or
    `floor`, and half way where it was 0. An appendix of the paper sets the signal of an accepted step without
    gain to 0, against its own main text, which is followed here.
    """

    start: float = 0.02
    floor: float = 0.002
    iterations: int = 10  # T
    betas: tuple[float, float] | None = None
    gain: float = 5.0
    rolled_back: str = "drop"  # one of `SIGNALS`

    def __post_init__(self) -> None:
        _check_lengths(self.start, self.floor)
        check_choice(self.rolled_back, SIGNALS, "rolled_back")
        if self.iterations < 1:
            raise ValueError(f"`iterations` must be at least 1; found {self.iterations}.")
        for beta in self.moments:
            _check_share(beta, "betas", low=0.0)

    @property
    def moments(self) -> tuple[float, float]:
        """Decay rates b1, b2 of the two moving averages."""
        if self.betas is not None:
            return self.betas
        return max(0.0, 1 - 4 / self.iterations), 1 - 1 / self.iterations

    def begin(self, sigma: float) -> AmplitudeState:
        """Return the state before the first step."""
        return AmplitudeState(self.start, _number(sigma, "sigma"))

    def update(self, state: AmplitudeState, sigma: float, accepted: bool, drop: float) -> AmplitudeState:
        """Return the state after a step; `Amplitude` describes the arguments."""
        g = _signal(state, sigma, accepted, drop, self.rolled_back)
        (b1, b2), t = self.moments, state.step + 1
        first = b1 * state.first + (1 - b1) * g
        second = b2 * state.second + (1 - b2) * g * g
        snr = first / (1 - b1**t) / (math.sqrt(second / (1 - b2**t)) + _TINY)
        share = 0.5 * (1 + math.tanh(self.gain * snr))
        radius = self.floor + share * (self.start - self.floor)
        kept = sigma if accepted else state.sigma
        return AmplitudeState(radius, kept, t, g, first, second, snr)


def energy_radius(energy: float, value: float) -> float:
    """Return the length `sqrt(2 energy / value)` at which a step along an eigenvector costs `energy` nats.

    In the quadratic model, `1/2 lambda alpha^2`. At equal energy the radius of a group of spikes is
    `sqrt(lambda_1 / lambda)` times that of the first, as in the paper's phases.

    Raises:
        ValueError: an energy or an eigenvalue that is not positive and finite.
    """
    for name, number in (("energy", energy), ("value", value)):
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"`{name}` must be positive and finite; found {number:g}.")
    return math.sqrt(2 * energy / value)


def _signal(state: AmplitudeState, sigma: float, accepted: bool, drop: float, rolled_back: str) -> float:
    improvement = state.sigma - _number(sigma, "sigma")
    if _number(drop, "drop") < 0:
        raise ValueError(f"`drop` must be at least 0; found {drop:g}. Pass the largest loss, 0 if none fell.")
    return -drop if not accepted and rolled_back == "drop" else improvement


def _number(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise ValueError(f"`{name}` must be finite; found {value}. Each class needs at least one image.")
    return value


def _check_lengths(start: float, floor: float) -> None:
    if not (math.isfinite(start) and 0 < floor <= start):
        raise ValueError(
            f"`start` must be finite and `floor` in 0..start, not 0; found {start:g}, {floor:g}."
        )


def _check_share(value: float, name: str, low: float = 1e-12) -> None:
    if not low <= value < 1:
        raise ValueError(f"`{name}` must lie between 0 and 1; found {value:g}.")
