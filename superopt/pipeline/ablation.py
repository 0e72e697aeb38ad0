"""What rules are worth: the same models optimised with different libraries, and with none.

``make bench-ablation`` compares the library with the sound rules of TASO's that are stated in our format, and with no
rules at all (what is left is computing on constants). All share one cost model, one search and its limits; only the
rules differ. Modelled costs are what the search minimises; ``measure`` also times each result beside its model.

With ``--json FILE`` the table is written after every model, and a model that stands there already, with the same
rules and limits, is not searched again: a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from superopt import cost as costs
from superopt.ir.errors import SuperoptError, UsageError
from superopt.ir.graph import Graph
from superopt.pipeline.optimise import Progress, load, quiet
from superopt.pipeline.racing import measure as timed
from superopt.rules import Rule, load_library
from superopt.rules.canonical import rule_text
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
        key: digest of the model's file, the rules and the limits.
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
    key: str = ""


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
    time_limit: float = 30.0, measure: bool = False, sizes: Mapping[str, int] | None = None, workers: int = 1,
    known: Mapping[str, Outcome] | None = None, progress: Progress = quiet,
) -> Iterator[list[Outcome]]:  # fmt: skip
    """Optimise every model with every library, and with no rules.

    Args:
        models: paths or graphs.
        libraries: rules by name.
        target: as for :func:`superopt.optimize`; on ``cpu`` operators that no profile knows are measured.
        time_limit: seconds of each search.
        measure: also time each result beside its model, with ONNX Runtime.
        sizes: of symbolic dimensions.
        workers: processes, each with models of its own.
        known: outcomes by key, which are not searched for again.
        progress: called with (done, total, what).

    Yields:
        The outcomes of one model, in the order of the libraries; with several workers, models as they are finished.
    """
    rows = partial(
        _row, chosen={**libraries, NONE: ()}, target=target, time_limit=time_limit, measure=measure,
        sizes=sizes or {}, known=known or {},
    )  # fmt: skip
    if workers <= 1:
        for done, source in enumerate(models):
            progress(done, len(models), _name(source))
            yield rows(source)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting = {pool.submit(rows, source): source for source in models}
        for done, future in enumerate(as_completed(waiting), 1):
            progress(done, len(models), _name(waiting[future]))
            yield future.result()


def _name(source: str | Path | Graph) -> str:
    if isinstance(source, Graph):
        return source.name
    path = Path(source)
    return f"tiny/{path.stem}" if path.parent.name == "tiny" else path.stem


def _row(
    source: str | Path | Graph, *, chosen: Mapping[str, tuple[Rule, ...]], target: str, time_limit: float,
    measure: bool, sizes: Mapping[str, int], known: Mapping[str, Outcome],
) -> list[Outcome]:  # fmt: skip
    """One model with each library."""
    made: list[Outcome] = []
    limits = SearchOptions(time_limit=time_limit, sizes=sizes, confirm=False)
    contents = source.name.encode() if isinstance(source, Graph) else Path(source).read_bytes()
    with costs.for_target(target, progress=quiet, sizes=sizes) as model_costs:
        for library, rules in chosen.items():
            told = [target, time_limit, measure, sorted(sizes.items()), sorted(map(rule_text, rules))]
            key = hashlib.sha256(contents + json.dumps(told).encode()).hexdigest()
            if key in known:
                made.append(replace(known[key], library=library))
                continue
            outcome = Outcome(_name(source), library, key=key)
            try:
                graph = load(source)
                found = search(graph, rules, model_costs, limits)
            except SuperoptError as error:
                made.append(replace(outcome, failure=str(error)))
                continue
            if not found.before_us:
                made.append(replace(outcome, failure=f"not searched: {found.stopped}"))
                continue
            outcome = replace(
                outcome, before_us=found.before_us, after_us=found.after_us, stopped=found.stopped,
                rules={a.rule: a.count for a in found.applied}, seconds=found.seconds,
            )  # fmt: skip
            made.append(_raced(outcome, graph, found.graph, sizes) if measure else outcome)
    return made


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
            {"model": m, "outcomes": {n: {k: v for k, v in asdict(o).items() if k not in ("model", "library")}
                                      for n, o in row.items()}}
            for m, row in rows.items()
        ],
    }  # fmt: skip


def _recorded(path: Path | None) -> dict[str, Outcome]:
    """Outcomes of an earlier run by key; none where there is no such file."""
    if path is None or not path.is_file():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        names = {f.name for f in fields(Outcome)}
        made = [
            Outcome(row["model"], library, **{k: v for k, v in told.items() if k in names})
            for row in data["models"] for library, told in row["outcomes"].items()
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no table of an ablation: {error!r}", hint="remove it, or name another") from error
    return {o.key: o for o in made if o.key and not o.failure}


def _replace(path: Path, data: Mapping[str, Any]) -> None:
    """Written whole or not at all."""
    written = path.with_name(f".{path.name}.part")
    written.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    written.replace(path)


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
    parser.add_argument("--target", default="profile:cpu-epyc-2core", help="or cpu")
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="of each search")
    parser.add_argument("--measure", action="store_true", help="also time each result beside its model")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="processes, each with models of its own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="written after every model; what it holds is reused")
    given = parser.parse_args(arguments)
    libraries: dict[str, tuple[Rule, ...]] = {"discovered": admitted(None)}
    for text in given.library:
        name, found, folder = text.partition("=")
        if not found:
            raise UsageError(f"--library {text} is not NAME=DIR")
        libraries[name] = admitted(Path(folder) if folder else None)

    def show(done: int, total: int | None, what: str) -> None:
        print(f"{done}/{total} {what}", file=sys.stderr, flush=True)

    outcomes: list[Outcome] = []
    for row in ablate(
        given.models, libraries, target=given.target, time_limit=given.time_limit, measure=given.measure,
        workers=given.workers, known=_recorded(given.json), progress=show,
    ):  # fmt: skip
        outcomes += row
        if given.json is not None:
            given.json.parent.mkdir(parents=True, exist_ok=True)
            _replace(given.json, document(sorted(outcomes, key=lambda o: o.model)))
    data = document(sorted(outcomes, key=lambda o: o.model))
    print(_table(data))
    for model in data["behind"]:
        print(f"behind another library: {model}", file=sys.stderr)
    return 6 if data["behind"] else 0


if __name__ == "__main__":
    sys.exit(main())
