"""If, Loop and Scan in the reference interpreter: their bodies are run in float64, turn by turn (ONNX, "Operators")."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from superopt.formats.control_flow_bodies import ControlFlowBody
from superopt.ir.errors import ResourceLimit
from superopt.ir.graph import Graph, Node, label

__all__ = ["MOST_TURNS", "Run", "run_bodies"]

MOST_TURNS = 1000  # of a loop: Python takes a millisecond for each, and a condition of the data may never end one
Run = Callable[[Graph, Mapping[str, np.ndarray]], Sequence[np.ndarray]]


def run_bodies(
    node: Node, bodies: Mapping[str, ControlFlowBody], value: Callable[[str], np.ndarray], run: Run
) -> list[np.ndarray] | None:  # fmt: skip
    """The outputs of a node with bodies; ``None`` where they do not follow from its bodies alone.

    Args:
        node: an If, Loop or Scan.
        bodies: by the attributes that hold them.
        value: elements of a value around the node.
        run: runs a graph on arrays, and gives its outputs in order.

    Raises:
        ResourceLimit: a loop makes more than :data:`MOST_TURNS`.
    """
    if node.op == "If":
        taken = bodies["then_branch" if bool(value(node.inputs[0]).reshape(-1)[0]) else "else_branch"]
        return list(run(taken.graph, _captured(taken, value)))
    body = bodies["body"]
    return _loop(node, body, value, run) if node.op == "Loop" else _scan(node, body, value, run)


def _captured(body: ControlFlowBody, value: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    return {v.name: value(v.name) for v in body.graph.inputs[body.own :]}


def _loop(node: Node, body: ControlFlowBody, value: Callable[[str], np.ndarray], run: Run) -> list[np.ndarray] | None:
    given = [value(n) if n else None for n in node.inputs]
    most = None if given[0] is None else int(given[0].reshape(-1)[0])
    going = True if given[1] is None else bool(given[1].reshape(-1)[0])
    carried = [a for a in given[2:] if a is not None]
    names = [v.name for v in body.graph.inputs[: body.own]]
    around = _captured(body, value)
    collected: list[list[np.ndarray]] = [[] for _ in node.outputs[len(carried) :]]
    turn = 0
    while going and (most is None or turn < most):
        if turn == MOST_TURNS:
            raise ResourceLimit(f"a loop makes more than {MOST_TURNS} turns", where=label(node))
        own = [_like(body, 0, np.int64(turn)), _like(body, 1, np.bool_(going)), *carried]
        made = run(body.graph, {**around, **dict(zip(names, own, strict=True))})
        going = bool(made[0].reshape(-1)[0])
        carried = list(made[1 : 1 + len(carried)])
        for items, item in zip(collected, made[1 + len(carried) :], strict=False):
            items.append(item)
        turn += 1
    if collected and not turn:
        return None  # the shape of what no turn made
    return [*carried, *(np.stack(items) for items in collected)]


def _like(body: ControlFlowBody, position: int, number: np.generic) -> np.ndarray:
    """A steering input of a Loop's body, in the shape that the body declares."""
    shape = getattr(body.graph.inputs[position].type, "shape", ()) or ()
    return np.full(tuple(int(d) for d in shape), number)


def _scan(node: Node, body: ControlFlowBody, value: Callable[[str], np.ndarray], run: Run) -> list[np.ndarray] | None:
    scanned = int(str(node.attributes["num_scan_inputs"]))
    given = [value(n) for n in node.inputs]
    states, sequences = given[: len(given) - scanned], given[len(given) - scanned :]
    count = len(body.graph.outputs) - len(states)
    names = [v.name for v in body.graph.inputs[: body.own]]
    around = _captured(body, value)
    axes, ways = _integers(node, "scan_input_axes", scanned), _integers(node, "scan_input_directions", scanned)
    fed = [np.moveaxis(a, axis, 0)[:: -1 if way else 1] for a, axis, way in zip(sequences, axes, ways, strict=True)]
    collected: list[list[np.ndarray]] = [[] for _ in range(count)]
    for slices in zip(*fed, strict=True):
        made = run(body.graph, {**around, **dict(zip(names, [*states, *slices], strict=True))})
        states = list(made[: len(states)])
        for items, item in zip(collected, made[len(states) :], strict=True):
            items.append(item)
    if not all(collected):
        return None
    axes, ways = _integers(node, "scan_output_axes", count), _integers(node, "scan_output_directions", count)
    stacks = [np.stack(items[:: -1 if way else 1]) for items, way in zip(collected, ways, strict=True)]
    return [*states, *(np.moveaxis(a, 0, axis) for a, axis in zip(stacks, axes, strict=True))]


def _integers(node: Node, name: str, count: int) -> list[int]:
    given = node.attributes.get(name)
    return [int(a) for a in given] if isinstance(given, tuple) else [0] * count
