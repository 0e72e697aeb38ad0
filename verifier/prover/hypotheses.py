"""What a rule assumes of sizes and positions: stated, derived from its left side, contradictory, or forced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from superopt.ir.poly import sym
from superopt.ops.meaning import Condition
from superopt.rules import Rule
from superopt.rules.typing import positions, shown, types_of
from superopt.verifier.prover.arith import Facts, ge, normal_condition
from superopt.verifier.prover.budget import Budget
from superopt.verifier.prover.context import stated
from superopt.verifier.prover.factors import CannotProve

__all__ = ["Refusal", "derived", "impossible", "unforced"]


class Refusal(CannotProve):
    """What is written is no rule, whatever trials say."""


def impossible(conditions: Sequence[Condition], least: Mapping[str, int], budget: Budget) -> bool:
    """Whether conditions on sizes contradict each other."""
    return Facts(tuple(conditions), least, budget).contradictory(conditions)


def unforced(rule: Rule, values: Mapping[str, set[int]], budget: Budget) -> None:
    """Every size and attribute can take two values, unless the rule's own types and ``where`` say which one.

    Raises:
        Refusal: well-formedness of the left side forces one to a number.
    """
    conditions, least = stated(rule)
    for name in (*rule.sizes, *rule.attribute_atoms):
        if len(values.get(name, (0, 1))) > 1:
            continue
        (value,) = values[name]
        if not Facts(conditions, least, budget).implied(Condition("eq", sym(name) - value)):
            raise Refusal(
                f"the left side is well-formed only where {name} = {value}: write {value} for {name}, or add the guard"
            )


def derived(rule: Rule, budget: Budget) -> list[str]:
    """What the left side of a plain rule demands beyond types and guards, as preconditions.

    Raises:
        Refusal: positions are declared that lie beyond the axis that they are read on.
    """
    types = types_of(rule)
    conditions, least = stated(rule)
    facts = Facts(conditions, least, budget)
    made: dict[str, Condition] = {}
    for c in types.lhs_obligations:
        if not facts.implied(normal_condition(c), made.values(), 1):
            made[shown(c)] = normal_condition(c)
    for name, c in list(made.items()):  # what a later one says as well
        if len(made) > 1 and facts.implied(c, [o for o in made.values() if o is not c], 1):
            del made[name]
    texts = list(made)
    for at in positions(rule, rule.lhs, types.types):
        if at.below is None:
            texts.append(str(at))
        elif not facts.implied(normal_condition(ge(at.size - at.below)), made.values()):
            raise Refusal(
                f"the positions {at.text} are declared below {at.below} and read on an axis of size {at.size}: an "
                "index beyond its axis is an error"
            )
    return texts
