"""What models take in ONNX Runtime before and after they are written for memory: the tables of lab/notes/memory.md."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from lab.training_memory import raced
from superopt import formats
from superopt.cost import for_target
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.memory.arena_measurement import measured_arena
from superopt.memory.remat import ROWS
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.pipeline.acceptance_policy import doubt_of
from superopt.pipeline.activation_memory_reduction import arena_block, least_memory
from superopt.pipeline.memory_timeline import footprint, footprint_of
from superopt.pipeline.options import EFFORTS
from superopt.pipeline.paired_benchmark import measure
from superopt.pipeline.rematerialization import smallest_points
from superopt.runtime.synthetic_tensors import feeds_for, with_values

__all__ = [
    "MemoryBenchmarkRow",
    "RematerializationBenchmarkRow",
    "main",
    "measured_plan",
    "measured_row",
    "raced_row",
    "rendered",
    "rendered_steps",
]

_PATIENCE, _RACE, _RACED = 180.0, 40.0, 15  # seconds to plan and to race, rounds
_LARGE = 1 << 30  # bytes of weights above which a model is left out: it is held several times


@dataclass(frozen=True)
class MemoryBenchmarkRow:
    """A model's activations in bytes: inputs and outputs, which no plan changes, and the block, as modelled and as the
    arena was asked for it, both of the same session; ``scratch``: what its kernels took besides."""

    model: str
    held: int
    block: int
    arena: int
    scratch: int
    block_after: int
    arena_after: int
    scratch_after: int
    bound: int
    how: str

    @property
    def ratio(self) -> float:
        """Activations after ÷ before, by the arena."""
        return (self.held + self.arena_after) / (self.held + self.arena)


def measured_row(path: Path) -> MemoryBenchmarkRow:
    """One model, as it is and written for memory.

    Raises:
        SuperoptError, UnsupportedNodeForm: ONNX Runtime cannot run it on made-up inputs.
    """
    graph = with_values(formats.load(path))
    found = least_memory(graph)
    held = found.before.plan.inputs + found.before.plan.outputs
    block, arena, scratch = _measured_bytes(graph)
    after = _measured_bytes(found.graph) if found.how else (block, arena, scratch)
    return MemoryBenchmarkRow(path.stem, held, block, arena, scratch, *after, found.before.bound, found.how)


@dataclass(frozen=True)
class RematerializationBenchmarkRow:
    """A model in bytes: inputs and outputs, and the block of the arena, before and after; times beside each other.

    Attributes:
        share: of the time that is spent besides, as modelled.
        ratio: of the measured times, where they raced; ``doubt``: its standard error, times what a race asks for.
        how: what was done.
    """

    model: str
    nodes: int
    nodes_after: int
    held: int
    arena: int
    arena_after: int
    share: float
    ratio: float | None
    doubt: float | None
    seconds: float
    how: str = "recomputation"

    @property
    def peak(self) -> float:
        """Activations after ÷ before, inputs and outputs included."""
        return (self.held + self.arena_after) / (self.held + self.arena)


def measured_plan(
    name: str, graph: Graph, share: float, seconds: float, folder: Path | None = None
) -> RematerializationBenchmarkRow:
    """A graph beside what takes least of what is modelled at so much more time.

    Args:
        name: of the model.
        graph: it.
        share: of the time, that may be spent besides.
        seconds: to plan and to write.
        folder: for ``before.onnx`` and ``after.onnx``, which are then raced another time; else they are now.

    Raises:
        SuperoptError, UnsupportedNodeForm: ONNX Runtime cannot run it on made-up inputs.
    """
    start = time.monotonic()
    with for_target("cpu") as model:
        points = smallest_points(graph, model, share=share, seconds=seconds, rows=int(EFFORTS["thorough"].rows * ROWS))
    seconds = time.monotonic() - start
    usual, least = points[0], min(points, key=lambda p: p.bytes)
    ratio = doubt = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        formats.save(graph, folder / "before.onnx")
        formats.save(least.graph, folder / "after.onnx")
    else:
        timed = measure(graph, least.graph, sizes={}, rounds=_RACED, burst=1, time_limit=_RACE)
        ratio, doubt = timed.ratio, doubt_of(timed)
    held = footprint(graph).plan
    arena = arena_block(graph, {})
    return RematerializationBenchmarkRow(
        name, len(graph.nodes), len(least.graph.nodes), held.inputs + held.outputs, arena,
        arena - usual.bytes + least.bytes, least.us / usual.us - 1.0, ratio, doubt, seconds, least.how or "as it was",
    )  # fmt: skip


def raced_row(row: RematerializationBenchmarkRow, folder: Path) -> RematerializationBenchmarkRow:
    """The row with the times of its two files beside each other; how far their outputs are apart is told, too.

    Raises:
        SuperoptError: ONNX Runtime cannot run them.
    """
    found = raced(folder, rounds=_RACED, seconds=_RACE)
    print(row.model, found, file=sys.stderr, flush=True)
    return replace(row, ratio=found.ratio, doubt=found.doubt)


def rendered_steps(title: str, rows: Sequence[RematerializationBenchmarkRow]) -> str:
    """A table in Markdown."""
    lines = [
        f"## {title}", "",
        "| model | nodes | in, out | arena before | after | after ÷ before | block alone | how | time: modelled | "
        "measured ÷ before | planned and written in |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        measured = "–" if r.ratio is None else f"{r.ratio:.3f} ± {r.doubt:.3f}"
        lines.append(
            f"| {r.model} | {r.nodes:,} → {r.nodes_after:,} | {r.held:,} | {r.arena:,} | {r.arena_after:,} | "
            f"**{r.peak:.3f}** | {r.arena_after / r.arena:.3f} | {r.how} | {1.0 + r.share:.3f} | "
            f"{measured} | {r.seconds:.0f} s |"
        )
    lines += ["", f"{len(rows)} models: after ÷ before, geometric mean **{_mean([r.peak for r in rows]):.3f}**."]
    return "\n".join([*lines, ""])


def _mean(ratios: Sequence[float]) -> float:
    """Their geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def _measured_bytes(graph: Graph) -> tuple[int, int, int]:
    """The block as modelled, and as asked for, and what was asked for besides, in one session."""
    model = formats.to_onnx_bytes(graph)
    feeds = feeds_for(graph)
    try:
        arena = measured_arena(model, feeds)
    except SuperoptError:  # integer inputs may be indices
        feeds = feeds_for(graph, integer=0)
        arena = measured_arena(model, feeds)
    return footprint_of(formats.from_bytes(arena.ran), graph, feeds).plan.block, arena.block, arena.scratch


def rendered(title: str, rows: Sequence[MemoryBenchmarkRow]) -> str:
    """A table in Markdown with its sums."""
    lines = [
        f"## {title}", "",
        "| model | in, out | block: model | arena | kernels | after: model | arena | after ÷ before | bound | how |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        cells = (r.model, r.held, r.block, r.arena, r.scratch, r.block_after, r.arena_after, f"{r.ratio:.3f}", r.bound,
                 r.how or "as it was")  # fmt: skip
        lines.append("| " + " | ".join(f"{c:,}" if isinstance(c, int) else str(c) for c in cells) + " |")
    close = sum(_near(r.block, r.arena) and _near(r.block_after, r.arena_after) for r in rows)
    exact = sum(r.block == r.arena and r.block_after == r.arena_after for r in rows)
    lines += [
        "",
        f"{len(rows)} models: the block as modelled is within 5 % of the arena's, before and after, on {close}, equal "
        f"to the byte on {exact}. Activations (inputs, outputs, block) after ÷ before by the arena: geometric mean "
        f"**{_mean([r.ratio for r in rows]):.3f}**, worst {max((r.ratio for r in rows), default=1.0):.3f}.",
        "",
    ]
    return "\n".join(lines)


def _near(ours: int, theirs: int) -> bool:
    return abs(ours - theirs) <= 0.05 * theirs


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure models and write the tables.

    Args:
        arguments: see ``--help``.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--title", default="Models")
    parser.add_argument("--resume", type=Path, required=True, help="JSON lines: models in it are not measured again")
    parser.add_argument("--share", type=float, help="with what is modelled at so much more of the time")
    parser.add_argument("--seconds", type=float, default=_PATIENCE, help="to plan and to write each of those")
    parser.add_argument("--files", type=Path, help="write those to a folder each of this one, and do not race them")
    parser.add_argument("--race", action="store_true", help="race those that lie in the folder and were not raced yet")
    given = parser.parse_args(arguments)
    if given.race and given.files is None:
        parser.error("--race needs --files")
    if given.share is not None or given.race:
        _run_steps(given)
        return
    known: dict[str, MemoryBenchmarkRow] = {}
    if given.resume.exists():
        read = (MemoryBenchmarkRow(**json.loads(line)) for line in given.resume.read_text().splitlines())
        known = {r.model: r for r in read}
    given.resume.parent.mkdir(parents=True, exist_ok=True)
    for path in given.models:
        if path.stem in known:
            continue
        try:
            weights = formats.load(path).weight_bytes
            if weights > _LARGE:
                print(f"{path.stem}: left out, {weights:,} bytes of weights", file=sys.stderr)
                continue
            known[path.stem] = measured_row(path)
        except (SuperoptError, UnsupportedNodeForm) as error:
            print(f"{path.stem}: {error}", file=sys.stderr)
            continue
        with given.resume.open("a") as file:
            file.write(json.dumps(asdict(known[path.stem])) + "\n")
    print(rendered(given.title, [known[p.stem] for p in given.models if p.stem in known]))


def _run_steps(arguments: argparse.Namespace) -> None:
    """Plan models, or race those that were planned, and write the table."""
    resume: Path = arguments.resume
    resume.parent.mkdir(parents=True, exist_ok=True)
    read = (
        RematerializationBenchmarkRow(**json.loads(line))
        for line in (resume.read_text().splitlines() if resume.exists() else ())
    )
    known = {r.model: r for r in read}
    for path in arguments.models:
        folder = arguments.files / path.stem if arguments.files is not None else None
        row = known.get(path.stem)
        try:
            if arguments.race and folder is not None:
                if row is None or row.ratio is not None:
                    continue
                known[path.stem] = raced_row(row, folder)
            elif row is None:
                graph = with_values(formats.load(path))
                known[path.stem] = measured_plan(path.stem, graph, arguments.share, arguments.seconds, folder)
        except (SuperoptError, UnsupportedNodeForm) as error:
            print(f"{path.stem}: {error}", file=sys.stderr)
            continue
        resume.write_text("".join(json.dumps(asdict(r)) + "\n" for r in known.values()))
    print(rendered_steps(arguments.title, [known[p.stem] for p in arguments.models if p.stem in known]))


if __name__ == "__main__":
    main()
