"""One operator application on one device: the question, the key under which it is filed, and the measured record.

A :class:`MeasurementRequest` and its :class:`MeasurementKey` say the same. A plan of missing measurements is therefore
a list of keys: it can be carried to the machine that has the device, without the models from which the questions came.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, Literal

from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.flops_and_bytes import work_of
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator

__all__ = [
    "NOT_OPERATORS",
    "CostEstimate",
    "MeasurementKey",
    "MeasurementRequest",
    "MeasurementRecord",
    "Source",
    "constant_bytes",
    "interchangeable",
    "key_of",
    "question_of",
]

NOT_OPERATORS = frozenset(
    {"graph", "cache"}
)  # records under these are no operator's times: nothing is predicted from them

Source = Literal["measured", "interpolated", "roofline", "free"]


def interchangeable(op: str, count: int) -> bool:
    """Whether an operator of so many operands is commutative, so that their order does not change its time."""
    return count == 2 and op in REGISTRY and REGISTRY[op].commutative


@dataclass(frozen=True)
class CostEstimate:
    """A cost in microseconds, where it comes from, and its relative standard deviation (``sigma``, of log time)."""

    us: float
    source: Source
    sigma: float = 0.0


FREE = CostEstimate(0.0, "free", 0.0)


@dataclass(frozen=True)
class MeasurementKey:
    """What was measured. ``shapes`` are argument types, ``"!"`` in front of a constant one, ``""`` for an absent one.

    Attributes:
        op: operator name; ``domain.Name`` outside ONNX's own domain; ``"graph"`` for a whole small graph, ``"cache"``
            for a pass over memory.
        attrs: attributes as canonical JSON text.
        dtype: element type of the first argument that is present.
        precision: arithmetic policy ("ieee", or "tf32" on CUDA).
        layout: memory order of activations ("plain", or "nhwc" on CUDA).
        shapes: see above.
        impl: the engine that ran it: "ort" (an ONNX operator as ONNX Runtime runs it alone), "kernel" (a node of
            ONNX Runtime's own optimised graph).
    """

    op: str
    attrs: str
    dtype: str
    shapes: tuple[str, ...]
    precision: str = "ieee"
    layout: str = "plain"
    impl: str = "ort"

    @cached_property
    def text(self) -> str:
        """The key as sorted JSON: equal exactly for equal keys."""
        data = {f: self.__dict__[f] for f in _KEY_FIELDS}  # ``asdict`` copies, and takes most of reading a profile
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @cached_property
    def question(self) -> tuple[str, str, str, tuple[str, ...]]:
        """The key without engine, precision and layout, and with the operands of a commutative operator sorted."""
        shapes = tuple(sorted(self.shapes)) if interchangeable(self.op, len(self.shapes)) else self.shapes
        return self.op, self.attrs, self.dtype, shapes


_KEY_FIELDS = tuple(f.name for f in fields(MeasurementKey))


@dataclass(frozen=True)
class MeasurementRecord:
    """A measurement: nanoseconds with weights in the last-level cache and in memory, spread, work done."""

    key: MeasurementKey
    ns: float
    ns_cold: float
    iqr: float = 0.0
    workspace: int = 0
    flops: int = 0
    bytes: int = 0

    def as_data(self) -> dict[str, Any]:
        """The record as flat JSON data."""
        own = {
            "ns": round(self.ns, 1), "ns_cold": round(self.ns_cold, 1), "iqr": round(self.iqr, 4),
            "workspace": self.workspace, "flops": self.flops, "bytes": self.bytes,
        }  # fmt: skip
        return {**asdict(self.key), **own}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> MeasurementRecord:
        """The record that :meth:`as_data` wrote.

        Raises:
            ValueError, KeyError, TypeError: it is not one.
        """
        key = MeasurementKey(
            op=str(data["op"]), attrs=str(data["attrs"]), dtype=str(data["dtype"]),
            shapes=tuple(str(s) for s in data["shapes"]), precision=str(data.get("precision", "ieee")),
            layout=str(data.get("layout", "plain")), impl=str(data.get("impl", "ort")),
        )  # fmt: skip
        ns, cold = float(data["ns"]), float(data["ns_cold"])
        if not (0 <= ns < 1e15 and 0 <= cold < 1e15):
            raise ValueError(f"a time of {ns} ns is not a measurement")
        return MeasurementRecord(
            key, ns, cold, float(data.get("iqr", 0)), int(data.get("workspace", 0)), int(data.get("flops", 0)),
            int(data.get("bytes", 0)),
        )  # fmt: skip


def key_of(
    op: str,
    attributes: Mapping[str, AttributeValue],
    arg_types: Sequence[TensorType | None],
    constant_args: Sequence[bool] = (),
    *,
    impl: str = "ort",
) -> MeasurementKey:
    """The key of an application of an operator to arguments of static types."""
    fixed = (*constant_args, *(False,) * (len(arg_types) - len(constant_args)))
    shapes = tuple("" if t is None else f"{'!' if c else ''}{t}" for t, c in zip(arg_types, fixed, strict=True))
    first = next((t for t in arg_types if t is not None), None)
    text = json.dumps({k: attributes[k] for k in sorted(attributes)}, default=str, separators=(",", ":"))
    return MeasurementKey(op=op, attrs=text, dtype=str(first.dtype) if first else "", shapes=shapes, impl=impl)


@dataclass(frozen=True)
class MeasurementRequest:
    """An application to static types; ``fixed`` says which arguments are weights."""

    op: str
    attributes: Mapping[str, AttributeValue]
    args: Sequence[TensorType | None]
    outs: Sequence[TensorType]
    fixed: Sequence[bool]

    @cached_property
    def key(self) -> MeasurementKey:
        """Its key if the engine is ONNX Runtime; a device of another kind has its own."""
        return key_of(self.op, self.attributes, self.args, self.fixed)

    @cached_property
    def work(self) -> tuple[int, int]:
        """FLOPs and bytes moved."""
        return work_of(self.op, self.attributes, self.args, self.outs)


def question_of(key: MeasurementKey) -> MeasurementRequest:
    """The question of a key.

    Raises:
        UnsupportedNodeForm: it is not one of an operator's application (but of a kernel or a graph), or it is damaged.
    """
    record = REGISTRY.get(key.op)
    if record is None:
        raise UnsupportedNodeForm(f"{key.op} is not an operator of superopt")
    try:
        attributes = {k: _value(v) for k, v in json.loads(key.attrs).items()}
        args = tuple(_type(s) for s in key.shapes)
        _, outs = record.apply(args, attributes)
    except (ValueError, AttributeError, TypeError, KeyError, IllTypedOperator) as error:
        raise UnsupportedNodeForm(f"the key of {key.op} does not say what was measured: {error}") from error
    found = MeasurementRequest(key.op, attributes, args, outs, tuple(s.startswith("!") for s in key.shapes))
    if found.key.question != key.question:
        raise UnsupportedNodeForm(f"the key of {key.op} does not say all of what was measured")
    return found


@lru_cache(maxsize=1 << 14)
def constant_bytes(key: MeasurementKey) -> int:
    """Bytes of the constant arguments of what a key names."""
    types = (_type(shape.partition("=")[0]) for shape in key.shapes if shape.startswith("!"))
    return sum(t.nbytes or 0 for t in types if t is not None)


def _value(data: Any) -> AttributeValue:
    if isinstance(data, list):
        return tuple(map(_value, data))
    if isinstance(data, bool) or not isinstance(data, int | float | str):
        raise ValueError(f"{data!r} is no attribute")
    return data


def _type(text: str) -> TensorType | None:
    """The type that ``str`` of a static type gives, ``!`` in front or not; ``None`` for an absent argument."""
    if not text:
        return None
    name, bracket, sizes = text.removeprefix("!").partition("[")
    if not bracket or not sizes.endswith("]"):
        raise ValueError(f"{text!r} is no type")
    return TensorType(DType(name), tuple(int(s) for s in sizes[:-1].split(",") if s.strip()))
