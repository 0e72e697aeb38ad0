"""Other tools' fusion patterns, and which of them our rules find: ``python corpus/patterns.py [--check] [NAME...]``.

Each row rebuilds the small graph of a pattern of ONNX Runtime's graph optimisations, of onnxoptimizer (whose passes
onnxsim runs), of OnnxSlim or of onnxscript's rewriter, from their public descriptions. The search has no list of
patterns: it is given the rule library and asked for the fewest operators, then for the fewest FLOPs. The table goes to
``lab/results/patterns.md``; with ``--check`` nothing is written, and the exit code is 1 when the
committed table differs.
What was found is kept in ``build/patterns`` for as long as rules and pattern are the same, so a run goes on where one
stopped (after ``--time-limit`` seconds with exit code 3, and no table), and several may work at once on parts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from corpus.pattern_graphs import PATTERNS, Pattern  # noqa: E402
from superopt.cost.backend_capabilities import ONNX_RUNTIME_CPU, BackendCapabilities  # noqa: E402
from superopt.cost.cost_model import CostModel  # noqa: E402
from superopt.cost.measurement_record import CostEstimate, MeasurementRequest  # noqa: E402
from superopt.ir.graph import Graph, structural_hash  # noqa: E402
from superopt.passes import SearchOptions, search  # noqa: E402
from superopt.rules import Rule, load_library  # noqa: E402
from superopt.rules.float_verdicts import FloatVerdictStore  # noqa: E402
from superopt.verifier.check.differential import check  # noqa: E402

TABLE = ROOT / "lab" / "results" / "patterns.md"
KEPT = ROOT / "build" / "patterns"
_SECONDS = 300.0  # of a search; a region may take 20 of them, half of that to saturate
_CUT = 8.0  # seconds: what took longer on a busy machine may have been cut short, so that a miss is not final


class Counting(CostModel):
    """Costs without a device: every operator that runs counts 1, and FLOPs break ties; or the other way round."""

    cache_bytes = None

    def __init__(self, flops: bool) -> None:
        # The backend fuses nothing by itself.
        super().__init__({}, BackendCapabilities("counting", (), ONNX_RUNTIME_CPU.views))
        self.flops = flops

    @property
    def digest(self) -> str:
        return f"counting {'FLOPs' if self.flops else 'operators'}"

    def _view(self) -> CostEstimate:
        return CostEstimate(0.5 if not self.flops else 0.01, "measured")

    def _lookup(self, question: MeasurementRequest) -> CostEstimate:
        work = question.work[0] / 1e3
        return CostEstimate(work + 0.01 if self.flops else 1.0 + 1e-6 * work, "measured")


@dataclass(frozen=True)
class Found:
    """What the search made of a pattern: whether that is the pattern's goal, and the rules that it rests on."""

    pattern: Pattern
    reached: bool
    before: str
    after: str
    rules: tuple[str, ...]
    verdict: str
    names: Sequence[str]


def running(graph: Graph) -> list[str]:
    """Operators that run at inference, in order: those that do not read weights alone."""
    fixed = set(graph.constants)
    names = []
    for node in graph.nodes:
        if all(n in fixed for n in node.reads):
            fixed.update(node.outputs)
        else:
            names.append(node.op)
    return names


def look(pattern: Pattern, rules: Sequence[Rule], floats: FloatVerdictStore | None = None) -> Found:
    """Search for the pattern's goal: fewest operators, and if that is not it, fewest FLOPs."""
    graph = pattern.graph()
    best: Found | None = None
    options = SearchOptions(time_limit=_SECONDS, least_gain=0.0, floats=floats)
    for flops in (False, True):
        found = search(graph, rules, Counting(flops), options)
        names = running(found.graph)
        verdict = check(graph, found.graph).verdict if found.graph is not graph else "passed"
        used = tuple(a.rule for a in found.applied if a.rule != "fold")
        folded = any(a.rule == "fold" for a in found.applied)
        made = Found(
            pattern, pattern.goal(names) and verdict == "passed", _text(running(graph)), _text(names),
            used or (("constant folding",) if folded else ("tidying",)), verdict, names,
        )  # fmt: skip
        if best is None or (made.reached and not best.reached):
            best = made
        if best.reached:
            break
    assert best is not None
    return best


def kept(pattern: Pattern, rules: Sequence[Rule]) -> Found:
    """What an earlier run found with the same rules, else what :func:`look` finds."""
    said = [r.id + repr((r.forall, r.where, r.lhs, r.rhs)) for r in rules]
    text = "\n".join((pattern.name, structural_hash(pattern.graph()), *said))
    place = KEPT / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    if place.is_file():
        before, after, used, verdict, names = json.loads(place.read_text(encoding="utf-8"))
        return Found(pattern, pattern.goal(names) and verdict == "passed", before, after, tuple(used), verdict, names)
    start = time.monotonic()
    found = look(pattern, rules)
    if not found.reached and time.monotonic() - start > _CUT:
        print(f"{pattern.name}: searched on a busy machine, so this miss may be one of time", file=sys.stderr)
        return found
    KEPT.mkdir(parents=True, exist_ok=True)
    data = (found.before, found.after, found.rules, found.verdict, list(found.names))
    place.write_text(json.dumps(data), encoding="utf-8")
    return found


def _text(names: Sequence[str]) -> str:
    """``Conv, Add ×2``"""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{op} ×{n}" if n > 1 else op for op, n in counts.items()) or "nothing"


def table(found: Sequence[Found]) -> str:
    """The Markdown document."""
    reached = [f for f in found if f.reached]
    lines = [
        "# Patterns of other tools", "",
        "Written by `python corpus/patterns.py` (`make patterns`); do not edit.", "",
        "Other optimisers are lists of patterns. superopt has none: these small graphs, rebuilt from the public "
        "descriptions of ONNX Runtime's graph optimisations (ORT), onnxoptimizer's passes (which onnxsim runs), "
        "OnnxSlim and onnxscript's rewriter, are given to the search with the rule library, and it is asked for the "
        "fewest operators, else the fewest FLOPs (not for the least time on a device: there a pattern may not pay). "
        "Every result was checked against what ONNX Runtime makes of the input; one that the check refuses is "
        "missed.", "",
        f"**{len(reached)} of {len(found)} found.**", "",
        "| pattern | known to | before | after | found by |", "|---|---|---|---|---|",
    ]  # fmt: skip
    for f in reached:
        shown = ", ".join(f"`{r}`" if r not in ("constant folding", "tidying") else r for r in f.rules[:4])
        more = f" and {len(f.rules) - 4} more" if len(f.rules) > 4 else ""
        lines.append(f"| {f.pattern.name} | {f.pattern.tools} | {f.before} | {f.after} | {shown}{more} |")
    missed = [f for f in found if not f.reached]
    lines += ["", "## Missed", "", "| pattern | known to | before | what came out | why |", "|---|---|---|---|---|"]
    for f in missed:
        refused = f.verdict != "passed" and f.pattern.goal(f.names)
        why = (
            "the check refuses the result: it rounds more than the input's own rounding explains"
            if refused
            else (f.pattern.why or "the search does not get there with these rules")
        )
        lines.append(f"| {f.pattern.name} | {f.pattern.tools} | {f.before} | {f.after} | {why} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Look at the patterns; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="parts of patterns' names; without, all, and the table is written")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the committed table differs")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="S", help="stop after so long (600)")
    given = parser.parse_args(arguments)
    deadline = time.monotonic() + given.time_limit
    rules = load_library().admitted
    chosen = [p for p in PATTERNS if not given.names or any(n.lower() in p.name.lower() for n in given.names)]
    found = []
    for pattern in chosen:
        if time.monotonic() > deadline:
            print(f"{len(found)} of {len(chosen)} done, time is up: run it again to go on", file=sys.stderr)
            return 3
        start = time.process_time()
        found.append(kept(pattern, rules))
        mark, seconds = "found " if found[-1].reached else "MISSED", time.process_time() - start
        print(f"{mark} {pattern.name}: {found[-1].before} -> {found[-1].after} ({seconds:.1f} s)", file=sys.stderr)
    wrong = [f.pattern.name for f in found if f.verdict != "passed"]
    if wrong:
        print(f"refused by the check: {', '.join(wrong)}", file=sys.stderr)
    text = table(found)
    if given.check:
        return 0 if TABLE.is_file() and TABLE.read_text(encoding="utf-8") == text else 1
    if not given.names:
        TABLE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
