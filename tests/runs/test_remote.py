"""What a worker refuses before it trains."""

import pytest
import torch
from small_runs import small_config

from lt_lib.runs import Store
from lt_lib.runs.remote import unfit
from lt_lib.runs.sweep import _marked


@pytest.fixture
def request_for(tmp_path):
    """A request as a sweep makes it, while the sweep holds its mark in the store."""
    config = small_config()
    with _marked(Store(tmp_path / "store")) as mark:
        run = {"config": config.to_dict(), "store": str(tmp_path / "store"), "stems": []}
        yield {"run": run, "key": config.key(), "mark": str(mark), "torch": torch.__version__}


def test_a_worker_like_the_process_that_asks_is_fit(request_for):
    assert unfit(request_for, 1) is None
    assert unfit({**request_for, "torch": torch.__version__.split("+")[0] + "+cu999"}, 1) is None


def test_a_worker_of_several_threads_is_not(request_for):
    assert "trains 4 runs at once in one process" in unfit(request_for, 4)


def test_a_worker_that_sees_another_store_is_not(request_for, tmp_path):
    elsewhere = tmp_path / "elsewhere" / ".locks" / "sweep-1.lock"
    fault = unfit({**request_for, "mark": str(elsewhere)}, 1)
    assert fault.startswith(f"sees another run store at {tmp_path / 'elsewhere'} than the process that asks")
    assert not elsewhere.parent.exists()  # nothing is written there


def test_a_worker_that_does_not_see_the_locks_is_not(request_for, tmp_path):
    free = tmp_path / "store" / ".locks" / "sweep-free.lock"
    free.touch()
    assert "does not see the locks" in unfit({**request_for, "mark": str(free)}, 1)


def test_a_worker_of_another_torch_is_not(request_for):
    assert "the process that asks has 0.0.1" in unfit({**request_for, "torch": "0.0.1"}, 1)


def test_a_worker_of_other_code_or_data_is_not(request_for):
    assert "other code or other data" in unfit({**request_for, "key": "0" * 32}, 1)


def test_a_worker_that_lacks_the_data_is_not(request_for, tmp_path):
    config = request_for["run"]["config"]
    data = {**config["data"], "name": f"npz:{tmp_path / 'mine.npz'}"}
    request = {**request_for, "run": {**request_for["run"], "config": {**config, "data": data}}}
    assert "cannot read the data of the run" in unfit(request, 1)


def test_a_finished_sweep_leaves_no_mark(tmp_path):
    with _marked(Store(tmp_path)) as mark:
        assert mark.is_file()
    assert not mark.exists()
