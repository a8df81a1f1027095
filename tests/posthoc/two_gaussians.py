"""x | +- ~ N(+-1, 1) with priors 0.9 and 0.1: the toy of Theorem T5, where everything has a closed form."""

from statistics import NormalDist

import torch

COUNTS = [9000, 1000]  # class 0 is "+"
BALANCED = 0.8413447460685429  # Phi(1), both recalls of the best balanced rule
ARGMAX = (0.98207, 0.46072)  # recalls of the most likely class


def quantiles():
    """x and labels at the quantiles of the joint law: a sample without randomness."""
    xs, labels = [], []
    for label, (mean, count) in enumerate(zip((1.0, -1.0), COUNTS, strict=True)):
        law = NormalDist(mean)
        xs += [law.inv_cdf((i + 0.5) / count) for i in range(count)]
        labels += [label] * count
    return torch.tensor(xs, dtype=torch.float64), torch.tensor(labels)


def log_posteriors(x):
    densities = torch.stack([-((x - 1) ** 2) / 2, -((x + 1) ** 2) / 2], 1)
    return (densities + torch.tensor([0.9, 0.1], dtype=torch.float64).log()).log_softmax(1)


def recalls(logits_of):
    """Exact recalls of the rule argmax logits_of(x), one threshold: class 0 above it."""
    low, high = -30.0, 30.0
    for _ in range(80):
        middle = (low + high) / 2
        logits = logits_of(torch.tensor([middle], dtype=torch.float64))[0]
        low, high = (low, middle) if logits[0] > logits[1] else (middle, high)
    return 1 - NormalDist(1).cdf(low), NormalDist(-1).cdf(low)
