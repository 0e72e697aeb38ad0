"""Weights read off what a left side makes of unit vectors; windows inside each other; long affine parts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from superopt import cost as costs
from superopt.discovery.mining import MinedSubgraph, QueuedSubgraph, SubgraphQueue, mined
from superopt.discovery.right_side_solver import RightSideSolver
from superopt.discovery.symbolic_generalisation import SynthesisProblem, lifted
from superopt.frontend import GraphBuilder
from superopt.ir.terms import OperatorTerm, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.program.graph_program import program_of
from superopt.rules.grammar import parse_rule
from superopt.verifier import verdict
from superopt.verifier.exact import testing
from superopt.verifier.exact.runtime_cross_check import runtime_disagrees
from superopt.verifier.prover.prover import prove

LAST = "Slice(x, axes=[2], ends=[t], starts=[t - 1], steps=[1])"
TURNED = "Transpose(Add(MatMul(Transpose(Mul(x, s), perm=[0, 2, 1]), w), q), perm=[0, 2, 1])"
MEAN = "ReduceMean(x, axes=[1], keepdims=1)"
AFFINE = [  # left sides without an equal that is made of their operators, and the product that they are
    ("x = f[b, c, t]; w = f[t, n]; q = f[n]", f"Add(Add(MatMul(Sub(x, {LAST}), w), q), {LAST})", "wq", "MatMul"),
    ("x = f[b, t]; w = f[t, n]", f"MatMul(Sub(Mul(x, 2), Add({MEAN}, x)), w)", "w", "MatMul"),
    ("x = f[b, m, d]; s = f[1]; w = f[m, n]; q = f[n]", TURNED, "swq", "MatMul"),
]


def problem(types: str, left: str, weights: str) -> SynthesisProblem:
    row = parse_rule({
        "forall": dict(p.strip().split(" = ") for p in types.split(";")), "lhs": [left], "rhs": [left],
    })  # fmt: skip
    return SynthesisProblem(row.forall, frozenset(weights), row.lhs[0])


@pytest.mark.parametrize(("types", "left", "weights", "op"), AFFINE)
def test_an_affine_expression_is_one_product(types: str, left: str, weights: str, op: str) -> None:
    asked = problem(types, left, weights)
    found = next(s for s in RightSideSolver(asked).solutions() if _running(s.rhs[0], asked) <= {op, "Add"})
    assert isinstance(prove(found), verdict.ProvedVerdict), found.rhs
    assert isinstance(testing.test(found, seed=11), verdict.TestedVerdict)
    assert runtime_disagrees(found, seed=5) == ""


def _running(term: object, asked: SynthesisProblem) -> set[str]:
    apps = [t for t in postorder(term) if isinstance(t, OperatorTerm)]  # type: ignore[arg-type]
    return {
        t.op for t in apps if any(isinstance(v, VariableTerm) and v.name not in asked.weights for v in postorder(t))
    }


def test_what_is_no_product_has_no_answer() -> None:
    """Each row is turned by its own mean: linear, but not the same for all columns of a weight that is shared."""
    assert list(RightSideSolver(problem("x = f[b, t]; w = f[t]", "Mul(Mul(x, x), w)", "w")).solutions()) == []


@pytest.mark.parametrize(("group", "large"), [(1, 3), (4, 5)])
def test_windows_inside_each_other_are_one_window(group: int, large: int) -> None:
    """A window with gaps and one without, of fewer or as many positions: one is the other's, and so much more."""
    image, (first, second) = TensorType(DType.FLOAT32, (1, 4, 32)), (3, large)

    def conv(weight: str, taps: int, spacing: int) -> OperatorTerm:
        half = spacing * (taps // 2)
        window = (("dilations", (spacing,)), ("group", group), ("pads", (half, half)), ("strides", (1,)))
        return OperatorTerm("Conv", (VariableTerm("xa"), VariableTerm(weight)), window)

    term = OperatorTerm("Add", (conv("wa", first, 2), conv("wb", second, 1)))
    kernels = {w: TensorType(DType.FLOAT32, (4, 4 // group, n)) for w, n in (("wa", first), ("wb", second))}
    kinds = {"xa": image, **kernels}
    forms = list(lifted(term, kinds, frozenset(kernels), dict.fromkeys(kinds, "f")))
    nested = [(p, v) for p, v in forms if "e_0" in v]
    assert nested
    assert all(values["e_0"] == (1 if large == 3 else 0) for _, values in nested)
    found = next(s for s in RightSideSolver(nested[-1][0]).solutions())
    assert isinstance(found.rhs[0], OperatorTerm)
    assert found.rhs[0].op == "Conv"
    assert isinstance(prove(found), verdict.ProvedVerdict), found.rhs
    assert runtime_disagrees(found, seed=5) == ""


def test_long_affine_parts_are_mined_whole() -> None:
    b = GraphBuilder("long")
    x = b.input("x", "float32", (4, 8, 16))
    y = x
    for n in range(4):
        y = y * b.weight(f"s{n}", (16,)) + b.constant(np.ones(16, np.float32))
    y = (y.transpose(0, 2, 1) @ b.weight("w", (8, 8))).relu()
    b.output(y, "y")
    graph = b.build()
    with costs.for_target("profile:cpu-epyc-2core") as prices:
        targets = mined(program_of(graph, infer(graph)), prices)
    longest = max(targets, key=lambda t: len(t.occurrences[0]))
    assert len(longest.occurrences[0]) == 10
    assert str(longest.term).startswith("MatMul(Transpose(")


def part(name: str, places: list[set[int]], us: float, dearest: float) -> MinedSubgraph:
    return MinedSubgraph(VariableTerm(name), {}, us, dearest, tuple(map(frozenset, places)), name)


def test_most_to_gain_first_and_less_where_an_equal_is_known() -> None:
    small, large, poor = part("a", [{1, 2}], 10, 6), part("b", [{1, 2, 3}], 20, 10), part("c", [{4, 5}], 5, 4.9)
    entries = [QueuedSubgraph(("m", False), p, 100.0) for p in (poor, small, large)]
    agenda = SubgraphQueue(entries, 0.005)
    first = agenda.next()
    assert first is not None
    assert first.part is large  # 10 by 3 operators, and not 4 by 2
    assert agenda.next() == entries[1]
    assert agenda.next() is None  # there is less than the least to gain from the third

    agenda = SubgraphQueue([replace(e, part=p) for e, p in zip(entries[1:], (small, large), strict=True)], 0.005)
    agenda.settle(entries[1], 7.0)
    left = agenda.next()
    assert left is not None
    assert (left.part, left.reach) == (small, 0.0)
    assert agenda.next() == QueuedSubgraph(("m", False), large, 100.0, reach=7.0)
