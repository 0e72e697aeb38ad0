"""The laws that every operator's record keeps: type rule = what ran, meaning = ONNX Runtime, read∘write = identity."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from superopt.formats import to_onnx_bytes
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.size_polynomial import substitute, sym
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.flops_and_bytes import flops
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator, IndexCondition
from superopt.ops.shape_inference import CanonicalNode, infer
from superopt.runtime.comprehension_evaluation import FLOAT64, evaluate
from superopt.runtime.reference import evaluate_application, wide

OPSETS = (7, 10, 11, 13, 18, 21, 23)
ESSENTIAL = frozenset({"Add", "Conv", "MatMul", "Reshape", "Softmax"})  # whose samples the essential tests take


def run(graph: Graph, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs under ONNX Runtime, or under ONNX's own reference where that has no kernel."""
    data = to_onnx_bytes(graph)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds)
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return ReferenceEvaluator(onnx.load_from_string(data)).run(None, feeds)


def applied(graph: Graph) -> CanonicalNode:
    (found,) = infer(graph).nodes
    assert isinstance(found, CanonicalNode), found
    return found


def array_of(sample: Any, name: str | None) -> np.ndarray | None:
    return None if name is None else sample.arrays[int(name[1:])]


def outputs_of(graph: Graph, types: dict[str, TensorType | None]) -> Graph:
    """The graph with typed outputs, which ONNX asks for."""
    values = tuple(Value(v.name, types[v.name]) for v in graph.outputs)
    return Graph(graph.name, graph.inputs, values, graph.weights, graph.nodes, graph.opset)


def test_type_rule_and_meaning_are_what_runs(sample: Any) -> None:
    graph = sample.graph()
    found, types = applied(graph), infer(graph).types
    expected = run(outputs_of(graph, types), sample.feeds)
    arrays = [array_of(sample, a) for a in found.args]
    kinds = [None if a is None else types[a] for a in found.args]
    actual = evaluate_application(found.operator, found.attributes, arrays, kinds)
    for name, want, got in zip(sample.node.outputs, expected, actual, strict=True):
        assert types[name] == TensorType(DType.of(want.dtype), want.shape)
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def assert_same_at(
    sizes: dict[str, Any], found: CanonicalNode, kinds: Any, attributes: Any, arrays: Any, known: Any
) -> None:
    """A symbolic application, at given sizes, is the known one: its conditions hold, types and elements agree."""
    meaning, types = found.operator.apply(kinds, attributes)
    numbers = {n: v for n, v in sizes.items() if isinstance(v, int)}
    for condition in meaning.obligations:
        assert IndexCondition(condition.kind, substitute(condition.size, numbers)).known, condition
    values = [None if a is None else wide(a, DType.of(a.dtype)) for a in arrays]
    bound = {n: v if isinstance(v, int) else np.float64(v) for n, v in sizes.items()}
    for output, kind, want in zip(meaning.outputs, types, known, strict=True):
        assert tuple(substitute(d, numbers) for d in kind.shape) == want.shape
        np.testing.assert_allclose(
            evaluate(output, values, FLOAT64, bound).astype(float), want.astype(float), rtol=1e-5, atol=1e-6
        )


def test_symbolic_sizes_mean_the_same(sample: Any) -> None:
    found, known, open_ = applied(sample.graph()), infer(sample.graph()), infer(sample.graph(symbolic=True))
    (how,) = open_.nodes
    if not isinstance(how, CanonicalNode):
        return  # what the node is depends on its sizes
    arrays = [array_of(sample, a) for a in found.args]
    want = evaluate_application(
        found.operator, found.attributes, arrays, [known.types.get(a or "") for a in found.args]
    )
    sizes = {f"{n}_{p}": int(size) for n, a in sample.feeds.items() for p, size in enumerate(a.shape)}
    kinds = [None if a is None else open_.types[a] for a in how.args]
    assert_same_at(sizes, how, kinds, how.attributes, arrays, want)


def test_symbolic_attributes_mean_the_same(sample: Any) -> None:
    """Each attribute as a variable, as rules write them: refused as ill-typed, or the same meaning."""
    found, types = applied(sample.graph()), infer(sample.graph()).types
    arrays = [array_of(sample, a) for a in found.args]
    kinds = [types.get(a or "") for a in found.args]
    want = evaluate_application(found.operator, found.attributes, arrays, kinds)
    for name, value in found.attributes.items():
        if isinstance(value, str) or value == () or found.operator.attributes[name] == "dtype":
            continue
        if isinstance(value, tuple):
            sizes = {f"{name}_{p}": v for p, v in enumerate(value)}
            variable: Any = tuple(sym(n) for n in sizes)
        else:
            sizes, variable = {name: value}, sym(name)
        try:
            found.operator.apply(kinds, {**found.attributes, name: variable})
        except IllTypedOperator:
            continue
        if all(abs(v) != float("inf") for v in sizes.values()):
            assert_same_at(sizes, found, kinds, {**found.attributes, name: variable}, arrays, want)


def test_write_then_read_is_identity_and_runs(sample: Any) -> None:
    graph = sample.graph()
    found, types = applied(graph), infer(graph).types
    arrays = [array_of(sample, a) for a in found.args]
    kinds = [None if a is None else types[a] for a in found.args]
    expected = None
    for opset in sorted({*OPSETS, sample.opset}):
        try:
            form = found.operator.write(found.attributes, kinds, opset)
        except UnsupportedNodeForm:
            assert opset != sample.opset or sample.op == "Resize", "cannot be written where it was read"
            continue
        names = [
            f"l{p}" if isinstance(x, np.ndarray) else "" if x is None else found.args[x] or ""
            for p, x in enumerate(form.inputs)
        ]
        while names and not names[-1]:
            names.pop()
        fed = {a: x for a, x in zip(found.args, arrays, strict=True) if x is not None}
        weights = tuple(constant(f"l{p}", x) for p, x in enumerate(form.inputs) if isinstance(x, np.ndarray))
        node = Node("node", sample.op, tuple(names), sample.node.outputs, form.attributes)
        inputs = tuple(Value(a, types[a]) for a in fed)
        again = Graph("again", inputs, graph.outputs, weights, (node,), {"": opset})
        back = applied(again)
        assert (back.args, back.attributes) == (found.args, found.attributes), opset
        if opset >= sample.opset or opset >= 13:
            expected = expected or run(outputs_of(graph, types), sample.feeds)
            for got, want in zip(run(outputs_of(again, types), fed), expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-6)


def test_work_is_counted(sample: Any) -> None:
    graph = sample.graph()
    found, types = applied(graph), infer(graph).types
    kinds = [None if a is None else types[a] for a in found.args]
    work = flops(found.operator, kinds, found.attributes)
    assert isinstance(work, int)
    assert work >= 0


@pytest.mark.essential
def test_every_operator_is_sampled(samples: list[Any]) -> None:
    counts = Counter(s.op for s in samples)
    assert {op: counts[op] for op in REGISTRY if counts[op] < 3} == {}
    assert len(REGISTRY) >= 70


@pytest.mark.parametrize("name", [n for n, op in REGISTRY.items() if op.commutative])
def test_commutative_arguments_can_be_exchanged(name: str, samples: list[Any]) -> None:
    tried = 0
    for sample in samples:
        if sample.op != name or len(sample.arrays) != 2:
            continue
        found = applied(sample.graph())
        kinds = [TensorType(DType.of(a.dtype), a.shape) for a in sample.arrays]
        there = evaluate_application(found.operator, found.attributes, sample.arrays, kinds)
        back = evaluate_application(found.operator, found.attributes, sample.arrays[::-1], kinds[::-1])
        np.testing.assert_allclose(there[0], back[0])
        tried += 1
    assert tried


@pytest.mark.parametrize("name", list(REGISTRY))
def test_record_is_complete(name: str) -> None:
    operator = REGISTRY[name]
    assert operator.dtypes
    assert set(operator.attributes.values()) <= {"int", "ints", "float", "floats", "dtype", "string"}


EXTREMES = (np.inf, -np.inf, np.nan, 0.0, -0.0)


@pytest.mark.filterwarnings("error")
def test_extreme_numbers_warn_of_nothing(sample: Any) -> None:
    """The largest, the smallest and no numbers at all: what they make is meant, so NumPy has nothing to say."""
    graph = sample.graph()
    found, types = applied(graph), infer(graph).types
    generator = np.random.default_rng(0)
    arrays = []
    for array in (array_of(sample, a) for a in found.args):
        if array is not None and array.dtype.kind == "f":
            limits = np.finfo(array.dtype)
            edges = (limits.max, limits.min, limits.tiny, limits.smallest_subnormal, *EXTREMES)
            array = generator.choice(np.array(edges, array.dtype), array.shape)
        arrays.append(array)
    kinds = [None if a is None else types[a] for a in found.args]
    for cast in (True, False):
        evaluate_application(found.operator, found.attributes, arrays, kinds, cast=cast)
