"""The meaning language: an output element as an index expression over the elements of the inputs.

``out[i, j] = Σ_t A[i, t] · B[t, j]`` is written

>>> from superopt.ir.types import DType, TensorType
>>> from superopt.ir.size_polynomial import sym
>>> def matmul(a, b):
...     return tensor([a.shape[0], b.shape[1]], lambda i, j: total(a.shape[1], lambda t: a[i, t] * b[t, j]))
>>> f = lambda *shape: TensorType(DType.FLOAT32, shape)
>>> print(build(matmul, [f(sym("m"), sym("k")), f(sym("k"), sym("n"))]).outputs[0])
[i0 < m, i1 < n] sum(r0 < k) (#0[i0, r0] * #1[r0, i1])

A meaning is plain data (:class:`TensorComprehension` over :class:`ScalarExpression`), mentions no library, and has many
readers: the reference evaluation, exact evaluation in a prime field and over rationals, the all-sizes proof, the count
of FLOPs and bytes, gradients, and, since the extents of a comprehension are the output's shape, the type rule.

Numbers are real numbers. Booleans are 0 and 1. Index arithmetic is ``superopt.ir.size_polynomial``; an output axis that
merges several (Reshape, groups) keeps its factors as *digits*, most significant first, so that no div or mod is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from math import prod

from superopt.ir.errors import InvalidModel
from superopt.ir.size_polynomial import Dim, SizePolynomial, sym
from superopt.ir.types import TensorType

__all__ = [
    "FUNCTIONS", "Axis", "ScalarCall", "TensorComprehension", "IndexCondition", "ContradictoryShapes",
    "IllTypedOperator", "Index", "OperatorSemantics", "ElementTypeMismatch", "ScalarConstant", "SymbolicOperand",
    "ElementRead", "ScalarReduction", "ScalarExpression", "SizeExpression", "UndeterminedShapes", "ScalarConditional",
    "at_least", "broadcast_dims", "broadcast_into", "build", "call", "combine", "equal_to", "inverse", "largest",
    "least", "number", "product", "require", "same", "tensor", "total", "where",
]  # fmt: skip


class IllTypedOperator(InvalidModel):
    """The operator does not accept these types or attributes."""


class ContradictoryShapes(IllTypedOperator):
    """Known sizes, ranks or axes exclude each other: no element exists, and ONNX Runtime refuses the node too.

    Any other :class:`IllTypedOperator` may be a lack of coverage. A law over the registry holds the two apart.
    """


class ElementTypeMismatch(IllTypedOperator):
    """Element types exclude each other, whatever the sizes are."""


class UndeterminedShapes(IllTypedOperator):
    """Whether the operator accepts the types depends on sizes that are not known."""


# Name → number of arguments. Real functions of real arguments; comparisons and logic give 0 or 1.
# "select"(c, a, b) is a where c ≠ 0, else b. "inv" is 1/x. "floormod" and "truncmod" follow ONNX Mod with fmod 0/1;
# "truncdiv" is integer division that truncates towards zero. "round" is half-to-even. "cast_int" truncates.
FUNCTIONS: Mapping[str, int] = {
    "add": 2, "mul": 2, "max": 2, "min": 2, "inv": 1, "pow": 2, "exp": 1, "log": 1, "sqrt": 1, "erf": 1, "tanh": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "asinh": 1, "acosh": 1,
    "atanh": 1, "floor": 1, "ceil": 1, "round": 1, "abs": 1, "sign": 1, "less": 2, "equal": 2, "not": 1, "and": 2,
    "or": 2, "xor": 2, "select": 3, "truncdiv": 2, "floormod": 2, "truncmod": 2, "cast_int": 1, "isnan": 1, "isinf": 1,
}  # fmt: skip


class ScalarExpression:
    """An element's value. Arithmetic builds expressions; nothing is computed here."""

    __slots__ = ()

    def __add__(self, other: Operandlike) -> ScalarExpression:
        return call("add", self, other)

    def __radd__(self, other: Operandlike) -> ScalarExpression:
        return call("add", other, self)

    def __neg__(self) -> ScalarExpression:
        return call("mul", -1, self)

    def __sub__(self, other: Operandlike) -> ScalarExpression:
        return self + -number(other)

    def __rsub__(self, other: Operandlike) -> ScalarExpression:
        return -self + other

    def __mul__(self, other: Operandlike) -> ScalarExpression:
        return call("mul", self, other)

    def __rmul__(self, other: Operandlike) -> ScalarExpression:
        return call("mul", other, self)

    def __truediv__(self, other: Operandlike) -> ScalarExpression:
        return self * call("inv", other)

    def __rtruediv__(self, other: Operandlike) -> ScalarExpression:
        return number(other) * call("inv", self)


@dataclass(frozen=True, slots=True)
class ScalarConstant(ScalarExpression):
    """A rational constant, or ±infinity (a float), which only max/min reductions and masks use."""

    value: Fraction | float

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class SizeExpression(ScalarExpression):
    """A polynomial over sizes, index variables and attribute variables, as a number.

    In a rule, a real attribute that is a variable (``epsilon=e``) is an atom like any other.
    """

    size: SizePolynomial

    def __str__(self) -> str:
        return f"({self.size})"


@dataclass(frozen=True, slots=True)
class ElementRead(ScalarExpression):
    """Element of input ``operand``. Outside the input's bounds it is ``outside``; ``None`` promises it is inside.

    An index is a dimension, or a scalar where the position depends on data (Gather).
    """

    operand: int
    index: tuple[Index, ...]
    outside: ScalarConstant | None = None

    def __str__(self) -> str:
        tail = "" if self.outside is None else f" else {self.outside}"
        return f"#{self.operand}[{', '.join(map(str, self.index))}{tail}]"


@dataclass(frozen=True, slots=True)
class ScalarCall(ScalarExpression):
    """A function of :data:`FUNCTIONS` applied to scalars."""

    function: str
    args: tuple[ScalarExpression, ...]

    def __str__(self) -> str:
        if self.function in ("add", "mul"):
            return f"({(' + ' if self.function == 'add' else ' * ').join(map(str, self.args))})"
        return f"{self.function}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class ScalarReduction(ScalarExpression):
    """Sum, max, min or product of ``body`` over an index variable running from 0 below ``extent``."""

    kind: str  # "sum" | "max" | "min" | "prod"
    variable: str
    extent: Dim
    body: ScalarExpression

    def __str__(self) -> str:
        return f"{self.kind}({self.variable} < {self.extent}) {self.body}"


@dataclass(frozen=True, slots=True)
class IndexCondition:
    """``size >= 0`` ("ge"), ``size == 0`` ("eq") or ``size != 0`` ("ne"), over sizes and index variables."""

    kind: str
    size: Dim

    @property
    def known(self) -> bool | None:
        """The truth where the size is a known integer, else ``None``."""
        if isinstance(self.size, SizePolynomial):
            return None
        return self.size >= 0 if self.kind == "ge" else (self.size == 0) == (self.kind == "eq")

    def __str__(self) -> str:
        return f"{self.size} {'>=' if self.kind == 'ge' else '==' if self.kind == 'eq' else '!='} 0"


@dataclass(frozen=True, slots=True)
class ScalarConditional(ScalarExpression):
    """``then`` where every condition on the index holds, else ``otherwise``."""

    conditions: tuple[IndexCondition, ...]
    then: ScalarExpression
    otherwise: ScalarExpression

    def __str__(self) -> str:
        return f"({self.then} if {' and '.join(map(str, self.conditions))} else {self.otherwise})"


Index = Dim | ScalarExpression
Operandlike = ScalarExpression | Dim | Fraction | float
Axis = tuple[tuple[str, Dim], ...]  # digits (variable, extent), most significant first; () is an axis of size 1


@dataclass(frozen=True)
class TensorComprehension:
    """One output: its axes, and the value of the element they index."""

    axes: tuple[Axis, ...]
    body: ScalarExpression

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(prod((extent for _, extent in axis), start=1) for axis in self.axes)

    def __str__(self) -> str:
        axes = (" . ".join(f"{v} < {e}" for v, e in axis) or "1" for axis in self.axes)
        return f"[{', '.join(axes)}] {self.body}"


@dataclass(frozen=True)
class SymbolicOperand:
    """An input as a meaning sees it: typed, and indexed to read an element."""

    position: int
    type: TensorType

    @property
    def shape(self) -> tuple[Dim, ...]:
        """Sizes of the axes.

        Raises:
            UndeterminedShapes: the rank is not known.
        """
        if self.type.shape is None:
            raise UndeterminedShapes(f"the rank of input {self.position} is not known")
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Index | tuple[Index, ...]) -> ScalarExpression:
        """The element, promised to be inside the bounds."""
        return self.padded(index, None)

    def padded(self, index: Index | tuple[Index, ...], outside: Operandlike | None = 0) -> ScalarExpression:
        """The element, or ``outside`` beyond the bounds."""
        position = index if isinstance(index, tuple) else (index,)
        if len(position) != self.rank:
            raise IllTypedOperator(f"{len(position)} indices for a tensor of rank {self.rank}")
        beyond = None if outside is None else number(outside)
        if beyond is not None and not isinstance(beyond, ScalarConstant):
            raise TypeError("the value outside the bounds must be a constant")
        return ElementRead(self.position, position, beyond)


@dataclass
class _Trace:
    variables: int = 0
    reductions: int = 0
    obligations: list[IndexCondition] = field(default_factory=list)


_trace: ContextVar[_Trace] = ContextVar("trace")


@dataclass(frozen=True)
class OperatorSemantics:
    """What an operator application computes: a comprehension per output, true when the obligations hold."""

    outputs: tuple[TensorComprehension, ...]
    obligations: tuple[IndexCondition, ...]


def build(
    meaning: Callable[..., TensorComprehension | Sequence[TensorComprehension]],
    inputs: Sequence[TensorType | None],
    attributes: Mapping[str, object] | None = None,
) -> OperatorSemantics:
    """Apply an operator's meaning function to input types (``None`` for an absent optional input).

    Variable names are deterministic. Raises :class:`IllTypedOperator` when the types cannot be accepted.
    """
    token = _trace.set(_Trace())
    try:
        operands = [None if t is None else SymbolicOperand(p, t) for p, t in enumerate(inputs)]
        made = meaning(*operands, **(attributes or {}))
        outputs = (made,) if isinstance(made, TensorComprehension) else tuple(made)
        return OperatorSemantics(outputs, tuple(dict.fromkeys(_trace.get().obligations)))
    finally:
        _trace.reset(token)


def require(condition: IndexCondition, message: str) -> None:
    """Demand a condition on sizes: refuted at once, or kept as an obligation where it is not decided.

    Raises:
        ContradictoryShapes: the condition is known to be false.
    """
    known = condition.known
    if known is False:
        raise ContradictoryShapes(message)
    if known is None:
        _trace.get().obligations.append(condition)


def same(a: Dim, b: Dim) -> IndexCondition:
    """The condition that two sizes are equal."""
    return IndexCondition("eq", a - b)


def at_least(a: Dim, b: Dim) -> IndexCondition:
    """The condition ``a >= b``."""
    return IndexCondition("ge", a - b)


def equal_to(a: Dim, b: Dim) -> IndexCondition:
    """An index condition ``a == b`` (for ``where``)."""
    return IndexCondition("eq", a - b)


def number(value: Operandlike) -> ScalarExpression:
    """Any number, size or scalar, as a scalar. A float stands for exactly its binary value."""
    if isinstance(value, ScalarExpression):
        return value
    if isinstance(value, SizePolynomial):
        return SizeExpression(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return ScalarConstant(value)
    return ScalarConstant(Fraction(value))


def call(function: str, *args: Operandlike) -> ScalarExpression:
    """A function of :data:`FUNCTIONS` applied to scalars, sizes or numbers."""
    if FUNCTIONS[function] != len(args):
        raise TypeError(f"{function} takes {FUNCTIONS[function]} arguments, not {len(args)}")
    return ScalarCall(function, tuple(number(a) for a in args))


def where(
    conditions: IndexCondition | Sequence[IndexCondition], then: Operandlike, otherwise: Operandlike
) -> ScalarExpression:
    """``then`` where all index conditions hold, else ``otherwise``; decided at once where they are constant."""
    conditions = (conditions,) if isinstance(conditions, IndexCondition) else tuple(conditions)
    if any(c.known is False for c in conditions):
        return number(otherwise)
    open_conditions = tuple(c for c in conditions if c.known is None)
    return ScalarConditional(open_conditions, number(then), number(otherwise)) if open_conditions else number(then)


def combine(digits: Sequence[Dim], extents: Sequence[Dim]) -> Dim:
    """The index of a merged axis from its digits, most significant first."""
    index: Dim = 0
    for digit, extent in zip(digits, extents, strict=True):
        index = index * extent + digit
    return index


def tensor(extents: Sequence[Dim | tuple[Dim, ...]], body: Callable[..., Operandlike]) -> TensorComprehension:
    """An output by its extents and the value at each index.

    An extent that is a tuple makes one axis of several digits; ``body`` then gets a tuple of digits for it.
    An extent that is literally 1 gets index 0.
    """
    axes: list[Axis] = []
    arguments: list[Dim | tuple[Dim, ...]] = []
    for extent in extents:
        digits: list[tuple[str, Dim]] = []
        values: list[Dim] = []
        for part in extent if isinstance(extent, tuple) else (extent,):
            if isinstance(part, int) and part == 1:
                values.append(0)
                continue
            digits.append((_fresh("i"), part))
            values.append(sym(digits[-1][0]))
        axes.append(tuple(digits))
        arguments.append(tuple(values) if isinstance(extent, tuple) else values[0])
    return TensorComprehension(tuple(axes), number(body(*arguments)))


def _fresh(prefix: str) -> str:
    trace = _trace.get()
    if prefix == "i":
        trace.variables += 1
        return f"i{trace.variables - 1}"
    trace.reductions += 1
    return f"r{trace.reductions - 1}"


def _reduce(kind: str, extents: Dim | Sequence[Dim], body: Callable[..., Operandlike]) -> ScalarExpression:
    sizes = (extents,) if isinstance(extents, int | SizePolynomial) else tuple(extents)
    names = [None if isinstance(e, int) and e == 1 else _fresh("r") for e in sizes]
    inner = number(body(*(0 if n is None else sym(n) for n in names)))
    for name, extent in reversed(list(zip(names, sizes, strict=True))):
        if name is not None:
            inner = ScalarReduction(kind, name, extent, inner)
    return inner


def total(extents: Dim | Sequence[Dim], body: Callable[..., Operandlike]) -> ScalarExpression:
    """The sum of ``body`` over one or several index variables."""
    return _reduce("sum", extents, body)


def largest(extents: Dim | Sequence[Dim], body: Callable[..., Operandlike]) -> ScalarExpression:
    """The maximum of ``body``; minus infinity over an empty range."""
    return _reduce("max", extents, body)


def least(extents: Dim | Sequence[Dim], body: Callable[..., Operandlike]) -> ScalarExpression:
    """The minimum of ``body``; plus infinity over an empty range."""
    return _reduce("min", extents, body)


def product(extents: Dim | Sequence[Dim], body: Callable[..., Operandlike]) -> ScalarExpression:
    """The product of ``body``; 1 over an empty range."""
    return _reduce("prod", extents, body)


def inverse(size: Dim) -> ScalarExpression:
    """One over a size: a rational where the size is known and not 0."""
    return ScalarConstant(Fraction(1, size)) if isinstance(size, int) and size else call("inv", size)


def broadcast_dims(shapes: Sequence[Sequence[Dim]]) -> tuple[Dim, ...]:
    """The shape that several shapes broadcast to (ONNX multidirectional broadcasting).

    Raises:
        ContradictoryShapes: two known sizes do not fit.
        UndeterminedShapes: an unknown size might be 1.
    """
    rank = max((len(s) for s in shapes), default=0)
    result: list[Dim] = []
    for axis in range(rank):
        sizes = {s[axis - rank + len(s)]: None for s in shapes if axis - rank + len(s) >= 0}
        sizes.pop(1, None)
        if len(sizes) > 1:
            listing = " and ".join(map(str, sizes))
            if all(isinstance(s, int) for s in sizes):
                raise ContradictoryShapes(f"sizes {listing} do not broadcast")
            raise UndeterminedShapes(f"whether sizes {listing} broadcast is not known")
        result.append(next(iter(sizes), 1))
    return tuple(result)


def broadcast_into(shape: Sequence[Dim], target: Sequence[Dim], message: str) -> None:
    """Demand that a shape broadcasts to another and does not widen it.

    Raises:
        ContradictoryShapes: known sizes or ranks exclude it.
        IllTypedOperator: a size that is not known would have to be a certain one.
    """
    joined = broadcast_dims([target, shape])
    if joined == tuple(target):
        return
    pairs = zip(joined, target, strict=False)
    sure = len(joined) != len(target) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    raise (ContradictoryShapes if sure else IllTypedOperator)(message)


def subexpressions(root: ScalarExpression) -> Iterator[ScalarExpression]:
    """Every scalar inside ``root``, itself last; shared objects once each; iterative."""
    seen: set[int] = set()
    stack: list[tuple[ScalarExpression, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((c, False) for c in parts(node))


def parts(node: ScalarExpression) -> tuple[ScalarExpression, ...]:
    """The scalars directly inside one; the scalars among a read's indices count."""
    match node:
        case ScalarCall(_, args):
            return args
        case ScalarReduction(_, _, _, body):
            return (body,)
        case ScalarConditional(_, then, otherwise):
            return (then, otherwise)
        case ElementRead(_, index, _):
            return tuple(i for i in index if isinstance(i, ScalarExpression))
    return ()
