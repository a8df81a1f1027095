"""What the page on your data found in its faulty folder, and what its guide promises."""

import ast
import json
import re
from typing import Any

import pytest
import yaml

from lt_lib.runs.methods import METHODS
from pipeline.convert import code_sources, convert
from pipeline.layout import ROOT
from planted import planted_folder

NAME = "15_your_data"
PUBLISHED = ROOT / "build" / "nbval" / "build" / "digits" / "published" / f"{NAME}.json"
GUIDE = (ROOT / "book" / "your-data.md").read_text(encoding="utf-8")


@pytest.fixture
def numbers(request: pytest.FixtureRequest) -> Any:
    if not request.config.getoption("--published"):
        pytest.skip("reads what the last nbval run published; `make test` runs both")
    return json.loads(PUBLISHED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def parameters() -> dict[str, Any]:
    cell = code_sources(convert(ROOT / "notebooks" / f"{NAME}.md"))[0]
    return {line.targets[0].id: ast.literal_eval(line.value) for line in ast.parse(cell).body}


def test_every_planted_fault_is_found_and_every_usable_image_has_its_part(
    numbers: Any, tmp_path: Any
) -> None:
    planted = planted_folder(tmp_path / "planted")
    assert numbers["classes"] == len(planted.counts)
    assert numbers["unusable"] == len(planted.unreadable)
    assert numbers["copies"] == len(planted.copies) + len(planted.conflicting)
    assert numbers["conflicting"] == len(planted.conflicting)
    placed = [sum(part) for part in zip(*numbers["counts"].values(), strict=True)]
    assert sorted(placed) == sorted(planted.counts.values())
    assert min(numbers["counts"]["train"]) == 1
    assert numbers["counts"]["test"].count(0) == 1


def test_imbalance_costs_and_the_advice_follows_the_verdicts(numbers: Any) -> None:
    assert numbers["balanced"]["CE"] < numbers["plain"]["CE"] - 0.03
    assert numbers["plain"]["CE"] > 0.85
    assert numbers["kept_ce"] is (numbers["higher"] == 0)


def test_a_bias_fit_repairs_the_strangers_network_and_surgery_does_not_more(numbers: Any) -> None:
    repairs = numbers["stranger"]
    assert repairs["biased"] > repairs["plain"] + 0.03
    assert repairs["biased"] > repairs["operated"] - 0.02
    assert len(numbers["repairs"]) == 2
    assert numbers["agrees"] is True


def test_the_first_cell_holds_what_the_guide_explains(parameters: dict[str, Any]) -> None:
    (table,) = re.findall(r"## Which parameters\n(.*?)\n## ", GUIDE, re.DOTALL)
    explained = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    assert sorted(explained) == sorted(parameters)
    assert set(parameters["methods"]) < set(METHODS)
    assert {name for name, value in parameters.items() if value is not None} == {"profile", "methods"}
    (block,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    assert set(yaml.safe_load(block)) <= set(parameters)


def test_evidence_of_the_decision_table_is_what_the_chapters_compute() -> None:
    used = re.findall(r"\{glue:text\}`\.\./notebooks/(\w+)\.ipynb::([^`]+):s`", GUIDE)
    assert len(used) == GUIDE.count("{glue:text}") > 10
    for notebook, key in used:
        page = (ROOT / "notebooks" / f"{notebook}.md").read_text(encoding="utf-8")
        assert f"{{glue:text}}`{key}`" in page, f"{notebook} shows no {key}"
    (table,) = re.findall(r"## Which method when\n(.*?)\n## ", GUIDE, re.DOTALL)
    rows = [line for line in table.splitlines() if line.startswith("| ")][2:]
    assert all("{glue:text}" in row for row in rows)
    assert not re.search(r"\d", re.sub(r"`[^`]*`|\([^)]*\)", "", table)), "a typed number in the table"


def test_figures_that_the_guide_reads_are_on_the_page() -> None:
    page = (ROOT / "notebooks" / f"{NAME}.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"<(fig-15-\w+)>", GUIDE)) == sorted(re.findall(r"name: (fig-15-\w+)", page))


def test_every_glued_text_is_used_in_the_prose_and_no_other() -> None:
    page = convert(ROOT / "notebooks" / f"{NAME}.md")
    prose = "\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")
    glued: set[str] = set()
    for tree in map(ast.parse, code_sources(page)):
        loops = {
            node.target.id: node.iter
            for node in ast.walk(tree)
            if type(node) is ast.For and "id" in vars(node.target)
        }
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and getattr(call.func, "id", "") == "say":
                key = call.args[0]
                keys = ast.literal_eval(loops[key.id] if isinstance(key, ast.Name) else key)
                glued |= {keys} if isinstance(keys, str) else set(keys)
    assert len(glued) >= 4
    assert {f"15-{key}" for key in glued} == set(re.findall(r"\{glue:text\}`([^`]+)`", prose))
