"""The status page, and names that come from data."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from lt_lib.runs.machine import machine
from pipeline import status
from pipeline.layout import ROOT, Layout
from texts import label, plain

EVIL = '<img src=x onerror="alert(1)"> | `a` $x$ [b](http://c) {{d}} {glue:text}`e` &lt; *f*\nSecond'
MARKDOWN = MarkdownIt("gfm-like", {"html": True, "linkify": False})


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(markdown: str) -> _Text:
    page = _Text()
    page.feed(MARKDOWN.render(markdown))
    return page


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30) | st.just(EVIL))
def test_a_name_in_a_table_is_shown_letter_by_letter(name: str) -> None:
    page = shown(f"| a | b |\n| --- | --- |\n| {plain(name)} | next |\n")
    assert page.tags == {"table", "thead", "tbody", "tr", "th", "td"}
    cells = page.text.split("\n")
    squeezed = re.sub(r"[\x00-\x20\x7f-\xa0\u2028\u2029]+", " ", name).strip()
    assert [cell.strip() for cell in cells if cell.strip()][2:] == [
        cell for cell in (squeezed.strip(), "next") if cell
    ]


def test_a_name_in_a_figure_is_no_mathematics() -> None:
    from matplotlib import mathtext  # noqa: F401, as the figures use it
    from matplotlib.cbook import is_math_text

    assert is_math_text("costs $5 to $9") is True
    assert label("costs $5\nto $9") == r"costs \$5 to \$9"
    assert is_math_text(label("costs $5 to $9")) != True  # noqa: E712, a text comes back


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    profiles = tmp_path / "notebooks" / "profiles"
    profiles.mkdir(parents=True)
    text = "seeds: 4\ndata_seed: 2\nnotebooks:\n  01_two:\n    seeds: 7\n"
    (profiles / "digits.yaml").write_text(text, encoding="utf-8")
    return Layout("digits", tmp_path)


def test_the_table_says_where_each_notebook_comes_from(layout: Layout) -> None:
    layout.run.mkdir(parents=True)
    for name, more in (("00_one", {"machine": EVIL}), ("01_two", {})):
        (layout.run / f"{name}.ipynb").write_text("{}")
        made = status.facts(layout, name, {"torch": "9.9", "python": "3.11", "scipy": "1"}) | more
        record = {"key": "k", "seconds": 61.7, "made": made}
        (layout.run / f"{name}.key.json").write_text(json.dumps(record))
    (layout.run / "02_old.ipynb").write_text("{}")  # of a build that recorded nothing
    (layout.run / "03_torn.ipynb").write_text("{}")
    (layout.run / "03_torn.key.json").write_text('{"key": ')
    status.write_status(layout)
    page = shown(layout.status.read_text(encoding="utf-8"))
    assert page.tags == {"table", "thead", "tbody", "tr", "th", "td"}
    rows = [row.split("\n") for row in page.text.split("\n\n\n")]
    found = {cells[0]: cells for row in rows if (cells := [c for c in row if c]) and cells[0][:2].isdigit()}
    assert found["00_one"][1:4] == ["digits", "4, data 2", "1:02"]
    assert "<img src=x" in found["00_one"][6]
    assert found["01_two"][2] == "7, data 2"
    assert found["01_two"][6].startswith(machine())
    assert found["01_two"][7] == "python 3.11, torch 9.9, numpy"
    assert found["02_old"][1:] == found["03_torn"][1:] == ["–"] * 7


def test_the_page_of_the_small_book_holds_the_table(first_build: tuple[Path, str]) -> None:
    page = (first_build[0] / "build" / "digits" / "html" / "book" / "status.html").read_text(encoding="utf-8")
    text = _Text()
    text.feed(page)
    assert "00_one" in text.text
    assert machine() in text.text


def test_the_machine_names_no_host() -> None:
    import platform

    assert platform.node() not in machine() or len(platform.node()) < 3
    assert (ROOT / "book" / "status.md").is_file()
