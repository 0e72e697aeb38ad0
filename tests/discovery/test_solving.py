"""Right sides whose weights are solved for: from lists of operators alone, proved, and checked by another evaluator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from superopt.discovery.candidates import restricted, sized_by_data
from superopt.discovery.config import DiscoveryConfig, load_config
from superopt.discovery.leftsides import left_sides
from superopt.discovery.operator_skeletons import Skeleton
from superopt.discovery.result_cache import UNBOUNDED, DiscoveryResultCache
from superopt.discovery.right_side_solver import RightSideSolver, assignments_of
from superopt.discovery.skeletons import skeletons
from superopt.discovery.solved_right_sides import SOLVED, _narrower, data_beside_weights, is_instance, solve_all
from superopt.discovery.symbolic_generalisation import SynthesisProblem, lifted
from superopt.discovery.vocabulary_exploration import explore
from superopt.discovery.weight_equations import (
    SampledProblemInstance,
    TermEvaluator,
    WeightsNotSolved,
    required_weights,
)
from superopt.ir.size_polynomial import sym
from superopt.ir.terms import OperatorTerm, VariableTerm, postorder, variables
from superopt.ir.types import DType, TensorType
from superopt.rules.grammar import parse_rule
from superopt.rules.library import load_library, parse_file
from superopt.rules.rule import Rule
from superopt.rules.typing import instances, types_of
from superopt.verifier import verdict
from superopt.verifier.exact import testing
from superopt.verifier.exact.algebra import MODULUS, PrimeField
from superopt.verifier.exact.runtime_cross_check import runtime_disagrees
from superopt.verifier.exact.sampling import SizeSample
from superopt.verifier.prover.prover import prove

ROOT = Path(__file__).resolve().parents[2]
TOUR = {r.id: instances(r, (0,))[0] for r in parse_file(ROOT / "docs" / "tour.toml")}
# Rows of the tour whose right sides discovery had from typed composites, and which of their leaves are weights.
WEIGHTS = {
    "Conv + BatchNormalization": "kqrmz",
    "sum of two convolutions": "kl",
    "RepVGG: 3x3 + 1x1 + identity": "kl",
    "LoRA": "wab",
    "LoRA, scaled": "wabt",
    "scale folded into weights": "abt",
    "MatMul + BatchNormalization": "aqrmz",
    "LayerNormalization's affine part into the next product": "qra",
    "average pooling as convolution": "",
}
SLACK = {"LayerNormalization's affine part into the next product": 1.8, "average pooling as convolution": 4.0}


def first_solution(row: Rule, weights: str, most: float) -> Rule:
    solver = RightSideSolver(SynthesisProblem(row.forall, frozenset(weights), row.lhs[0]), most=most)
    return next(solver.solutions())


@pytest.mark.parametrize("name", WEIGHTS)
def test_the_right_side_of_a_left_side_alone(name: str) -> None:
    found = first_solution(TOUR[name], WEIGHTS[name], SLACK.get(name, 1.0))
    assert isinstance(prove(found), verdict.ProvedVerdict), found.rhs
    for seed in (11, 12, 13):  # at sizes and elements that solving did not use
        assert isinstance(testing.test(found, seed=seed), verdict.TestedVerdict)
    assert runtime_disagrees(found, seed=5) == ""  # ONNX Runtime knows nothing of our meanings


def test_there_is_none_where_there_is_none() -> None:
    """A zero-padded convolution after a shift has no equal Conv: its border sees no shift."""
    row = parse_rule({
        "forall": {"x": "f[n, c, h, w]", "t": "f[c, 1, 1]", "k": "f[o, c, p_0 + p_2 + 1, p_1 + p_3 + 1]",
                   "p": "ints[4]>=1"},
        "lhs": ["Conv(Add(x, t), k, pads=p)"], "rhs": ["Conv(Add(x, t), k, pads=p)"],
    })  # fmt: skip
    solver = RightSideSolver(SynthesisProblem(row.forall, frozenset("tk"), row.lhs[0]))
    whole = [
        s
        for s in solver._cheaper()
        if isinstance(s.term, OperatorTerm) and s.term.op == "Conv" and s.term.args[0] == VariableTerm("x")
    ]
    assert whole
    assert list(solver.solutions()) == []
    assert {str(s.term) for s, sizes in solver.insoluble if sizes} >= {str(s.term) for s in whole}


def test_a_nonlinear_skeleton_is_not_solved() -> None:
    n = sym("n")
    kinds = {"x": TensorType(DType.FLOAT32, (n,))}
    hole = {"?a": TensorType(DType.FLOAT32, (n,))}
    place = SampledProblemInstance(SizeSample({"n": 3}, {}), {}, PrimeField())
    square = OperatorTerm("Mul", (VariableTerm("x"), OperatorTerm("Mul", (VariableTerm("?a"), VariableTerm("?a")))))
    rng = np.random.default_rng(0)
    with pytest.raises(WeightsNotSolved, match="not linear"):
        required_weights(TermEvaluator(VariableTerm("x"), kinds, place, rng), square, hole, rng)


def test_what_a_weight_has_to_be() -> None:
    """x·k is asked to equal x·w: k is w, and a functional tells it from w + 1."""
    n = sym("n")
    kind = TensorType(DType.FLOAT32, (n,))
    field = PrimeField()
    weight = field.integers(np.arange(3) + 5)
    place = SampledProblemInstance(SizeSample({"n": 3}, {}), {"w": weight}, field)
    known, unknown = (
        OperatorTerm("Mul", (VariableTerm("x"), VariableTerm("w"))),
        OperatorTerm("Mul", (VariableTerm("x"), VariableTerm("?a"))),
    )
    rng = np.random.default_rng(0)
    found = required_weights(TermEvaluator(known, {"x": kind, "w": kind}, place, rng), unknown, {"?a": kind}, rng)
    assert found is not None
    wanted = found["?a"]
    assert wanted.whole is not None
    assert wanted.whole.tolist() == [5, 6, 7]
    assert wanted.marks(np.arange(3) + 5) == wanted.values
    assert wanted.marks((np.arange(3) + 6) % MODULUS) != wanted.values


def test_sizes_are_told_apart_and_made_equal_where_operators_demand_it() -> None:
    image, kernel = TensorType(DType.FLOAT32, (2, 8, 9, 9)), TensorType(DType.FLOAT32, (8, 8, 3, 3))
    window = (("dilations", (1, 1)), ("group", 1), ("pads", (1, 1, 1, 1)), ("strides", (1, 1)))
    term = OperatorTerm(
        "Add", (OperatorTerm("Conv", (VariableTerm("xa"), VariableTerm("wa")), window), VariableTerm("xa"))
    )
    forms = list(lifted(term, {"xa": image, "wa": kernel}, frozenset({"wa"}), {"xa": "f", "wa": "f"}))
    assert forms
    problem, values = forms[0]
    shapes = {n: str(t) for n, t in problem.kinds.items()}
    assert "p_0 + p_2 + 1" in shapes["wa"], shapes  # the output is as large as the image
    assert values["p_0"] == 1


def test_left_sides_of_a_list_of_operators() -> None:
    texts = [str(p.term) for p in left_sides(["MatMul", "Mul"], 2, (2,))]
    assert "MatMul(MatMul(x, wa), wb)" in texts
    assert "Mul(MatMul(x, wa), wb)" in texts


def test_no_operator_stands_behind_itself_where_none_may() -> None:
    problems = list(left_sides(["MatMul", "Mul"], 2, (2,), repeated=False))
    applied = [[t.op for t in postorder(p.term) if isinstance(t, OperatorTerm)] for p in problems]
    assert ["MatMul", "Mul"] in applied
    assert all(len(set(operators)) == len(operators) for operators in applied)


@pytest.mark.slow
def test_a_theme_of_operators_alone(tmp_path: Path) -> None:
    file = tmp_path / "solving.toml"
    file.write_text(
        '[[theme]]\nname = "solved"\nsolve = ["MatMul", "BatchNormalization"]\noperators = 2\ndata = [2]\n', "utf-8"
    )
    config: DiscoveryConfig = load_config(file)
    found = explore(config.themes[0], config, str(tmp_path / "chunks"))
    assert any("BatchNormalization(MatMul" in str(r.lhs[0]) and "MatMul(x" in str(r.rhs[0]) for r in found.rules)
    again = explore(config.themes[0], config, str(tmp_path / "chunks"))
    assert [r.fingerprint for r in again.rules] == [r.fingerprint for r in found.rules]


def test_a_branch_beside_the_data_itself(tmp_path: Path) -> None:
    """Of a product and a sum, ``x·W + x`` alone reads its data in two operators; ``x + x`` and chains do not."""
    file = tmp_path / "residual.toml"
    file.write_text(
        '[[theme]]\nname = "residual"\nsolve = ["MatMul", "Add"]\noperators = 2\ndata = [2]\nbranches = true\n', "utf-8"
    )
    config = load_config(file)
    found = explore(config.themes[0], config, str(tmp_path / "chunks")).rules
    assert found
    for rule in found:
        assert str(rule.lhs[0]) == "Add(MatMul(x, wa), x)"
        assert str(rule.rhs[0]) == "MatMul(x, Add(wa, EyeLike(k=0, shape=[k, k])))"
        assert isinstance(prove(rule), verdict.ProvedVerdict)


def test_solving_draws_places_that_differ() -> None:
    row = TOUR["LoRA"]
    places = assignments_of(SynthesisProblem(row.forall, frozenset("wab"), row.lhs[0]), 3, 0)
    assert len({tuple(p.point.sizes.items()) for p in places}) == 3


def test_places_have_no_negative_sizes() -> None:
    """Two of them have a positive product: a transposed convolution whose padding takes away more than there is."""
    drawn = 0
    for problem in left_sides(("ConvTranspose",), 1, (4,)):
        shapes = [o[0] for o in types_of(problem.rule).types.values()]
        for place in (place for seed in range(10) for place in assignments_of(problem, 5, seed)):
            drawn += 1
            assert all(min(place.shape(shape)) > 0 for shape in shapes)
    assert drawn > 50


@pytest.mark.slow
def test_alternatives_are_one_for_each_way_to_apply_operators(tmp_path: Path) -> None:
    file = tmp_path / "solving.toml"
    text = '[[theme]]\nname = "alone"\nsolve = ["BatchNormalization"]\noperators = 1\ndata = [4]\nslack = 3000.0\n'
    file.write_text(text + "alternatives = true\n", "utf-8")
    (theme,) = load_config(file).themes
    found = explore(theme, load_config(file), str(tmp_path / "chunks"))
    applied = sorted(
        [f"{t.op} {dict(t.attributes).get('group', '')}".strip() for t in postorder(r.rhs[0])
         if isinstance(t, OperatorTerm) and "x" in variables(t)] for r in found.rules
    )  # fmt: skip
    assert applied == [["Conv 1"], ["Conv c"], ["Mul", "Add"]]
    assert all(isinstance(prove(r), verdict.ProvedVerdict) for r in found.rules)
    for rule in found.rules:  # a quotient is one operator, where a product with an inverse is two
        assert "Div" in rule.operators
        assert "Reciprocal" not in rule.operators


def convolutions(first: str, second: str) -> SynthesisProblem:
    """A sum of two convolutions of one image."""
    row = parse_rule({
        "forall": {"x": "f[n, c*g, h, w]", "k": "f[c*g, c, p_0 + p_2 + 1, p_1 + p_3 + 1]", "l": "f[c*g, c*g, 1, 1]",
                   "p": "ints[4]>=0", "g": "int>=1"},
        "lhs": [f"Add({first}, {second})"], "rhs": ["x"],
    })  # fmt: skip
    return SynthesisProblem(restricted(row).forall, frozenset("kl") & set(row.tensors), row.lhs[0])


def in_one_group(problem: SynthesisProblem) -> SynthesisProblem:
    return next(p for p in _narrower(problem) if "group=g" not in str(p.term))


WINDOW = "Conv(x, k, dilations=[1, 1], group=g, pads=p, strides=[1, 1])"
POINT = "Conv(x, l, dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1])"


def test_a_scale_and_a_shift_have_one_shape() -> None:
    """A normalisation is a scale and a shift a channel, not a scale of every element."""
    row = parse_rule({
        "forall": {"x": "f[b, c, h, w]", "q": "f[c]", "r": "f[c]", "s": "f[c]", "v": "f[c]", "e": "real>0"},
        "lhs": ["BatchNormalization(x, q, r, s, v, epsilon=e)"], "rhs": ["x"],
    })  # fmt: skip
    problem = SynthesisProblem(restricted(row).forall, frozenset("qrsv"), row.lhs[0])
    apart = next(RightSideSolver(problem, most=30.0).solutions())
    shapes = [
        dict(t.attributes)["shape"]
        for t in postorder(apart.rhs[0])
        if isinstance(t, OperatorTerm) and t.op == "Reshape"
    ]
    assert shapes
    assert set(shapes) == {(sym("c"), 1, 1)}
    assert "value=1.0" not in str(apart.rhs[0])
    assert isinstance(prove(apart), verdict.ProvedVerdict)


def test_what_groups_have_no_equal_for_one_group_has() -> None:
    """A 3×3 beside a 1×1, RepVGG's branches: for any groups there is no convolution, for one there is."""
    problem = convolutions(WINDOW, POINT)
    assert list(RightSideSolver(problem).solutions()) == []
    merged = next(RightSideSolver(in_one_group(problem)).solutions())
    assert str(merged.rhs[0]).startswith("Conv(x, Add(k, Pad(l")
    assert isinstance(prove(merged), verdict.ProvedVerdict)


def test_an_equal_that_is_not_proved_leaves_one_group_to_be_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any groups the answer to unit impulses is an equal that nothing proves; in one group there is a shorter."""
    monkeypatch.setattr(
        "superopt.discovery.solved_right_sides.left_sides", lambda *_, **__: [convolutions(WINDOW, "x")]
    )
    monkeypatch.setattr("superopt.discovery.candidate_proofs.prove", proved_in_one_group)
    file = tmp_path / "solving.toml"
    file.write_text('[[theme]]\nname = "s"\nsolve = ["Conv", "Add"]\noperators = 2\nsignals = true\n', "utf-8")
    config = load_config(file)
    chunks = DiscoveryResultCache(tmp_path / "chunks")
    found = solve_all(config.themes[0], config, chunks, lambda _: None, UNBOUNDED, lambda *_: False)
    image, signal = found.rules
    assert found.tally.unknown
    assert "group=1" in str(image.lhs[0])
    assert [len(r.tensors["x"].shape) for r in (image, signal)] == [4, 3]


def proved_in_one_group(rule: Rule, *, time_limit: float) -> verdict.Verdict:
    """The prover, but that it gives up where there are groups, at once."""
    return prove(rule, time_limit=time_limit) if "g" not in rule.forall else verdict.UnknownVerdict("groups")


def test_instances() -> None:
    grouped = convolutions(WINDOW, "x")
    single = in_one_group(grouped)
    assert is_instance(single, grouped)
    assert not is_instance(grouped, single)
    behind = replace(single, term=OperatorTerm("Relu", (single.term,)))
    assert is_instance(behind, grouped)
    twice = SynthesisProblem(parse_rule({"forall": {"x": "f[n, c, h, w]"}, "lhs": ["Add(x, x)"], "rhs": ["x"]}).forall,
                    frozenset(), OperatorTerm("Add", (VariableTerm("x"), VariableTerm("x"))))  # fmt: skip
    same = convolutions(WINDOW, WINDOW)
    assert not is_instance(same, twice)  # its equal may open the convolution
    assert is_instance(replace(same, term=OperatorTerm("Relu", (same.term,))), twice)
    other = SynthesisProblem(
        parse_rule({"forall": {"x": "f[m, k]"}, "lhs": ["Add(x, x)"], "rhs": ["x"]}).forall,
        frozenset(),
        OperatorTerm("Add", (VariableTerm("x"), VariableTerm("x"))),
    )
    assert not is_instance(replace(same, term=OperatorTerm("Relu", (same.term,))), other)  # of another rank


def test_what_cannot_be_equal_or_cheaper_is_not_built() -> None:
    """Both data are read, and no skeleton stands on what costs as much as the whole."""
    row = parse_rule({
        "forall": {"x": "f[m, k]", "y": "f[m, n]", "a": "f[k, n]", "c": "f[n]"},
        "lhs": ["Add(Add(MatMul(x, a), y), c)"], "rhs": ["y"],
    })  # fmt: skip
    problem = SynthesisProblem(row.forall, frozenset("ac"), row.lhs[0])
    place = assignments_of(problem, 1, 0)[0]
    needed = TermEvaluator(problem.term, problem.kinds, place, np.random.default_rng(0)).needed()
    assert needed == {"x", "y"}
    every = list(skeletons(problem))
    reads = [s for s in every if needed <= set(variables(s.term))]
    made = list(skeletons(problem, needed=needed))
    assert [(s.term, s.holes) for s in made] == [(s.term, s.holes) for s in reads]
    assert len(made) < len(every)

    def products(skeleton: Skeleton) -> float:
        return sum(isinstance(t, OperatorTerm) and t.op == "MatMul" for t in postorder(skeleton.term))

    fewer = list(skeletons(problem, needed=needed, price=products, limit=2.0))
    assert {s.term for s in fewer} >= {s.term for s in made if products(s) < 2.0}
    assert not list(skeletons(problem, needed=needed, price=products, limit=1.0))


def test_data_that_cancel_are_not_needed() -> None:
    row = parse_rule({
        "forall": {"x": "f[m, k]", "y": "f[m, k]"}, "lhs": ["Add(Sub(x, y), y)"], "rhs": ["x"],
    })  # fmt: skip
    problem = SynthesisProblem(row.forall, frozenset(), row.lhs[0])
    place = assignments_of(problem, 1, 0)[0]
    assert TermEvaluator(problem.term, problem.kinds, place, np.random.default_rng(0)).needed() == {"x"}


def test_no_weights_as_large_as_an_image_are_solved_for() -> None:
    """`Conv(x + w) = Conv(x) + Conv(zeros + w)` is true, and as long to fold as to run."""
    solved = [r for r in load_library().values() if SOLVED in r.origin]
    assert not [r.id for r in solved if sized_by_data(r, data_beside_weights(r))]
    forall = {"x": "f[b, c, h, w]", "wa": "f[c, 1, 1]", "wb": "f[o, c, u, v]", "e": "ints[2]>=1"}
    conv = "Conv({}, wb, dilations=e, group=1, pads=[0, 0, 0, 0], strides=[1, 1])"
    image = "Add(wa, ConstantOfShape(shape=[1, c, h, w], value=0.0))"
    right = f"Add({conv.format('x')}, {conv.format(image)})"
    row = {"id": "image", "forall": forall, "lhs": [conv.format("Add(x, wa)")], "rhs": [right]}
    large = parse_rule(row)
    assert sized_by_data(large, data_beside_weights(large))
    kernel = parse_rule({
        "id": "kernel", "forall": {"x": "f[b, c, h, w]"},
        "lhs": ["Add(x, x)"],
        "rhs": ["Conv(x, ConstantOfShape(shape=[c, 1, 1, 1], value=2.0), dilations=[1, 1], group=c, pads=[0, 0, 0, 0], "
                "strides=[1, 1])"],
    })  # fmt: skip
    assert not sized_by_data(kernel, data_beside_weights(kernel))


def test_a_kernel_of_neighbouring_pixels_is_what_an_adjoint_makes_of_impulses() -> None:
    """For all strides, paddings and dilations at once, at places where so large a kernel has few elements."""
    sides = left_sides(["Conv", "SpaceToDepth"], 2, [4], repeated=False)
    whole = next(p for p in sides if str(p.term).startswith("SpaceToDepth(Conv(") and "p_3" in str(p.term))
    assert str(whole.kinds["x"].shape[2]) == "b1*h1*s_0 + d_0*u - d_0 - p_0 - p_2 - s_0 + 1"  # type: ignore[index]
    problem = next(n for n in _narrower(whole) if "group=1" in str(n.term) and "b1" in str(n.term))
    solver = RightSideSolver(problem, most=100.0, seed=20, simplifies=True)
    found = next(solver.solutions())
    assert "strides=[b1*s_0, b1*s_1]" in str(found.rhs[0])
    assert {t.op for t in postorder(found.rhs[0]) if isinstance(t, OperatorTerm)} >= {"ConvTranspose", "DepthToSpace"}
    assert isinstance(prove(found), verdict.ProvedVerdict)
    assert not sized_by_data(found, data_beside_weights(found))


def test_axes_are_moved_in_every_way_and_by_a_profile_some_pay(tmp_path: Path) -> None:
    required_weights = {p.term for p in left_sides(["Transpose"], 1, [3], single=True)}
    assert len(required_weights) == 5  # of six, one moves nothing
    config = load_config(ROOT / "docs" / "later.toml").select(themes=("transposed-single",))
    (theme,) = config.themes
    known: list[str] = []
    small = replace(theme, data=(4,))
    found = solve_all(small, config, DiscoveryResultCache(tmp_path), known.append, UNBOUNDED, lambda *_: False)
    sides = {str(r.lhs[0]): str(r.rhs[0]) for r in found.rules}
    assert len(sides) == 10
    assert "Transpose(x, perm=[0, 2, 1, 3])" not in sides  # which is as fast as anything
    assert sides["Transpose(x, perm=[1, 0, 2, 3])"] == "Reshape(x, shape=[c, 1, h, w])"
