"""What a device is asked: the time of one operator application at fixed sizes, as its backend runs it.

A question and the key it is filed under say the same, so what is still to be measured can be written down, carried to
the machine that has the device, and asked there without the models it came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from superopt.cost.record import Key, key_of
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.meaning import IllTyped
from superopt.ops.record import NotCovered
from superopt.ops.work import work_of

__all__ = ["Question", "fixed_bytes", "question_of"]


@dataclass(frozen=True)
class Question:
    """An application to static types; ``fixed`` says which arguments are weights."""

    op: str
    attributes: Mapping[str, AttributeValue]
    args: Sequence[TensorType | None]
    outs: Sequence[TensorType]
    fixed: Sequence[bool]

    @cached_property
    def key(self) -> Key:
        """What it is filed under where the engine is ONNX Runtime; a device of another kind says its own."""
        return key_of(self.op, self.attributes, self.args, self.fixed)

    @cached_property
    def work(self) -> tuple[int, int]:
        """FLOPs and bytes moved."""
        return work_of(self.op, self.attributes, self.args, self.outs)


def question_of(key: Key) -> Question:
    """The question that is filed under a key.

    Raises:
        NotCovered: it is not one of an operator's application (but of a kernel or a graph), or it is damaged.
    """
    record = REGISTRY.get(key.op)
    if record is None:
        raise NotCovered(f"{key.op} is not an operator of superopt")
    try:
        attributes = {k: _value(v) for k, v in json.loads(key.attrs).items()}
        args = tuple(_type(s) for s in key.shapes)
        _, outs = record.apply(args, attributes)
    except (ValueError, AttributeError, TypeError, KeyError, IllTyped) as error:
        raise NotCovered(f"the key of {key.op} does not say what was measured: {error}") from error
    found = Question(key.op, attributes, args, outs, tuple(s.startswith("!") for s in key.shapes))
    if found.key.question != key.question:
        raise NotCovered(f"the key of {key.op} does not say all of what was measured")
    return found


@lru_cache(maxsize=1 << 14)
def fixed_bytes(key: Key) -> int:
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
