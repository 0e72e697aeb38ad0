"""Running integers whose values are known: by the element type, by what makes them, or by what reads them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from superopt.ir.types import DType
from superopt.program.graph_program import GraphProgram, ProgramStep

__all__ = ["INDEX_TYPES", "IndexValueRange", "indices_of"]

INDEX_TYPES = (DType.INT32, DType.INT64)
_BYTES = (DType.UINT8, DType.INT8)


@dataclass(frozen=True)
class IndexValueRange:
    """An integer tensor and its values: ``low`` to ``high``; ``open``: others, which are all like ``high``, occur.

    ``readers`` are the values that are made of it directly and that this is true of; ``None``: all.

    The range holds 0 or ends at -1, so that a table of as many rows has one for each, negative ones from its end.
    """

    name: str
    low: int
    high: int
    readers: frozenset[str] | None = None
    open: bool = False

    @property
    def count(self) -> int:
        return self.high - self.low + 1

    @property
    def rows(self) -> int:
        """Distinct ones at most: a negative position of OneHot is one counted from the end."""
        return self.high + 1 if self.open else self.count


def indices_of(program: GraphProgram) -> Iterator[IndexValueRange]:
    """Running integers whose values are known."""
    running = dict.fromkeys(
        a for p in program.running for a in program.steps[p].args if a and a not in program.constant
    )
    for name in running:
        kind = program.types.get(name)
        if kind is None or kind.dtype not in (*INDEX_TYPES, *_BYTES) or not kind.shape:
            continue
        known = _range(program, name) or _range_by_readers(program, name)
        if known is not None:
            yield known


def _range(program: GraphProgram, name: str) -> IndexValueRange | None:
    """By the element type, or by what makes it."""
    dtype = program.types[name].dtype
    if dtype in _BYTES:
        ends = np.iinfo(dtype.numpy)
        return IndexValueRange(name, int(ends.min), int(ends.max))
    position = program.maker.get(name)
    step = None if position is None else program.steps[position]
    if step is None or step.op not in ("Cast", "Clip"):
        return None
    if step.op == "Cast":
        source = program.types[step.args[0] or ""].dtype
        return (
            replace(found, name=name) if source in _BYTES and (found := _range(program, step.args[0] or "")) else None
        )
    low, high = dict(step.attributes)["min"], dict(step.attributes)["max"]
    if not isinstance(low, int) or not isinstance(high, int) or low > high:
        return None
    return IndexValueRange(name, min(low, 0), max(high, -1))


def _range_by_readers(program: GraphProgram, name: str) -> IndexValueRange | None:
    """By what reads it as positions on axes of one length, the shortest, or else as what OneHot writes."""
    steps = [program.steps[p] for p in program.readers.get(name, ()) if name in program.steps[p].args]
    lengths = {s.outputs[0]: n for s in steps if (n := _axis_length(program, s, name)) is not None}
    if lengths:  # counted from the end, a table has the same positions as another of its length
        length = min(lengths.values())
        return IndexValueRange(name, 0, length - 1, frozenset(o for o, n in lengths.items() if n == length))
    depths = {s.outputs[0]: d for s in steps if s.op == "OneHot" and isinstance(d := dict(s.attributes)["depth"], int)}
    most = max(depths.values(), default=0)
    return IndexValueRange(name, -most - 1, most, frozenset(depths), open=True) if depths else None


def _axis_length(program: GraphProgram, step: ProgramStep, name: str) -> int | None:
    """The length of the constant's axis that a Gather reads at these positions."""
    if step.op != "Gather" or step.args[1] != name or step.args[0] not in program.constant:
        return None
    axis, shape = dict(step.attributes)["axis"], program.types[step.args[0] or ""].shape or ()
    length = shape[axis] if isinstance(axis, int) else None
    return length if isinstance(length, int) else None
