"""Kill -9 at random moments of training, second stages, writing, eigensolver and surgery; and a full disk."""

import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FEW = {"train": 2, "edit": 1, "write": 2, "eigenpairs": 1, "surgery": 1}
MANY = {"train": 70, "edit": 30, "write": 50, "eigenpairs": 20, "surgery": 30}

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="fork and SIGKILL are POSIX")


def torment(kills, seed, folder):
    command = [sys.executable, str(HERE / "kills.py"), json.dumps(kills), str(seed), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    wrong = {kind: outcome["wrong"] for kind, outcome in found.items() if outcome["wrong"]}
    assert not wrong, f"seed {seed}\n{done.stderr}"
    assert {kind: outcome["kills"] for kind, outcome in found.items()} == kills
    return found


@posix
def test_a_few_kills_lose_nothing(tmp_path):
    torment(FEW, secrets.randbelow(2**32), tmp_path)


@posix
@pytest.mark.slow
def test_many_kills_lose_nothing(tmp_path, capsys):
    found = torment(MANY, secrets.randbelow(2**32), tmp_path)
    with capsys.disabled():
        print(f"\n{sum(outcome['kills'] for outcome in found.values())} kills, nothing lost: {found}")


FULL = """
import json, sys
sys.path.insert(0, {here!r})
from kills import write
from small_runs import small_config
from lt_lib.runs import Store, StoreError, run
root = sys.argv[1]
try:
    write(__import__("pathlib").Path(root))
except StoreError as error:
    said = str(error)
store = Store(root)
whole = [store.damage(key) for key in store.keys()]
left = sorted(path.name for path in (store.root / ".draft").iterdir())
print(json.dumps([said, whole, left]))
"""


def can_mount():
    if shutil.which("unshare") is None:
        return False
    command = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_disk_that_is_really_full_is_one_sentence_and_older_runs_stay_whole(tmp_path):
    if not can_mount():
        pytest.skip("only root can mount a small file system")
    code, python = FULL.format(here=str(HERE)), sys.executable
    script = f'mount -t tmpfs -o size=7m none {tmp_path} && exec "$0" -c "$1" {tmp_path}'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, python, code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said, whole, left = json.loads(done.stdout)
    assert "is full (No space left on device)" in said
    assert whole == [None, None]  # the third, of two megabytes and as much of a checkpoint, found no room
    assert left == []
