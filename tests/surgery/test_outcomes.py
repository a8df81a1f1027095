"""Outcomes of images: the same sensitivities as elsewhere, and noise with the properties that are claimed."""

import pytest
import torch
from toy_surgery import CLASSES, biased_head, clusters

from lt_lib.surgery import measure_sensitivity
from lt_lib.surgery.outcomes import Outcomes, measure_outcomes

HEAD = biased_head()
SIZE = sum(p.numel() for p in HEAD.parameters())


def rows(k: int) -> torch.Tensor:
    noise = torch.randn(SIZE, k, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.linalg.qr(noise)[0].T


def drawn(signal: torch.Tensor, n: int, seed: int) -> Outcomes:
    """Outcomes whose class means are `signal` (K, C) in expectation, n images a class, at lengths 1/2."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(signal.shape[1]).repeat_interleave(n)
    wanted = signal[:, labels]
    uniform = torch.rand(wanted.shape, generator=generator)
    change = (uniform < wanted.abs()) * wanted.sign() + (uniform > 0.9).double() * (
        2 * (torch.rand(wanted.shape, generator=generator) < 0.5) - 1
    )
    return Outcomes(change.to(torch.int8), labels, torch.full((len(signal),), 0.5).double(), signal.shape[1])


def test_sensitivities_and_errors_are_those_of_the_exact_measurement() -> None:
    images, labels = clusters(120, seed=5)
    lengths = torch.tensor([0.3, 0.8, 2.0])
    exact = measure_sensitivity(HEAD, rows(3), images, labels, lengths, method="exact")
    found = measure_outcomes(HEAD, rows(3), images, labels, lengths)
    torch.testing.assert_close(found.sensitivity(), exact.matrix)
    torch.testing.assert_close(found.errors(), exact.errors)
    assert found.change.abs().sum() == exact.flips.sum() > 0
    assert found.counts.tolist() == [30] * CLASSES


def test_one_image_of_a_class_leaves_its_error_unknown() -> None:
    images, labels = clusters(CLASSES, seed=5)
    exact = measure_sensitivity(HEAD, rows(1), images, labels, 2.0, method="exact")
    found = measure_outcomes(HEAD, rows(1), images, labels, [2.0]).errors()
    assert bool(found.isinf().all())
    assert torch.equal(found, exact.errors)


def test_halves_are_disjoint_and_their_mean_is_the_whole() -> None:
    found = drawn(torch.zeros(3, 4), 10, seed=0)
    a, b = found.halves(5)
    torch.testing.assert_close((a + b) / 2, found.sensitivity().expand(5, -1, -1))
    assert not torch.equal(a[0], a[1])  # another split each time
    again, _ = found.halves(5)
    assert torch.equal(a, again)


def test_half_the_difference_has_the_size_of_the_noise_and_the_product_that_of_the_signal() -> None:
    signal = torch.tensor([[0.4, -0.3, 0.0], [0.1, 0.2, -0.5]])
    noise, differences, products, spectra = [], [], [], []
    for seed in range(300):
        found = drawn(signal, 12, seed)
        a, b = found.halves(1)
        noise.append((found.sensitivity() - signal).square().sum())
        differences.append(((a - b) / 2).square().sum())
        products.append((a * b).sum())
        spectra.append(found.signal_spectrum().sum())
    mean = {name: float(torch.stack(v).mean()) for name, v in (("n", noise), ("d", differences))}
    assert mean["d"] == pytest.approx(mean["n"], rel=0.1)
    expected = float(signal.double().square().sum())
    assert float(torch.stack(products).mean()) == pytest.approx(expected, rel=0.1)
    assert float(torch.stack(spectra).mean()) == pytest.approx(expected, rel=0.1)  # trace of M
    plain = [float(drawn(signal, 12, s).sensitivity().square().sum()) for s in range(50)]
    assert sum(plain) / 50 > expected + 0.8 * mean["n"]  # what noise adds when nothing is subtracted


def test_shuffled_labels_leave_the_mean_over_images() -> None:
    found = drawn(torch.tensor([[0.8, -0.8], [0.1, 0.1]]), 20, seed=1)
    shuffled = found.shuffled(50)
    torch.testing.assert_close(shuffled.mean(2), found.sensitivity().mean(1).expand(50, -1))
    assert shuffled[:, 0].abs().max() < found.sensitivity()[0].abs().max()


def test_what_cannot_be_halved_is_refused() -> None:
    with pytest.raises(ValueError, match="2 images to tell noise from signal; class 0 has 1"):
        drawn(torch.zeros(2, 3), 1, seed=0).signal_spectrum()
    with pytest.raises(ValueError, match="Halves need 2 images"):
        drawn(torch.zeros(2, 3), 1, seed=0).halves(1)
    with pytest.raises(ValueError, match="at most 4, as class 0 has; found 6"):
        drawn(torch.zeros(2, 3), 4, seed=0).halves(1, size=6)
    images, labels = clusters(40, seed=5)
    with pytest.raises(ValueError, match="`lengths` must be positive"):
        measure_outcomes(HEAD, rows(2), images, labels, [1.0, 0.0])
