"""One self-contained HTML page from the record of a benchmark run: no script, nothing loaded from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tconv.bench_roofline import roofline_svg

Record = dict[str, Any]

_STYLE = """
:root { --ink: #1d2329; --soft: #5b6670; --line: #dfe4e8; --panel: #f6f8f9; --ours: #00796b; --default: #d9730d;
  --benchmark: #7557b3; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1rem; color: var(--ink); background: #fff;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p, figcaption { margin: .3rem 0; }
.soft, figcaption, .notes { color: var(--soft); font-size: .88rem; }
code { background: var(--panel); padding: .1rem .3rem; border-radius: .25rem; overflow-wrap: anywhere;
  font-size: .85em; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.tiles div { background: var(--panel); border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .7rem; }
.tiles b { display: block; font-size: 1.5rem; line-height: 1.2; font-weight: 650; }
.tiles span { color: var(--soft); font-size: .84rem; overflow-wrap: anywhere; }
figure { margin: .5rem 0; }
svg { width: 100%; max-width: 46rem; height: auto; display: block; }
.key { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .88rem; }
.key i { display: inline-block; width: .8rem; height: .8rem; border-radius: .2rem; margin-right: .35rem; }
.bars { display: grid; grid-template-columns: fit-content(40%) 1fr; gap: .35rem .7rem; align-items: center;
  font-size: .88rem; margin-top: .6rem; }
.bars .name { overflow-wrap: anywhere; line-height: 1.2; }
.bars .name small { color: var(--soft); }
.track { position: relative; border-left: 1px solid var(--line); }
.track .one { position: absolute; top: -.2rem; bottom: -.2rem; border-left: 1.5px dashed var(--soft); }
.bar { display: flex; align-items: center; height: 1.15rem; margin: .1rem 0; white-space: nowrap; }
.bar div { height: 100%; border-radius: 0 .2rem .2rem 0; min-width: 2px; }
.bar span { padding-left: .35rem; font-variant-numeric: tabular-nums; position: relative; }
.scroll { margin-top: .8rem; overflow-x: auto; border: 1px solid var(--line); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { background: var(--panel); text-align: right; font-weight: 600; }
tr:last-child td { border-bottom: 0; }
th.text, td.text { text-align: left; }
.bad { color: #b3261e; font-weight: 600; }
.notes { margin-top: 2rem; border-top: 1px solid var(--line); padding-top: .8rem; }
"""

_SETTINGS = (("default", "PyTorch, default settings"), ("benchmark", "PyTorch, cudnn.benchmark on"))


def page(record: Record) -> str:
    """The whole page."""
    parts = [
        _head(record),
        _tiles(record),
        _roofline(record),
        _bars(record),
        _training(record),
        _table(record),
        _notes(record),
    ]
    body = "\n".join(part for part in parts if part)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(_title(record))}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _text(value: object) -> str:
    return html.escape(str(value))


def _title(record: Record) -> str:
    return f"tconv beside PyTorch on {_machine(record)}"


def _machine(record: Record) -> str:
    machine = record["machine"]
    return machine.get("gpu") or f"{machine['cpu']}, {machine['threads']} threads"


def _head(record: Record) -> str:
    versions, settings = record["versions"], record["settings"]
    timed = "gradients of input and weight" if settings["direction"] == "backward" else "forward"
    precision = (" with TF32 allowed" if settings["tf32"] else " (strict)") if settings["dtype"] == "fp32" else ""
    cudnn = f", cuDNN {versions['cudnn']}" if versions.get("cudnn") else ""
    bias = "with" if settings["bias"] else "no"
    return (
        f"<h1>{_text(_title(record))}</h1>\n"
        f"<p>Transposed convolutions, {_text(timed)}, {_text(settings['dtype'])}{_text(precision)}, {bias} bias, "
        f"layout {_text(settings['layout'])}. tconv {_text(versions['tconv'])}, PyTorch {_text(versions['torch'])}"
        f"{_text(cudnn)}.</p>\n"
        f'<p class="soft">{_text(record["date"])}, {_text(record["machine"]["system"])}<br>'
        f"<code>{_text(record['command'])}</code></p>"
    )


def _speedup(result: Record, setting: str) -> float | None:
    if setting == "default":
        return result["speedup"]
    beside = result.get("with_cudnn_benchmark")
    return beside["speedup"] if beside else None


def _better(result: Record) -> float | None:
    """Over PyTorch at the better of its settings."""
    known = [s for s in (_speedup(result, setting) for setting, _ in _SETTINGS) if s is not None]
    return min(known, default=None)


def _mean(values: Iterable[float | None]) -> float:
    logs = [math.log(value) for value in values if value is not None and value > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _times(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.0f}x" if value >= 100 else f"{value:.1f}x" if value >= 10 else f"{value:.2f}x"


def _percent(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value * 100:.0f}%"


def _seconds(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return "-"
    unit, scale = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3)) if value >= s), ("µs", 1e-6))
    number = value / scale
    return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f} {unit}"


def _median(timing: Record | None) -> float | None:
    return timing["median"] if timing else None


def _tiles(record: Record) -> str:
    results = record["results"]
    tiles = []
    for setting, name in _SETTINGS:
        mean = _mean(_speedup(result, setting) for result in results)
        if math.isfinite(mean):
            tiles.append((_times(mean), f"faster than {name} (geometric mean)"))
    slowest = min((r for r in results if _better(r)), key=_better, default=None)
    if slowest:
        tiles.append((_times(_better(slowest)), f"the smallest speed-up: {slowest['name']}"))
    share = _mean(result["share_of_floor"] for result in results)
    if math.isfinite(share):
        tiles.append((_percent(share), "of what the machine allows (geometric mean)"))
    right = sum(bool(result["passed"]) for result in results)
    tiles.append((f"{right} of {len(results)}", "results right, against fp64"))
    cells = "".join(f"<div><b>{_text(number)}</b><span>{_text(words)}</span></div>" for number, words in tiles)
    return f'<div class="tiles">{cells}</div>'


def _roofline(record: Record) -> str:
    svg = roofline_svg(record)
    if not svg:
        return ""
    return (
        f"<h2>Roofline</h2>\n<figure>\n{svg}\n<figcaption>Each number is a problem of the table below: what tconv "
        "reaches (filled) and what PyTorch reaches at its better setting (hollow), under the roof of copy bandwidth "
        "and matrix rate, both measured in the same run.</figcaption>\n</figure>"
    )


@dataclass
class _Bar:
    setting: str
    value: float
    words: str


_Row = tuple[str, str, list[_Bar]]  # a name, what stands under it, and its bars


def _bar_rows(rows: list[_Row]) -> str:
    """Speed-ups on a scale of doublings; the dashed line is PyTorch's speed."""
    values = [bar.value for _, _, bars in rows for bar in bars]
    low = min(0.5, *values) if values else 0.5
    high = max(2.0, *values) if values else 2.0
    # The longest bar leaves room for its number.
    span = math.log(high / low) / 0.72

    def place(value: float) -> float:
        return 100 * math.log(value / low) / span

    lines = []
    for name, detail, bars in rows:
        drawn = "".join(
            f'<div class="bar"><div style="width:{place(bar.value):.1f}%;background:var(--{bar.setting})"></div>'
            f"<span>{_text(bar.words)}</span></div>"
            for bar in bars
        )
        small = f"<br><small>{_text(detail)}</small>" if detail else ""
        lines.append(
            f'<div class="name">{_text(name)}{small}</div>'
            f'<div class="track"><div class="one" style="left:{place(1):.1f}%"></div>{drawn}</div>'
        )
    return f'<div class="bars">{"".join(lines)}</div>'


def _used(rows: list[_Row]) -> list[tuple[str, str]]:
    drawn = {bar.setting for _, _, bars in rows for bar in bars}
    return [setting for setting in _SETTINGS if setting[0] in drawn]


def _key(settings: Iterable[tuple[str, str]]) -> str:
    marks = "".join(
        f'<span><i style="background:var(--{setting})"></i>over {_text(name)}</span>' for setting, name in settings
    )
    return f'<div class="key">{marks}</div>'


def _bars(record: Record) -> str:
    rows = []
    for index, result in enumerate(record["results"], 1):
        bars = []
        for setting, _ in _SETTINGS:
            value = _speedup(result, setting)
            if value:
                bars.append(_Bar(setting, value, _times(value)))
        if bars:
            mine = _seconds(_median(result["ours_seconds"]))
            rows.append((f"{index} {result['name']}{' *' if result['scaled'] else ''}", mine, bars))
    if not rows:
        return ""
    return (
        "<h2>Speed-up, problem by problem</h2>\n"
        "<p class=\"soft\">PyTorch's time over tconv's, on a scale of doublings; the dashed line is PyTorch's speed. "
        "Under each name: tconv's time.</p>\n" + _key(_used(rows)) + _bar_rows(rows)
    )


def _training(record: Record) -> str:
    steps = record.get("training")
    if not steps:
        return ""
    other = {(s["network"], s["precision"]): s for s in record.get("training_with_cudnn_benchmark") or ()}
    rows = []
    cells = []
    for step in steps:
        beside = other.get((step["network"], step["precision"]))
        pairs = [("default", step["speedup"]), ("benchmark", beside["speedup"] if beside else None)]
        bars = [_Bar(setting, value, _times(value)) for setting, value in pairs if value]
        mine = _seconds(_median(step["ours_seconds"]))
        if bars:
            rows.append((f"{step['network']}, {step['precision']}", mine, bars))
        cells.append(
            [
                step["network"],
                step["precision"],
                "x".join(map(str, step["input_shape"])),
                mine,
                _seconds(_median(step["pytorch_seconds"])),
                *([_seconds(_median(beside["pytorch_seconds"])) if beside else "-"] if other else []),
                _times(min((bar.value for bar in bars), default=None)),
                *([step["error"]] if any(step["error"] for step in steps) else []),
            ]
        )
    titles = ["network", "precision", "input", "tconv", "PyTorch", *(["benchmark"] if other else []), "speed-up"]
    titles += ["error"] * (len(cells[0]) - len(titles))
    return (
        "<h2>A whole training step</h2>\n"
        '<p class="soft">Forward, backward and optimiser (Adam) of three networks, their other layers PyTorch\'s own '
        "on both sides.</p>\n" + _key(_used(rows)) + _bar_rows(rows) + _html_table(titles, cells, text=3)
    )


def _html_table(
    titles: list[str], rows: list[list[str]], *, text: int, bad: Callable[[int], bool] | None = None
) -> str:
    """A table that scrolls sideways where the screen is narrow; the first `text` columns are words."""

    def line(tag: str, cells: list[str], kind: str = "") -> str:
        marked = "".join(
            f'<{tag} class="text">{_text(cell)}</{tag}>' if i < text else f"<{tag}>{_text(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr{kind}>{marked}</tr>"

    body = "\n".join(line("td", row, ' class="bad"' if bad and bad(i) else "") for i, row in enumerate(rows))
    return f'<div class="scroll"><table><thead>{line("th", titles)}</thead><tbody>\n{body}\n</tbody></table></div>'


def _error(result: Record) -> str:
    if result["error"]:
        return result["error"]
    wrong = [check for check in result["checks"] if not check["passed"]]
    if wrong:
        return f"WRONG {wrong[0]['what']}: {wrong[0]['problem']}"
    norms = [check["norm"] for check in result["checks"] if check["norm"] is not None]
    return f"{max(norms):.1e}" if norms else "-"


# The columns of the table: a title, and the text of a result. The first four are words.
_COLUMNS: tuple[tuple[str, Callable[[Record], str]], ...] = (
    ("problem", lambda r: r["name"] + (" *" if r["scaled"] else "")),
    ("sizes", lambda r: sizes_text(r["problem"])),
    ("kernel", lambda r: r["family"]),
    ("tconv", lambda r: _seconds(_median(r["ours_seconds"]))),
    ("PyTorch", lambda r: "fails" if r["pytorch_error"] else _seconds(_median(r["pytorch_seconds"]))),
    ("benchmark", lambda r: _seconds(_median((r.get("with_cudnn_benchmark") or {}).get("pytorch_seconds")))),
    ("speed-up", lambda r: _times(_better(r))),
    ("limit", lambda r: _seconds(r["floor_seconds"]) if r["floor_seconds"] else "-"),
    ("from", lambda r: r["floor_from"] or "-"),
    ("of limit", lambda r: _percent(r["share_of_floor"])),
    ("error", _error),
)


def sizes_text(problem: Record) -> str:
    """Batch, channels, input, kernel and stride, as the problem's dictionary has them."""

    def joined(name: str) -> str:
        return "x".join(map(str, problem[name]))

    text = f"n{problem['batch']} c{problem['in_channels']}→{problem['out_channels']} i{joined('input')}"
    text += f" k{joined('kernel')} s{joined('stride')}"
    if any(value != 1 for value in problem["dilation"]):
        text += f" d{joined('dilation')}"
    return text + (f" g{problem['groups']}" if problem.get("groups", 1) != 1 else "")


def _table(record: Record) -> str:
    results = record["results"]
    columns = [
        (title, cell)
        for title, cell in _COLUMNS
        if title != "benchmark" or any(result.get("with_cudnn_benchmark") for result in results)
    ]
    rows = [[str(index), *(cell(result) for _, cell in columns)] for index, result in enumerate(results, 1)]
    titles = ["", *(title for title, _ in columns)]
    return "<h2>All numbers</h2>\n" + _html_table(titles, rows, text=4, bad=lambda i: not results[i]["passed"])


def _notes(record: Record) -> str:
    notes = [
        "Every result was judged against fp64 before it was timed. tconv and PyTorch ran in turn in the same process, "
        "after warm-up; times are medians.",
        "Limit: the largest of bytes over copy bandwidth, operations over matrix rate, and one launch, each measured "
        "in the same run.",
    ]
    if record["machine"].get("gpu"):
        notes[0] += " The L2 cache was flushed before every call."
    if any(result.get("with_cudnn_benchmark") for result in record["results"]):
        notes.append(
            "PyTorch keeps the first plan that it finds for a shape: each of its settings had a process of its own, "
            "with tconv beside it. The speed-up of the table is over the better one."
        )
    if any(result["scaled"] for result in record["results"]):
        notes.append("* cut to CPU scale: fewer samples and less space, the layer's channels and geometry unchanged.")
    limits = record.get("limits")
    if limits:
        rates = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in limits["rates"].items())
        notes.append(f"Measured limits: copy {limits['copy'] / 1e9:.4g} GB/s, arithmetic {rates}.")
    load = record["machine"].get("load_at_start")
    if not record["machine"].get("gpu") and load is not None:
        notes.append(f"Load of the machine when the run began: {load}.")
    return '<div class="notes">' + "".join(f"<p>{_text(note)}</p>" for note in notes) + "</div>"
