"""Learning from a model's own parts: mined, solved for, proved, written, and used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from superopt import cost as costs
from superopt.discovery.candidate_proofs import CandidateProver
from superopt.discovery.config import DiscoveryConfig
from superopt.discovery.derive import QUICK_ROUNDS, derived, reached, rewrites_of
from superopt.discovery.discover import claimed
from superopt.discovery.learn import LearningResult, applies, learn
from superopt.discovery.mining import mined
from superopt.discovery.result_cache import DiscoveryResultCache, ResourceBounds, ResourceBoundsExceeded
from superopt.discovery.right_side_solver import RightSideSolver, theme_of
from superopt.discovery.symbolic_generalisation import lifted
from superopt.frontend import GraphBuilder
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph
from superopt.ir.terms import OperatorTerm, Term, VariableTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.pipeline import optimize
from superopt.pipeline.rule_learning import learn_from
from superopt.program.graph_program import program_of
from superopt.rules import load_library, parse_rule
from superopt.rules.library import RuleLibrary, parse_file
from superopt.rules.rule import Rule
from superopt.verifier import verdict
from superopt.verifier.admission import admit
from superopt.verifier.exact import testing

PRICES = "profile:cpu-epyc-2core"


def normalised_layer(times: int = 1) -> Graph:
    """Linear layers with a bias, each followed by a normalisation and a Relu."""
    b = GraphBuilder("layers")
    x = b.input("x", "float32", (32, 64))
    for n in range(times):
        y = x @ b.weight(f"w{n}", (64, 64), scale=0.1) + b.weight(f"b{n}", (64,))
        scale, shift, mean = (b.weight(f"{k}{n}", (64,)) for k in "stm")
        variance = b.constant(np.linspace(0.5, 2.0, 64).astype(np.float32))
        x = b.op("BatchNormalization", y, scale, shift, mean, variance, epsilon=1e-5).relu()
    b.output(x, "y")
    return b.build()


def scaled_layer() -> Graph:
    """A linear layer whose columns are scaled."""
    b = GraphBuilder("layers")
    x = b.input("x", "float32", (32, 64)) @ b.weight("w", (64, 64), scale=0.1)
    b.output((x * b.weight("s", (64,))).relu(), "y")
    return b.build()


def learnt(models: Mapping[str, Graph], library: RuleLibrary, out: Path, seconds: float = 300.0) -> LearningResult:
    with claimed(out) as asked, costs.for_target(PRICES) as prices:
        return learn(models, library, prices, out=out, asked=asked, target=PRICES, seconds=seconds)


def test_parts_of_a_model_by_frequency_and_cost() -> None:
    graph = normalised_layer(3)
    with costs.for_target(PRICES) as prices:
        targets = mined(program_of(graph, infer(graph)), prices)
    texts = {str(t.term): t for t in targets}
    part = next(t for s, t in texts.items() if s.startswith("BatchNormalization(Add(MatMul(xa, wa), wb)"))
    assert len(part.occurrences) == 3
    assert part.weights == {"wa", "wb", "wc", "wd", "we", "wf"}
    assert all(2 <= len(p) <= 6 for t in targets for p in t.occurrences)
    totals = [len(t.occurrences) * t.us for t in targets]
    assert totals == sorted(totals, reverse=True)


def test_what_something_else_reads_is_not_inside_a_part() -> None:
    b = GraphBuilder("shared")
    x = b.input("x", "float32", (8, 8))
    y = x @ b.weight("w", (8, 8))
    b.output(y + b.weight("b", (8,)), "z")
    b.output(y, "y")
    graph = b.build()
    with costs.for_target(PRICES) as prices:
        assert mined(program_of(graph, infer(graph)), prices) == []


@pytest.fixture(scope="module")
def lesson(tmp_path_factory: pytest.TempPathFactory) -> tuple[LearningResult, Path]:
    """From a library of nothing: the test is whether rules are found, not whether ours has them."""
    out = tmp_path_factory.mktemp("learnt")
    return learnt({"layers": scaled_layer()}, RuleLibrary({}), out), out


def test_learns_what_a_model_needs(lesson: tuple[LearningResult, Path]) -> None:
    found, out = lesson
    assert found.rules
    assert found.saved_us["layers"] > 0
    written = parse_file(out / "learned.toml")
    assert {r.id for r in written} == {r.id for r in found.rules}
    for rule in written:
        for seed in (21, 22, 23):  # sizes and elements of other seeds than discovery's
            assert isinstance(testing.test(rule, seed=seed), verdict.TestedVerdict)
        assert "from layers" in rule.origin


def test_learns_the_same_again_and_goes_on_where_it_was(lesson: tuple[LearningResult, Path], tmp_path: Path) -> None:
    _, out = lesson
    text = (out / "learned.toml").read_bytes()
    none = learnt({"layers": scaled_layer()}, RuleLibrary({}), tmp_path, seconds=1e-6)
    assert none.looked_at == 0
    assert set(load_library(tmp_path)) == set(load_library())  # a folder that --rules takes
    learnt({"layers": scaled_layer()}, RuleLibrary({}), tmp_path)
    assert (tmp_path / "learned.toml").read_bytes() == text


def test_models_of_one_name_are_both_looked_at(tmp_path: Path) -> None:
    from superopt.formats import save

    paths = [tmp_path / folder / "m.onnx" for folder in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        save(normalised_layer(), path)
    found = learn_from([*paths, paths[0]], out=tmp_path / "rules", target=PRICES, time_limit=1e-3)
    assert set(found.model_us) == {str(path) for path in paths}


def test_a_folder_of_other_things_is_not_learnt_into(tmp_path: Path) -> None:
    from superopt.formats import save

    save(normalised_layer(), tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"is not empty, and superopt discover did not write that"):
        learn_from([tmp_path / "m.onnx"], out=tmp_path, target=PRICES, time_limit=1e-3)
    out = tmp_path / "rules"
    learn_from([tmp_path / "m.onnx"], out=out, target=PRICES, time_limit=1e-3)
    with claimed(out), pytest.raises(UsageError, match="another run"):  # which would write the same files
        learn_from([tmp_path / "m.onnx"], out=out, target=PRICES, time_limit=1e-3)
    (out / "own.toml").write_text("[tool]\n")
    with pytest.raises(UsageError, match=r"holds own\.toml"):
        learn_from([tmp_path / "m.onnx"], out=out, target=PRICES, time_limit=1e-3)
    assert (out / "own.toml").read_text() == "[tool]\n"


def test_what_the_library_derives_is_not_learnt(lesson: tuple[LearningResult, Path], tmp_path: Path) -> None:
    _, out = lesson
    library = RuleLibrary({r.id: r for r in parse_file(out / "learned.toml")})
    again = learnt({"layers": scaled_layer()}, library, tmp_path)
    assert again.rules == ()
    assert again.derived >= 1
    assert again.saved_us["layers"] == 0


def test_a_learnt_folder_is_admitted_and_used(lesson: tuple[LearningResult, Path]) -> None:
    found, out = lesson
    library = admit(load_library(out))
    assert {r.id for r in found.rules} <= {r.id for r in library.admitted}
    result = optimize(scaled_layer(), target=PRICES, rules=out, time_limit=120)
    assert all(n.op != "Mul" for n in result.graph.nodes)
    assert result.report.check.verdict == "passed"


def test_a_rule_that_does_not_hold_in_the_model_is_not_learnt_from_it() -> None:
    """Of a candidate that is false in general, what is true under a condition is of no use where that is not met."""

    def shuffle(groups: str, right: str) -> Rule:
        shuffled = f"Reshape(Transpose(Reshape(x, shape=[b, {groups}, c]), perm=[0, 2, 1]), shape=[b, {groups}*c])"
        return parse_rule({"forall": {"x": f"f[b, {groups}*c]"}, "lhs": [shuffled], "rhs": [right]})

    candidate, special = shuffle("g", "x"), shuffle("1", "x")
    assert not applies(special, candidate, {"b": 2, "g": 3, "c": 4})
    assert applies(special, candidate, {"b": 2, "g": 1, "c": 4})


def test_an_operator_that_sums_without_weights_is_a_part_by_itself() -> None:
    """A mean over channels may be a convolution; a product with a weight is one already, and a Relu sums nothing."""
    b = GraphBuilder("means")
    x = b.input("x", "float32", (1, 8, 6, 6))
    y = b.op("Conv", x, b.weight("w", (8, 8, 1, 1)), strides=[1, 1], pads=[0] * 4, dilations=[1, 1], group=1).relu()
    b.output(y.mean([1]), "out")
    with costs.for_target(PRICES) as prices:
        found = mined(program_of(graph := b.build(), infer(graph)), prices)
    alone = [t for t in found if len(t.occurrences[0]) == 1]
    assert [str(t.term) for t in alone] == ["ReduceMean(xa, axes=[1], keepdims=1)"]
    assert alone[0].affine
    assert alone[0].us > alone[0].dearest == 0.0  # all of it may be gained


def test_a_rule_holds_in_a_model_however_large_its_tensors_are() -> None:
    """Nothing is evaluated to ask this, so that images of more elements than an exact trial takes are no exception."""
    left = "Transpose(MatMul(Transpose(x, perm=[0, 2, 3, 1]), w), perm=[0, 3, 1, 2])"
    window = "dilations=[1, 1], group=1, pads=[0, 0, 0, 0], strides=[1, 1]"
    right = f"Conv(x, Reshape(Transpose(w, perm=[1, 0]), shape=[n, c, 1, 1]), {window})"
    rule = parse_rule({"forall": {"x": "f[b, c, h, k]", "w": "f[c, n]"}, "lhs": [left], "rhs": [right]})
    assert applies(rule, rule, {"b": 1, "c": 4, "h": 256, "k": 256, "n": 4})


def test_a_time_limit_holds_within_a_part(tmp_path: Path) -> None:
    """What is not finished is neither kept nor taken for an answer."""
    (problem, _), *_ = lifted(*_normalised())
    past = ResourceBounds(deadline=0.0)
    assert past.left == 0.0
    with pytest.raises(ResourceBoundsExceeded):
        next(RightSideSolver(problem, bounds=past).solutions())
    candidate = next(RightSideSolver(problem).solutions())
    config = DiscoveryConfig(0, 4, 8, 10.0, 0, ())
    with pytest.raises(ResourceBoundsExceeded):
        CandidateProver(config, theme_of(problem, "part"), DiscoveryResultCache(tmp_path), past).rules(candidate)
    assert not list(tmp_path.iterdir())
    assert CandidateProver(config, theme_of(problem, "part"), DiscoveryResultCache(tmp_path)).rules(candidate)


def _normalised() -> tuple[Term, dict[str, TensorType], frozenset[str], dict[str, str]]:
    """A product with a scale behind it, and its leaves."""
    kinds = {n: TensorType(DType.FLOAT32, s) for n, s in (("xa", (8, 4)), ("wa", (4, 6)), ("wb", (6,)))}
    term = OperatorTerm(
        "Mul", (OperatorTerm("MatMul", (VariableTerm("xa"), VariableTerm("wa")), ()), VariableTerm("wb")), ()
    )
    return term, kinds, frozenset({"wa", "wb"}), dict.fromkeys(kinds, "f")


def test_what_a_search_does_not_reach_is_no_answer_of_the_library() -> None:
    """Of the same library: it leads from a product to a convolution, but only when it is shown the convolution."""
    turned = "Transpose(MatMul(Transpose(x, perm=[0, 2, 1]), w), perm=[0, 2, 1])"
    kernel = "Reshape(Transpose(w, perm=[1, 0]), shape=[n, m, 1])"
    right = f"Conv(x, {kernel}, dilations=[1], group=1, pads=[0, 0], strides=[1])"
    forall = {"x": "f[1, m, k]", "w": "f[m, n]"}
    rule = parse_rule({"id": "candidate", "forall": forall, "lhs": [turned], "rhs": [right]})
    library = load_library()
    near = rewrites_of([r for r in library.values() if r.operators <= rule.operators])
    assert derived(rule, near, rounds=QUICK_ROUNDS) is not None
    assert not reached(rule, near, rounds=QUICK_ROUNDS, weights=frozenset("w"))
    assert reached(replace(rule, rhs=rule.lhs), near, rounds=QUICK_ROUNDS, weights=frozenset("w"))


def test_one_example_is_a_batch_of_any_size_but_where_it_is_broadcast() -> None:
    def first(op: str, shapes: Mapping[str, tuple[int, ...]], weights: str) -> object:
        kinds = {n: TensorType(DType.FLOAT32, s) for n, s in shapes.items()}
        term = OperatorTerm(op, tuple(VariableTerm(n) for n in shapes), ())
        problem, values = next(lifted(term, kinds, frozenset(weights.split()), dict.fromkeys(shapes, "f")))
        size = (problem.kinds["xa"].shape or ())[0]
        assert size == 1 or values[str(size)] == 1
        return size

    assert first("MatMul", {"xa": (1, 4), "wa": (4, 6)}, "wa") != 1
    assert first("Add", {"xa": (1, 4), "xb": (8, 4)}, "") == 1


def test_a_part_that_reads_more_than_there_are_names_for_is_none() -> None:
    b = GraphBuilder("many")
    many = b.op("Concat", *(b.input(f"x{i}", "float32", (2, 3)) for i in range(30)), axis=0)
    b.output(b.op("Relu", many), "y")
    graph = b.build()
    with costs.for_target(PRICES) as prices:
        assert mined(program_of(graph, infer(graph)), prices) == []


def images_turned() -> Graph:
    """What attention over channels does to one example: queries, keys and values of it, turned."""
    b = GraphBuilder("turned")
    x = b.input("x", "float32", (1, 196, 384))
    apart = b.op("Reshape", x, b.constant(np.array([1, 196, 3, 4, 32])))
    b.output(b.op("Transpose", apart, perm=[2, 0, 3, 4, 1]).relu(), "y")
    return b.build()


def test_elements_are_put_in_order_by_what_the_device_does_fast(tmp_path: Path) -> None:
    found = learnt({"turned": images_turned()}, RuleLibrary({}), tmp_path)
    assert found.saved_us["turned"] > 0.5 * found.model_us["turned"]
    (rule,) = [r for r in found.rules if "Reshape" not in {t.op for t in r.lhs if isinstance(t, OperatorTerm)}]
    (moved,) = [t for t in postorder(*rule.rhs) if isinstance(t, OperatorTerm) and t.op == "Transpose"]
    assert len(dict(moved.attributes)["perm"]) == 2, (
        "the axis of one element is gone, and those that stay together are one"
    )
    for seed in (31, 32, 33):
        assert isinstance(testing.test(rule, seed=seed), verdict.TestedVerdict)


def test_one_example_has_fewer_axes_to_move_than_a_batch() -> None:
    term = OperatorTerm("Transpose", (VariableTerm("xa"),), (("perm", (2, 0, 3, 4, 1)),))
    kinds = {"xa": TensorType(DType.FLOAT32, (1, 196, 3, 4, 32))}
    moved = []
    for problem, _ in lifted(term, kinds, frozenset(), {"xa": "f"}):
        (found,) = RightSideSolver(problem, cost=lambda _: (1.0, 0.5)).solutions()
        assert isinstance(testing.test(found, seed=5), verdict.TestedVerdict)
        applied = [t for t in postorder(*found.rhs) if isinstance(t, OperatorTerm) and t.op == "Transpose"]
        moved += [dict(t.attributes)["perm"] for t in applied]
    assert moved == [(2, 0, 3, 1), (1, 0)]
