"""Adding to a library what later runs found: of that only what leaves less to run than the library does already.

Every rule costs every search. So a rule joins if fewer operators run on its right side than on its left, or as many of
which more only rename memory, and if the rules that are there do not bring the left side to as little: by saturation,
over the rule's own operators and plain arithmetic or over all, in the rounds that a search has, and without evaluating
constants, which a search leaves to the end. A right side that reads no data any more would forget a NaN in it, and one
whose weights are computed through what is as long as an image is takes long to fold: neither joins. The rules that are
there stay as they are; one that a run found again, of the same theme, cites that run's configuration.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from typing import Any

from superopt.cost.backend_capabilities import ONNX_RUNTIME_CPU
from superopt.discovery.candidates import operator_count, sized_by_data, work
from superopt.discovery.derive import (
    NODES,
    QUICK_ROUNDS,
    ROUNDS,
    DerivabilityEGraph,
    distinct_point,
    reached,
    rewrites_of,
)
from superopt.discovery.expected_rule_gains import priced, recorded
from superopt.discovery.generalise import with_sizes
from superopt.discovery.minimise import near_to, rank, special
from superopt.discovery.solved_right_sides import SOLVED, data_beside_weights
from superopt.egraph.egraph import ABSENT, LEAF, EGraph, ENode
from superopt.egraph.rule_compiler import data_of, flowing
from superopt.egraph.saturation import RewriteSet
from superopt.ir.size_polynomial import sym, value_at
from superopt.ir.terms import OperatorTerm, Term, postorder, variables
from superopt.ops.flops_and_bytes import flops
from superopt.ops.onnx_node_conversion import product as elements_of
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.canonical import text_digest
from superopt.rules.library import ADMISSIBLE, BUILT_IN, load_library, parse_file, write_rules
from superopt.rules.onnx_notation import default_of
from superopt.rules.rule import Rule, RulePrecondition
from superopt.rules.scanner import RuleError
from superopt.rules.typing import instances, type_terms
from superopt.verifier.admission import check
from superopt.verifier.exact.counterexample import describe
from superopt.verifier.exact.sampling import SizeSample
from superopt.verifier.exact.testing import trial_at
from superopt.verifier.verdict import RefutedVerdict, kind_of

__all__ = ["extend", "extended"]

Runs = tuple[int, int, int]  # operators that compute or move elements, all that run, and arithmetic
_ENDLESS: Runs = (1 << 30, 1 << 30, 0)
_MORE_ARITHMETIC = 1.5  # times what a right side has: below it, as many operators are as little
_CONFIG = re.compile("config [0-9a-f]+")  # in an origin
_IMAGE = 4  # axes: a batch, channels, height and width
_AFFINE = frozenset({"Add", "Mul"})  # operators as which an affine one is written


def extended(
    library: Sequence[Rule], given: Sequence[Rule], progress: Callable[[str], None] | None = None
) -> tuple[Rule, ...]:
    """Those of the given rules that join, short and general ones first; each is looked at with those before it, and
    the most special of them again with all.

    Args:
        library: the rules that are there.
        given: proved rules.
        progress: called with lines of text.
    """
    there = {text_digest(rule) for rule in library}
    unique = {digest: rule for rule in reversed(given) if (digest := text_digest(rule)) not in there}
    ordered = [rule for _, rule in sorted(unique.items(), key=lambda item: (*rank(item[1]), item[0]))]
    joined: list[Rule] = []
    for number, rule in enumerate(ordered, 1):
        if _joins(rule, [*library, *joined]):
            joined.append(_beyond_one(rule, [*library, *joined]))
        if progress is not None and number % 10 == 0:
            progress(f"{number}/{len(ordered)} rules, {len(joined)} join")
    for rule in sorted(joined, key=special):
        others = [r for r in joined if r is not rule]
        if not _joins(rule, [*library, *others]):
            joined = others
    return tuple(joined)


def _joins(rule: Rule, others: Sequence[Rule]) -> bool:
    """Whether less runs on the right side than what the other rules make of the left; siblings that become one, what
    an operator is by definition, what the profile says is twice as fast and operators that make fewer elements, where
    the others do not make that."""
    definition = rule.origin.startswith("definition") and operator_count(rule.lhs[0]) == 1
    if len(rule.lhs) > 1 or definition or _is_affine_form(rule):
        return not reached(rule, rewrites_of(near_to(rule, others)), rounds=ROUNDS)
    data = _data(rule)
    left, right = work(rule.lhs, data), work(rule.rhs, data)
    if data.isdisjoint(variables(*rule.rhs)) or sized_by_data(rule, data):
        return False
    if not right < left:
        faster = right[0] == left[0] and (_halves(rule, data) or _makes_fewer_elements(rule, data))
        return faster and not reached(rule, rewrites_of(near_to(rule, others)), rounds=ROUNDS)
    few_first = (near_to(rule, others), others)
    return not any(_do_as_little(rule, data, right, rewrites_of(known_rules)) for known_rules in few_first)


def _is_affine_form(rule: Rule) -> bool:
    """Whether one side is a single operator, and the other the sums and products that it is, or the same operator with
    more attributes at their defaults: other rules are about those forms."""
    data = _data(rule)
    for side, other in ((rule.lhs, rule.rhs), (rule.rhs, rule.lhs)):
        applied = [t for t in postorder(*side) if isinstance(t, OperatorTerm)]
        if len(applied) != 1:
            continue
        (single,), running = applied, flowing(other, data)
        operators = {t.op for t in running}
        if operators and single.op not in _AFFINE and operators <= _AFFINE:
            return True
        if operators == {single.op} and len(running) == 1 and _defaults(running[0]) > _defaults(single):
            return True
    return False


def _defaults(app: OperatorTerm) -> int:
    """How many attributes are at the operator's defaults."""
    return sum(value == default_of(app.op, name) for name, value in app.attributes)


def _halves(rule: Rule, data: AbstractSet[str]) -> bool:
    """Whether the right side takes at most half of the left side's time by the recorded profile, at nominal sizes: nine
    of ten prices are less than a factor of two off."""
    found = priced(rule, frozenset(rule.tensors) - data, recorded())
    return found is not None and found[1] <= found[0] / 2


def _makes_fewer_elements(rule: Rule, data: AbstractSet[str]) -> bool:
    """Whether one side has the operators of the other, of which each makes as many elements at most, and one fewer:
    an operator on fewer elements takes less time, whatever the device."""
    instance = instances(rule, (1,))[0]
    point = distinct_point(instance)
    trial = None if point is None else trial_at(instance, point)
    if trial is None or trial.ill_typed:
        return False
    types = type_terms((*trial.lhs, *trial.rhs), trial.variables)[0]
    made = [
        sorted((t.op, value_at(elements_of(types[t][0].shape or ()), {})) for t in flowing(side, data))
        for side in (trial.lhs, trial.rhs)
    ]
    if [op for op, _ in made[0]] != [op for op, _ in made[1]]:
        return False
    pairs = [(a, b) for (_, a), (_, b) in zip(*made, strict=True)]
    return any(a != b for a, b in pairs) and (all(a >= b for a, b in pairs) or all(a <= b for a, b in pairs))


def _beyond_one(rule: Rule, others: Sequence[Rule]) -> Rule:
    """The rule for sizes of 2 and more, where an axis of size 1 stands beside and it would not join at 1.

    There it would only write applications that read their own result: ``Expand(x, [m, n])`` of an ``x`` of that shape.
    """
    if not any(d == 1 for s in rule.tensors.values() for d in s.shape):
        return rule
    for name in rule.sizes:
        if not _joins(with_sizes(rule, {name: 1}), others):
            rule = replace(rule, where=(*rule.where, RulePrecondition(sym(name), ">=", 2)))
    return rule


def _data(rule: Rule) -> frozenset[str]:
    """Tensors that are no weights: of a run that solved for weights, all that it has not named as one. Else weights
    have no leading axes where others have, nor the batch of images, or are second arguments of products and the like.
    """
    if SOLVED in rule.origin:
        return data_beside_weights(rule)
    leading = frozenset(name for name, scheme in rule.tensors.items() if scheme.lead)
    if leading:
        return leading
    data = data_of(rule.lhs)
    batches = {s.shape[0] for n, s in rule.tensors.items() if n in data and len(s.shape) >= _IMAGE}
    return frozenset(n for n in data if rule.tensors[n].shape[:1] == tuple(batches)) if len(batches) == 1 else data


def _do_as_little(rule: Rule, data: AbstractSet[str], right: tuple[int, int], rewrite_set: RewriteSet) -> bool:
    """Whether a search's few rounds make of the left side what runs no more than the right side, at each number of
    leading axes: fewer operators, or as many with about as much arithmetic.

    One kernel with zeros between its groups is no equal of a kernel with groups.
    """
    for instance in instances(rule, (1, 0)) if rule.lead else instances(rule):
        point = distinct_point(instance)
        if point is None:
            return False
        try:
            universe, root = _universe_of(instance, point, data, instance.lhs)
            other, other_root = _universe_of(instance, point, data, instance.rhs)
        except (IllTypedOperator, ZeroDivisionError):
            return False
        universe.saturate(rewrite_set, nodes=NODES, rounds=QUICK_ROUNDS)
        operators, running, arithmetic = _cheapest(universe.graph, root)
        more = arithmetic > _MORE_ARITHMETIC * _cheapest(other.graph, other_root)[2]
        if (operators, running) > right or ((operators, running) == right and more):
            return False
    return True


def _universe_of(
    instance: Rule, point: SizeSample, data: AbstractSet[str], side: tuple[Term, ...]
) -> tuple[DerivabilityEGraph, int]:  # fmt: skip
    """An e-graph of one side, and its class."""
    universe = DerivabilityEGraph(instance, point, frozenset(instance.tensors) - data)
    [(root, _)] = universe.add(replace(instance, lhs=side, rhs=side))
    return universe, root


def _cheapest(graph: EGraph, root: int) -> Runs:
    """Of the forms of a class, shared parts counted where they are read: what runs."""
    best: dict[int, Runs] = {}
    changed = True
    while changed:
        changed = False
        for identity, group in graph.classes.items():
            forms = [_sum(graph, node, best) for node in group.nodes] if not group.constant else [(0, 0, 0)]
            least = min((f for f in forms if f is not None), default=None)
            if least is not None and least < best.get(identity, _ENDLESS):
                best[identity], changed = least, True
    return best.get(graph.find(root), _ENDLESS)


def _sum(graph: EGraph, node: ENode, best: Mapping[int, Runs]) -> Runs | None:
    """What runs for an e-node; ``None`` where that is not known of an operand."""
    head = graph.heads[node[0]]
    if head.op == LEAF:
        return 0, 0, 0
    below = [best.get(graph.find(a)) for a in node[1:] if a != ABSENT]
    known = [b for b in below if b is not None]
    if len(known) < len(below):
        return None
    own: Runs = (0, 0, 0)
    if head.operator is not None:
        arithmetic = value_at(flops(head.operator, graph.argument_types(node), dict(head.attributes)), {})
        own = int(head.op not in ONNX_RUNTIME_CPU.views), 1, arithmetic
    return own[0] + sum(b[0] for b in known), own[1] + sum(b[1] for b in known), own[2] + sum(b[2] for b in known)


def extend(
    folders: Sequence[Path], *, to: Path = BUILT_IN, progress: Callable[[str], None] | None = None
) -> tuple[Rule, ...]:
    """Add rules of several runs to a library's files; their verdicts are to be recorded then.

    The result does not depend on the order of the folders. Rules keep their origins, and their ids where those are
    free. ``run.json`` says what was added, from which configurations, and which rules the runs found again.

    Args:
        folders: what ``superopt discover`` wrote.
        to: the library's folder.
        progress: called with lines of text.

    Raises:
        RuleError: a folder is not there or has no rules, they do not parse, or one that would join is not proved.
    """
    library = load_library() if to == BUILT_IN else load_library(to, built_in=False)
    given_rules = [rule for folder in folders for rule in load_library(folder, built_in=False).values()]
    joined = _identified(extended(tuple(library.values()), sorted(given_rules, key=lambda r: r.id), progress), library)
    for rule in joined:
        _insist(rule, progress)
    again = _found_again(library, given_rules)
    for family in sorted({rule.family for rule in (*joined, *again.values())}):
        file = to / f"{family}.toml"
        before = [again.get(rule.id, rule) for rule in parse_file(file)] if file.exists() else []
        heading = _heading(file) if file.exists() else "Discovered and proved for all sizes."
        write_rules(file, [*before, *(r for r in joined if r.family == family)], heading=heading)
    if joined or again:
        _log(to / "run.json", folders, joined, again)
    return joined


def _found_again(library: Mapping[str, Rule], given: Sequence[Rule]) -> dict[str, Rule]:
    """By id, the library's rules that runs of the same themes found, with the origins of those runs."""
    origins: dict[tuple[str, str], str] = {}
    for rule in given:
        origins.setdefault((text_digest(rule), _CONFIG.sub("", rule.origin)), rule.origin)
    again: dict[str, Rule] = {}
    for rule in library.values():
        source = _CONFIG.sub("", rule.origin)
        unguarded = replace(rule, where=tuple(g for g in rule.where if (g.relation, g.right) != (">=", 2)))
        found = [origins.get((text_digest(form), source)) for form in (rule, unguarded)]
        origin = next((o for o in found if o is not None), rule.origin)
        if origin != rule.origin:
            again[rule.id] = replace(rule, origin=origin)
    return again


def _insist(rule: Rule, progress: Callable[[str], None] | None) -> None:
    """Prove a rule as it joins: a file in a folder is nobody's word for it.

    Raises:
        RuleError: it is false, or not shown true.
    """
    verdict = check(rule)
    if kind_of(verdict) not in ADMISSIBLE:
        counterexample = f" {describe(verdict.counterexample)}" if isinstance(verdict, RefutedVerdict) else ""
        where, hint = f"{rule.lhs[0]} = {rule.rhs[0]}", "superopt rules prove FILE says more; nothing was written"
        raise RuleError(f"it would join, and is {kind_of(verdict)}{counterexample}", where=where, hint=hint)
    if progress is not None:
        progress(f"{rule.id} is proved")


def _identified(rules: Sequence[Rule], library: Mapping[str, Rule]) -> tuple[Rule, ...]:
    """The rules under ids that nothing else has: their family and as many digits of their digest as that takes."""
    taken = set(library)
    new_rules: list[Rule] = []
    for rule in rules:
        digest = text_digest(rule)
        names = (f"{rule.family}-{digest[:width]}" for width in range(4, 65))
        new_rules.append(replace(rule, id=next(n for n in names if n not in taken)))
        taken.add(new_rules[-1].id)
    return tuple(new_rules)


def _heading(file: Path) -> str:
    """The comment that a file of rules begins with."""
    lines = file.read_text(encoding="utf-8").splitlines()
    count = next((n for n, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "\n".join(line.removeprefix("#").strip() for line in lines[:count])


def _log(file: Path, folders: Sequence[Path], joined: Sequence[Rule], again: Iterable[str]) -> None:
    """Add to the log of a library's run what was added since and found again: by configuration, themes and seconds of
    the runs."""
    log: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    runs = []
    for folder in folders:
        run = folder / "run.json"
        known = json.loads(run.read_text(encoding="utf-8")) if run.exists() else {}
        themes = [theme["theme"] for theme in known.get("themes", [])]
        runs.append({"config": known.get("config"), "themes": themes, "cpu_seconds": known.get("cpu_seconds")})
    runs.sort(key=lambda run: (str(run["config"]), run["themes"]))
    added = {"runs": runs, "rules": sorted(rule.id for rule in joined), "found_again": sorted(again)}
    log["added"] = [*log.get("added", []), added]
    file.write_text(json.dumps(log, indent=1, sort_keys=True) + "\n", encoding="utf-8")
