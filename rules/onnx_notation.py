"""ONNX's own notation in rules: positional inputs and default attributes, read by the operators' records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Attribute, Node
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder, remade
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.onnx_node_conversion import dtype_from_code
from superopt.ops.operator_definition import OnnxNodeView, UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.rule import CLASSES, Rule, scalar_value
from superopt.rules.scanner import RuleError

__all__ = [
    "POSITIONAL",
    "as_scalar",
    "default_of",
    "with_defaults",
    "from_front",
    "may_be_onnx",
    "neutral",
    "positional",
    "respelled",
    "with_required_attributes",
]


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


def neutral(app: OperatorTerm, values: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
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
    app: OperatorTerm, values: Mapping[str, AttributeValue], shapes: Sequence[tuple[Dim, ...] | None]
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
    except (UnsupportedNodeForm, IllTypedOperator, SuperoptError, IndexError, ValueError):
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
            except UnsupportedNodeForm:
                continue
        elif isinstance(value, str):
            plain = value.lower().removeprefix("tensorproto.")
            made[name] = {"float": "float32", "double": "float64"}.get(plain, plain)
    return made


def may_be_onnx(app: OperatorTerm) -> bool:
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


def _odd(app: OperatorTerm, values: Mapping[str, AttributeValue]) -> bool:
    """Whether values that are well-formed here mean something else in ONNX."""
    if app.op == "Reshape":
        return any(isinstance(s, int) and s <= 0 for s in _entries(values, "shape"))
    if app.op == "Slice":
        return any(isinstance(e, int) and abs(e) >= _FAR for e in _entries(values, "ends"))
    return False


def _refused(app: OperatorTerm, values: Mapping[str, AttributeValue], types: Sequence[TensorType | None]) -> bool:
    """Whether the record takes the attributes at no sizes. (Whether it takes the element types is asked later.)"""
    if app.op not in ("Slice", "Expand", "Split", "Squeeze", "Einsum", "Tile", "Unsqueeze"):
        return False
    rank = next((len(t.shape or ()) for t in types if t is not None), 0)
    front = {k: from_front(app.op, k, v, rank) for k, v in values.items()}
    try:
        REGISTRY[app.op].apply(types, front)
    except (IllTypedOperator, ZeroDivisionError):
        return True
    return False


def _view(app: OperatorTerm, values: Mapping[str, AttributeValue], types: Sequence[TensorType | None]) -> OnnxNodeView:
    """The application as a node of ONNX's, with what is not a tensor as constant inputs."""
    order = _FOREIGN.get(app.op, POSITIONAL.get(app.op, ()))
    placed = {name: position for position, name in enumerate(order) if name and name in values}
    inputs = ["" if t is None else f"x{i}" for i, t in enumerate(types)]
    known_tensor_types: list[TensorType | None] = list(types)
    lists: dict[int, AttributeValue] = {}
    for name, position in placed.items():
        while len(inputs) <= position:
            inputs.append("")
            known_tensor_types.append(None)
        inputs[position] = name
        lists[position] = values[name]
    attributes: dict[str, Attribute] = {}
    for name, value in values.items():
        if name not in placed and not _left_out(app.op, name, value):
            attributes[name] = value.encode() if isinstance(value, str) else value  # type: ignore[assignment]
    outputs = values.get("num_outputs") or values.get("split") or 1
    count = len(outputs) if isinstance(outputs, tuple) else outputs if isinstance(outputs, int) else 1
    node = Node("rule", app.op, tuple(inputs), tuple(f"y{i}" for i in range(min(count, 64))), attributes)

    def constant(position: int) -> np.ndarray | None:
        value = lists.get(position)
        items = value if isinstance(value, tuple) else (value,)
        return None if any(not isinstance(v, int | float) for v in items) else np.asarray(value)

    def integers(position: int) -> tuple[Dim, ...] | None:
        value = lists.get(position)
        items = value if isinstance(value, tuple) else (value,)
        whole = tuple(v for v in items if isinstance(v, int | SizePolynomial))
        return whole if len(whole) == len(items) else None

    return OnnxNodeView(node, _OPSET, tuple(known_tensor_types), constant, integers)


def _left_out(op: str, name: str, value: AttributeValue) -> bool:
    """Canonical attributes that ONNX's form does not have, where they were only filled in."""
    return (op == "Clip" and isinstance(value, float) and abs(value) == float("inf")) or (
        op == "Cast" and isinstance(value, str)
    )


# -- Defaults ------------------------------------------------------------------------------------------------------
#
# A rule may omit attributes with ONNX's defaults and write compile-time inputs at their ONNX position. ``Conv(x, w)``
# is ``Conv(x, w, strides=[1, 1], pads=[0, 0, 0, 0], dilations=[1, 1], group=1)``, and ``Split(x, [m, n], axis=1)`` is
# ``Split(x, axis=1, split=[m, n])``. Rules are stored and printed in full.


def _f32(value: float) -> float:
    return float(np.float32(value))


_EPSILON = {"epsilon": _f32(1e-5)}
# Defaults that are the same at every rank.
_PLAIN: Mapping[str, Mapping[str, AttributeValue]] = {
    **{key: {"keepdims": 1} for key in _REDUCTIONS},
    **{key: {"axis": -1} for key in ("Softmax", "LogSoftmax")},
    **{key: {"axis": -1, **_EPSILON} for key in ("LayerNormalization", "RMSNormalization")},
    **dict.fromkeys(("BatchNormalization", "InstanceNormalization", "GroupNormalization"), _EPSILON),
    **{key: {"axis": 0} for key in ("Gather", "GatherElements")},
    "Split": {"axis": 0}, "Flatten": {"axis": 1}, "Pad": {"value": 0.0}, "Trilu": {"upper": 1, "k": 0},
    "Clip": {"min": float("-inf"), "max": float("inf")}, "CumSum": {"exclusive": 0, "reverse": 0},
    "Gemm": {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}, "AveragePool": {"count_include_pad": 0},
    "Conv": {"group": 1}, "ConvTranspose": {"group": 1}, "ConstantOfShape": {"value": 0.0}, "EyeLike": {"k": 0},
    "Elu": {"alpha": 1.0}, "Celu": {"alpha": 1.0}, "Shrink": {"bias": 0.0, "lambd": 0.5},
    "LeakyRelu": {"alpha": _f32(0.01)}, "ThresholdedRelu": {"alpha": 1.0},
    "Swish": {"alpha": 1.0}, "HardSigmoid": {"alpha": _f32(0.2), "beta": 0.5}, "Gelu": {"approximate": "none"},
    "Selu": {"alpha": _f32(1.67326319217681884765625), "gamma": _f32(1.05070102214813232421875)},
    "DepthToSpace": {"mode": "DCR"}, "Mod": {"fmod": 0}, "MeanVarianceNormalization": {"axes": (0, 2, 3)},
    "LRN": {"alpha": _f32(1e-4), "beta": 0.75, "bias": 1.0},
}  # fmt: skip
# What operators are here alone, and in ONNX only where it is said: a text has to say it.
_REQUIRED: Mapping[str, Mapping[str, AttributeValue]] = {"ScatterND": {"reduction": "add"}}
_WINDOWS = frozenset({"Conv", "ConvTranspose", "AveragePool", "MaxPool"})


def default_of(op: str, attribute: str) -> AttributeValue | None:
    """ONNX's default of an attribute, where it is the same at every rank."""
    return _PLAIN.get(op, {}).get(attribute)


def with_defaults(rule: Rule, where: str) -> Rule:
    """The rule with every attribute that ONNX has a default for; the same rule where nothing was left out.

    Raises:
        RuleError: a default depends on a rank that is not known, or ``kernel_shape`` contradicts the weights.
    """
    if all(_complete(t) for t in postorder(*rule.lhs, *rule.rhs) if isinstance(t, OperatorTerm)):
        return rule
    terms: dict[Term, Term] = {}
    shapes: dict[Term, tuple[tuple[Dim, ...], ...] | None] = {}
    for term in postorder(*rule.lhs, *rule.rhs):
        if isinstance(term, VariableTerm):
            scheme = rule.tensors[term.name]
            terms[term] = term
            shapes[term] = None if scheme.lead else (scheme.shape,)
        elif isinstance(term, OutputTerm):
            terms[term] = remade(term, terms)
            outputs = shapes[term.term]
            shapes[term] = None if outputs is None or term.index >= len(outputs) else (outputs[term.index],)
        else:
            kinds = [None if a is None or (s := shapes[a]) is None else s[0] for a in term.args]
            values = _filled(term, kinds, where)
            args = _indices(term.op, tuple(None if a is None else terms[a] for a in term.args))
            app = OperatorTerm(term.op, args, tuple(sorted(values.items())))
            terms[term] = app
            shapes[term] = _shapes(app, kinds)
    return replace(rule, lhs=tuple(terms[t] for t in rule.lhs), rhs=tuple(terms[t] for t in rule.rhs))


def with_required_attributes(term: Term) -> Term:
    """The term with what ONNX does not mean by default, as it is written."""
    terms: dict[Term, Term] = {}
    for each in postorder(term):
        new = remade(each, terms)
        if isinstance(new, OperatorTerm) and new.op in _REQUIRED:
            new = OperatorTerm(new.op, new.args, tuple(sorted({**dict(new.attributes), **_REQUIRED[new.op]}.items())))
        terms[each] = new
    return terms[term]


def _without_required(app: OperatorTerm, where: str) -> dict[str, AttributeValue]:
    """Attributes without what has to be said.

    Raises:
        RuleError: it is not said.
    """
    values = dict(app.attributes)
    for name, value in _REQUIRED.get(app.op, {}).items():
        if values.pop(name, None) != value:
            raise RuleError(f"{app.op} is only known with {name}={value!r}", where=where, hint="say it")
    return values


def _complete(app: OperatorTerm) -> bool:
    return app.op not in REGISTRY or (
        app.op not in _REQUIRED
        and {k for k, _ in app.attributes} | {"dtype"} >= set(REGISTRY[app.op].attributes)
        and not may_be_onnx(app)
        and _indices(app.op, app.args) == app.args
    )


def _indices(op: str, args: tuple[Term | None, ...]) -> tuple[Term | None, ...]:
    """A number where ``Gather`` reads positions is an integer: ``Gather(x, 0, axis=1)``."""
    number = scalar_value(args[1]) if op == "Gather" and len(args) == 2 and args[1] is not None else None
    if not isinstance(number, int | float | SizePolynomial) or (isinstance(number, float) and not number.is_integer()):
        return args
    whole = int(number) if isinstance(number, float) else number
    values: tuple[tuple[str, AttributeValue], ...] = (("dtype", "int64"), ("shape", ()), ("value", whole))
    return (args[0], OperatorTerm("ConstantOfShape", (), values))


def _filled(app: OperatorTerm, shapes: list[tuple[Dim, ...] | None], where: str) -> dict[str, AttributeValue]:
    values = dict(app.attributes)
    if app.op not in REGISTRY:
        return values
    values = neutral(app, _without_required(app, where))
    names = REGISTRY[app.op].attributes
    first = shapes[0] if shapes else None
    for name, default in _PLAIN.get(app.op, {}).items():
        values.setdefault(name, default)
    if app.op in _WINDOWS:
        _windows(app, values, shapes, where)
    missing = [n for n in names if n not in values and n != "dtype"]
    for name in missing:
        made = _by_rank(app, name, values, first)
        if made is not None:
            values[name] = made
    return respelled(app, values, shapes)


def _windows(
    app: OperatorTerm, values: dict[str, AttributeValue], shapes: list[tuple[Dim, ...] | None], where: str
) -> None:
    known_sizes = next((s for s in shapes[:2] if s is not None), None)
    kernel = values.get("kernel_shape")
    stated = next((v for n in ("kernel_shape", "strides", "dilations") if isinstance(v := values.get(n), tuple)), None)
    rank = len(known_sizes) - 2 if known_sizes is not None else len(stated) if stated is not None else None
    if app.op.startswith("Conv") and kernel is not None:
        weights = shapes[1] if len(shapes) > 1 else None
        if weights is None or tuple(weights[2:]) != kernel:
            raise RuleError(f"kernel_shape of {app.op} is not that of its weights", where=where, hint="leave it out")
        del values["kernel_shape"]
    if rank is None or rank < 1:
        return
    values.setdefault("strides", (1,) * rank)
    values.setdefault("dilations", (1,) * rank)
    values.setdefault("pads", (0,) * (2 * rank))
    if app.op == "ConvTranspose":
        values.setdefault("output_padding", (0,) * rank)


def _by_rank(
    app: OperatorTerm, name: str, values: Mapping[str, AttributeValue], shape: tuple[Dim, ...] | None
) -> AttributeValue | None:
    """A default that depends on the first argument's rank, or on another attribute; ``None`` where there is none."""
    starts = values.get("starts")
    if app.op == "Slice" and isinstance(starts, tuple):
        return tuple(range(len(starts))) if name == "axes" else (1,) * len(starts) if name == "steps" else None
    if shape is None:
        return None
    if name == "axes" and app.op.startswith("Reduce"):
        return tuple(range(len(shape)))
    if name == "axes" and app.op == "Squeeze":
        return tuple(i for i, s in enumerate(shape) if s == 1)
    if name == "perm":
        return tuple(reversed(range(len(shape))))
    return None


def _shapes(app: OperatorTerm, shapes: list[tuple[Dim, ...] | None]) -> tuple[tuple[Dim, ...], ...] | None:
    """Shapes of an application's outputs, where they are known and it is well-formed."""
    if app.op not in REGISTRY or any(s is None and a is not None for s, a in zip(shapes, app.args, strict=True)):
        return None
    rank = next((len(s) for s in shapes if s is not None), 0)
    values = {k: from_front(app.op, k, v, rank) for k, v in app.attributes}
    if "dtype" in REGISTRY[app.op].attributes:
        values.setdefault("dtype", str(DType.FLOAT32))
    for letter in CLASSES:  # the shape is the same for every class that the operator takes
        kinds = [None if s is None else TensorType(DType(CLASSES["f"]), s) for s in shapes]
        if letter != "f" and kinds:
            position = 0 if letter == "b" else len(kinds) - 1
            first = kinds[position]
            kinds[position] = None if first is None else TensorType(DType(CLASSES[letter]), first.shape)
        try:
            _, outputs = REGISTRY[app.op].apply(kinds, values)
        except (IllTypedOperator, ZeroDivisionError):
            continue
        return tuple(o.shape or () for o in outputs)
    return None


def positional(op: str, place: int) -> str:
    """The attribute that an operator's input at this position is here; "" for a tensor."""
    names = POSITIONAL.get(op, ())
    return names[place] if place < len(names) else ""


def as_scalar(value: AttributeValue, kind: str) -> AttributeValue:
    """A number that was written as an input, as the attribute's kind."""
    whole = isinstance(value, float) and value.is_integer() and kind == "int"
    return int(value) if whole and isinstance(value, float) else value
