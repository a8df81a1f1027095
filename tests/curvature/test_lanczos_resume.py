"""Eigenpairs of runs that were interrupted: the same bits from any state, the last one too."""

import numpy as np
import pytest
import torch
from small_curvature import with_spectrum

from lt_lib.curvature import lanczos


@pytest.mark.parametrize("stop", [1, 7, 15, 20, None])
def test_an_interrupted_run_goes_on_bit_for_bit(stop):
    operator = with_spectrum([5.0, 5.0, 4.0, *np.linspace(-1, 1.5, 150)], torch.float32)
    arguments = {"k": 3, "multiplicities": True, "max_memory": 14 * 153 * 4}
    states, seen = [], []

    def keep(progress):
        seen.append(progress.products)
        if stop in (progress.products, None):
            states.append(progress.state())

    whole = lanczos(operator, callback=keep, **arguments)
    assert seen == list(range(1, whole.matvecs + 1))
    resumed = lanczos(operator, resume=states[-1], **arguments)  # None: of the last product
    assert resumed.matvecs == whole.matvecs
    assert torch.equal(resumed.vectors, whole.vectors)
    assert (resumed.complete, resumed.miss_probability) == (whole.complete, whole.miss_probability)


def test_a_run_that_ended_for_want_of_products_goes_on_with_more():
    operator = with_spectrum([*np.geomspace(9, 3, 9), *np.linspace(-0.5, 1.5, 200)])
    states = []
    with pytest.warns(UserWarning, match="converge"):
        short = lanczos(operator, 4, max_products=6, callback=lambda p: states.append(p.state()))
    assert short.matvecs == 6
    with pytest.warns(UserWarning, match="converge"):
        assert torch.equal(lanczos(operator, 4, max_products=6, resume=states[-1]).vectors, short.vectors)
    whole, longer = lanczos(operator, 4), lanczos(operator, 4, resume=states[-1])
    assert longer.matvecs == whole.matvecs
    assert torch.equal(longer.vectors, whole.vectors)


def test_a_state_in_a_file_resumes_a_run_with_a_rounded_basis(tmp_path):
    operator = with_spectrum([*np.geomspace(9, 3, 9), *np.linspace(-0.5, 1.5, 200)], torch.float32)
    arguments = {"k": 9, "basis_dtype": torch.bfloat16, "max_memory": 18 * 209 * 2}

    def save(progress):
        if progress.products == 20:  # after a restart
            torch.save(progress.state(copy=False), tmp_path / "state.pt")

    whole = lanczos(operator, callback=save, **arguments)
    state = torch.load(tmp_path / "state.pt", mmap=True, weights_only=True)
    with pytest.raises(ValueError, match=r"holds a basis in torch\.bfloat16.*keeps torch\.float32"):
        lanczos(operator, 9, resume=state)
    assert torch.equal(lanczos(operator, resume=state, **arguments).vectors, whole.vectors)


def test_a_state_of_another_number_of_pairs_says_which():
    operator, states = with_spectrum(np.linspace(0, 10, 60)), []
    lanczos(operator, 3, callback=lambda p: states.append(p.state()))
    with pytest.raises(ValueError, match=r"for `k` = 4 .*; found `k` = 3"):
        lanczos(operator, 4, resume=states[4])
