"""Left sides from a list of operators: every way to apply so many of them to one tensor of data, with fresh weights.

Which operands an operator takes, of which rank, and which attributes, is read off its record and its meaning: one
has the smallest rank at which the result has the data's, its sizes are symbols of their own until the operator demands
otherwise, and an attribute is a symbol, does nothing, or is what the same operator has elsewhere in the expression;
axes are moved in every way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice, permutations, product

from superopt.discovery.config import WEIGHTS
from superopt.discovery.symbolic_generalisation import SynthesisProblem, fresh_shape, with_equal_sizes, with_symbols
from superopt.ir.terms import AttributeValue, OperatorTerm, Term, VariableTerm, postorder, variables
from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.onnx_notation import with_defaults, with_required_attributes
from superopt.rules.rule import Rule, TensorVariableType, TypeScheme
from superopt.rules.scanner import RuleError
from superopt.rules.typing import operator_of, type_terms

__all__ = ["DATA", "left_sides"]

DATA = "x"
_MODES = ("symbols", "neutral", "point")  # attributes as symbols; doing nothing; and with windows of one element
Attributes = tuple[tuple[str, AttributeValue], ...]


@dataclass(frozen=True)
class _State:
    """A straight-line program: data terms made so far, over leaves whose sizes need not fit yet."""

    forall: dict[str, TypeScheme]
    weights: tuple[str, ...]
    terms: tuple[Term, ...]

    @property
    def operators(self) -> set[str]:
        """That are applied."""
        return {t.op for t in postorder(*self.terms) if isinstance(t, OperatorTerm)}

    @property
    def rank(self) -> int | None:
        """Of the last term; ``None`` where no sizes fit."""
        problem = self.problem(self.terms[-1])
        return None if problem is None else len(_kind(problem).shape or ())

    def problem(self, term: Term) -> SynthesisProblem | None:
        """One of the terms, with sizes made to fit."""
        used = set(variables(term))
        forall = {n: s for n, s in self.forall.items() if n in used or not isinstance(s, TensorVariableType)}
        return with_equal_sizes(SynthesisProblem(forall, frozenset(self.weights) & used, term))


def _kind(problem: SynthesisProblem) -> TensorType:
    return type_terms([problem.term], problem.kinds)[0][problem.term][0]


def left_sides(
    operators: Sequence[str],
    most: int,
    ranks: Sequence[int] = (4, 2),
    *,
    broadcast: bool = True,
    biased: bool = False,
    single: bool = False,
    repeated: bool = True,
) -> Iterator[SynthesisProblem]:
    """Expressions of up to so many of the operators over data ``x``, small ones first; none with a dead part.

    Args:
        operators: names.
        most: operators in an expression.
        ranks: of the data: an image, a matrix.
        broadcast: whether weights of elementwise operators have other shapes than none at all.
        biased: whether an operator also has the first of the operands that it may lack.
        single: whether the data are one example, an axis of one element in front.
        repeated: whether an expression may have an operator more than once.
    """
    seen: set[str] = set()
    for rank in ranks:
        shape = fresh_shape([1 if single and axis == 0 else None for axis in range(rank)], False, set())
        states = [_State({DATA: TensorVariableType("f", shape)}, (), (VariableTerm(DATA),))]
        for _ in range(most):
            states = [
                after
                for state in states
                for op in operators
                if repeated or op not in state.operators
                for after in _extended(state, op, broadcast, biased)
            ]
            fresh = {f"{s.terms} {s.forall}": s for s in reversed(states)}
            states = list(fresh.values())
            for state in states:
                yield from _whole(state, seen)


def _whole(state: _State, seen: set[str]) -> Iterator[SynthesisProblem]:
    """The last term of a state, where all the others are parts of it."""
    last = state.terms[-1]
    if not set(state.terms) <= set(postorder(last)):
        return
    problem = state.problem(last)
    text = "" if problem is None else f"{problem.term} {sorted(map(str, problem.kinds.values()))}"
    if problem is not None and text not in seen:
        seen.add(text)
        yield problem


def _extended(state: _State, op: str, broadcast: bool, biased: bool) -> Iterator[_State]:
    """The state after one more application."""
    record = REGISTRY[op]
    count = sum(not i.endswith(("?", "*")) for i in record.inputs)
    if count == 2 and record.family == "elementwise":
        pairs = combinations_with_replacement(state.terms, 2) if record.commutative else product(state.terms, repeat=2)
        for pair in pairs:
            yield from _applied(state, OperatorTerm(op, pair))
    for operand in state.terms if count else ():
        problem = state.problem(operand)
        if problem is None:
            continue
        kind = _kind(problem)
        if "perm" in record.attributes:
            for perm in islice(permutations(range(len(kind.shape or ()))), 1, None):  # the first moves nothing
                yield from _applied(state, OperatorTerm(op, (operand,), (("perm", perm),)), kind=kind)
            continue
        if count == len(record.inputs) == 1 and "axis" in record.attributes:
            for axis in range(len(kind.shape or ())):
                yield from _applied(state, OperatorTerm(op, (operand,), (("axis", axis),)), kind=kind)
            continue
        windows = "ints" in record.attributes.values()
        free = [n for n in WEIGHTS if n not in state.weights]
        optional = biased and record.inputs[count:][:1] != () and record.inputs[count].endswith("?")
        for names in (free[: count - 1], free[:count]) if optional else (free[: count - 1],):
            app = OperatorTerm(op, (operand, *map(VariableTerm, names)))
            for mode in _MODES if windows else _MODES[:1]:
                for sizes in _ranks(record, kind, broadcast, len(names)):
                    new_states = _with_weights(state, app, names, sizes, kind, mode)
                    states = [s for s in new_states if s.rank == len(kind.shape or ())]
                    yield from states
                    if states and record.family != "elementwise":
                        break


def _ranks(record: Operator, kind: TensorType, broadcast: bool, weights: int) -> Iterator[list[list[int | None]]]:
    """Sizes of the weights of one application, unknown or 1; one that it may lack has a rank of its own."""
    count = sum(not i.endswith(("?", "*")) for i in record.inputs) - 1
    rank = len(kind.shape or ())
    if record.family != "elementwise" or not weights:
        for each in range(1, rank + 1) if count else ():
            needed: list[list[int | None]] = [[None for _ in range(each)] for _ in range(count)]
            for other in range(1, rank + 1) if weights > count else (0,):
                yield needed + [[None] * other] * (weights - count)
        if not weights:
            yield []
        return
    yield [[] for _ in range(count)]
    for axis in range(rank if broadcast else 0):
        yield [[None, *[1] * (rank - 1 - axis)]] * count


def _with_weights(
    state: _State,
    app: OperatorTerm,
    names: Sequence[str],
    sizes: Sequence[Sequence[int | None]],
    kind: TensorType,
    mode: str,
) -> Iterator[_State]:
    frame = Rule("", state.forall, (), (), ())
    taken = {*state.forall, *frame.sizes, *frame.attribute_atoms}
    forall = dict(state.forall)
    for name, some in zip(names, sizes, strict=True):
        ones = [1 if mode == "point" and axis > 1 else size for axis, size in enumerate(some)]
        forall[name] = TensorVariableType("f", fresh_shape(ones, True, taken))
    if mode == "point" and not any(len(s) > 2 for s in sizes):
        return
    yield from _applied(_State(forall, (*state.weights, *names), state.terms), app, mode, taken, kind)


def _applied(
    state: _State,
    app: OperatorTerm,
    mode: str = "neutral",
    taken: set[str] | None = None,
    kind: TensorType | None = None,
) -> Iterator[_State]:
    """The state with an application whose attributes are filled in, if there are sizes at which it is well-formed."""
    whole = _complete(state, app, kind)
    if whole is None:
        return
    schemes: dict[str, TypeScheme] = {}
    if mode == "symbols" and taken is not None and kind is not None:
        before = next(
            (t for m in state.terms for t in postorder(m) if isinstance(t, OperatorTerm) and t.op == app.op), None
        )
        if before is not None:
            whole = OperatorTerm(app.op, app.args, before.attributes)
        else:
            kinds = [kind, *(TensorType(DType.FLOAT32, s.shape) for a in app.args[1:] if isinstance(a, VariableTerm)
                             and isinstance(s := state.forall[a.name], TensorVariableType))]  # fmt: skip
            whole, schemes = with_symbols(whole, kinds, taken, {})
    new_state = _State({**state.forall, **schemes}, state.weights, (*state.terms, whole))
    if new_state.problem(whole) is not None:
        yield new_state


def _complete(state: _State, app: OperatorTerm, kind: TensorType | None) -> OperatorTerm | None:
    """The application with each attribute that it lacks and has a default for, and windows of two where it has none."""
    record = operator_of(app)
    if not record.attributes or kind is None:
        return app if not record.attributes else None
    rank = len(kind.shape or ())
    forall: dict[str, TypeScheme] = {**state.forall, "data": TensorVariableType("f", kind.shape or ())}
    given: Attributes = app.attributes
    if "kernel_shape" in record.attributes:
        given = (("kernel_shape", (2,) * (rank - 2)), *given)
    if "blocksize" in record.attributes:
        given = (("blocksize", 2), *given)
    if "count_include_pad" in record.attributes:
        given = (("count_include_pad", 1), *given)
    if "axis" in record.attributes and "axis" not in dict(given):
        given = (*given, ("axis", rank - 1))
    operands = (VariableTerm("data"), *app.args[1:])
    try:
        side = with_required_attributes(OperatorTerm(app.op, operands, tuple(sorted(given))))
        whole = with_defaults(Rule("", forall, (), (side,), (VariableTerm("data"),)), app.op)
    except (RuleError, IllTypedOperator):
        return None
    term = whole.lhs[0]
    complete = isinstance(term, OperatorTerm) and {k for k, _ in term.attributes} == set(record.attributes)
    return OperatorTerm(app.op, app.args, term.attributes) if complete and isinstance(term, OperatorTerm) else None
