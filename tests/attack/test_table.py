"""The table of issue 16, row by row: what is folded, rounded on purpose, accurate or in range stays so."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from attacker.campaign import optimised
from attacker.feeds import Feed
from attacker.oracle import Oracle
from attacker.sessions import open_session, run
from onnx import TensorProto, helper, numpy_helper

make = helper.make_node
TIME_LIMIT = 60.0


def model(
    nodes: Sequence[onnx.NodeProto], shapes: dict[str, tuple[int, ...]], weights: dict[str, np.ndarray],
    outputs: dict[str, tuple[int, ...]], kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:  # fmt: skip
    """A model whose inputs and outputs are of one type."""
    graph = helper.make_graph(
        list(nodes), "table", [helper.make_tensor_value_info(n, kind, s) for n, s in shapes.items()],
        [helper.make_tensor_value_info(n, kind, s) for n, s in outputs.items()],
        [numpy_helper.from_array(v, n) for n, v in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


def both(made: onnx.ModelProto, feed: Feed) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """What the original and the product's answer give under ONNX Runtime, optimisations off; the oracle agrees too."""
    result, _, _ = optimised(made, TIME_LIMIT)
    verdict = Oracle(made).judge(result, [feed])
    before, after = (run(open_session(m, optimised=False), feed) for m in (made, result))
    assert not verdict.wrong, verdict
    return before, after  # type: ignore[return-value]


def large(*shape: int, scale: float = 1000.0) -> np.ndarray:
    return (np.random.default_rng(3).standard_normal(shape) * scale).astype(np.float32)


def floored() -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """Floor(w·10): 0.7f·10 is 7 in float32."""
    w = np.array([0.1, 0.3, 0.7, 1.1], np.float32)
    nodes = [make("Mul", ["w", "ten"], ["p"]), make("Floor", ["p"], ["v"])]
    return nodes, {"w": w, "ten": np.float32(10)}


def fake_quantised() -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
    """Mul(Round(Div(w, 0.1)), 0.1) at ties of float32."""
    w = ((np.arange(64) - 32 + 0.5) * 0.1).astype(np.float32)
    nodes = [make("Div", ["w", "s"], ["d"]), make("Round", ["d"], ["r"]), make("Mul", ["r", "s"], ["v"])]
    return nodes, {"w": w, "s": np.float32(0.1)}


def through(kind: int, factor: float) -> Callable[[], tuple[list[onnx.NodeProto], dict[str, np.ndarray]]]:
    """Tenths times a factor through another type and back."""

    def made() -> tuple[list[onnx.NodeProto], dict[str, np.ndarray]]:
        w = (np.arange(1, 65) * 0.1).astype(np.float32)
        nodes = [make("Mul", ["w", "ten"], ["p"]), make("Cast", ["p"], ["i"], to=kind)]
        return [*nodes, make("Cast", ["i"], ["v"], to=TensorProto.FLOAT)], {"w": w, "ten": np.float32(factor)}

    return made


@pytest.mark.parametrize(
    "weights",
    [floored, fake_quantised, through(TensorProto.INT64, 10.0), through(TensorProto.FLOAT16, 0.3)],
    ids=["Floor(w*10)", "fake quantisation", "to int64", "to float16"],
)
def test_constants_are_folded_as_the_runtime_computes_them(
    weights: Callable[[], tuple[list[onnx.NodeProto], dict[str, np.ndarray]]],
) -> None:
    nodes, values = weights()
    n = values["w"].shape[0]
    made = model(
        [*nodes, make("Unsqueeze", ["v", "one"], ["m"]), make("MatMul", ["x", "m"], ["y"])], {"x": (2, n)},
        {**values, "one": np.array([1], np.int64)}, {"y": (2, 1)},
    )  # fmt: skip
    feed = {"x": large(2, n)}
    before, after = both(made, feed)
    size = np.abs(feed["x"]) @ np.abs(run(open_session(_exposed(made, "m"), optimised=False), feed)["m"])
    assert np.all(np.abs(after["y"] - before["y"]) <= n * np.finfo(np.float32).eps * (size + 1))


def _exposed(made: onnx.ModelProto, name: str) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(made)
    copy.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    return copy


def veltkamp() -> list[onnx.NodeProto]:
    """hi = a − (a − x)."""
    return [make("Mul", ["x", "c"], ["a"]), make("Sub", ["a", "x"], ["d"]), make("Sub", ["a", "d"], ["y"])]


def magic() -> list[onnx.NodeProto]:
    """(x + M) − M."""
    return [make("Add", ["x", "c"], ["a"]), make("Sub", ["a", "c"], ["y"])]


@pytest.mark.parametrize(
    ("nodes", "constant"), [(veltkamp(), 4097.0), (magic(), 12582912.0)], ids=["Veltkamp", "magic"]
)
def test_rounding_on_purpose_is_kept(nodes: list[onnx.NodeProto], constant: float) -> None:
    made = model(nodes, {"x": (4, 8)}, {"c": np.float32(constant)}, {"y": (4, 8)})
    before, after = both(made, {"x": large(4, 8, scale=3.0)})
    np.testing.assert_array_equal(after["y"], before["y"])


def test_the_difference_of_squares_keeps_its_accuracy() -> None:
    """(x + y)(x − y) beside x·x and y·y, at x ≈ y ≈ 1000: xx − yy would lose five digits."""
    nodes = [
        make("Add", ["x", "y"], ["s"]), make("Sub", ["x", "y"], ["d"]), make("Mul", ["s", "d"], ["z"]),
        make("Mul", ["x", "x"], ["xx"]), make("Mul", ["y", "y"], ["yy"]),
    ]  # fmt: skip
    shapes = dict.fromkeys(("x", "y", "z", "xx", "yy"), (64, 64))
    made = model(nodes, {n: shapes[n] for n in "xy"}, {}, {n: shapes[n] for n in ("z", "xx", "yy")})
    x = np.random.default_rng(0).uniform(900, 1100, (64, 64)).astype(np.float32)
    y = (x * np.float32(1 + 3e-5)).astype(np.float32)
    _, after = both(made, {"x": x, "y": y})
    truth = x.astype(np.float64) ** 2 - y.astype(np.float64) ** 2
    assert np.all(np.abs(after["z"] - truth) <= 4 * np.finfo(np.float32).eps * np.abs(truth))


def test_finite_stays_finite() -> None:
    """x·y + x·z at y = z = 3e38 and x = 1e-10: y + z is infinite."""
    nodes = [make("Mul", ["x", "y"], ["a"]), make("Mul", ["x", "z"], ["b"]), make("Add", ["a", "b"], ["o"])]
    made = model(nodes, dict.fromkeys("xyz", (64, 64)), {}, {"o": (64, 64)})
    feed = {n: np.full((64, 64), v, np.float32) for n, v in (("x", 1e-10), ("y", 3e38), ("z", 3e38))}
    _, after = both(made, feed)
    assert np.isfinite(after["o"]).all()


@pytest.mark.filterwarnings("error")
def test_scalars_are_not_merged_below_the_range() -> None:
    """float16: x·1e-4·1e-4 is not x·0."""
    nodes = [make("Mul", ["x", "c"], ["a"]), make("Mul", ["a", "c"], ["o"])]
    made = model(nodes, {"x": (4, 64)}, {"c": np.float16(1e-4)}, {"o": (4, 64)}, TensorProto.FLOAT16)
    before, after = both(made, {"x": np.full((4, 64), 60000, np.float16)})
    assert (before["o"] > 0).all()
    assert (after["o"] > 0).all()


def test_an_output_that_becomes_constant_is_written() -> None:
    nodes = [
        make("Relu", ["x"], ["a"]), make("HardSigmoid", ["a"], ["b"], alpha=0.0), make("Neg", ["b"], ["c"]),
        make("Neg", ["c"], ["y"]),
    ]  # fmt: skip
    made = model(nodes, {"x": (2, 3)}, {}, {"y": (2, 3)})
    before, after = both(made, {"x": large(2, 3)})
    np.testing.assert_array_equal(after["y"], before["y"])
