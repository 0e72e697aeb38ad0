"""Slices clamp as ONNX's do: in the meaning, at known sizes; in a rule, case by case. NumPy's slices are the judge."""

from __future__ import annotations

import numpy as np
import pytest

from superopt.ir.size_polynomial import SizePolynomial, value_at
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.rules import parse_rule
from superopt.rules.slice_clamping import cases
from superopt.rules.typing import condition_text, instances, types_of
from superopt.runtime.comprehension_evaluation import FLOAT64, evaluate
from superopt.verifier.exact.sampling import holds

FAR = 2**63 - 1


def _sliced(size: int, start: int, end: int, step: int) -> np.ndarray:
    """What the meaning gives of 0, 1, 2, …"""
    attributes = {"starts": (start,), "ends": (end,), "axes": (0,), "steps": (step,)}
    meaning, types = REGISTRY["Slice"].apply([TensorType(DType.FLOAT32, (size,))], attributes)
    found = np.asarray(evaluate(meaning.outputs[0], [np.arange(float(size))], FLOAT64, {}))
    assert types[0].shape == (found.size,)
    return found


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2])
def test_known_positions_clamp_as_onnx_says(step: int) -> None:
    low, high = (0, 0) if step > 0 else (-1, -1)  # ONNX clamps an end to [0, n], or to [-1, n - 1] backwards
    for size in (1, 2, 5):
        for start in (-FAR, -6, -2, -1, 0, 1, 4, 5, 9, FAR):
            for end in (-FAR, -6, -2, 0, 1, 3, 5, 9, FAR):
                first = min(max(start + size if start < 0 else start, 0), size + high)
                last = min(max(end + size if end < 0 else end, low), size + high)
                wanted = np.arange(float(size))[[i for i in range(first, last, step) if 0 <= i < size]]
                assert _sliced(size, start, end, step).tolist() == wanted.tolist(), (size, start, end, step)


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        ("a", "b", 1),
        ("0", "b", 2),
        ("a", "n", 1),
        ("-3", str(FAR), 1),
        ("b", str(-FAR), -1),
        ("c", "b", 1),
        ("a", "c", 1),
    ],
)
def test_exactly_one_case_holds_wherever_a_slice_is_not_empty(start: str, end: str, step: int) -> None:
    forall = {"x": "f[n]", "a": "int>=0", "b": "int>=1", "c": "int"}
    text = f"Slice(x, [{start}], [{end}], [0], [{step}])"
    rule = parse_rule({"forall": forall, "lhs": [text], "rhs": ["x"]})
    written = cases(instances(rule)[0])
    demands = {id(case): types_of(case).lhs_obligations for case in written}
    met = 0
    for n in (1, 2, 4):
        for a in (0, 1, 3, 5):
            for b in (1, 2, 4, 7):
                for c in (-6, -2, -1, 0, 2, 6):
                    at = {"n": n, "a": a, "b": b, "c": c}
                    values = [at[v] if v in at else int(v) for v in (start, end)]
                    if step < 0 and values[1] == -1:
                        continue
                    wanted = _sliced(n, values[0], values[1], step)
                    if not wanted.size:
                        continue
                    holding = [r for r in written if all(g.holds(at) for g in r.where)]
                    assert len(holding) == 1, at
                    attributes = dict(holding[0].lhs[0].attributes)  # type: ignore[union-attr]
                    first, last = (_number(attributes[k][0], at) for k in ("starts", "ends"))
                    assert _sliced(n, first, last, step).tolist() == wanted.tolist(), at
                    assert all(holds(c, at) for c in demands[id(holding[0])]), at
                    met += 1
    assert met > 20


def _number(value: object, at: dict[str, int]) -> int:
    return value_at(value, at) if isinstance(value, SizePolynomial) else int(str(value))


def test_conditions_are_shown_in_the_grammar_of_where() -> None:
    rule = parse_rule({"forall": {"x": "f[n, c, h, w]", "k": "f[o, c, u, v]"}, "lhs": ["Conv(x, k)"], "rhs": ["x"]})
    texts = [condition_text(c) for c in types_of(rule).lhs_obligations]
    assert texts == ["u >= 1", "v >= 1", "u <= h", "v <= w"]
    row = {"forall": {"x": "f[n, c, h, w]", "k": "f[o, c, u, v]"}, "where": texts, "lhs": ["Conv(x, k)"], "rhs": ["x"]}
    again = parse_rule(row)
    assert [g.condition for g in again.where] == list(types_of(rule).lhs_obligations)
