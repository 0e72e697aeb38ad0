"""What of a graph needs no search: equal applications, integers of sizes, casts that lose nothing; to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx.parser
import pytest
from roofline import Roofline

from superopt import formats
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph, constant
from superopt.ir.types import DType
from superopt.ops.shape_inference import infer
from superopt.ops.small_tensor_values import SmallTensorValue
from superopt.passes import SearchOptions, search
from superopt.passes.canonicalize import canonicalized
from superopt.runtime import onnx_runtime


def run(graph: Graph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx(graph).SerializeToString()), feeds)


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def tidy(builder: GraphBuilder) -> Graph:
    graph = builder.build()
    return canonicalized(graph, infer(graph)).graph


def twice(shape: tuple[int | str, ...] = (3, 4)) -> GraphBuilder:
    b = GraphBuilder("twice", opset=23)
    x = b.input("x", "float32", shape)
    b.output(b.op("Exp", b.op("Tanh", x)) + b.op("Exp", b.op("Tanh", x)) * b.op("Exp", x), "y")
    return b


def test_equal_applications_are_one_and_the_bits_are_the_same() -> None:
    graph = twice().build()
    after = tidy(twice())
    assert sorted(ops(after)) == ["Add", "Exp", "Exp", "Mul", "Tanh"]
    feeds = {"x": np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)}
    assert np.array_equal(run(graph, feeds)["y"], run(after, feeds)["y"])


def test_it_is_a_gain_only_where_the_backend_does_not_do_it_itself() -> None:
    graph, plain = twice().build(), Roofline()
    found = search(graph, (), plain, SearchOptions(cache=False))
    assert len(found.graph.nodes) == 5  # simpler, in the same time
    assert found.before_us == found.after_us
    plain.backend = replace(plain.backend, folds_shapes=False)
    found = search(graph, (), plain, SearchOptions(cache=False))
    assert len(found.graph.nodes) == 5
    assert found.before_us - found.after_us == pytest.approx(2 * plain.dispatch, rel=0.05)  # a Tanh and an Exp


def test_outputs_and_what_a_barrier_reads_go_on_being_made() -> None:
    b = GraphBuilder("kept", opset=23)
    x = b.input("x", "float32", (3, 4))
    b.output(b.op("Exp", x), "y")
    b.output(b.op("Exp", x), "z")
    b.output(b.op("NonZero", b.op("Exp", x)), "places", shape=(2, "n"))
    assert ops(tidy(b)).count("Exp") == 3


def test_what_draws_numbers_is_drawn_twice() -> None:
    b = GraphBuilder("noise", opset=23)
    x = b.input("x", "float32", (3, 4))
    b.output(b.op("RandomNormalLike", x) - b.op("RandomNormalLike", x), "y", shape=(3, 4))
    assert ops(tidy(b)).count("RandomNormalLike") == 2


def rows(first: int | str) -> GraphBuilder:
    b = GraphBuilder("rows", opset=23)
    x = b.input("x", "float32", (first, 6, 16))
    size = b.op("Unsqueeze", b.op("Gather", b.op("Shape", x), np.int64(0), axis=0), [0])
    b.output(b.op("Reshape", x, b.op("Concat", size, [-1], axis=0)).relu(), "y", shape=(first, 96))
    return b


def test_integers_of_stated_sizes_are_constants() -> None:
    after = tidy(rows(2))
    assert ops(after) == ["Reshape", "Relu"]
    [shape] = [w for w in after.weights if w.name == after.nodes[0].inputs[1]]
    assert shape.data is not None
    assert shape.data.numpy().tolist() == [2, -1]
    feeds = {"x": np.arange(192, dtype=np.float32).reshape(2, 6, 16)}
    assert np.array_equal(run(rows(2).build(), feeds)["y"], run(after, feeds)["y"])


def test_one_open_size_is_copied_or_inferred() -> None:
    after = tidy(rows("n"))
    assert ops(after) == ["Reshape", "Relu"]
    for n in (1, 3):
        feeds = {"x": np.arange(n * 96, dtype=np.float32).reshape(n, 6, 16)}
        assert np.array_equal(run(rows("n").build(), feeds)["y"], run(after, feeds)["y"])


@pytest.mark.parametrize(
    ("sizes", "allowzero"),
    [(("n", "t", 8), 0), (("n", 6, 8), 1)],
    ids=["one would be inferred beside one that may be 0", "a zero is a size"],
)
def test_open_sizes_that_no_constant_says_are_asked_for_at_run_time(
    sizes: tuple[int | str, ...], allowzero: int
) -> None:
    b = GraphBuilder("rows", opset=23)
    x = b.input("x", "float32", sizes)
    shape = b.op("Shape", x)
    first, second = (b.op("Slice", shape, [k], [k + 1]) for k in (0, 1))
    rows = b.op("Reshape", x, b.op("Concat", first, b.op("Mul", second, [8]), axis=0), allowzero=allowzero)
    b.output(rows.relu(), "y")
    after = tidy(b)
    assert "Shape" in ops(after)
    assert after.nodes[-2].inputs[1] not in after.constants


def test_a_size_that_something_else_reads_is_still_made() -> None:
    b = GraphBuilder("rows", opset=23)
    x = b.input("x", "float32", ("n", 6, 16))
    size = b.op("Slice", b.op("Shape", x), [0], [1])
    b.output(b.op("Reshape", x, b.op("Concat", size, [96], axis=0)), "y")
    b.output(size, "n_of_x")
    assert ops(tidy(b)) == ["Shape", "Slice", "Reshape"]


@pytest.mark.parametrize(
    ("last", "size"),
    [("y = Greater(s, z)", 0), ("m = Max(s, o) y = Equal(m, s)", 0), ("y = Equal(s, z)", 0),
     ("c = Cast<to = 10>(s) d = Cast<to = 7>(c) y = Equal(d, s)", 3001)],
)  # fmt: skip
def test_what_holds_for_some_sizes_only_is_asked_for_at_run_time(last: str, size: int) -> None:
    text = f"""<ir_version: 9, opset_import: ["": 21]> g (float[n] x) => (float[1] b) {{
        s = Shape(x) z = Constant<value_ints = [0]>() o = Constant<value_ints = [1]>()
        {last} w = Cast<to = 1>(y) b = Exp(w) }}"""
    graph = formats.from_onnx(onnx.parser.parse_model(text))
    after = canonicalized(graph, infer(graph)).graph
    for n in (size, 1):
        feeds = {"x": np.zeros(n, np.float32)}
        assert np.array_equal(run(graph, feeds)["b"], run(after, feeds)["b"])


DTYPES = {1: "float32", 10: "float16", 11: "float64", 16: "bfloat16"}


@pytest.mark.parametrize(
    ("own", "between", "last", "left"),
    [(1, 11, 1, 0), (10, 1, 10, 0), (16, 1, 16, 0), (10, 11, 1, 1),  # nothing is lost on the way
     (1, 10, 1, 2), (11, 1, 11, 2), (16, 10, 16, 2), (10, 16, 10, 2), (1, 7, 1, 2)],  # something is
)  # fmt: skip
def test_a_cast_that_loses_nothing_is_left_out(own: int, between: int, last: int, left: int) -> None:
    b = GraphBuilder("casts", opset=23)
    x = b.input("x", DTYPES[own], (3,))
    b.output(b.op("Relu", b.op("Cast", b.op("Cast", x, to=between), to=last)), "y")
    assert ops(tidy(b)).count("Cast") == left


@pytest.mark.parametrize("chain", [(10, 1, 2), (16, 1, 3), (10, 1, 10, 2), (10, 11, 10, 3), (10, 1, 6)])
def test_a_rounding_before_a_cast_to_integers_is_not_lost(chain: tuple[int, ...]) -> None:
    b = GraphBuilder("casts", opset=23)
    x = value = b.input("x", "float32", (4,))
    for to in chain:
        value = b.op("Cast", value, to=to)
    b.output(b.op("Exp", x) + b.op("Exp", x), "z")  # something to leave out
    b.output(b.op("Cast", value, to=7), "y")
    feeds = {"x": np.array([1.9999999, 0.99999994, 254.99, -3.3333], np.float32)}
    assert np.array_equal(run(b.build(), feeds)["y"], run(tidy(b), feeds)["y"])


def test_a_cast_that_is_read_elsewhere_stays() -> None:
    b = GraphBuilder("casts", opset=23)
    x = b.input("x", "float32", (5,))
    wide = b.op("Cast", x, to=11)
    b.output(b.op("Exp", wide), "z")
    b.output(b.op("Relu", b.op("Cast", wide, to=1)), "y")
    after = tidy(b)
    assert ops(after).count("Cast") == 1
    feeds = {"x": np.array([1e-40, -3.4e38, 7.0, np.inf, 0.1], dtype=np.float32)}
    assert np.array_equal(run(b.build(), feeds)["y"], run(after, feeds)["y"])


def test_integers_that_wrap_are_no_known_ones() -> None:
    """2³¹ as an int32 wraps as it is computed: no array of it can be made, and pricing a model with it was refused."""
    held, wraps = (SmallTensorValue(DType.INT32, (1,), (n,)) for n in (2**31 - 1, 2**31))
    assert held.array is not None
    assert wraps.array is None


def test_weights_that_only_what_is_gone_read_are_gone() -> None:
    """What nobody read before stays; ONNX Runtime warns of each such initializer whenever the model is loaded."""
    b = GraphBuilder("sizes")
    x = b.input("x", "float32", (2, 6))
    rows = b.op("Gather", b.op("Shape", x), b.constant(np.array(0, np.int64)), axis=0)
    shape = b.op("Concat", b.op("Unsqueeze", rows, b.constant(np.array([0]))), b.constant(np.array([3, 2])), axis=0)
    b.output(b.op("Reshape", x, shape), "y")
    graph = b.build()
    graph = replace(graph, weights=(*graph.weights, constant("unread", np.ones(3, np.float32))))
    found = canonicalized(graph, infer(graph)).graph
    assert ops(found) == ["Reshape"]
    read = {n for node in found.nodes for n in node.reads}
    assert {w.name for w in found.weights} - read == {"unread"}


def test_what_gives_its_operand_back_goes_at_any_size() -> None:
    b = GraphBuilder("copies", opset=21)
    value = b.op("Relu", b.input("x", "float32", ("n", 16, 20)))
    value = b.op("Pad", value, np.zeros(6, np.int64))
    value = b.op("Concat", value, axis=1)
    value = b.op("Slice", value, np.array([0]), np.array([16]), np.array([1]))
    value = b.op("Tile", value, np.array([1, 1, 1]))
    value = b.op("Transpose", value, perm=[0, 1, 2])
    value = b.op("Cast", value, to=1)
    b.output(b.op("Neg", value), "y")
    assert ops(tidy(b)) == ["Relu", "Neg"]


def test_what_cuts_adds_or_compares_stays() -> None:
    b = GraphBuilder("no copies", opset=21)
    value = b.op("Relu", b.input("x", "float32", ("n", 16, 20)))
    value = b.op("Slice", value, np.array([0]), np.array([15]), np.array([1]))
    value = b.op("Pad", value, np.array([0, 0, 1, 0, 0, 0], np.int64))
    value = b.op("MaxPool", value, kernel_shape=[1])  # a NaN does not come through
    b.output(b.op("Transpose", value, perm=[0, 2, 1]), "y")
    assert ops(tidy(b)) == ["Relu", "Slice", "Pad", "MaxPool", "Transpose"]


def test_an_output_of_the_model_is_still_made() -> None:
    b = GraphBuilder("output", opset=21)
    b.output(b.op("Identity", b.op("Relu", b.input("x", "float32", (3,)))), "y")
    assert ops(tidy(b)) == ["Relu", "Identity"]
