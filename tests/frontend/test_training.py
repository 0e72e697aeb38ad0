"""Training steps: what they compute is the optimisers' definition, on every model of the corpus that can be learnt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from sampling import sampled, slow

import superopt
from superopt.formats import load, save, to_onnx_bytes
from superopt.frontend import GraphBuilder
from superopt.frontend.autodiff.graph_extension import at_sizes
from superopt.frontend.training import SGD, Adam, AdamW, rehearse, train_step
from superopt.frontend.training.loop import drawn, wide
from superopt.frontend.training.step import with_loss
from superopt.ir.errors import SuperoptError, UsageError
from superopt.ir.graph import Graph
from superopt.ir.size_polynomial import symbols
from superopt.ops.shape_inference import infer
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.reference import run

TINY = sorted((Path(__file__).parents[2] / "corpus" / "tiny").glob("*.json"))
# Models that have no training step, and what is said of each.
REFUSED = {
    "quantised": 'node "DequantizeLinear_\\d" .*has no derivative',
    "train_step_mlp": "no weight is learnt",  # a training step itself: its weights are inputs
}


def sizes(graph: Graph) -> dict[str, int]:
    names = {n for v in graph.inputs for d in v.type.shape for n in symbols(d)}  # type: ignore[union-attr]
    return dict.fromkeys(names, 3)


# Of more than 130 nodes: half of the time of all. What they are made of, smaller models have, too.
LONG = {"googlenet", "inception_v3", "nasnet_a", "nasrnn", "qwen2_2l", "swin_tiny"}


SHORT = [p for p in TINY if p.stem not in LONG]
GIVEN = [
    *sampled(SHORT, 8, always=[p for p in SHORT if p.stem in REFUSED]), *(slow(p) for p in TINY if p.stem in LONG)
]  # fmt: skip


@pytest.mark.parametrize("path", GIVEN, ids=lambda p: p.stem)
def test_corpus_models_are_learnt(path: Path) -> None:
    """Steps in ONNX Runtime are those in float64, and the first goes along the difference quotient of the loss.

    A few steps, for momentum to be in it (`superopt train-step MODEL --try 20` makes more).
    """
    graph = load(path)
    if path.stem in REFUSED:
        with pytest.raises(SuperoptError, match=REFUSED[path.stem]):
            train_step(graph)
        return
    at = sizes(graph)
    rate = 1e-3
    step = train_step(graph, "mse", SGD(lr=rate, momentum=0.9), sizes=at)
    found = rehearse(step, 5 if len(step.graph.nodes) < 600 else 2, seed=4)
    assert found.is_close, found
    assert found.losses[-1] < found.losses[0]
    forward, loss, _ = with_loss(at_sizes(graph, at), "mse", None)
    feeds = {n: wide(a) for n, a in drawn([v for v in forward.inputs if v.name not in graph.weight], 4).items()}
    before = {n: wide(a) for n, a in step.initial().items()}
    after = step.next_feeds(run(step.graph, {**feeds, **before}))
    source = np.random.default_rng(5)
    way = {n: source.standard_normal(before[n].shape) for n in step.parameters}
    slope = sum(float(((before[n] - after[n]) * way[n]).sum()) for n in step.parameters) / rate
    h = 1e-6
    ends = [run(forward, {**feeds, **{n: before[n] + s * h * v for n, v in way.items()}})[loss] for s in (1, -1)]
    assert slope == pytest.approx((float(ends[0]) - float(ends[1])) / (2 * h), rel=1e-4, abs=1e-7)


def test_most_of_the_corpus_is_learnt() -> None:
    assert len(TINY) - len(REFUSED) >= 35


def regression() -> Graph:
    b = GraphBuilder("regression")
    x = b.input("x", "float32", (8, 3))
    b.output((x @ b.weight("w", (3, 4)) + b.weight("b", (4,))).tanh() @ b.weight("v", (4, 2)), "y")
    return b.build()


def by_hand(optimizer: Any, w: np.ndarray, grads: list[np.ndarray]) -> np.ndarray:
    """The optimisers as PyTorch's documentation writes them."""
    w, m, v = w.astype(np.float64), np.zeros(w.shape), np.zeros(w.shape)
    for t, g in enumerate(grads, 1):
        if isinstance(optimizer, SGD):
            g = g + optimizer.weight_decay * w
            m = optimizer.momentum * m + g
            w = w - optimizer.lr * m
            continue
        if isinstance(optimizer, AdamW):
            w = w - optimizer.lr * optimizer.weight_decay * w
        else:
            g = g + optimizer.weight_decay * w
        m = optimizer.beta1 * m + (1 - optimizer.beta1) * g
        v = optimizer.beta2 * v + (1 - optimizer.beta2) * g**2
        unbiased = m / (1 - optimizer.beta1**t), v / (1 - optimizer.beta2**t)
        w = w - optimizer.lr * unbiased[0] / (np.sqrt(unbiased[1]) + optimizer.epsilon)
    return w


@pytest.mark.parametrize(
    "optimizer",
    [SGD(0.1), SGD(0.1, momentum=0.8), SGD(0.1, 0.9, 0.05), Adam(0.01), Adam(0.01, weight_decay=0.1), AdamW(0.02)],
    ids=str,
)
def test_optimisers_are_their_definitions(optimizer: Any) -> None:
    """The gradients come from a second step, plain descent at rate 1, at the same weights."""
    step, plain = train_step(regression(), "mse", optimizer), train_step(regression(), "mse", SGD(lr=1.0))
    source = np.random.default_rng(0)
    state = {n: wide(a) for n, a in step.initial().items()}
    first = state["w"]
    grads = []
    for _ in range(6):
        feeds = {"x": source.standard_normal((8, 3)), "target": source.standard_normal((8, 2))}
        weights = {n: state[n] for n in step.parameters}
        at = {**feeds, **{n: wide(a) for n, a in plain.initial().items()}, **weights}
        grads.append(state["w"] - run(plain.graph, at)["next w"])
        state = step.next_feeds(run(step.graph, {**feeds, **state}))
    expected = by_hand(optimizer, first, grads)  # the step holds its numbers (0.999, the rate) in float32
    np.testing.assert_allclose(state["w"], expected, rtol=1e-5, atol=1e-6)
    assert state["step"] == 6


def test_the_file_is_stock_onnx_that_runs_by_itself(tmp_path: Path) -> None:
    """No state need be fed at first, and the file says what is what."""
    step = train_step(regression(), "mse", "adam")
    data = to_onnx_bytes(step.graph)
    model = onnx.load_from_string(data)
    onnx.checker.check_model(model, full_check=True)
    told = json.loads({p.key: p.value for p in model.metadata_props}["superopt.training"])
    assert told["parameters"] == ["w", "b", "v"]
    assert told["targets"] == ["target"]
    feeds = {"x": np.ones((8, 3), np.float32), "target": np.zeros((8, 2), np.float32)}
    found = ONNX_RUNTIME.load(data).run(feeds, ["loss", "next w"])
    assert found["next w"].shape == (3, 4)


def test_weights_are_chosen_by_patterns() -> None:
    assert train_step(regression(), freeze=["v"]).parameters == ("w", "b")
    assert train_step(regression(), train=["[wv]"]).parameters == ("w", "v")
    with pytest.raises(UsageError, match="no weight is learnt"):
        train_step(regression(), freeze=["*"])


def test_statistics_of_a_normalisation_are_not_learnt() -> None:
    b = GraphBuilder("g")
    x = b.input("x", "float32", (2, 3, 4))
    names = ("scale", "shift", "mean", "var")
    weights = [b.weight(n, (3,), distribution="uniform", offset=0.5) for n in names]
    b.output(b.op("BatchNormalization", x, *weights), "y")
    assert train_step(b.build()).parameters == ("scale", "shift")


@pytest.mark.parametrize("loss", ["mse", "l1", "cross-entropy", "bce", "output"])
def test_losses_are_their_definitions(loss: str) -> None:
    graph, name, targets = with_loss(regression(), loss, None)
    source = np.random.default_rng(1)
    x, w = source.standard_normal((8, 3)), {w.name: wide(w.data.numpy()) for w in regression().weights}  # type: ignore[union-attr]
    y = np.tanh(x @ w["w"] + w["b"]) @ w["v"]
    real, label = source.uniform(0, 1, (8, 2)), source.integers(0, 2, 8)
    softmax = np.exp(y) / np.exp(y).sum(1, keepdims=True)
    expected = {
        "mse": np.mean((y - real) ** 2), "l1": np.mean(np.abs(y - real)), "output": np.mean(y),
        "cross-entropy": -np.mean(np.log(softmax[np.arange(8), label])),
        "bce": -np.mean(real * np.log(1 / (1 + np.exp(-y))) + (1 - real) * np.log(1 / (1 + np.exp(y)))),
    }[loss]  # fmt: skip
    target = dict.fromkeys(targets, label if loss == "cross-entropy" else real)
    assert run(graph, {"x": x, **target})[name] == pytest.approx(expected, rel=1e-6)


def test_a_model_with_a_value_named_loss_keeps_it() -> None:
    b = GraphBuilder("g")
    b.output((b.input("x", "float32", (2, 3)) @ b.weight("w", (3, 1))).sum([0, 1], keepdims=False), "loss")
    step = train_step(b.build(), "output")
    assert step.loss == "loss_1"


def test_unknown_names_are_told() -> None:
    with pytest.raises(UsageError, match="optimizer 'lion' is not one of sgd, momentum, adam, adamw"):
        train_step(regression(), optimizer="lion")
    with pytest.raises(UsageError, match="loss 'hinge' is not one of"):
        train_step(regression(), "hinge")


def words() -> Graph:
    """A table of words that is read twice and is the head, too."""
    b = GraphBuilder("words")
    ids, table = b.input("ids", "int64", (5,)), b.weight("table", (7, 4))
    first, second = b.op("Gather", table, ids, axis=0), b.op("Gather", table, ids * 0 + 3, axis=0)
    b.output((first + second).tanh() @ table.transpose(1, 0), "y")
    return b.build()


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_rows_of_a_table_are_learnt_where_they_are_read(optimizer: str) -> None:
    """Read several times (and a word several times over), with negative positions, and shared with a product."""
    step = train_step(words(), "cross-entropy", optimizer, lr=0.1)
    feeds = {"ids": np.array([1, 1, -1, 0, 6]), "target": np.array([2, 0, 1, 6, 6])}
    assert rehearse(step, 5, feeds=feeds).is_close
    forward, loss, _ = with_loss(words(), "cross-entropy", None)
    plain = train_step(words(), "cross-entropy", SGD(lr=1.0))
    before = {n: wide(a) for n, a in plain.initial().items()}
    after = plain.next_feeds(run(plain.graph, {**feeds, **before}))
    way = np.random.default_rng(0).standard_normal(before["table"].shape)
    ends = [run(forward, {**feeds, "table": before["table"] + s * 1e-6 * way})[loss] for s in (1, -1)]
    slope = (float(ends[0]) - float(ends[1])) / 2e-6
    assert float(((before["table"] - after["table"]) * way).sum()) == pytest.approx(slope, rel=1e-5)


def test_a_table_that_is_only_read_moves_without_a_gradient_of_its_size() -> None:
    b = GraphBuilder("words")
    b.output(b.op("Gather", b.weight("table", (1000, 4)), b.input("ids", "int64", (5,)), axis=0), "y")
    step = train_step(b.build(), "mse", "sgd")
    large = [n for n, t in infer(step.graph).types.items() if t is not None and t.elements == 4000]
    assert sorted(large) == ["next table", "table"]


def test_a_loop_is_the_steps_one_after_another(tmp_path: Path) -> None:
    """With its state in two places that take turns; a file that was written says what it needs."""
    step = train_step(regression(), "mse", "adam", lr=0.05)
    path = tmp_path / "step.onnx"
    save(step.graph, path)
    loop = superopt.training_loop(path, threads=1)
    source = np.random.default_rng(0)
    state = step.initial()
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [v.name for v in step.graph.outputs]
    for _ in range(5):
        batch = {"x": source.standard_normal((8, 3)), "target": source.standard_normal((8, 2))}
        fed = {n: a.astype(np.float32) for n, a in batch.items()}
        found = dict(zip(names, session.run(names, {**fed, **state}), strict=True))
        assert loop.step(fed) == pytest.approx(float(found["loss"]), rel=1e-6)
        state = step.next_feeds(found)
    for name, value in loop.state.items():
        np.testing.assert_allclose(value, state[name], rtol=1e-6)
    with pytest.raises(UsageError, match="'target' was not given"):
        loop.step({"x": fed["x"]})
    with pytest.raises(UsageError, match=r"has shape \(4, 3\)"):
        loop.step({**fed, "x": fed["x"][:4]})
    with pytest.raises(UsageError, match="is no training step"):
        superopt.training_loop(regression())


def test_batches_are_normalised_by_their_own_statistics() -> None:
    """PyTorch's train mode: the loss is that of the batch's mean and variance, and the statistics follow them."""
    b = GraphBuilder("normalised")
    x = b.op("Conv", b.input("x", "float32", (3, 2, 4, 4)), b.weight("w", (3, 2, 1, 1)))
    names = ("scale", "shift", "mean", "var")
    weights = [b.weight(n, (3,), distribution="uniform", offset=0.5) for n in names]
    b.output(b.op("BatchNormalization", x, *weights, epsilon=1e-3, momentum=0.8).relu(), "y")
    graph = b.build()
    step = train_step(graph, "mse", "sgd", lr=0.5, batch_statistics=True)
    assert step.parameters == ("w", "scale", "shift")
    assert rehearse(step, 10).is_close
    state = {n: wide(a) for n, a in step.initial().items()}
    source = np.random.default_rng(0)
    feeds = {"x": source.standard_normal((3, 2, 4, 4)), "target": source.standard_normal((3, 3, 4, 4))}

    def loss(at: dict[str, np.ndarray]) -> tuple[float, np.ndarray, np.ndarray]:
        z = np.einsum("nchw,oc->nohw", feeds["x"], at["w"][:, :, 0, 0])
        mean, var = z.mean((0, 2, 3)), z.var((0, 2, 3))
        unit = (z - mean[:, None, None]) / np.sqrt(var + 1e-3)[:, None, None]
        y = np.maximum(unit * at["scale"][:, None, None] + at["shift"][:, None, None], 0)
        return float(((y - feeds["target"]) ** 2).mean()), mean, var * 48 / 47

    found = run(step.graph, {**feeds, **state})
    value, mean, var = loss(state)
    assert float(found["loss"]) == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(found["next mean"], 0.8 * state["mean"] + 0.2 * mean, rtol=1e-6)
    np.testing.assert_allclose(found["next var"], 0.8 * state["var"] + 0.2 * var, rtol=1e-6)
    way = {n: source.standard_normal(state[n].shape) for n in step.parameters}
    slope = sum(float(((state[n] - found[f"next {n}"]) * way[n]).sum()) for n in step.parameters) / 0.5
    ends = [loss({**state, **{n: state[n] + s * 1e-6 * v for n, v in way.items()}})[0] for s in (1, -1)]
    assert slope == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5)
