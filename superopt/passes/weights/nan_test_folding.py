"""Tests for NaN that have one answer: a Softmax is NaN where a mask leaves nothing of a row or its operand is NaN.

Exporters write masked attention as ``Where(IsNaN(s), 0, s)`` with ``s = Softmax(scores + mask)``. The test is false
everywhere if every row of the mask has a finite element and the scores are finite.

Scores count as finite if they are sums of products and no operator on the way to them has a pole
(:mod:`superopt.program.value_analysis`): finite inputs then give finite scores, barring overflow, which is far from
ordinary numbers in all types but float16. What reaches the
Softmax from an input without such a sum may be a mask of the caller's, with rows of -infinity. A test of another value
than a Softmax asks about data. Both stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    ScalarCall,
    ScalarReduction,
    TensorComprehension,
    subexpressions,
)
from superopt.passes.weights.slice_analysis import SliceAnalysis

__all__ = ["decided_tests"]

_LOGIC = {"Not": lambda a: not a[0], "And": all, "Or": any}


def decided_tests(values: SliceAnalysis) -> Mapping[str, bool]:
    """Boolean values that are the same for every element and every finite input, with their answers."""
    program = values.program
    if not values.finite or not any(s.op == "IsNaN" for s in program.steps):
        return {}
    facts = replace(program, finite=True).value_facts
    direct = _given_directly(values)
    answers: dict[str, bool] = {}
    for position in program.running:
        step = program.steps[position]
        if step.op == "IsNaN":
            name = step.args[0] or ""
            maker = program.maker.get(name)
            scores = "" if maker is None or program.steps[maker].op != "Softmax" else program.steps[maker].args[0] or ""
            wide = program.types[name].dtype in (DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16)
            if scores and wide and facts[name].regular and scores not in direct:
                answers[step.outputs[0]] = False
        elif step.op in _LOGIC and all(a in answers for a in step.args):
            answers[step.outputs[0]] = _LOGIC[step.op]([answers[a] for a in step.args if a is not None])
    return answers


def _given_directly(values: SliceAnalysis) -> frozenset[str]:
    """Values that an input of real numbers reaches without a sum of products in between."""
    program = values.program
    found = {v.name for v in program.graph.inputs if isinstance(v.type, TensorType) and v.type.dtype.is_float}
    for position, step in enumerate(program.steps):
        meaning = values.meaning(position)
        if found.isdisjoint(step.reads):
            continue
        if meaning is None or not all(map(_sums_products, meaning.outputs)):
            found.update(o for o in step.outputs if o)
    return frozenset(found)


def _sums_products(output: TensorComprehension) -> bool:
    """Whether elements of two operands are multiplied and added up."""
    return any(
        isinstance(s, ScalarReduction) and s.kind == "sum" and len(_factors(s.body)) > 1
        for s in subexpressions(output.body)
    )


def _factors(body: object) -> frozenset[int]:
    """Operands of which a product is made."""
    if not isinstance(body, ScalarCall) or body.function != "mul":
        return frozenset()
    return frozenset(a.operand for a in body.args if isinstance(a, ElementRead))
