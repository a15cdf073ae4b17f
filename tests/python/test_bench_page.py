"""The benchmark's page, from stored results: nothing here needs a GPU or a browser."""

from __future__ import annotations

import copy
import html.parser
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tconv.bench_page import page
from tconv.bench_roofline import roofline_svg

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
VOID = {"meta", "br", "line", "circle", "polyline", "rect", "link", "img", "input", "hr"}


class Outline(html.parser.HTMLParser):
    """Checks that elements nest, and collects what a test asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, _attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def stored(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def timing(seconds: float) -> dict[str, float]:
    return {"median": seconds, "lower_quartile": seconds, "upper_quartile": seconds, "fastest": seconds, "rounds": 9}


@pytest.fixture
def both() -> dict[str, Any]:
    """A GPU run with both settings and training steps; the second setting's numbers are made up."""
    record = stored("h200-forward.json")
    for result in record["results"]:
        if result["ours_seconds"] and result["pytorch_seconds"]:
            theirs = 0.5 * result["pytorch_seconds"]["median"]
            result["with_cudnn_benchmark"] = {
                "ours_seconds": result["ours_seconds"],
                "pytorch_seconds": timing(theirs),
                "speedup": theirs / result["ours_seconds"]["median"],
            }
    step = {"network": "U-Net", "precision": "fp32", "input_shape": [8, 3, 256, 256], "error": ""}
    step |= {"ours_seconds": timing(0.010), "pytorch_seconds": timing(0.015), "speedup": 1.5}
    record["training"] = [step]
    record["training_with_cudnn_benchmark"] = [{**step, "pytorch_seconds": timing(0.012), "speedup": 1.2}]
    return record


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_every_stored_result_makes_a_page(path: Path) -> None:
    record = json.loads(path.read_text(encoding="utf-8"))
    if "results" not in record:
        pytest.skip("not the record of a run over problems")
    text = page(record)
    outline = Outline(text)
    words = " ".join(outline.words)
    assert record["command"] in words
    assert record["date"] in words
    for result in record["results"]:
        assert result["name"] in words
    assert outline.tags.count("svg") == 1


def test_nothing_is_loaded_and_nothing_runs(both: dict[str, Any]) -> None:
    text = page(both)
    outline = Outline(text)
    assert outline.addresses == []
    assert "script" not in outline.tags
    assert "url(" not in text
    assert not re.search(r"https?://", text)
    assert '<meta name="viewport"' in text


def test_both_settings_and_the_training_steps_are_shown(both: dict[str, Any]) -> None:
    text = page(both)
    assert "cudnn.benchmark on" in text
    assert "A whole training step" in text
    assert "8x3x256x256" in text
    assert "1.20x" in text
    # One bar for each setting of each problem, and of the training step.
    timed = sum(1 for result in both["results"] if result.get("with_cudnn_benchmark"))
    assert text.count('class="bar"') == 2 * timed + 2
    alone = page(stored("h200-forward.json"))
    assert "cudnn.benchmark" not in Outline(alone).words
    assert "A whole training step" not in alone


def test_the_table_counts_the_better_setting(both: dict[str, Any]) -> None:
    both["results"] = both["results"][:1]
    result = both["results"][0]
    assert f"{result['speedup'] / 2:.2f}x</td>" in page(both)


def test_failures_are_marked_and_text_is_escaped() -> None:
    record = stored("cpu-2-cores-forward.json")
    broken = record["results"][0]
    broken |= {"passed": False, "error": "size <0> & worse", "ours_seconds": None, "pytorch_seconds": None}
    broken |= {"speedup": None, "share_of_floor": None}
    text = page(record)
    Outline(text)
    assert "size &lt;0&gt; &amp; worse" in text
    assert '<tr class="bad">' in text
    assert f"{len(record['results']) - 1} of {len(record['results'])}" in text


def test_a_run_in_which_everything_failed_still_makes_a_page() -> None:
    record = stored("cpu-2-cores-forward.json")
    record["limits"] = None
    for result in record["results"]:
        result |= {"passed": False, "ours_seconds": None, "pytorch_seconds": None, "speedup": None}
        result |= {"share_of_floor": None, "floor_seconds": 0.0, "floor_from": "", "checks": []}
    Outline(page(record))


def test_the_roofline_keeps_inside_and_below_the_roof() -> None:
    record = stored("h200-forward.json")
    svg = roofline_svg(record)
    width, height = map(float, re.search(r'viewBox="0 0 (\d+) (\d+)"', svg).groups())
    circles = [tuple(map(float, pair)) for pair in re.findall(r'cx="([-\d.]+)" cy="([-\d.]+)"', svg)]
    timed = [
        r for r in record["results"] if r["ours_seconds"] and math.prod(r["problem"]["input"]) * r["problem"]["batch"]
    ]
    assert len(circles) == 2 * len(timed) + 2  # both sides of each, and the legend
    assert all(0 < x < width and 0 < y < height for x, y in circles)

    # Twice the time is half the height of a doubling lower: positions follow the numbers.
    slower = copy.deepcopy(record)
    for result in slower["results"]:
        if result["ours_seconds"]:
            result["ours_seconds"]["median"] *= 2
    assert roofline_svg(slower) != svg
