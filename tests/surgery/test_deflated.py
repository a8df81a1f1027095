"""Deflated surgery against joint surgery and against dense eigenvectors."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from toy_surgery import bits, config, data, same_bits, trained_net

from lt_lib.curvature import MatrixOperator, deflate
from lt_lib.surgery.compact import CompactBasis, OffSpan
from lt_lib.surgery.data import HessianImages
from lt_lib.surgery.deflated import deflated_operate
from lt_lib.surgery.loop import operate


def dense_hessian(net: nn.Module, hessian: HessianImages) -> Tensor:
    """Return the Hessian of the mean cross-entropy by double backward, in eval mode."""
    modes = [module.training for module in net.modules()]
    net.eval()
    parameters = list(net.parameters())
    loss = cross_entropy(net(hessian.images), hessian.labels)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    rows = [torch.autograd.grad(entry, parameters, retain_graph=True) for entry in gradient]
    for module, mode in zip(net.modules(), modes, strict=True):
        module.training = mode
    return torch.stack([torch.cat([r.reshape(-1) for r in row]) for row in rows])


def test_one_phase_is_joint_surgery_to_the_bit() -> None:
    joint, alone, (hessian, calibration) = trained_net(), trained_net(), data()
    first = operate(joint, hessian, calibration, config(spikes=3))
    second = deflated_operate(alone, hessian, calibration, config(), phases=1, per_phase=3)
    assert first.accepted >= 2
    assert second.trace == first.trace
    assert second.offset().tolist() == first.offset().tolist()
    assert same_bits(bits(joint), bits(alone))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_second_phase_moves_along_eigenvectors_of_the_present_hessian(dtype: torch.dtype) -> None:
    net, (hessian, calibration) = trained_net(), data()
    settings = config(iterations=2, tol=1e-6)
    seen = []

    def look(step) -> None:
        if step.done in (2, 3):  # the weights at which iterations 2 and 3 begin
            seen.append(torch.linalg.eigh(dense_hessian(net, hessian)))

    options = {"phases": 2, "per_phase": 2, "basis_dtype": dtype}
    done = deflated_operate(net, hessian, calibration, settings, **options, progress=look)
    later = done.of_phase(1)
    assert [len(step.values) for step in later] == [1, 1]  # C - 1 = 3 spikes in all
    assert done.directions == 3
    # joint surgery would take eigenpairs 0, 1, 2 of the same matrix: the phase has number 2
    for step, (values, _) in zip(later, seen, strict=True):
        assert float(step.values[0]) == pytest.approx(float(values[-3]), rel=1e-4)
        assert float(step.full_residuals[0]) < {torch.float32: 1e-4}.get(dtype, 0.05)


def test_stale_deflation_does_not_give_eigenvectors_and_says_so() -> None:
    residuals = {}
    for stale in (False, True):
        net, (hessian, calibration) = trained_net(), data()
        options = {"phases": 2, "per_phase": 2, "basis_dtype": torch.float64, "stale": stale}
        done = deflated_operate(net, hessian, calibration, config(iterations=3, radius=0.3), **options)
        assert any(step.accepted for step in done.of_phase(0))
        assert len(done.of_phase(0)[0].full_residuals) == 0
        residuals[stale] = max(float(step.full_residuals.max()) for step in done.of_phase(1))
    assert residuals[False] < 5e-3
    assert residuals[True] > 5 * residuals[False]


def test_lengths_of_later_phases_have_the_first_phases_energy() -> None:
    net, (hessian, calibration) = trained_net(), data()
    settings = config(iterations=2, amplitude="fixed", rollback_sigma=None, rollback_drop=None)
    done = deflated_operate(net, hessian, calibration, settings, phases=2, per_phase=2)
    first, later = done.of_phase(0)[0], done.of_phase(1)[0]
    assert later.radius == pytest.approx(0.1 * math.sqrt(float(first.values[0] / later.values[0])))
    assert done.of_phase(1)[1].radius == later.radius  # the paper's rule: set once a phase
    done.restore()
    plain = deflated_operate(net, hessian, calibration, settings, phases=2, per_phase=2, scale="none")
    assert {step.radius for step in plain.trace} == {0.1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_compact_rows_are_projected_out_exactly(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.linalg.qr(torch.randn(300, 20, generator=generator, dtype=torch.float64))[0].T
    basis = CompactBasis(300, dtype, torch.device("cpu"), torch.float64)
    basis.append(rows[:7])
    basis.append(rows[7:])
    stored = torch.stack([basis.row(i) for i in range(20)])
    assert float((stored - rows).norm(dim=1).max()) < 2 * torch.finfo(dtype).eps
    v = torch.randn(300, generator=generator, dtype=torch.float64)
    expected = v - stored.T @ torch.linalg.lstsq(stored.T, v).solution
    assert torch.allclose(basis.project(v), expected, atol=1e-12)
    assert basis.bytes == 20 * 300 * dtype.itemsize
    again = CompactBasis(300, dtype, torch.device("cpu"), torch.float64)
    again.restore(basis.tensor())
    assert torch.equal(again.tensor(), basis.tensor())
    matrix = torch.randn(300, 300, generator=generator, dtype=torch.float64)
    operator = MatrixOperator(matrix + matrix.T)
    assert torch.allclose(OffSpan(operator, basis).matvec(v), deflate(operator, stored).matvec(v), atol=1e-9)


def test_bad_phases_are_refused() -> None:
    net, (hessian, calibration) = trained_net(), data()
    cases = [
        ({"phases": 3, "per_phase": 2}, "2 phases reach all"),
        ({"phases": 0, "per_phase": 2}, "`phases`"),
        ({"phases": 1.5, "per_phase": 2}, "`phases` must be a whole number"),
        ({"phases": 1, "per_phase": 2, "basis_dtype": torch.int8}, "`basis_dtype`"),  # before any work
        ({"phases": 1, "per_phase": 2, "scale": "length"}, "`scale`"),
    ]
    for options, said in cases:
        with pytest.raises(ValueError, match=said):
            deflated_operate(net, hessian, calibration, config(), **options)
    given = config(directions=torch.eye(2))
    with pytest.raises(ValueError, match="directions"):
        deflated_operate(net, hessian, calibration, given, 1, 2)
