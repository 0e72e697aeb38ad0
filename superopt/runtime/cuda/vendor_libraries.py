"""What a vendor's library does better than a generated kernel: matrix products (cuBLAS) and convolutions (cuDNN).

Which convolutions those are was measured on an H200 (lab/notes/gpu-2026-11-26.md): 130 of the corpus, both ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from superopt.ir.terms import AttributeValue
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import FLOATS
from superopt.ops.shape_inference import CanonicalNode
from superopt.runtime.cuda.expression_fusion import FusedExpression, inlined, remapped

__all__ = ["Call", "LibraryConvolution", "LibraryCallPlan", "LibraryMatMul", "library_call"]

# Products in one sum up to which the generated kernel of a convolution is faster than cuDNN: 0.4 to 1.1 of its time
# where there is one group (from 40 on 0.4 to 2.6), 0.15 to 0.6 where there are several (none had more than 200).
_FEW, _FEW_GROUPED = 32, 256


@dataclass(frozen=True)
class LibraryMatMul:
    """``out[i] = A[i]·B[i]`` for ``batch`` matrices; strides in elements, 0 for one matrix shared by all."""

    a: str
    b: str
    output: str
    value: str  # the operator's output that it is a part of
    batch: int
    m: int
    n: int
    k: int
    turned: tuple[bool, bool]  # A is given as [k, m]; B as [n, k]
    strides: tuple[int, int]
    dtype: DType

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.a, self.b)


@dataclass(frozen=True)
class LibraryConvolution:
    """A two-dimensional convolution, NCHW, with its bias where it reads one."""

    reads: tuple[str, ...]
    output: str
    value: str
    strides: tuple[int, ...]
    pads: tuple[int, ...]
    dilations: tuple[int, ...]
    group: int
    dtype: DType
    shapes: tuple[tuple[int, ...], ...]  # of what it reads, then of its output


Call = LibraryMatMul | LibraryConvolution


@dataclass(frozen=True)
class LibraryCallPlan:
    """How a library makes an operator's output.

    Attributes:
        call: what is called.
        rest: what is left to do after it, over the call's output: a bias.
        alone: a call that leaves nothing, for where the rest would be a kernel of its own.
    """

    call: Call
    rest: FusedExpression | None = None
    alone: Call | None = None


def library_call(
    name: str, how: CanonicalNode, types: Sequence[TensorType | None], made: TensorType
) -> LibraryCallPlan | None:
    """The library call that makes an operator's output, with what is left to do after it; ``None`` if there is none."""
    arguments = [n for n in how.args if n is not None]
    shapes = [_static(t) for t in types if t is not None]
    if made.dtype not in FLOATS or len(shapes) < 2 or 0 in (*shapes[0], *shapes[1]):
        return None
    if how.operator.name == "MatMul":
        call = _product(arguments, name, name, shapes, (False, False), made.dtype)
        return None if call is None else LibraryCallPlan(call)
    if how.operator.name == "Gemm" and how.attributes["alpha"] == 1.0:
        return _gemm(name, how, arguments, shapes, types, made)
    if how.operator.name == "Conv" and made.dtype is not DType.FLOAT64:
        return _convolution(name, how, arguments, shapes, types, made)
    return None


def _static(kind: TensorType) -> tuple[int, ...]:
    return tuple(int(s) for s in kind.shape or () if isinstance(s, int))


def _integers(values: AttributeValue) -> tuple[int, ...]:
    assert isinstance(values, tuple)
    return tuple(v for v in values if isinstance(v, int))


def _convolution(
    name: str,
    how: CanonicalNode,
    arguments: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    types: Sequence[TensorType | None],
    made: TensorType,
) -> LibraryCallPlan | None:
    """The call for a convolution over one axis or two, its bias left to be added by whatever kernel comes next: cuDNN
    with a bias takes up to 1.5 times as long as without. (In less than float32 the sum would be rounded once more.)
    """
    strides, pads, dilations = (_integers(how.attributes[key]) for key in ("strides", "pads", "dilations"))
    (group,) = _integers((how.attributes["group"],))
    if prod(shapes[1][1:]) <= (_FEW if group == 1 else _FEW_GROUPED) or len(strides) not in (1, 2):
        return None
    around = [*shapes, _static(made)]
    if len(strides) == 1:  # an image of one row
        strides, dilations, pads = (1, *strides), (1, *dilations), (0, pads[0], 0, pads[1])
        around = [s if len(s) == 1 else (*s[:2], 1, *s[2:]) for s in around]
    alone = LibraryConvolution(tuple(arguments), name, name, strides, pads, dilations, group, made.dtype, tuple(around))
    if len(arguments) == 2 or made.dtype is not DType.FLOAT32:
        return LibraryCallPlan(alone)
    products = (*around[:2], around[-1])
    call = replace(alone, reads=alone.reads[:2], output=f"{name} (products)", shapes=products)
    return LibraryCallPlan(call, _biased(call, how, types, made), alone)


def _biased(
    call: LibraryConvolution, how: CanonicalNode, types: Sequence[TensorType | None], made: TensorType
) -> FusedExpression:
    """A convolution's bias added to its products."""
    kind, bias = types[2], how.args[2]
    assert kind is not None
    assert bias is not None
    spread, (column,) = REGISTRY["Unsqueeze"].apply([kind], {"axes": tuple(range(1, len(_static(made)) - 1))})
    add, _ = REGISTRY["Add"].apply([made, column], {})
    channel = f"{bias} of a channel"
    return inlined(remapped((call.output, channel), add.outputs[0]), {channel: remapped((bias,), spread.outputs[0])})


def _product(
    arguments: Sequence[str],
    output: str,
    value: str,
    shapes: Sequence[Sequence[int]],
    turned: tuple[bool, bool],
    dtype: DType,
) -> LibraryMatMul | None:
    """The call for a product, or ``None`` where the batches do not line up as strides."""
    (a, b), (left, right) = arguments[:2], shapes[:2]
    if len(left) < 2 or len(right) < 2:
        return None
    m, k = (left[-1], left[-2]) if turned[0] else (left[-2], left[-1])
    n = right[-2] if turned[1] else right[-1]
    leads = list(left[:-2]), list(right[:-2])
    lead = prod(leads[0])
    if prod(leads[1]) == 1 and len(leads[1]) <= len(leads[0]):  # one right matrix: the batch is more rows
        return LibraryMatMul(a, b, output, value, 1, m * lead, n, k, turned, (0, 0), dtype)
    if leads[0] == leads[1]:
        return LibraryMatMul(a, b, output, value, lead, m, n, k, turned, (m * k, k * n), dtype)
    if lead == 1 and len(leads[0]) <= len(leads[1]):
        return LibraryMatMul(a, b, output, value, prod(leads[1]), m, n, k, turned, (0, k * n), dtype)
    return None


def _gemm(
    name: str,
    how: CanonicalNode,
    arguments: Sequence[str],
    shapes: Sequence[Sequence[int]],
    types: Sequence[TensorType | None],
    made: TensorType,
) -> LibraryCallPlan | None:
    turned = (how.attributes["transA"] == 1, how.attributes["transB"] == 1)
    beta = how.attributes["beta"]
    if len(arguments) == 2 or beta == 0.0:
        call = _product(arguments, name, name, shapes, turned, made.dtype)
        return None if call is None else LibraryCallPlan(call)
    call = _product(arguments, f"{name} (product)", name, shapes, turned, made.dtype)
    kind = types[2]
    assert call is not None
    assert kind is not None
    add, _ = REGISTRY["Add"].apply([made, kind], {})
    rest = remapped((call.output, arguments[2]), add.outputs[0])
    if beta != 1.0:
        constant, _ = REGISTRY["ConstantOfShape"].apply([], {"shape": (), "value": beta, "dtype": made.dtype.value})
        times, _ = REGISTRY["Mul"].apply([kind, TensorType(made.dtype, ())], {})
        beta_of = f"beta of {name}"
        factor = {beta_of: FusedExpression((), constant.outputs[0])}
        rest = inlined(rest, {arguments[2]: inlined(remapped((arguments[2], beta_of), times.outputs[0]), factor)})
    return LibraryCallPlan(call, rest)
