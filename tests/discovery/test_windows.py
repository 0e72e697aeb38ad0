"""Parts of models as windows: phases, crops and enlargements around a convolution are one convolution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from superopt import cost as costs
from superopt.discovery.data_movement_terms import rearranged
from superopt.discovery.mining import mined
from superopt.discovery.operator_skeletons import looks_through
from superopt.discovery.right_side_solver import RightSideSolver
from superopt.discovery.symbolic_generalisation import SynthesisProblem, lifted
from superopt.frontend import GraphBuilder, SymbolicTensor
from superopt.ir.size_polynomial import sym
from superopt.ir.terms import VariableTerm
from superopt.ops.shape_inference import infer
from superopt.program.graph_program import program_of
from superopt.rules.rule import Rule, RulePrecondition
from superopt.verifier import verdict
from superopt.verifier.exact import testing
from superopt.verifier.exact.runtime_cross_check import runtime_disagrees
from superopt.verifier.prover.prover import prove


def phases(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    """Focus, along one axis."""

    def cut(start: int) -> SymbolicTensor:
        limits = ([start], [32], [2], [2])
        return b.op("Slice", x, *(b.constant(np.array(v, np.int64)) for v in limits))

    y = b.op("Concat", cut(1), cut(0), axis=1)
    return b.op("Conv", y, b.weight("w", (6, 8, 3)), strides=[1], pads=[1, 1], dilations=[1], group=1)


def crop(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    """A causal convolution by padding on both sides."""
    y = b.op("Conv", x, b.weight("w", (4, 1, 3)), strides=[1], pads=[2, 2], dilations=[1], group=4)
    return b.op("Slice", y, *(b.constant(np.array([v], np.int64)) for v in (0, 32, 2)))


def nearest(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    scales = b.constant(np.array([1, 1, 3], np.float32))
    settings = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor", "mode": "nearest"}
    return b.op("Resize", x, None, scales, **settings)


def enlarged(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    y = nearest(b, x)
    return b.op("Conv", y, b.weight("w", (6, 4, 3)), strides=[1], pads=[1, 1], dilations=[1], group=1)


def copied(b: GraphBuilder, x: SymbolicTensor) -> SymbolicTensor:
    y = b.op("Conv", x, b.weight("w", (6, 4, 1)), strides=[1], pads=[0, 0], dilations=[1], group=1)
    return nearest(b, y)


def forms(made: Callable[[GraphBuilder, SymbolicTensor], SymbolicTensor]) -> list[SynthesisProblem]:
    """The whole network as problems."""
    b = GraphBuilder("part")
    b.output(made(b, b.input("x", "float32", (2, 4, 32))), "y")
    graph = b.build()
    with costs.for_target("profile:cpu-epyc-2core") as prices:
        target = max(mined(program_of(graph, infer(graph)), prices), key=lambda t: len(t.occurrences[0]))
    return [p for p, _ in lifted(target.term, target.kinds, target.weights, dict.fromkeys(target.kinds, "f"))]


def part(made: Callable[[GraphBuilder, SymbolicTensor], SymbolicTensor]) -> SynthesisProblem:
    """The first of these that is one window."""
    return next(p for p in forms(made) if looks_through(p, "xa") is not None)


def solved(problem: SynthesisProblem, op: str) -> Rule:
    return next(
        s for s in RightSideSolver(problem, cost=lambda _: (2.0, 1.0)).solutions() if str(s.rhs[0]).startswith(op)
    )


@pytest.mark.parametrize(
    ("made", "op", "strides", "window"),
    [
        (phases, "Conv", (2,), "2*u"), (crop, "Conv", (1,), "u"), (enlarged, "ConvTranspose", (3,), "u + 2"),
    ],
)  # fmt: skip
def test_one_convolution_with_the_part_s_own_window(
    made: Callable[[GraphBuilder, SymbolicTensor], SymbolicTensor], op: str, strides: tuple[int, ...], window: str
) -> None:
    problem = part(made)
    found = looks_through(problem, "xa")
    assert found is not None
    taps = str(problem.kinds["wa"].shape[2])  # type: ignore[index]
    assert (found[0], found[1]["strides"], [str(d).replace(taps, "u") for d in found[2]]) == (op, strides, [window])
    rule = solved(problem, op + "(")
    if made is crop:  # a slice clamps where the window leaves less than it asks for, as the judge finds
        slack = sym("p_0") + sym("p_1") - sym(taps) + 1
        rule = replace(rule, where=(*rule.where, RulePrecondition(slack, ">=", 0)))
    assert isinstance(testing.test(rule, seed=11), verdict.TestedVerdict)
    assert runtime_disagrees(rule, seed=5) == ""
    assert isinstance(prove(rule), verdict.ProvedVerdict)


def test_padding_is_never_negative() -> None:
    assert [str(g.left) for g in solved(part(crop), "Conv(").where] == ["n - p_0 - 1"]


def test_what_reads_no_window_has_none() -> None:
    problem = part(crop)
    every = SynthesisProblem(problem.forall, problem.weights, VariableTerm("xa"))
    assert looks_through(every, "xa") is None


def test_a_copy_is_no_product() -> None:
    """Measured, a transposed convolution in the place of an enlargement takes two to seven times as long."""
    assert forms(copied)
    assert all(looks_through(p, "xa") is None for p in forms(copied))


def test_digits_in_every_order_are_the_elements_in_every_order() -> None:
    c, u = sym("c"), sym("u")
    made = list(map(str, rearranged(VariableTerm("w"), (2 * c, u), (c, 2 * u))))
    assert "Reshape(Transpose(Reshape(w, shape=[2, c, u]), perm=[1, 0, 2]), shape=[c, 2*u])" in made
    assert len(made) == len(set(made)) == 4
    assert not list(rearranged(VariableTerm("w"), (2 * c, u), (c, 3 * u)))
