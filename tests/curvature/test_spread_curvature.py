"""Hessian and Gauss-Newton products of two gloo processes against those of one."""

import pytest
import safetensors.torch
import spread_cases
import torch
from safetensors import safe_open
from small_curvature import conv_net
from two_processes import run_two

from lt_lib.curvature import HessianOperator
from lt_lib.curvature.distributed import share_curvature


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spread")
    run_two(spread_cases.__file__, folder)
    files = [folder / f"{rank}.safetensors" for rank in range(2)]
    said = []
    for file in files:
        with safe_open(file, "pt") as content:
            said.append(content.metadata())
    return [safetensors.torch.load_file(file) for file in files], said


@pytest.mark.parametrize("name", spread_cases.KINDS)
def test_spread_images_have_the_products_and_pairs_of_one_process(two, name):
    (first, _), _ = two
    kind, loss, normaliser = spread_cases.KINDS[name]
    operator = kind(conv_net(), spread_cases.IMAGES, spread_cases.LABELS, loss, normaliser=normaliser)
    one = spread_cases.measured(operator, name)
    found = {key: first[f"{name}/{key}"] for key in one}
    for what in ("product", "gradient"):
        torch.testing.assert_close(found[what], one[what], rtol=1e-10, atol=1e-12)
    if "values" in one:
        torch.testing.assert_close(found["values"], one["values"], rtol=1e-10, atol=0)
        overlaps = (found["vectors"] * one["vectors"]).sum(1).abs()
        torch.testing.assert_close(overlaps, torch.ones_like(overlaps), rtol=0, atol=1e-10)
        assert float(found["residuals"].max()) < 1e-8


def test_both_processes_hold_the_same_bits(two):
    (first, second), _ = two
    assert len(first) == 2 * len(spread_cases.KINDS) + 2 * 3
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("what", "sentence"), [("mixes", "mixes the samples"), ("images", r"[2, 0]"), ("weights", "same weights")]
)
def test_both_processes_refuse_images_losses_and_weights_that_do_not_add_up(two, what, sentence):
    _, said = two
    assert all(sentence in texts[what] for texts in said)


def test_alone_it_is_the_operator():
    arguments = conv_net(), spread_cases.IMAGES, spread_cases.LABELS
    shared, plain = share_curvature(*arguments), HessianOperator(*arguments)
    v = spread_cases.normal(plain.size)
    assert torch.equal(shared.matvec(v), plain.matvec(v))
