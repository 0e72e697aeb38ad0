"""The benchmark on the terminal, and as the Markdown document ``lab/results/benchmark.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from superopt.ir.errors import printable
from superopt.report.benchmark.summary import LOSS, Summary, cell, names, ordered, summaries
from superopt.report.terminal import table

__all__ = ["document", "show"]

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
        console.print(escape(f"{s.tool:<14} {_line(s)}"))
    if left := _left_out(data):
        console.print(escape(left))


def _left_out(data: Mapping[str, Any]) -> str:
    """Models that a run had no time left for; empty where there are none."""
    left = data.get("left_out", [])
    if not left:
        return ""
    count = "1 model was" if len(left) == 1 else f"{len(left)} models were"
    return f"{count} left for another run: {printable(', '.join(left), 400)}"


def _line(s: Summary) -> str:
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
    if left := _left_out(data):
        lines += ["", f"{left}."]
    lines += _direction(data["rows"])
    shown = [s.tool for s in found if not s.missing]
    lines += ["", "## Models", "", f"| model | before | {' | '.join(shown)} | ± | s | rules that superopt applied |"]
    lines.append("|---|--:|" + "--:|" * len(shown) + "--:|--:|---|")
    lines += [_row(row, shown) for row in ordered(data["rows"])]
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


def _row(row: Mapping[str, Any], shown: list[str]) -> str:
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
