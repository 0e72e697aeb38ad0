"""The report of ``superopt bench``: summary, text, runtimes side by side, and a page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape as escape_markup

from superopt.ir.errors import printable
from superopt.report.corpus import geometric_mean
from superopt.report.terminal import table

__all__ = [
    "ToolBenchmarkSummary",
    "cell",
    "document",
    "names",
    "page",
    "runtimes_table",
    "show",
    "show_runtimes",
    "summaries",
]


# -- Summary -------------------------------------------------------------------------------------------------------
#
# Figures of a benchmark: per tool, over all models.


_WORDS = {"timeout": "timed out", "crash": "crashed"}
LOSS = 1.02  # a ratio above this is a loss: two runs of one and the same model differ by less


@dataclass(frozen=True)
class ToolBenchmarkSummary:
    """One tool over all models.

    Attributes:
        timed: models whose result ran and was right.
        mean: geometric mean of time after ÷ before over those.
        overall: the same over all models; where the tool failed, the input is what is left to run (a ratio of 1).
        best, worst: the extreme ratios and their models.
        losses: models that became slower than the input.
        wrong, crashed, timeouts: failures.
        seconds: median time of the optimiser itself.
    """

    tool: str
    version: str
    timed: int
    mean: float
    overall: float
    best: tuple[float, str]
    worst: tuple[float, str]
    losses: int
    wrong: int
    crashed: int
    timeouts: int
    seconds: float
    missing: str = ""


def names(data: Mapping[str, Any]) -> list[str]:
    """The tools, superopt first."""
    return ["superopt", *data["tools"]]


def summaries(data: Mapping[str, Any]) -> list[ToolBenchmarkSummary]:
    """The summary of every tool, superopt first."""
    return [_tool_summary(name, data) for name in names(data)]


def _tool_summary(name: str, data: Mapping[str, Any]) -> ToolBenchmarkSummary:
    facts = data["tools"].get(name, {"version": data["superopt"]["version"]})
    rows = [r for r in data["rows"] if "tools" in r]
    found = [(r["tools"][name], r["model"]) for r in rows if name in r["tools"]]
    timed = [(t["ratio"], model) for t, model in found if "ratio" in t]
    ratios = [ratio for ratio, _ in timed]
    statuses = [t["status"] for t, _ in found]
    seconds = [t["seconds"] for t, _ in found if t.get("seconds")]
    return ToolBenchmarkSummary(
        tool=name, version=facts.get("version", ""), timed=len(timed), mean=geometric_mean(ratios),
        overall=geometric_mean([*ratios, *([1.0] * (len(found) - len(timed)))]),
        best=min(timed, default=(1.0, "")), worst=max(timed, default=(1.0, "")),
        losses=sum(r > LOSS for r in ratios), wrong=statuses.count("wrong"), crashed=statuses.count("crash"),
        timeouts=statuses.count("timeout"), seconds=median(seconds) if seconds else 0.0,
        missing=f"{facts['missing']}; {facts['next']}" if "missing" in facts else "",
    )  # fmt: skip


def cell(row: Mapping[str, Any], name: str) -> str:
    """What a tool did to a model: its ratio, or how it failed."""
    tool = row.get("tools", {}).get(name)
    if tool is None:
        return ""
    return f"{tool['ratio']:.3f}" if "ratio" in tool else _WORDS.get(str(tool["status"]), str(tool["status"]))


def ordered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows by our ratio, best first; what has none at the end."""
    return sorted(rows, key=lambda r: (r.get("tools", {}).get("superopt", {}).get("ratio", 9.0), r["model"]))


# -- Runtimes ------------------------------------------------------------------------------------------------------
#
# Graphs times runtimes, on the terminal and as a Markdown table (``docs/runtimes.md``).


def show_runtimes(console: Console, data: Mapping[str, Any]) -> None:
    """A row a model: the input and ours in each runtime, and the best of all pairs."""
    head, rows = _cells(data)
    console.print(table(*head, rows=rows, numeric=tuple(range(1, len(head) - 1))))
    console.print(escape_markup(_runtime_summary(data)))
    if data["left_out"]:
        console.print(escape_markup(f"left for another run: {printable(', '.join(data['left_out']), 400)}"))


def runtimes_table(data: Mapping[str, Any]) -> str:
    """The same in Markdown."""
    head, rows = _cells(data)
    lines = ["|".join(("", *cells, "")) for cells in (head, ["---"] * len(head), *rows)]
    versions = ", ".join(f"{name} {version}" for name, version in data["runtimes"].items())
    return "\n".join([*lines, "", f"{_runtime_summary(data)}. {versions}; {data['date']}.", ""])


def _cells(data: Mapping[str, Any]) -> tuple[list[str], list[tuple[str, ...]]]:
    names = list(data["runtimes"])
    head = ["model", f"input, {names[0]}", *(f"input, {n}" for n in names[1:]), *(f"ours, {n}" for n in names),
            *(f"ours ÷ input, {n}" for n in names), "best"]  # fmt: skip
    return head, [_runtime_row(row, names) for row in data["rows"]]


def _runtime_row(row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    if "pairs" not in row:
        return (str(row["model"]), printable(str(row.get("error", "")), 60), *("" for _ in range(3 * len(names))))
    pairs = {(p["graph"], p["runtime"]): p for p in row["pairs"]}
    ours = row["ours"]
    made = [pairs[ours[n]["graph"], n] if n in ours else None for n in names]
    best = row["best"]
    graph = "input" if best["graph"] == "input" else f"ours for {best['graph']}"
    return (
        str(row["model"]), f"{pairs['input', names[0]]['ms']:.2f} ms",
        *(_ratio(pairs["input", n]) for n in names[1:]), *(_ratio(p) for p in made),
        *(_ratio(ours.get(n)) for n in names), f"{best['ratio']:.3f}: {graph} in {best['runtime']}",
    )  # fmt: skip


def _ratio(found: Mapping[str, Any] | None) -> str:
    return "failed" if found is None else f"{found['ratio']:.3f} ±{found['spread']:.3f}"


def _runtime_summary(data: Mapping[str, Any]) -> str:
    """Geometric means over the models that were timed."""
    rows = [row for row in data["rows"] if "pairs" in row]
    if not rows:
        return "no model was timed"
    best = _mean([row["best"]["ratio"] for row in rows])
    ours = [
        f"ours ÷ input in {name} x{_mean(found):.3f} (worst {max(found):.3f})"
        for name in data["runtimes"]
        if (found := [row["ours"][name]["ratio"] for row in rows if name in row["ours"]])
    ]
    return f"geometric means over {len(rows)} models: best pair x{best:.3f}; {'; '.join(ours)}"


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


# -- Text ----------------------------------------------------------------------------------------------------------
#
# The benchmark on the terminal, and as the Markdown document ``lab/results/benchmark.md``.


_CLEAR = 0.03  # a change of time by more than this share is one


def show(console: Console, data: Mapping[str, Any]) -> None:
    """The models, then the tools."""
    tools = [s.tool for s in summaries(data) if not s.missing]
    rows = [
        (r["model"], f"{r['before_ms']:.2f} ms", *(cell(r, n) for n in tools)) if "before_ms" in r
        else (r["model"], printable(r.get("error", ""), 60), *("" for _ in tools))
        for r in ordered(data["rows"])
    ]  # fmt: skip
    console.print(table("model", "before", *tools, rows=rows, numeric=tuple(range(1, 2 + len(tools)))))
    for s in summaries(data):
        console.print(escape_markup(f"{s.tool:<14} {_line(s)}"))
    if left := _skipped_models_text(data):
        console.print(escape_markup(left))


def _skipped_models_text(data: Mapping[str, Any]) -> str:
    """Models that a run had no time left for; empty where there are none."""
    left = data.get("left_out", [])
    if not left:
        return ""
    count = "1 model was" if len(left) == 1 else f"{len(left)} models were"
    return f"{count} left for another run: {printable(', '.join(left), 400)}"


def _line(s: ToolBenchmarkSummary) -> str:
    if s.missing:
        return f"not compared: {s.missing}"
    failed = f"{s.wrong} wrong, {s.crashed} crashed, {s.timeouts} timed out"
    if not s.timed:
        return f"no model was timed: {failed}"
    return (
        f"x{s.mean:.3f} over {s.timed} models ({s.best[0]:.3f} {s.best[1]} … {s.worst[0]:.3f} {s.worst[1]}), "
        f"{s.losses} slower than {LOSS}, {failed}; median {s.seconds:.1f} s a model"
    )


def document(data: Mapping[str, Any]) -> str:
    """The Markdown document: how it was measured, every tool, every model."""
    found = summaries(data)
    machine, settings = data["machine"], data["settings"]
    lines = [
        "# Benchmark", "",
        "Written by `superopt bench` (`make bench`); do not edit. The figures are in `lab/results/benchmark.json`.", "",
        f"Time after ÷ time before; below 1 is faster. Before: {machine.get('runtime', 'ONNX Runtime')} with all its "
        "own optimisations, which run on every tool's result too. "
        f"{machine.get('device', '')}, {machine.get('cores', '?')} cores, one thread (its CPU time), "
        f"Python {machine['python']}, {data['date']}.", "",
        f"Every tool ran with its defaults in a process of its own (at most {settings['peer_limit']:.0f} s; superopt "
        f"{settings['time_limit']:.0f} s). All results of a model were judged against a float64 reference, and what "
        "was right was timed side by side in one process and, loaded in another order, in two more: interleaved in "
        f"random order, inputs and outputs bound once, medians of per-round ratios over at most {settings['rounds']} "
        "rounds, of slow models 9. `ort` is the original once more: how far it is from 1 is the noise of this table.",
        "",
        "| tool | version | models | geometric mean | with failures as 1 | best | worst | slower than "
        f"{LOSS} | wrong | crashed | timed out | median s a model |",
        "|---|---|--:|--:|--:|---|---|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for s in found:
        if s.missing:
            lines.append(f"| {s.tool} | – | not compared: {printable(s.missing)} |" + " |" * 9)
            continue
        if not s.timed:
            lines.append(
                f"| {s.tool} | {s.version} | 0 | – | – | – | – | – | {s.wrong} | {s.crashed} | {s.timeouts} | – |"
            )
            continue
        lines.append(
            f"| {s.tool} | {s.version} | {s.timed} | **{s.mean:.3f}** | {s.overall:.3f} | {s.best[0]:.3f} {s.best[1]} "
            f"| {s.worst[0]:.3f} {s.worst[1]} | {s.losses} | {s.wrong} | {s.crashed} | {s.timeouts} | {s.seconds:.1f} |"
        )
    if left := _skipped_models_text(data):
        lines += ["", f"{left}."]
    lines += _direction(data["rows"])
    shown = [s.tool for s in found if not s.missing]
    lines += ["", "## Models", "", f"| model | before | {' | '.join(shown)} | ± | s | rules that superopt applied |"]
    lines.append("|---|--:|" + "--:|" * len(shown) + "--:|--:|---|")
    lines += [_model_row(row, shown) for row in ordered(data["rows"])]
    lines += _failures(data)
    return "\n".join(lines) + "\n"


def _direction(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """How often the modelled cost of superopt's result said which way the time would go, where it went somewhere."""
    ours = [row["tools"]["superopt"] for row in rows if "tools" in row]
    clear = [t for t in ours if abs(t.get("ratio", 1.0) - 1.0) > _CLEAR and "modelled" in t]
    right = sum((t["ratio"] < 1.0) == (t["modelled"] < 1.0) for t in clear)
    if not clear:
        return []
    changed = f"Of {len(clear)} models whose time superopt changed by more than {100 * _CLEAR:.0f} %"
    return ["", f"{changed}, the modelled cost said which way for {right}."]


def _model_row(row: Mapping[str, Any], shown: list[str]) -> str:
    if "before_ms" not in row:
        return f"| {row['model']} | {printable(row.get('error', 'failed'), 200)} |" + " |" * (len(shown) + 3)
    ours = row["tools"]["superopt"]
    cells = [cell(row, n) for n in shown]
    cells[0] = f"**{cells[0]}**"
    spread = f"{ours['spread']:.3f}" if "spread" in ours else ""
    rules = sorted(ours.get("rules", {}).items(), key=lambda r: (-r[1], r[0]))
    text = ", ".join(f"{rule} ×{n}" for rule, n in rules[:4]) + (
        f" and {len(rules) - 4} more" if len(rules) > 4 else ""
    )
    return (
        f"| {row['model']} | {row['before_ms']:.2f} ms | {' | '.join(cells)} | {spread} | {ours.get('seconds', 0):.0f} "
        f"| {text} |"
    )


def _failures(data: Mapping[str, Any]) -> list[str]:
    """Every crash, timeout and wrong result, ours too, in words."""
    lines = []
    for row in data["rows"]:
        for name in names(data):
            tool = row.get("tools", {}).get(name, {})
            if tool.get("status") in ("wrong", "crash", "timeout", "unjudged"):
                lines.append(f"- {row['model']}, {name}: {tool['status']}: {_plain(tool.get('reason', ''))}")
            for reason in tool.get("failures", ()):
                lines.append(
                    f"- {row['model']}, {name}: a first result failed the check and was not used: {_plain(reason)}"
                )
    return ["", "## Failures", "", *(lines or ["None."])]


def _plain(text: str) -> str:
    return printable(text, 300).replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*").replace("_", "\\_")


# -- Page ----------------------------------------------------------------------------------------------------------
#
# The benchmark as one page: plots drawn as SVG, no scripts, no requests, every name escaped.


_COLOURS = ("#2f8f6b", "#7a8793", "#c9773b", "#4d7ac7", "#a05bb5", "#b8a12e", "#c4505d")
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --text: #222; }
@media (prefers-color-scheme: dark) { :root { --text: #ddd; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; } svg { width: 100%; height: auto; }
svg text { fill: var(--text); font: 12px system-ui, sans-serif; } svg line { stroke: var(--line); }
table { border-collapse: collapse; width: 100%; font-size: .85rem; } th, td { text-align: left; padding: .2rem .5rem; }
th, td { border-bottom: 1px solid var(--line); } .n { text-align: right; white-space: nowrap; }
.bad { font-weight: 700; }
"""
_LEFT, _RIGHT, _ROW = 170, 20, 18


def page(data: Mapping[str, Any]) -> str:
    """A complete HTML document."""
    found = [s for s in summaries(data) if not s.missing]
    machine = data["machine"]
    where = f"{machine.get('device', '')}, {machine.get('runtime', '')}, one thread, {data['date']}"
    return "\n".join(
        (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>superopt: benchmark</title>',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style><h1>Time after ÷ time before</h1>",
            f"<p>{escape(where)}. Left of 1 is faster. Before: ONNX Runtime with all its own optimisations.</p>",
            _legend(found), "<h2>Geometric mean</h2>", _means(found), "<h2>By model</h2>", _dots(data, found),
            "<h2>Seconds that the optimiser took</h2>", _seconds(data, found), "<h2>Figures</h2>", _table(data, found),
            *(f"<p>{escape(s.tool)}: not compared: {escape(s.missing)}</p>" for s in summaries(data) if s.missing),
            "</html>\n",
        )
    )  # fmt: skip


def _colour(found: list[ToolBenchmarkSummary], tool: str) -> str:
    return _COLOURS[[s.tool for s in found].index(tool) % len(_COLOURS)]


def _legend(found: list[ToolBenchmarkSummary]) -> str:
    parts = (f'<span style="color:{_colour(found, s.tool)}">●</span> {escape(f"{s.tool} {s.version}")}' for s in found)
    return f"<p>{' &nbsp; '.join(parts)}</p>"


def _means(found: list[ToolBenchmarkSummary]) -> str:
    means = [s.mean for s in found]
    axis = _Axis(min([0.5, *means]), max([1.1, *means]), 900)
    parts = []
    for i, s in enumerate(found):
        y = 8 + i * 26
        if not s.timed:
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(s.tool)}: none</text>')
            continue
        start, end = sorted((axis.x(1.0), axis.x(s.mean)))
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(s.tool)}</text>')
        parts.append(
            f'<rect x="{start:.1f}" y="{y}" width="{max(end - start, 1):.1f}" height="18" rx="2" '
            f'fill="{_colour(found, s.tool)}"/>'
        )
        text = f"{s.mean:.3f} over {s.timed}"
        parts.append(f'<text x="{axis.x(1.0) + 6:.1f}" y="{y + 13}">{escape(text)}</text>')
    return _svg(axis.marks(8 + 26 * len(found)) + "".join(parts), 30 + 26 * len(found))


class _Axis:
    """A logarithmic axis from the least to the greatest value, with room at both ends."""

    def __init__(self, least: float, greatest: float, width: float) -> None:
        self.low, self.high = math.log(least) - 0.08, math.log(greatest) + 0.08
        self.width = width

    def x(self, value: float) -> float:
        share = (math.log(value) - self.low) / (self.high - self.low)
        return _LEFT + min(max(share, 0.0), 1.0) * (self.width - _LEFT - _RIGHT)

    def marks(
        self, height: float, values: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.5, 3)
    ) -> str:
        """Vertical lines with their values below."""
        parts = []
        for value in values:
            if self.low <= math.log(value) <= self.high:
                x = self.x(value)
                dash = "" if value == 1.0 else ' stroke-dasharray="2 4"'
                parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"{dash}/>')
                parts.append(f'<text x="{x:.1f}" y="{height + 14}" text-anchor="middle">{value:g}</text>')
        return "".join(parts)


def _svg(body: str, height: float) -> str:
    return f'<svg viewBox="0 0 900 {height:.0f}" role="img">{body}</svg>'


def _dots(data: Mapping[str, Any], found: list[ToolBenchmarkSummary]) -> str:
    rows = [r for r in ordered(data["rows"]) if "before_ms" in r]
    ratios = [t["ratio"] for r in rows for t in r["tools"].values() if "ratio" in t]
    axis = _Axis(min([0.9, *ratios]), max([1.1, *ratios]), 900)
    parts = []
    for i, row in enumerate(rows):
        y = 12 + i * _ROW
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(printable(row["model"], 24))}</text>'
        )
        for s in reversed(found):  # superopt last, on top
            tool = row["tools"].get(s.tool, {})
            if "ratio" in tool:
                title = f"{row['model']}: {s.tool} {tool['ratio']:.3f} ± {tool['spread']:.3f}"
                parts.append(
                    f'<circle cx="{axis.x(tool["ratio"]):.1f}" cy="{y}" r="{6 if s.tool == "superopt" else 4}" '
                    f'fill="{_colour(found, s.tool)}" fill-opacity=".85"><title>{escape(title)}</title></circle>'
                )
    height = 12 + _ROW * len(rows)
    return _svg(axis.marks(height) + "".join(parts), height + 20)


def _seconds(data: Mapping[str, Any], found: list[ToolBenchmarkSummary]) -> str:
    rows = [r for r in data["rows"] if "before_ms" in r]
    timed = [s for s in found if s.seconds]
    values = [t["seconds"] for r in rows for t in r["tools"].values() if t.get("seconds")]
    axis = _Axis(min([0.05, *values]), max([60.0, *values]), 900)
    parts = []
    for i, s in enumerate(timed):
        y = 14 + i * 24
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(s.tool)}</text>')
        for row in rows:
            taken = row["tools"].get(s.tool, {}).get("seconds")
            if taken:
                title = escape(f"{row['model']}: {taken:.2f} s")
                parts.append(
                    f'<circle cx="{axis.x(taken):.1f}" cy="{y}" r="4" fill="{_colour(found, s.tool)}" '
                    f'fill-opacity=".5"><title>{title}</title></circle>'
                )
    height = 14 + 24 * len(timed)
    return _svg(axis.marks(height, (0.01, 0.1, 1.0, 10.0, 100.0)) + "".join(parts), height + 20)


def _table(data: Mapping[str, Any], found: list[ToolBenchmarkSummary]) -> str:
    head = "".join(f'<th class="n">{escape(h)}</th>' for h in ("before", *(s.tool for s in found)))
    body = []
    for row in ordered(data["rows"]):
        if "before_ms" not in row:
            body.append(
                f"<tr><td>{escape(row['model'])}</td><td>{escape(printable(row.get('error', ''), 200))}</td></tr>"
            )
            continue
        cells = [f'<td class="n">{row["before_ms"]:.2f} ms</td>']
        for s in found:
            tool = row["tools"].get(s.tool, {})
            bad = "ratio" not in tool or tool["ratio"] > LOSS
            title = escape(printable(tool.get("reason", ""), 200), quote=True)
            mark = " bad" if bad else ""
            cells.append(f'<td class="n{mark}" title="{title}">{escape(cell(row, s.tool))}</td>')
        body.append(f"<tr><td>{escape(row['model'])}</td>{''.join(cells)}</tr>")
    return f"<table><thead><tr><th>model</th>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
