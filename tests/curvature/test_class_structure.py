import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from torch import Tensor, nn

from lt_lib.curvature.class_gradients import class_gradients, class_loss_gradients
from lt_lib.curvature.head_spikes import collapsed_head, head_hessian, head_spikes
from lt_lib.curvature.structure import largest_gap, orthonormal_rows, predicted_outliers, subspace_overlap

CLASSES = 4


def net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, CLASSES)).double()


def data(counts: tuple[int, ...] = (7, 5, 3, 2), seed: int = 0) -> tuple[Tensor, Tensor]:
    labels = torch.cat([torch.full((n,), c) for c, n in enumerate(counts)])
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=g)
    return torch.randn(len(labels), 3, generator=g, dtype=torch.float64)[order], labels[order]


def jacobians(model: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """Per-sample Jacobians (n, C, P) and probabilities (n, C), one logit of one sample at a time."""
    rows = []
    for image in images:
        logits = model(image[None])[0]
        rows.append(
            torch.stack(
                [
                    torch.cat(
                        [g.flatten() for g in torch.autograd.grad(z, model.parameters(), retain_graph=True)]
                    )
                    for z in logits
                ]
            )
        )
    return torch.stack(rows), model(images).detach().softmax(1)


def gauss_newton(jacobian: Tensor, p: Tensor) -> Tensor:
    inner = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    return torch.einsum("nap,nab,nbq->pq", jacobian, inner, jacobian) / len(p)


def by_hand(model: nn.Module, images: Tensor, labels: Tensor, average: str) -> tuple[Tensor, Tensor]:
    """delta_{c,c'} and delta_c from single samples."""
    jacobian, p = jacobians(model, images)
    samples = torch.einsum("nkc,ncp->nkp", torch.eye(CLASSES) - p[:, None], jacobian)  # J^T (e_k - p)
    pairs = torch.zeros(CLASSES, CLASSES, jacobian.shape[2], dtype=torch.float64)
    classes = torch.zeros(CLASSES, jacobian.shape[2], dtype=torch.float64)
    for c in range(CLASSES):
        ours, q = samples[labels == c], p[labels == c]
        others = [k for k in range(CLASSES) if k != c]
        if average == "plain":
            pairs[c] = (q.sqrt()[:, :, None] * ours).mean(0)
            classes[c] = pairs[c][others].mean(0)
        else:
            pairs[c] = (q[:, :, None] * ours).sum(0) / q.sum(0)[:, None]
            classes[c] = (q[:, others, None] * ours[:, others]).sum((0, 1)) / q[:, others].sum()
    return pairs, classes


@pytest.mark.parametrize("average", ["plain", "weighted"])
@pytest.mark.parametrize(("chunk", "batch"), [(1, 512), (3, 2), (4, 512)])
def test_means_against_single_sample_jacobians(average: str, chunk: int, batch: int) -> None:
    model, (x, y) = net(), data()
    pairs, classes = by_hand(model, x, y, average)
    found = class_gradients(model, x, y, pairs=True, average=average, chunk=chunk, batch=batch)
    alone = class_gradients(model, x, y, average=average, batch=batch)
    torch.testing.assert_close(found.pair_vectors, pairs)
    torch.testing.assert_close(found.class_vectors, classes)
    torch.testing.assert_close(alone.class_vectors, classes)
    torch.testing.assert_close(alone.class_weights, found.class_weights)
    assert alone.pair_vectors is None
    assert found.counts.tolist() == [7, 5, 3, 2]


@pytest.mark.parametrize("average", ["plain", "weighted"])
def test_predictions_are_lower_bounds_of_the_gauss_newton_matrix(average: str) -> None:
    model, (x, y) = net(1), data()
    dense = gauss_newton(*jacobians(model, x))
    true = torch.linalg.eigvalsh(dense).flip(0)
    gradients = class_gradients(model, x, y, pairs=True, average=average)
    found = predicted_outliers(gradients)
    assert bool((found.class_values <= true[:4] * (1 + 1e-9) + 1e-14).all())
    assert bool((found.class_values <= found.pair_values[:4] + 1e-14).all())
    assert bool((found.pair_values <= true[:16] * (1 + 1e-9) + 1e-14).all())
    for vectors, weights in (
        (gradients.class_vectors, gradients.class_weights),
        (gradients.pair_vectors.flatten(0, 1), gradients.pair_weights.flatten()),
    ):
        part = torch.einsum("k,kp,kq->pq", weights, vectors, vectors)
        assert float(torch.linalg.eigvalsh(dense - part).min()) > -1e-12  # G is larger as a matrix, too
    assert found.trace_class + found.trace_cross + found.trace_own == pytest.approx(
        float(found.pair_values.sum())
    )


def test_single_samples_make_the_pair_part_exact() -> None:
    model, (x, y) = net(2), data((1, 1, 1, 1))
    found = predicted_outliers(class_gradients(model, x, y, pairs=True))
    true = torch.linalg.eigvalsh(gauss_newton(*jacobians(model, x))).flip(0)
    torch.testing.assert_close(found.pair_values, true[:16], atol=1e-13, rtol=1e-9)


def test_predicted_vectors_are_eigenvectors_of_the_class_part() -> None:
    model, (x, y) = net(3), data()
    gradients = class_gradients(model, x, y)
    found = predicted_outliers(gradients)
    part = torch.einsum(
        "k,kp,kq->pq", gradients.class_weights, gradients.class_vectors, gradients.class_vectors
    )
    torch.testing.assert_close(found.class_vectors @ part, found.class_values[:, None] * found.class_vectors)


def collapsed_net(classes: int, p: float, radius: float, common: float) -> tuple[nn.Module, Tensor, Tensor]:
    head = collapsed_head(classes, p, radius, common)
    model = nn.Linear(classes, classes, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.copy_(head.weight)
    return model, head.means.repeat(2, 1), torch.arange(classes).repeat(2)


def test_gram_bounds_of_theorem_t3_and_exact_pairs_at_collapse() -> None:
    found = predicted_outliers(class_gradients(*collapsed_net(10, 0.9, 2.0, 3.0), pairs=True))
    expected = torch.tensor([0.1255556] * 9 + [0.04], dtype=torch.float64)
    torch.testing.assert_close(found.class_values, expected, atol=5e-8, rtol=0)
    spikes = head_spikes(10, 0.9, 2.0, 3.0).eigenvalues(100)
    torch.testing.assert_close(found.pair_values, spikes, atol=1e-13, rtol=1e-9)


@pytest.mark.parametrize("common", [0.0, 0.8])
def test_collapsed_bounds_have_the_closed_form(common: float) -> None:
    classes, p, r = 5, 0.8, 1.5
    q = (1 - p) / (classes - 1)
    found = predicted_outliers(class_gradients(*collapsed_net(classes, p, r, common)))
    shared = q * p**2 * classes / (classes - 1)
    often = shared * (common**2 + r**2 * (classes - 2) / (classes - 1))
    expected = sorted([often] * (classes - 1) + [shared * r**2], reverse=True)
    assert found.class_values.tolist() == pytest.approx(expected)


def test_an_absent_class_has_weight_zero_and_changes_nothing() -> None:
    model, (x, y) = net(), data((6, 0, 3, 2))
    found = class_gradients(model, x, y, pairs=True)
    assert float(found.class_weights[1]) == float(found.pair_weights[1].sum()) == 0
    assert not found.class_vectors[1].any()
    assert np.isfinite(predicted_outliers(found).pair_values.numpy()).all()


def test_frozen_and_unused_parameters() -> None:
    model, (x, y) = net(), data()
    model[0].requires_grad_(False)
    model.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
    model.forward = lambda images: model[2](torch.tanh(model[0](images)))
    found = class_gradients(model, x, y)
    assert found.class_vectors.shape == (4, 24 + 3)
    by_name = dict(model.named_parameters())
    assert next(iter(by_name)) == "unused"  # named_parameters() lists a module's own first
    assert not found.class_vectors[:, :3].any()
    reference = class_gradients(net(), x, y).class_vectors[:, 20:]
    torch.testing.assert_close(found.class_vectors[:, 3:], reference)


def test_a_name_pattern_selects_parameters() -> None:
    model, (x, y) = net(), data()
    whole = class_gradients(model, x, y, pairs=True)
    head = class_gradients(model, x, y, pairs=True, params="2.*")
    torch.testing.assert_close(head.pair_vectors, whole.pair_vectors[:, :, 20:])
    torch.testing.assert_close(
        class_loss_gradients(model, x, y, params="0.*"), class_loss_gradients(model, x, y)[:, :20]
    )


def test_class_loss_gradients_against_autograd_and_their_sum() -> None:
    model, (x, y) = net(), data()
    found = class_loss_gradients(model, x, y, batch=2)
    for c in range(CLASSES):
        loss = nn.functional.cross_entropy(model(x[y == c]), y[y == c])
        expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])
        torch.testing.assert_close(found[c], expected)


def test_overlap_against_scipy() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((3, 30)), rng.standard_normal((5, 30))
    b[0] = a[0] + 1e-7 * rng.standard_normal(30)  # an angle that a cosine alone would lose
    found = subspace_overlap(torch.from_numpy(a), torch.from_numpy(b))
    expected = np.degrees(np.sort(subspace_angles(a.T, b.T)))
    np.testing.assert_allclose(found.angles, expected, atol=1e-7)
    assert float(found.angles[0]) == pytest.approx(
        5.48501397953e-6, rel=1e-7
    )  # in 50 digits; SciPy loses two
    projector = b.T @ np.linalg.pinv(b.T)
    lengths = np.linalg.norm(a @ projector, axis=1) ** 2 / np.linalg.norm(a, axis=1) ** 2
    np.testing.assert_allclose(found.squared, lengths, rtol=1e-9)
    assert (found.rank, found.chance) == (5, 5 / 30)
    assert found.mean == pytest.approx(lengths.mean())


def test_dependent_directions_count_once() -> None:
    rows = torch.randn(3, 20, generator=torch.Generator().manual_seed(0)).double()
    both = torch.cat([rows, rows.sum(0, keepdim=True)])
    assert orthonormal_rows(both).shape == (3, 20)
    found = subspace_overlap(rows, both)
    assert found.rank == 3
    torch.testing.assert_close(found.squared, torch.ones(3).double())
    assert float(found.angles.max()) < 1e-10


def test_spikes_of_a_collapsed_head_lie_in_the_class_and_shift_directions() -> None:
    head, spikes = collapsed_head(6, 0.9, 1.0, 1.2), head_spikes(6, 0.9, 1.0, 1.2)
    _, vectors = torch.linalg.eigh(head_hessian(head.means, head.probabilities))
    top = vectors.flip(1)[:, :11].T  # 2C - 1 solver's eigenvectors
    known = spikes.directions(head.means)
    closed = torch.cat([known["temperature"], known["upper"], known["lower"]])
    assert float(subspace_overlap(top, closed).angles.max()) < 1e-5
    gradients = class_gradients(*collapsed_net(6, 0.9, 1.0, 1.2)).class_vectors
    assert subspace_overlap(top, gradients).rank == 6
    assert float(subspace_overlap(gradients, closed).squared.min()) == pytest.approx(1)


def test_gap_rule() -> None:
    for common, verdict, position in ((0.0, "C", 10), (2.0, "2C-1", 19), (4.0, "C-1", 9)):
        values = head_spikes(10, 0.99, 2.0, common).eigenvalues()[:40]
        gap = largest_gap(values, 10)
        assert (gap.verdict, gap.position) == (verdict, position)
    assert largest_gap([100.0, 1.0, 0.9, 0.8, 0.7, 0.6], 3).verdict == "none"
    assert largest_gap([9.0, 8.0, 1.0, 0.9, 0.8, 0.7], 3).verdict == "C-1"
    assert largest_gap([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 0.1], 3, limit=5).ratio == pytest.approx(5 / 4)
    assert len(largest_gap(torch.linspace(40, 1, 40), 10).ratios) == 22


def test_refusals() -> None:
    model, (x, y) = net(), data()
    with pytest.raises(ValueError, match="`average` must be one of plain, weighted"):
        class_gradients(model, x, y, average="plane")
    with pytest.raises(ValueError, match=r"0\.\.3; found 4"):
        class_gradients(model, x, torch.where(y == 0, 4, y))
    with pytest.raises(ValueError, match="No parameter of `model` requires gradients"):
        class_gradients(model.requires_grad_(False), x, y)
    with pytest.raises(ValueError, match="at least 2C = 20"):
        largest_gap(torch.ones(19), 10)
    with pytest.raises(ValueError, match="sorted, largest first"):
        largest_gap([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3)
    with pytest.raises(ValueError, match="positive"):
        largest_gap([3.0, 2.0, 1.0, 0.5, 0.1, -1.0], 3)
    with pytest.raises(ValueError, match="one length"):
        subspace_overlap(torch.ones(1, 3), torch.ones(1, 4))
    with pytest.raises(ValueError, match="must not be zero"):
        subspace_overlap(torch.ones(1, 3), torch.zeros(1, 3))
