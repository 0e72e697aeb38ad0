"""Products of matrices (MatMul, Gemm, Einsum) and scaled dot-product attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from superopt.ir.graph import Attribute
from superopt.ir.size_polynomial import Dim, SizePolynomial
from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops.elementwise import element
from superopt.ops.onnx_node_conversion import (
    arguments,
    first_dtype,
    flag,
    float32,
    integer,
    known_ints,
    only,
    onnx_value,
    present,
    reader,
    real,
    since_only,
    text,
    truth,
    writer,
)
from superopt.ops.operator_definition import (
    FLOATS,
    NUMERIC,
    CanonicalNodeForm,
    OnnxNodeForm,
    OnnxNodeView,
    Operator,
    UnsupportedNodeForm,
)
from superopt.ops.operator_semantics import (
    ContradictoryShapes,
    IllTypedOperator,
    ScalarExpression,
    SymbolicOperand,
    TensorComprehension,
    at_least,
    broadcast_dims,
    broadcast_into,
    call,
    number,
    require,
    same,
    tensor,
    total,
    where,
)

__all__ = ["_ATTENTION", "_PRODUCTS"]


# -- Products ------------------------------------------------------------------------------------------------------


def matmul(a: SymbolicOperand, b: SymbolicOperand) -> TensorComprehension:
    """``numpy.matmul``: leading axes broadcast, a vector is a row on the left and a column on the right."""
    if a.rank == 0 or b.rank == 0:
        raise ContradictoryShapes("MatMul takes no scalars")
    inner = a.shape[-1]
    require(same(inner, b.shape[-2] if b.rank > 1 else b.shape[0]), f"inner sizes of {a.type} and {b.type} differ")
    batch = broadcast_dims([a.shape[:-2], b.shape[:-2]])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()

    def value(*index: Dim) -> ScalarExpression:
        lead, row = index[: len(batch)], index[len(batch) : len(batch) + len(rows)]
        column = index[len(batch) + len(rows) :]
        return total(inner, lambda t: batched(a, lead, (*row, t)) * batched(b, lead, (t, *column)))

    return tensor((*batch, *rows, *columns), value)


def batched(x: SymbolicOperand, lead: tuple[Dim, ...], core: tuple[Dim, ...]) -> ScalarExpression:
    """Element of ``x`` whose leading axes broadcast against ``lead``."""
    axes = lead[len(lead) - (x.rank - len(core)) :] if x.rank > len(core) else ()
    index = [0 if isinstance(s, int) and s == 1 else i for i, s in zip(axes, x.shape, strict=False)]
    return x[(*index, *core)]


def gemm(
    a: SymbolicOperand, b: SymbolicOperand, c: SymbolicOperand | None = None, *,
    alpha: AttributeValue, beta: AttributeValue, transA: AttributeValue, transB: AttributeValue,
) -> TensorComprehension:  # fmt: skip
    """``alpha · A' B' + beta · C`` for matrices, ``C`` broadcast to the result."""
    if a.rank != 2 or b.rank != 2:
        raise ContradictoryShapes("Gemm takes matrices")
    turn_a, turn_b = flag(transA, "transA"), flag(transB, "transB")
    rows, inner = (a.shape[1], a.shape[0]) if turn_a else a.shape
    other, columns = (b.shape[1], b.shape[0]) if turn_b else b.shape
    require(same(inner, other), f"inner sizes of {a.type} and {b.type} differ")
    if c is not None:
        broadcast_into(c.shape, (rows, columns), f"{c.type} does not broadcast to the product [{rows}, {columns}]")

    def value(i: Dim, j: Dim) -> ScalarExpression:
        product = total(inner, lambda t: a[(t, i) if turn_a else (i, t)] * b[(j, t) if turn_b else (t, j)])
        scaled = product if alpha == 1 else number(alpha) * product  # type: ignore[arg-type]
        if c is None or beta == 0:
            return scaled
        return scaled + (element(c, (i, j)) if beta == 1 else number(beta) * element(c, (i, j)))  # type: ignore[arg-type]

    return tensor((rows, columns), value)


def read_gemm(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "alpha", "beta", "transA", "transB")
    attributes: dict[str, AttributeValue] = {
        "alpha": real(view, "alpha", 1.0), "beta": real(view, "beta", 1.0),
        "transA": truth(view, "transA", 0), "transB": truth(view, "transB", 0),
    }  # fmt: skip
    return CanonicalNodeForm(arguments(view), attributes)


def write_gemm(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 7)
    if opset < 11 and (len(types) < 3 or types[2] is None):
        raise UnsupportedNodeForm("below opset 11 Gemm needs its third input")
    return OnnxNodeForm(present(types), writer(7)(attributes, types, opset).attributes)


def einsum(*operands: SymbolicOperand, equation: AttributeValue) -> TensorComprehension:
    """An explicit equation without ellipsis: the product of all operands, summed over letters not in the output."""
    terms, result = parse_equation(equation, len(operands))
    sizes: dict[str, Dim] = {}
    for operand, term in zip(operands, terms, strict=True):
        if len(term) != operand.rank:
            raise ContradictoryShapes(f"{term!r} has {len(term)} letters, its operand has rank {operand.rank}")
        for letter, size in zip(term, operand.shape, strict=True):
            other = sizes.setdefault(letter, size)
            if 1 in (other, size) and isinstance(other, int) and isinstance(size, int) and other != size:
                raise IllTypedOperator(f"the sizes {other} and {size} of {letter!r} would have to broadcast")
            require(same(other, size), f"the sizes {other} and {size} of {letter!r} differ")
    if set(result) - set(sizes) or len(set(result)) != len(result):
        raise ContradictoryShapes(f"the output {result!r} names a letter that no input has, or one twice")
    summed = [letter for letter in sizes if letter not in result]

    def value(*index: Dim) -> ScalarExpression:
        def term_at(*inner: Dim) -> ScalarExpression:
            at = dict(zip((*result, *summed), (*index, *inner), strict=True))
            factors = [x[tuple(at[letter] for letter in term)] for x, term in zip(operands, terms, strict=True)]
            out = factors[0]
            for factor in factors[1:]:
                out = out * factor
            return out

        return total([sizes[letter] for letter in summed], term_at)

    return tensor([sizes[letter] for letter in result], value)


def parse_equation(equation: AttributeValue, count: int) -> tuple[list[str], str]:
    """The letters of each operand and of the output.

    Raises:
        IllTypedOperator: the equation is implicit, has an ellipsis, or does not fit the number of operands.
    """
    left, arrow, result = str(equation).replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or not all(t.isalpha() or not t for t in (*terms, result)) or len(terms) != count:
        raise IllTypedOperator(f"the equation {str(equation)[:60]!r} is not explicit over {count} operands")
    return terms, result


def read_einsum(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, "equation")
    shapes = [view.type(p).shape or () for p in range(len(view.node.inputs))]
    return CanonicalNodeForm(arguments(view), {"equation": explicit(text(view, "equation").replace(" ", ""), shapes)})


def explicit(equation: str, shapes: Sequence[Sequence[Dim]]) -> str:
    """The equation with its output stated and letters for the axes that an ellipsis stands for.

    Raises:
        UnsupportedNodeForm: it does not fit the operands.
        ContradictoryShapes: an ellipsis stands for different numbers of axes.
    """
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise UnsupportedNodeForm(f"the equation {equation[:60]!r} has {len(terms)} terms for {len(shapes)} operands")
    used = set(equation)
    spare = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in used]
    hidden = [len(s) - len(t.replace("...", "")) if "..." in t else 0 for t, s in zip(terms, shapes, strict=True)]
    if min(hidden, default=0) < 0 or max(hidden, default=0) > len(spare):
        raise UnsupportedNodeForm(f"the equation {equation[:60]!r} does not fit its operands")
    stands = sorted({h for t, h in zip(terms, hidden, strict=True) if "..." in t})
    if len(stands) > 1:
        raise ContradictoryShapes(f"the ellipsis of {equation[:60]!r} stands for {stands[0]} and for {stands[-1]} axes")
    most = spare[: max(hidden, default=0)]
    if not arrow:
        letters = sorted(c for c in set(left) - set(",.") if left.count(c) == 1)
        result = ("..." if "..." in left else "") + "".join(letters)
    widened = [t.replace("...", "".join(most[len(most) - h :])) for t, h in zip(terms, hidden, strict=True)]
    return f"{','.join(widened)}->{result.replace('...', ''.join(most))}"


_PRODUCTS = (
    Operator(
        name="MatMul", inputs=("A", "B"), meaning=matmul, since=1, dtypes=NUMERIC,
        read=reader(), write=writer(1), family="linear",
    ),
    Operator(
        name="Gemm", inputs=("A", "B", "C?"), meaning=gemm, since=7,
        attributes={"alpha": "float", "beta": "float", "transA": "int", "transB": "int"},
        read=read_gemm, write=write_gemm, family="linear",
    ),
    Operator(
        name="Einsum", inputs=("Inputs*",), meaning=einsum, since=12, attributes={"equation": "string"}, dtypes=NUMERIC,
        read=read_einsum, write=writer(12), family="linear",
    ),
)  # fmt: skip


# -- Attention -----------------------------------------------------------------------------------------------------
#
# Scaled dot-product attention (Vaswani et al., arXiv:1706.03762) on separate heads.


FIELDS = ("is_causal", "scale", "softcap", "q_num_heads", "kv_num_heads", "qk_matmul_output_mode", "softmax_precision")


def attention(
    q: SymbolicOperand,
    k: SymbolicOperand,
    v: SymbolicOperand,
    mask: SymbolicOperand | None = None,
    *,
    is_causal: AttributeValue,
    scale: AttributeValue,
    q_num_heads: AttributeValue,
    kv_num_heads: AttributeValue,
) -> TensorComprehension:
    """``Σ_t w_t V[t] / Σ_t w_t`` with ``w_t = exp(scale · q·k_t + mask_t)``, 0 where masked out.

    Q is [B, G·R, S, D], K [B, G, T, D], V [B, G, T, E]: R query heads share one head of keys and values. Packed, with
    numbers of heads that are not 0, Q is [B, S, G·R·D], K [B, T, G·D], V [B, T, G·E], and so is the result.
    """
    if not isinstance(scale, int | float | SizePolynomial):
        raise IllTypedOperator("Attention needs a scale")
    packed = q_num_heads != 0
    queries, keys, values = (
        _heads(x, n, packed=packed) for x, n in ((q, q_num_heads), (k, kv_num_heads), (v, kv_num_heads))
    )
    (batch, heads, rows, width), read_q = queries
    (key_batch, shared, length, key_width), read_k = keys
    (value_batch, value_heads, value_length, out), read_v = values
    repeat = heads // shared
    require(same(heads, shared * repeat), f"{heads} heads do not share {shared} heads of keys")
    pairs = ((batch, key_batch), (batch, value_batch), (shared, value_heads), (length, value_length))
    for a, b in pairs:
        require(same(a, b), f"{q.type}, {k.type} and {v.type} do not fit")
    require(same(width, key_width), f"{q.type} and {k.type} differ in width")
    scores = (batch, heads, rows, length)
    if mask is not None and broadcast_dims([scores, mask.shape]) != scores:
        raise IllTypedOperator(f"a mask {mask.type} does not broadcast to {list(scores)}")
    if mask is not None and mask.type.dtype == DType.BOOL:
        raise IllTypedOperator("a boolean mask may mask a whole row, for which the opsets differ")
    causal = flag(is_causal, "is_causal")
    factor = number(scale)

    def value(n: Dim, head: tuple[Dim, Dim], s: Dim, e: Dim) -> ScalarExpression:
        h = head[0] * repeat + head[1]

        def weight(t: Dim) -> ScalarExpression:
            score = factor * total(width, lambda d: read_q(n, h, s, d) * read_k(n, head[0], t, d))
            if mask is not None:
                score = score + element(mask, (n, h, s, t))
            term = call("exp", score)
            return where(at_least(s, t), term, 0) if causal else term

        return total(length, lambda t: weight(t) * read_v(n, head[0], t, e)) * call("inv", total(length, weight))

    if packed:
        return tensor((batch, rows, (shared, repeat, out)), lambda n, s, i: value(n, (i[0], i[1]), s, i[2]))
    return tensor((batch, (shared, repeat), rows, out), value)


def _heads(
    x: SymbolicOperand, count: AttributeValue, *, packed: bool
) -> tuple[tuple[Dim, ...], Callable[[Dim, Dim, Dim, Dim], ScalarExpression]]:  # fmt: skip
    """Sizes [batch, heads, length, width], and what reads an element there: heads have an axis or are packed in one."""
    if x.rank != (3 if packed else 4) or not isinstance(count, int | SizePolynomial):
        raise IllTypedOperator(
            "Attention needs queries, keys and values of rank 4, or of rank 3 and their numbers of heads"
        )
    if not packed:
        return x.shape, lambda n, h, s, d: x[n, h, s, d]
    batch, length, whole = x.shape
    width = whole // count
    require(same(whole, count * width), f"{whole} does not divide into {count} heads")
    return (batch, count, length, width), lambda n, h, s, d: x[n, s, h * width + d]


def read_attention(view: OnnxNodeView) -> CanonicalNodeForm:
    only(view, *FIELDS)
    if any(view.node.outputs[1:]) or any(view.has(p) for p in range(4, 7)):
        raise UnsupportedNodeForm("Attention with a cache or with its scores as output")
    ranks = {view.type(p).rank for p in range(3)}
    if len(ranks) > 1:
        raise ContradictoryShapes(f"queries, keys and values have the ranks {sorted(map(str, ranks))}")
    if real(view, "softcap", 0.0) != 0:
        raise UnsupportedNodeForm("Attention with a soft cap")
    heads = {n: integer(view, n) if ranks == {3} else 0 for n in ("q_num_heads", "kv_num_heads")}
    if ranks not in ({3}, {4}) or (ranks == {3} and min(heads.values()) < 1):
        raise UnsupportedNodeForm(f"Attention of rank {sorted(map(str, ranks))}, or without heads")
    causal = truth(view, "is_causal", 0)
    return CanonicalNodeForm(
        arguments(view), {"is_causal": causal, "scale": stated_scale(view, heads["q_num_heads"]), **heads}
    )


def stated_scale(view: OnnxNodeView, packed: int) -> float:
    """The scale, or ``1/√D`` as a float32, of so many packed heads (0: of heads apart)."""
    if "scale" in view.node.attributes:
        return real(view, "scale")
    (width,) = known_ints((view.type(0).shape or ())[-1:], "the width of the heads")
    width //= packed or 1
    if width < 1:
        raise UnsupportedNodeForm("heads of width 0")
    return float32(width**-0.5)


def write_attention(
    attributes: Mapping[str, AttributeValue], types: Sequence[TensorType | None], opset: int
) -> OnnxNodeForm:
    since_only(opset, 23)
    written: dict[str, Attribute] = {n: onnx_value(v) for n, v in attributes.items() if "heads" not in n or v != 0}
    return OnnxNodeForm(present(types), written)


_ATTENTION = (
    Operator(
        name="Attention", inputs=("Q", "K", "V", "mask?"), meaning=attention,
        attributes={"is_causal": "int", "scale": "float", "q_num_heads": "int", "kv_num_heads": "int"},
        since=23, dtypes=FLOATS, result=first_dtype, read=read_attention, write=write_attention, family="attention",
    ),
)  # fmt: skip

OPERATORS = (*_PRODUCTS, *_ATTENTION)
