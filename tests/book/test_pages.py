"""The prose pages: what they show runs, what they cite exists."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

import lt_lib
from lt_lib import profiles, runs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "book").glob("*.md")), *sorted((ROOT / "notebooks").glob("*.md"))]


def test_the_example_of_own_images_trains_and_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LT_RUNS", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "book" / "how-to-run.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(block, "how-to-run.md", "exec"), {})
    printed = capsys.readouterr().out
    # 120, 40, 12 images less 2 a class for calibration and a quarter for the test part
    assert "training counts [88, 28, 7]" in printed
    assert "ce 1.099" in printed  # log 3
    assert re.search(r"accuracy of each class \[[01]\.\d+, [01]\.\d+, [01]\.\d+\]", printed)
    assert not list(tmp_path.iterdir())


def test_the_profile_of_own_images_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "book" / "how-to-run.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    digits = yaml.safe_load((ROOT / "notebooks" / "profiles" / "digits.yaml").read_text(encoding="utf-8"))
    monkeypatch.setenv("LT_HOME", str(tmp_path))
    path = tmp_path / "notebooks" / "profiles" / "mine.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump(digits | yaml.safe_load(block)), encoding="utf-8")
    profiles.check_ready("mine")
    settings = profiles.load("mine", notebook="03_training_dynamics")
    labels = np.repeat([0, 1, 2], [40, 20, 8])
    np.savez(tmp_path / "mine.npz", train_images=np.zeros((68, 8, 8), np.uint8), train_labels=labels)
    # a quarter for the test part and 2 a class for calibration are set aside
    assert runs.config_from_profile(settings, "ce", 0).split().counts.tolist() == [28, 13, 4]


def test_every_citation_has_an_entry_and_no_entry_stands_twice() -> None:
    keys = re.findall(
        r"^@\w+\{([^,]+),", (ROOT / "book" / "references.bib").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(keys) == len(set(keys)) > 60
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        cited = {key for found in re.findall(r"\{cite(?::\w+)?\}`([^`]+)`", text) for key in found.split(",")}
        assert cited <= set(keys), page.name


def test_citation_file_names_this_version_and_both_papers() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == lt_lib.__version__
    assert [entry["identifiers"][0]["value"] for entry in citation["references"]] == [
        "arXiv:2605.10047",
        "arXiv:2605.07790",
    ]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_local_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    targets = [
        t.split("#")[0] for t in re.findall(r"(?:\]\(|src=\")([^)\"]+)", text) if not t.startswith("http")
    ]
    assert targets or name != "README.md"
    assert not [target for target in targets if not (ROOT / target).exists()]
