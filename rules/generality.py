"""Rules that say nothing new: instances of another rule, with other names, other sides first, or sizes filled in.

To find that a rule is an instance is to match one pair of terms against another, as in subsumption of clauses. What is
found is sound to leave out: the general rule applies wherever the instance does, and makes the same there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from superopt.ir.poly import Dim, Poly, substitute, sym, symbols
from superopt.ir.terms import App, AttributeValue, Project, Term, Var, postorder
from superopt.rules.rule import Guard, Rule, TensorScheme
from superopt.rules.solve import solve

__all__ = ["independent", "is_instance"]

Pair = tuple[Dim, Dim]


def independent(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules without those that are instances of an earlier one, in the same order."""
    kept: dict[tuple[str, ...], list[Rule]] = defaultdict(list)
    found = []
    for rule in rules:
        alike = kept[_skeleton(rule)]
        if not any(is_instance(rule, general) for general in alike):
            alike.append(rule)
            found.append(rule)
    return tuple(found)


def is_instance(rule: Rule, general: Rule) -> bool:
    """Whether the general rule says all that the rule says, and can be used in the directions in which that can.

    A ``False`` may be wrong (guards are compared as they are written), a ``True`` is not.
    """
    usable = (general.forward or not rule.forward) and (general.backward or not rule.backward)
    mirrored = (general.forward or not rule.backward) and (general.backward or not rule.forward)
    return (usable and _covers(general, rule, rule.lhs, rule.rhs)) or (
        mirrored and _covers(general, rule, rule.rhs, rule.lhs)
    )


def _skeleton(rule: Rule) -> tuple[str, ...]:
    """Operators and how they are put together, whichever side comes first; equal for a rule and its instances."""
    return tuple(sorted(",".join(_shape(t) for t in side) for side in (rule.lhs, rule.rhs)))


def _shape(root: Term) -> str:
    made: dict[Term, str] = {}
    for term in postorder(root):
        if isinstance(term, App):
            made[term] = f"{term.op}({','.join('-' if a is None else made[a] for a in term.args)})"
        else:
            made[term] = f"{made[term.term]}[{term.index}]" if isinstance(term, Project) else "x"
    return made[root]


def _covers(general: Rule, rule: Rule, lhs: Sequence[Term], rhs: Sequence[Term]) -> bool:
    variables: dict[str, str] = {}
    pairs = _pairs((*general.lhs, *general.rhs), (*lhs, *rhs), variables)
    if pairs is None or len(general.lhs) != len(lhs):
        return False
    for ours, theirs in variables.items():
        pairs += _sizes(general.tensors[ours], rule.tensors[theirs]) or [(0, 1)]
    sizes = _bound(pairs)
    return sizes is not None and _allowed(general, rule, sizes) and _implied(general, rule, sizes)


def _pairs(ours: Sequence[Term], theirs: Sequence[Term], variables: dict[str, str]) -> list[Pair] | None:
    """Numbers in the terms that must be equal; variables are matched on the way. ``None`` where the terms differ."""
    if len(ours) != len(theirs):
        return None
    found: list[Pair] = []
    stack = list(zip(ours, theirs, strict=True))
    while stack:
        a, b = stack.pop()
        if isinstance(a, Var) and isinstance(b, Var):
            if variables.setdefault(a.name, b.name) != b.name:
                return None
        elif isinstance(a, Project) and isinstance(b, Project) and a.index == b.index:
            stack.append((a.term, b.term))
        elif isinstance(a, App) and isinstance(b, App) and a.op == b.op and len(a.args) == len(b.args):
            for x, y in zip(a.args, b.args, strict=True):
                if (x is None) != (y is None):
                    return None
                if x is not None and y is not None:
                    stack.append((x, y))
            mine, other = dict(a.attributes), dict(b.attributes)
            if mine.keys() != other.keys() or not all(_equated(mine[k], other[k], found) for k in mine):
                return None
        else:
            return None
    return found


def _equated(a: AttributeValue, b: AttributeValue, found: list[Pair]) -> bool:
    """Whether two attributes can be equal; what that asks of numbers is added to ``found``."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_equated(x, y, found) for x, y in zip(a, b, strict=True))
    if isinstance(a, int | Poly) and isinstance(b, int | Poly):
        found.append((a, b))
        return True
    return type(a) is type(b) and a == b


def _sizes(ours: TensorScheme, theirs: TensorScheme) -> list[Pair]:
    """Sizes that must be equal for one variable to stand for another; nothing where it cannot (or has no sizes)."""
    same = ours.dtype == theirs.dtype and ours.lead == theirs.lead and len(ours.shape) == len(theirs.shape)
    if not same or (ours.below is None) != (theirs.below is None):
        return []
    below = [] if ours.below is None or theirs.below is None else [(ours.below, theirs.below)]
    return [(1, 1), *zip(ours.shape, theirs.shape, strict=True), *below]


def _bound(pairs: Sequence[Pair]) -> Mapping[str, Dim] | None:
    """What the general rule's names stand for so that all pairs are equal; ``None`` where they cannot be."""
    found: dict[str, Dim] = {}
    left = []
    for ours, theirs in pairs:
        name = next(iter(symbols(ours)), "") if isinstance(ours, Poly) else ""
        if name and ours == sym(name):
            if found.setdefault(name, theirs) != theirs:
                return None
        else:
            left.append((ours, theirs))
    solved = solve([(ours, theirs) for ours, theirs in left if isinstance(ours, Poly)], found)
    if solved is None or not all(symbols(ours) <= solved.keys() for ours, _ in left):
        return None
    return solved if all(substitute(ours, solved) == theirs for ours, theirs in left) else None


def _allowed(general: Rule, rule: Rule, sizes: Mapping[str, Dim]) -> bool:
    """Whether attributes are in the general rule's ranges."""
    for name, scheme in general.attribute_atoms.items():
        value = sizes.get(name)
        if isinstance(value, int):
            if not scheme.allows(value):
                return False
        elif value is not None and scheme.relation:
            own = [s for n, s in rule.attribute_atoms.items() if value == sym(n)]
            if not own or (own[0].relation, own[0].bound) != (scheme.relation, scheme.bound):
                return False
        elif value is None:
            return False
    return True


def _implied(general: Rule, rule: Rule, sizes: Mapping[str, Dim]) -> bool:
    """Whether the rule's guards say what the general rule's do."""
    known = {str(guard) for guard in rule.where}
    return all(_constant(g) or str(g) in known for g in _substituted(general, sizes))


def _substituted(general: Rule, sizes: Mapping[str, Dim]) -> Iterator[Guard]:
    for guard in general.where:
        yield Guard(substitute(guard.left, sizes), guard.relation, substitute(guard.right, sizes))


def _constant(guard: Guard) -> bool:
    """Whether it holds whatever the sizes are."""
    return not guard.names and guard.holds({})
