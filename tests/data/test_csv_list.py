"""A reader's own list of images: what its columns mean, and what is refused by its line."""

import pytest
from trees import picture

from lt_lib.data import load, split


def listed(folder, text, pictures=6):
    for i in range(pictures):
        picture(folder / "images" / f"{i}.png", i)
    (folder / "list.csv").write_text(text, encoding="utf-8")
    return f"csv:{folder / 'list.csv'}"


def rows(labels, header="path,label"):
    return "\n".join([header, *(f"images/{i}.png,{label}" for i, label in enumerate(labels))])


def test_a_list_of_paths_and_labels_is_a_source(tmp_path):
    source = load(listed(tmp_path, rows(["猫", "dog", "dog", "Ωmega", "dog", "猫"])), size=8)
    assert source.class_names == ("dog", "Ωmega", "猫")
    assert source.counts.tolist() == [3, 1, 2]
    assert source.train.labels.tolist() == [2, 0, 0, 1, 0, 2]  # in the order of the list
    assert source.train.images.shape == (6, 3, 8, 8)
    assert (source.name, source.test, source.calibration) == ("csv:list.csv", None, None)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (["10", "2", "2", "-1", "10", "2"], ("-1", "2", "10")),
        (["3.0", "3", "1e1", "3.00", "10", "-2.0"], ("-2", "3", "10")),  # a float column of a data frame
        (
            ["class 10", "class 2", "Class 1", "class 2", "class 2", "3"],
            ("3", "Class 1", "class 2", "class 10"),
        ),
        (["1.5", "b", "b", "b", "b", "b"], ("1.5", "b")),
        (["010", "1", "01", "010", "2", "01"], ("01", "1", "2", "010")),  # codes: no zero is lost
    ],
)
def test_labels_may_be_names_or_numbers(tmp_path, labels, names):
    assert load(listed(tmp_path, rows(labels)), size=4).class_names == names


def test_parts_come_from_the_column_split(tmp_path):
    text = "path,label,split\n" + "\n".join(
        f"images/{i}.png,{'ab'[i % 2]},{part}"
        for i, part in enumerate(["train", "Train", "test", "training", "val", "validation"])
    )
    source = load(listed(tmp_path, text), size=4)
    assert source.train.labels.tolist() == [0, 1, 1]
    assert (source.test.labels.tolist(), source.calibration.labels.tolist()) == ([0], [0, 1])
    parts = split(source)
    assert parts.calibration is source.calibration
    assert parts.test is source.test
    assert "calibration: 2 images 3 x 4 x 4" in repr(source)
    with pytest.raises(
        ValueError, match=r"`calibration` must be 0 for `csv:list\.csv`, which has .* of its own"
    ):
        split(source, calibration=1)


def test_groups_come_from_the_column_group(tmp_path):
    text = "path,label,group\n" + "\n".join(
        f"images/{i}.png,{'ab'[i // 3]},{group}" for i, group in enumerate(["x", "x", "", "y", "", "y"])
    )
    source = load(listed(tmp_path, text), size=4)
    assert source.train.groups.tolist() == [0, 0, 1, 2, 3, 2]


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_delimiters_marks_quotes_slashes_and_other_columns(tmp_path, delimiter):
    picture(tmp_path / "a, b" / "0.png")
    lines = [
        ["age", "path", "label"],
        ["3", '"a, b\\0.png"', "x"],
        ["4", "./images//1.png ", " y"],
        [],
        [" ", "", ""],
    ]
    text = "\ufeff" + "\r\n".join(delimiter.join(cells) for cells in lines)
    source = load(listed(tmp_path, text), size=4, memory_limit=0)
    assert source.train.images.names == ("a, b/0.png", "images/1.png")
    assert source.class_names == ("x", "y")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", r"must be a table with the columns path, label; `path` is missing \(found nothing\)"),
        ("path,label\n", "must list at least one image; found a header alone"),
        (
            "path,class\nimages/0.png,a",
            r"`label` is missing \(found path, class\). Rename the column `class` to",
        ),
        ("filename,label\nimages/0.png,a", "Rename the column `filename` to `path`"),
        ("x,y z\n1,2", "`path` is missing .* Write a header `path,label`"),
        ("path,label,label\nimages/0.png,a,b", "must have one column `label`; found two"),
        (rows(["a", "b,c"]), "Line 3 of .* must have 2 cells, as the header has; found 3"),
        (
            "path,label\n../x.png,a",
            r"Line 2 of .* must name a file by its path within .*; found `\.\./x.png`",
        ),
        ("path,label\n/etc/passwd,a", "Line 2 of .* found `/etc/passwd`. Write it relative to that folder"),
        ("path,label\nC:\\x.png,a", "without a drive such as `C:`"),
        (rows(["a"]) + "\n./images/0.png,a", "Line 3 of .* found `images/0.png` of line 2 again. Keep one"),
        (rows(["a"]) + "\nimages/0.png,b", "again with another label, `b` after `a`. Keep one"),
        (rows(["a", ""]), "Line 3 of .* must give a label; found ``. Write one, or leave out the row"),
        (rows(["1", "NaN"]), "Line 3 of .* must give a label; found `NaN`"),
        (rows(["1", "0.37"]), "Line 3 of .* found the number `0.37`, which is not whole. Round the labels"),
        (
            "path,label,split\nimages/0.png,a,trian",
            "`split` in line 2 of .*found `trian`. Did you mean `train`",
        ),
        ('path,label\nimages/0.png,"a\nimages/1.png,b', r"cannot be read \(unexpected end of data\)"),
        ('path,label\nimages/0.png,"a\nimages/1.png,"', "must hold one line of text as `label`; found"),
        ("path,label\nimages/0.png,a\0", r"Line 2 of .* as `label`; found 'a\\x00'"),
        ("path,label,split\nimages/0.png,a,test", "must list training images; found none, only test"),
        (
            "path,label,split\nimages/0.png,a,train\nimages/1.png,b,test",
            "Line 3 of .* found `b`, which occurs only in the test part. Add training images",
        ),
    ],
)
def test_a_malformed_list_is_refused_by_its_line(tmp_path, text, sentence):
    with pytest.raises(ValueError, match=sentence):
        load(listed(tmp_path, text, pictures=2))


def test_absent_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"`images/2.png`; it is absent \(1 of 3 are\)"):
        load(listed(tmp_path, rows("abc"), pictures=2), damaged="leave out")
    with pytest.raises(FileNotFoundError, match=r"`csv:no.csv` must name an existing file; found none"):
        load("csv:no.csv", root=tmp_path)


def test_a_list_that_is_no_text_is_refused(tmp_path):
    name = listed(tmp_path, "")
    (tmp_path / "list.csv").write_bytes(b"path,label\nimages/0.png,caf\xe9\n")
    with pytest.raises(ValueError, match=r"must be a text in UTF-8; found the byte 0xe9 .* Save it as UTF-8"):
        load(name)
    (tmp_path / "list.csv").write_text("path,label\n" + "x" * 200_000 + ",a\n")
    with pytest.raises(ValueError, match=r"Line 2 of .* cannot be read \(field larger than field limit"):
        load(name)
