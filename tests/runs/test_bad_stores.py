"""What the store's command says to bad arguments, odd names and links; interrupts and lost processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import small_config

from lt_lib.runs import Store, run
from lt_lib.runs.__main__ import main
from lt_lib.runs.files import sha256
from lt_lib.runs.listing import INDEX
from lt_lib.runs.many import _spawn
from lt_lib.runs.prune import leftovers, remove

ROOT = Path(__file__).resolve().parents[2]
posix = pytest.mark.skipif(os.name == "nt", reason="signals and closed pipes are POSIX's")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run(small_config(epochs=1), Store(tmp_path_factory.mktemp("store")))


@pytest.fixture
def store(finished, tmp_path):
    shutil.copytree(finished.folder.parent, tmp_path / "store")
    return Store(tmp_path / "store")


def said(capsys, store, *words):
    return main([*words, "--store", str(store.root)]), capsys.readouterr().out


def rewrite(store, key, change):
    """Change a run's configuration, its checksum with it."""
    path = store.root / key / "config.json"
    stored = json.loads(path.read_text())
    change(stored["config"])
    path.write_text(json.dumps(stored))
    sums = store.root / key / "checksums.json"
    sums.write_text(json.dumps(json.loads(sums.read_text()) | {"config.json": sha256(path)}))
    (store.root / INDEX).unlink()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["verify", "--retrain", "-3"], "must be a whole number from 0; found '-3'"),
        (["verify", "--retrain", "x"], "must be a whole number from 0; found 'x'"),
        (["prune", "--older", "-3"], "unrecognized arguments: --older -3"),
        (["empty"], "invalid choice: 'empty'"),
        ([], "required"),
    ],
)
def test_arguments_that_are_none_are_refused(words, sentence, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("command", [["list"], ["verify"], ["prune", "--yes"], ["show", "0"]])
def test_a_mistyped_store_is_said_and_not_made(command, tmp_path, capsys):
    status, text = said(capsys, Store(tmp_path / "nowhere"), *command)
    assert (status, text) == (1, f"There is no run store at {tmp_path / 'nowhere'}. Check `--store`.\n")
    assert not (tmp_path / "nowhere").exists()


def test_a_store_that_cannot_be_used_is_a_sentence(store, capsys, monkeypatch):
    def refused(root):
        raise PermissionError(13, "Permission denied", str(root))

    monkeypatch.setattr("lt_lib.runs.__main__.run_lines", refused)
    assert said(capsys, store, "list") == (1, f"{store.root} cannot be used (Permission denied).\n")


def test_a_run_is_one_line_whatever_its_names(finished, store, capsys):
    name = "npz:a\nb\x1b[2J<b>\u202e\udc80.npz"
    rewrite(store, finished.key, lambda config: config["data"].update(name=name))
    status, text = said(capsys, store, "list")
    assert status == 0
    assert text.startswith(rf"{finished.key}: data npz:a\nb\x1b[2J<b>\u202e\udc80.npz, imbalance")
    assert text.count("\n") == 1


def test_settings_of_another_version_are_shown_and_not_repeated(finished, store, capsys):
    rewrite(store, finished.key, lambda config: config.update(colour="green"))
    status, text = said(capsys, store, "show", finished.key[:6])
    assert status == 0
    assert json.loads(text)[0]["colour"] == "green"
    status, text = said(capsys, store, "verify", finished.key)
    assert status == 0
    assert f"{finished.key}: cannot be repeated: `a field of RunConfig` must be one of" in text


def test_showing_a_damaged_run_fails(finished, store, capsys):
    (store.root / finished.key / "metrics.json").unlink()
    status, text = said(capsys, store, "show", finished.key)
    assert (status, text) == (1, f"{finished.key}: damaged (metrics.json is missing)\n")


@pytest.mark.parametrize("name", ["config.json", "weights.safetensors", "checksums.json"])
def test_a_folder_where_a_file_should_be_is_damage(finished, store, name):
    (store.root / finished.key / name).unlink()
    (store.root / finished.key / name).mkdir()
    assert name in store.damage(finished.key)
    assert store.get(finished.key) is None
    store.make_room(finished.key)
    assert store.keys() == []


@pytest.mark.parametrize("what", ["file", "link"])
def test_what_stands_where_the_run_should_be_is_set_aside_before_training(finished, store, what):
    place = store.root / finished.key
    shutil.rmtree(place)
    place.write_text("no folder") if what == "file" else place.symlink_to("nowhere")
    store.make_room(finished.key)
    assert not os.path.lexists(place)
    (aside,) = (store.root / ".quarantine").iterdir()
    assert aside.is_symlink() if what == "link" else aside.read_text() == "no folder"


@posix
def test_links_go_and_what_they_lead_to_stays(store, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.txt").write_text("years of work")
    links = [
        store.root / ".quarantine" / "folder.0",
        store.root / ".quarantine" / "nowhere.0",
        store.root / ".draft" / f"{'a' * 32}.1",
    ]
    for link, target in zip(links, (outside, tmp_path / "nowhere", outside), strict=True):
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(target)
    gone = remove(store, leftovers(store))
    assert sorted(leftover.path for leftover in gone) == sorted(links)
    assert all(leftover.size < 1000 for leftover in gone)
    assert not any(link.is_symlink() for link in links)
    assert (outside / "thesis.txt").read_text() == "years of work"


@posix
def test_a_reader_that_stops_reading_ends_the_list_in_silence(store):
    listing = subprocess.Popen(
        [sys.executable, "-m", "lt_lib.runs", "list", "--store", str(store.root)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    listing.stdout.close()
    assert listing.stderr.read() == ""
    assert listing.wait() == 0
    listing.stderr.close()


@posix
def test_an_interrupt_of_the_terminal_is_for_the_process_that_started_the_others():
    process = _spawn(1, "json.tool")
    process.send_signal(signal.SIGINT)
    assert json.loads(process.communicate("[1, 2]", timeout=60)[0]) == [1, 2]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


WORKER = """
import sys, time, types
sys.modules["lt_lib.runs.single"] = types.SimpleNamespace(answer=None)  # spares the import of torch
from lt_lib.runs.worker import lines_until_closed
for line in lines_until_closed(sys.stdin):
    print("at work", flush=True)
    time.sleep(600)
"""


def test_a_worker_ends_at_work_when_whoever_asked_is_gone():
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.stdin.write("a run\n")
    process.stdin.flush()
    assert process.stdout.readline() == "at work\n"
    process.communicate(timeout=60)  # closes its stdin
    assert process.returncode == 0
