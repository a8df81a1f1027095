import pytest
import torch
from two_gaussians import ARGMAX, BALANCED, log_posteriors, quantiles, recalls

from lt_lib.posthoc import fit_logit_bias
from lt_lib.posthoc.bias_path import bias_path, equal_recall_path


def test_the_path_runs_from_no_change_to_the_balanced_fit():
    x, labels = quantiles()
    logits = log_posteriors(x)
    found = bias_path(logits, labels, steps=300)
    assert found.steps == (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 300)
    assert found.shifts[0].tolist() == [0, 0]
    assert torch.allclose(found.shifts[-1], fit_logit_bias(logits, labels).shift, atol=1e-5)
    assert bool((found.losses.diff() <= 1e-15).all())
    assert bool((found.sigma.diff() < 0).any())
    first, last = (recalls(lambda x, i=i: found.scaling(i)(log_posteriors(x))) for i in (0, -1))
    assert first == pytest.approx(ARGMAX, abs=1e-4)
    assert last == pytest.approx((BALANCED, BALANCED), abs=2e-3)


def test_one_step_is_the_gradient_step_of_autograd():
    x, labels = quantiles()
    logits, shift = log_posteriors(x), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    losses = torch.nn.functional.cross_entropy(logits + shift, labels, reduction="none")
    ((losses[labels == 0].mean() + losses[labels == 1].mean()) / 2).backward()
    step = -2 * shift.grad
    assert torch.allclose(bias_path(logits, labels, 1).shifts[1], step - step.mean(), atol=1e-12)


def test_equal_recalls_are_reached_where_the_balanced_fit_misses_them():
    # logits that are sharper than the truth on one side: maximum likelihood no longer gives equal recalls
    x, labels = quantiles()
    logits = log_posteriors(x)
    logits = logits + torch.stack([torch.zeros_like(x), 1.5 * (x - x.mean()).clamp_min(0)], 1)
    found = equal_recall_path(logits, labels)
    best = found.least_sigma()
    assert found.sigma[1] > 0.01
    assert found.sigma[best] < 0.002
    assert float(found.balanced[best]) == pytest.approx(BALANCED, abs=0.003)  # one threshold in x: max-min
    assert found.worst[best] == pytest.approx(float(found.balanced[best]), abs=0.002)


@pytest.mark.parametrize("change", [{"steps": 0}, {"steps": 1.5}, {"rate": 0}, {"rate": 2}])
def test_settings_out_of_range_are_refused(change):
    x, labels = quantiles()
    with pytest.raises(ValueError, match=next(iter(change))):
        bias_path(log_posteriors(x), labels, **change)
