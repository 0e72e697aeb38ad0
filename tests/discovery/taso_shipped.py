"""TASO's shipped rules in superopt's terms, as strong as they honestly are: the other side of the ablation.

TASO ships 133 of the rules that its generator finds; the file is not at hand. These are *all* that its method finds
over the operators that the 133 mention, so more. It finds them for matrices and for images of fixed shapes and applies
them by operator, whatever the shapes are. So each is stated here as widely as the prover proves it: with leading axes
in front of any of its matrices (a batch of data times weights with a batch or without), elementwise ones for tensors of
any rank, and all for any float type. Its generator never joins a joined tensor to a plain one (operands are ordered),
its verifier's axioms do: these are added. What one step of another rule of the list says is left out: a search has
enough to do.

Run as a program, it writes the list: ``python tests/discovery/taso_shipped.py tests/discovery/taso``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from superopt.discovery.candidate_proofs import any_rank, with_lead
from superopt.discovery.derive import derived, rewrites_of
from superopt.discovery.generalise import well_typed
from superopt.ir.terms import VariableTerm
from superopt.rules import Rule, parse_rule
from superopt.rules.library import parse_file, write_rules
from superopt.verifier.prover.prover import prove
from superopt.verifier.verdict import ProvedVerdict

__all__ = ["axioms", "shipped", "strongest", "widened"]

SHIPPED = frozenset({"Concat", "MatMul", "Add", "Mul", "Conv", "Relu", "Split"})


def axioms() -> list[Rule]:
    """Concatenation is associative, of matrices and of images, along both axes that TASO's rules have."""
    found = []
    for axis in (0, 1):
        for names, shape in (("w", ["n0", "n1"]), ("i", ["n0", "n1", "n2", "n3"])):
            forall = {f"{names}{k}": [*shape[:axis], f"m{k}", *shape[axis + 1 :]] for k in (1, 2, 3)}
            x, y, z = forall
            rule = {
                "id": f"taso-axiom-{names}{axis}",
                "forall": {n: f"f[{', '.join(s)}]" for n, s in forall.items()},
                "lhs": [f"Concat(Concat({x}, {y}, axis={axis}), {z}, axis={axis})"],
                "rhs": [f"Concat({x}, Concat({y}, {z}, axis={axis}), axis={axis})"],
                "origin": "TASO's verifier",
            }
            found.append(parse_rule(rule))
    return found


def shipped(rules: Sequence[Rule]) -> list[Rule]:
    """Of the kind that TASO ships: 3×3 convolutions, products, sums, concatenation, splitting, Relu; no scalars."""
    found = []
    for rule in rules:
        kernels = [n for n in rule.tensors if n[0] == "w" and len(rule.tensors[n].shape) == 4]
        plain = len(kernels) < len(rule.tensors) and set(kernels) <= {"w4", "w5", "w6"} and "s0" not in rule.tensors
        if (
            plain
            and rule.operators <= SHIPPED
            and not (len(rule.lhs) == 2 and any(isinstance(t, VariableTerm) for t in rule.lhs))
        ):
            found.append(rule)
    return found


def widened(rule: Rule) -> Iterator[Rule]:
    """The rule as it is, or every proved way to state it with leading axes, the widest first."""
    matrices = [n for n, s in rule.tensors.items() if len(s.shape) == 2]
    every = any_rank(rule) if len(matrices) == len(rule.tensors) else None
    wider = [] if every is None else [every]
    if not wider:
        for count in range(len(matrices), 0, -1):
            for chosen in combinations(matrices, count):
                made = with_lead(rule, frozenset(chosen))
                if made is not None and well_typed(made):
                    wider.append(made)
    proved = [r for r in wider if isinstance(prove(r), ProvedVerdict)]
    yield from (replace(r, id=f"{rule.id}-{i}" if i else rule.id) for i, r in enumerate(proved))
    if not proved:
        yield rule


def strongest(rules: Sequence[Rule]) -> list[Rule]:
    """Without those that one step of others says; of rules with two outputs, of others with two."""
    ordered = sorted(
        (w for r in rules for w in widened(r)),
        key=lambda r: (len(r.lhs), sum(len(str(t)) for t in (*r.lhs, *r.rhs)), -len(r.tensors), r.id),
    )
    kept: list[Rule] = []
    for rule in ordered:
        near = [r for r in kept if len(r.lhs) == len(rule.lhs) and r.operators <= rule.operators]
        if not near or derived(rule, rewrites_of(near), rounds=1) is None:
            kept.append(rule)
    return sorted(kept, key=lambda r: r.id)


def main(folder: str) -> None:
    """Write ``shipped/shipped.toml`` from ``sound.toml``, both in a folder."""
    some = shipped(parse_file(Path(folder) / "sound.toml"))
    found = strongest([*some, *axioms()])
    heading = "Found as TASO's generator finds rules; written by tests/discovery/taso_shipped.py, do not edit."
    write_rules(Path(folder) / "shipped" / "shipped.toml", found, heading=heading)
    print(f"{len(some)} rules as found, {len(axioms())} axioms; {len(found)} stated as widely as they are proved")


if __name__ == "__main__":
    main(sys.argv[1])
