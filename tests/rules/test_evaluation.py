"""Terms are evaluated with every operator's result rounded, not the last one alone."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir.terms import VariableTerm
from superopt.ir.types import DType
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.verifier.floats.rounding_effect import evaluated


def rule(lhs: list[str], rhs: list[str]) -> Rule:
    return parse_rule({"id": "it", "forall": {"x": "f[4]"}, "lhs": lhs, "rhs": rhs})


@pytest.mark.parametrize(("dtype", "finite"), [(DType.FLOAT16, False), (DType.FLOAT32, False), (DType.FLOAT64, True)])
def test_an_operator_inside_may_overflow(dtype: DType, finite: bool) -> None:
    inside = rule(["Log(Exp(x))"], ["x"])
    given = {"x": np.full(4, 200.0, dtype.numpy)}
    (left,), (right,) = evaluated(inside.lhs, given, dtype), evaluated(inside.rhs, given, dtype)
    assert np.isfinite(left).all() == finite
    assert left.dtype == right.dtype == dtype.numpy
    assert not finite or np.allclose(left, right)


def test_parts_are_selected_and_numbers_have_the_class_of_the_rule() -> None:
    parts = rule(
        ["Mul(Split(x, axis=0, split=[1, 3])[1], 2.0)"], ["Mul(Slice(x, axes=[0], starts=[1], ends=[4]), 2.0)"]
    )
    x = np.arange(4, dtype=np.float16)
    for side in (parts.lhs, parts.rhs):
        (found,) = evaluated(side, {"x": x}, DType.FLOAT16)
        assert (found.tolist(), found.dtype) == ([2.0, 4.0, 6.0], np.float16)


def test_an_unknown_operator_is_refused() -> None:
    (root,) = rule(["Exp(x)"], ["x"]).lhs
    with pytest.raises(RuleError, match="no operator Nothing"):
        evaluated([type(root)("Nothing", (VariableTerm("x"),), ())], {"x": np.zeros(4, np.float32)})
