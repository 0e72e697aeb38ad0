"""The inputs and outputs of two models: whether they agree, and one model's sizes renamed to the other's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from superopt.ir.graph import Graph, Value
from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, sym, symbols
from superopt.ir.types import TensorType, ValueType

__all__ = ["interface_difference", "narrower", "signature_difference", "unified"]

_Same = Callable[[ValueType | None, ValueType | None], bool]
_OTHER_PREFIX = "superopt.other."  # before a size of the second model that no input of the first has


def signature_difference(before: Graph, after: Graph) -> tuple[str | None, str] | None:
    """The first difference in inputs or outputs (names, order, element types, declared dimensions), in words."""
    return _difference(before, after, lambda a, b: a == b)


def interface_difference(before: Graph, after: Graph) -> tuple[str | None, str] | None:
    """:func:`signature_difference`, but for what is declared of sizes: names of them, and shapes that are left out."""
    return _difference(before, after, _compatible)


def _difference(before: Graph, after: Graph, same: _Same) -> tuple[str | None, str] | None:
    for what, old, new in (("input", before.inputs, after.inputs), ("output", before.outputs, after.outputs)):
        if [v.name for v in old] != [v.name for v in new]:
            return None, f"the {what}s were {[v.name for v in old]} and are {[v.name for v in new]}"
        for a, b in zip(old, new, strict=True):
            if not same(a.type, b.type):
                return (a.name if what == "output" else None), f"{what} {a.name!r} was {a.type} and is {b.type}"
    return None


def _compatible(a: ValueType | None, b: ValueType | None) -> bool:
    """Whether declared types may be one: of tensors, element types and the numbers that both declare are the same."""
    if a is None or b is None:
        return True
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return a == b
    if a.shape is None or b.shape is None:
        return a.dtype == b.dtype
    apart = (isinstance(d, int) and isinstance(e, int) and d != e for d, e in zip(a.shape, b.shape, strict=False))
    return a.dtype == b.dtype and len(a.shape) == len(b.shape) and not any(apart)


def unified(a: Graph, b: Graph) -> Graph:
    """``b`` as it is analysed beside ``a``: with ``a``'s inputs, and sizes that its own inputs name so named alike.

    What it declares of values inside is left out where it declares other sizes than ``a`` for an input: it follows from
    what goes in.
    """
    named: dict[str, Dim] = {}
    same = True
    for old, new in zip(a.inputs, b.inputs, strict=True):
        for theirs, own in zip(_shape(old.type), _shape(new.type), strict=False):
            name = _name(own)
            same &= named.setdefault(name, theirs) == theirs if name else own == theirs
        same &= len(_shape(old.type)) == len(_shape(new.type))
    others = {n for v in (*b.inputs, *b.outputs, *b.values) for d in _shape(v.type) for n in symbols(d)} - named.keys()
    known = {n for v in a.inputs for d in _shape(v.type) for n in symbols(d)}
    named.update((n, sym(_OTHER_PREFIX + n)) for n in others & known)
    if same and all(_name(d) == n for n, d in named.items()):
        return replace(b, inputs=a.inputs)
    outputs = tuple(_renamed(v, named) for v in b.outputs)
    values = tuple(_renamed(v, named) for v in b.values) if same else ()
    return replace(b, inputs=a.inputs, outputs=outputs, values=values)


def narrower(a: Graph, b: Graph) -> str:
    """An input of which ``b`` takes fewer sizes than ``a`` declares, in words; "" where there is none."""
    for old, new in zip(a.inputs, b.inputs, strict=True):
        theirs, own = _shape(old.type), _shape(new.type)
        if len(own) != len(theirs) or any(isinstance(d, int) and d != e for d, e in zip(own, theirs, strict=True)):
            return f"B takes {new.name!r} only as {new.type}, and A as {old.type}"
    return ""


def _shape(kind: ValueType | None) -> tuple[Dim, ...]:
    return (kind.shape or ()) if isinstance(kind, TensorType) else ()


def _name(size: Dim) -> str:
    """The name that a size is; "" where it is a number or a formula."""
    names = symbols(size)
    return next(iter(names)) if isinstance(size, SizePolynomial) and len(names) == 1 and size == sym(*names) else ""


def _renamed(value: Value, named: Mapping[str, Dim]) -> Value:
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None:
        return value
    return replace(value, type=TensorType(kind.dtype, tuple(substitute(d, named) for d in kind.shape)))
