"""The bounded fallback: a rule proved at a few small shapes, for all elements. Weaker than a proof of the rule.

At fixed sizes all index arithmetic is linear, so this goes through where the all-sizes proof meets arithmetic that
the solver cannot do.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from superopt.ir.errors import SuperoptError
from superopt.ir.poly import substitute
from superopt.rules import Rule, TensorScheme
from superopt.rules.canonical import map_terms
from superopt.rules.rule import TypeScheme
from superopt.rules.typing import instances, types_of
from superopt.verifier.exact.sampling import draw
from superopt.verifier.exact.testing import trial_at
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedAllSizes, ProvedBounded, Unknown

__all__ = ["prove_bounded"]


def prove_bounded(
    rule: Rule, *, points: int = 4, largest: int = 4, time_limit: float = 10.0, seed: int = 0
) -> ProvedBounded | Unknown:
    """Prove a rule at ``points`` random sizes up to ``largest``, with elements and real attributes symbolic.

    Args:
        rule: a rule.
        points: how many sizes.
        largest: bound on sizes that are drawn.
        time_limit: seconds in all.
        seed: of the sizes.
    """
    started = time.monotonic()
    rng = np.random.default_rng(seed)
    shapes: list[Mapping[str, object]] = []
    try:
        ranks = instances(rule)
        for number in range(points * 5):
            if len(shapes) == points:
                break
            instance = ranks[number % len(ranks)]
            point = draw(instance, 0, rng, types_of(instance).lhs_obligations, largest)
            if point is None or trial_at(instance, point) is None:
                continue
            left = time_limit - (time.monotonic() - started)
            verdict = prove(_at(instance, point.sizes), time_limit=left) if left > 0 else Unknown("the time ran out")
            if not isinstance(verdict, ProvedAllSizes):
                reason = f"at {dict(point.sizes)}: {verdict.reason}"
                return Unknown(reason, seconds=time.monotonic() - started)
            shapes.append(dict(point.sizes))
    except SuperoptError as error:
        return Unknown(f"not well-formed: {error}", seconds=time.monotonic() - started)
    if not shapes:
        return Unknown("no sizes were found that satisfy the rule's context", seconds=time.monotonic() - started)
    return ProvedBounded(tuple(shapes), time.monotonic() - started)


def _at(rule: Rule, sizes: Mapping[str, int]) -> Rule:
    """The rule at fixed sizes and integer attributes."""
    forall: dict[str, TypeScheme] = {}
    for name, scheme in rule.forall.items():
        if isinstance(scheme, TensorScheme):
            below = None if scheme.below is None else substitute(scheme.below, sizes)
            forall[name] = replace(scheme, shape=tuple(substitute(s, sizes) for s in scheme.shape), below=below)
        elif scheme.kind == "real":
            forall[name] = scheme
    return replace(
        rule, forall=forall, where=(), lhs=map_terms(rule.lhs, {}, sizes), rhs=map_terms(rule.rhs, {}, sizes)
    )
