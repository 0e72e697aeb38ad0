"""Rules about images as rules about signals: the last spatial axis dropped everywhere.

Convolutions and pools mean the same for any number of spatial axes; rules are stated for a fixed one. A rule that was
found for two axes is proposed for one: a proposal like any other, tested and proved before anybody believes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from superopt.discovery.candidates import restricted
from superopt.ir.poly import Dim, substitute, sym, symbols
from superopt.ir.terms import App, AttributeValue, Term, postorder, rebuilt
from superopt.ir.types import TensorType
from superopt.ops.meaning import IllTyped
from superopt.rules.rule import AttributeScheme, Rule, TensorScheme, TypeScheme
from superopt.rules.typing import operator_of, type_terms, variable_types

__all__ = ["one_axis_less"]

_RANK = 4
_AXIS = _RANK - 1
_FAMILIES = frozenset({"conv", "pooling"})
_BY_CHANNEL = frozenset({"BatchNormalization", "InstanceNormalization"})
_HALVES = {2: (0,), 4: (0, 2), 8: (0, 1, 2, 4, 5, 6)}  # elements kept: of strides, of pads, of the pads of a Pad


def one_axis_less(rule: Rule) -> Rule | None:
    """The rule with one spatial axis where it has two; ``None`` where it is not about such tensors."""
    if not any(len(s.shape) == _RANK for s in rule.tensors.values()):
        return None
    if rule.lead or not any(_is_spatial(t) for t in postorder(*rule.lhs, *rule.rhs)):
        return None
    try:
        types = type_terms((*rule.lhs, *rule.rhs), variable_types(rule))[0]
    except IllTyped:
        return None
    gone = _binding(rule)
    forall: dict[str, TypeScheme] = {}
    for name, scheme in rule.forall.items():
        if isinstance(scheme, TensorScheme):
            forall[name] = replace(scheme, shape=tuple(substitute(d, gone) for d in _shorter(scheme.shape)))
        elif scheme.length in (2, 4):
            forall[name] = replace(scheme, length=scheme.length // 2)
        else:
            forall[name] = scheme
    made = rebuilt((*rule.lhs, *rule.rhs), lambda app, key, value: _value(app, key, value, types, gone))
    lhs, rhs = made[: len(rule.lhs)], made[len(rule.lhs) :]
    if lhs == rhs:
        return None
    return restricted(replace(rule, forall=forall, lhs=lhs, rhs=rhs))


def _is_spatial(term: Term) -> bool:
    return isinstance(term, App) and (operator_of(term).family in _FAMILIES or term.op in _BY_CHANNEL)


def _binding(rule: Rule) -> dict[str, Dim]:
    """Sizes of the dropped axis at 1, attributes of it at their least, and the others under their new names."""
    binding: dict[str, Dim] = {}
    for name, scheme in rule.attributes.items():
        if scheme.length == 2:
            binding[f"{name}_1"] = _least(scheme)
        elif scheme.length == 4:
            binding |= dict.fromkeys((f"{name}_1", f"{name}_3"), _least(scheme))
            binding[f"{name}_2"] = sym(f"{name}_1")
    for tensor in rule.tensors.values():
        if len(tensor.shape) == _RANK:
            others = {n for d in tensor.shape[:_AXIS] for n in symbols(d)}
            plain = symbols(tensor.shape[_AXIS]) - rule.attribute_atoms.keys() - others
            binding |= dict.fromkeys(plain, 1)
    return binding


def _least(scheme: AttributeScheme) -> int:
    return scheme.bound if scheme.relation == ">=" else 1


def _shorter(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
    """The shape without the last spatial axis: of images, of kernels, and of what is broadcast over both axes."""
    if len(shape) == _RANK or (len(shape) == _AXIS and shape[-2:] == (1, 1)):
        return shape[:-1]
    return shape


def _value(
    term: App, name: str, value: AttributeValue, types: Mapping[Term, tuple[TensorType, ...]], gone: Mapping[str, Dim]
) -> AttributeValue:
    if not isinstance(value, tuple):
        return substitute(value, gone) if not isinstance(value, int | float | str) else value
    parts = value
    if name in ("strides", "dilations", "kernel_shape", "output_padding", "pads") and len(value) in _HALVES:
        parts = tuple(value[i] for i in _HALVES[len(value)])
    elif name == "shape":
        kept = types[term][0].shape or ()
        parts = value[: len(_shorter(kept))]
    elif name in ("axes", "perm"):
        parts = tuple(v for v in value if v != _AXIS)
    return tuple(v if isinstance(v, int | float | str | tuple) else substitute(v, gone) for v in parts)
