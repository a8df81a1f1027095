import numpy as np
import pytest
import torch

from lt_lib.posthoc import fit_logit_bias
from lt_lib.posthoc.cross_fit import cross_fitted, folds_of
from lt_lib.posthoc.last_layer import fit_last_layer


def features(n=90, dim=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 4 % 3  # class 0 is twice as large
    means = 1.5 * torch.eye(3, dim, dtype=torch.float64)
    return means[labels] + torch.randn(n, dim, generator=generator, dtype=torch.float64), labels


@pytest.mark.parametrize("balanced", [True, False])
def test_without_a_start_it_is_the_logistic_regression_of_scikit_learn(balanced):
    from sklearn.linear_model import LogisticRegression

    h, labels = features()
    found = fit_last_layer(h, labels, 3, ridge=0.02, balanced=balanced)
    rule = LogisticRegression(
        C=1 / (90 * 0.02), class_weight="balanced" if balanced else None, tol=1e-10, max_iter=5000
    ).fit(h.numpy(), labels.numpy())
    assert found.weight.numpy() == pytest.approx(rule.coef_, abs=1e-4)
    assert found.bias.numpy() == pytest.approx(rule.intercept_ - rule.intercept_.mean(), abs=1e-4)
    logits = h.float() @ torch.tensor(rule.coef_.T).float() + torch.tensor(rule.intercept_).float()
    assert torch.allclose(found.head()(h.float()).softmax(1), logits.softmax(1), atol=1e-4)


def test_a_strong_pull_keeps_the_trained_weights_and_fits_the_bias():
    h, labels = features()
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = fit_last_layer(h, labels, 3, ridge=1e6, start=start)
    assert torch.allclose(found.weight, start, atol=1e-5)
    assert torch.allclose(found.bias, fit_logit_bias(h @ start.T, labels).shift, atol=1e-4)
    assert torch.allclose(found(h), h @ found.weight.T + found.bias)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ridge": 0}, "ridge"),
        ({"features": torch.zeros(3, 4)}, "90 labels"),
        ({"start": torch.zeros(2, 4)}, "start"),
        ({"classes": 4}, "Class 3"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    h, labels = features()
    given = {"features": h, "labels": labels, "classes": 3, "ridge": 0.1}
    with pytest.raises(ValueError, match=words):
        fit_last_layer(**(given | change))


def test_folds_hold_each_class_alike():
    labels = torch.tensor([0] * 11 + [1] * 7 + [2] * 2)
    fold = folds_of(labels, 5, 3)
    for c in range(3):
        sizes = torch.bincount(fold[labels == c], minlength=5)
        assert int(sizes.max() - sizes.min()) <= 1
    assert torch.equal(fold, folds_of(labels, 5, 3))
    assert not torch.equal(fold, folds_of(labels, 5, 3, seed=1))


def test_each_image_is_changed_by_a_fit_without_it():
    h, labels = features()
    logits = h[:, :3]
    fold, found = folds_of(labels, 4, 3, seed=2), cross_fitted(fit_logit_bias, logits, labels, 4, seed=2)
    for f in range(4):
        shift = fit_logit_bias(logits[fold != f], labels[fold != f]).shift
        assert torch.allclose(found[fold == f], logits[fold == f] + shift, atol=1e-12)


def test_cross_fitting_does_not_believe_in_what_was_learnt_by_heart():
    generator = np.random.default_rng(0)
    logits, labels = torch.from_numpy(generator.normal(size=(200, 2))), torch.arange(200) % 2

    def by_heart(seen, truth):
        known = {tuple(row.tolist()): int(y) for row, y in zip(seen, truth, strict=True)}
        return lambda z: torch.eye(2)[[known.get(tuple(row.tolist()), 0) for row in z]]

    assert torch.equal(by_heart(logits, labels)(logits).argmax(1), labels)
    assert float((cross_fitted(by_heart, logits, labels).argmax(1) == labels).double().mean()) == 0.5


def test_a_class_of_one_image_cannot_be_cross_fitted():
    with pytest.raises(ValueError, match="2 images of each class"):
        folds_of([0, 0, 1], 2, 2)
