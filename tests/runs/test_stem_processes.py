import os
import signal
from pathlib import Path

import pytest
from small_runs import bits
from stem_runs import DEFERRED, EPOCHS, START, configured, trained, without

from lt_lib.runs import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="fork and SIGKILL are POSIX")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


CHILDREN = """
import os, signal, sys
sys.path.insert(0, {here!r})
from small_runs import die_at
from stem_runs import DEFERRED, START, configured, trained
from lt_lib.runs import Store

def die_in_step(step, root):
    die_at(step)
    trained(configured(DEFERRED["released"]), Store(os.path.join(root, str(step))))

def die_between(name, root):
    save = Store.save_checkpoint
    def saving(self, key, config, checkpoint):
        if checkpoint.state.epoch == START:  # the stem is there, the run's own checkpoint is not
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, key, config, checkpoint)
    Store.save_checkpoint = saving
    trained(configured(DEFERRED["released"]), Store(os.path.join(root, name)))

def die(point, root):
    (die_between if point == "between" else die_in_step)(point, root)

def ask(name, root):
    os._exit(len(trained(configured(DEFERRED[name]), Store(root))[1]))

children = []
for argument in {arguments!r}:
    children.append(os.fork())
    if children[-1] == 0:
        {action}(argument, {root!r})
print(*(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.fixture
def statuses(run_forked):
    """Exit statuses of forked children that do `action` at once, one for each argument."""

    def statuses(action, arguments, root):
        here = str(Path(__file__).parent)
        done = run_forked(CHILDREN.format(here=here, action=action, arguments=arguments, root=str(root)))
        assert done.returncode == 0, done.stderr
        return [int(status) for status in done.stdout.split()]

    return statuses


def test_processes_that_need_the_same_stem_train_it_once(store, statuses):
    names = ["class mean", "released", "released, stopped"]
    assert sorted(statuses("ask", names, store.root)) == [EPOCHS - START, EPOCHS - START, EPOCHS]


def test_a_run_killed_before_at_or_after_its_stem_ends_with_the_same_bits(tmp_path, statuses):
    config, sibling = configured(DEFERRED["released"]), configured(DEFERRED["class mean"])
    assert int(config.split().counts.sum()) == 70  # in batches of 32: three steps an epoch
    points = {5: 1, 10: 3, 14: 4, "between": 3}  # step -> epochs that need no training again
    assert statuses("die", list(points), tmp_path) == [-signal.SIGKILL] * 4
    for step, finished in points.items():
        store = Store(tmp_path / str(step))
        resumed, epochs = trained(config, store)
        assert epochs == list(range(finished + 1, EPOCHS + 1))
        assert bits(resumed) == without(config)
        found, epochs = trained(sibling, store)  # the stem was left before or after the kill
        assert epochs == [4, 5]
        assert bits(found) == without(sibling)
