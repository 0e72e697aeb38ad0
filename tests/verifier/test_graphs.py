"""Whole models: proved by region, tested where a proof is not found, refuted with inputs that show it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from superopt.ir.errors import UsageError
from superopt.ir.graph import ArrayWeightData, Graph, Node, Value, Weight
from superopt.ir.size_polynomial import Dim, sym
from superopt.ir.terms import OperatorTerm, postorder
from superopt.ir.types import DType, TensorType
from superopt.rules import Rule
from superopt.runtime import reference
from superopt.verifier.check.differential import CheckResult
from superopt.verifier.equivalence import graphs, regions
from superopt.verifier.equivalence.constant_unfolding import NOTE
from superopt.verifier.equivalence.graphs import certify_result, verify
from superopt.verifier.verdict import Verdict

RNG = np.random.default_rng(3)
ARRAYS = {"w": (4, 6), "v": (4, 6), "k": (5, 3, 3, 3)}
DATA = {n: RNG.standard_normal(s).astype(np.float32) for n, s in ARRAYS.items()}


def _type(*shape: Dim) -> TensorType:
    return TensorType(DType.FLOAT32, shape)


def _graph(
    inputs: dict[str, TensorType], nodes: list[Node], output: TensorType, weights: dict[str, np.ndarray]
) -> Graph:
    return Graph(
        name="g", inputs=tuple(Value(n, t) for n, t in inputs.items()), outputs=(Value("y", output),),
        weights=tuple(Weight(n, _type(*a.shape), ArrayWeightData(a)) for n, a in weights.items()), nodes=tuple(nodes),
        opset={"": 21},
    ).checked()  # fmt: skip


def _node(op: str, inputs: str, output: str, **attributes: object) -> Node:
    return Node(f"n_{output}", op, tuple(inputs.split()), tuple(output.split()), attributes)  # type: ignore[arg-type]


X = {"x": _type(sym("N"), 4)}
Y = _type(sym("N"), 6)


def _two_products() -> Graph:
    nodes = [
        _node("MatMul", "x w", "a"),
        _node("MatMul", "x v", "b"),
        _node("Add", "a b", "s"),
        _node("Relu", "s", "y"),
    ]
    return _graph(X, nodes, Y, {n: DATA[n] for n in "wv"})


def _one_product(weight: np.ndarray | None = None) -> Graph:
    nodes = [_node("Add", "w v", "u"), _node("MatMul", "x u", "s"), _node("Relu", "s", "y")]
    return _graph(X, nodes, Y, {"w": DATA["w"] if weight is None else weight, "v": DATA["v"]})


def test_a_model_equals_itself() -> None:
    found = verify(_two_products(), _two_products())
    assert found.verdict == "proved"
    assert found.same == 4


def test_a_model_equals_itself_however_a_runtime_rewrites_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's own optimiser may: a normalisation by a huge variance becomes a Conv by 0, and infinity is NaN."""
    monkeypatch.setattr(graphs, "check", lambda *_, **__: CheckResult("failed", reason="it runs otherwise"))
    assert verify(_two_products(), replace(_two_products(), name="other")).verdict == "proved"
    assert verify(_two_products(), _one_product()).verdict == "refuted"


def test_a_rewritten_model_is_proved_by_region() -> None:
    found = verify(_two_products(), _one_product())
    assert found.verdict == "proved", found
    assert found.proved_share == 1.0
    assert found.regions


def test_a_constant_that_nothing_explains_is_tested_not_proved() -> None:
    nodes = [_node("MatMul", "x u", "s"), _node("Relu", "s", "y")]
    folded = _graph(X, nodes, Y, {"u": DATA["w"] + DATA["v"]})
    found = verify(_two_products(), folded)
    assert found.verdict == "tested"
    assert found.words.startswith("tested (power ")
    assert found.proved_share < 1.0


def _folded(array: np.ndarray, note: str) -> Graph:
    graph = _graph(X, [_node("MatMul", "x u", "s"), _node("Relu", "s", "y")], Y, {"u": array})
    weights = tuple(replace(w, metadata={NOTE: note}) for w in graph.weights)
    return replace(graph, weights=weights).checked()


SUM = json.dumps({"steps": [["Add", ["w", "v"], {}, ["u"]]], "output": "u"})


def test_a_folded_constant_that_says_how_it_was_made_is_proved() -> None:
    found = certify_result(_two_products(), _folded(DATA["w"] + DATA["v"], SUM), total=60.0)
    assert found.verdict == "proved up to rounding", found
    assert found.words.startswith("proved over the reals, up to the rounding of folded constants (max 1 ulp)")
    assert found.proved_share == 1.0
    assert (found.folded, found.max_ulp) == (1, 1)


def test_two_constants_explain_no_third_beside_their_product() -> None:
    def graph(scale: np.float32, *, folded: bool) -> Graph:
        nodes = [_node("Mul", "x k", "y")] if folded else [_node("Mul", "x one", "h"), _node("Mul", "h k", "y")]
        held = {"k": np.asarray(scale)} if folded else {"k": np.asarray(scale), "one": np.asarray(np.float32(1))}
        return _graph({"x": _type(4)}, nodes, _type(4), held)

    k = np.float32(1e-5)
    near = np.frombuffer((k.view(np.int32) + np.int32(6)).tobytes(), np.float32)[0]
    assert verify(graph(k, folded=False), graph(k, folded=True)).verdict == "proved"
    assert verify(graph(k, folded=False), graph(near, folded=True)).verdict == "tested"


@pytest.mark.parametrize(
    "note",
    [SUM.replace("Add", "Sub"), SUM.replace('"w"', '"nowhere"'), "{", "[]", SUM.replace("Add", "Exec"),
     '{"steps": [["Add", ["w"], {}, ["u"]]], "output": "u"}', '{"steps": [], "output": "u"}'],
)  # fmt: skip
def test_a_note_that_does_not_hold_is_not_believed(note: str) -> None:
    found = verify(_two_products(), _folded(DATA["w"] + DATA["v"], note))
    assert found.verdict == "tested"


def test_a_true_note_on_a_wrong_weight_does_not_help() -> None:
    found = verify(_two_products(), _folded(DATA["w"] - DATA["v"], SUM))
    assert found.verdict == "refuted"


def test_large_models_are_run_where_they_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "LARGE", 0)
    found = verify(_two_products(), _folded(DATA["w"] + DATA["v"], SUM))
    assert found.verdict == "proved up to rounding", found
    assert found.check.verdict == "passed"
    assert "place by place" in found.check.reason
    wrong = verify(_two_products(), _folded(DATA["w"] - DATA["v"], SUM))  # its place fails: the whole is run
    assert wrong.verdict == "refuted"
    assert set(wrong.feeds) == {"x"}
    assert "place by place" not in wrong.check.reason
    assert verify(_two_products(), _two_products()).verdict == "proved"


def _with_opaque(nodes: list[Node], weights: dict[str, np.ndarray]) -> Graph:
    """The sum goes through a node that no operator's record reads (Loop-free, but of another domain) and a Hardmax."""
    tail = [Node("o", "Hardmax", ("s",), ("t",), {"axis": 1}), _node("Add", "t s", "y")]
    return _graph(X, [*nodes, *tail], Y, weights)


def test_an_opaque_node_of_equal_values_is_equal() -> None:
    before = _with_opaque(
        [_node("MatMul", "x w", "a"), _node("MatMul", "x v", "b"), _node("Add", "a b", "s")], {n: DATA[n] for n in "wv"}
    )
    after = _with_opaque([_node("Add", "w v", "u"), _node("MatMul", "x u", "s")], {n: DATA[n] for n in "wv"})
    found = verify(before, after)
    assert found.verdict == "proved", found
    assert {r.output for r in found.regions} >= {"s", "t"}


def test_a_weight_that_is_one_number_everywhere_is_that_number() -> None:
    ones = np.ones((1, 12), np.float32)
    before = _graph({"x": _type(sym("N"), 12)}, [_node("Relu", "x", "y")], _type(sym("N"), 12), {})
    nodes = [_node("Relu", "x", "r"), _node("Mul", "r k", "y")]
    after = _graph({"x": _type(sym("N"), 12)}, nodes, _type(sym("N"), 12), {"k": ones})
    assert verify(before, after).verdict == "proved"


def test_a_large_region_is_proved() -> None:
    arrays = {f"w{i}": RNG.standard_normal((4, 6)).astype(np.float32) for i in range(40)}
    before = [_node("MatMul", f"x w{i}", f"p{i}") for i in range(40)]
    before += [
        _node("Add", f"{'p0' if i == 1 else f's{i - 1}'} p{i}", "y" if i == 39 else f"s{i}") for i in range(1, 40)
    ]
    after = [_node("Add", f"{'w0' if i == 1 else f'u{i - 1}'} w{i}", f"u{i}") for i in range(1, 40)]
    found = verify(_graph(X, before, Y, arrays), _graph(X, [*after, _node("MatMul", "x u39", "y")], Y, arrays))
    assert found.verdict == "proved", found


def _slightly_other_epsilon() -> tuple[Graph, Graph]:
    scale = {"s": np.ones(8, np.float32)}
    return tuple(
        _graph({"x": _type(2, 8)}, [_node("LayerNormalization", "x s", "y", epsilon=e)], _type(2, 8), scale)
        for e in (1e-5, 2e-5)
    )  # type: ignore[return-value]


def _moved_relu(outside: bool) -> Graph:
    """Relu of two values side by side, one of which another node's Relu reads as well."""
    nodes = [_node("MatMul", "x w", "p"), _node("MatMul", "x v", "q"), _node("Relu", "q", "z")]
    if outside:
        nodes += [_node("Concat", "p q", "c", axis=1), _node("Relu", "c", "h")]
    else:
        nodes += [_node("Relu", "p", "i"), _node("Concat", "i z", "h", axis=1)]
    return _graph(X, [*nodes, _node("Concat", "h z", "y", axis=1)], _type(sym("N"), 18), {n: DATA[n] for n in "wv"})


def test_a_value_that_the_first_model_computes_elsewhere_too_hides_no_proof() -> None:
    assert verify(_moved_relu(True), _moved_relu(False)).verdict == "proved"
    assert verify(_moved_relu(False), _moved_relu(True)).verdict == "proved"


def _chain(swapped: bool, steps: int) -> Graph:
    """The sine of twice an angle, or what the prover does not know to be that, and many steps behind it."""
    nodes = [_node("Add", "x x", "d"), _node("Sin", "d", "h0")]
    if swapped:
        nodes = [_node("Sin", "x", "s"), _node("Cos", "x", "c0"), _node("Mul", "s c0", "m"), _node("Add", "m m", "h0")]
    for n in range(steps):
        reads = f"c h{n}" if swapped else f"h{n} c"
        nodes += [_node("Add", reads, f"s{n}"), _node("Relu", f"s{n}", f"h{n + 1}")]
    nodes[-1] = replace(nodes[-1], outputs=("y",))
    return _graph({"x": _type(2, 6)}, nodes, _type(2, 6), {"c": 0.1 * np.arange(6, dtype=np.float32) + 0.01})


def test_proofs_behind_a_value_that_is_only_tested_stay_near(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()
    prove = regions.prove_joined

    def counted(rule: Rule, *, time_limit: float) -> Verdict:
        sizes.append(sum(isinstance(t, OperatorTerm) for t in postorder(rule.lhs[0])))
        return prove(rule, time_limit=time_limit)

    monkeypatch.setattr(regions, "prove_joined", counted)
    found = verify(_chain(False, 40), _chain(True, 40), power="none")
    assert found.verdict == "tested", found.reason
    assert [r.output for r in found.regions if r.verdict == "tested"] == ["h0"]
    assert max(sizes) <= 12


def test_a_difference_below_float32_is_seen_in_float64() -> None:
    found = verify(*_slightly_other_epsilon())
    assert found.verdict == "refuted"
    assert found.feeds


def _transposed() -> tuple[Graph, Graph]:
    square = RNG.standard_normal((4, 4)).astype(np.float32)
    return tuple(
        _graph({"x": _type(2, 4)}, [_node("MatMul", "x w", "y")], _type(2, 4), {"w": w})
        for w in (square, square.T.copy())
    )  # type: ignore[return-value]


def _shifted_pad() -> tuple[Graph, Graph]:
    return tuple(
        _graph({"x": _type(1, 3, 6, 6)}, [_node("Conv", "x k", "y", pads=p)], _type(1, 5, 6, 6), {"k": DATA["k"]})
        for p in ((1, 1, 1, 1), (0, 1, 2, 1))
    )  # type: ignore[return-value]


def _other_epsilon() -> tuple[Graph, Graph]:
    scale = {"s": np.ones(8, np.float32)}
    return tuple(
        _graph({"x": _type(2, 8)}, [_node("LayerNormalization", "x s", "y", epsilon=e)], _type(2, 8), scale)
        for e in (1e-5, 1e-2)
    )  # type: ignore[return-value]


@pytest.mark.parametrize("pair", [_transposed, _shifted_pad, _other_epsilon])
def test_a_changed_model_is_refuted_with_inputs(pair: Callable[[], tuple[Graph, Graph]]) -> None:
    a, b = pair()
    found = verify(a, b)
    assert found.verdict == "refuted"
    left, right = reference.run(a, found.feeds)["y"], reference.run(b, found.feeds)["y"]
    assert np.abs(left - right).max() > 1e-4


def test_different_signatures_are_an_error() -> None:
    with pytest.raises(UsageError, match="signature"):
        verify(_two_products(), _transposed()[0])
