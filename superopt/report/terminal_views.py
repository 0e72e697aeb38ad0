"""How a terminal shows inspections, differences, costs and provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from superopt import cost as costs
from superopt.ir.diff import GraphDiff
from superopt.ir.errors import UsageError, printable
from superopt.ir.graph import PASS, RULES, Graph, Node
from superopt.report.memory_timeline_plot import tops
from superopt.report.optimization_report import ordered
from superopt.report.quantities import bytes_text, count_text, time_text
from superopt.report.terminal import table
from superopt.rules.float_verdicts import MOST_ERROR
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.protocol import released

if TYPE_CHECKING:
    from superopt.verifier.equivalence.graphs import GraphVerdict

__all__ = [
    "census_data",
    "coverage_data",
    "diff_data",
    "growth",
    "profile_rows",
    "recorded_data",
    "show_census",
    "show_cost",
    "show_coverage",
    "show_diff",
    "show_growth",
    "show_inspection",
    "show_memory",
    "show_profiles",
    "show_provenance",
    "show_recorded",
    "show_repetition",
    "show_rule_matches",
    "show_validation",
    "show_verdict",
    "verdict_data",
]

_MOST_NODES = 40  # of each side of a difference: a screen; --json lists all
_MOST_PLACES = 3  # of each outcome of a rule; --json lists all
_MOST_LINES = 20  # of each list of a verdict: what a screen holds below the rest; --json lists all


def show_inspection(console: Console, name: str, facts: Mapping[str, Any]) -> None:
    """What a model is, on one screen."""
    console.print(f"[bold]{escape(printable(name))}[/bold]  graph {escape(printable(facts['name']))}", end="  ")
    console.print("opset " + escape(", ".join(f"{printable(d or 'ai.onnx')} {v}" for d, v in facts["opset"].items())))
    rows = [("input", printable(v["name"]), printable(v["type"])) for v in facts["inputs"]]
    rows += [("output", printable(v["name"]), printable(v["type"])) for v in facts["outputs"]]
    console.print(table("", "name", "type", rows=rows))
    weights, work = facts["weights"], facts["work"]
    console.print(
        f"{facts['nodes']} nodes, {weights['count']} weights of {count_text(weights['elements'])} elements "
        f"({bytes_text(weights['bytes'])})"
    )
    console.print(
        f"work: {count_text(work['flops'], 'FLOP')}, {bytes_text(work['bytes'])} moved, "
        f"{'–' if work['intensity'] is None else format(work['intensity'], '.1f')} FLOP per byte"
    )
    console.print(
        f"memory at inference: weights {bytes_text(work['weight_bytes'])}, activations alive at once "
        f"{bytes_text(work['peak_activation_bytes'])}"
    )
    headers = ("operator", "nodes", "FLOP", "bytes moved", "FLOP per byte")
    console.print(table(*headers, rows=_by_operator(facts), numeric=(1, 2, 3, 4)))
    if facts["opaque"]:
        rows = [(printable(o["op"]), str(o["count"]), printable(o["reason"])) for o in facts["opaque"]]
        console.print(table("opaque to superopt", "nodes", "because", rows=rows, numeric=(1,)))


def _by_operator(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Nodes by operator with their work; operators whose nodes only make weights, or only rename memory, have none."""
    done: dict[str, tuple[int, int]] = {}
    for node in facts["work"].get("nodes", ()):
        flops, moved = done.get(node["op"], (0, 0))
        done[node["op"]] = (flops + node["flops"], moved + node["bytes"])
    rows: list[tuple[str, ...]] = []
    for op, count in facts["operators"].items():
        flops, moved = done.get(op, (0, 0))
        shown = (count_text(flops), bytes_text(moved), f"{flops / moved:.1f}") if moved else ("–", "–", "–")
        rows.append((printable(op), str(count), *shown))
    return rows


def diff_data(found: GraphDiff) -> dict[str, Any]:
    """A difference as JSON data."""

    def nodes(side: Sequence[Node]) -> list[dict[str, Any]]:
        return [{"name": n.name, "op": n.op, "inputs": list(n.inputs), "outputs": list(n.outputs)} for n in side]

    return {
        "format": "superopt.diff", "version": 1, "identical": found.identical, "shared_nodes": found.shared,
        "signature": list(found.signature), "same_outputs": list(found.same_outputs),
        "only_a": nodes(found.only_a), "only_b": nodes(found.only_b),
    }  # fmt: skip


def show_diff(console: Console, a: str, b: str, found: GraphDiff) -> None:
    """Counts by operator, then the nodes of either side that the other does not have."""
    for line in found.signature:
        console.print(escape(printable(line, 400)))
    if found.identical:
        console.print(f"the graphs are the same but for names ({found.shared} nodes)")
        return
    console.print(
        f"{found.shared} nodes compute the same; only in A: {len(found.only_a)}, only in B: {len(found.only_b)}"
    )
    counts_a, counts_b = ordered(n.op for n in found.only_a), ordered(n.op for n in found.only_b)
    rows = [
        (printable(op), str(counts_a.get(op, 0)), str(counts_b.get(op, 0)))
        for op in dict.fromkeys((*counts_a, *counts_b))
    ]
    console.print(
        table("operator", f"only in A {printable(a, 40)}", f"only in B {printable(b, 40)}", rows=rows, numeric=(1, 2))
    )
    for mark, side in (("-", found.only_a), ("+", found.only_b)):
        for node in side[:_MOST_NODES]:
            reads = ", ".join(printable(n, 30) for n in node.inputs)
            console.print(escape(f"{mark} {printable(node.name, 60)}: {printable(node.op)}({reads})"))
        if len(side) > _MOST_NODES:
            console.print(f"{mark} and {len(side) - _MOST_NODES} more (--json lists all)")


def verdict_data(found: GraphVerdict) -> dict[str, Any]:
    """The verdict on two models as JSON data; an error that is not finite is ``null``."""
    check = found.check
    power = check.power
    return {
        "format": "superopt.verdict", "version": 1, "verdict": found.verdict, "words": found.words,
        "reason": found.reason,
        "nodes": {"same": found.same, "proved": found.proved, "tested": found.tested},
        "proved_share": found.proved_share,
        "folded_constants": found.folded, "max_ulp": found.max_ulp,
        "regions": [vars(region) for region in found.regions],
        "check": {"verdict": check.verdict, "trials": check.trials, "max_abs_error": _finite(check.max_abs_error),
                  "max_rel_error": _finite(check.max_rel_error), "reference": check.reference, "reason": check.reason},
        "beyond_the_reals": list(check.beyond),
        "power": None if power is None else {
            "share": power.share, "mutants": power.mutants, "caught": power.caught,
            "changed": "A" if power.of_original else "B",
        },
        "unexercised": [] if power is None else list(power.unexercised),
    }  # fmt: skip


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None


def show_verdict(console: Console, a: str, b: str, data: Mapping[str, Any]) -> None:
    """The verdict on two models, then the regions that were only tested."""
    console.print(f"[bold]{escape(data['words'])}[/bold]  {escape(printable(a))}  {escape(printable(b))}")
    nodes = data["nodes"]
    if data["verdict"] != "refuted":
        console.print(
            f"of B's nodes {nodes['same']} are literally in A, {nodes['proved']} are in regions proved equal, "
            f"{nodes['tested']} in regions only tested ({data['proved_share']:.0%} same or proved)"
        )
    check = data["check"]
    far, relative = (
        "not finite" if check[k] is None else f"{check[k]:.2e}" for k in ("max_abs_error", "max_rel_error")
    )
    if check["trials"]:
        console.print(
            f"run side by side: {check['verdict']}, {check['trials']} trials, judged by the {check['reference']}, "
            f"max rel error {relative}, max abs error {far}"
        )
    if data["power"] is not None and data["verdict"] in ("tested", "unknown"):
        power = data["power"]
        console.print(
            f"the inputs tell {power['caught']} of {power['mutants']} single changes of {power['changed']} apart"
        )
    if data["reason"]:
        console.print(escape(printable(data["reason"], 400)))
    if data["verdict"] == "refuted" and 0.0 < (check["max_rel_error"] or 0.0) <= MOST_ERROR["standard"]:
        console.print(
            f"a result with fewer multiplications may be so near and no nearer: --errors {MOST_ERROR['standard']:.0e} "
            "allows what superopt optimize allows it"
        )
    if "counterexample" in data:
        console.print(escape(f"inputs on which they differ: {data['counterexample']} (numpy.load reads it)"))
    if data["verdict"] != "refuted":
        _show_list(console, [f"differs at {printable(text, 300)}" for text in data["beyond_the_reals"]], "places")
    _show_list(console, [f"not exercised: {printable(text, 200)}" for text in data["unexercised"]], "places")
    tested = [r for r in data["regions"] if r["verdict"] == "tested"]
    lines = [f"{printable(r['output'], 60)}: {r['verdict']}, {printable(r['reason'], 200)}" for r in tested]
    _show_list(console, lines, "regions")


def _show_list(console: Console, lines: Sequence[str], what: str) -> None:
    for line in lines[:_MOST_LINES]:
        console.print(escape(f"  {line}"))
    if len(lines) > _MOST_LINES:
        console.print(f"  and {len(lines) - _MOST_LINES} more {what} (--json lists all)")


def _show_sizes(console: Console, sizes: Mapping[str, int]) -> None:
    """At which sizes of symbolic dimensions something was counted."""
    if sizes:
        told = ", ".join(f"{printable(name, 60)}={size}" for name, size in sorted(sizes.items()))
        console.print(f"counted at {told}; other sizes: --dim NAME=SIZE", markup=False, highlight=False, soft_wrap=True)


def show_cost(console: Console, name: str, facts: Mapping[str, Any], top: int) -> None:
    """The costliest nodes and the total."""
    nodes = sorted(facts["nodes"], key=lambda n: -n["us"])
    whole = facts["us"] or 1.0
    rows = [
        (
            printable(n["node"], 60), printable(n["op"]), time_text(n["us"]), f"{n['us'] / whole:.1%}",
            "–" if n["intensity"] is None else f"{n['intensity']:.1f}",
            "–" if n["of_roof"] is None else f"{n['of_roof']:.0%}", n["source"],
        )
        for n in nodes[:top]
    ]  # fmt: skip
    headers = ("node", "operator", "time", "share", "FLOP/B", "of roof", "source")
    console.print(table(*headers, rows=rows, numeric=(2, 3, 4, 5)))
    if len(nodes) > top:
        rest = sum(n["us"] for n in nodes[top:])
        console.print(f"and {len(nodes) - top} more nodes, {time_text(rest)} together (--top shows more)")
    sources = Counter(n["source"] for n in nodes)
    console.print(
        f"[bold]{escape(printable(name))}[/bold] {time_text(facts['us'])} on {facts['target']}, "
        f"{facts['measured_share']:.0%} of it measured ({', '.join(f'{c} {s}' for s, c in sorted(sources.items()))})"
    )
    console.print(
        f"{count_text(facts['flops'], 'FLOP')}, {bytes_text(facts['bytes'])} moved, weights "
        f"{bytes_text(facts['weight_bytes'])}, peak activations {bytes_text(facts['peak_activation_bytes'])}"
    )
    _show_sizes(console, facts["sizes"])
    roof = facts["roofline"]
    if "flops_per_second" in roof:
        cached = roof.get("cache_bytes_per_second")
        console.print(
            f"ceilings measured on {escape(printable(roof['device']))}: "
            f"{count_text(roof['flops_per_second'], 'FLOP/s')}, {count_text(roof['bytes_per_second'], 'B/s')} from "
            "memory" + ("" if cached is None else f", {count_text(cached, 'B/s')} from the last cache")
        )


def show_provenance(console: Console, graph: Graph) -> None:
    """Which pass, by which rules, made the nodes of a graph that superopt wrote; nothing for any other graph."""
    rows = [
        (
            printable(node.name, 60), printable(node.op), printable(node.metadata.get(PASS, ""), 60),
            printable(node.metadata.get(RULES, ""), 200),
        )
        for node in graph.nodes
        if node.metadata.keys() & {RULES, PASS}
    ]  # fmt: skip
    if rows:
        console.print(table("node", "operator", "pass", "rules", rows=rows))


def show_rule_matches(console: Console, found: Mapping[str, Any]) -> None:
    """Where a rule matches a model, and what refuses it elsewhere: a row for each outcome."""
    console.print(f"[bold]{escape(found['rule'])}[/bold]  {found['verdict']}")
    if not found["searched"]:
        console.print(f"  --effort {found['effort']} does not use this rule")
    for direction in found["directions"]:
        console.print(f"{escape(direction['from'])}\n→ {escape(direction['to'])}")
        if direction["refusal"]:
            console.print(f"  nowhere: {escape(direction['refusal'])}")
            continue
        outcomes: dict[str, list[Mapping[str, Any]]] = {}
        for place in direction["places"]:
            outcomes.setdefault(place["refusal"], []).append(place)
        rows = [
            (
                str(len(places)), printable(outcome, 120) or f"matches; saves {_gains(places)} by itself",
                ", ".join(printable(p["node"], 40) for p in places[:_MOST_PLACES])
                + (", …" if len(places) > _MOST_PLACES else ""),
            )
            for outcome, places in sorted(outcomes.items(), key=lambda item: (bool(item[0]), -len(item[1])))
        ]  # fmt: skip
        console.print(table("places", "outcome", "where", rows=rows))


def _gains(places: Sequence[Mapping[str, Any]]) -> str:
    least, most = (f(float(p["gain_us"]) for p in places) for f in (min, max))
    texts = [f"-{time_text(-us)}" if us < 0 else time_text(us) for us in (least, most)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"


# -- Cost profiles -------------------------------------------------------------------------------------------------


def profile_rows() -> list[dict[str, Any]]:
    """The profiles that ship with superopt as JSON data: name, target, the header of each, and how this machine
    compares (``calibration``, ``None`` until an optimisation has measured it, and where it is of no ``processor``;
    ``runtime_here``)."""
    known = costs.list_calibrations()
    here = released(ONNX_RUNTIME)
    headers = {name: costs.shipped_header(name) for name in costs.profile_names()}
    return [
        {
            "name": name, "target": f"profile:{name}", **header,
            "processor": costs.BACKENDS[str(header["backend"])].processor,
            "calibration": asdict(known[name]) if name in known else None, "runtime_here": here,
        }
        for name, header in headers.items()
    ]  # fmt: skip


def show_profiles(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """A line per profile: what it was recorded on, when, and how much it holds."""
    if not rows:
        console.print("no profile ships with this superopt; record one with superopt profile")
        return
    lines = [
        (
            f"profile:{row['name']}", printable(str(row.get("device", ""))), str(row.get("cores", "")),
            printable(str(row.get("runtime", ""))), str(row["records"]), str(row.get("date", ""))[:10],
        )
        for row in rows
    ]  # fmt: skip
    console.print(table("target", "device", "cores", "runtime", "records", "date", rows=lines, numeric=(2, 4)))
    for row in rows:
        if (found := row["calibration"]) is not None:
            factors = ", ".join(f"{bound} ×{factor:.2f}" for bound, factor in found["factors"].items())
            console.print(
                f"this machine against {printable(row['name'])}: {factors} (single records ±{found['sigma']:.0%}; "
                f"{found['records']} timed in {found['seconds']:.1f} s)", markup=False
            )  # fmt: skip
        elif row["processor"]:
            console.print(f"this machine against {printable(row['name'])}: not measured yet", markup=False)
        else:
            console.print(
                f"{printable(row['name'])}: no processor; its prices stand as they were recorded", markup=False
            )
        recorded, here = str(row.get("runtime", "")), row["runtime_here"]
        if recorded != here and recorded.partition(" ")[0] == here.partition(" ")[0]:
            console.print(
                f"{printable(row['name'])} was recorded with {printable(recorded)}, and {here} runs here: what this "
                "machine measures itself is right, recorded prices of operators that have changed since are not; "
                "superopt profile records anew", markup=False
            )  # fmt: skip


def recorded_data(file: str, header: Mapping[str, Any], summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a recording did, as JSON data."""
    return {"format": "superopt.recorded", "version": 1, "file": file, **summary, "header": dict(header)}


def show_recorded(console: Console, data: Mapping[str, Any]) -> None:
    """What was measured, how much of what the optimiser asks for, and whether the machine was steady."""
    share = data["answered"] / data["asked"] if data["asked"] else 1.0
    console.print(
        f"wrote {data['records']} records to {escape(printable(data['file']))}; {data['measured']} measured now, in "
        f"{data['seconds']:.0f} s"
    )
    console.print(
        f"{data['planned']} of {data['models']} models were searched, {data['settled']} of them ask for nothing more; "
        f"of {data['asked']} questions asked now, {data['answered']} are answered ({share:.1%})"
    )
    header = data["header"]
    latest = header["added"][-1] if data["measured"] and header.get("added") else header
    peaks, sentinels = header.get("peaks", {}), latest.get("sentinels", {})
    if peaks:
        speeds = (count_text(peaks["flops_per_s"], "FLOP/s"), count_text(peaks["bytes_per_s"], "B/s"))
        console.print(f"ceilings: {speeds[0]}, {speeds[1]} from memory")
    if sentinels:
        spread = ", ".join(
            f"{name} ±{100 * s['spread']:.1f} %" for name, s in sorted(sentinels.items()) if isinstance(s, Mapping)
        )
        console.print(
            f"drift: {sentinels['blocks']} blocks, {sentinels['repeated']} timed again, {sentinels['drifted']} of them "
            f"still off; sentinels {spread}"
        )
    if not data["complete"]:
        console.print(
            "not complete: the same command goes on where this one stopped (add --extend to keep its figures)"
        )


def coverage_data(file: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How much of what optimising models asks for a profile holds, as JSON data."""
    asked, answered = (sum(row[k] for row in rows) for k in ("asked", "answered"))
    return {
        "format": "superopt.coverage", "version": 1, "profile": file, "asked": asked, "answered": answered,
        "models": [dict(row) for row in rows],
    }  # fmt: skip


def show_coverage(console: Console, data: Mapping[str, Any]) -> None:
    """A line per model: questions of its optimisation, measured answers, and how much of its cost is measured."""
    lines = [
        (
            printable(row["name"], 60), str(row["asked"]), str(row["answered"]), time_text(row["before_us"]),
            f"{row['before_measured']:.0%}", time_text(row["after_us"]), f"{row['after_measured']:.0%}",
        )
        for row in data["models"]
    ]  # fmt: skip
    titles = ("model", "asked", "measured", "before", "of it measured", "after", "of it measured")
    console.print(table(*titles, rows=lines, numeric=(1, 2, 3, 4, 5, 6)))
    share = data["answered"] / data["asked"] if data["asked"] else 1.0
    console.print(
        f"{escape(printable(data['profile']))} holds {data['answered']} of the {data['asked']} answers that optimising "
        f"these models asks for ({share:.1%}); the others are predicted"
    )


# -- Rules in floating point ---------------------------------------------------------------------------------------


Rows = Sequence[Mapping[str, Any]]


def census_data(counts: Mapping[tuple[str, str], int], lost: Rows, broken: Rows) -> dict[str, Any]:
    """``superopt.floats_census``: directions by type and verdict, those that ``standard`` does not use, and breaches.

    Args:
        counts: (type, verdict) → directions.
        lost: rule, direction, verdict and the worst point of what is not used.
        broken: recorded conditions that a point was against.
    """
    by_type: dict[str, dict[str, int]] = {}
    for (dtype, kind), count in sorted(counts.items()):
        by_type.setdefault(dtype, {})[kind] = count
    return {
        "format": "superopt.floats_census", "version": 1, "directions": by_type, "unused": list(lost),
        "breaches": list(broken),
    }  # fmt: skip


def show_census(console: Console, data: Mapping[str, Any]) -> None:
    """Print the counts, and what was found against recorded conditions."""
    types = list(data["directions"])
    kinds = sorted({kind for row in data["directions"].values() for kind in row})
    rows = [(kind, *(str(data["directions"][t].get(kind, 0)) for t in types)) for kind in kinds]
    console.print(table("verdict", *types, rows=rows, numeric=tuple(range(1, len(types) + 1))))
    for breach in data["breaches"]:
        far = breach["error"] or "infinitely many"
        where = f"{breach['rule']} {breach['direction']} in {breach['type']}"
        console.print(f"{where}: off by {far} allowances", markup=False)
    console.print(f"{len(data['unused'])} directions unused by default in float32, {len(data['breaches'])} breaches")


# -- Growth of the library -----------------------------------------------------------------------------------------
#
# How a discovery run grew with the size of terms, from its ``run.json``.


def growth(run: Mapping[str, Any]) -> list[dict[str, float]]:
    """A row for every number of operators a side, the themes together.

    ``terms``, ``classes`` and ``coincidences`` are of terms up to that size; ``candidates`` and ``rules`` those whose
    larger side has that size (a named expression over leaves counts by its operators); ``seconds`` the CPU time
    until all terms of that size were built, and ``mb`` the largest process by then. Those that an older log does not
    tell are left out.

    Raises:
        UsageError: not the log of a discovery run.
    """
    themes = run.get("themes")
    if run.get("format") != "superopt.discovery" or not isinstance(themes, list):
        raise UsageError("not the log of a discovery run", hint="run.json in the folder that superopt discover wrote")
    sizes = {int(level["size"]) for theme in themes for level in theme["levels"]}
    sizes |= {int(key.split("_")[1]) for theme in themes for key in theme if key.startswith("size_")}
    rows = []
    for size in sorted(sizes - {0}):
        row: dict[str, float] = {"size": size}
        for key in ("terms", "classes", "coincidences"):
            row[key] = sum(max((v[key] for v in t["levels"] if v["size"] <= size), default=0) for t in themes)
        for key in ("candidates", "rules"):
            if any(f"size_{size}_{key}" in t for t in themes):
                row[key] = sum(t.get(f"size_{size}_{key}", 0) for t in themes)
        for key, merge in (("seconds", sum), ("mb", max)):
            reached = [
                max(float(t.get(f"size_{n}_{key}", 0)) for n in range(1, size + 1))
                for t in themes
                if f"size_1_{key}" in t
            ]
            if reached:
                row[key] = merge(reached)
        rows.append(row)
    return rows


def show_growth(console: Console, run: Mapping[str, Any]) -> None:
    """The table, and what the whole run came to."""
    columns = ("terms", "classes", "coincidences", "candidates", "rules", "seconds", "mb")
    titles = ("terms", "classes", "equal", "candidates", "rules", "CPU s", "peak MB")
    rows = [
        (str(int(r["size"])), *(f"{r[c]:,.1f}" if c in ("seconds", "mb") and c in r else f"{int(r[c]):,}" if c in r
                                else "–" for c in columns))
        for r in growth(run)
    ]  # fmt: skip
    console.print(table("size", *titles, rows=rows, numeric=tuple(range(len(columns) + 1))))
    console.print(
        f"size: operators a side. {len(run['themes'])} themes; {run['candidates']:,} candidates: {run['derived']:,} "
        f"derived, {run['refuted']:,} refuted, {run['unknown']:,} not proved; {run['proved']:,} rules proved, "
        f"{run['kept']:,} kept; {run['cpu_seconds']:,.0f} CPU s, {run['seconds']:,.0f} s with {run['workers']} "
        f"workers, {run['peak_mb']:,.0f} MB"
    )


# -- Memory --------------------------------------------------------------------------------------------------------


_ROWS, _WIDTH, _SHOWN = 24, 40, 8  # rows of the timeline, cells of its longest bar, buffers at the peak


def show_memory(console: Console, path: str, facts: Mapping[str, Any]) -> None:
    """Print what the activations take: in sum, over the steps, and who holds the peak.

    Args:
        console: where.
        path: the model's, as given.
        facts: :func:`superopt.pipeline.memory_timeline.footprint_data`.
    """
    console.print(path, markup=False, highlight=False)
    size = {k: bytes_text(v) for k, v in facts.items() if k.endswith("_bytes")}
    console.print(
        f"activations {size['peak_bytes']} in {facts['runtime']}: inputs {size['inputs_bytes']}, outputs "
        f"{size['outputs_bytes']}, one block of {size['block_bytes']}; weights {size['weight_bytes']}\n"
        f"alive at once in this order {size['alive_bytes']}; at least in any order {size['bound_bytes']}",
        markup=False, highlight=False, soft_wrap=True,
    )  # fmt: skip
    _show_sizes(console, facts["sizes"])
    steps = facts["steps"]
    if not steps:
        return
    most = max(max(s["taken_bytes"] for s in steps), 1)
    rows = []
    for top in tops(steps, _ROWS):
        full, lives = top["taken_bytes"] * _WIDTH // most, top["alive_bytes"] * _WIDTH // most
        bar = "█" * min(lives, full) + "░" * (full - min(lives, full))
        rows.append((f"{top['step']}", bytes_text(top["taken_bytes"]), bar, f"{top['op']} {top['node']}"))
    console.print(table("step", "memory", "█ alive, ░ reserved besides", "operator", rows=rows))
    held = [
        (
            bytes_text(b["bytes"]),
            f"{b['from']}-{b['to']}",
            ", ".join(b["values"][:3]) + (", …" * (len(b["values"]) > 3)),
        )
        for b in facts["peak_buffers"][:_SHOWN]
    ]
    console.print(table("bytes", "steps", f"held at step {facts['peak_step']}", rows=held))


# -- Predictions of the cost model ---------------------------------------------------------------------------------


def show_validation(console: Console, data: Mapping[str, Any]) -> None:
    """A line per model, a line per rewrite, and the summary (``superopt bench --cost``)."""
    rows = [_model(m) for m in data["models"]]
    console.print(
        table("model", "predicted", "measured", "error", "spread", "profiled in", rows=rows, numeric=(1, 2, 3, 4, 5))
    )
    if data["pairs"]:
        pairs = [_pair(p) for p in data["pairs"]]
        console.print(table("model", "rewritten for", "predicted", "measured", "", rows=pairs, numeric=(2, 3)))
    found = data["summary"]
    if found["median_error"] is not None:
        console.print(
            f"sum of parts against the whole: {found['models']} models, median error {found['median_error']:.1%}, "
            f"worst {found['worst_error']:.1%}, Spearman {found['spearman']:.3f}"
        )
    if found["direction_right"] is not None:
        console.print(
            f"direction right in {found['pairs_right']} of {found['pairs_beyond']} pairs "
            f"({found['direction_right']:.1%}) that measure more than {found['least_change']:.0%} faster "
            f"({found['pairs_faster']}) or slower, of {found['models_of_pairs']} models; {found['pairs']} were measured"
        )
    if left := data.get("left_out"):
        console.print(f"left for another run: {escape(printable(', '.join(left), 400))}")
    held = data["held_out"]
    console.print(
        f"predictor on {held['records']} records that were held out: median error {held['median']:.1%}, 90th "
        f"percentile {held['worst_tenth']:.0%}, Spearman {held['rank']:.3f}; {held['within_one']:.0%} within σ, "
        f"{held['within_two']:.0%} within 2σ"
    )


def _model(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = printable(row["name"], 40)
    if row["failure"]:
        return name, printable(row["failure"], 60), "", "", "", ""
    return (
        name, time_text(row["predicted_us"]), time_text(row["measured_us"]), f"{row['error']:+.1%}",
        f"{row['spread']:.1%}", f"{row['seconds']:.1f} s",
    )  # fmt: skip


def _pair(row: Mapping[str, Any]) -> tuple[str, ...]:
    name = printable(row["name"], 40)
    if row["failure"]:
        return name, row["how"], "", "", printable(row["failure"], 60)
    verdict = ("right" if row["right"] else "WRONG") if row["counts"] else "no clear change"
    return name, row["how"], f"x{row['predicted']:.3f}", f"x{row['measured']:.3f}", verdict


def show_repetition(console: Console, data: Mapping[str, Any]) -> None:
    """What two cold profilings of a model took and how they differ (``superopt bench --cold``)."""
    (first, second), (one, two) = data["seconds"], data["cpu_seconds"]
    console.print(
        f"[bold]{escape(printable(data['name']))}[/bold] profiled twice from nothing: {data['records']} measurements "
        f"in {first:.1f} s and {second:.1f} s ({one:.1f} s and {two:.1f} s of CPU); "
        f"the runs differ by {data['median_difference']:.1%} (median), "
        f"{data['on_ratios']:.1%} on ratios"
    )
