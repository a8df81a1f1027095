"""The benchmark of sensitivities judges methods by full evaluation."""

from argparse import Namespace

import pytest
import torch

from benchmarks import sensitivity
from lt_lib.nets import resnet
from lt_lib.surgery import Sensitivity


def test_table_of_a_small_network(monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = resnet(8, 2, 10).eval()
    x, y = torch.randn(150, 3, 8, 8, generator=random), torch.arange(150) % 10
    size = sum(p.numel() for p in net.parameters())
    q = torch.linalg.qr(torch.randn(size, 2, generator=random)).Q.T.contiguous()
    monkeypatch.setattr(sensitivity, "AMPLITUDES", (("length 2", 2.0, False),))
    options = Namespace(quick=True, skip_forward=False, net="resnet20", images=150)
    rows = sensitivity.measured(net, q, torch.ones(2), (x, y), options)
    exact, screened, forward, linear = rows
    assert exact[3] == 5
    assert exact[4] > 0
    assert exact[5:7] == [0, 0.0]
    assert screened[6] <= 1
    assert (forward[1], linear[3]) == ("forward", 5)
    text = sensitivity.report(rows, net, options, 0.1)
    assert text.count("| length 2 |") == 3


def test_wrong_flips_are_counted_in_images_and_standard_errors() -> None:
    counts, eps = torch.tensor([10.0, 20.0]), torch.tensor([0.5]).double()

    def made(matrix: list[float], errors: list[float]) -> Sensitivity:
        rows = torch.tensor([matrix]).double(), torch.tensor([errors]).double()
        none = torch.zeros(1, dtype=torch.bool)
        return Sensitivity(*rows, torch.zeros(1, 2, dtype=torch.int64), eps, counts, "exact", 0.0, none, 18.0)

    exact, other = made([0.3, 0.1], [0.2, 0.0]), made([0.1, 0.15], [0.2, 0.0])
    # two images of ten (one standard error), one of twenty (no error of its own: one image)
    images, worst = sensitivity.wrong(other, exact, counts.double())
    assert images == 3
    assert worst == pytest.approx(1)
