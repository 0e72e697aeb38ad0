"""Building a model node by node: names, constants in both spellings, and what the oracle may know about its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
import onnx
from onnx import (
    FunctionProto,
    GraphProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    helper,
    numpy_helper,
    shape_inference,
)

EXACT = "exact."  # a node whose name begins so rounds on purpose: the oracle grants its output no noise
KIND = {
    "float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16, "int64": TensorProto.INT64, "int32": TensorProto.INT32,
    "int16": TensorProto.INT16, "int8": TensorProto.INT8, "uint8": TensorProto.UINT8, "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32, "uint64": TensorProto.UINT64, "bool": TensorProto.BOOL,
}  # fmt: skip
FLOATS = ("float16", "float32", "float64")
MODERATE = ("normal", "unit", "points", "integers", "halves", "zeros", "ties")
WIDE = (*MODERATE, "log", "cancel", "medium")
EXTREME = (*WIDE, "denormal", "large", "special")
Operand = str | np.ndarray | float | int | bool | None


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The values rounded to bfloat16."""
    return np.asarray(values).astype(ml_dtypes.bfloat16)


@dataclass(frozen=True)
class Spec:
    """An input as the oracle draws it.

    Attributes:
        name, dtype: as in the model.
        shape: sizes; a string is symbolic and drawn from ``Attack.sizes``.
        families: what its floats are drawn from (see :mod:`attacker.feeds`).
        low, high: the domain of an integer input, both ends included; the whole type where ``None``.
        default: an initializer stands behind it, so it may be left out.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    families: tuple[str, ...] = WIDE
    low: int | None = None
    high: int | None = None
    default: bool = False


@dataclass(frozen=True)
class Attack:
    """A model and what its inputs may be."""

    seed: int
    group: str
    motif: str
    model: onnx.ModelProto
    specs: tuple[Spec, ...]
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)


class Build:
    """A model in the making.

    Attributes:
        rng: draws everything.
        dtype: the floating type of this model.
        opset: of the default domain.
        families: of inputs that name none.
        rows: what the first of two sizes is where a motif says 2: many make worth rewriting what few do not.
    """

    def __init__(self, rng: np.random.Generator, *, dtype: str, opset: int, families: tuple[str, ...] = WIDE) -> None:
        self.rng, self.dtype, self.opset, self.families = rng, dtype, opset, families
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[tuple[str, str | None]] = []
        self.functions: list[FunctionProto] = []
        self.specs: list[Spec] = []
        self.sizes: dict[str, tuple[int, ...]] = {}
        self.count = 0
        self.rows = 2

    # values
    def name(self, stem: str = "v") -> str:
        """A name that is new."""
        self.count += 1
        return f"{stem}{self.count}"

    def input(
        self, *shape: int | str, dtype: str | None = None, families: Sequence[str] | None = None,
        low: int | None = None, high: int | None = None,
    ) -> str:  # fmt: skip
        """A graph input."""
        name, dtype = self.name("x"), dtype or self.dtype
        if len(shape) == 2 and shape[0] == 2:
            shape = (self.rows, shape[1])
        self.inputs.append(helper.make_tensor_value_info(name, KIND[dtype], shape))
        self.specs.append(Spec(name, dtype, tuple(shape), tuple(families or self.families), low, high))
        return name

    def size(self, *choices: int, name: str = "N") -> str:
        """A symbolic size that is one of the choices when it runs."""
        self.sizes[name] = choices
        return name

    def const(self, value: object, dtype: str | None = None, *, default: bool = False) -> str:
        """A constant: an initializer or, three times in ten, a Constant node; ``default`` makes it an input as well."""
        array = np.asarray(value)
        if dtype == "bfloat16":
            array = bfloat16(array)
        elif dtype is not None or array.dtype in (np.dtype(np.float64), np.dtype(object)):
            array = array.astype(dtype or self.dtype)
        name = self.name("c")
        tensor = numpy_helper.from_array(array, name)
        if default:
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            self.inputs.append(helper.make_tensor_value_info(name, kind, array.shape))
            self.specs.append(Spec(name, str(array.dtype), array.shape, default=True))
            self.weights.append(tensor)
        elif self.rng.random() < 0.3:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor, name=self.name("k")))
        else:
            self.weights.append(tensor)
        return name

    def weight(self, *shape: int, scale: float = 1.0, dtype: str | None = None) -> str:
        """A constant of normal values."""
        return self.const(self.rng.standard_normal(shape) * scale, dtype or self.dtype)

    def ints(self, *values: int) -> str:
        """A vector of int64, as axes and shapes are."""
        return self.const(np.array(values, np.int64))

    def operand(self, value: Operand) -> str:
        """The name of an operand; a number becomes a constant of the model's type, ``None`` an absent input."""
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        return self.const(value, self.dtype if isinstance(value, float) else None)

    def op(self, kind: str, *operands: Operand, exact: bool = False, domain: str = "", **attributes: object) -> str:
        """A node of one output, whose name it returns."""
        return self.ops(kind, *operands, count=1, exact=exact, domain=domain, **attributes)[0]

    def ops(
        self, kind: str, *operands: Operand, count: int, exact: bool = False, domain: str = "", **attributes: object
    ) -> list[str]:
        """A node of several outputs."""
        names = [self.operand(o) for o in operands]
        outputs = [self.name() for _ in range(count)]
        label = self.name(EXACT if exact else "n")
        self.nodes.append(helper.make_node(kind, names, outputs, name=label, domain=domain, **attributes))
        return outputs

    def cast(self, value: Operand, dtype: str, *, exact: bool = False) -> str:
        """A Cast."""
        return self.op("Cast", value, to=KIND[dtype], exact=exact)

    def reduce(self, kind: str, value: str, axes: Sequence[int], keepdims: int = 1) -> str:
        """A reduction, its axes where the opset wants them."""
        if self.opset >= (13 if kind == "ReduceSum" else 18):
            return self.op(kind, value, self.ints(*axes), keepdims=keepdims)
        return self.op(kind, value, axes=list(axes), keepdims=keepdims)

    def output(self, *names: str, dtype: str | None = None) -> None:
        """Graph outputs; the type is inferred where it is not given."""
        self.outputs += [(name, dtype) for name in names]

    def pick(self, *choices: object) -> object:
        """One of them."""
        return choices[int(self.rng.integers(len(choices)))]

    def maybe(self, share: float = 0.5) -> bool:
        """True that often."""
        return bool(self.rng.random() < share)

    # the end
    def graph(self, name: str = "attack") -> GraphProto:
        """The graph with typed outputs."""
        infos = [
            helper.make_tensor_value_info(n, KIND[d], None) if d else ValueInfoProto(name=n) for n, d in self.outputs
        ]
        return helper.make_graph(self.nodes, name, self.inputs, infos, self.weights)

    def model(self) -> onnx.ModelProto:
        """The model, its output types inferred where ONNX can (:mod:`attacker.generate` adds the ranks)."""
        domains = {n.domain for n in self.nodes if n.domain}
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
        made = helper.make_model(self.graph(), opset_imports=imports, ir_version=9, functions=self.functions)
        known = shape_inference.infer_shapes(made, data_prop=True).graph
        values = [*known.input, *known.value_info, *known.output]
        types = {v.name: v.type for v in values if v.type.WhichOneof("value") is not None}
        kinds = {w.name: w for w in made.graph.initializer}
        for value in made.graph.output:
            if value.name in kinds:
                weight = kinds[value.name]
                value.CopyFrom(helper.make_tensor_value_info(value.name, weight.data_type, weight.dims))
            elif value.type.WhichOneof("value") is None and value.name in types:
                value.type.CopyFrom(types[value.name])
        return made
