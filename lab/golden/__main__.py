"""Are the results of optimisations the recorded ones? ``python -m lab.golden tiny full networks [--update]``.

Each model is optimised under recorded prices (``profile:cpu-epyc-2core``) without a time limit and without a race, so
that its result follows from the model, the library and the budgets of work alone. Compared are the digest of the
result (``--digests``: with its weights' values), its check, its nodes, its modelled cost and how often each rule was
applied. A change that is meant to change nothing keeps every row; one that changes rows records them again
(``--update``) and says in its commit which and why.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from math import exp, log
from pathlib import Path

from lab.golden.golden_results import GoldenResult, row_of
from lab.networks import NETWORKS, drawn
from superopt.fleet import WorkerPool, WorkerTask
from superopt.ir.graph import Graph
from superopt.pipeline.optimization import load

_SEED, _NETWORKS = 53, 20  # of the draw from the laboratory's networks


def models_of(collection: str, root: Path) -> dict[str, Callable[[], Graph]]:
    """The models of ``tiny``, ``full`` or ``networks``, each by a function that reads or builds it."""
    if collection == "networks":
        return {name: NETWORKS[name] for name in drawn(_SEED, _NETWORKS)}
    folder = root / "corpus" / ("tiny" if collection == "tiny" else "")
    return {path.stem: partial(load, path) for path in sorted(folder.glob("*.json"))}


def read_record(file: Path) -> dict[str, GoldenResult]:
    """The recorded rows; none where there is no record."""
    rows = json.loads(file.read_text()) if file.is_file() else {}
    return {name: GoldenResult(**{**row, "nodes": tuple(row["nodes"])}) for name, row in rows.items()}


def write_record(file: Path, rows: Mapping[str, GoldenResult]) -> None:
    """Record rows, one model a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(asdict(row), sort_keys=True)}" for name, row in sorted(rows.items()))
    file.parent.mkdir(exist_ok=True)
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def difference(before: GoldenResult | None, after: GoldenResult, digests: bool) -> str:
    """What is different, in a line; empty where nothing is."""
    if before is None:
        return "not recorded"
    if before.compared(digests) == after.compared(digests):
        return ""
    if before.error or after.error:
        return f"error {before.error or 'none'} -> {after.error or 'none'}"
    old, new = before.rules or {}, after.rules or {}
    counts = [f"{rule} {old.get(rule, 0)} -> {new.get(rule, 0)}" for rule in sorted({*old, *new})
              if old.get(rule) != new.get(rule)]  # fmt: skip
    pairs = [
        ("structure", before.structure[:12], after.structure[:12]), ("digest", before.digest[:12], after.digest[:12]),
        ("status", before.status, after.status),
        ("nodes", before.nodes[1], after.nodes[1]),
        ("modelled ratio", f"{before.ratio:.4f}", f"{after.ratio:.4f}"),
        ("check", before.check, after.check),
    ]  # fmt: skip
    return "; ".join([*(f"{what} {a} -> {b}" for what, a, b in pairs if a != b), *counts[:8]])


def geometric_mean(rows: Sequence[GoldenResult]) -> float:
    """Of the modelled ratios."""
    return exp(sum(log(row.ratio) for row in rows) / len(rows)) if rows else 1.0


def run(models: Mapping[str, Callable[[], Graph]], workers: int) -> dict[str, GoldenResult]:
    """The rows of models as they are now."""
    rows: dict[str, GoldenResult] = {}
    with WorkerPool.open(workers) as fleet:
        for outcome in fleet.each(WorkerTask(row_of, (read,), name) for name, read in models.items()):
            rows[outcome.task.name] = row = outcome.result()
            print(f"{outcome.task.name}: {row.ratio:.4f}, {row.cpu_seconds:.1f} CPU s", file=sys.stderr)
    return rows


def compared(
    collection: str,
    recorded: Mapping[str, GoldenResult],
    rows: Mapping[str, GoldenResult],
    gone: Sequence[str],
    digests: bool,
) -> list[str]:
    """A line for each row that differs, and one for the collection."""
    differences = {name: difference(recorded.get(name), row, digests) for name, row in sorted(rows.items())}
    differences |= dict.fromkeys(gone, "no longer a model")
    lines = [f"{collection} {name}: {line}" for name, line in differences.items() if line]
    before = [recorded[name] for name in rows if name in recorded]
    after = list(rows.values())
    return [
        *lines,
        f"{collection}: {len(lines)} of {len(differences)} rows differ; geometric mean modelled "
        f"{geometric_mean(before):.4f} -> {geometric_mean(after):.4f}; CPU seconds "
        f"{sum(r.cpu_seconds for r in before):.0f} -> {sum(r.cpu_seconds for r in after):.0f}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or record; 1 where a row differs from its record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collections", nargs="+", choices=("tiny", "full", "networks"))
    parser.add_argument("--models", nargs="*", default=[], help="these alone")
    parser.add_argument("--root", type=Path, default=Path(), help="folder that holds corpus/")
    parser.add_argument("--workers", type=int, default=0, help="processes; 0: one a core")
    parser.add_argument("--digests", action="store_true", help="compare the values of weights, too: on one processor")
    parser.add_argument("--update", action="store_true", help="record the rows that differ")
    given = parser.parse_args(arguments)
    differing = 0
    for collection in given.collections:
        file = given.root / "corpus" / "golden" / f"{collection}.json"
        models, recorded = models_of(collection, given.root), read_record(file)
        if given.models:
            models = {name: read for name, read in models.items() if name in given.models}
        rows = run(models, given.workers)
        gone = [] if given.models else sorted(recorded.keys() - rows.keys())
        *lines, total = compared(collection, recorded, rows, gone, given.digests)
        print(*lines, total, sep="\n", flush=True)
        differing += len(lines)
        if given.update:
            unchanged = {
                n: recorded[n] for n in rows if n in recorded and not difference(recorded[n], rows[n], given.digests)
            }
            write_record(file, {n: r for n, r in {**recorded, **rows, **unchanged}.items() if n not in gone})
    return 1 if differing and not given.update else 0


if __name__ == "__main__":
    sys.exit(main())
