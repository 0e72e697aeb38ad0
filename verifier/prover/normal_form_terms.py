"""What a value in normal form is made of: monomials, factors, and the text by which alpha-equal ones are recognised.

A value is a sum of monomials ``coefficient · Σ bound | guards · Π factor^power``. Bound variables range over all
integers; their ranges are guards like any other. Everything is immutable. The *key* is text that is the same for
values that differ only in the names of bound variables (not for all of them: matching completes what keys miss).
"""

from __future__ import annotations

import hashlib
import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ops.operator_semantics import IndexCondition
from superopt.verifier.prover.arith import normal_condition

__all__ = [
    "ONE", "ZERO", "FunctionApplication", "GuardedBranch", "TensorElement", "BranchReduction", "Factor", "Factors",
    "Monomial", "SizeFactor", "SumPowerBase", "Value", "free", "fresh", "restart_names", "text",
]  # fmt: skip


_LONGEST = 20_000  # characters of a text that is kept as it is: far above any rule's


class _Names(threading.local):
    """Each thread has its own: its proofs name things alike, whatever ran before or runs beside."""

    def __init__(self) -> None:
        self.counter = itertools.count()


_names = _Names()


def fresh(prefix: str = "v") -> str:
    """A variable name that no other value of this thread's proof uses."""
    return f"{prefix}~{next(_names.counter)}"


def restart_names() -> None:
    """Begin again: called where a proof begins, and values of earlier ones are no longer combined with its own."""
    _names.counter = itertools.count()


@dataclass(frozen=True)
class TensorElement:
    """An element of a tensor variable, inside its bounds."""

    tensor: str
    index: tuple[Dim, ...]

    def show(self, names: Mapping[str, Dim]) -> str:
        return f"{self.tensor}[{','.join(str(substitute(i, names)) for i in self.index)}]"

    @cached_property
    def free(self) -> frozenset[str]:
        return frozenset(n for i in self.index for n in symbols(i))

    @property
    def head(self) -> str:
        return f"{self.tensor}/{len(self.index)}"


@dataclass(frozen=True)
class SizeFactor:
    """A size as a number: one atom of a polynomial (a name or a quotient), which may be bound."""

    size: SizePolynomial

    def show(self, names: Mapping[str, Dim]) -> str:
        return f"<{substitute(self.size, names)}>"

    @cached_property
    def free(self) -> frozenset[str]:
        return symbols(self.size)

    @property
    def head(self) -> str:
        return "<>"


@dataclass(frozen=True)
class FunctionApplication:
    """A function that is opaque here, of values."""

    function: str
    args: tuple[Value, ...]

    def show(self, names: Mapping[str, Dim]) -> str:
        return _cached_text(self, names)

    def rendered(self, names: Mapping[str, Dim]) -> str:
        return f"{self.function}({'; '.join(text(a, names) for a in self.args)})"

    @cached_property
    def free(self) -> frozenset[str]:
        return frozenset(n for a in self.args for n in free(a))

    @property
    def head(self) -> str:
        return f"{self.function}()"


@dataclass(frozen=True)
class SumPowerBase:
    """A value with at least two monomials, as the base of a negative power."""

    value: Value

    def show(self, names: Mapping[str, Dim]) -> str:
        return _cached_text(self, names)

    def rendered(self, names: Mapping[str, Dim]) -> str:
        return f"({text(self.value, names)})"

    @cached_property
    def free(self) -> frozenset[str]:
        return free(self.value)

    @property
    def head(self) -> str:
        return "sum"


@dataclass(frozen=True)
class GuardedBranch:
    """A family of values: ``value`` for each assignment to ``bound`` where ``guards`` hold."""

    bound: tuple[str, ...]
    guards: frozenset[IndexCondition]
    value: Value

    @cached_property
    def free(self) -> frozenset[str]:
        return (free(self.value) | frozenset(n for g in self.guards for n in symbols(g.size))) - set(self.bound)

    def show(self, names: Mapping[str, Dim]) -> str:
        return _cached_text(self, names)

    def rendered(self, names: Mapping[str, Dim]) -> str:
        inner = {**names, **_local_names(self, names)}
        return f"{len(self.bound)}{_guards_text(self.guards, inner)}{text(self.value, inner)}"


@dataclass(frozen=True)
class BranchReduction:
    """The maximum ("max") or product ("prod") over the union of the branches."""

    kind: str
    branches: tuple[GuardedBranch, ...]

    def show(self, names: Mapping[str, Dim]) -> str:
        return _cached_text(self, names)

    def rendered(self, names: Mapping[str, Dim]) -> str:
        return f"{self.kind}{{{' | '.join(sorted(b.show(names) for b in self.branches))}}}"

    @cached_property
    def free(self) -> frozenset[str]:
        return frozenset(n for b in self.branches for n in b.free)

    @property
    def head(self) -> str:
        return f"{self.kind}{{}}"


Factor = TensorElement | SizeFactor | FunctionApplication | SumPowerBase | BranchReduction
Factors = tuple[tuple[Factor, Fraction], ...]


@dataclass(frozen=True)
class Monomial:
    """``coefficient · Σ bound | guards · Π factor^power``; powers are integers but for exponentials."""

    coefficient: Fraction
    bound: tuple[str, ...]
    guards: frozenset[IndexCondition]
    factors: Factors

    @cached_property
    def _hash(self) -> int:
        return hash((self.coefficient, self.bound, self.guards, self.factors))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def key(self) -> str:
        """Text of everything but the coefficient, equal for alpha-equal monomials in most cases."""
        return self.show({})

    def show(self, names: Mapping[str, Dim]) -> str:
        """The key with free names replaced."""
        return _cached_text(self, names)

    def rendered(self, names: Mapping[str, Dim]) -> str:
        inner = {**names, **_local_names(self, names)}
        factors = " ".join(sorted(f"{f.show(inner)}^{p}" if p != 1 else f.show(inner) for f, p in self.factors))
        return f"{len(self.bound)}{_guards_text(self.guards, inner)}{factors}"

    @cached_property
    def free(self) -> frozenset[str]:
        """Names that are not bound here, sizes included."""
        return self.inner - set(self.bound)

    @cached_property
    def inner(self) -> frozenset[str]:
        """Names in guards and factors, bound ones included."""
        found = {n for g in self.guards for n in symbols(g.size)}
        for factor, _ in self.factors:
            found |= factor.free
        return frozenset(found)

    def of(self, **changes: object) -> Monomial:
        """A copy with fields changed."""
        fields = {"coefficient": self.coefficient, "bound": self.bound, "guards": self.guards, "factors": self.factors}
        return Monomial(**{**fields, **changes})  # type: ignore[arg-type]


Value = tuple[Monomial, ...]

ZERO: Value = ()
ONE: Value = (Monomial(Fraction(1), (), frozenset(), ()),)


def _cached_text(
    item: FunctionApplication | SumPowerBase | GuardedBranch | BranchReduction | Monomial, names: Mapping[str, Dim]
) -> str:
    """The item's text, made once for what it depends on: its own free names, and the first number for bound ones.

    A value that is read twice is one object, and its text may double with each level: beyond ``_LONGEST`` characters
    a digest stands for it.
    """
    first = _first_local(names)
    key = (first, tuple((n, names[n]) for n in sorted(item.free) if n in names))
    known: dict[object, str] = item.__dict__.setdefault("_texts", {})
    if key not in known:
        made = item.rendered(names)
        known[key] = made if len(made) <= _LONGEST else hashlib.sha256(made.encode()).hexdigest()
    return known[key]


def _guards_text(guards: frozenset[IndexCondition], names: Mapping[str, Dim]) -> str:
    rendered = sorted(
        str(normal_condition(IndexCondition(g.kind, substitute(g.size, names)))) if names else str(g) for g in guards
    )
    return f"[{' & '.join(rendered)}]" if rendered else ""


def _local_names(item: Monomial | GuardedBranch, outer: Mapping[str, Dim]) -> dict[str, Dim]:
    """Names for bound variables that no enclosing binder uses."""
    if not item.bound:
        return {}
    start = _first_local(outer)
    return {n: sym(f"@{start + i}") for i, n in enumerate(_appearance(item))}


def _first_local(names: Mapping[str, Dim]) -> int:
    """The number of the first name for bound variables that these leave free."""
    return max((int(text[1:]) + 1 for text in map(str, names.values()) if text.startswith("@")), default=0)


def _appearance(item: Monomial | GuardedBranch) -> list[str]:
    """Bound variables in an order that does not depend on their names: by how they occur."""
    if len(item.bound) < 2:
        return list(item.bound)
    masked: dict[str, Dim] = {n: sym("_") for n in item.bound}
    colour: dict[str, list[str]] = {}
    for name in item.bound:
        view = {**masked, name: sym("!")}
        seen = sorted(str(substitute(g.size, view)) for g in item.guards if name in symbols(g.size))
        if isinstance(item, Monomial):
            parts = [f"{f.show(view)}^{p}" for f, p in item.factors if name in f.free]
        else:
            parts = [text(item.value, view)]
        colour[name] = [*sorted(parts), "|", *seen]
    return sorted(item.bound, key=lambda n: colour[n])


def text(value: Value, names: Mapping[str, Dim] | None = None) -> str:
    """The key of a value."""
    rendered = ((m.show(names) if names else m.key, m.coefficient) for m in value)
    return " + ".join(f"{c}*{k}" for k, c in sorted(rendered)) or "0"


def free(value: Value) -> frozenset[str]:
    """Free names of a value, sizes included."""
    return frozenset(n for m in value for n in m.free)
