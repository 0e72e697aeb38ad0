"""What the quick check must refuse: planted errors in whole models, where something was rewritten and where not."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest

from superopt.ir.diff import changed_regions, grown
from superopt.ir.graph import ArrayWeightData, Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.verifier.check import differential, region_checks
from superopt.verifier.check import differential_check as judging
from superopt.verifier.check.boundary_value_targets import sums
from superopt.verifier.check.check_settings import QUICK
from superopt.verifier.check.differential import CheckResult, check_rewrite
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

F32, I64 = DType.FLOAT32, DType.INT64
single = np.float32
BLOCKS = 6
WIDTH, SIDE = 16, 32
ROWS, ROW = 50_000, 31_234


def residual(*, folded: bool, middle: tuple[str, ...] = (), head: float = 0.0) -> Graph:
    """Blocks of Conv, BatchNormalization (folded or not), Relu and a residual Sub; a head with a bias of a million.

    ``middle`` are operators between the second and the third block; too much work for every steered input.
    """
    local = np.random.default_rng(1)
    shape = (1, WIDTH, SIDE, SIDE)
    nodes: list[Node] = []
    weights: dict[str, np.ndarray] = {}
    current = "x"
    for i in range(BLOCKS):
        w = (local.standard_normal((WIDTH, WIDTH, 3, 3)) / 12).astype(single)
        g, e, m = (local.standard_normal(WIDTH).astype(single) for _ in range(3))
        v = local.uniform(0.5, 2, WIDTH).astype(single)
        pads = {"pads": (1, 1, 1, 1)}
        if folded:
            s = g / np.sqrt(v + single(1e-5))
            weights |= {f"folded.w{i}": w * s[:, None, None, None], f"folded.b{i}": e - m * s}
            nodes.append(Node(f"c{i}", "Conv", (current, f"folded.w{i}", f"folded.b{i}"), (f"n{i}",), pads))
        else:
            weights |= {f"w{i}": w, f"g{i}": g, f"e{i}": e, f"m{i}": m, f"v{i}": v}
            nodes.append(Node(f"c{i}", "Conv", (current, f"w{i}"), (f"h{i}",), pads))
            reads = (f"h{i}", f"g{i}", f"e{i}", f"m{i}", f"v{i}")
            nodes.append(Node(f"b{i}", "BatchNormalization", reads, (f"n{i}",)))
        nodes.append(Node(f"r{i}", "Relu", (f"n{i}",), (f"a{i}",)))
        nodes.append(Node(f"s{i}", "Sub", (f"a{i}", current), (f"s{i}",)))
        current = f"s{i}"
        for place, op in enumerate(middle if i == 1 else ()):
            nodes.append(Node(f"mid{place}", op, (current,), (f"mid{place}",)))
            current = f"mid{place}"
    nodes.append(Node("pool", "GlobalAveragePool", (current,), ("p",)))
    nodes.append(Node("flat", "Flatten", ("p",), ("f",), {"axis": 1}))
    weights["head"] = local.standard_normal((WIDTH, 3)).astype(single)
    weights["bias"] = single([1e6, 0.1, 0.2 + head])
    nodes += [Node("dense", "MatMul", ("f", "head"), ("d",)), Node("add", "Add", ("d", "bias"), ("y",))]
    held = tuple(constant(n, np.asarray(a)) for n, a in weights.items())
    inputs, outputs = (Value("x", TensorType(F32, shape)),), (Value("y", TensorType(F32, (1, 3))),)
    return Graph("net", inputs, outputs, held, tuple(nodes), {"": 20}).checked()


def embedded(*, fused: bool, wrong_row: bool = False) -> Graph:
    """Rows of a table through three products; written in another way, or with another row."""
    local = np.random.default_rng(2)
    table = local.standard_normal((ROWS, 64)).astype(single)
    if wrong_row:
        table[ROW, 3] += single(0.5)
    scale = single(0.3)
    dense = [(local.standard_normal((64, 64)) / 8).astype(single) for _ in range(3)]
    weights = {"t": table, "s": scale, **{f"w{i}": w for i, w in enumerate(dense)}}
    nodes = [Node("g", "Gather", ("t", "i"), ("h",))]
    if fused:
        weights["w0s"] = dense[0] * scale
        nodes.append(Node("m0", "MatMul", ("h", "w0s"), ("k",)))
    else:
        nodes += [Node("m0", "MatMul", ("h", "w0"), ("q",)), Node("mul", "Mul", ("q", "s"), ("k",))]
    nodes += [Node("m1", "MatMul", ("k", "w1"), ("l",)), Node("m2", "MatMul", ("l", "w2"), ("y",))]
    held = tuple(constant(n, np.asarray(a)) for n, a in weights.items())
    return Graph(
        "table", (Value("i", TensorType(I64, (1, 512))),), (Value("y", TensorType(F32, (1, 512, 64))),), held,
        tuple(nodes), {"": 20},
    ).checked()  # fmt: skip


def with_element(graph: Graph, name: str, change: float) -> Graph:
    """The graph with one element of a weight changed, under the same name."""
    weights = []
    for w in graph.weights:
        if w.name == name:
            assert w.data is not None
            array = np.array(w.data.numpy())
            array.reshape(-1)[array.size // 2] += single(change)
            weights.append(replace(w, data=ArrayWeightData(array)))
        else:
            weights.append(w)
    return replace(graph, weights=tuple(weights))


def with_node(graph: Graph, name: str, **changes: object) -> Graph:
    """The graph with one node changed."""
    return replace(graph, nodes=tuple(replace(n, **changes) if n.name == name else n for n in graph.nodes))


def shifted(graph: Graph, after: str, by: float) -> Graph:
    """The graph with a constant added behind a node, where its result is read."""
    made = next(n for n in graph.nodes if n.name == after).outputs[0]
    nodes: list[Node] = []
    for n in graph.nodes:
        inputs = tuple("moved" if i == made else i for i in n.inputs)
        nodes.append(replace(n, inputs=inputs))
        if n.name == after:
            nodes.append(Node("planted", "Add", (made, "by"), ("moved",)))
    return replace(graph, nodes=tuple(nodes), weights=(*graph.weights, constant("by", np.asarray(single(by)))))


BEFORE, AFTER = residual(folded=False), residual(folded=True)
FLOORED, FLOORED_AFTER = (residual(folded=f, middle=("Floor",)) for f in (False, True))
ROWS_BEFORE, ROWS_AFTER = embedded(fused=False), embedded(fused=True)

IN_PLACES = {  # the first place is checked with steered inputs and mutants, the others with a random one
    "an element of a folded kernel": (BEFORE, with_element(AFTER, "folded.w4", 0.05)),
    "an element of the last folded shift": (BEFORE, with_element(AFTER, f"folded.b{BLOCKS - 1}", 0.05)),
    "two kernels exchanged": (
        BEFORE,
        with_node(AFTER, "c2", inputs=("s1", "folded.w3", "folded.b2")),
    ),
    "padding": (BEFORE, with_node(AFTER, "c3", attributes={"pads": (0, 0, 2, 2)})),
    "a scale beside a table": (ROWS_BEFORE, with_element(ROWS_AFTER, "w0s", 0.01)),
}
ELSEWHERE = {
    "a bias off by .05 beside one of a million": (BEFORE, residual(folded=True, head=0.05)),
    "an operand swapped, deep down": (BEFORE, with_node(AFTER, "s4", inputs=("s3", "a4"))),
    "another residual": (BEFORE, with_node(AFTER, "s3", inputs=("a3", "s1"))),
    "another operator": (BEFORE, with_node(AFTER, "r2", op="Abs")),
    "2.5 behind Floor": (FLOORED, shifted(FLOORED_AFTER, "mid0", 2.5)),
    "one row of a table": (ROWS_BEFORE, embedded(fused=True, wrong_row=True)),
}


def judge(before: Graph, after: Graph) -> CheckResult:
    assert not differential.DifferentialCheck(
        before, after, _QUICK, region_checks.SharedWeightSessions()
    ).exhaustive  # else the places would not matter
    return check_rewrite(before, after)


_QUICK = differential._plan(0, 3, None, None, None, differential.NONE, differential.QUICK)


@pytest.mark.parametrize("pair", [(BEFORE, AFTER), (FLOORED, FLOORED_AFTER), (ROWS_BEFORE, ROWS_AFTER)])
def test_a_right_result_passes_and_its_places_have_power(pair: tuple[Graph, Graph]) -> None:
    found = judge(*pair)
    assert found.verdict == "passed", found.reason
    assert "as a whole" not in found.reason
    assert found.trials > 3
    assert found.power is not None
    assert found.power.caught == found.power.mutants > 0


@pytest.mark.parametrize("name", [*IN_PLACES, *ELSEWHERE])
def test_a_planted_error_is_refused(name: str) -> None:
    assert judge(*(IN_PLACES | ELSEWHERE)[name]).verdict == "failed"


@pytest.mark.parametrize("name", [*IN_PLACES, *ELSEWHERE])
def test_a_planted_error_that_the_difference_misses_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been found rewritten: the whole model's runs are not told where to look."""
    monkeypatch.setattr(region_checks, "changed_regions", lambda *args: ())
    assert judge(*(IN_PLACES | ELSEWHERE)[name]).verdict == "failed"


@pytest.mark.parametrize("name", [*IN_PLACES, *ELSEWHERE])
def test_a_brief_check_refuses_planted_errors_without_running_places(name: str) -> None:
    found = check_rewrite(*{**IN_PLACES, **ELSEWHERE}[name], brief=True)
    assert found.verdict == "failed"
    assert found.power is None


@pytest.mark.parametrize("pair", [(BEFORE, AFTER), (FLOORED, FLOORED_AFTER), (ROWS_BEFORE, ROWS_AFTER)])
def test_a_brief_check_passes_a_right_result(pair: tuple[Graph, Graph]) -> None:
    assert check_rewrite(*pair, brief=True).verdict == "passed"


def test_a_place_that_differs_lets_the_whole_check_decide() -> None:
    """A bound that no random input reaches, behind convolutions: inputs are steered to it."""

    def bounded(most: float) -> Graph:
        graph = with_node(residual(folded=False, middle=("Clip",)), "mid0", inputs=("s1", "", f"most{most}"))
        return replace(graph, weights=(*graph.weights, constant(f"most{most}", np.asarray(single(most))))).checked()

    found = judge(bounded(1000), bounded(2000))
    assert found.verdict == "failed"
    assert "checked as a whole: what makes mid0 differs by itself" in found.reason


def test_a_place_whose_inputs_are_bound_is_no_alarm() -> None:
    """What Relu makes is its own magnitude: the place alone, whose inputs are free, is not."""
    before = residual(folded=False, middle=("Relu", "Abs"))
    found = judge(before, with_node(before, "mid1", op="Identity"))
    assert found.verdict == "passed"
    assert found.reason == "equal only together with what makes their inputs: mid1"


def test_equal_names_are_not_equal_weights() -> None:
    """A weight with other elements under its old name is a change, and so is one that a node made before."""
    graph = residual(folded=False)
    other = with_element(graph, "w2", 0.5)
    ((left, right),) = changed_regions(graph, other, infer(graph).types)
    assert [n.name for n in left.nodes] == ["c2"] == [n.name for n in right.nodes]
    assert changed_regions(graph, replace(graph), infer(graph).types) == ()


def test_a_place_grows_by_what_makes_its_inputs() -> None:
    types = infer(BEFORE).types
    pair = next(p for p in changed_regions(BEFORE, AFTER, types) if p[0].outputs[0].name == "n3")
    larger = grown(BEFORE, AFTER, pair, types)
    assert [n.name for n in pair[0].nodes] == ["c3", "b3"]
    assert [n.name for n in larger[0].nodes] == ["s2", "c3", "b3"]
    assert [n.name for n in larger[1].nodes] == ["s2", "c3"]
    assert larger[0].inputs == larger[1].inputs
    for side in larger:
        side.checked()


@pytest.mark.parametrize("large", [False, True])
def test_what_a_check_held_goes_with_it(monkeypatch: pytest.MonkeyPatch, large: bool) -> None:
    """The collector looks rarely during an optimisation, so nothing may hold itself; and a large model's result, which
    runs on one input only, keeps no session while that is explained."""
    monkeypatch.setattr(judging, "LARGE", 0 if large else 1 << 40)
    with region_checks.SharedWeightSessions() as bench:
        bench.loaded(AFTER, ONNX_RUNTIME, keep=True)
        plan = replace(_QUICK, effort=replace(QUICK, work=1.0))
        one = differential.DifferentialCheck(BEFORE, AFTER, plan, bench)
        assert one.run().verdict == "passed"
        assert one.single_run is large
        assert bool(bench._cached) is not large
        gc.disable()
        try:
            held = weakref.ref(one)
            del one
            assert held() is None
        finally:
            gc.enable()


def kinds_of_places(count: int, *, first: bool) -> Graph:
    """So many activations, all different in an attribute, each of a product by two, made first or last."""
    kind = TensorType(F32, (4, 8))
    nodes: list[Node] = []
    for i in range(count):
        read, inner, made = f"x{i}", f"{'g' if first else 'h'}{i}", f"y{i}"
        product = Node(f"m{i}", "Mul", (read if first else inner, "two"), (inner if first else made,))
        reads, makes = (inner, made) if first else (read, inner)
        activation = Node(f"r{i}", "LeakyRelu", (reads,), (makes,), {"alpha": 0.01 * (i + 1)})
        nodes += [product, activation] if first else [activation, product]
    given, results = (tuple(Value(f"{letter}{i}", kind) for i in range(count)) for letter in "xy")
    return Graph("kinds", given, results, (constant("two", np.asarray(single(2.0))),), tuple(nodes), {"": 20}).checked()


def test_mutants_are_shared_by_the_kinds_of_places() -> None:
    before, after = kinds_of_places(20, first=False), kinds_of_places(20, first=True)
    plan = differential._plan(0, 6, None, 60.0, {}, region_checks.NONE, differential.QUICK)
    with SharedWeightSessions() as bench:
        found = region_checks.check_sites(before, after, infer(before, {}), plan, bench)
    assert found.checked == found.sites > 1
    assert found.power is not None
    assert 0 < found.power.mutants <= 8


def difference(*, of_products: bool) -> Graph:
    """What a block makes minus its input, scaled by the input; or scaled first, and subtracted then."""
    graph = residual(folded=False)
    if of_products:
        made = [Node("l", "Mul", ("s1", "s0"), ("l",)), Node("k", "Mul", ("s0", "s0"), ("k",)),
                Node("m", "Sub", ("l", "k"), ("scaled",))]  # fmt: skip
    else:
        made = [Node("m", "Sub", ("s1", "s0"), ("less",)), Node("l", "Mul", ("less", "s0"), ("scaled",))]
    nodes: list[Node] = []
    for n in graph.nodes:
        nodes.append(replace(n, inputs=tuple("scaled" if i == "s1" else i for i in n.inputs)))
        nodes += made if n.outputs == ("s1",) else []
    return replace(graph, nodes=tuple(nodes)).checked()


def test_what_shows_only_where_the_inputs_of_a_place_are_alike_is_refused() -> None:
    """A difference of products loses what a product of a difference keeps where both are alike, which no input of the
    whole makes them: one of the whole would not tell."""
    before, after = difference(of_products=False), difference(of_products=True)
    assert differential.check(before, after).verdict == "passed"
    found = judge(before, after)
    assert found.verdict == "failed"
    assert "on inputs that are alike as none of the whole makes them" in found.reason
    assert "scaled" in found.where


def products(size: int, op: str, *, apart: bool) -> Graph:
    """Two products with one weight, and that of the difference or sum, or the difference or sum of the products."""
    kind = TensorType(F32, (size, size))
    weight = (np.random.default_rng(4).standard_normal((size, size)) / size**0.5).astype(single)
    nodes = [Node("p", "MatMul", ("x", "w"), ("p",)), Node("q", "MatMul", ("y", "w"), ("q",))]
    if apart:
        nodes.append(Node("d", op, ("p", "q"), ("out",)))
    else:
        nodes += [Node("d", op, ("x", "y"), ("d",)), Node("m", "MatMul", ("d", "w"), ("out",))]
    inputs, outputs = (tuple(Value(n, kind) for n in names) for names in (("x", "y"), ("p", "q", "out")))
    return Graph("net", inputs, outputs, (constant("w", weight),), tuple(nodes), {"": 20}).checked()


@pytest.mark.parametrize(("op", "aim"), [("Sub", "all nearly equal"), ("Add", "nearly opposite")])
def test_sums_that_cancel_are_tried(op: str, aim: str) -> None:
    found = differential.check(products(32, op, apart=False), products(32, op, apart=True))
    assert found.verdict == "failed"
    assert aim in found.reason


@pytest.mark.parametrize(
    ("size", "op", "aim"),
    [
        (400, "Add", "nearly opposite"),
        pytest.param(1300, "Sub", "all nearly equal", marks=pytest.mark.slow),
    ],
)
def test_sums_that_cancel_are_tried_however_large_a_place_is(size: int, op: str, aim: str) -> None:
    """Where a place is too much work for any steered input, and for all that places may take."""
    before, after = products(size, op, apart=False), products(size, op, apart=True)
    found = judge(before, after)
    assert found.verdict == "failed"
    assert aim in found.reason
    assert judge(after, after).verdict == "passed"


def added(size: int, op: str, *, apart: bool) -> Graph:
    """The sums of rows of a sum or difference of three, or the sum or difference of the three's sums."""
    kind = TensorType(F32, (size, size))
    terms = ("p", "q", "r") if apart else ("x", "y", "z")
    nodes = [Node(p, "ReduceSum", (x, "axis"), (p,)) for x, p in zip("xyz", "pqr", strict=True) if apart]
    nodes += [Node("d", "Add", terms[:2], ("d",)), Node("e", op, ("d", terms[2]), ("out" if apart else "e",))]
    nodes += [] if apart else [Node("m", "ReduceSum", ("e", "axis"), ("out",))]
    inputs = tuple(Value(n, kind) for n in "xyz")
    outputs = (Value("out", TensorType(F32, (size, 1))),)
    return Graph("net", inputs, outputs, (constant("axis", np.array([1])),), tuple(nodes), {"": 20}).checked()


@pytest.mark.parametrize(
    ("size", "op"), [(256, "Add"), (256, "Sub"), pytest.param(1200, "Sub", marks=pytest.mark.slow)]
)
def test_a_sum_of_three_cancels(size: int, op: str) -> None:
    before, after = added(size, op, apart=False), added(size, op, apart=True)
    found = check_rewrite(before, after)
    assert found.verdict == "failed"
    assert "the sum of x, y, z cancels" in found.reason
    assert check_rewrite(after, before).verdict == "passed"


def test_terms_of_a_sum_are_followed_to_the_inputs() -> None:
    kind = TensorType(F32, (4,))
    nodes = (
        Node("n", "Neg", ("x",), ("n",)), Node("s", "Sub", ("y", "n"), ("s",)), Node("t", "Sub", ("w", "s"), ("t",)),
        Node("a", "Abs", ("z",), ("a",)), Node("u", "Sum", ("t", "a"), ("u",)),
    )  # fmt: skip
    inputs = tuple(Value(n, kind) for n in "wxyz")
    graph = Graph("net", inputs, (Value("u", kind),), (), nodes, {"": 20}).checked()
    assert sums(graph, "wxyz") == ({"w": False, "y": True, "x": True},)
    assert sums(graph, "wx") == ()


def test_changed_rows_are_read_whatever_the_work() -> None:
    plan = replace(_QUICK, effort=replace(QUICK, work=1.0))
    with SharedWeightSessions() as bench:
        right = judging.DifferentialCheck(ROWS_BEFORE, ROWS_AFTER, plan, bench).run()
        wrong = judging.DifferentialCheck(ROWS_BEFORE, embedded(fused=True, wrong_row=True), plan, bench).run()
    assert (right.verdict, wrong.verdict) == ("passed", "failed")


def test_a_model_whose_places_there_was_no_time_for_is_not_checked() -> None:
    found = check_rewrite(BEFORE, AFTER, time_limit=0.0)
    assert found.verdict == "skipped"
    assert "time ended the check before" in found.reason
