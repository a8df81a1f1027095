"""A notebook's key holds what its page can read of the profiles, and no more."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from pipeline.convert import code_sources, convert
from pipeline.layout import ROOT
from pipeline.settings import settings_read

PAGES = [path.stem for path in sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.md"))]
Read = Callable[[], dict[str, str]]
READERS = ("04_what_it_optimises", "05_methods_compared", "06_ablation", "13_complementarity")
CODE = {page: code_sources(convert(ROOT / "notebooks" / f"{page}.md")) for page in READERS}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """A copy of `digits`, beside copies of the other profiles."""
    for path in (ROOT / "notebooks" / "profiles").glob("*.yaml"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path / "digits.yaml"


@pytest.fixture
def read(profile: Path) -> Read:
    """What each of some pages reads now."""
    return lambda: {page: settings_read(profile, page, CODE[page], PAGES) for page in READERS}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {page for page in before if before[page] != after[page]}


def edit(path: Path, *names: str, value: object = 1) -> None:
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))
    holder = entries
    for name in names[:-1]:
        holder = holder[name]
    holder[names[-1]] = value
    path.write_text(yaml.safe_dump(entries), encoding="utf-8")


def test_a_setting_of_a_page_reaches_it_and_those_that_read_it(profile: Path, read: Read) -> None:
    before = read()
    edit(profile, "notebooks", "13_complementarity", "seeds")
    assert changed(before, read()) == {"13_complementarity"}
    before = read()
    edit(profile, "notebooks", "04_what_it_optimises", "many_seeds")
    assert changed(before, read()) == {"04_what_it_optimises", "06_ablation"}


def test_a_common_setting_reaches_all_pages(profile: Path, read: Read) -> None:
    before = read()
    edit(profile, "training", "lr", value=0.2)
    assert changed(before, read()) == set(READERS)


def test_comments_order_and_spelling_reach_none(profile: Path, read: Read) -> None:
    before = read()
    entries = yaml.safe_load(profile.read_text(encoding="utf-8"))
    text = yaml.safe_dump(dict(reversed(entries.items())), default_flow_style=True)
    profile.write_text(f"# rewritten\n{text}# its end\n", encoding="utf-8")
    assert changed(before, read()) == set()


def test_a_profile_that_a_page_names_counts_for_it_alone(profile: Path, read: Read) -> None:
    before = read()
    edit(profile.with_name("fashion.yaml"), "largest")
    assert changed(before, read()) == {"05_methods_compared"}
    before = read()
    edit(profile.with_name("paper.yaml"), "largest")
    assert changed(before, read()) == set()


@pytest.mark.parametrize(
    "mistake",
    ["largest: 100\n", "notebooks: [", "more: 1\n", "  99_none: {seeds: 2}\n", "\ud800"],
    ids=["twice", "no YAML", "unknown name", "unknown page", "no UTF-8"],
)
def test_a_mistake_makes_every_key_new_so_that_the_library_is_asked(
    profile: Path, read: Read, mistake: str
) -> None:
    before = read()
    text = profile.read_text(encoding="utf-8") + "\n" + mistake
    profile.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert changed(before, read()) == set(READERS)
