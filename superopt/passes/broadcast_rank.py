"""Constants of one element, written at the rank of what they are combined with: what they broadcast to is the same.

``[256, 7, 7, 1] · []`` takes ONNX Runtime twenty times as long as ``[256, 7, 7, 1] · [1, 1, 1, 1]``: it goes through
the axes from the last, and where the shorter shape ends on axes of one element, each element is a loop of its own
(:mod:`superopt.cost.predictor`). No rule says so: both sides are the same operator. Nothing is computed, so no bit
differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from superopt.cost.predictor import BROADCASTING, broadcast_spans
from superopt.extraction.node_costs import Pricer
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.meaning import IllTyped
from superopt.ops.record import NotCovered
from superopt.passes.fused_kernels import groups_of
from superopt.program.program import Program
from superopt.program.step import Step

__all__ = ["Ranked", "ranked"]

_SIGNED = frozenset({"Max", "Min", "PRelu", "Where"})  # the sign of a 0 of theirs depends on the loop
_LEAST = 0.1  # of an operator's time, which has to be saved: prices of shapes that are nearly alike differ by less


@dataclass(frozen=True)
class Ranked:
    """A program with constants of other ranks, how many operators read them, and the microseconds that it saves."""

    program: Program
    count: int
    gain_us: float


def ranked(program: Program, pricer: Pricer, fresh: Callable[[str], str]) -> Ranked | None:
    """The program with constants of one element at the ranks that are cheaper; ``None`` where none is.

    What the backend runs as one kernel is left as it is, because it knows the kernel by its constants too.

    Args:
        program: after everything else.
        pricer: what operators cost, and the backend.
        fresh: of a name makes one that is not taken.
    """
    kernels = {node.outputs[0] for group in groups_of(program, pricer) for node in group.nodes}
    running = set(program.running)
    full: dict[tuple[str, int], Step] = {}
    types: dict[str, TensorType] = {}
    steps, count, gain = list(program.steps), 0, 0.0
    for position in sorted(running):
        step = program.steps[position]
        if step.op not in BROADCASTING - _SIGNED or len(step.outputs) != 1 or step.outputs[0] in kernels:
            continue
        rank = len(program.types[step.outputs[0]].shape or ())
        short = [a for a in step.args if a is not None and _is_short(program, a, rank)]
        saved = _saved_us(program, step, {a: _full(program.types[a], rank) for a in short}, pricer) if short else 0.0
        if saved <= 0.0:
            continue
        for name in short:
            if (name, rank) not in full:
                made = fresh(f"{name}_rank{rank}")
                full[name, rank] = Step("Reshape", (name,), (("shape", (1,) * rank),), (made,), None, made)
                types[made] = _full(program.types[name], rank)
        args = tuple(full[a, rank].outputs[0] if a in short else a for a in step.args)
        steps[position] = replace(step, args=args, node=None)
        count, gain = count + 1, gain + saved
    if not count:
        return None
    return Ranked(program.with_steps([*full.values(), *steps], types, types), count, gain)


def _is_short(program: Program, name: str, rank: int) -> bool:
    kind = program.types[name]
    return name in program.constant and kind.elements == 1 and len(kind.shape or ()) < rank


def _full(kind: TensorType, rank: int) -> TensorType:
    return TensorType(kind.dtype, (1,) * rank)


def _saved_us(program: Program, step: Step, full: dict[str, TensorType], pricer: Pricer) -> float:
    """Microseconds that an operator takes less where it reads its constants at full rank."""
    own = [None if a is None else program.types[a] for a in step.args]
    wide = [None if a is None else full.get(a, program.types[a]) for a in step.args]
    shapes = [[pricer.static(t).shape or () for t in types if t is not None] for types in (own, wide)]
    before, after = (broadcast_spans([[d for d in s if isinstance(d, int)] for s in given]) for given in shapes)
    if after >= before:
        return 0.0
    record, opset = REGISTRY[step.op], program.graph.opset.get(REGISTRY[step.op].domain, 1)
    try:
        if record.apply(wide, dict(step.attributes))[1] != (program.types[step.outputs[0]],):
            return 0.0
        record.write(dict(step.attributes), wide, opset)
    except (IllTyped, NotCovered):
        return 0.0
    fixed = tuple(a is not None and a in program.constant for a in step.args)
    now, then = (pricer.alone((step.op, step.attributes, tuple(types), fixed)) for types in (own, wide))
    return now - then if now - then > _LEAST * now else 0.0
