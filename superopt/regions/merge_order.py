"""Orders of merging: which of them are worth searching with all rules."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from superopt.program.graph_program import GraphProgram

__all__ = ["MergeOrderResult", "computation"]

_CATCHING_UP = 4  # times what all rules gained in another order: nothing that is farther behind it catches up
_LITTLE = 1e-3  # share of the cost that all rules may gain anyway


@dataclass(frozen=True)
class MergeOrderResult:
    """What an order of merging led to: before all rules were tried, and after.

    Attributes:
        computes: by structure, the program at the start (:func:`computation`).
        start, end: modelled cost in microseconds.
    """

    computes: bytes
    start: float
    end: float

    def far_ahead_of(self, start: float) -> bool:
        """Whether an order that starts at this cost stays behind: what all rules add to one order is about what they
        add to another."""
        gained = max(self.start - self.end, _LITTLE * self.end)
        return start - self.end > _CATCHING_UP * gained


def computation(program: GraphProgram) -> bytes:
    """Equal for programs that compute their outputs by the same operators of the same values, in whatever order."""
    known: dict[str, bytes] = {}

    def value(name: str | None) -> bytes:
        return b"" if name is None else known.get(name) or name.encode()

    barriers: list[bytes] = []
    for step in program.steps:
        node = step.node.name if step.op == "" and step.node else ""
        what = repr((step.op, step.attributes, node, [value(a) for a in (step.args if step.op else step.reads)]))
        digest = hashlib.sha256(what.encode()).digest()
        known.update((o, digest + bytes([i % 256, i // 256])) for i, o in enumerate(step.outputs) if o)
        barriers += [digest] if step.op == "" else []
    outputs = [value(v.name) for v in program.graph.outputs]
    return hashlib.sha256(repr((outputs, sorted(barriers))).encode()).digest()
