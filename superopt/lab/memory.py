"""What models take in ONNX Runtime before and after they are written for memory: the tables of docs/memory.md."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from superopt import formats
from superopt.cost import for_target
from superopt.cost.trial import feeds_for, with_values
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.memory import measured_arena
from superopt.ops.record import NotCovered
from superopt.pipeline.footprint import footprint, footprint_of
from superopt.pipeline.judge import doubt_of
from superopt.pipeline.options import EFFORTS
from superopt.pipeline.racing import measure
from superopt.pipeline.recomputing import least_for
from superopt.pipeline.scheduling import asked_of, least_memory

__all__ = ["Row", "StepRow", "main", "measured_plan", "measured_row", "rendered", "rendered_steps"]

_PATIENCE, _RACE, _RACED = 180.0, 40.0, 15  # seconds to plan and to race, rounds
_LARGE = 1 << 30  # bytes of weights above which a model is left out: it is held several times


@dataclass(frozen=True)
class Row:
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


def measured_row(path: Path) -> Row:
    """One model, as it is and written for memory.

    Raises:
        SuperoptError, NotCovered: ONNX Runtime cannot run it on made-up inputs.
    """
    graph = with_values(formats.load(path))
    found = least_memory(graph)
    held = found.before.plan.inputs + found.before.plan.outputs
    block, arena, scratch = _judged(graph)
    after = _judged(found.graph) if found.how else (block, arena, scratch)
    return Row(path.stem, held, block, arena, scratch, *after, found.before.bound, found.how)


@dataclass(frozen=True)
class StepRow:
    """A model in bytes: inputs and outputs, and the block of the arena, before and after; times beside each other.

    Attributes:
        share: of the time that is spent besides, as modelled.
        ratio: of the measured times; ``doubt``: its standard error, times what a race asks for.
        how: what was done.
    """

    model: str
    nodes: int
    nodes_after: int
    held: int
    arena: int
    arena_after: int
    share: float
    ratio: float
    doubt: float
    seconds: float
    how: str = "recomputation"

    @property
    def peak(self) -> float:
        """Activations after ÷ before, inputs and outputs included."""
        return (self.held + self.arena_after) / (self.held + self.arena)


def measured_plan(name: str, graph: Graph, share: float, seconds: float = _PATIENCE) -> StepRow:
    """A graph beside what takes least of what is modelled at so much more time.

    Raises:
        SuperoptError, NotCovered: ONNX Runtime cannot run it on made-up inputs.
    """
    start = time.monotonic()
    with for_target("cpu") as model:
        found = least_for(graph, model, share=share, seconds=seconds, rows=EFFORTS["thorough"].rows)
    seconds = time.monotonic() - start
    given, least = found[0], min(found, key=lambda p: p.bytes)
    raced = measure(graph, least.graph, sizes={}, rounds=_RACED, burst=1, time_limit=_RACE)
    held = footprint(graph).plan
    arena = asked_of(graph, {})
    return StepRow(
        name, len(graph.nodes), len(least.graph.nodes), held.inputs + held.outputs, arena,
        arena - given.bytes + least.bytes, least.us / given.us - 1.0, raced.ratio,
        doubt_of(raced.runs, raced.deviation), seconds, least.how or "as it was",
    )  # fmt: skip


def rendered_steps(title: str, rows: Sequence[StepRow]) -> str:
    """A table in Markdown."""
    lines = [
        f"## {title}", "",
        "| model | nodes | in, out | arena before | after | after ÷ before | block alone | how | time: modelled | "
        "measured ÷ before | planned and written in |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for r in rows:
        lines.append(
            f"| {r.model} | {r.nodes:,} → {r.nodes_after:,} | {r.held:,} | {r.arena:,} | {r.arena_after:,} | "
            f"**{r.peak:.3f}** | {r.arena_after / r.arena:.3f} | {r.how} | {1.0 + r.share:.3f} | "
            f"{r.ratio:.3f} ± {r.doubt:.3f} | {r.seconds:.0f} s |"
        )
    return "\n".join([*lines, ""])


def _judged(graph: Graph) -> tuple[int, int, int]:
    """The block as modelled, and as asked for, and what was asked for besides, in one session."""
    model = formats.to_onnx_bytes(graph)
    feeds = feeds_for(graph)
    try:
        arena = measured_arena(model, feeds)
    except SuperoptError:  # integer inputs may be indices
        feeds = feeds_for(graph, integer=0)
        arena = measured_arena(model, feeds)
    return footprint_of(formats.from_bytes(arena.ran), graph, feeds).plan.block, arena.block, arena.scratch


def rendered(title: str, rows: Sequence[Row]) -> str:
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
    mean = math.exp(sum(math.log(r.ratio) for r in rows) / len(rows)) if rows else 1.0
    lines += [
        "",
        f"{len(rows)} models: the block as modelled is within 5 % of the arena's, before and after, on {close}, equal "
        f"to the byte on {exact}. Activations (inputs, outputs, block) after ÷ before by the arena: geometric mean "
        f"**{mean:.3f}**, worst {max((r.ratio for r in rows), default=1.0):.3f}.",
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
    given = parser.parse_args(arguments)
    if given.share is not None:
        _steps(given.models, given.share, given.seconds, given.title, given.resume)
        return
    known: dict[str, Row] = {}
    if given.resume.exists():
        read = (Row(**json.loads(line)) for line in given.resume.read_text().splitlines())
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
        except (SuperoptError, NotCovered) as error:
            print(f"{path.stem}: {error}", file=sys.stderr)
            continue
        with given.resume.open("a") as file:
            file.write(json.dumps(asdict(known[path.stem])) + "\n")
    print(rendered(given.title, [known[p.stem] for p in given.models if p.stem in known]))


def _steps(models: Sequence[Path], share: float, seconds: float, title: str, resume: Path) -> None:
    resume.parent.mkdir(parents=True, exist_ok=True)
    read = (StepRow(**json.loads(line)) for line in (resume.read_text().splitlines() if resume.exists() else ()))
    known = {r.model: r for r in read}
    for path in models:
        if path.stem in known:
            continue
        try:
            known[path.stem] = measured_plan(path.stem, with_values(formats.load(path)), share, seconds)
        except (SuperoptError, NotCovered) as error:
            print(f"{path.stem}: {error}", file=sys.stderr)
            continue
        with resume.open("a") as file:
            file.write(json.dumps(asdict(known[path.stem])) + "\n")
    print(rendered_steps(title, [known[p.stem] for p in models if p.stem in known]))


if __name__ == "__main__":
    main()
