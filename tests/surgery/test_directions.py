import copy

import pytest
import torch
from torch.autograd import grad
from torch.nn.functional import cross_entropy
from toy_surgery import CLASSES, bits, config, data, same_bits, trained_net

from lt_lib.surgery.config import SurgeryConfig
from lt_lib.surgery.directions import KINDS, direction_rule, directions, equal_energy_lengths
from lt_lib.surgery.loop import operate

NET, (HESSIAN, _) = trained_net(), data()
HEAD = slice(-(8 * CLASSES + CLASSES), None)  # the last layer's numbers are the last ones


def dense(outputs_alone=False):
    """Hessian of the mean cross-entropy by double backward, or the Gauss-Newton matrix, (P, P)."""
    net = copy.deepcopy(NET).eval()
    logits, leaves = net(HESSIAN.images), list(net.parameters())

    def flat(value, **keep):
        return torch.cat([g.reshape(-1) for g in grad(value, leaves, materialize_grads=True, **keep)])

    if outputs_alone:
        jacobian = torch.stack([flat(z, retain_graph=True) for z in logits.reshape(-1)])
        p = logits.detach().softmax(1)
        blocks = (torch.diag_embed(p) - p[:, :, None] * p[:, None]) / len(p)
        return jacobian.T @ torch.block_diag(*blocks) @ jacobian
    gradient = flat(cross_entropy(logits, HESSIAN.labels), create_graph=True)
    return torch.stack([flat(entry, retain_graph=True) for entry in gradient])


MATRIX = dense()


def leading(matrix, k):
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0)[:k], vectors.flip(1)[:, :k].T


def same_rows(found, wanted, atol=2e-3):
    """Whether rows agree up to their signs; pairs are certified to 1e-3 of their value."""
    return torch.allclose((found @ wanted.T).abs(), torch.eye(len(wanted)).double(), atol=atol)


@pytest.mark.parametrize(
    ("kind", "matrix", "part"),
    [
        ("spikes", lambda: MATRIX, slice(0, 3)),
        ("next_ritz", lambda: MATRIX, slice(3, 6)),
        ("gauss_newton", lambda: dense(outputs_alone=True), slice(0, 3)),
    ],
)
def test_eigenvectors_are_those_of_the_dense_matrix(kind, matrix, part):
    found = directions(kind, NET, HESSIAN, 3, tol=1e-6)
    vectors = leading(matrix(), 6)[1][part]
    assert same_rows(found.vectors, vectors)
    assert found.curvatures.tolist() == pytest.approx(
        torch.diag(vectors @ MATRIX @ vectors.T).tolist(), rel=1e-4
    )


def test_last_layer_spikes_are_those_of_its_block_and_zero_elsewhere():
    found = directions("last_layer", NET, HESSIAN, 3, tol=1e-6)
    values, vectors = leading(MATRIX[HEAD, HEAD], 3)
    assert same_rows(found.vectors[:, HEAD], vectors)
    assert float(found.vectors[:, : HEAD.start].abs().max()) == 0
    assert found.curvatures.tolist() == pytest.approx(values.tolist(), rel=1e-5)


def test_class_gradients_span_what_autograd_says():
    found = directions("class_gradients", NET, HESSIAN, 3)
    net = copy.deepcopy(NET).eval()
    rows = []
    for c in range(CLASSES):
        ours = HESSIAN.labels == c
        loss = cross_entropy(net(HESSIAN.images[ours]), HESSIAN.labels[ours])
        rows.append(torch.cat([g.reshape(-1) for g in grad(loss, list(net.parameters()))]))
    wanted = torch.linalg.svd(torch.stack(rows), full_matrices=False)[2][:3]
    assert same_rows(found.vectors, wanted, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_orthonormal_repeat_by_seed_and_leave_the_model_alone(kind):
    net = trained_net()
    before = bits(net)
    rule = direction_rule(kind)
    found, again = rule(net, HESSIAN, 3, 5), rule(net, HESSIAN, 3, 5)
    assert torch.equal(found, again)
    assert found.dtype == torch.float64
    assert torch.allclose(found @ found.T, torch.eye(3).double(), atol=1e-9)
    assert same_bits(before, bits(net))
    assert net.training


def test_random_directions_are_others_with_another_seed_and_their_curvature_is_the_mean():
    found = directions("random", NET, HESSIAN, 60, seed=1)
    assert not torch.equal(found.vectors[:3], directions("random", NET, HESSIAN, 3, seed=2).vectors)
    spread = MATRIX.square().sum().mul(2).sqrt() / len(MATRIX) / 60**0.5
    assert float(found.curvatures.mean()) == pytest.approx(
        float(MATRIX.trace()) / len(MATRIX), abs=4 * float(spread)
    )


@pytest.mark.parametrize("kind", KINDS[1:])
def test_surgery_moves_along_any_of_them_by_name(kind):
    net, settings = trained_net(), config(directions=kind, iterations=1, method="exact")
    assert SurgeryConfig.from_dict(settings.to_dict()) == settings
    (iteration,) = operate(net, HESSIAN, data()[1], settings).trace
    wanted = directions(kind, trained_net(), HESSIAN, 3)
    assert torch.allclose(iteration.values, wanted.curvatures, rtol=1e-6)
    assert iteration.products == wanted.products


def test_chosen_parameters_alone_are_moved():
    found = directions("spikes", NET, HESSIAN, 2, params="4.*", tol=1e-6)
    assert found.vectors.shape == (2, 8 * CLASSES + CLASSES)
    inside = directions("last_layer", NET, HESSIAN, 2, params="4.weight", tol=1e-6)
    assert inside.vectors.shape == (2, 8 * CLASSES)


def test_equal_energy_costs_equal_loss_in_the_quadratic_model():
    found = directions("spikes", NET, HESSIAN, 3, tol=1e-6)
    lengths = found.lengths(0.02)
    assert (lengths**2 * found.curvatures / 2).tolist() == pytest.approx([0.02] * 3)
    assert equal_energy_lengths([2.0, -8.0, 0.0], 1.0, limit=3).tolist() == [1.0, 0.5, 3.0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: directions("spike", NET, HESSIAN, 3), "Did you mean `spikes`"),
        (lambda: direction_rule("ritz"), "must be one of"),
        (lambda: directions("random", NET, HESSIAN, 0), "`k` must be"),
        (lambda: directions("class_gradients", NET, HESSIAN, 5), "4 class gradients span"),
        (lambda: directions("last_layer", NET, HESSIAN, 37), "36 parameters only"),
        (lambda: directions("last_layer", NET, HESSIAN, 3, params="0.*"), "widen `params`"),
        (lambda: equal_energy_lengths([1.0, 0.0], 1.0), "Direction 1 has curvature 0"),
        (lambda: equal_energy_lengths([1.0], 0.0), "must be positive"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_an_uncertified_pair_is_never_used():
    with (
        pytest.warns(UserWarning, match="did not converge"),
        pytest.raises(RuntimeError, match="did not converge"),
    ):
        directions("spikes", NET, HESSIAN, 3, max_products=3)
