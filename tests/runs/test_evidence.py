"""The table of runs that can be committed: complete, and read back as it was written."""

import csv

import pytest
from small_runs import small_config

from lt_lib.runs import RunConfig, Store, publish_runs, read_runs, run


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("LT_HOME", str(tmp_path))
    monkeypatch.delenv("LT_PROFILE", raising=False)
    return tmp_path


def test_a_row_holds_configuration_and_results(home):
    found = run(small_config(epochs=2), Store(home / "runs"))
    path = publish_runs("05_x", [found, found])
    assert path == home / "build" / "digits" / "published" / "05_x.runs.csv"
    first, second = read_runs(path)
    assert first == second
    assert first["key"] == found.key
    assert first["loss"] == {"name": "ce"}
    assert first["training"]["epochs"] == 2
    assert first["seed"] == 0
    assert first["counts"] == found.config.split().counts.tolist()
    assert first["test_balanced"] == found.metrics["test"]["balanced"]
    assert first["test_per_class"] == found.metrics["test"]["per_class"]
    assert first["nc2"] == found.metrics["collapse"]["nc2"]
    assert first["seconds"] == found.made["seconds"]
    assert first["commit"] == ""  # a folder without a repository


def test_runs_with_and_without_a_later_edit_share_a_table(home):
    plain, store = small_config(epochs=1), Store(home / "runs")
    edited = RunConfig(**{**plain.to_dict(), "after": "logit_adjustment"})
    first, second = read_runs(publish_runs("05_x", [run(plain, store), run(edited, store)]))
    assert first["after"] is None
    assert second["after"] == {"name": "logit_adjustment", "tau": 1.0}


def test_texts_that_look_like_numbers_stay_texts(tmp_path):
    path = tmp_path / "x.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["commit", "seed", "imbalance"], ["123456789012", "3", ""]])
    assert read_runs(path) == [{"commit": "123456789012", "seed": 3, "imbalance": None}]


def test_no_run_is_refused(home):
    with pytest.raises(ValueError, match="`runs` must hold at least one run"):
        publish_runs("05_x", [])


def test_only_runs_are_published(home):
    for runs, found in (([1], r"int \(1\)"), (3, r"int \(3\)"), (["0123abcd"], "str")):
        with pytest.raises(ValueError, match=rf"`runs` must hold runs, .*; found {found}"):
            publish_runs("05_x", runs)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"Line 1 of `.*x\.csv` must name each column once; found none"),
        (b"\xff\xfe", r"`.*x\.csv` must be a table in UTF-8"),
        (b"seed,seed\n1,2\n", "Line 1 of .*; found `seed` twice"),
        (b"seed,data\n1,a\n2\n", "Line 3 of .*each of the 2 columns, the last `data`; found 1"),
        (b"seed,data\n1,a,b\n", "Line 2 of .*; found 3"),
        (b"data,seed\na,1\nb,abc\n", "Line 3 of .*, column `seed`, must be a number.*found `abc`"),
        (b'data,loss\na,"{""name"": ""ce"n', "must be a table|Line 2 of"),
    ],
)
def test_a_damaged_table_is_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=sentence):
        read_runs(path)


def test_a_byte_order_mark_and_numbers_of_many_classes_are_read(tmp_path):
    path, limit, many = tmp_path / "x.csv", csv.field_size_limit(), list(range(40_000))
    path.write_bytes(b'\xef\xbb\xbfseed,counts\r\n1,"' + str(many).encode() + b'"\r\n')
    assert read_runs(path) == [{"seed": 1, "counts": many}]
    assert csv.field_size_limit() == limit
