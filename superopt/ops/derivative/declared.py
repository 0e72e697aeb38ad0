"""What an operator's record says of its derivative, where it is not to be read from the meaning.

A *pullback* (VJP) takes the cotangent of each output to that of each operand; a *pushforward* (JVP) takes tangents of
operands to tangents of outputs. Both are terms over operators, so that they can be emitted, differentiated again and
proved. Whatever is declared here is proved like what is derived: ``superopt gradients check``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from superopt.ir.errors import Unsupported
from superopt.ir.poly import Dim, Poly
from superopt.ir.terms import AttributeValue
from superopt.ops.derivative.expressions import Expr, Number, apply_all, constant

__all__ = ["Cotangents", "Derivative", "NotDifferentiable", "Site", "linear_in"]


class NotDifferentiable(Unsupported):
    """The operator, or this use of it, has no derivative that superopt can write. Says why."""


@dataclass(frozen=True)
class Site:
    """One application of an operator.

    Attributes:
        op: the operator's name.
        args: operands; ``None`` for an absent one.
        attributes: in canonical form.
        wanted: positions of the operands that move.
        makers: applications that make an operand for this one alone, by position: what is said of such an operand may
            be said by theirs.
    """

    op: str
    args: tuple[Expr | None, ...]
    attributes: Mapping[str, AttributeValue]
    wanted: frozenset[int]
    makers: Mapping[int, Site] = field(default_factory=dict)

    def arg(self, place: int) -> Expr:
        """An operand that is there."""
        found = self.args[place]
        assert found is not None, f"operand {place} of {self.op} is absent"
        return found

    def ints(self, name: str) -> tuple[int, ...]:
        """A list attribute of known integers.

        Raises:
            NotDifferentiable: it is not.
        """
        value = self.attributes[name]
        if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
            raise NotDifferentiable(f"{self.op} with {name} {value} that is not known")
        return tuple(v for v in value if isinstance(v, int))

    def dims(self, name: str) -> tuple[Dim, ...]:
        """A list attribute of sizes, which may be symbolic."""
        value = self.attributes[name]
        assert isinstance(value, tuple)
        return tuple(v for v in value if not isinstance(v, float | str | tuple))

    def int(self, name: str) -> int:
        """A known integer attribute.

        Raises:
            NotDifferentiable: it is not.
        """
        value = self.attributes[name]
        if not isinstance(value, int):
            raise NotDifferentiable(f"{self.op} with {name} {value} that is not known")
        return value

    def number(self, name: str) -> Number:
        """A real attribute, which may be symbolic.

        Raises:
            NotDifferentiable: it is not a number.
        """
        value = self.attributes[name]
        if not isinstance(value, int | float | Poly):
            raise NotDifferentiable(f"{self.op} with {name} {value!r}")
        return value

    def size(self, name: str) -> Dim:
        """An integer attribute, which may be symbolic."""
        value = self.attributes[name]
        assert isinstance(value, int | Poly), f"{name} of {self.op} is an integer"
        return value

    def outputs(self) -> tuple[Expr, ...]:
        """What the application computes: the same terms as the forward pass, so the same values."""
        return apply_all(self.op, *self.args, **self.attributes)

    def output(self) -> Expr:
        """The first output."""
        return self.outputs()[0]

    def again(self, *args: Expr | None) -> tuple[Expr, ...]:
        """The same operator with the same attributes, of other operands."""
        return apply_all(self.op, *args, **self.attributes)


Cotangents = Mapping[int, Expr]
Tangents = Sequence[Expr | None]


@dataclass(frozen=True)
class Derivative:
    """Declared derivatives; what is left out is derived.

    Attributes:
        pullback: from the site and the cotangents of its outputs (``None``: does not matter): by operand.
        pushforward: from the site and tangents of its operands (``None``: stays): of its outputs.
        expansion: the operator's outputs by other operators, through which both are taken.
        statistics: operands that are measured, not learnt: a training step leaves weights there alone.
    """

    pullback: Callable[[Site, Tangents], Cotangents] | None = None
    pushforward: Callable[[Site, Tangents], Tangents] | None = None
    expansion: Callable[[Site], Expr] | None = None
    statistics: tuple[int, ...] = ()


def linear_in(
    *places: int, keep: Callable[[int, Site], Sequence[Expr | None]] | None = None
) -> Callable[[Site, Tangents], Tangents]:
    """The pushforward of an operator that is linear in each of these operands: itself, each moved in turn.

    Args:
        places: the operands; none for all of a variadic operator at once (linear in all together).
        keep: the other operands to apply it to when one of these moves; by default, all as they are.
    """

    def pushforward(site: Site, tangents: Tangents) -> Tangents:
        if not places:
            whole = [
                t if t is not None or a is None else constant(0, a.dtype, a.shape)
                for a, t in zip(site.args, tangents, strict=True)
            ]
            return site.again(*whole)
        total: list[Expr] | None = None
        for place in places:
            moved = tangents[place] if place < len(tangents) else None
            if moved is None:
                continue
            others = list(site.args if keep is None else keep(place, site))
            others[place] = moved
            parts = site.again(*others)
            total = list(parts) if total is None else [a + b for a, b in zip(total, parts, strict=True)]
        return total if total is not None else [None]

    return pushforward
