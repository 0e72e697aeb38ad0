"""From an expression at given sizes to one at symbols: what need not be equal is not.

Every size of a leaf is a symbol of its own at first, and every attribute that an operator takes as a symbol is one.
Where an operator demands that sizes are equal, the equation is solved for one symbol: a kernel of ``u`` taps on what
is added to itself afterwards has ``u = p_0 + p_2 + 1``. What cannot be solved so is tried with attributes at the
value that does nothing. A lifted expression claims nothing: its types are checked anew by whoever uses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf

from superopt.discovery.data_movement_terms import along, cropped, has_steps, phase, short_of
from superopt.ir.size_polynomial import Dim, FloorQuotient, SizePolynomial, atoms, substitute, sym, symbols, value_at
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm, postorder, rebuilt
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import ContradictoryShapes, IllTypedOperator
from superopt.rules.canonical import map_terms
from superopt.rules.rule import CLASSES, AttributeVariableType, Rule, TensorVariableType, TypeScheme
from superopt.rules.scanner import RuleError
from superopt.rules.typing import complete, operator_of

__all__ = ["SynthesisProblem", "fresh_shape", "lifted", "orders", "with_equal_sizes", "with_symbols"]

_MOST_EQUATIONS = 40
_LETTERS: Mapping[tuple[bool, int], str] = {
    (False, 4): "bchw", (False, 3): "bmk", (False, 2): "mk", (False, 1): "k",
    (True, 4): "oluv", (True, 3): "lkn", (True, 2): "kn", (True, 1): "n",
}  # fmt: skip
_PLACING = ("Slice", "Resize", "SpaceToDepth", "DepthToSpace")  # of windows' places
_NAMED: Mapping[str, str] = {"strides": "s", "pads": "p", "dilations": "d", "group": "g", "epsilon": "e"}


@dataclass(frozen=True)
class SynthesisProblem:
    """An expression for which an equal, cheaper one is looked for.

    Attributes:
        forall: tensor and attribute variables, as of a rule.
        weights: tensor variables that are known before inference.
        term: over these variables.
    """

    forall: Mapping[str, TypeScheme]
    weights: frozenset[str]
    term: Term

    @property
    def rule(self) -> Rule:
        """The expression as both sides of a rule: its types and sizes are the rule's."""
        return Rule("", self.forall, (), (self.term,), (self.term,))

    @property
    def kinds(self) -> dict[str, TensorType]:
        """Types of the tensor variables."""
        return {n: TensorType(DType(CLASSES[s.dtype]), s.shape) for n, s in self.rule.tensors.items()}

    def bound(self, binding: Mapping[str, Dim]) -> SynthesisProblem:
        """The problem with names of sizes and attribute atoms replaced."""
        forall: dict[str, TypeScheme] = {
            n: replace(s, shape=tuple(substitute(d, binding) for d in s.shape))
            if isinstance(s, TensorVariableType)
            else s
            for n, s in self.forall.items()
        }
        (term,) = map_terms((self.term,), {}, binding)
        return replace(self, forall=forall, term=term)


def fresh_shape(sizes: Sequence[int | None], weight: bool, taken: set[str]) -> tuple[Dim, ...]:
    """A shape of symbols, named by what the axes usually are; a size that is known to be 1 stays 1."""
    letters = _LETTERS.get((weight, len(sizes)), "nmkhw")
    return tuple(
        1 if size == 1 else sym(fresh_name(letters[min(i, len(letters) - 1)], taken)) for i, size in enumerate(sizes)
    )


def fresh_name(base: str, taken: set[str]) -> str:
    """A name that was not there, which is then taken."""
    name = next(n for n in (base, *(f"{base}{i}" for i in range(1, 999))) if n not in taken)
    taken.add(name)
    return name


# ── attributes as symbols ─────────────────────────────────────────────────────────────────────────────────────────────


def with_symbols(
    term: OperatorTerm, kinds: Sequence[TensorType | None], taken: set[str], values: dict[str, float],
    stay: frozenset[str] = frozenset(),
) -> tuple[OperatorTerm, dict[str, TypeScheme]]:  # fmt: skip
    """An application with each attribute that its operator takes as a symbol made one.

    Args:
        term: with known attributes.
        kinds: of its operands.
        taken: names that are in use; new ones are added.
        values: of attribute atoms; new ones are added.
        stay: attributes that stay numbers.
    """
    schemes: dict[str, TypeScheme] = {}
    current = dict(term.attributes)
    kinds_of = operator_of(term).attributes
    for key, value in sorted(term.attributes, key=lambda a: kinds_of[a[0]] != "ints"):  # what flags are about first
        zero = tuple(0 for _ in value) if isinstance(value, tuple) else 0
        least = int(not _accepts(replace(term, attributes=tuple(sorted({**current, key: zero}.items()))), kinds))
        scheme = _scheme_of(kinds_of[key], value, least)
        if scheme is None or key in stay:
            continue
        names = set(taken)
        name = fresh_name(_NAMED.get(key, key[0]), names)
        atoms_of = [name] if scheme.length is None else [f"{name}_{i}" for i in range(scheme.length)]
        symbolic: AttributeValue = sym(name) if scheme.length is None else tuple(map(sym, atoms_of))
        if _accepts(replace(term, attributes=tuple(sorted({**current, key: symbolic}.items()))), kinds):
            current[key], schemes[name] = symbolic, scheme
            taken |= {name, *atoms_of}
            flat = value if isinstance(value, tuple) else (value,)
            values.update({a: v for a, v in zip(atoms_of, flat, strict=True) if isinstance(v, int | float)})
    return replace(term, attributes=tuple(sorted(current.items()))), schemes


def _scheme_of(kind: str, value: AttributeValue, least: int) -> AttributeVariableType | None:
    """The range of an attribute's symbol: from 0 or 1 on; ``None`` where it stays a number."""
    if kind == "float" and isinstance(value, float) and value > 0:
        return AttributeVariableType("real", None, ">", 0)
    if kind == "int" and isinstance(value, int) and value >= 1:
        return AttributeVariableType("int", None, ">=", 1)
    if kind == "ints" and isinstance(value, tuple) and value and all(isinstance(v, int) and v >= 0 for v in value):
        return AttributeVariableType("int", len(value), ">=", least)
    return None


def _accepts(term: OperatorTerm, kinds: Sequence[TensorType | None]) -> bool:
    try:
        operator_of(term).apply(kinds, complete(term))
    except (IllTypedOperator, ZeroDivisionError, TypeError):
        return False
    return True


# ── sizes that operators demand to be equal ───────────────────────────────────────────────────────────────────────────


def with_equal_sizes(problem: SynthesisProblem, values: dict[str, float] | None = None) -> SynthesisProblem | None:
    """The problem with sizes made equal wherever its operators demand it; ``None`` where that is not found.

    Args:
        problem: over sizes that are symbols of their own.
        values: what they are in the model that the expression is from, to which new symbols are added; without, any
            sizes will do.
    """
    for _ in range(_MOST_EQUATIONS):
        try:
            known = None if values is None else {n: int(v) for n, v in values.items() if float(v).is_integer()}
            equation = _equation(problem, known)
            if equation is None:
                return problem
            if isinstance(equation, int):
                return None
            binding = _solution(equation, problem, known)
        except (IllTypedOperator, RuleError, ZeroDivisionError, KeyError, TypeError):
            return None
        if binding is None:
            return None
        if values is not None and known is not None:
            _follow(values, known, binding)
        problem = problem.bound(binding)
    return None


def _follow(values: dict[str, float], known: Mapping[str, int], binding: Mapping[str, Dim]) -> None:
    """The value of a symbol that a size is now a multiple of."""
    for name, size in binding.items():
        for new in symbols(size) - values.keys():
            factor = value_at(substitute(size, {new: 1}), known)
            values[new] = float(known[name] // factor)


def _equation(problem: SynthesisProblem, values: Mapping[str, int] | None) -> Dim | None:
    """A equal_size that has to be 0 and is not identically; ``None`` where all operators are satisfied.

    Args:
        problem: over sizes that are symbols.
        values: what they are in the model that the expression is from, if it is from one.

    Raises:
        IllTypedOperator: an operator does not accept its operands, for another reason.
    """
    known_tensor_types: dict[Term, TensorType] = {VariableTerm(n): t for n, t in problem.kinds.items()}
    for term in postorder(problem.term):
        if not isinstance(term, OperatorTerm):
            continue
        kinds = [None if a is None else known_tensor_types[a] for a in term.args]
        if term.op == "Reshape" and values is not None and kinds[0] is not None:
            run = next(_regrouped(kinds[0].shape or (), dict(term.attributes)["shape"], values), None)
            if run is not None:
                return run
        if term.op == "Expand" and kinds[0] is not None:
            asked = dict(term.attributes)["shape"]
            wanted = asked if isinstance(asked, tuple) else ()
            wide = replace(kinds[0], shape=tuple(d for d in wanted if isinstance(d, int | SizePolynomial)))
            differing = _aligned([kinds[0], wide])
            equal_size = next((d for d in differing if _may_be_zero(d, values)), None)
            if equal_size is not None:
                return equal_size
        if term.op == "Slice" and kinds[0] is not None and has_steps(term):
            beyond = short_of(kinds[0].shape or (), dict(term.attributes))
            if beyond is not None:
                return beyond
        try:
            meaning, outputs = operator_of(term).apply(kinds, complete(term))
        except ContradictoryShapes:
            raise
        except IllTypedOperator:
            differing = _aligned([k for k in kinds if k is not None])
            equal_size = next((d for d in differing if _may_be_zero(d, values)), None)
            if equal_size is None:
                raise
            return equal_size
        for condition in meaning.obligations:
            if condition.kind == "eq":
                return condition.size
        known_tensor_types[term] = outputs[0]
    return None


def _may_be_zero(size: Dim, values: Mapping[str, int] | None) -> bool:
    """Whether a size is not known to be another than 0, where sizes are known."""
    return values is None or not symbols(size) <= values.keys() or value_at(size, values) == 0


def _aligned(kinds: Sequence[TensorType]) -> Iterator[Dim]:
    """Differences of sizes that broadcasting puts beside each other, the first axes first; a size of 1 fits any.

    The first axes come first because a product has others last, which are not beside each other.
    """
    first = kinds[0].shape or ()
    for other in kinds[1:]:
        for a, b in reversed(list(zip(reversed(first), reversed(other.shape or ()), strict=False))):
            if a != b and a != 1 and b != 1:
                yield a - b


def _regrouped(before: Sequence[Dim], after: AttributeValue, values: Mapping[str, int]) -> Iterator[Dim]:
    """Differences of what runs of axes hold before and after a reshape, the shortest runs that agree in the model.

    Sizes that are products stand for their factors; sizes of 1 hold nothing.
    """
    left = [f for d in before if d != 1 for f in _factors(d)]
    right = [f for d in (after if isinstance(after, tuple) else ()) if isinstance(d, int | SizePolynomial) and d != 1
             for f in _factors(d)]  # fmt: skip
    while left and right:
        mine, other = left.pop(0), right.pop(0)
        while (one := value_at(mine, values)) != (two := value_at(other, values)):
            shorter = left if one < two else right
            if not shorter:
                return
            if one < two:
                mine = mine * shorter.pop(0)
            else:
                other = other * shorter.pop(0)
        if mine != other:
            yield mine - other


def _factors(size: Dim) -> list[Dim]:
    """The symbols that a size is the product of; itself where it is no such product."""
    if isinstance(size, int) or len(size.terms) > 1 or size.terms[0][1] != 1:
        return [size]
    names = size.terms[0][0]
    return [sym(n) for n in names if isinstance(n, str)] if all(isinstance(n, str) for n in names) else [size]


def _solution(
    equation: SizePolynomial, problem: SynthesisProblem, values: Mapping[str, int] | None
) -> Mapping[str, Dim] | None:
    """A replacement of one symbol that makes an equation hold, or brings it nearer to that."""
    if values is not None and symbols(equation) <= values.keys() and value_at(equation, values) != 0:
        return None
    schemes = problem.rule.attribute_atoms
    simpler = _numerators(equation)
    if simpler is None:
        simpler = _cancelled(equation, {n for n, s in schemes.items() if s.relation == ">=" and s.bound == 0})
    if simpler is not None:
        return None if isinstance(simpler, int) else _solution(simpler, problem, values)
    divided = next((q for q in sorted(atoms(equation), key=str) if _divides(q)), None)
    if isinstance(divided, FloorQuotient):
        name = next(iter(symbols(divided.numerator)))
        if name not in schemes:
            return {name: divided.denominator * sym(fresh_name(name, {*problem.forall, *problem.rule.sizes, *schemes}))}
    multiple = _multiple(equation, problem)
    if multiple is not None:
        return multiple
    order = {name: n for n, name in enumerate(problem.rule.sizes)}
    free = sorted(symbols(equation) - schemes.keys())  # names that only a reshape has come first
    for name in sorted(free, key=lambda n: order.get(n, len(order)), reverse=True):
        solution = _linear(equation, name)
        if solution is not None:
            return {name: solution}
    for name in _entangled(equation):
        if name in schemes and (values is None or values.get(name) == schemes[name].bound):
            return {name: schemes[name].bound}
    for name in sorted(symbols(equation) & schemes.keys()):
        solution = _linear(equation, name)
        if solution is not None:
            return {name: solution}
    return None


def _multiple(equation: SizePolynomial, problem: SynthesisProblem) -> Mapping[str, Dim] | None:
    """Where an equation says that a size is a multiple of another: the leaf's size that makes it one."""
    taken = {*problem.forall, *problem.rule.sizes, *problem.rule.attribute_atoms}
    for monomial, coefficient in equation.terms:
        for quotient in (a for a in monomial if isinstance(a, FloorQuotient)):
            rest = list(monomial)
            rest.remove(quotient)
            factor = SizePolynomial.make({tuple(rest): abs(coefficient)})
            size = equation - SizePolynomial(((monomial, coefficient),))
            size = -size if coefficient > 0 else size
            if size // factor != SizePolynomial((((quotient,), 1),)):
                continue
            for name in (n for n in problem.rule.sizes if n in symbols(size) - symbols(factor)):
                solution = _undone(size - factor * sym(fresh_name(name, set(taken))), name)
                if solution is not None:
                    return {name: solution}
    return None


def _undone(equation: Dim, name: str) -> Dim | None:
    """What a name is where an equation holds in which it may stand in a size that is divided exactly."""
    while isinstance(equation, SizePolynomial) and (solution := _linear(equation, name)) is None:
        terms = [(m[0], c) for m, c in equation.terms if len(m) == 1 and isinstance(m[0], FloorQuotient)]
        inner = [(q, c) for q, c in terms if name in symbols(q.numerator) and abs(c) == 1]
        if len(inner) != 1 or not isinstance(inner[0][0].numerator, SizePolynomial):
            return None
        ((quotient, sign),) = inner
        rest = equation - sign * SizePolynomial((((quotient,), 1),))
        equation = quotient.numerator - quotient.denominator * (rest * -sign)
    return solution if isinstance(equation, SizePolynomial) else None


def _numerators(equation: SizePolynomial) -> Dim | None:
    """Where an equation says that two quotients by one divisor are equal: that their numerators are."""
    if len(equation.terms) != 2 or sorted(c for _, c in equation.terms) != [-1, 1]:
        return None
    parts = [m[0] for m, c in sorted(equation.terms, key=lambda t: -t[1]) if len(m) == 1]
    if len(parts) == 2:
        a, b = parts
        if isinstance(a, FloorQuotient) and isinstance(b, FloorQuotient) and a.denominator == b.denominator:
            return a.numerator - b.numerator
    return None


def _cancelled(equation: SizePolynomial, may_be_zero: Set[str]) -> Dim | None:
    """An equation divided by a name that is a factor of all of its terms; ``None`` where there is none."""
    common = set.intersection(*({a for a in m if isinstance(a, str)} for m, _ in equation.terms)) - may_be_zero
    return equation // sym(min(common)) if common else None


def _divides(atom: object) -> bool:
    """Whether an atom is a size over another: one that has to be a multiple."""
    if not isinstance(atom, FloorQuotient) or not isinstance(atom.numerator, SizePolynomial):
        return False
    (monomial, coefficient), *more = atom.numerator.terms
    return not more and coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], str)


def _entangled(equation: SizePolynomial) -> list[str]:
    """Names by which something is divided, then those that are multiplied with others: they stand in the way."""
    quotients = [a for a in sorted(atoms(equation), key=str) if isinstance(a, FloorQuotient)]
    divisors = [n for q in quotients for n in sorted(symbols(q.denominator))]
    sums = [equation, *(q.numerator for q in quotients if isinstance(q.numerator, SizePolynomial))]
    factors = [a for s in sums for m, _ in s.terms if len(m) > 1 for a in m if isinstance(a, str)]
    return list(dict.fromkeys((*divisors, *factors)))


def _linear(equation: SizePolynomial, name: str) -> Dim | None:
    """What a name is, where it occurs once, by itself, with a coefficient of one; not 0 or less for sure."""
    mine = [(m, c) for m, c in equation.terms if name in symbols(SizePolynomial(((m, 1),)))]
    if len(mine) != 1 or mine[0][0] != (name,) or abs(mine[0][1]) != 1:
        return None
    rest = equation - mine[0][1] * sym(name)
    solution = -rest if mine[0][1] == 1 else rest
    return None if isinstance(solution, int) and solution < 0 else solution


# ── an expression of a model ──────────────────────────────────────────────────────────────────────────────────────────


def lifted(
    term: Term, kinds: Mapping[str, TensorType], weights: frozenset[str], classes: Mapping[str, str]
) -> Iterator[tuple[SynthesisProblem, Mapping[str, float]]]:
    """The expression with symbols for sizes and attributes, the most general first, and what each symbol was.

    Where several windows are padded, there are also the forms in which one's padding is another's and so much more:
    what holds for windows inside each other does not hold for any. Where elements are only put in another order, or one
    operator works along some axes, there is also the form for one example: an axis of one element may be anywhere.

    Args:
        term: with known sizes and attributes.
        kinds: static types of its leaves.
        weights: which leaves are known before inference.
        classes: the class of :data:`superopt.rules.rule.CLASSES` of each leaf.
    """
    seen = set()
    apps = [t for t in postorder(term) if isinstance(t, OperatorTerm)]
    windowed = any("dilations" in dict(t.attributes) for t in apps) and any(t.op in _PLACING for t in apps)
    ordering = orders(term) or bool(along(term))
    for neutral, moving in ((False, False), (True, True), (True, False))[:: 1 if windowed else 2]:
        first = _lifted(term, kinds, weights, classes, neutral=neutral, moving=moving, batch=True)
        single = None
        if first is None or ordering:
            single = _lifted(term, kinds, weights, classes, neutral=neutral, moving=moving, batch=False)
        first = first or single
        for form in (first, None if first is None else _nested(*first), single):
            text = "" if form is None else f"{form[0].term} {sorted(map(str, form[0].kinds.values()))}"
            if form is not None and text not in seen:
                seen.add(text)
                yield form


def orders(term: Term) -> bool:
    """Whether an expression does nothing but put elements in order, or repeat them."""
    return all(operator_of(t).family == "shape" for t in postorder(term) if isinstance(t, OperatorTerm))


def _nested(
    problem: SynthesisProblem, values: Mapping[str, float]
) -> tuple[SynthesisProblem, Mapping[str, float]] | None:
    """The expression where paddings that are symbols are the next smaller one and a gap; ``None`` where none is."""
    given = [v for t in postorder(problem.term) if isinstance(t, OperatorTerm) for k, v in t.attributes if k == "pads"]
    pads = [
        tuple(d for d in p if isinstance(d, int | SizePolynomial)) for p in dict.fromkeys(given) if isinstance(p, tuple)
    ]
    if len(pads) < 2 or len({len(p) for p in pads}) > 1:
        return None
    taken, forall = {*problem.forall, *values}, dict(problem.forall)
    more, binding = dict(values), dict[str, Dim]()

    def size(padding: Sequence[Dim]) -> list[float]:
        return [float(d) if isinstance(d, int) else values.get(str(d), inf) for d in padding]

    ordered = sorted(pads, key=lambda p: (size(p), str(p)))
    for small, large in pairwise(ordered):
        gaps = [b - a for a, b in zip(size(small), size(large), strict=True)]
        if all(isinstance(d, SizePolynomial) and str(d) in values for d in large) and all(0 <= g < inf for g in gaps):
            name = fresh_name("e", taken)
            forall[name] = AttributeVariableType("int", len(gaps), ">=", 0)
            for n, (a, b) in enumerate(zip(small, large, strict=True)):
                binding[str(b)] = substitute(a, binding) + sym(f"{name}_{n}")
                more[f"{name}_{n}"] = gaps[n]
    return (replace(problem, forall=forall).bound(binding), more) if binding else None


def _lifted(
    term: Term, kinds: Mapping[str, TensorType], weights: frozenset[str], classes: Mapping[str, str], *,
    neutral: bool, moving: bool, batch: bool,
) -> tuple[SynthesisProblem, Mapping[str, float]] | None:  # fmt: skip
    """The expression over symbols; with ``neutral``, attributes that do nothing stay numbers.

    With ``moving``, padding does not, and a slice that ends as far away as an axis of data is long goes so far.

    With ``batch``, the first axis of data is of any size even where there is one example.
    """
    taken, values = set(kinds), dict[str, float]()
    forall: dict[str, TypeScheme] = {}
    for name, kind in kinds.items():
        sizes = [d if isinstance(d, int) else None for d in kind.shape or ()]
        one = batch and name not in weights and len(sizes) > 1 and sizes[0] == 1
        shape = fresh_shape([None, *sizes[1:]] if one else sizes, name in weights, taken)
        forall[name] = TensorVariableType(classes[name], shape)
        values.update({str(s): float(d) for s, d in zip(shape, sizes, strict=True) if s != 1 and d is not None})
    terms: dict[Term, Term] = {}
    types: dict[Term, TensorType] = {VariableTerm(n): t for n, t in kinds.items()}
    try:
        for part in postorder(term):
            terms[part] = part
            if isinstance(part, OperatorTerm):
                operands = [None if a is None else types[a] for a in part.args]
                types[part] = operator_of(part).apply(operands, complete(part))[1][0]
                stay = frozenset(
                    k for k, v in part.attributes if neutral and (k != "pads" or not moving) and _does_nothing(v)
                )
                if part.op == "Reshape":
                    terms[part] = _reshaping(part, operands, batch, taken, values)
                    continue
                if part.op == "Expand":
                    terms[part], schemes = _repeating(part, operands, taken, values)
                    forall |= schemes
                    continue
                if part.op == "Slice" and moving:
                    terms[part] = cropped(part, forall, kinds)
                if part.op == "Slice":
                    terms[part] = phase(part, operands, lambda: fresh_name("t", taken), values) or terms[part]
                if terms[part] is not part:
                    continue
                terms[part], schemes = with_symbols(part, operands, taken, values, stay)
                forall |= schemes
    except (IllTypedOperator, RuleError, ZeroDivisionError):
        return None
    new = {
        t: dict(m.attributes) for t, m in terms.items() if isinstance(t, OperatorTerm) and isinstance(m, OperatorTerm)
    }
    (whole,) = rebuilt((term,), lambda app, key, _: new[app][key])
    problem = with_equal_sizes(SynthesisProblem(forall, weights, whole), values)
    return None if problem is None or not _determined(problem) else (problem, values)


def _determined(problem: SynthesisProblem) -> bool:
    """Whether all sizes of a problem follow from its leaves' shapes and its attributes."""
    known = {*problem.rule.sizes, *problem.rule.attribute_atoms}
    for term in postorder(problem.term):
        for _, value in term.attributes if isinstance(term, OperatorTerm) else ():
            parts = value if isinstance(value, tuple) else (value,)
            if any(symbols(p) - known for p in parts if isinstance(p, SizePolynomial)):
                return False
    return True


def _reshaping(
    app: OperatorTerm, operands: Sequence[TensorType | None], batch: bool, taken: set[str], values: dict[str, float]
) -> OperatorTerm:
    """A reshape to sizes that are symbols of their own; sizes of 1 stay, but for a first one that stays in front."""
    given = dict(app.attributes)["shape"]
    before = (None if operands[0] is None else operands[0].shape) or ()
    shape: list[Dim] = []
    for axis, size in enumerate(given if isinstance(given, tuple) else ()):
        assert isinstance(size, int)
        one = size == 1 and not (batch and axis == 0 and before[:1] == (1,))
        shape.append(1 if one else sym(fresh_name("t", taken)))  # "i" and "r" are names of meanings' variables
        if not one:
            values[str(shape[-1])] = float(size)
    return OperatorTerm("Reshape", app.args, (("shape", tuple(shape)),))


def _repeating(
    app: OperatorTerm, operands: Sequence[TensorType | None], taken: set[str], values: dict[str, float]
) -> tuple[OperatorTerm, dict[str, TypeScheme]]:  # fmt: skip
    """An Expand to sizes that are symbols of their own where it repeats nothing, and whole numbers where it does."""
    given = dict(app.attributes)["shape"]
    wanted = given if isinstance(given, tuple) else ()
    before = (None if operands[0] is None else operands[0].shape) or ()
    before = (*(1 for _ in range(len(wanted) - len(before))), *before)
    shape: list[Dim] = []
    schemes: dict[str, TypeScheme] = {}
    for own, size in zip(before, wanted, strict=True):
        assert isinstance(size, int)
        shape.append(1 if size == 1 else sym(fresh_name("t", taken)))
        if size != 1:
            values[str(shape[-1])] = float(size)
            if own == 1:
                schemes[str(shape[-1])] = AttributeVariableType("int", None, ">=", 1)
    return OperatorTerm("Expand", app.args, (("shape", tuple(shape)),)), schemes


def _does_nothing(value: AttributeValue) -> bool:
    """Strides, dilations and groups of 1, padding of 0."""
    parts = value if isinstance(value, tuple) else (value,)
    return all(isinstance(p, int) and p == parts[0] for p in parts) and parts[:1] in ((0,), (1,))
