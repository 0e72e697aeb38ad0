"""A theme without a vocabulary: left sides from a list of operators, right sides solved for.

A left side that is an instance of one that was solved for, at sizes and attributes of its own, is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from superopt.discovery.candidate_proofs import CandidateOutcomes, CandidateProver
from superopt.discovery.candidates import operator_count, restricted, sized_by_data
from superopt.discovery.config import WEIGHTS, DiscoveryConfig, OperatorVocabulary
from superopt.discovery.enumerate import EnumerationCounts
from superopt.discovery.expected_rule_gains import priced, recorded
from superopt.discovery.leftsides import DATA, left_sides
from superopt.discovery.result_cache import DiscoveryResultCache, ResourceBounds
from superopt.discovery.right_side_solver import Cost, RightSideSolver, theme_of
from superopt.discovery.symbolic_generalisation import SynthesisProblem, with_equal_sizes
from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute, symbols
from superopt.ir.terms import AttributeValue, OperatorTerm, OutputTerm, Term, VariableTerm, postorder, variables
from superopt.ir.types import TensorType
from superopt.rules.rule import Rule, attribute_symbols
from superopt.rules.typing import operator_of, type_terms

__all__ = ["SOLVED", "SolvedRightSides", "data_beside_weights", "facing", "is_instance", "solve_all", "solve_one"]

SOLVED = "solved"  # origin of a rule whose right side's weights were solved for


@dataclass
class SolvedRightSides:
    """What a theme gave.

    Attributes:
        rules: proved, in the order in which they were found.
        levels: by operators of the left side: how many there were up to it, and for how many a right side was solved.
        candidates: right sides that were solved for; ``derived`` of them by rules kept before.
        tally: what the verifier said.
        unusable: rules that are proved, and that nobody can use.
        without: skeletons that no weights make equal, and those whose weights no expression was found for.
    """

    rules: list[Rule] = field(default_factory=list)
    levels: list[EnumerationCounts] = field(default_factory=list)
    candidates: int = 0
    derived: int = 0
    tally: CandidateOutcomes = field(default_factory=CandidateOutcomes)
    unusable: int = 0
    without: tuple[int, int] = (0, 0)


def facing(rule: Rule, candidate: Rule, theme: OperatorVocabulary) -> Rule:
    """A rule that a candidate led to, with the candidate's left side on the left."""
    wanted = _running(candidate.lhs, theme)
    turned = _running(rule.lhs, theme) != wanted and _running(rule.rhs, theme) == wanted and rule.backward
    return replace(rule, lhs=rule.rhs, rhs=rule.lhs) if turned else rule


def data_beside_weights(rule: Rule, weights: Collection[str] = WEIGHTS) -> frozenset[str]:
    """Tensors of a rule that was solved for which are no weights, nor split off from one (``wa1`` from ``wa``)."""
    return frozenset(n for n in rule.tensors if n not in weights and n.rstrip("0123456789") not in weights)


def _light(weights: Collection[str], rule: Rule) -> bool:
    """Whether no weight of a rule's right side is as large as an image."""
    return not sized_by_data(rule, data_beside_weights(rule, weights))


def _applied(roots: Sequence[Term], theme: OperatorVocabulary) -> Iterator[OperatorTerm]:
    """Operators that are applied to data."""
    every = (t for t in postorder(*roots) if isinstance(t, OperatorTerm))
    return (t for t in every if not all(theme.is_weight(n) for n in variables(t)))


def _running(roots: Sequence[Term], theme: OperatorVocabulary) -> set[str]:
    return {t.op for t in _applied(roots, theme)}


def _applications(roots: Sequence[Term], theme: OperatorVocabulary) -> frozenset[tuple[str, str]]:
    """How operators are applied to data, whatever the weights are."""
    return frozenset((t.op, str(t.attributes)) for t in _applied(roots, theme))


def solve_one(
    solver: RightSideSolver,
    config: DiscoveryConfig,
    chunks: DiscoveryResultCache,
    name: str,
    follows: Callable[[Rule], bool],
    found: SolvedRightSides,
    usable: Callable[[Rule], bool] = lambda _: True,
    signals: bool = False,
) -> bool:
    """The cheapest equal of one problem that is proved and usable, added to ``found``; whether any candidate came up.

    Where the solver looks for alternatives it is the cheapest in each way to apply operators to data.

    Args:
        solver: with the problem.
        config: seed and effort.
        chunks: where verdicts are kept.
        name: of the family.
        follows: whether a candidate is derived by what is known.
        found: so far.
        usable: whether a proved rule is of use.
        signals: whether what is found about images is proposed with one spatial axis as well.

    Raises:
        ResourceBoundsExceeded: the solver's time or memory is used up; what is in ``found`` is proved.
    """
    problem = solver.problem
    batch = max(len(t.shape or ()) for t in problem.kinds.values()) < 4
    theme = theme_of(problem, name, batch=batch, signals=signals)
    prover = CandidateProver(config, theme, chunks, solver.bounds)
    prover.tally = found.tally
    some = False
    ways: list[frozenset[tuple[str, str]]] = []
    for candidate in solver.solutions():
        way = _applications(candidate.rhs, theme)
        if any(way >= known for known in ways):
            continue  # it does more than one that was found
        some = True
        found.candidates += 1
        answered = follows(candidate)
        if answered:
            found.derived += 1
        else:
            proved = [replace(facing(r, candidate, theme), origin=SOLVED, family=name) for r in prover.rules(candidate)]
            borne = [r for r in proved if usable(r)]
            found.unusable += len(proved) - len(borne)
            found.rules += [replace(r, id=f"{name}-{len(found.rules) + n}") for n, r in enumerate(borne)]
            answered = bool(borne)
        if answered:
            ways.append(way)
            if not solver.alternatives:
                break
    insoluble, unnamed = found.without
    found.without = insoluble + len(solver.insoluble), unnamed + len(solver.unnamed)
    return some


def solve_all(
    theme: OperatorVocabulary,
    config: DiscoveryConfig,
    chunks: DiscoveryResultCache,
    say: Callable[[str], None],
    bounds: ResourceBounds,
    follows: Callable[[Rule, Sequence[Rule]], bool],
) -> SolvedRightSides:
    """Every left side of a theme, small ones first, but those with an instance of one for which an equal was found.

    Equals whose weights are as large as an image is are none: they take long to fold and leave as much to run.

    Args:
        theme: one with ``solve``.
        config: seed and effort.
        chunks: where verdicts are kept.
        say: told what is found.
        bounds: of time and memory.
        follows: whether rules derive a candidate.

    Raises:
        ResourceBoundsExceeded: time or memory is used up.
    """
    solution = SolvedRightSides()
    by_size: Counter[int] = Counter()
    solved: Counter[int] = Counter()
    known_problems: list[SynthesisProblem] = []
    seen: set[str] = set()
    sides = left_sides(
        theme.solve, theme.operators, theme.data, broadcast=theme.broadcast, biased=theme.biased, single=theme.single,
        repeated=theme.repeated,
    )  # fmt: skip
    cost = _by_profile(theme.profile) if theme.profile else None
    for given_problem in sides:
        used = {t.op for t in postorder(given_problem.term) if isinstance(t, OperatorTerm)}
        if theme.about and theme.about.isdisjoint(used):
            continue
        if theme.branches and (not used.issuperset(theme.solve) or not _branches(given_problem)):
            continue
        answered: list[SynthesisProblem] = []
        for number, problem in enumerate((given_problem, *_narrower(given_problem))):
            bounds.check()
            text = f"{problem.term} {sorted(map(str, problem.kinds.values()))}"
            if text in seen or any(is_instance(problem, k) for k in known_problems):
                continue  # what is equal to a part of it says the same
            seen.add(text)
            size = operator_count(problem.term)
            by_size[size] += 1
            before, derived = len(solution.rules), solution.derived
            solver = RightSideSolver(
                _named(problem),
                cost,
                most=theme.slack,
                seed=config.seed,
                bounds=bounds,
                alternatives=theme.alternatives,
                simplifies=theme.simplifies,
            )
            some = solve_one(
                solver, config, chunks, theme.family, lambda r: follows(r, solution.rules), solution,
                partial(_light, problem.weights), theme.signals,
            )  # fmt: skip
            if some:
                solved[size] += 1
                answered.append(solver.problem)
            for rule in solution.rules[before:]:
                say(f"{theme.name}: {rule.lhs[0]} = {rule.rhs[0]}")
            if number == 0 and (len(solution.rules) > before or solution.derived > derived):
                break  # an equal that was not proved may have one that is where an attribute does nothing
        known_problems += answered
    for size in sorted(by_size):
        upto = [s for s in by_size if s <= size]
        solution.levels.append(EnumerationCounts(size, sum(by_size[s] for s in upto), sum(by_size[s] for s in upto),
                                  sum(solved[s] for s in upto)))  # fmt: skip
    return solution


def _by_profile(name: str) -> Cost:
    """Microseconds of a rule's two sides at nominal sizes, by a recorded profile."""
    model = recorded(name)

    def cost(rule: Rule) -> tuple[float, float] | None:
        found = priced(rule, frozenset(n for n in rule.tensors if n in WEIGHTS or n.startswith("?")), model)
        return None if found is None else found[:2]

    return cost


def _branches(problem: SynthesisProblem) -> bool:
    """Whether two operators read the data, each once."""
    read = [t.args.count(VariableTerm(DATA)) for t in postorder(problem.term) if isinstance(t, OperatorTerm)]
    return sum(read) > 1 and max(read) == 1


def _narrower(problem: SynthesisProblem) -> Iterator[SynthesisProblem]:
    """The problem with one of its attributes at the value that does nothing: what groups have no equal for, one has."""
    for name, scheme in problem.rule.attributes.items():
        if scheme.kind == "int":
            value = scheme.bound if scheme.relation == ">=" else 0
            bound = problem.bound(dict.fromkeys(attribute_symbols(name, scheme), value))
            new_problem = with_equal_sizes(replace(bound, forall={n: s for n, s in bound.forall.items() if n != name}))
            if new_problem is not None:
                yield new_problem


def _named(problem: SynthesisProblem) -> SynthesisProblem:
    """The problem without attribute variables that nothing mentions any more."""
    return replace(problem, forall=restricted(problem.rule).forall)


Binding = dict[str, Term | Dim]  # leaves to terms, names of sizes and attributes to sizes


def is_instance(problem: SynthesisProblem, general: SynthesisProblem) -> bool:
    """Whether a part of a problem is the general one's term, for some terms as its data and weights as its weights.

    The whole problem counts if an equal of the general one leaves its data as they are, for there are weights to work
    on, or if they are leaves: ``Conv(x, k) + Conv(x, k)`` is ``y + y`` for a ``y`` that an equal may open.

    Args:
        problem: the expression that is looked at.
        general: one of which an equal is known.
    """
    types = type_terms([problem.term], problem.kinds)[0]
    return any(
        (part != problem.term or general.weights or _leaves(binding)) and _typed(general, binding, types)
        for part in postorder(problem.term)
        for binding in _matches(general.term, part, {}, general, problem.weights)
    )


def _leaves(binding: Binding) -> bool:
    return all(isinstance(bound, VariableTerm | int | SizePolynomial) for bound in binding.values())


def _matches(
    pattern: Term, term: Term, binding: Binding, general: SynthesisProblem, weights: frozenset[str]
) -> Iterator[Binding]:
    """Ways to read a term as a pattern, with operands of commutative operators in either order."""
    if isinstance(pattern, VariableTerm):
        bound = binding.get(pattern.name)
        constant = set(variables(term)) <= weights
        if (bound is None and (constant or pattern.name not in general.weights)) or bound == term:
            yield {**binding, pattern.name: term}
    elif isinstance(pattern, OutputTerm):
        if isinstance(term, OutputTerm) and term.index == pattern.index:
            yield from _matches(pattern.term, term.term, binding, general, weights)
    elif isinstance(term, OperatorTerm) and term.op == pattern.op and len(term.args) == len(pattern.args):
        attributes = _attributes(pattern, term, binding)
        if attributes is None:
            return
        orders = [term.args, term.args[::-1]] if operator_of(term).commutative else [term.args]
        for order in orders:
            some = [attributes]
            for mine, theirs in zip(pattern.args, order, strict=True):
                if mine is None or theirs is None:
                    some = some if mine is theirs else []
                else:
                    some = [more for b in some for more in _matches(mine, theirs, b, general, weights)]
            yield from some


def _attributes(pattern: OperatorTerm, term: OperatorTerm, binding: Binding) -> Binding | None:
    given = dict(term.attributes)
    if {k for k, _ in pattern.attributes} != set(given):
        return None
    found: Binding | None = binding
    for key, value in pattern.attributes:
        found = None if found is None else _value(value, given[key], found)
    return found


def _value(value: AttributeValue, given: AttributeValue, binding: Binding) -> Binding | None:
    if isinstance(value, tuple) and isinstance(given, tuple):
        found: Binding | None = binding if len(value) == len(given) else None
        for mine, theirs in zip(value, given, strict=False):
            found = None if found is None else _value(mine, theirs, found)
        return found
    name = _name(value)
    if name is not None and isinstance(given, int | SizePolynomial):
        return {**binding, name: given} if binding.get(name, given) == given else None
    return binding if value == given else None


def _name(value: object) -> str | None:
    """The name that a size is, by itself."""
    if isinstance(value, SizePolynomial) and len(value.terms) == 1:
        ((monomial, coefficient),) = value.terms
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], str):
            return monomial[0]
    return None


def _typed(general: SynthesisProblem, binding: Binding, types: Mapping[Term, tuple[TensorType, ...]]) -> bool:
    """Whether the terms that leaves are bound to have the leaves' types, for some sizes."""
    sizes: dict[str, Dim] = {n: v for n, v in binding.items() if isinstance(v, int | SizePolynomial)}
    wanted: list[tuple[Dim, Dim]] = []
    for name, kind in general.kinds.items():
        term = binding.get(name)
        if term is None or isinstance(term, int | SizePolynomial):
            continue
        have = types[term][0]
        if have.dtype != kind.dtype or len(have.shape or ()) != len(kind.shape or ()):
            return False
        wanted += zip(kind.shape or (), have.shape or (), strict=True)
    for size, given_size in sorted(wanted, key=lambda pair: _name(pair[0]) is None):
        left = substitute(size, sizes)
        free = sorted(symbols(left))
        if not free:
            if left != given_size:
                return False
            continue
        zero, one = (substitute(left, {free[0]: n}) for n in (0, 1))
        slope = one - zero
        if slope == 0:
            return False
        sizes[free[0]] = (given_size - zero) // slope
        if substitute(left, sizes) != given_size:
            return False
    return True
