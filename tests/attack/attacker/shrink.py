"""A failing model made smaller by delta debugging: outputs and nodes go, values that were computed become inputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import ModelProto, helper

from attacker.build import Attack
from attacker.campaign import Outcome, optimised
from attacker.feeds import Feed
from attacker.interpret import read_by
from attacker.oracle import Oracle

_TRIALS = 60


def shrink(attack: Attack, outcome: Outcome, feed: Feed | None, *, time_limit: float) -> ModelProto:
    """The smallest model found that fails as the attack did, on the same inputs (or is refused as it was)."""
    model, inputs = attack.model, dict(feed or {})
    trials = 0
    going = True
    while going and trials < _TRIALS:
        going = False
        for smaller, given in _candidates(model, inputs, outcome.outcome == "wrong"):
            trials += 1
            if trials > _TRIALS:
                break
            if _fails(smaller, outcome, given, time_limit):
                model, inputs, going = smaller, given, True
                break
    return model


def _fails(model: ModelProto, outcome: Outcome, feed: Feed, time_limit: float) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
        oracle = Oracle(model)
    except Exception:  # no valid model: nothing is shown by it
        return False
    try:
        result, _, _ = optimised(model, time_limit)
    except Exception as error:  # that it is refused is what may be looked for
        return outcome.outcome == "refused" and type(error).__name__ == outcome.kind
    return outcome.outcome == "wrong" and oracle.judge(result, [feed]).kind == outcome.kind


def _candidates(model: ModelProto, feed: Feed, judged: bool) -> Iterator[tuple[ModelProto, Feed]]:
    for index in range(len(model.graph.output)):
        if len(model.graph.output) > 1:
            fewer = _copy(model)
            del fewer.graph.output[index]
            yield _swept(fewer, feed)
    for node in model.graph.node:
        for source in node.input[:2]:
            if source and len(node.output) == 1:
                yield _swept(_bypassed(model, node.output[0], source), feed)
    if judged:
        yield from _cut(model, feed)


def _copy(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _bypassed(model: ModelProto, old: str, new: str) -> ModelProto:
    """Readers of ``old`` read ``new``; an output called ``old`` becomes an Identity of it."""
    made = _copy(model)
    nodes = [n for n in made.graph.node if old not in n.output]
    for node in nodes:
        for index, name in enumerate(node.input):
            if name == old:
                node.input[index] = new
    if any(v.name == old for v in made.graph.output):
        nodes.append(helper.make_node("Identity", [new], [old]))
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del made.graph.node[:]
    made.graph.node.extend(kept)
    return made


def _cut(model: ModelProto, feed: Feed) -> Iterator[tuple[ModelProto, Feed]]:
    """Each computed value in turn as an input, with what it was."""
    values = Oracle(model).interpreter.run(feed)
    outputs = {v.name for v in model.graph.output}
    for node in reversed(model.graph.node):
        name = node.output[0]
        value = values.get(name)
        if name in outputs or not isinstance(value, np.ndarray) or len(node.output) > 1 or node.op_type == "Constant":
            continue
        made = _copy(model)
        kept = [n for n in model.graph.node if name not in n.output]
        del made.graph.node[:]
        made.graph.node.extend(kept)
        kind = helper.np_dtype_to_tensor_dtype(value.dtype)
        made.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
        yield _swept(made, {**feed, name: value})


def _swept(model: ModelProto, feed: Feed) -> tuple[ModelProto, Feed]:
    """Without what no output needs."""
    needed = {v.name for v in model.graph.output}
    kept = []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(read_by(node))
    graph = helper.make_graph(
        list(reversed(kept)), model.graph.name, [v for v in model.graph.input if v.name in needed], model.graph.output,
        [w for w in model.graph.initializer if w.name in needed],
    )  # fmt: skip
    made = _copy(model)
    made.graph.CopyFrom(graph)
    return made, {k: v for k, v in feed.items() if k in needed}
