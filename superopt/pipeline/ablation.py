"""What rules are worth: the same models optimised with different libraries, and with none.

``make bench-ablation`` compares the library with the sound rules of TASO's that are stated in our format, and with no
rules at all (what is left is computing on constants). All share one cost model, one search and its limits; only the
rules differ. Modelled costs are what the search minimises; ``measure`` also times each result beside its model.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from superopt import cost as costs
from superopt.ir.errors import SuperoptError, UsageError
from superopt.ir.graph import Graph
from superopt.pipeline.optimise import Progress, load, quiet
from superopt.pipeline.racing import measure as timed
from superopt.rules import Rule, load_library
from superopt.search import SearchOptions, search
from superopt.verifier.admission import admit
from superopt.verifier.prover import prove

__all__ = ["Outcome", "ablate", "admitted", "document", "main"]

NONE = "no rules"
_SAME = 1e-3  # modelled costs closer than this share are one: candidates of equal cost are told apart by noise


@dataclass(frozen=True)
class Outcome:
    """One model with one library.

    Attributes:
        before_us, after_us: modelled cost of the model and of the result.
        rules: rule → how often it was applied.
        stopped: why the search ended.
        ratio: measured time after ÷ before, if it was measured; 1 where the model was returned as it is.
        failure: why there is no result.
    """

    model: str
    library: str
    before_us: float = 0.0
    after_us: float = 0.0
    rules: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""
    seconds: float = 0.0
    ratio: float | None = None
    failure: str = ""


def admitted(folder: Path | None) -> tuple[Rule, ...]:
    """The rules of a folder (the built-in library without one), each proved; nothing unproved is used.

    Raises:
        RuleError: a rule of the folder does not parse, is false, or is not proved.
    """
    if folder is None:
        return load_library().admitted
    return admit(load_library(folder, built_in=False), prover=prove).admitted


def ablate(
    models: Sequence[str | Path | Graph], libraries: Mapping[str, tuple[Rule, ...]], *, target: str = "cpu",
    time_limit: float = 30.0, measure: bool = False, sizes: Mapping[str, int] | None = None, progress: Progress = quiet,
) -> list[Outcome]:  # fmt: skip
    """Optimise every model with every library, and with no rules.

    Args:
        models: paths or graphs.
        libraries: rules by name.
        target: as for :func:`superopt.optimize`; on ``cpu`` operators that no profile knows are measured.
        time_limit: seconds of each search.
        measure: also time each result beside its model, with ONNX Runtime.
        sizes: of symbolic dimensions.
        progress: called with (done, total, what).
    """
    chosen = {**libraries, NONE: ()}
    limits = SearchOptions(time_limit=time_limit, sizes=sizes or {}, confirm=False)
    outcomes: list[Outcome] = []
    with costs.for_target(target, progress=quiet, sizes=sizes) as model_costs:
        for position, source in enumerate(models):
            name = source.name if isinstance(source, Graph) else Path(source).stem
            for number, (library, rules) in enumerate(chosen.items()):
                progress(position * len(chosen) + number, len(models) * len(chosen), f"{name}, {library}")
                outcome = Outcome(name, library)
                try:
                    graph = load(source)
                    found = search(graph, rules, model_costs, limits)
                except SuperoptError as error:
                    outcomes.append(replace(outcome, failure=str(error)))
                    continue
                if not found.before_us:
                    outcomes.append(replace(outcome, failure=f"not searched: {found.stopped}"))
                    continue
                outcome = replace(
                    outcome, before_us=found.before_us, after_us=found.after_us, stopped=found.stopped,
                    rules={a.rule: a.count for a in found.applied}, seconds=found.seconds,
                )  # fmt: skip
                outcomes.append(_raced(outcome, graph, found.graph, sizes or {}) if measure else outcome)
    return outcomes


def _raced(outcome: Outcome, before: Graph, after: Graph, sizes: Mapping[str, int]) -> Outcome:
    if after is before:
        return replace(outcome, ratio=1.0)
    try:
        return replace(outcome, ratio=timed(before, after, sizes=sizes).ratio)
    except SuperoptError as error:
        return replace(outcome, failure=f"not timed: {error}")


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The table as JSON data: a row per model, a column per library; where the first library is not the best."""
    names = list(dict.fromkeys(o.library for o in outcomes))
    rows: dict[str, dict[str, Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault(outcome.model, {})[outcome.library] = outcome
    behind = [
        m for m, row in rows.items()
        if any(row[names[0]].after_us > o.after_us * (1 + _SAME) for o in row.values() if not o.failure)
        or row[names[0]].failure
    ]  # fmt: skip
    return {
        "format": "superopt.ablation", "version": 1, "libraries": names, "behind": behind,
        "models": [
            {"model": m, "outcomes": {
                n: {"before_us": o.before_us, "after_us": o.after_us, "rules": dict(o.rules), "stopped": o.stopped,
                    "seconds": o.seconds, "ratio": o.ratio, "failure": o.failure} for n, o in row.items()}}
            for m, row in rows.items()
        ],
    }  # fmt: skip


def _table(data: Mapping[str, Any]) -> str:
    """Modelled cost after ÷ before per library, and the measured ratio where there is one."""
    names = data["libraries"]
    width = max([len(r["model"]) for r in data["models"]] + [5])
    lines = [f"{'model':{width}}  " + "  ".join(f"{n:>24}" for n in names)]
    for row in data["models"]:
        cells = []
        for name in names:
            o = row["outcomes"][name]
            text = o["failure"][:22] if not o["before_us"] else f"{o['after_us'] / o['before_us']:.3f}"
            cells.append(text + ("" if o["ratio"] is None else f" (measured {o['ratio']:.3f})"))
        lines.append(f"{row['model']:{width}}  " + "  ".join(f"{c:>24}" for c in cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m superopt.pipeline.ablation MODEL... [--library NAME=DIR]``; exit code 6 where the first is behind.

    Raises:
        UsageError: a library is not written ``NAME=DIR``.
    """
    parser = argparse.ArgumentParser(prog="python -m superopt.pipeline.ablation", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument(
        "--library", action="append", default=[], metavar="NAME=DIR",
        help="beside the built-in library, which comes first; NAME= (no folder) is the built-in one under another name",
    )  # fmt: skip
    parser.add_argument("--target", default="cpu", help="cpu, or profile:NAME for recorded costs")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="of each search")
    parser.add_argument("--measure", action="store_true", help="also time each result beside its model")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    libraries: dict[str, tuple[Rule, ...]] = {"discovered": admitted(None)}
    for text in given.library:
        name, found, folder = text.partition("=")
        if not found:
            raise UsageError(f"--library {text} is not NAME=DIR")
        libraries[name] = admitted(Path(folder) if folder else None)

    def show(done: int, total: int | None, what: str) -> None:
        print(f"{done}/{total} {what}", file=sys.stderr, flush=True)

    outcomes = ablate(given.models, libraries, target=given.target, time_limit=given.time_limit,
                      measure=given.measure, progress=show)  # fmt: skip
    data = document(outcomes)
    print(_table(data))
    if given.json is not None:
        given.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    for model in data["behind"]:
        print(f"behind another library: {model}", file=sys.stderr)
    return 6 if data["behind"] else 0


if __name__ == "__main__":
    sys.exit(main())
