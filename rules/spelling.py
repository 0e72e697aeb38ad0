"""ONNX's own spellings in a rule, read by the operators' records: the same reader that reads a model's nodes.

``Split(x, num_outputs=3, axis=-1)``, ``Reshape(x, [0, -1])``, ``Slice(x, [-2], [9223372036854775807], [1])``,
``Conv(x, w, auto_pad="SAME_UPPER")``, ``Resize(x, scales=[1.0, 1.0, 2.0, 2.0])``, ``Pad(x, [1, 1], axes=[-1])``,
``Expand(x, [1, t, 1])``, ``Einsum(a, b, equation="ij,jk")`` and ``Cast(x, to=1)`` become the canonical form, wherever
the shapes say what they mean. What is canonical already is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Attribute, Node
from superopt.ir.poly import Dim, Poly
from superopt.ir.terms import App, AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.forms import dtype_from_code
from superopt.ops.meaning import IllTyped
from superopt.ops.record import NodeView, NotCovered

__all__ = ["POSITIONAL", "from_front", "may_be_onnx", "neutral", "respelled"]

_OPSET = 21
_FAR = 2**31 - 1  # from here on an end of a slice means "to the end"
_REDUCTIONS = tuple(
    f"Reduce{kind}" for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
)
# Inputs of ONNX's that are attributes here, by position; "" is a tensor.
POSITIONAL: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((*_REDUCTIONS, "Squeeze", "Unsqueeze"), ("", "axes")),
    "Reshape": ("", "shape"), "Expand": ("", "shape"), "Tile": ("", "repeats"), "Split": ("", "split"),
    "Pad": ("", "pads", "value"), "Slice": ("", "starts", "ends", "axes", "steps"), "Clip": ("", "min", "max"),
    "CumSum": ("", "axis"), "Trilu": ("", "k"), "ConstantOfShape": ("shape",),
}  # fmt: skip
# Inputs that only ONNX's form of an operator has.
_FOREIGN: Mapping[str, tuple[str, ...]] = {
    "Pad": ("", "pads", "value", "axes"), "Resize": ("", "roi", "scales", "sizes"), "Upsample": ("", "scales"),
}  # fmt: skip
# Attributes that say nothing: (name, value); ``None`` stands for any value.
_NEUTRAL: Sequence[tuple[str, AttributeValue | None]] = (
    ("auto_pad", "NOTSET"), ("auto_pad", "VALID"), ("ceil_mode", 0), ("storage_order", 0), ("allowzero", 0),
    ("noop_with_empty_axes", 0), ("mode", "constant"), ("stash_type", 1), ("training_mode", 0), ("momentum", None),
    ("spatial", 1), ("ratio", None), ("seed", None), ("saturate", 1), ("antialias", 0), ("softcap", 0.0),
)  # fmt: skip
_AXES = ("axis", "axes", "perm")


def neutral(app: App, values: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """The attributes without those that the record does not have and that change nothing."""
    names = REGISTRY[app.op].attributes
    return {
        k: v for k, v in values.items()
        if k in names or not any(k == n and (w is None or w == v) for n, w in _NEUTRAL)
    }  # fmt: skip


def from_front(op: str, name: str, value: AttributeValue, rank: int, front: tuple[Dim, ...] = ()) -> AttributeValue:
    """An attribute with ``...`` written out as ``front`` and axes counted from the front."""
    if isinstance(value, tuple) and value and value[0] == "...":
        rest = value[1:]
        value = (*(range(rank - len(rest)) if name == "perm" else front), *rest)
    if name not in _AXES:
        return value
    if op == "Unsqueeze" and isinstance(value, tuple):
        rank += len(value)
    if isinstance(value, tuple):
        return tuple(v + rank if isinstance(v, int) and v < 0 else v for v in value)
    return value + rank if isinstance(value, int) and value < 0 else value


def respelled(
    app: App, values: Mapping[str, AttributeValue], shapes: Sequence[tuple[Dim, ...] | None]
) -> dict[str, AttributeValue]:
    """The canonical attributes that ONNX's spelling stands for; the given ones where it is canonical or not read.

    Args:
        app: the application as it is written.
        values: its attributes, with ONNX's defaults.
        shapes: of its arguments, where they are known.
    """
    values = _types_named(app.op, values)
    if any(s is None and a is not None for s, a in zip(shapes, app.args, strict=True)) or not shapes:
        return values
    types = [None if s is None else TensorType(DType.FLOAT32, s) for s in shapes]
    if not (set(values) - set(REGISTRY[app.op].attributes) or _odd(app, values) or _refused(app, values, types)):
        return values
    try:
        read = REGISTRY[app.op].read(_view(app, values, types))
    except (NotCovered, IllTyped, SuperoptError, IndexError, ValueError):
        return values
    return dict(read.attributes)


def _types_named(op: str, values: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    """``to=1``, ``to="FLOAT"`` and ``to="float"`` are ``to="float32"``."""
    made = dict(values)
    for name in ("to", "dtype"):
        value = made.get(name)
        if name not in REGISTRY[op].attributes or value is None:
            continue
        if isinstance(value, int):
            try:
                made[name] = dtype_from_code(value).value
            except NotCovered:
                continue
        elif isinstance(value, str):
            plain = value.lower().removeprefix("tensorproto.")
            made[name] = {"float": "float32", "double": "float64"}.get(plain, plain)
    return made


def may_be_onnx(app: App) -> bool:
    """Whether an application with all its attributes could still be one of ONNX's spellings; cheap."""
    values = dict(app.attributes)
    if not set(values) <= set(REGISTRY[app.op].attributes):
        return True
    if app.op == "Slice":
        cuts = (*_entries(values, "starts"), *_entries(values, "ends"))
        return any(isinstance(v, int) and (v < 0 or v >= _FAR) for v in cuts)
    if app.op == "Expand":
        return 1 in _entries(values, "shape")
    if app.op == "Einsum":
        equation = str(values.get("equation"))
        return "->" not in equation or "." in equation
    return _odd(app, values) or _types_named(app.op, values) != values


def _entries(values: Mapping[str, AttributeValue], name: str) -> tuple[AttributeValue | Dim, ...]:
    found = values.get(name)
    return found if isinstance(found, tuple) else ()


def _odd(app: App, values: Mapping[str, AttributeValue]) -> bool:
    """Whether values that are well-formed here mean something else in ONNX."""
    if app.op == "Reshape":
        return any(isinstance(s, int) and s <= 0 for s in _entries(values, "shape"))
    if app.op == "Slice":
        return any(isinstance(e, int) and abs(e) >= _FAR for e in _entries(values, "ends"))
    return False


def _refused(app: App, values: Mapping[str, AttributeValue], types: Sequence[TensorType | None]) -> bool:
    """Whether the record takes the attributes at no sizes. (Whether it takes the element types is asked later.)"""
    if app.op not in ("Slice", "Expand", "Split", "Squeeze", "Einsum", "Tile", "Unsqueeze"):
        return False
    rank = next((len(t.shape or ()) for t in types if t is not None), 0)
    front = {k: from_front(app.op, k, v, rank) for k, v in values.items()}
    try:
        REGISTRY[app.op].apply(types, front)
    except (IllTyped, ZeroDivisionError):
        return True
    return False


def _view(app: App, values: Mapping[str, AttributeValue], types: Sequence[TensorType | None]) -> NodeView:
    """The application as a node of ONNX's, with what is not a tensor as constant inputs."""
    order = _FOREIGN.get(app.op, POSITIONAL.get(app.op, ()))
    placed = {name: place for place, name in enumerate(order) if name and name in values}
    inputs = ["" if t is None else f"x{i}" for i, t in enumerate(types)]
    known: list[TensorType | None] = list(types)
    lists: dict[int, AttributeValue] = {}
    for name, place in placed.items():
        while len(inputs) <= place:
            inputs.append("")
            known.append(None)
        inputs[place] = name
        lists[place] = values[name]
    attributes: dict[str, Attribute] = {}
    for name, value in values.items():
        if name not in placed and not _left_out(app.op, name, value):
            attributes[name] = value.encode() if isinstance(value, str) else value  # type: ignore[assignment]
    outputs = values.get("num_outputs") or values.get("split") or 1
    count = len(outputs) if isinstance(outputs, tuple) else outputs if isinstance(outputs, int) else 1
    node = Node("rule", app.op, tuple(inputs), tuple(f"y{i}" for i in range(min(count, 64))), attributes)

    def constant(place: int) -> np.ndarray | None:
        value = lists.get(place)
        items = value if isinstance(value, tuple) else (value,)
        return None if any(not isinstance(v, int | float) for v in items) else np.asarray(value)

    def integers(place: int) -> tuple[Dim, ...] | None:
        value = lists.get(place)
        items = value if isinstance(value, tuple) else (value,)
        whole = tuple(v for v in items if isinstance(v, int | Poly))
        return whole if len(whole) == len(items) else None

    return NodeView(node, _OPSET, tuple(known), constant, integers)


def _left_out(op: str, name: str, value: AttributeValue) -> bool:
    """Canonical attributes that ONNX's form does not have, where they were only filled in."""
    return (op == "Clip" and isinstance(value, float) and abs(value) == float("inf")) or (
        op == "Cast" and isinstance(value, str)
    )
