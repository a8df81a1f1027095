"""The example of the README and of the API page runs as it stands."""

import re
from pathlib import Path

import pytest
import torch
from toy_surgery import CLASSES, bits, clusters, same_bits, trained_net

ROOT = Path(__file__).resolve().parents[2]


def example(page: str) -> str:
    (code,) = re.findall(
        r"```python\n(.*?operate\(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL
    )
    return code


def test_the_page_and_the_readme_show_the_same_ten_lines() -> None:
    code = example("README.md")
    assert code == example("book/api.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_the_ten_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    net = trained_net(torch.float32).eval()
    start = bits(net)
    names = {"model": net, "classes": CLASSES}
    for seed, name, count in ((1, "train", 60), (2, "held", 200), (3, "test", 200)):
        images, labels = clusters(count, seed)
        names |= {f"{name}_x": images.float(), f"{name}_y": labels}
    exec(compile(example("README.md"), "README.md", "exec"), names)
    shown = capsys.readouterr().out
    assert len(re.findall(r"^(Accepted|Rolled back)", shown, re.MULTILINE)) == len(names["done"].trace) > 1
    assert "balanced=" in shown
    assert same_bits(bits(net), start)
