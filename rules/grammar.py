"""The text form of rules: parsing, and printing that parses back to the same rule.

>>> rule = parse_rule(
...     {
...         "forall": {"x": "f[b, k]", "a": "f[k, m]", "s": "real"},
...         "lhs": ["MatMul(Mul(x, s), a)"],
...         "rhs": ["Mul(MatMul(x, a), s)"],
...     }
... )
>>> print(format_term(rule.lhs[0], rule.forall))
MatMul(Mul(x, s), a)
>>> parse_term("MatMul(x, (a)")
Traceback (most recent call last):
superopt.rules.scanner.RuleError: term, column 14: expected ',' or ')', found the end
    MatMul(x, (a)
                 ^
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isinf

from superopt.ir.errors import printable
from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, sym
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder, variables
from superopt.ir.terms import format_term as term_text
from superopt.ir.terms import format_value as value_text
from superopt.ops import REGISTRY
from superopt.rules.onnx_notation import as_scalar, positional, with_defaults, with_required_attributes
from superopt.rules.rule import (
    CLASSES,
    AttributeVariableType,
    Rule,
    RulePrecondition,
    TensorVariableType,
    TypeScheme,
    attribute_symbols,
    scalar,
    scalar_value,
    term_symbols,
)
from superopt.rules.scanner import RuleError, Scanner, Token

__all__ = [
    "RuleError", "format_dim", "format_guard", "format_rule", "format_scheme", "format_term", "parse_guard",
    "parse_rule", "parse_scheme", "parse_term",
]  # fmt: skip

_RELATIONS = ("==", "!=", "<=", ">=", "<", ">")
_INFIX = {"+": "Add", "-": "Sub", "*": "Mul", "/": "Div", "@": "MatMul", "^": "Pow"}  # signs of other languages
_FUNCTIONS = "arithmetic on tensors is written with operators: Add(a, b), Mul(2, a), Neg(a)"
_DEPTH = 200  # nesting that a rule may have; deeper text is refused rather than parsed
_TERMS, _DEGREE = 512, 64  # of a size; the library's have at most a dozen terms and degree 5
_DIVISIONS = 32  # in a size
_DIGITS = 19  # of 64 bits
_LENGTH = 64  # elements of a vector of attributes: two for each axis of the largest rank there is


def _whole(term: Term) -> Term:
    """A whole number as one of integers; other terms as they are."""
    value = scalar_value(term)
    if not isinstance(value, float) or not value.is_integer():
        return term
    return OperatorTerm("ConstantOfShape", (), (("dtype", CLASSES["i"]), ("shape", ()), ("value", int(value))))


class _Parser(Scanner):
    """Recursive descent over one text; depth is bounded."""

    def __init__(self, text: str, where: str, forall: Mapping[str, TypeScheme] | None = None) -> None:
        super().__init__(text, where)
        self.forall = forall
        self.vectors = {
            n: s.length
            for n, s in (forall or {}).items()
            if isinstance(s, AttributeVariableType) and s.length is not None
        }
        self.depth = self.divisions = 0

    # ---- sizes -------------------------------------------------------------------------------------------------
    def dim(self) -> Dim:
        """``2*n + p_0 - (h - k)//s``: an integer polynomial with floor division and remainder."""
        self.divisions = 0
        return self.sum()

    def sum(self) -> Dim:
        value = self.product()
        while (sign := self.next).kind in ("+", "-"):
            value = value + self.product() if self.take().kind == "+" else value - self.product()
            self.moderate(sign.column, value)
        return value

    def product(self) -> Dim:
        value = self.factor()
        while self.next.kind in ("*", "//", "%"):
            sign = self.take()
            right = self.factor()
            if sign.kind == "*":
                value = self.moderate(sign.column, value * right)
            elif isinstance(right, int) and right <= 0:
                raise self.error(sign.column, f"the divisor {right} is not positive")
            else:
                self.divisions += 1
                if self.divisions > _DIVISIONS:
                    raise self.error(sign.column, f"more than {_DIVISIONS} divisions in one size")
                value = value // right if sign.kind == "//" else value % right
        return value

    def factor(self) -> Dim:
        if self.accept("-"):
            return -self.factor()
        if self.accept("("):
            self.enter()
            value = self.sum()
            self.expect(")")
            self.depth -= 1
            return value
        if self.next.kind == "int":
            return self.whole(self.take())
        if self.next.kind == "name":
            return self.atom()
        raise self.wrong("a size: a number, a name or '('")

    def atom(self) -> Dim:
        token = self.take()
        if self.forall is not None and isinstance(self.forall.get(token.text), TensorVariableType):
            raise self.error(token.column, f"{token.text} is a tensor, not a size; {_FUNCTIONS}")
        length = self.vectors.get(token.text)
        if length is None:
            return sym(token.text)
        self.expect("[", f"'[' and a position, because {token.text} is a vector,")
        index = self.whole(self.expect("int", "a position"))
        if index >= length:
            raise self.error(token.column, f"{token.text} has {length} elements, numbered from 0")
        self.expect("]")
        return sym(f"{token.text}_{index}")

    def whole(self, token: Token) -> int:
        """The number of an integer's token."""
        if len(token.text) > _DIGITS:
            raise self.error(token.column, f"a number of {len(token.text)} digits; sizes have at most {_DIGITS}")
        return int(token.text)

    def moderate(self, column: int, value: Dim) -> Dim:
        """The size, unless it is so large a polynomial that nothing ends with it."""
        if isinstance(value, SizePolynomial) and (
            len(value.terms) > _TERMS or any(len(monomial) > _DEGREE for monomial, _ in value.terms)
        ):
            raise self.error(column, f"a size of more than {_TERMS} terms, or of a degree above {_DEGREE}")
        return value

    def enter(self) -> None:
        self.depth += 1
        if self.depth > _DEPTH:
            raise self.error(self.next.column, f"more than {_DEPTH} levels of nesting")

    # ---- attribute values --------------------------------------------------------------------------------------
    def number(self) -> Dim | float:
        """A size, or a float literal."""
        negative = self.next.kind == "-" and self.peek().kind == "float"
        if negative or self.next.kind == "float":
            sign = -1.0 if self.accept("-") else 1.0
            token = self.take()
            value = float(token.text)
            if isinf(value) or (value == 0.0 and re.search("[1-9]", re.split("[eE]", token.text)[0])):
                raise self.error(token.column, f"{token.text} is beyond what a float64 holds")
            return sign * value
        return self.dim()

    def value(self) -> AttributeValue:
        if self.next.kind == "string":
            body = self.take().text[1:-1]
            return body.replace('\\"', '"').replace("\\\\", "\\")
        if self.accept("..."):
            return "..."
        if self.accept("["):
            return self.sequence()
        name = self.next.text
        length = self.vectors.get(name) if self.next.kind == "name" else None
        if length is not None and self.peek().kind != "[":
            self.take()
            return tuple(sym(f"{name}_{i}") for i in range(length))
        return self.number()

    def sequence(self) -> tuple[AttributeValue, ...]:
        self.enter()
        values: list[AttributeValue] = []
        while not self.accept("]"):
            if values:
                self.expect(",", "',' or ']'")
            values.append(self.value())
        self.depth -= 1
        return tuple(values)

    # ---- terms -------------------------------------------------------------------------------------------------
    def term(self) -> Term:
        column = self.next.column
        term = self.operand()
        if self.next.kind in _INFIX:
            raise self.infix(column)
        return term

    def infix(self, begin: int) -> RuleError:
        """The error that an operator's sign stands between tensors, with what is to be written instead."""
        sign = self.take()
        left = self.text[begin : sign.column].strip()
        power = sign.kind == "*" and self.accept("*") is not None
        start = self.next.column
        try:
            self.operand()
            right = self.text[start : self.next.column].strip()
        except RuleError:
            right = "…"
        op = "Pow" if power else _INFIX[sign.kind]
        shown = "**" if power else sign.text
        return self.error(sign.column, f"{shown!r} cannot stand between tensors: write {op}({left}, {right})")

    def operand(self) -> Term:
        token = self.next
        if token.kind != "name" or self.peek().kind != "(":
            return self.leaf()
        self.take()
        self.enter()
        app = self.application(token.text)
        self.depth -= 1
        if self.accept("["):
            index = self.whole(self.expect("int", "the number of an output"))
            self.expect("]")
            return OutputTerm(app, index)
        return app

    def leaf(self) -> Term:
        token = self.next
        if token.kind == "name" and (
            self.forall is None or isinstance(self.forall.get(token.text), TensorVariableType)
        ):
            self.take()
            return VariableTerm(token.text)
        if token.kind == "end" or token.text in (",", ")", "="):
            raise self.wrong("a term: Op(…), a variable or a number")
        return scalar(self.number())

    def application(self, op: str) -> OperatorTerm:
        self.expect("(")
        args: list[Term | None] = []
        attributes: dict[str, AttributeValue] = {}
        while not self.accept(")"):
            if args or attributes:
                self.expect(",", "',' or ')'")
            name = self.next
            if name.kind == "name" and self.peek().kind == "=":
                self.take(), self.take()
                if name.text in attributes:
                    raise self.error(name.column, f"attribute {name.text} is written twice")
                attributes[name.text] = self.value()
            elif self.at_value() and (static := positional(op, len(args))):
                if static in attributes:
                    raise self.error(name.column, f"attribute {static} is written twice")
                attributes[static] = self.static(op, static)
                args.append(None)
            elif attributes and not any(a is None for a in args):
                raise self.error(name.column, "arguments come before attributes")
            elif name.text == "_":
                self.take()
                args.append(None)
            else:
                args.append(self.term())
        while args and args[-1] is None:
            args.pop()
        if op in REGISTRY and REGISTRY[op].of_one_type and any(a is not None and self.is_integer(a) for a in args):
            args = [a if a is None else _whole(a) for a in args]
        return OperatorTerm(op, tuple(args), tuple(sorted(attributes.items())))

    def is_integer(self, term: Term) -> bool:
        """Whether a term is of the rule's integers: numbers beside it are, then."""
        while isinstance(term, OperatorTerm) and term.op in REGISTRY and REGISTRY[term.op].of_one_type:
            found_term = next((a for a in term.args if a is not None), None)
            if found_term is None:
                break
            term = found_term
        if isinstance(term, OperatorTerm):
            return term.op == "ConstantOfShape" and dict(term.attributes).get("dtype") == CLASSES["i"]
        scheme = None if isinstance(term, OutputTerm) else (self.forall or {}).get(term.name)
        return isinstance(scheme, TensorVariableType) and scheme.dtype == "i"

    def at_value(self) -> bool:
        """Whether what is ahead is a number, a list or a size, not a term."""
        if self.next.kind == "name":
            known = self.forall is not None and not isinstance(self.forall.get(self.next.text), TensorVariableType)
            return known and self.peek().kind != "(" and self.next.text != "_"
        return self.next.kind in ("[", "int", "float", "-", "(")

    def static(self, op: str, name: str) -> AttributeValue:
        """An attribute that is written in the position of ONNX's input."""
        column = self.next.column
        value = self.value()
        if value == "..." or isinstance(value, str):
            raise self.error(column, f"{name} of {op} is a number or a list")
        kind = REGISTRY[op].attributes[name]
        return as_scalar(value, kind)

    def end(self) -> None:
        if self.next.kind != "end":
            raise self.wrong("the end")


def parse_term(text: str, forall: Mapping[str, TypeScheme] | None = None, *, where: str = "term") -> Term:
    """A term. With ``forall``, names that are not tensor variables are sizes; without, every leaf is a tensor.

    Raises:
        RuleError: the text is not a term.
    """
    parser = _Parser(text, where, forall)
    term = parser.term()
    parser.end()
    return term


def parse_guard(text: str, forall: Mapping[str, TypeScheme] | None = None, *, where: str = "guard") -> RulePrecondition:
    """A precondition such as ``"k % 2 == 1"``.

    Raises:
        RuleError: the text is not a comparison of sizes.
    """
    parser = _Parser(text, where, forall)
    left = parser.dim()
    if parser.next.kind not in _RELATIONS:
        raise parser.wrong("a comparison (== != < <= > >=)")
    relation = parser.take().kind
    right = parser.dim()
    parser.end()
    return RulePrecondition(left, relation, right)


def parse_scheme(text: str, *, where: str = "forall") -> TypeScheme:
    """``f[..., m, k]``, ``i[s]<k``, ``int>=1``, ``ints[2]>=0`` or ``real>0``.

    Raises:
        RuleError: the text is not a type.
    """
    parser = _Parser(text, where)
    name = parser.expect("name", "a type: f[…], i[…], b[…], int, ints[…] or real")
    if name.text in CLASSES:
        scheme: TypeScheme = _tensor_scheme(parser, name.text)
    elif name.text in ("int", "real", "ints", "reals"):
        scheme = _attribute_scheme(parser, name.text)
    else:
        raise parser.error(name.column, f"{name.text} is not a type; write f[…], i[…], b[…], int, ints[…] or real")
    parser.end()
    return scheme


def _tensor_scheme(parser: _Parser, dtype: str) -> TensorVariableType:
    parser.expect("[")
    shape: list[Dim] = []
    lead = parser.accept("...") is not None
    if lead and parser.next.kind != "]":
        parser.expect(",", "',' or ']'")
    while not parser.accept("]"):
        if shape:
            parser.expect(",", "',' or ']'")
        shape.append(parser.dim())
    below = parser.dim() if dtype == "i" and parser.accept("<") else None
    return TensorVariableType(dtype, tuple(shape), lead, below)


def _attribute_scheme(parser: _Parser, kind: str) -> AttributeVariableType:
    length = None
    if kind.endswith("s"):
        parser.expect("[")
        number = parser.expect("int", "the number of elements")
        length = parser.whole(number)
        if length > _LENGTH:
            raise parser.error(number.column, f"{number.text} elements; a vector has at most {_LENGTH}")
        parser.expect("]")
    relation, bound = "", 0
    if parser.next.kind in (">=", ">", "!="):
        relation = parser.take().kind
        negative = parser.accept("-") is not None
        bound = parser.whole(parser.expect("int", "an integer")) * (-1 if negative else 1)
    return AttributeVariableType(kind.removesuffix("s"), length, relation, bound)


def parse_rule(row: Mapping[str, object], *, where: str = "rule", family: str = "") -> Rule:
    """A rule from the keys ``id?``, ``forall``, ``where?``, ``lhs``, ``rhs``, ``origin?`` of ``rules/README.md``.

    An absent id is the family and four digits of the digest of the canonical form.

    Raises:
        RuleError: a key is missing or unknown, a text does not parse, or a name is used without being declared.
    """
    unknown = set(row) - {"id", "forall", "where", "lhs", "rhs", "origin"}
    if unknown:
        raise RuleError(f"unknown key {sorted(unknown)[0]!r}", where=where, hint="keys: id forall where lhs rhs origin")
    declared = row.get("forall", {})
    if not isinstance(declared, Mapping) or not all(isinstance(v, str) for v in declared.values()):
        raise RuleError("forall must map variables to types, as strings", where=where)
    forall = {str(n): parse_scheme(str(s), where=f"{where}, forall.{n}") for n, s in declared.items()}
    terms = {side: _texts(row, side, where, required=True) for side in ("lhs", "rhs")}
    sides = {
        side: tuple(parse_term(t, forall, where=f"{where}, {side}[{i}]") for i, t in enumerate(texts))
        for side, texts in terms.items()
    }
    guards = _texts(row, "where", where, required=False)
    rule = Rule(
        id=_named(row.get("id", ""), where),
        forall=forall,
        where=tuple(parse_guard(g, forall, where=f"{where}, where[{i}]") for i, g in enumerate(guards)),
        lhs=sides["lhs"], rhs=sides["rhs"], origin=str(row.get("origin", "")), family=family,
    )  # fmt: skip
    _check_names(rule, where)
    rule = with_defaults(_without_unused(rule), where)
    _check_types(rule, where)
    if not rule.id:
        from superopt.rules.canonical import named

        return named(rule)
    return rule


def _named(given: object, where: str) -> str:
    """A rule's id, which also names files of what is known of it."""
    text = str(given)
    if not text.isprintable() or text != text.strip() or text.startswith(".") or {"/", "\\"} & set(text):
        raise RuleError(
            f"the id {printable(text)} cannot name a file", where=where,
            hint="without '/', '\\', a leading '.', and characters that do not print",
        )  # fmt: skip
    return text


def _texts(row: Mapping[str, object], key: str, where: str, *, required: bool) -> Sequence[str]:
    value = row.get(key, [])
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts) or (required and not texts):
        raise RuleError(f"{key} must be a list of strings", where=where)
    return texts


def _without_unused(rule: Rule) -> Rule:
    """The rule without tensors that are declared and never used, unless a size is known only from them.

    A context with one more variable is the same theorem; matching would have nothing to bind it to.
    """
    used = set(variables(*rule.lhs, *rule.rhs))
    kept_schemes = {n: s for n, s in rule.forall.items() if n not in rule.tensors or n in used}
    smaller = replace(rule, forall=kept_schemes)
    needed = term_symbols(rule.lhs) | term_symbols(rule.rhs) | {n for g in rule.where for n in g.names}
    return smaller if needed <= {*smaller.sizes, *smaller.attribute_atoms} else rule


def _check_names(rule: Rule, where: str) -> None:
    if len(rule.lhs) != len(rule.rhs):
        raise RuleError(f"{len(rule.lhs)} terms on the left, {len(rule.rhs)} on the right", where=where)
    known = {*rule.sizes, *rule.attribute_atoms}
    clash = sorted(set(rule.tensors) & known)
    if clash:
        raise RuleError(f"{clash[0]} is both a tensor and a size", where=where, hint="give one another name")
    used = term_symbols(rule.lhs) | term_symbols(rule.rhs) | {n for g in rule.where for n in g.names}
    unknown = sorted(used - known)
    if unknown:
        raise RuleError(
            f"{unknown[0]} is used, but neither a size of a tensor nor declared in forall",
            where=where, hint=f"known names: {', '.join(sorted(known | set(rule.tensors))) or 'none'}",
        )  # fmt: skip


def _check_types(rule: Rule, where: str) -> None:
    """Refuse element types other than the classes': over the reals a cast to float16 and back would do nothing."""
    for term in postorder(*rule.lhs, *rule.rhs):
        if isinstance(term, OperatorTerm) and term.op in REGISTRY:
            for name, value in term.attributes:
                if REGISTRY[term.op].attributes.get(name) == "dtype" and value not in CLASSES.values():
                    raise RuleError(
                        f"{term.op} has {name} {value!r}; element types in a rule are {', '.join(CLASSES.values())}, "
                        "and float32 stands for any type of floats: a rule is of reals, which another type rounds",
                        where=where,
                    )


# ---- printing ------------------------------------------------------------------------------------------------------
def format_dim(value: Dim) -> str:
    """A size as the grammar reads it: ``2*n + (h - k)//s``."""
    if isinstance(value, int):
        return str(value)
    parts: list[str] = []
    for monomial, coefficient in value.terms:
        factors = [_format_atom(a) for a in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = ("-" if coefficient < 0 else "") if not parts else (" - " if coefficient < 0 else " + ")
        parts.append(sign + "*".join(factors))
    return "".join(parts)


def _format_atom(atom: str | FloorQuotient) -> str:
    if isinstance(atom, str):
        return atom
    return f"({_format_factor(atom.numerator)}//{_format_factor(atom.denominator)})"


def _format_factor(value: Dim) -> str:
    name = (
        isinstance(value, SizePolynomial)
        and len(value.terms) == 1
        and len(value.terms[0][0]) == 1
        and value.terms[0][1] == 1
    )
    return format_dim(value) if name or (isinstance(value, int) and value >= 0) else f"({format_dim(value)})"


def format_scheme(scheme: TypeScheme) -> str:
    """A type as :func:`parse_scheme` reads it."""
    if isinstance(scheme, AttributeVariableType):
        name = scheme.kind if scheme.length is None else f"{scheme.kind}s[{scheme.length}]"
        return f"{name}{scheme.relation}{scheme.bound}" if scheme.relation else name
    sizes = ", ".join((["..."] if scheme.lead else []) + [format_dim(d) for d in scheme.shape])
    return f"{scheme.dtype}[{sizes}]" + ("" if scheme.below is None else f"<{format_dim(scheme.below)}")


def format_guard(guard: RulePrecondition) -> str:
    """A precondition as :func:`parse_guard` reads it."""
    return f"{format_dim(guard.left)} {guard.relation} {format_dim(guard.right)}"


def format_value(value: AttributeValue, vectors: Mapping[tuple[AttributeValue, ...], str]) -> str:
    """An attribute value; a tuple that is a whole vector variable is its name."""
    if isinstance(value, tuple):
        return vectors.get(value) or f"[{', '.join(format_value(v, vectors) for v in value)}]"
    if value == "...":
        return "..."
    return format_dim(value) if isinstance(value, int | SizePolynomial) else value_text(value)


def format_term(term: Term, forall: Mapping[str, TypeScheme] | None = None) -> str:
    """A term as :func:`parse_term` reads it with the same ``forall``; a constant of rank 0 is its number."""
    vectors: dict[tuple[AttributeValue, ...], str] = {
        tuple(sym(a) for a in attribute_symbols(n, s)): n
        for n, s in (forall or {}).items() if isinstance(s, AttributeVariableType) and s.length is not None
    }  # fmt: skip

    def number(app: OperatorTerm) -> str | None:
        value = scalar_value(app)
        return (
            None
            if value is None or (forall is None and isinstance(value, SizePolynomial))
            else format_value(value, vectors)
        )

    return term_text(with_required_attributes(term), lambda value: format_value(value, vectors), number)


def format_rule(rule: Rule) -> dict[str, object]:
    """The row that :func:`parse_rule` reads back as the same rule."""
    return {
        "id": rule.id,
        "forall": {n: format_scheme(s) for n, s in rule.forall.items()},
        "where": [format_guard(g) for g in rule.where],
        "lhs": [format_term(t, rule.forall) for t in rule.lhs],
        "rhs": [format_term(t, rule.forall) for t in rule.rhs],
        "origin": rule.origin,
    }
