"""How a terminal shows inspections, differences, costs and provenance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from superopt.ir.diff import GraphDiff
from superopt.ir.errors import printable
from superopt.ir.graph import Graph, Node
from superopt.ir.provenance import RULES
from superopt.report.model import ordered
from superopt.report.quantities import bytes_text, count_text, time_text
from superopt.report.terminal import table
from superopt.rules.floats import MOST_ERROR

if TYPE_CHECKING:
    from superopt.verifier.equivalence.graphs import GraphVerdict

__all__ = [
    "diff_data", "show_cost", "show_diff", "show_inspection", "show_provenance",
    "show_verdict", "verdict_data",
]  # fmt: skip


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


def show_diff(console: Console, a: str, b: str, found: GraphDiff, limit: int = 40) -> None:
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
        for node in side[:limit]:
            reads = ", ".join(printable(n, 30) for n in node.inputs)
            console.print(escape(f"{mark} {printable(node.name, 60)}: {printable(node.op)}({reads})"))
        if len(side) > limit:
            console.print(f"{mark} and {len(side) - limit} more (--json lists all)")


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


def show_verdict(console: Console, a: str, b: str, data: Mapping[str, Any], limit: int = 20) -> None:
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
        _show_list(
            console, [f"differs at {printable(text, 300)}" for text in data["beyond_the_reals"]], limit, "places"
        )
    _show_list(console, [f"not exercised: {printable(text, 200)}" for text in data["unexercised"]], limit, "places")
    tested = [r for r in data["regions"] if r["verdict"] == "tested"]
    lines = [f"{printable(r['output'], 60)}: {r['verdict']}, {printable(r['reason'], 200)}" for r in tested]
    _show_list(console, lines, limit, "regions")


def _show_list(console: Console, lines: Sequence[str], limit: int, what: str) -> None:
    for line in lines[:limit]:
        console.print(escape(f"  {line}"))
    if len(lines) > limit:
        console.print(f"  and {len(lines) - limit} more {what} (--json lists all)")


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
    roof = facts["roofline"]
    if "flops_per_second" in roof:
        cached = roof.get("cache_bytes_per_second")
        console.print(
            f"ceilings measured on {escape(printable(roof['device']))}: "
            f"{count_text(roof['flops_per_second'], 'FLOP/s')}, {count_text(roof['bytes_per_second'], 'B/s')} from "
            "memory" + ("" if cached is None else f", {count_text(cached, 'B/s')} from the last cache")
        )


def show_provenance(console: Console, graph: Graph) -> None:
    """Which rules made the nodes of a graph that superopt wrote; nothing for any other graph."""
    made = [(n, n.metadata[RULES]) for n in graph.nodes if RULES in n.metadata]
    if made:
        rows = [(printable(n.name, 60), printable(n.op), printable(rules, 200)) for n, rules in made]
        console.print(table("node", "operator", "made by", rows=rows))
