"""What a hand reaches: ``python corpus/handmade.py [MODEL...]`` (``make bench-handmade``).

A prototype's best figures by hand are goals of the search. Where a corpus model has other sizes than the prototype had,
or another ONNX Runtime runs it, its figure says little: here the same rewrite is made by hand on the corpus's model, by
code that knows the model, and is raced with the original, its copy and superopt's result, side by side in one process.
None of this is used by superopt.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from superopt import formats, optimize  # noqa: E402
from superopt.frontend import GraphBuilder, SymbolicTensor  # noqa: E402
from superopt.ir.graph import ArrayWeightData, Graph, Node, Weight  # noqa: E402
from superopt.ir.types import TensorType  # noqa: E402
from superopt.runtime.paired_benchmark import time_models  # noqa: E402
from superopt.verifier.check.differential import check, make_inputs  # noqa: E402


def widened(graph: Graph, wide: int) -> Graph:
    """Grouped Convs of fewer than ``wide`` channels a group, with ``wide`` of them: the new weights' rest is zero."""
    weights = {w.name: w for w in graph.weights}
    nodes = []
    for node in graph.nodes:
        groups = node.attributes.get("group", 1)
        old = weights.get(node.inputs[1]) if node.op == "Conv" else None
        values = np.zeros((1, wide)) if old is None or old.data is None else old.data.numpy()
        narrow = values.shape[1]
        if old is None or not isinstance(groups, int) or groups == 1 or narrow >= wide:
            nodes.append(node)
            continue
        factor = wide // narrow
        made = np.zeros((values.shape[0], wide, *values.shape[2:]), values.dtype)
        each = values.shape[0] // groups  # output channels of a group
        for group in range(groups):
            rows, first = slice(group * each, (group + 1) * each), group % factor * narrow
            made[rows, first : first + narrow] = values[rows]
        weights[old.name] = _weight(old.name, made, old)
        nodes.append(replace(node, attributes={**node.attributes, "group": groups // factor}))
    return replace(graph, nodes=tuple(nodes), weights=tuple(weights.values()))


def batched(graph: Graph) -> Graph:
    """Two inputs that the same tower sees one after the other: the tower runs once, on both as a batch."""
    left, right = (_tower(graph, v.name) for v in graph.inputs)
    batch = Node("batch", "Concat", tuple(v.name for v in graph.inputs), ("batch",), {"axis": 0})
    halves = Node("halves", "Split", left[-1].outputs, ("first", "second"), {"axis": 0, "num_outputs": 2})
    tower = [_reading(n, {graph.inputs[0].name: "batch"}) for n in left]
    renamed = {left[-1].outputs[0]: "first", right[-1].outputs[0]: "second"}
    rest = [_reading(n, renamed) for n in graph.nodes if n not in left and n not in right]
    return replace(graph, nodes=(batch, *tower, halves, *rest))


def lstm(graph: Graph) -> Graph:
    """One product for the inputs of all steps, and one a step for the state, with all gates side by side."""
    b = GraphBuilder(graph.name)
    known = {w.name.rpartition("/")[2]: _elements(w) for w in graph.weights}
    inputs = _inputs_at_once(b, graph, np.concatenate([known[f"W_{g}"] for g in "ifgo"], 1))
    inputs = inputs + b.constant(np.concatenate([known[f"b_{g}"] for g in "ifgo"]))
    recurrent = b.constant(np.concatenate([known[f"U_{g}"] for g in "ifgo"], 1))
    state, cell = b.constant(known["h_0"]), b.constant(known["c_0"])
    for output, step in zip(graph.outputs, inputs.split([1] * len(graph.outputs), 0), strict=True):
        i, f, g, o = (step + state @ recurrent).split([known["h_0"].shape[1]] * 4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        b.output(state, output.name)
    return b.build()


def nasrnn(graph: Graph) -> Graph:
    """The same for the eight gates of NasRNN."""
    b = GraphBuilder(graph.name)
    known = {w.name: _elements(w) for w in graph.weights}
    inputs = _inputs_at_once(b, graph, np.concatenate([known[f"W_{k}"] for k in range(8)], 1))
    recurrent = b.constant(np.concatenate([known[f"U_{k}"] for k in range(8)], 1))
    state, width = b.constant(known["initial_state"]), known["initial_state"].shape[1]
    for step in inputs.split([1] * len(graph.inputs), 0):
        g = (step + state @ recurrent).split([width] * 8, 1)
        summed = (g[1].sigmoid() + g[2].tanh()).sigmoid() + (g[4].sigmoid() * g[5].tanh()).tanh()
        product = (g[0].relu() + g[3].sigmoid()).tanh() * (g[6].sigmoid() * g[7].relu()).tanh()
        state = (summed.tanh() * product.tanh()).tanh()
    b.output(state, graph.outputs[0].name)
    return b.build()


def _inputs_at_once(b: GraphBuilder, graph: Graph, weight: np.ndarray) -> SymbolicTensor:
    values = [
        b.input(v.name, "float32", v.type.shape)
        for v in graph.inputs
        if isinstance(v.type, TensorType) and v.type.shape is not None
    ]
    return b.op("Concat", *values, axis=0) @ b.constant(weight)


def _elements(weight: Weight) -> np.ndarray:
    assert weight.data is not None
    return np.asarray(weight.data.numpy())


def _tower(graph: Graph, source: str) -> list[Node]:
    """The nodes that compute on one input and weights alone."""
    known = {w.name for w in graph.weights} | {source}
    found = []
    for node in graph.nodes:
        if known.issuperset(node.inputs):
            found.append(node)
            known.update(node.outputs)
    return found


def _reading(node: Node, renamed: Mapping[str, str]) -> Node:
    return replace(node, inputs=tuple(renamed.get(i, i) for i in node.inputs))


def _weight(name: str, values: np.ndarray, like: Weight) -> Weight:
    return Weight(name, TensorType(like.type.dtype, values.shape), ArrayWeightData(values))


BY_HAND: dict[str, Callable[[Graph], Graph]] = {
    "siamese": batched,
    "resnext50": lambda graph: widened(graph, 16),
    "lstm": lstm,
    "nasrnn": nasrnn,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=sorted(BY_HAND), metavar="MODEL", help=", ".join(sorted(BY_HAND)))
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for superopt")
    chosen = parser.parse_args()
    print("model        before   copy   by hand  superopt")
    for name in chosen.models:
        if name not in BY_HAND:
            parser.error(f"there is no hand-made form of {name!r}: {', '.join(sorted(BY_HAND))}")
        graph = formats.load(ROOT / "corpus" / f"{name}.json")
        hand = BY_HAND[name](graph)
        verdict = check(graph, hand)
        if verdict.verdict != "passed":
            parser.error(f"the hand-made form of {name} is wrong: {verdict.reason}")
        ours = optimize(graph, time_limit=chosen.time_limit).graph
        models = [formats.to_onnx_bytes(g) for g in (graph, graph, hand, ours)]
        found = time_models(models, make_inputs(graph, 0, "normal"), rounds=chosen.rounds, threads=1, clock="cpu")
        print(f"{name:10}{found.ms[0]:6.1f} ms" + "".join(f"{r:9.3f}" for r in found.ratios[1:]), flush=True)


if __name__ == "__main__":
    main()
