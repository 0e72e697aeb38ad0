"""Statements for one element's value: from a meaning's scalar to C, in blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isnan

from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, symbols
from superopt.ir.types import TensorType
from superopt.ops.operator_semantics import (
    ElementRead,
    IndexCondition,
    ScalarCall,
    ScalarConditional,
    ScalarConstant,
    ScalarExpression,
    ScalarReduction,
    SizeExpression,
    subexpressions,
)

__all__ = ["LONG", "CCodeEmitter", "free", "index_code", "mentioned", "terms"]

LONG = 32  # terms of a reduction that a block shares

_IDENTITY = {"sum": "0", "prod": "1", "max": "-INFINITE", "min": "INFINITE"}
_JOIN = {"sum": "{0} + {1}", "prod": "{0} * {1}", "max": "larger({0}, {1})", "min": "smaller({0}, {1})"}
_REAL = {
    "exp": "exp({})", "log": "log({})", "sqrt": "sqrt({})", "erf": "erf({})", "tanh": "tanh({})", "sin": "sin({})",
    "cos": "cos({})", "tan": "tan({})", "asin": "asin({})", "acos": "acos({})", "atan": "atan({})", "sinh": "sinh({})",
    "cosh": "cosh({})", "asinh": "asinh({})", "acosh": "acosh({})", "atanh": "atanh({})", "floor": "floor({})",
    "ceil": "ceil({})", "round": "rint({})", "cast_int": "trunc({})",
}  # fmt: skip
_TRUTH = {
    "less": "{0} < {1}", "equal": "{0} == {1}", "not": "{0} == 0", "and": "{0} != 0 && {1} != 0",
    "or": "{0} != 0 || {1} != 0", "xor": "({0} != 0) != ({1} != 0)", "isnan": "{0} != {0}",
    "isinf": "{0} - {0} != 0 && {0} == {0}",
}  # fmt: skip
_EITHER = {
    "add": "{0} + {1}", "mul": "{0} * {1}", "max": "larger({0}, {1})", "min": "smaller({0}, {1})",
    "sign": "sign_of({0})",
}  # fmt: skip


def mentioned(node: ScalarExpression) -> frozenset[str]:
    """Index variables that one node names itself."""
    match node:
        case SizeExpression(size):
            return symbols(size)
        case ScalarReduction(_, _, extent, _):
            return symbols(extent)
        case ScalarConditional(conditions, _, _):
            return frozenset(n for c in conditions for n in symbols(c.size))
        case ElementRead(_, index, _):
            return frozenset(n for i in index if not isinstance(i, ScalarExpression) for n in symbols(i))
    return frozenset()


def free(root: ScalarExpression) -> frozenset[str]:
    """Index variables that an expression depends on, other than those it reduces over."""
    names: set[str] = set()
    own: set[str] = set()
    for node in subexpressions(root):
        names |= mentioned(node)
        if isinstance(node, ScalarReduction):
            own.add(node.variable)
    return frozenset(names - own)


def terms(reduce: ScalarReduction) -> tuple[list[tuple[str, int]], ScalarExpression]:
    """The variables of a nest of reductions of one kind, with their extents, and what is reduced."""
    found: list[tuple[str, int]] = []
    node: ScalarExpression = reduce
    while isinstance(node, ScalarReduction) and node.kind == reduce.kind:
        assert isinstance(node.extent, int), "sizes are known on a device"
        found.append((node.variable, node.extent))
        node = node.body
    return found, node


def index_code(size: Dim) -> str:
    """An index expression in C. Quotients are floor divisions."""
    if isinstance(size, int):
        return str(size)
    parts: list[str] = []
    for monomial, coefficient in size.terms:
        factors = [a if isinstance(a, str) else _quotient(a) for a in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, str(coefficient) if coefficient >= 0 else f"({coefficient})")
        parts.append(" * ".join(factors))
    return " + ".join(parts)


def _quotient(atom: FloorQuotient) -> str:
    return f"floor_div({index_code(atom.numerator)}, {index_code(atom.denominator)})"


@dataclass(frozen=True)
class CExpression:
    """A computed value: a C expression, or a literal; with an exponent it stands for code · exp(exponent)."""

    code: str
    real: bool
    exponent: str | None = None


class CCodeEmitter:
    """Emits the statements that compute scalars.

    Args:
        operands: types of what is read.
        real: "float" or "double", the type that reals are computed in.
        index: the C type of index variables.
        shared: in a kernel with a block per row, the row's variables: reductions that depend on no others are made by
            the whole block, before the loop over the row's elements.
        packed: C expressions for the elements of operands that a flat kernel has loaded already.
    """

    def __init__(
        self,
        operands: Sequence[TensorType],
        real: str,
        index: str,
        shared: frozenset[str] | None,
        packed: Mapping[int, str],
    ) -> None:
        self.operands, self.real, self.index = operands, real, index
        self.shared, self.packed = shared, packed
        self.blocks: list[list[str]] = [[]]
        self.known: list[dict[int, CExpression]] = [{}]
        self.kept: list[ScalarExpression] = []  # so that the ids in ``known`` stay theirs
        self.names = 0
        self.guards = 0
        self.extents: list[int] = []  # of the reductions that a block makes together

    @property
    def lines(self) -> list[str]:
        """The outermost statements."""
        return self.blocks[0]

    def open(self) -> None:
        """Begin an inner block."""
        self.blocks.append([])
        self.known.append({})

    def close(self) -> list[str]:
        """End it; gives its statements."""
        self.known.pop()
        return self.blocks.pop()

    def say(self, line: str) -> None:
        self.blocks[-1].append(line)

    def fresh(self, kind: str, code: str) -> str:
        self.names += 1
        self.say(f"{kind} v{self.names} = {code};")
        return f"v{self.names}"

    # ── values ──

    def value(self, node: ScalarExpression) -> CExpression:
        """Emits what computes a scalar, once per block."""
        for scope in reversed(self.known):
            if id(node) in scope:
                return scope[id(node)]
        self.kept.append(node)
        match node:
            case ScalarConstant(value):
                return self._number(value)
            case SizeExpression(size):
                made = CExpression(self.fresh("long long", index_code(size)), False)
            case ElementRead():
                made = self._read(node)
            case ScalarCall(function, args):
                made = self._call(function, [self.value(a) for a in args])
            case ScalarConditional():
                made = self._where(node.conditions, lambda: self.value(node.then), lambda: self.value(node.otherwise))
            case ScalarReduction():
                return self._reduce(node)
            case _:
                raise TypeError(f"{type(node).__name__} is no scalar")
        self.known[-1][id(node)] = made
        return made

    def plain(self, made: CExpression) -> str:
        """A value as one C expression."""
        return made.code if made.exponent is None else f"{made.code} * exp({made.exponent})"

    def as_real(self, made: CExpression) -> str:
        """A value as a real."""
        code = self.plain(made)
        return code if made.real else f"({self.real})({code})"

    def _number(self, value: Fraction | float) -> CExpression:
        if isinstance(value, Fraction):
            if value.denominator == 1 and abs(value.numerator) < 2**63:
                return CExpression(f"{value.numerator}ll" if value >= 0 else f"({value.numerator}ll)", False)
            return CExpression(f"({self.real})({float(value)!r})", True)
        text = "NOT_A_NUMBER" if isnan(value) else "INFINITE" if value > 0 else "-INFINITE"
        return CExpression(f"({self.real})({text})", True)

    def _read(self, node: ElementRead) -> CExpression:
        kind = self.operands[node.operand]
        real = kind.dtype.is_float
        type_ = self.real if real else "long long"
        if node.operand in self.packed:
            return CExpression(self.fresh(type_, f"load({self.packed[node.operand]})"), real)
        shape = [s for s in kind.shape or () if isinstance(s, int)]
        outside = node.outside
        if outside is not None:
            held = [
                c
                for i, s in zip(node.index, shape, strict=True)
                if not isinstance(i, ScalarExpression)
                for c in (IndexCondition("ge", i), IndexCondition("ge", s - 1 - i))
                if c.known is not True
            ]
            inner = ElementRead(node.operand, node.index, None)
            return self._where(held, lambda: self._read(inner), lambda: self._number(outside.value))
        position = "0"
        for i, size in zip(node.index, shape, strict=True):
            # Where data decides, the index is kept inside: no check can stop a kernel.
            code = (
                f"inside({self.plain(self.value(i))}, {size})"
                if isinstance(i, ScalarExpression)
                else f"({index_code(i)})"
            )
            position = code if position == "0" else f"({position}) * {size} + {code}"
        return CExpression(self.fresh(type_, f"load(p{node.operand}[{position}])"), real)

    def _where(
        self,
        conditions: Sequence[IndexCondition],
        then: Callable[[], CExpression],
        otherwise: Callable[[], CExpression],
    ) -> CExpression:
        if not conditions:
            return then()
        signs = {"ge": ">=", "eq": "==", "ne": "!="}
        test = " && ".join(f"{index_code(c.size)} {signs[c.kind]} 0" for c in conditions)
        self.guards += 1
        branches: list[tuple[list[str], CExpression, str]] = []
        for branch in (then, otherwise):
            self.open()
            made = branch()
            code = self.plain(made)
            branches.append((self.close(), made, code))
        self.guards -= 1
        real = any(made.real for _, made, _ in branches)
        self.names += 1
        name = f"v{self.names}"
        self.say(f"{self.real if real else 'long long'} {name};")
        for head, (lines, made, code) in zip((f"if ({test}) {{", "} else {"), branches, strict=True):
            self.say(head)
            for line in lines:
                self.say("  " + line)
            self.say(f"  {name} = {code if made.real or not real else f'({self.real})({code})'};")
        self.say("}")
        return CExpression(name, real)

    # ── functions ──

    def _call(self, function: str, args: Sequence[CExpression]) -> CExpression:
        scaled = self._scaled(function, args)
        if scaled is not None:
            return scaled
        if function in _REAL:
            if function in ("floor", "ceil", "round", "cast_int") and not args[0].real:
                return args[0]
            return CExpression(self.fresh(self.real, _REAL[function].format(self.as_real(args[0]))), True)
        if function == "inv":
            return CExpression(self.fresh(self.real, f"({self.real})1 / ({self.as_real(args[0])})"), True)
        if function == "select":
            return self._select(args)
        real = any(a.real for a in args)
        codes = [self.as_real(a) if real else self.plain(a) for a in args]
        if function in _TRUTH:
            return CExpression(self.fresh("long long", _TRUTH[function].format(*(f"({c})" for c in codes))), False)
        type_ = self.real if real else "long long"
        return CExpression(self.fresh(type_, self._arithmetic(function, codes, real)), real)

    def _select(self, args: Sequence[CExpression]) -> CExpression:
        real = args[1].real or args[2].real
        then, otherwise = (self.as_real(a) if real else self.plain(a) for a in args[1:])
        code = f"({self.plain(args[0])}) != 0 ? ({then}) : ({otherwise})"
        return CExpression(self.fresh(self.real if real else "long long", code), real)

    def _arithmetic(self, function: str, codes: Sequence[str], real: bool) -> str:
        if function in _EITHER:
            casts = (
                codes if function in ("add", "mul") else [f"({self.real if real else 'long long'})({c})" for c in codes]
            )
            return _EITHER[function].format(*(f"({c})" for c in casts) if function in ("add", "mul") else casts)
        a, b = codes[0], codes[1] if len(codes) > 1 else ""
        if function == "abs":
            return f"fabs({a})" if real else f"({a}) < 0 ? -({a}) : ({a})"
        if function == "pow":
            return f"pow({a}, {b})" if real else f"int_pow({a}, {b})"
        named = {"floormod": "floor_mod", "truncmod": "fmod" if real else "trunc_mod", "truncdiv": "trunc_div"}[
            function
        ]
        if function == "truncdiv" and real:
            return f"trunc(({a}) / ({b}))"
        return f"{named}({a}, {b})"

    def _scaled(self, function: str, args: Sequence[CExpression]) -> CExpression | None:
        """Functions of exponentials without forming them, so that quotients and logarithms of sums do not overflow."""
        if function == "exp":
            return CExpression(f"({self.real})1", True, self.fresh(self.real, self.as_real(args[0])))
        if all(a.exponent is None for a in args):
            return None
        if function == "mul":
            exponents = [a.exponent for a in args if a.exponent is not None]
            mantissas = [a.code if a.real else f"({self.real})({a.code})" for a in args]
            code = self.fresh(self.real, " * ".join(f"({m})" for m in mantissas))
            return CExpression(code, True, self.fresh(self.real, " + ".join(exponents)))
        if function == "inv":
            mantissa = self.fresh(self.real, f"({self.real})1 / ({args[0].code})")
            return CExpression(mantissa, True, self.fresh(self.real, f"-({args[0].exponent})"))
        if function == "log":
            return CExpression(self.fresh(self.real, f"log({args[0].code}) + {args[0].exponent}"), True)
        if function == "add":
            exponents = [a.exponent or f"({self.real})0" for a in args]
            peak = self.fresh(self.real, f"finite_or_0(larger({exponents[0]}, {exponents[1]}))")
            sides = [
                f"({a.code if a.real else f'({self.real})({a.code})'}) * exp({e} - {peak})"
                for a, e in zip(args, exponents, strict=True)
            ]
            return CExpression(self.fresh(self.real, " + ".join(sides)), True, peak)
        return None

    # ── reductions ──

    def _reduce(self, node: ScalarReduction) -> CExpression:
        together = self.shared is not None and not self.guards and free(node) <= self.shared
        if not together:
            made = self._looped(node, together=False)
            self.known[-1][id(node)] = made
            return made
        blocks, known = self.blocks, self.known
        self.blocks, self.known = blocks[:1], known[:1]
        shared, self.shared = self.shared, self.shared
        made = self._looped(node, together=True)
        self.known[0][id(node)] = made
        self.blocks, self.known, self.shared = blocks, known, shared
        return made

    def _looped(self, node: ScalarReduction, *, together: bool) -> CExpression:
        """Loops over the terms; made by the block's threads together, or by one thread."""
        variables, body = terms(node)
        self.open()
        term = self.value(body)
        lines = self.close()
        if term.exponent is not None and node.kind == "sum":
            peak = self._loop(variables, lines, "max", term.exponent, self.real, together)
            peak = self.fresh(self.real, f"finite_or_0({peak})")
            scaled = f"({term.code}) * exp({term.exponent} - {peak})"
            return CExpression(self._loop(variables, lines, "sum", scaled, self.real, together), True, peak)
        real = term.real or (node.kind in ("max", "min") and not all(e for _, e in variables))
        type_ = self.real if real else "long long"
        return CExpression(self._loop(variables, lines, node.kind, self.plain(term), type_, together), real)

    def _loop(
        self,
        variables: Sequence[tuple[str, int]],
        lines: Sequence[str],
        kind: str,
        term: str,
        type_: str,
        together: bool,
    ) -> str:
        identity = _IDENTITY[kind]
        if type_ == "long long" and "INF" in identity:
            identity = "(-9223372036854775807ll - 1)" if kind == "max" else "9223372036854775807ll"
        total = self.fresh(type_, f"({type_})({identity})")
        count = 1
        for _, extent in variables:
            count *= extent
        inner = [*lines, f"{total} = {_JOIN[kind].format(total, f'({type_})({term})')};"]
        if together:
            self.extents.append(count)
            self.names += 1
            at = f"t{self.names}"
            self.say(f"for ({self.index} {at} = threadIdx.x; {at} < {count}; {at} += blockDim.x) {{")
            stride = count
            for place, (variable, extent) in enumerate(variables):
                stride //= max(extent, 1)
                quotient = at if stride <= 1 else f"{at} / {stride}"
                self.say(f"  {self.index} {variable} = {quotient if place == 0 else f'({quotient}) % {extent}'};")
            for line in inner:
                self.say("  " + line)
            self.say("}")
            self.say(f"{total} = block_{kind}({total}, ({type_}*)partial);")
            return total
        for depth, (variable, extent) in enumerate(variables):
            pad = "  " * depth
            self.say(f"{pad}for ({self.index} {variable} = 0; {variable} < {extent}; ++{variable}) {{")
        for line in inner:
            self.say("  " * len(variables) + line)
        for depth in reversed(range(len(variables))):
            self.say("  " * depth + "}")
        return total


def linear(index: Sequence[Dim], shape: Sequence[int]) -> Dim:
    """The position of an element in row-major order."""
    position: Dim = 0
    for i, size in zip(index, shape, strict=True):
        position = position * size + i
    return position


def step(place: Dim, variable: str) -> int | None:
    """By how much a position moves with an index variable; ``None`` where that is not one number."""
    if not isinstance(place, SizePolynomial) or variable not in symbols(place):
        return 0
    rest = place - dict(place.terms).get((variable,), 0) * SizePolynomial((((variable,), 1),))
    return None if variable in symbols(rest) else dict(place.terms).get((variable,), 0)
