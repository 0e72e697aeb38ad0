"""Which side of a rule is expected to be faster, and by how much: orientation and annotation, never truth.

Orientation is by a roofline at nominal sizes: arithmetic and memory traffic read from the meanings, plus a fixed
overhead per operator; it knows no device, so that what is found does not depend on one. The gains beside a library
(``gains.json``) are priced by a recorded profile at the same sizes. What depends on weights alone is computed before
inference and counts nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

from superopt.cost import CostModel, ProfileCostModel, load_profile
from superopt.discovery.config import DiscoveryConfig, OperatorVocabulary, load_config
from superopt.formats.safe_file_access import replace_file
from superopt.ir.errors import UsageError
from superopt.ir.size_polynomial import Dim, SizePolynomial, substitute
from superopt.ir.symbolic_size_binding import at_sizes, value_at_sizes
from superopt.ir.terms import OperatorTerm, Term, VariableTerm, children, postorder
from superopt.ir.types import TensorType
from superopt.ops.flops_and_bytes import flops
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.library import parse_file
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.rules.typing import complete, instances, operator_of, types_of

__all__ = ["PROFILE", "expected", "gains", "oriented", "priced", "priced_at", "recorded", "write_gains"]

OVERHEAD_US = 2.0  # of starting one operator
FLOPS_PER_US = 20_000.0  # two CPU cores, float32
BYTES_PER_US = 8_000.0
NOMINAL: Mapping[str, int] = {"b": 1, "h": 28, "w": 28, "u": 3, "v": 3}
SIZE, ATTRIBUTE = 128, 1
PROFILE = "cpu-epyc-2core"  # by which gains are priced
_SOURCES = ("free", "measured", "interpolated", "roofline")  # a sum is as sure as the least sure of its parts

Types = Mapping[Term, tuple[TensorType, ...]]
Cost = Callable[
    [OperatorTerm, frozenset[Term], str | None], float | None
]  # term, weights below it, operator it may fuse with


def expected(rule: Rule, weights: frozenset[str]) -> tuple[float, float] | None:
    """Microseconds of the two sides by the roofline; ``None`` where a size cannot be given a nominal value."""
    found = _nominal(rule)
    if found is None:
        return None
    plain, types, nominal = found
    return _sides(plain, weights, lambda term, _, __: _application(term, types, nominal))


@cache
def recorded(name: str = PROFILE) -> CostModel:
    """A shipped profile as prices, read once."""
    return ProfileCostModel(load_profile(name))


def priced(rule: Rule, weights: frozenset[str], model: CostModel) -> tuple[float, float, str] | None:
    """Microseconds of the two sides by a cost model, fusions included, and how sure it is.

    ``None`` where a size cannot be given a nominal value.
    """
    found = _nominal(rule)
    if found is None:
        return None
    plain, types, nominal = found
    if not all(isinstance(n, int) for n in nominal.values()):
        return None
    return priced_at(plain, types, {n: v for n, v in nominal.items() if isinstance(v, int)}, weights, model)


def priced_at(
    plain: Rule, types: Types, sizes: Mapping[str, int], weights: frozenset[str], model: CostModel
) -> tuple[float, float, str] | None:
    """Microseconds of the two sides of a rule without ``...`` at given sizes, and how sure they are.

    ``None`` where a side is not well-formed there.
    """
    sources = {"free"}

    def cost(term: OperatorTerm, constant: frozenset[Term], after: str | None) -> float:
        kinds = [None if a is None else at_sizes(types[a][0], sizes) for a in term.args]
        outs = [at_sizes(t, sizes) for t in types[term]]
        attributes = {k: value_at_sizes(v, sizes) for k, v in complete(term).items()}
        fixed = [a is not None and a in constant for a in term.args]
        estimate = model.application(term.op, attributes, kinds, outs, fixed, after=after)
        sources.add(estimate.source)
        return estimate.us

    try:
        sides = _sides(plain, weights, cost)
    except (IllTypedOperator, ZeroDivisionError):
        return None
    return None if sides is None else (*sides, max(sources, key=_SOURCES.index))


def _nominal(rule: Rule) -> tuple[Rule, Types, Mapping[str, Dim]] | None:
    """The rule with one leading axis, its types, and the sizes and attributes at which its sides are compared."""
    try:
        plain = instances(rule, (1,))[0]
        rule_types = types_of(plain)
    except (RuleError, IllTypedOperator, ZeroDivisionError):
        return None
    nominal: dict[str, Dim] = dict.fromkeys(plain.attribute_atoms, ATTRIBUTE)
    for name in plain.sizes:
        nominal[name] = NOMINAL.get(name.rstrip("0123456789_"), SIZE)
    nominal |= {n: 0 for n, s in plain.attribute_atoms.items() if s.relation == ">=" and s.bound == 0}
    return plain, rule_types.types, nominal


def _sides(rule: Rule, weights: frozenset[str], cost: Cost) -> tuple[float, float] | None:
    left, right = (_side(side, weights, cost) for side in (rule.lhs, rule.rhs))
    return None if left is None or right is None else (left, right)


def _side(roots: tuple[Term, ...], weights: frozenset[str], cost: Cost) -> float | None:
    total = 0.0
    constant: set[Term] = set()
    readers = Counter(a for t in postorder(*roots) for a in children(t)) + Counter(roots)
    for term in postorder(*roots):
        if isinstance(term, VariableTerm):
            if term.name in weights:
                constant.add(term)
            continue
        moving = [a for a in children(term) if a not in constant]
        if not moving:
            constant.add(term)
            continue
        if isinstance(term, OperatorTerm):
            new_term = moving[0]
            alone = len(moving) == 1 and isinstance(new_term, OperatorTerm) and readers[new_term] == 1
            found = cost(
                term, frozenset(constant), new_term.op if alone and isinstance(new_term, OperatorTerm) else None
            )
            if found is None:
                return None
            total += found
    return total


def _application(term: OperatorTerm, types: Types, nominal: Mapping[str, Dim]) -> float | None:
    kinds = [None if a is None else types[a][0] for a in term.args]
    work = flops(operator_of(term), kinds, complete(term))
    moved = [prod(k.shape or (), start=1) for k in (*kinds, *types[term]) if k is not None]
    numbers = [substitute(v, nominal) for v in (work, *moved)]
    if any(isinstance(n, SizePolynomial) for n in numbers):
        return None
    first, *rest = (n for n in numbers if isinstance(n, int))
    return OVERHEAD_US + max(first / FLOPS_PER_US, 4 * sum(rest) / BYTES_PER_US)


def oriented(rule: Rule, theme: OperatorVocabulary) -> Rule:
    """The rule with the side that is expected to be slower on the left, where search can use it in that direction."""
    if len(rule.lhs) > 1:
        return rule  # siblings on the left, what they merge into on the right
    found = expected(rule, frozenset(n for n in rule.tensors if theme.is_weight(n)))
    if found is None:
        swap = not rule.forward
    else:
        left, right = found
        swap = rule.backward and (right > left * 1.001 or not rule.forward)
    return replace(rule, lhs=rule.rhs, rhs=rule.lhs) if swap else rule


def gains(rules: Sequence[Rule], config: DiscoveryConfig) -> dict[str, dict[str, object]]:
    """Both sides of each rule by the recorded profile, as JSON data by id: what ``gains.json`` holds."""
    themes = tuple({t.name: t for t in config.themes}.values())
    model = recorded()
    made: dict[str, dict[str, object]] = {}
    for rule in rules:
        own = [t for t in themes if t.family == rule.family]
        found = priced(rule, frozenset(n for n in rule.tensors if any(t.is_weight(n) for t in own)), model)
        left, right, source = found or (None, None, "not known")
        made[rule.id] = {
            "lhs_us": None if left is None else round(left, 2), "rhs_us": None if right is None else round(right, 2),
            "source": f"profile {PROFILE}: {source}",
        }  # fmt: skip
    return made


def write_gains(folder: Path) -> dict[str, dict[str, object]]:
    """Price the rules that a discovery wrote to a folder anew, and write their ``gains.json``, which is returned.

    Raises:
        UsageError: the folder does not hold what a discovery wrote.
    """
    try:
        recorded = json.loads((folder / "run.json").read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} was not written by superopt discover: {error!r}") from error
    configs = (load_config().select(profile=p) for p in ("default", "taso"))
    config = next((c for c in configs if c.digest == recorded), load_config())
    rules = [r for f in sorted(folder.glob("*.toml")) if f.name != "discovery.toml" for r in parse_file(f)]
    made = gains(rules, config)
    replace_file(folder / "gains.json", (json.dumps(made, indent=1, sort_keys=True) + "\n").encode(), force=True)
    return made
