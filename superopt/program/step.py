"""One operator application of a program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from superopt.ir.graph import Node
from superopt.ir.terms import Attributes

__all__ = ["Step"]


@dataclass(frozen=True, eq=False)
class Step:
    """One operator application, or a barrier (``op`` is empty).

    Attributes:
        args: value names, ``None`` for an absent optional argument.
        outputs: value names by output; ``""`` where nothing reads it.
        node: the model's node, as long as the step is unchanged; always there for a barrier.
        name: what a new node is to be called.
        rules: ids of the rules that made it.
    """

    op: str
    args: tuple[str | None, ...]
    attributes: Attributes
    outputs: tuple[str, ...]
    node: Node | None
    name: str
    rules: tuple[str, ...] = ()

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """Every value the step needs; a node of the model that is kept also reads its axes, shapes, sizes …"""
        if self.op == "" and self.node:
            return self.node.reads
        own = tuple(a for a in self.args if a is not None)
        return tuple(dict.fromkeys((*own, *self.node.reads))) if self.node else own
