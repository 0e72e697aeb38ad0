"""Scaled dot-product attention (Vaswani et al., arXiv:1706.03762) on separate heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.ir.graph import Attribute
from superopt.ir.poly import Dim, Poly
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.derivative import composites
from superopt.ops.elementwise import element
from superopt.ops.forms import (
    arguments,
    first_dtype,
    flag,
    float32,
    known_ints,
    only,
    onnx_value,
    present,
    real,
    since_only,
    truth,
)
from superopt.ops.meaning import (
    Comprehension,
    Contradiction,
    IllTyped,
    Operand,
    Scalar,
    at_least,
    broadcast_dims,
    call,
    number,
    require,
    same,
    tensor,
    total,
    where,
)  # fmt: skip
from superopt.ops.record import FLOATS, Canonical, NodeForm, NodeView, NotCovered, Operator

__all__ = ["OPERATORS"]

FIELDS = ("is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode", "softmax_precision")


def attention(
    q: Operand, k: Operand, v: Operand, mask: Operand | None = None, *, is_causal: AttributeValue, scale: AttributeValue
) -> Comprehension:
    """``Σ_t w_t V[t] / Σ_t w_t`` with ``w_t = exp(scale · q·k_t + mask_t)``, 0 where masked out.

    Q is [B, G·R, S, D], K [B, G, T, D], V [B, G, T, E]: R query heads share one head of keys and values.
    """
    if not q.rank == k.rank == v.rank == 4 or not isinstance(scale, int | float | Poly):
        raise IllTyped("Attention needs queries, keys and values of rank 4")
    batch, heads, rows, width = q.shape
    shared, length = k.shape[1], k.shape[2]
    repeat = heads // shared
    require(same(heads, shared * repeat), f"{heads} heads do not share {shared} heads of keys")
    for a, b in ((batch, k.shape[0]), (batch, v.shape[0]), (shared, v.shape[1]), (length, v.shape[2])):
        require(same(a, b), f"{q.type}, {k.type} and {v.type} do not fit")
    require(same(width, k.shape[3]), f"{q.type} and {k.type} differ in width")
    scores = (batch, heads, rows, length)
    if mask is not None and broadcast_dims([scores, mask.shape]) != scores:
        raise IllTyped(f"a mask {mask.type} does not broadcast to {list(scores)}")
    if mask is not None and mask.type.dtype == DType.BOOL:
        raise IllTyped("a boolean mask may mask a whole row, for which the opsets differ")
    causal = flag(is_causal, "is_causal")
    factor = number(scale)

    def value(n: Dim, head: tuple[Dim, Dim], s: Dim, e: Dim) -> Scalar:
        h = head[0] * repeat + head[1]

        def weight(t: Dim) -> Scalar:
            score = factor * total(width, lambda d: q[n, h, s, d] * k[n, head[0], t, d])
            if mask is not None:
                score = score + element(mask, (n, h, s, t))
            term = call("exp", score)
            return where(at_least(s, t), term, 0) if causal else term

        return total(length, lambda t: weight(t) * v[n, head[0], t, e]) * call("inv", total(length, weight))

    return tensor((batch, (shared, repeat), rows, v.shape[3]), value)


def read_attention(view: NodeView) -> Canonical:
    only(view, *FIELDS)
    if any(view.node.outputs[1:]) or any(view.has(p) for p in range(4, 7)):
        raise NotCovered("Attention with a cache or with its scores as output")
    ranks = {view.type(p).rank for p in range(3)}
    if len(ranks) > 1:
        raise Contradiction(f"queries, keys and values have the ranks {sorted(map(str, ranks))}")
    if ranks != {4}:
        raise NotCovered("Attention whose heads are packed into one axis")
    if real(view, "softcap", 0.0) != 0:
        raise NotCovered("Attention with a soft cap")
    return Canonical(arguments(view), {"is_causal": truth(view, "is_causal", 0), "scale": stated_scale(view)})


def stated_scale(view: NodeView) -> float:
    """The scale, or ``1/√D`` as a float32."""
    if "scale" in view.node.attributes:
        return real(view, "scale")
    (width,) = known_ints((view.type(0).shape or ())[3:], "the width of the heads")
    if width < 1:
        raise NotCovered("heads of width 0")
    return float32(width**-0.5)


def write_attention(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> NodeForm:
    since_only(opset, 23)
    written: dict[str, Attribute] = {n: onnx_value(v) for n, v in attributes.items()}
    return NodeForm(present(types), written)


OPERATORS = (
    Operator(
        name="Attention", inputs=("Q", "K", "V", "mask?"), attributes={"is_causal": "int", "scale": "float"},
        meaning=attention, since=23, dtypes=FLOATS, result=first_dtype, read=read_attention, write=write_attention,
        derivative=composites.ATTENTION,
        family="attention",
    ),
)  # fmt: skip
