"""What ``discover --from`` finds on networks that are in no corpus and no test, and what it is worth there.

    python -m lab.unseen_network_learning --seed 18 --count 12 --seconds 60 --resume unseen.jsonl [--measure]

A seed draws networks (:mod:`lab.networks`). Of each: rules that are proved for all sizes and that the library
does not derive; whether other exact trials refute one; what optimising costs with the library alone and with them; how
often the search applied them; and, with ``--measure``, both results and the network raced side by side.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from lab.networks import NETWORKS, drawn
from superopt import formats
from superopt.ir.graph import Graph
from superopt.pipeline.optimization import optimize
from superopt.pipeline.options import Options
from superopt.pipeline.rule_learning import learn_from
from superopt.rules.rule import Rule
from superopt.runtime.paired_benchmark import PairedTimes, time_models
from superopt.runtime.synthetic_tensors import feeds_for, with_values
from superopt.verifier.exact.testing import test
from superopt.verifier.verdict import RefutedVerdict

__all__ = ["UnseenNetworkRow", "main", "rendered", "studied"]

_TRIALS = 24  # of each rule, at another seed than discovery's
_RACE, _ROUNDS = 20.0, 150  # seconds; the scatter of 15 rounds is wider than what is asked about


@dataclass(frozen=True)
class UnseenNetworkRow:
    """One network.

    Attributes:
        rules: the learnt ones, as equations; ``shortcuts`` of them are derived by the library, but not found from their
            left sides, and ``false`` are refuted by trials of another seed.
        saves: modelled share of the network's cost, where the rules were found.
        parts, looked_at: parts of the network that are worth looking at, and those there was time for.
        library, learnt: modelled cost of the result ÷ that of the network: by the library alone, and with the rules.
        applied: how often the search applied learnt rules in the result.
        measured: time of both results ÷ the network's, and of the second ÷ the first's, each with its spread.
        notes: what the optimisation with the rules had to say.
    """

    network: str
    rules: tuple[str, ...]
    shortcuts: int
    false: int
    saves: float
    parts: int
    looked_at: int
    seconds: float
    library: float
    learnt: float
    applied: int
    measured: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()


def studied(name: str, folder: Path, *, target: str, seconds: float, seed: int, measure: bool) -> UnseenNetworkRow:
    """What is learnt from a network, and what becomes of it by that.

    Args:
        name: of :data:`lab.networks.NETWORKS`.
        folder: for the model and the rules.
        target: whose prices count.
        seconds: of learning, and of each optimisation.
        seed: of the trials that try to refute a rule.
        measure: race the network and both results.
    """
    graph = NETWORKS[name]()
    model, own = folder / f"{name}.onnx", folder / name
    formats.save(graph, model, force=True)
    outcome = learn_from([model], out=own, target=target, time_limit=seconds)
    cost = outcome.model_us[name]
    options = Options(target=target, time_limit=seconds)
    plain = optimize(model, options=options)
    with_rules = (
        optimize(model, options=Options(target=target, time_limit=seconds, rules=own)) if outcome.rules else plain
    )
    learnt = {r.id for r in outcome.rules}
    raced = _raced(graph, plain.graph, with_rules.graph) if measure and outcome.rules else None
    return UnseenNetworkRow(
        name, tuple(map(_equation, outcome.rules)), outcome.shortcuts, sum(_refuted(r, seed) for r in outcome.rules),
        outcome.saved_us[name] / cost if cost else 0.0, outcome.targets, outcome.looked_at, outcome.seconds,
        plain.report.cost.after_us / plain.report.cost.before_us,
        with_rules.report.cost.after_us / with_rules.report.cost.before_us,
        sum(a.count for a in with_rules.report.rules_applied if a.rule in learnt),
        () if raced is None else ((raced.ratios[1], raced.spread[1]), (raced.ratios[2], raced.spread[2])),
        with_rules.report.notes if outcome.rules else (),
    )  # fmt: skip


def _refuted(rule: Rule, seed: int) -> bool:
    return isinstance(test(rule, seed=seed, trials=_TRIALS), RefutedVerdict)


def _equation(rule: Rule) -> str:
    return f"{', '.join(map(str, rule.lhs))} = {', '.join(map(str, rule.rhs))}"


def _raced(graph: Graph, *results: Graph) -> PairedTimes:
    """The network and results of it, side by side."""
    given_graph = with_values(graph)
    models = [formats.to_onnx_bytes(g) for g in (given_graph, *results)]
    return time_models(models, feeds_for(given_graph), threads=1, clock="cpu", time_limit=_RACE, rounds=_ROUNDS)


def rendered(rows: Sequence[UnseenNetworkRow]) -> str:
    """A table in Markdown, and what it comes to."""
    lines = [
        "| network | rules | shortcuts | parts looked at | CPU s | saves, modelled | modelled: library | with rules "
        "| applied | measured: library | with rules |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        times = [f"{ratio:.3f} ± {spread:.3f}" for ratio, spread in r.measured] or ["", ""]
        cells = (
            r.network, len(r.rules) - r.shortcuts, r.shortcuts, f"{r.looked_at} of {r.parts}", f"{r.seconds:.0f}",
            f"{r.saves:.1%}", f"{r.library:.3f}", f"{r.learnt:.3f}", r.applied, *times,
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    own = [len(r.rules) - r.shortcuts for r in rows]
    better = sum(r.learnt < 0.98 * r.library for r in rows)
    lines += [
        "",
        f"{len(rows)} networks; on {sum(n > 0 for n in own)} there are rules that the library does not derive, "
        f"{sum(own)} in all, {sum(r.false for r in rows)} of them refuted by other trials; on "
        f"{sum(r.applied > 0 for r in rows)} the search applied them, on {better} the result is modelled at least 2 % "
        f"better than the library's alone.",
        "",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Study networks and print the table.

    Args:
        arguments: see ``--help``.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=18, help="of the draw")
    parser.add_argument("--count", type=int, default=12, help="networks")
    parser.add_argument("--names", nargs="*", choices=sorted(NETWORKS), help="these instead of a draw")
    parser.add_argument("--seconds", type=float, default=60.0, help="of learning, and of each optimisation")
    parser.add_argument("--target", default="profile:cpu-epyc-2core")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--resume", type=Path, required=True, help="JSON lines: networks in it are not studied again")
    given = parser.parse_args(arguments)
    names = given.names or drawn(given.seed, given.count)
    known: dict[str, UnseenNetworkRow] = {}
    if given.resume.exists():
        read = (json.loads(line) for line in given.resume.read_text().splitlines())
        known = {row["network"]: UnseenNetworkRow(**row) for row in read}
    for name in names:
        if name in known:
            continue
        with TemporaryDirectory() as folder:
            known[name] = studied(
                name, Path(folder), target=given.target, seconds=given.seconds, seed=given.seed + 1,
                measure=given.measure,
            )  # fmt: skip
        with given.resume.open("a") as file:
            file.write(json.dumps(asdict(known[name])) + "\n")
    print(rendered([known[n] for n in names]))


if __name__ == "__main__":
    main()
