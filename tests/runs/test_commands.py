"""`python -m lt_lib.runs`: listing, pruning, verifying, and what newer formats and killed processes leave."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import bits, small_config
from stem_runs import RELEASED, configured, stem_files

from lt_lib import runs
from lt_lib.runs import FORMAT, RunConfig, Store, StoreError, run
from lt_lib.runs.__main__ import main
from lt_lib.runs.checkpoints import read_story
from lt_lib.runs.files import sha256
from lt_lib.runs.listing import INDEX, run_lines
from lt_lib.runs.lock import if_free, locked
from lt_lib.runs.prune import leftovers, remove


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two finished runs, one of which left a stem; tests work on copies."""
    store = Store(tmp_path_factory.mktemp("store"))
    return run(configured(RELEASED), store), run(small_config(1, epochs=1), store)


@pytest.fixture
def store(finished, tmp_path):
    shutil.copytree(finished[0].folder.parent, tmp_path / "store")
    return Store(tmp_path / "store")


def said(capsys, store, *words):
    status = main([*words, "--store", str(store.root)])
    return status, capsys.readouterr().out


def edit_config(store, key, **entries):
    """Change a run's config.json and make its checksum fit."""
    path = store.root / key / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    sums = store.root / key / "checksums.json"
    sums.write_text(json.dumps(json.loads(sums.read_text()) | {"config.json": sha256(path)}))


def test_a_list_is_the_same_with_and_without_its_index(finished, store, capsys):
    wanted = sorted((r.key, r.config.describe()) for r in finished)
    assert list(run_lines(store.root)) == wanted
    index = store.root / INDEX
    whole = index.read_bytes()
    index.write_bytes(whole[:-9])  # a torn record
    assert list(run_lines(store.root)) == wanted
    index.write_bytes(whole.replace(b"digits", b"letters"))  # the list trusts it
    assert all("letters" in line for _, line in run_lines(store.root))
    index.unlink()
    assert said(capsys, store, "list") == (0, "".join(f"{key}: {line}\n" for key, line in wanted))
    (store.root / wanted[0][0] / "config.json").write_text("{")
    assert next(run_lines(store.root)) == (wanted[0][0], "damaged")


def test_the_list_needs_no_torch(store):
    code = (
        "import sys; sys.modules['torch'] = None\nfrom lt_lib.runs.__main__ import main\nmain(sys.argv[1:])"
    )
    words = ["list", "--store", str(store.root)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert len(done.stdout.splitlines()) == 2


def test_a_newer_format_is_refused_not_read_judged_or_moved(finished, store, capsys):
    newer = finished[1]
    edit_config(store, newer.key, format=FORMAT + 1, config={"strange": 1})
    (store.root / newer.key / "more.bin").write_bytes(b"x")
    (store.root / INDEX).unlink()
    for ask in (store.get, store.damage, store.make_room, lambda key: run(newer.config, store)):
        with pytest.raises(StoreError, match=rf"written in format {FORMAT + 1} by a newer lt_lib.*Update"):
            ask(newer.key)
    assert f"{newer.key}: written in format {FORMAT + 1}" in said(capsys, store, "list")[1]
    status, text = said(capsys, store, "verify")
    assert (status, "1 of 2 runs" in text, "a newer lt_lib" in text) == (1, True, True)
    assert "a newer lt_lib" in said(capsys, store, "show", newer.key)[1]
    with pytest.raises(StoreError, match="newer"):
        leftovers(store, stale=True)
    assert (store.root / newer.key / "more.bin").is_file()


def leave_behind(store, key, stem):
    """What processes that were killed leave; returns the paths."""
    left = [
        store.root / ".draft" / f"{key}.123" / "history.csv",
        store.root / ".partial" / f".{key}.safetensors.77.tmp",
        store.root / ".partial" / f"{key}.safetensors",
        store.root / ".quarantine" / f"{key}.0" / "weights.safetensors",
        store.root / ".stems" / f".{stem}.3.safetensors.77.tmp",
        store.root / ".operations" / f"{stem}.draft" / "operation.json",
        store.root / ".operations" / f".{stem}.partial.77.tmp",
        store.root / ".stems" / f"{'0' * 32}.3.safetensors",
    ]
    for path in left:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    shutil.copy(stem_files(store)[-1], left[-1])  # named as by other code or another torch
    (store.root / ".partial" / "notes.txt").write_text("a user's own")
    (store.root / "Documents").mkdir()
    return left


def test_prune_shows_then_removes_what_nobody_needs(finished, store, capsys):
    one, two = finished
    (stem,) = [path for path in stem_files(store) if read_story(path)]
    left = leave_behind(store, one.key, stem.name[:32])
    status, text = said(capsys, store, "prune")
    assert status == 0
    assert "8 leftovers" in text
    assert "Nothing was removed" in text
    assert all(path.exists() for path in left)
    status, text = said(capsys, store, "prune", "--yes")
    assert (status, "8 leftovers" in text) == (0, True)
    assert not any(path.exists() for path in left)
    assert [r.key for r in map(store.get, store.keys())] == sorted([one.key, two.key])
    assert stem.is_file()  # another run can start from it
    assert (store.root / "Documents").is_dir()
    assert (store.root / ".partial" / "notes.txt").is_file()
    assert not list((store.root / ".locks").iterdir())
    assert len(list(run_lines(store.root))) == 2
    assert "1 leftovers" in said(capsys, store, "prune", "--yes", "--stems")[1]
    assert not stem.exists()
    assert not leftovers(store)


def test_prune_leaves_alone_what_a_process_is_using(finished, store):
    left = leave_behind(store, finished[0].key, stem_files(store)[0].name[:32])
    found = leftovers(store)
    with store.lock(finished[0].key):
        assert {x.path for x in found} - {x.path for x in leftovers(store)} == {
            left[0].parent, left[1], left[2]
        }  # fmt: skip
        gone = remove(store, found)
        assert left[0].exists()
        assert (store.root / ".locks" / f"{finished[0].key}.lock").exists()
    assert len(gone) == 5
    assert len(remove(store, leftovers(store))) == 3


def test_stale_runs_go_only_if_asked_and_whole(finished, store):
    old, kept = finished
    entries = old.config.to_dict()
    shutil.move(store.root / old.key, store.root / ("a" * 32))  # as if the code had been another
    edit_config(store, "a" * 32, config=entries)
    assert leftovers(store) == []
    (stale,) = leftovers(store, stale=True)
    assert (stale.path.name, stale.reason) == ("a" * 32, "nobody can ask for it")
    assert remove(store, [stale]) == [stale]
    assert store.keys() == [kept.key]
    assert not list((store.root / ".draft").iterdir())


def test_a_run_whose_data_are_not_there_is_not_stale(finished, store):
    entries = {**finished[1].config.to_dict(), "data": {"name": "npz:nowhere.npz", "test": 5}}
    edit_config(store, finished[1].key, config=RunConfig.from_dict(entries).to_dict())
    assert [x.path.name for x in leftovers(store, stale=True)] == []


def test_verify_trains_again_and_compares_every_byte(finished, store, capsys):
    status, text = said(capsys, store, "verify", finished[1].key[:6], "--retrain", "1")
    assert status == 0
    assert text.count("bit-identical (") == 2
    assert "2 of 2 runs trained once more are bit-identical on this machine" in text
    folder = store.root / finished[1].key
    metrics = folder / "metrics.json"
    metrics.write_text(metrics.read_text().replace("0.", "0.0", 1))
    sums = json.loads((folder / "checksums.json").read_text()) | {"metrics.json": sha256(metrics)}
    (folder / "checksums.json").write_text(json.dumps(sums))
    status, text = said(capsys, store, "verify", finished[1].key)
    assert (status, "differs in metrics.json: weights by 0.0e+00" in text) == (1, True)
    assert said(capsys, store, "verify", "zz")[0] == 1


def test_verify_says_what_cannot_be_repeated(finished, store, capsys):
    shutil.move(store.root / finished[1].key, store.root / ("b" * 32))
    status, text = said(capsys, store, "verify", "bbbb")
    assert (status, "its code or its data have changed since" in text) == (0, True)
    assert "0 of 1 runs trained once more" in text


def test_a_lock_file_may_be_deleted_by_its_holder(tmp_path):
    path = tmp_path / "x.lock"
    with locked(path):
        with if_free(path) as free:
            assert not free
        path.unlink()
        with if_free(path) as free:  # a new file: the old one locks nobody out
            assert free
    with if_free(path) as free:
        assert free


def test_a_file_that_may_not_be_read_is_no_damage(finished, store, monkeypatch):
    def refuse(path):
        raise PermissionError(13, os.strerror(13))

    monkeypatch.setattr("lt_lib.runs.store.sha256", refuse)
    with pytest.raises(StoreError, match=r"cannot be written .Permission denied"):
        store.get(finished[0].key)
    monkeypatch.undo()
    assert bits(store.get(finished[0].key)) == bits(finished[0])


def test_names_of_the_package_stay_functions_beside_modules_of_the_same_name():
    code = (
        "import lt_lib.runs.publish, lt_lib.runs.fingerprint\nfrom lt_lib import runs\n"
        "assert callable(runs.publish) and callable(runs.fingerprint) and 'run_many' in dir(runs)"
    )
    here = str(Path(__file__).resolve().parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, cwd=here)
    assert sorted(runs._HOME) == sorted(runs.__all__)
    assert all(callable(getattr(runs, name)) or name == "FORMAT" for name in runs.__all__)
