"""CUDA C++ for an expression over operands: one kernel, its launch, and nothing that needs a header.

Three shapes of kernel come from the meaning alone:

* **flat**: large operands are read at the output's own position: each thread moves 16 bytes at a time;
* **element**: a thread per output element, reductions as loops inside it;
* **row**: reductions that several output elements share (the sums of Softmax and LayerNormalization), or long
  contiguous ones, are made once by a block, in shared memory; its threads then go over the row's elements.

Reals are computed in float (in double for float64 outputs), integers in 64 bits. As in the reference, an exponential is
kept as (mantissa, exponent), so a softmax does not overflow (Milakov and Gimelshein, 2018, is the same algebra).
The text is also valid C++ with a few lines in front, which is how it is tested
on machines without a GPU.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from superopt.ir.errors import Unsupported
from superopt.ir.size_polynomial import Dim
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    ScalarConditional,
    ScalarExpression,
    ScalarReduction,
    parts,
    subexpressions,
)
from superopt.runtime.cuda.c_code_emitter import LONG, CCodeEmitter, free, linear, mentioned, step, terms
from superopt.runtime.cuda.expression_fusion import FusedExpression, reads, reduces

__all__ = ["PRELUDE", "STORAGE", "CudaKernel", "kernel", "position"]

THREADS = 256

STORAGE: Mapping[DType, str] = {
    DType.FLOAT32: "float", DType.FLOAT64: "double", DType.FLOAT16: "f16", DType.BFLOAT16: "bf16", DType.BOOL: "bool8",
    DType.INT8: "signed char", DType.INT16: "short", DType.INT32: "int", DType.INT64: "long long",
    DType.UINT8: "unsigned char", DType.UINT16: "unsigned short", DType.UINT32: "unsigned int",
    DType.UINT64: "unsigned long long",
}  # fmt: skip

PRELUDE = """\
struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
struct bool8 { unsigned char bits; };
template <class T, int N> struct alignas(sizeof(T) * N) Pack { T at[N]; };
#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#define BARRIER __syncthreads()
DEVICE float bits_as_float(unsigned b) { return __uint_as_float(b); }
DEVICE unsigned float_as_bits(float x) { return __float_as_uint(x); }
DEVICE float half_to_float(unsigned short h) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h)); return r; }
DEVICE unsigned short float_to_half(float x) {
  unsigned short h; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x)); return h;
}
#endif
template <class T> DEVICE T load(T x) { return x; }
DEVICE float load(f16 x) { return half_to_float(x.bits); }
DEVICE float load(bf16 x) { return bits_as_float((unsigned)x.bits << 16); }
DEVICE long long load(bool8 x) { return x.bits != 0; }
template <class T> struct Store { template <class V> static DEVICE T from(V v) { return (T)v; } };
template <> struct Store<f16> {
  template <class V> static DEVICE f16 from(V v) { f16 r; r.bits = float_to_half((float)v); return r; }
};
template <> struct Store<bf16> {
  template <class V> static DEVICE bf16 from(V v) {
    unsigned b = float_as_bits((float)v);
    bf16 r;
    r.bits = (b & 0x7fffffffu) > 0x7f800000u ? 0x7fc0 : (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    return r;
  }
};
template <> struct Store<bool8> {
  template <class V> static DEVICE bool8 from(V v) { bool8 r; r.bits = v != 0; return r; }
};
template <class T> DEVICE T larger(T a, T b) { return (a > b || a != a) ? a : b; }
template <class T> DEVICE T smaller(T a, T b) { return (a < b || a != a) ? a : b; }
template <class T> DEVICE T sign_of(T a) { return a > 0 ? (T)1 : a < 0 ? (T)-1 : a; }
template <class T> DEVICE T finite_or_0(T a) { return a - a == 0 ? a : (T)0; }
DEVICE long long floor_div(long long a, long long b) {
  long long q = a / b; return q - (a % b != 0 && (a < 0) != (b < 0));
}
DEVICE long long trunc_div(long long a, long long b) { return b ? a / b : a; }
DEVICE long long floor_mod(long long a, long long b) { return b ? a - b * floor_div(a, b) : 0; }
DEVICE long long trunc_mod(long long a, long long b) { return b ? a % b : 0; }
template <class T> DEVICE T floor_mod(T a, T b) { T r = fmod(a, b); return r != 0 && (r < 0) != (b < 0) ? r + b : r; }
DEVICE long long int_pow(long long a, long long n) {
  long long r = 1; for (; n > 0; n >>= 1, a *= a) if (n & 1) r *= a; return r;
}
DEVICE long long inside(long long i, long long n) { return i < 0 ? 0 : i < n ? i : n - 1; }
#define BLOCK_REDUCE(NAME, JOIN) \\
  template <class T> DEVICE T NAME(T x, T* partial) { \\
    BARRIER; \\
    for (int k = blockDim.x / 2; k > 0; k /= 2) { \\
      if (threadIdx.x < 2 * k && threadIdx.x >= k) partial[threadIdx.x - k] = x; \\
      BARRIER; \\
      if (threadIdx.x < k) { T y = partial[threadIdx.x]; x = JOIN; } \\
      BARRIER; \\
    } \\
    if (threadIdx.x == 0) partial[0] = x; \\
    BARRIER; \\
    return partial[0]; \\
  }
BLOCK_REDUCE(block_sum, x + y)
BLOCK_REDUCE(block_prod, x * y)
BLOCK_REDUCE(block_max, larger(x, y))
BLOCK_REDUCE(block_min, smaller(x, y))
#define INFINITE (1e300 * 1e300)
#define NOT_A_NUMBER (INFINITE - INFINITE)
"""


@dataclass(frozen=True)
class CudaKernel:
    """A kernel and its launch. Arguments are the operands' pointers in order, then the output's."""

    name: str
    source: str  # without the prelude
    operands: tuple[str, ...]
    output: str
    grid: int
    block: int
    form: str  # "flat", "element" or "row"
    pointers: tuple[str, ...]  # C types of the arguments


def kernel(expression: FusedExpression, output: str, types: Mapping[str, TensorType], made: TensorType) -> CudaKernel:
    """The kernel that computes a value.

    Args:
        expression: the value's elements; every extent an integer.
        output: the value's name.
        types: static types of the operands, by name.
        made: the value's type.

    Raises:
        Unsupported: an element type that kernels do not hold.
    """
    for kind in (*(types[name] for name in expression.operands), made):
        if kind.dtype not in STORAGE:
            raise Unsupported(f"CUDA kernels do not hold elements of {kind.dtype}")
    writer = _Writer(expression, types, made)
    text, grid, block, form = writer.text()
    name = "k_" + hashlib.sha256(text.encode()).hexdigest()[:16]
    return CudaKernel(
        name, text.replace("KERNEL", name), expression.operands, output, grid, block, form, writer.pointers
    )


class _Writer:
    def __init__(self, expression: FusedExpression, types: Mapping[str, TensorType], made: TensorType) -> None:
        self.expression = expression
        self.body = expression.comprehension.body
        self.operands = [types[name] for name in expression.operands]
        self.made = made
        self.digits = expression.digits
        self.count = prod((e for _, e in self.digits), start=1)
        self.real = "double" if made.dtype is DType.FLOAT64 or _doubles(self.operands) else "float"
        biggest = max([self.count, *(t.elements for t in self.operands if isinstance(t.elements, int))])
        self.index = "int" if biggest < 2**30 else "long long"

    def text(self) -> tuple[str, int, int, str]:
        if self._is_flat():
            return self._flat()
        rows = self._rows()
        return self._element() if rows is None else self._row(rows)

    @property
    def pointers(self) -> tuple[str, ...]:
        """C types of the arguments."""
        return (*(f"const {STORAGE[t.dtype]}*" for t in self.operands), f"{STORAGE[self.made.dtype]}*")

    def signature(self) -> str:
        names = [*(f"p{i}" for i in range(len(self.operands))), "out"]
        arguments = [f"{t} __restrict__ {n}" for t, n in zip(self.pointers, names, strict=True)]
        return f'extern "C" __global__ void KERNEL({", ".join(arguments)})'

    def emitter(self, shared: frozenset[str] | None = None, flat: Mapping[int, str] | None = None) -> CCodeEmitter:
        return CCodeEmitter(self.operands, self.real, self.index, shared, flat or {})

    def stored(self, value: str) -> str:
        return f"Store<{STORAGE[self.made.dtype]}>::from({value})"

    # ── flat ──

    def _is_flat(self) -> bool:
        """Every large operand is read at the output's own position; small ones (a bias, a scale) anywhere."""
        if reduces(self.body) or not self.digits:
            return False
        found = reads(self.body)
        return (all(self._own(r) or self._small(r) for r in found) and any(map(self._own, found))) or not found

    def _own(self, read: ElementRead) -> bool:
        return position(read, self.operands[read.operand]) == self.expression.target

    def _packed(self) -> set[int]:
        """Operands loaded ahead of all conditions: read at the output's own position only, and long enough for it.

        A Concat reads the shorter operands at the output's position too, but only where they have one.
        """
        found = reads(self.body)
        elsewhere = {r.operand for r in found if not self._own(r)}
        return {i for r in found if (i := r.operand) not in elsewhere and self._elements(i) >= self.count}

    def _elements(self, operand: int) -> int:
        elements = self.operands[operand].elements
        return elements if isinstance(elements, int) else 0

    def _small(self, read: ElementRead) -> bool:
        elements = self.operands[read.operand].elements
        return isinstance(elements, int) and elements * 4 <= self.count

    def _flat(self) -> tuple[str, int, int, str]:
        own = self._packed()
        widest = max([self.made.dtype.bits, *(self.operands[i].dtype.bits for i in own)]) // 8
        width = 16 // widest
        while self.count % width:
            width //= 2
        emitter = self.emitter(flat={i: f"q{i}.at[e]" for i in own})
        value = emitter.plain(emitter.value(self.body))
        pack = [f"  Pack<{STORAGE[self.operands[i].dtype]}, {width}> q{i} = " for i in sorted(own)]
        loads = [
            f"{head}*(const Pack<{STORAGE[self.operands[i].dtype]}, {width}>*)(p{i} + base);"
            for head, i in zip(pack, sorted(own), strict=True)
        ]
        rest = [s for s in subexpressions(self.body) if not (isinstance(s, ElementRead) and s.operand in own)]
        uses = {v for s in rest for v in mentioned(s)}
        decode = _decoded("base + e", self.digits, self.index, uses)
        out = STORAGE[self.made.dtype]
        lines = [
            f"{self.signature()} {{",
            f"  {self.index} base = (({self.index})blockIdx.x * {THREADS} + threadIdx.x) * {width};",
            f"  if (base >= {self.count}) return;",
            *loads,
            f"  Pack<{out}, {width}> result;",
            "  #pragma unroll",
            f"  for (int e = 0; e < {width}; ++e) {{",
            *("    " + line for line in [*decode, *emitter.lines]),
            f"    result.at[e] = {self.stored(value)};",
            "  }",
            f"  *(Pack<{out}, {width}>*)(out + base) = result;",
            "}",
        ]
        return "\n".join(lines) + "\n", -(-self.count // (THREADS * width)), THREADS, "flat"

    # ── a thread per element ──

    def _element(self) -> tuple[str, int, int, str]:
        emitter = self.emitter()
        value = emitter.plain(emitter.value(self.body))
        lines = [
            f"{self.signature()} {{",
            f"  {self.index} at = ({self.index})blockIdx.x * {THREADS} + threadIdx.x;",
            f"  if (at >= {self.count}) return;",
            *("  " + line for line in _decoded("at", self.digits, self.index)),
            *("  " + line for line in emitter.lines),
            f"  out[at] = {self.stored(value)};",
            "}",
        ]
        return "\n".join(lines) + "\n", -(-self.count // THREADS), THREADS, "element"

    # ── a block per row ──

    def _rows(self) -> int | None:
        """How many of the leading index variables make a row, or ``None`` where a thread per element is better."""
        found = [r for r in _unguarded(self.body) if isinstance(r, ScalarReduction)]
        if not found:
            return None
        names = [v for v, _ in self.digits]
        depends = [{n for n in free(r) if n in names} for r in found]
        last = max((names.index(n) for d in depends for n in d), default=-1)
        shared = prod((e for _, e in self.digits[last + 1 :]), start=1)
        if shared > 1 or self._contiguous(found):
            longest = max(prod(e for _, e in terms(r)[0]) for r in found)
            return last + 1 if longest >= LONG else None
        return None

    def _contiguous(self, found: Sequence[ScalarReduction]) -> bool:
        """Whether so many neighbouring terms of the reductions as a block shares are neighbours in memory: a window's
        rows of 28 are, one after the other, where it is as wide as the image.
        """
        for reduce in found:
            variables, body = terms(reduce)
            for read in reads(body):
                place = position(read, self.operands[read.operand])
                if place is None or _run(place, variables) < LONG:
                    return False
        return True

    def _row(self, rows: int) -> tuple[str, int, int, str]:
        outer, inner = self.digits[:rows], self.digits[rows:]
        columns = prod((e for _, e in inner), start=1)
        emitter = self.emitter(frozenset(v for v, _ in outer))
        emitter.open()
        value = emitter.plain(emitter.value(self.body))
        body = emitter.close()
        block = 32
        while block < THREADS and block < max([columns, *emitter.extents]):
            block *= 2
        lines = [
            f"{self.signature()} {{",
            f"  __shared__ long long partial[{block // 2}];  // 8 bytes: any element type",
            "  (void)partial;",
            f"  {self.index} row = blockIdx.x;",
            *("  " + line for line in _decoded("row", outer, self.index)),
            *("  " + line for line in emitter.lines),
            f"  for ({self.index} column = threadIdx.x; column < {columns}; column += blockDim.x) {{",
            *("    " + line for line in [*_decoded("column", inner, self.index), *body]),
            f"    out[row * ({self.index}){columns} + column] = {self.stored(value)};",
            "  }",
            "}",
        ]
        count = prod((e for _, e in outer), start=1)
        return "\n".join(lines) + "\n", count, block, "row"


def _run(place: Dim, variables: Sequence[tuple[str, int]]) -> int:
    """How many terms, counted from the innermost variable, lie one after the other, or are one element."""
    run = 1
    for variable, extent in reversed(variables):
        if step(place, variable) not in (0, run):
            break
        run *= extent
    return run


def position(read: ElementRead, kind: TensorType) -> Dim | None:
    """Where in memory an element is read; ``None`` where data or a guard decides."""
    if read.outside is not None or kind.shape is None:
        return None
    index = [i for i in read.index if not isinstance(i, ScalarExpression)]
    if len(index) < len(read.index):
        return None
    return linear(index, [s for s in kind.shape if isinstance(s, int)])


def _doubles(operands: Sequence[TensorType]) -> bool:
    return any(t.dtype is DType.FLOAT64 for t in operands)


def _decoded(position: str, digits: Sequence[tuple[str, int]], index: str, uses: set[str] | None = None) -> list[str]:
    """Index variables from a linear position."""
    lines = []
    stride = prod((e for _, e in digits), start=1)
    for place, (variable, extent) in enumerate(digits):
        stride //= extent
        if uses is not None and variable not in uses:
            continue
        quotient = position if stride == 1 else f"({position}) / {stride}"
        lines.append(f"{index} {variable} = {quotient if place == 0 else f'({quotient}) % {extent}'};")
    return lines


def _unguarded(body: ScalarExpression) -> list[ScalarExpression]:
    """Outermost reductions that are computed whatever the index is."""
    found: list[ScalarExpression] = []
    waiting = [body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ScalarReduction):
            found.append(node)
        elif not isinstance(node, ScalarConditional | ElementRead):
            waiting.extend(parts(node))
    return found
