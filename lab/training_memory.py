"""Training steps in half the memory: plans of whole steps as files, and the files raced beside the steps as they were.

A step (mean squares, plain SGD, one example in a batch, as the corpus has its models) is planned once, within a share
of time as modelled, by a budget that counts work; so the files are the same on every machine. What they take is what
the arena is asked for, and does not depend on load; times do, so a race is a command of its own.

    python -m lab.training_memory corpus/MODEL.json … --share 0.1        # plans, and writes build/memory/steps
    python -m lab.training_memory --race --page lab/notes/memory.md            # races what lies there
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from lab.algorithms import replaced
from superopt import formats
from superopt.cost import for_target
from superopt.cost.graph_costs import task_of
from superopt.frontend.training import train_step
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.memory.remat import ROWS, front
from superopt.memory.runtime_memory_planner import block_of
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.pipeline.acceptance_policy import doubt_of
from superopt.pipeline.activation_memory_reduction import arena_of
from superopt.pipeline.memory_timeline import footprint_of
from superopt.pipeline.paired_benchmark import measurement_of
from superopt.pipeline.rematerialization_lowering import realised
from superopt.runtime.onnx_runtime import ONNX_RUNTIME, bind, make_session, run
from superopt.runtime.paired_benchmark import time_bound
from superopt.runtime.protocol import released
from superopt.runtime.synthetic_tensors import with_values
from superopt.verifier.check.differential import make_inputs

__all__ = ["PairedStepTiming", "TrainingStepMemory", "main", "planned_step", "raced", "rendered"]

_TARGET = "profile:cpu-epyc-2core"
_FOLDER = Path("build/memory/steps")
_LONGEST_RUN = 60.0  # seconds: steps of a loaded machine
_SECTION = "training steps in files"


@dataclass(frozen=True)
class TrainingStepMemory:
    """A training step, in bytes, before and after it was planned; without the weights that it reads.

    Attributes:
        held: inputs and outputs.
        arena: block that the arena is asked for.
        alive: at once in the plan, without inputs and outputs.
        share: of the time that is spent on computing again, as modelled.
        rows: of linear programs that planning might solve.
        seconds: that planning and writing took.
        runtime: that was asked.
    """

    model: str
    nodes: int
    nodes_after: int
    held: int
    arena: int
    arena_after: int
    alive: int
    share: float
    rows: int
    seconds: float
    runtime: str

    @property
    def everything(self) -> float:
        """Inputs, outputs and block, after ÷ before."""
        return (self.held + self.arena_after) / (self.held + self.arena)


@dataclass(frozen=True)
class PairedStepTiming:
    """Both files beside each other, one thread: the median of the rounds' ratios, twice its standard error, rounds; how
    many of the outputs have the same bits, and the largest difference ÷ the largest element of the same output."""

    ratio: float
    doubt: float
    rounds: int
    outputs: int
    same: int
    error: float


def planned_step(path: Path, folder: Path, *, share: float, rows: int, tries: int = 1) -> TrainingStepMemory:
    """Plan a model's training step, and write it as it was and as it is planned.

    Args:
        path: of the model.
        folder: for ``before.onnx``, ``after.onnx`` and ``step.json``.
        share: of the time, as modelled, that may be spent on computing again.
        rows: of linear programs.
        tries: plans that are written, those of the smallest blocks first; the one of which the arena is asked least is
            taken.

    Raises:
        SuperoptError, UnsupportedNodeForm: it has no derivative, or ONNX Runtime cannot run it on made-up inputs.
    """
    start = time.monotonic()
    graph = train_step(with_values(formats.load(path)), "mse", "sgd").graph
    with for_target(_TARGET) as model:
        planned = task_of(graph, model)
    total = sum(op.us for op in planned.task.ops)
    plans = [p for p in front(planned.task, rows=rows) if p.us <= share * total]
    plans.sort(key=lambda p: block_of(planned.task, p))
    plan, made = plans[0], realised(planned, plans[0])
    for other in plans[1:tries]:
        if block_of(planned.task, other) < made.block:
            written = realised(planned, other)
            plan, made = (other, written) if written.block < made.block else (plan, made)
    before = arena_of(graph, {})
    held = footprint_of(formats.from_bytes(before.ran), graph, make_inputs(graph, 0)).plan
    folder.mkdir(parents=True, exist_ok=True)
    formats.save(graph, folder / "before.onnx")
    formats.save(made.graph, folder / "after.onnx")
    found = TrainingStepMemory(
        path.stem, len(graph.nodes), len(made.graph.nodes), held.inputs + held.outputs, before.block, made.block,
        plan.peak, plan.us / total, rows, time.monotonic() - start, released(ONNX_RUNTIME),
    )  # fmt: skip
    (folder / "step.json").write_text(json.dumps(asdict(found)) + "\n")
    return found


def raced(folder: Path, *, rounds: int, seconds: float) -> PairedStepTiming:
    """The two files of a folder beside each other, on inputs that are the same.

    Raises:
        SuperoptError: ONNX Runtime cannot run them.
    """
    files = [folder / "before.onnx", folder / "after.onnx"]
    graph = formats.load(files[0])
    feeds = make_inputs(_fed(graph), 0)
    names = [v.name for v in graph.outputs]
    sessions = [make_session(f, threads=1) for f in files]
    theirs, ours = (run(s, feeds, names) for s in sessions)
    same = sum(ours[n].tobytes() == theirs[n].tobytes() for n in names)
    error = max(_difference(ours[n], theirs[n]) for n in names)
    del ours, theirs
    bound = [bind(s, feeds, longest=_LONGEST_RUN) for s in sessions]
    measurement = measurement_of(time_bound(bound, rounds=rounds, burst=1, threads=1, clock="cpu", time_limit=seconds))
    return PairedStepTiming(measurement.ratio, doubt_of(measurement), measurement.runs, len(names), same, error)


def _fed(graph: Graph) -> Graph:
    """The graph with its weights as constants: they are not made up anew."""
    return replace(graph, inputs=tuple(v for v in graph.inputs if v.name not in graph.weight))


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """The largest, ÷ the largest element."""
    scale = float(np.abs(theirs).max(initial=0.0)) or 1.0
    return float(np.abs(ours.astype(np.float64) - theirs).max(initial=0.0)) / scale


def rendered(found: Sequence[tuple[TrainingStepMemory, PairedStepTiming | None]]) -> list[str]:
    """A table in Markdown."""
    lines = [
        "| model | nodes | in, out | arena before | after | after ÷ before | block alone | alive in the plan | time: "
        "modelled | measured ÷ before (rounds) | outputs |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for s, r in found:
        time_text = "–" if r is None else f"{r.ratio:.3f} ± {r.doubt:.3f} ({r.rounds})"
        rest = "" if r is None or r.same == r.outputs else f", else within {r.error:.0e}"
        outputs = "–" if r is None else f"{r.same} of {r.outputs} the same bits{rest}"
        lines.append(
            f"| {s.model} | {s.nodes:,} → {s.nodes_after:,} | {s.held:,} | {s.arena:,} | {s.arena_after:,} | "
            f"**{s.everything:.3f}** | {s.arena_after / s.arena:.3f} | {s.alive:,} | {1.0 + s.share:.3f} | "
            f"{time_text} | {outputs} |"
        )
    met = sum(r is not None and s.everything <= 0.5 and r.ratio <= 1.15 for s, r in found)
    return [*lines, "", f"At most half of everything at 1.15 of the time or less: **{met} of {len(found)}**."]


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan steps, or race them.

    Args:
        arguments: see ``--help``.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="to plan; those that lie in the folder are left alone")
    parser.add_argument("--files", type=Path, default=_FOLDER, help="folder of the files")
    parser.add_argument("--share", type=float, default=0.10, help="of the time as modelled, for computing again")
    parser.add_argument("--rows", type=int, default=ROWS, help="of linear programs that planning may solve")
    parser.add_argument("--tries", type=int, default=1, help="plans that are written, of which the least is taken")
    parser.add_argument("--race", action="store_true", help="race what lies in the folder")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=100.0, help="of a race at most, without loading")
    parser.add_argument("--page", type=Path, help="where the table is to be written, too")
    given = parser.parse_args(arguments)
    for path in given.models:
        folder = given.files / path.stem
        if (folder / "step.json").exists():
            continue
        try:
            step = planned_step(path, folder, share=given.share, rows=given.rows, tries=given.tries)
            print(step, file=sys.stderr, flush=True)
        except (SuperoptError, UnsupportedNodeForm) as error:
            print(f"{path.stem}: {error}", file=sys.stderr)
    found: list[tuple[TrainingStepMemory, PairedStepTiming | None]] = []
    for file in sorted(given.files.glob("*/step.json")):
        step = TrainingStepMemory(**json.loads(file.read_text()))
        race_of = raced(file.parent, rounds=given.rounds, seconds=given.seconds) if given.race else None
        found.append((step, race_of))
        if race_of is not None:
            print(step.model, race_of, file=sys.stderr, flush=True)
    lines = rendered(found)
    print("\n".join(lines))
    if given.page is not None:
        given.page.write_text(replaced(given.page.read_text(), _SECTION, ["", *lines, ""]))


if __name__ == "__main__":
    main()
