"""A function of JAX as a graph, from its jaxpr (extra ``jax``).

Each primitive that ONNX has becomes operators; functions inside (``jit``, ``custom_jvp_call`` …) are written out, so
that superopt's gradients are those of what they compute, whatever their own rules say (``stop_gradient`` among them).
Others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import numpy as np
from jax import tree_util
from jax.extend.core import ClosedJaxpr, Literal

from superopt.frontend.array_api import astype, clip, concat, permute_dims, where
from superopt.frontend.builder import GraphBuilder
from superopt.frontend.symbolic_tensor import SymbolicTensor
from superopt.ir.errors import Unsupported, printable
from superopt.ir.graph import Graph
from superopt.ir.types import DType

__all__ = ["from_jax"]

Params = Mapping[str, Any]
Write = Callable[["_Writer", Params, Sequence[SymbolicTensor]], "SymbolicTensor | Sequence[SymbolicTensor]"]

UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh", "atan": "Atan", "atanh": "Atanh",
    "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf", "exp": "Exp", "floor": "Floor",
    "log": "Log", "logistic": "Sigmoid", "neg": "Neg", "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt",
    "tan": "Tan", "tanh": "Tanh", "copy": "Identity", "copy_p": "Identity", "stop_gradient": "Identity",
    "not": "Not",
}  # fmt: skip
BINARY = {
    "add": "Add", "add_any": "Add", "and": "And", "div": "Div", "eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater",
    "le": "LessOrEqual", "lt": "Less", "max": "Max", "min": "Min", "mul": "Mul", "or": "Or", "pow": "Pow",
    "sub": "Sub", "xor": "Xor",
}  # fmt: skip
REDUCTIONS = {
    "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd", "reduce_sum": "ReduceSum",
}  # fmt: skip
INLINED = frozenset({
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr", "remat",
    "checkpoint", "remat2",
})  # fmt: skip
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def from_jax(function: Callable[..., Any], *examples: Any) -> Graph:
    """The graph of a function for arguments of these shapes and types.

    Args:
        function: of arrays, or of nested tuples, lists and dictionaries of them; so are its results.
        examples: an argument each: arrays, ``jax.ShapeDtypeStruct``, or shapes of float32 as tuples of integers.
            Their leaves are inputs, named by their places: ``x0``, ``x1['w']`` …

    Raises:
        Unsupported: it has a primitive, or a use of one, that is no operator; says which.

    >>> import jax.numpy as jnp
    >>> graph = from_jax(lambda x, w: jnp.tanh(x @ w), (2, 3), (3, 4))
    >>> [node.op for node in graph.nodes], str(graph.outputs[0].type)
    (['MatMul', 'Tanh'], 'float32[2, 4]')
    """
    given = [jax.ShapeDtypeStruct(e, np.float32) if _is_shape(e) else e for e in examples]
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*given)
    leaves, _ = tree_util.tree_flatten_with_path(tuple(given))
    results, _ = tree_util.tree_flatten_with_path(shape)
    name = getattr(function, "__name__", "") or "function"
    writer = _Writer(GraphBuilder(name if name.isidentifier() else "function"))
    inputs = [
        writer.builder.input(_name("x", path[1:], path[0].idx), DType.of(var.aval.dtype).value, var.aval.shape)
        for (path, _), var in zip(leaves, closed.jaxpr.invars, strict=True)
    ]
    outputs = writer.run(closed.jaxpr, [writer.constant(c) for c in closed.consts], inputs)
    for position, ((path, _), tensor) in enumerate(zip(results, outputs, strict=True)):
        writer.builder.output(tensor, _name("y", path, position if len(results) > 1 and not path else None))
    return writer.builder.build()


def _is_shape(example: Any) -> bool:
    return isinstance(example, tuple) and all(isinstance(d, int) and not isinstance(d, bool) for d in example)


def _name(stem: str, path: Sequence[Any], place: int | None) -> str:
    return f"{stem}{'' if place is None else place}{tree_util.keystr(tuple(path))}"


class _Writer:
    """Writes equations into a builder."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder

    def constant(self, value: Any) -> SymbolicTensor:
        return self.builder.constant(np.asarray(value))

    def op(self, name: str, *inputs: Any, **attributes: Any) -> SymbolicTensor:
        return self.builder.op(name, *inputs, **attributes)

    def run(
        self, jaxpr: Any, consts: Sequence[SymbolicTensor], inputs: Sequence[SymbolicTensor]
    ) -> list[SymbolicTensor]:
        """The outputs of a jaxpr.

        Raises:
            Unsupported: an equation has no operators.
        """
        known_tensors: dict[Any, SymbolicTensor] = dict(
            zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *inputs), strict=True)
        )

        def read(atom: Any) -> SymbolicTensor:
            literal = isinstance(atom, Literal)
            return self.constant(np.asarray(atom.val, atom.aval.dtype)) if literal else known_tensors[atom]

        for equation in jaxpr.eqns:
            tensors = self.equation(equation, [read(a) for a in equation.invars])
            for var, tensor in zip(equation.outvars, tensors, strict=True):
                known_tensors[var] = tensor
        return [read(a) for a in jaxpr.outvars]

    def equation(self, equation: Any, operands: list[SymbolicTensor]) -> Sequence[SymbolicTensor]:
        name, params = str(equation.primitive.name), dict(equation.params)
        if name in INLINED:
            inner = next(params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in params)
            if isinstance(inner, ClosedJaxpr):
                return self.run(inner.jaxpr, [self.constant(c) for c in inner.consts], operands)
            return self.run(inner, [], operands)
        out = equation.outvars[0].aval
        params["out"] = out
        try:
            if name in UNARY:
                return [self.op(UNARY[name], *operands)]
            if name in BINARY:
                if name in ("and", "or", "xor") and out.dtype != bool:
                    raise Unsupported(f"{name} of integers has no operator here")
                return [self.op(BINARY[name], *operands)]
            if name in REDUCTIONS:
                return [operands[0].reduced(REDUCTIONS[name], tuple(params["axes"]), False)]
            if name in WRITERS:
                found = WRITERS[name](self, params, operands)
                return [found] if isinstance(found, SymbolicTensor) else list(found)
        except Unsupported as reason:
            raise Unsupported(f"the primitive {printable(name)}: {reason.what}") from None
        raise Unsupported(f"the primitive {printable(name)} has no operators here")


def _shape(x: SymbolicTensor) -> tuple[int, ...]:
    return tuple(int(d) for d in x.shape if isinstance(d, int))


def _broadcast(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    """Each axis has its place; the others are new."""
    shape, places = tuple(p["shape"]), tuple(p["broadcast_dimensions"])
    sizes = _shape(x[0])
    full = tuple(sizes[places.index(a)] if a in places else 1 for a in range(len(shape)))
    y = x[0] if full == sizes else x[0].reshape(*full)
    return y if full == shape else w.op("Expand", y, np.array(shape, np.int64))


def _dot(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    """A product of matrices where it is one, else Einsum."""
    (left_sum, right_sum), (left_batch, right_batch) = p["dimension_numbers"]
    a, b = x
    batch = tuple(range(len(left_batch)))
    plain = tuple(left_batch) == batch == tuple(right_batch) and len(left_sum) == len(right_sum) == 1
    free = a.ndim - len(batch) - 1, b.ndim - len(batch) - 1
    last = tuple(left_sum) == (a.ndim - 1,)
    if plain and last and free[1] == 1 and (free[0] == 1 or (not batch and free[0] >= 1)):
        swapped = right_sum[0] == b.ndim - 1
        return w.op("MatMul", a, b.transpose(*batch, b.ndim - 1, b.ndim - 2) if swapped else b)
    letters = iter(LETTERS)
    left, right = [""] * a.ndim, [""] * b.ndim
    for i, j in (*zip(left_batch, right_batch, strict=True), *zip(left_sum, right_sum, strict=True)):
        left[i] = right[j] = next(letters)
    left, right = ([c or next(letters) for c in side] for side in (left, right))
    result = [left[i] for i in left_batch]
    result += [c for i, c in enumerate(left) if i not in (*left_batch, *left_sum)]
    result += [c for i, c in enumerate(right) if i not in (*right_batch, *right_sum)]
    return w.op("Einsum", a, b, equation=f"{''.join(left)},{''.join(right)}->{''.join(result)}")


def _conv(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    """Batch and channels first, then back."""
    numbers = p["dimension_numbers"]
    if any(d != 1 for d in p["lhs_dilation"]) or p["batch_group_count"] != 1:
        raise Unsupported("a dilated image, or groups of the batch")
    pads = [lo for lo, _ in p["padding"]] + [hi for _, hi in p["padding"]]
    if any(pad < 0 for pad in pads):
        raise Unsupported("a negative padding")
    image, weights = x[0].transpose(*numbers.lhs_spec), x[1].transpose(*numbers.rhs_spec)
    y = w.op(
        "Conv", image, weights, strides=list(p["window_strides"]), pads=pads, dilations=list(p["rhs_dilation"]),
        group=int(p["feature_group_count"]),
    )  # fmt: skip
    return y.transpose(*np.argsort(numbers.out_spec).tolist())


def _pool(op: str) -> Write:
    def write(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
        window, strides, padding = (tuple(p[k]) for k in ("window_dimensions", "window_strides", "padding"))
        if any(d != 1 for d in (*p["base_dilation"], *p["window_dilation"])):
            raise Unsupported("a dilation")
        whole = [a for a, s in enumerate(window) if s == 1 and strides[a] == 1 and padding[a] == (0, 0)]
        if len(whole) < 2 or len(window) < 3:
            raise Unsupported("a window over all axes, or all but one")
        first = whole[:2]
        perm = (*first, *(a for a in range(len(window)) if a not in first))
        positions = perm[2:]
        pads = [padding[a][0] for a in positions] + [padding[a][1] for a in positions]
        settings = {
            "kernel_shape": [window[a] for a in positions],
            "strides": [strides[a] for a in positions],
            "pads": pads,
        }
        y = permute_dims(x[0], perm)
        if op == "MaxPool":
            y = w.op(op, y, **settings)
        else:
            y = w.op(op, y, count_include_pad=1, **settings) * float(prod(window))
        return permute_dims(y, np.argsort(perm).tolist())

    return write


def _gather(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    """``take`` along an axis; what is out of bounds is filled or brought back, as the mode says."""
    data, indices = x
    numbers, sizes = p["dimension_numbers"], _shape(data)
    if len(numbers.start_index_map) != 1 or tuple(numbers.collapsed_slice_dims) != tuple(numbers.start_index_map):
        raise Unsupported("it is no take along one axis")
    (axis,) = numbers.start_index_map
    if tuple(p["slice_sizes"]) != tuple(1 if a == axis else s for a, s in enumerate(sizes)):
        raise Unsupported("it takes parts of other axes")
    count = indices.ndim - 1
    offsets = tuple(a for a in range(len(sizes) - 1 + count) if not axis <= a < axis + count)
    if tuple(numbers.offset_dims) != offsets or numbers.operand_batching_dims:
        raise Unsupported("its result has another order of axes")
    at = indices.squeeze(count)
    most = sizes[axis] - 1
    tensor = w.op("Gather", data, astype(clip(astype(at, np.int64), 0, most), np.int64), axis=axis)
    if "FILL" not in str(p["mode"]).upper():
        return tensor
    fill = p.get("fill_value")
    if fill is None:
        fill = float("nan") if np.issubdtype(p["out"].dtype, np.floating) else 0
    inside = w.op("And", at >= 0, at <= most)
    full = [1] * tensor.ndim
    full[axis : axis + count] = _shape(at)
    return where(inside.reshape(*full), tensor, fill)


def _slice(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    steps = p["strides"] or (1,) * x[0].ndim
    y = x[0]
    for axis, (start, end, step) in enumerate(zip(p["start_indices"], p["limit_indices"], steps, strict=True)):
        if (start, end, step) != (0, _shape(x[0])[axis], 1):
            y = y.slice(axis, int(start), int(end), int(step))
    return y


def _pad(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    config = p["padding_config"]
    if any(inner for _, _, inner in config):
        raise Unsupported("padding between elements")
    pads = [lo for lo, _, _ in config] + [hi for _, hi, _ in config]
    return w.op("Pad", x[0], np.array(pads, np.int64), x[1])


def _reverse(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    y = x[0]
    for axis in p["dimensions"]:
        y = y.slice(axis, _shape(x[0])[axis] - 1, -(2**62), -1)
    return y


def _power(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    y = int(p["y"])
    if y == 2:
        return x[0] * x[0]
    return w.op("Reciprocal", x[0]) if y == -1 else x[0] ** float(y)


def _select(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    if len(x) != 3 or str(p["out"].dtype) == "bool":
        raise Unsupported("a choice of more than two, or of booleans")
    return w.op("Where", x[0], x[2], x[1])


def _arg(op: str) -> Write:
    def write(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
        (axis,) = p["axes"]
        return astype(w.op(op, x[0], axis=axis, keepdims=0), p["out"].dtype)

    return write


def _cast(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    return x[0] if str(x[0].type).startswith(f"{p['out'].dtype}[") else astype(x[0], p["out"].dtype)


def _round(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    if int(p["rounding_method"]) != 1:
        raise Unsupported("halves away from 0")
    return w.op("Round", x[0])


def _iota(w: _Writer, p: Params, x: Sequence[SymbolicTensor]) -> SymbolicTensor:
    shape, axis = tuple(p["shape"]), int(p["dimension"])
    line = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))])
    return w.constant(np.broadcast_to(line, shape).astype(p["out"].dtype))


WRITERS: Mapping[str, Write] = {
    "argmax": _arg("ArgMax"), "argmin": _arg("ArgMin"), "broadcast_in_dim": _broadcast,
    "clamp": lambda w, p, x: w.op("Min", w.op("Max", x[1], x[0]), x[2]),
    "concatenate": lambda w, p, x: concat(list(x), p["dimension"]), "conv_general_dilated": _conv,
    "convert_element_type": _cast,
    "cumsum": lambda w, p, x: w.op("CumSum", x[0], np.array(p["axis"], np.int64), reverse=int(p["reverse"])),
    "dot_general": _dot, "erfc": lambda w, p, x: 1.0 - w.op("Erf", x[0]),
    "exp2": lambda w, p, x: w.op("Pow", x[0].like(2.0), x[0]),
    "expand_dims": lambda w, p, x: x[0].unsqueeze(*p["dimensions"]),
    "expm1": lambda w, p, x: w.op("Exp", x[0]) - 1.0, "gather": _gather, "integer_pow": _power, "iota": _iota,
    "is_finite": lambda w, p, x: w.op("Not", w.op("Or", w.op("IsNaN", x[0]), w.op("IsInf", x[0]))),
    "log1p": lambda w, p, x: w.op("Log", x[0] + 1.0), "ne": lambda w, p, x: w.op("Not", w.op("Equal", *x)),
    "pad": _pad, "reduce_window_max": _pool("MaxPool"), "reduce_window_sum": _pool("AveragePool"),
    "rem": lambda w, p, x: w.op("Mod", *x, fmod=1),
    "reshape": lambda w, p, x: x[0].reshape(*p["new_sizes"]), "rev": _reverse,
    "round": _round, "rsqrt": lambda w, p, x: w.op("Reciprocal", w.op("Sqrt", x[0])), "select_n": _select,
    "slice": _slice, "split": lambda w, p, x: x[0].split([int(s) for s in p["sizes"]], p["axis"]),
    "square": lambda w, p, x: x[0] * x[0],
    "squeeze": lambda w, p, x: x[0].squeeze(*p["dimensions"]) if p["dimensions"] else x[0],
    "transpose": lambda w, p, x: permute_dims(x[0], tuple(p["permutation"])),
}  # fmt: skip
