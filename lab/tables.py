"""Write the tables of results in README.md and docs from lab/results/*.json: ``python lab/tables.py``.

With ``--check`` nothing is written; the exit code is 1 where a committed table differs from its data.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from superopt.report.benchmark import ordered, summaries
from superopt.report.corpus import geometric_mean

ROOT = Path(__file__).resolve().parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "docs" / "assignment.md")
MARK = re.compile(r"(<!-- table: (?P<name>[a-z-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
SHOWN = 14  # models of the short table
FASTER = 0.97  # below, a model counts as one that gains
WHAT = {  # what the rewrite of a model is, in words
    "deep_linear": "dense layers without activations multiplied together",
    "expand_conv": "1×1 → 3×3 → 1×1 without activations becomes one 3×3",
    "segformer": "linear layers moved before the upsampling",
    "mobileone_s0": "branches of the training form become one Conv",
    "linear_attention": "(QKᵀ)V becomes Q(KᵀV)",
    "nasrnn": "all steps' products with one weight merged",
    "siamese": "two towers with one set of weights run as one batch",
    "gpt2_last": "the slice of the last token moved up through the layers",
    "vgg16": "convolutions by Winograd's algorithm",
    "unet": "convolutions by Winograd's algorithm",
    "lstm": "gates and steps merged",
    "gru": "gates and steps merged",
    "repvgg_a0": "branches become one Conv, Winograd's algorithm",
    "nasnet_a": "average pools become convolutions and are merged",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a table differs")
    check = parser.parse_args().check
    stale = False
    for page in PAGES:
        text = page.read_text("utf-8")
        if filled(text) == text:
            continue
        stale = True
        print(f"{page.relative_to(ROOT)}: {'differs from its data' if check else 'written'}", file=sys.stderr)
        if not check:
            page.write_text(filled(text), "utf-8")
    return int(check and stale)


def filled(text: str) -> str:
    """The page with every marked table made from its data."""
    return MARK.sub(lambda m: f"{m[1]}{TABLES[m['name']]()}{m[3]}", text)


def data(name: str) -> Any:
    found: Any = json.loads((ROOT / "lab" / "results" / name).read_text("utf-8"))
    return found


def tools() -> str:
    """Every tool: geometric mean, models slower, failures, seconds."""
    head = ("tool", "geometric mean of time after ÷ before", "models slower", "wrong, crashed", "seconds a model")
    lines = [f"| {' | '.join(head)} |", "|---|--:|--:|--:|--:|"]
    for s in summaries(data("benchmark.json")):
        if not s.missing:
            name = "the input once more (noise)" if s.tool == "ort" else f"{s.tool} {s.version}"
            lines.append(f"| {name} | {s.mean:.3f} | {s.losses} | {s.wrong}, {s.crashed} | {s.seconds:.1f} |")
    return "\n".join(lines) + "\n"


def best() -> str:
    """The models that gain most, and how many others gain something or nothing."""
    rows = [r for r in ordered(data("benchmark.json")["rows"]) if "ratio" in r["tools"]["superopt"]]
    lines = ["| model | time after ÷ before | before | rewrite |", "|---|--:|--:|---|"]
    lines += [f"| {r['model']} | {ratio(r)} | {before(r)} | {WHAT.get(r['model'], '')} |" for r in rows[:SHOWN]]
    rest = [r["tools"]["superopt"]["ratio"] for r in rows[SHOWN:]]
    some = [x for x in rest if x < FASTER]
    lines.append(f"| {len(some)} more | {min(some):.3f} … {max(some):.3f} | | |")
    lines.append(f"| {len(rest) - len(some)} more | {min(x for x in rest if x >= FASTER):.3f} … {max(rest):.3f} | | |")
    return "\n".join(lines) + "\n"


def models() -> str:
    """Every model of the benchmark."""
    lines = ["| model | time after ÷ before | modelled | before | seconds |", "|---|--:|--:|--:|--:|"]
    for row in ordered(data("benchmark.json")["rows"]):
        ours = row["tools"]["superopt"]
        if "ratio" not in ours:
            lines.append(f"| {row['model']} | {ours['status']} | | | |")
            continue
        modelled = f"{ours['modelled']:.3f}" if "modelled" in ours else ""
        lines.append(f"| {row['model']} | {ratio(row)} | {modelled} | {before(row)} | {ours['seconds']:.0f} |")
    return "\n".join(lines) + "\n"


def libraries() -> str:
    """The geometric mean of modelled costs by rule library."""
    found = data("ablation.json")
    lines = ["| library | rules | modelled cost after ÷ before |", "|---|--:|--:|"]
    for name, count in found["settings"]["rules"].items():
        outcomes = [r["outcomes"][name] for r in found["models"] if name in r["outcomes"]]
        costs = [o["after_us"] / o["before_us"] for o in outcomes if not o["failure"] and o["before_us"]]
        lines.append(f"| {name} | {count} | {geometric_mean(costs):.3f} |")
    return "\n".join(lines) + "\n"


def machine() -> str:
    """Where the benchmark was recorded."""
    m = data("benchmark.json")["machine"]
    return f"{m['runtime']}, {m['device']}, {m['cores']} cores, one thread (CPU time), Python {m['python']}.\n"


def assignments() -> str:
    """Problems of strategy assignment: the best of the contest, what superopt finds, points, bound, seconds."""
    lines = ["| problem | nodes | best of the contest | superopt | points | bound | CPU seconds |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    total = 0.0
    for row in data("assignment.json"):
        points = min(1.0, row["best"] / row["cost"]) if row["cost"] else 0.0
        total += points
        costs = f"{row['best']:,} | {row['cost']:,} | {points:.4f} | {row['bound']:,}"
        lines.append(f"| {row['problem']} | {row['nodes']:,} | {costs} | {row['seconds']:.0f} of {row['limit']:.0f} |")
    lines.append(f"| sum | | | | {total:.3f} | | |")
    return "\n".join(lines) + "\n"


def ratio(row: Mapping[str, Any]) -> str:
    ours = row["tools"]["superopt"]
    return f"{ours['ratio']:.3f} ± {ours['spread']:.3f}"


def before(row: Mapping[str, Any]) -> str:
    return f"{row['before_ms']:.1f} ms"


TABLES: Mapping[str, Callable[[], str]] = {
    "tools": tools, "best": best, "models": models, "libraries": libraries, "machine": machine,
    "assignments": assignments,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
