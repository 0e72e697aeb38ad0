"""How large sizes must be for a rule's windows to move: kernels, strides and dilations scale what testing draws.

A MaxPool of 4×4 by 4 has one window on an image of 4×4, where its stride says nothing. Three windows are asked of
every window operator, and what that takes is carried back to the variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from superopt.ir.size_polynomial import Dim, SizePolynomial, symbols
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.rules.rule import Rule

__all__ = ["reaches"]

_WINDOWS = frozenset({"Conv", "AveragePool", "MaxPool"})
_WANTED = 3  # positions along an axis of a result
_NOMINAL = 2  # of a stride, dilation or kernel that is a name
_MOST = 40
_FURTHEST = 20  # for the sake of rules of rank 3 and 4, whose tensors grow with every axis


def reaches(rule: Rule) -> Mapping[str, int]:
    """For each size name on a spatial axis under a window: the size that lets every window move twice."""
    terms = list(postorder(*rule.lhs, *rule.rhs))
    if not any(isinstance(t, OperatorTerm) and t.op in _WINDOWS for t in terms):
        return _past_cuts(rule, [t for t in terms if isinstance(t, OperatorTerm) and t.op == "Slice"])
    needs: dict[Term, int] = dict.fromkeys((*rule.lhs, *rule.rhs), _WANTED)
    found: dict[str, int] = {}
    for term in reversed(terms):
        need = min(needs.get(term, _WANTED), _MOST)
        if isinstance(term, OutputTerm):
            needs[term.term] = max(need, needs.get(term.term, 0))
        elif isinstance(term, VariableTerm):
            shape = rule.tensors[term.name].shape
            for size in shape[2:] if len(shape) > 2 else ():
                for name in symbols(size):
                    found[name] = max(found.get(name, 0), need)
        else:
            for position, arg in enumerate(term.args):
                if arg is not None:
                    wanted = _backwards(term, rule, need) if position == 0 else _WANTED
                    needs[arg] = max(wanted, needs.get(arg, 0))
    kernels = _kernel_names(rule)
    return {n: v for n, v in found.items() if v > _WANTED and n not in kernels}


def _past_cuts(rule: Rule, slices: Sequence[OperatorTerm]) -> Mapping[str, int]:
    """For each size name: one past the known positions and the steps of slices, where there is a step or a position."""
    steps = positions = 1
    for term in slices:
        values = dict(term.attributes)
        product = prod(abs(v) for v in _listed(values.get("steps")) if isinstance(v, int))
        near = (abs(v) for n in ("starts", "ends") for v in _listed(values.get(n)) if isinstance(v, int))
        steps, positions = steps * product, max(positions, *(v for v in near if v < _MOST), 0)
    wanted = min(max(steps, positions) + 2, _FURTHEST)
    return dict.fromkeys(rule.sizes, wanted) if wanted > _WANTED else {}


def _listed(value: AttributeValue | None) -> tuple[AttributeValue | Dim, ...]:
    return value if isinstance(value, tuple) else ()


def _backwards(app: OperatorTerm, rule: Rule, need: int) -> int:
    """What an operator's first argument must span for its result to span ``need``."""
    if app.op not in _WINDOWS:
        return need
    values = dict(app.attributes)
    kernel = values.get("kernel_shape")
    if app.op == "Conv" and len(app.args) > 1 and isinstance(weights := app.args[1], VariableTerm):
        kernel = rule.tensors[weights.name].shape[2:]
    stride, gap = _largest(values.get("strides"), 1), _largest(values.get("dilations"), 1)
    return (need - 1) * stride + (_largest(kernel, _NOMINAL + 1) - 1) * gap + 1


def _largest(value: AttributeValue | None, default: int) -> int:
    sizes = (p if isinstance(p, int) else _NOMINAL for p in _listed(value) if isinstance(p, int | SizePolynomial))
    return max(sizes, default=default)


def _kernel_names(rule: Rule) -> set[str]:
    """Names of the spatial sizes of weights: kernels need not grow."""
    found: set[str] = set()
    for term in postorder(*rule.lhs, *rule.rhs):
        if isinstance(term, OperatorTerm) and term.op in ("Conv", "ConvTranspose") and len(term.args) > 1:
            weights = term.args[1]
            if isinstance(weights, VariableTerm):
                found |= {n for s in rule.tensors[weights.name].shape[2:] for n in symbols(s)}
    return found
