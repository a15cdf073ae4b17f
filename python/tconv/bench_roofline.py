"""The roofline of a benchmark run as an SVG drawing: what each problem reaches, under what the machine allows."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import Any

from tconv.bench_limits import work_of
from tconv.problems import problem_from

Record = dict[str, Any]

_WIDTH, _HEIGHT = 560, 430
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 14, 52
_ITEMSIZE = {"fp64": 8, "fp32": 4, "fp16": 2, "bf16": 2}
_RATE = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_INK, _SOFT, _LINE = "#1d2329", "#5b6670", "#e6eaed"
_OURS, _THEIRS = "#00796b", "#d9730d"


@dataclass
class _Point:
    index: int
    name: str
    intensity: float  # operations per byte
    ours: float  # operations per second
    theirs: float | None


@dataclass
class _Scale:
    """A logarithmic axis."""

    low: float
    high: float
    begin: float
    end: float

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        marks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
        inside = [mark for mark in marks if self.low <= mark <= self.high]
        return inside if len(inside) <= 9 else [mark for mark in inside if f"{mark:e}"[0] == "1"]


def _points(record: Record) -> list[_Point]:
    settings = record["settings"]
    points = []
    for index, result in enumerate(record["results"], 1):
        if not result["ours_seconds"]:
            continue
        problem = problem_from({"name": result["name"], **result["problem"]})
        moved, operations = work_of(problem, _ITEMSIZE[settings["dtype"]], backward=settings["direction"] == "backward")
        if operations == 0 or moved == 0:
            continue
        beside = result.get("with_cudnn_benchmark")
        times = [t["median"] for t in (result["pytorch_seconds"], beside and beside["pytorch_seconds"]) if t]
        theirs = operations / min(times) if times else None
        ours = operations / result["ours_seconds"]["median"]
        points.append(_Point(index, result["name"], operations / moved, ours, theirs))
    return points


def _number(value: float) -> str:
    return f"{value:g}"


def _rate_unit(highest: float) -> tuple[float, str]:
    return (1e12, "TFLOP/s") if highest >= 1e12 else (1e9, "GFLOP/s")


def roofline_svg(record: Record) -> str:
    """The drawing; empty where nothing was timed or no limit was measured."""
    limits = record.get("limits")
    points = _points(record) if limits else []
    if not points:
        return ""
    dtype = record["settings"]["dtype"]
    rate = limits["rates"].get("tf32" if record["settings"]["tf32"] else _RATE[dtype]) or max(limits["rates"].values())
    copy = limits["copy"]
    reached = [value for point in points for value in (point.ours, point.theirs) if value]
    intensities = [point.intensity for point in points]
    corner = rate / copy  # to be seen, with a piece of the roof on either side of it
    x = _Scale(min(*intensities, corner / 2) / 1.6, max(*intensities, 2 * corner) * 1.6, _LEFT, _WIDTH - _RIGHT)
    y = _Scale(min(reached) / 1.6, max(rate, *reached) * 1.5, _HEIGHT - _BOTTOM, _TOP)
    unit, unit_name = _rate_unit(rate)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-family="system-ui, sans-serif" font-size="14.5">',
        "<title>Roofline: operations per second over operations per byte</title>",
        *_grid(x, y, unit),
        *_roof(x, y, copy, rate, unit, unit_name),
    ]
    for point in sorted(points, key=lambda p: p.ours):
        parts += _marks(point, x, y, unit, unit_name)
    parts += [
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle" fill="{_SOFT}">'
        "operations per byte</text>",
        f'<text transform="translate(15 {(_HEIGHT - _BOTTOM + _TOP) / 2}) rotate(-90)" text-anchor="middle" '
        f'fill="{_SOFT}">{unit_name}</text>',
        *_legend(),
        "</svg>",
    ]
    return "\n".join(parts)


def _grid(x: _Scale, y: _Scale, unit: float) -> list[str]:
    parts = []
    for mark in x.ticks():
        at = f"{x(mark):.1f}"
        parts.append(f'<line x1="{at}" y1="{_TOP}" x2="{at}" y2="{_HEIGHT - _BOTTOM}" stroke="{_LINE}"/>')
        parts.append(
            f'<text x="{at}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle" fill="{_SOFT}">{_number(mark)}</text>'
        )
    scaled = _Scale(y.low / unit, y.high / unit, y.begin, y.end)
    for mark in scaled.ticks():
        at = scaled(mark)
        parts.append(f'<line x1="{_LEFT}" y1="{at:.1f}" x2="{_WIDTH - _RIGHT}" y2="{at:.1f}" stroke="{_LINE}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="{_SOFT}">{_number(mark)}</text>')
    return parts


def _roof(x: _Scale, y: _Scale, copy: float, rate: float, unit: float, unit_name: str) -> list[str]:
    """Bandwidth times intensity, up to the matrix rate; the part below the drawing is left out."""
    corner = rate / copy
    left = max(x.low, y.low / copy)
    turning = (
        [(left, copy * left), (corner, rate), (x.high, rate)] if left < corner else [(x.low, rate), (x.high, rate)]
    )
    line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in turning)
    parts = [f'<polyline points="{line}" fill="none" stroke="{_INK}" stroke-width="1.8"/>']
    words = f"arithmetic {_number(round(rate / unit, 3 if rate < unit else 0))} {unit_name}"
    parts.append(
        f'<text x="{_WIDTH - _RIGHT - 4}" y="{y(rate) - 7:.1f}" text-anchor="end" fill="{_INK}">'
        f"{html.escape(words)}</text>"
    )
    if left < corner:
        middle = math.sqrt(left * min(corner, x.high))
        slope = math.degrees(math.atan2(y(copy * middle * 2) - y(copy * middle), x(middle * 2) - x(middle)))
        parts.append(
            f'<text transform="translate({x(middle):.1f} {y(copy * middle) - 8:.1f}) rotate({slope:.1f})" '
            f'text-anchor="middle" fill="{_INK}">copy {copy / 1e9:.4g} GB/s</text>'
        )
    return parts


def _marks(point: _Point, x: _Scale, y: _Scale, unit: float, unit_name: str) -> list[str]:
    at, ours = x(point.intensity), y(point.ours)
    words = f"{point.index} {point.name}: {point.ours / unit:.3g} {unit_name}"
    parts = ["<g>"]
    if point.theirs:
        theirs = y(point.theirs)
        words += f", PyTorch {point.theirs / unit:.3g}"
        parts.append(
            f'<line x1="{at:.1f}" y1="{ours:.1f}" x2="{at:.1f}" y2="{theirs:.1f}" stroke="{_THEIRS}" '
            'stroke-width="1.2" stroke-dasharray="2 3"/>'
        )
        parts.append(
            f'<circle cx="{at:.1f}" cy="{theirs:.1f}" r="5" fill="#fff" stroke="{_THEIRS}" stroke-width="1.8"/>'
        )
    parts.append(f'<circle cx="{at:.1f}" cy="{ours:.1f}" r="9.5" fill="{_OURS}" stroke="#fff"/>')
    parts.append(
        f'<text x="{at:.1f}" y="{ours + 3.8:.1f}" text-anchor="middle" font-size="10.5" fill="#fff">'
        f"{point.index}</text>"
    )
    return [*parts, f"<title>{html.escape(words)}</title></g>"]


def _legend() -> list[str]:
    bottom = _HEIGHT - _BOTTOM - 14
    right = _WIDTH - _RIGHT - 96
    return [
        f'<rect x="{right - 18}" y="{bottom - 34}" width="110" height="44" rx="5" fill="#fff" stroke="{_LINE}"/>',
        f'<circle cx="{right}" cy="{bottom - 21}" r="6" fill="{_OURS}"/>',
        f'<text x="{right + 14}" y="{bottom - 17}" fill="{_INK}">tconv</text>',
        f'<circle cx="{right}" cy="{bottom - 2}" r="5" fill="#fff" stroke="{_THEIRS}" stroke-width="1.8"/>',
        f'<text x="{right + 14}" y="{bottom + 3}" fill="{_INK}">PyTorch</text>',
    ]
