"""Are two models equal? Proved region by region where possible, else tested, else refuted with inputs that show it.

Values of both models that are the same expression over inputs and weights are one *class*. What is left is aligned by
running both models in float64 on random inputs: equal arrays suggest equal values, nothing more. Each suggestion is
then a theorem over the aligned values it is computed from, with the weights as variables and the dimensions symbolic
where the model's are, and the all-sizes prover decides it. What it does not decide counts as tested, not as proved.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from superopt.ir.errors import SuperoptError, UsageError
from superopt.ir.graph import Graph
from superopt.ir.terms import App, Project, Term, Var, postorder, remade, variables
from superopt.ir.types import DType, TensorType
from superopt.ops.infer import Applied, Barrier, infer
from superopt.rules import Rule, TensorScheme
from superopt.verifier.apart import far_apart, witness
from superopt.verifier.differential import CheckResult, check, signature_difference
from superopt.verifier.provenance import unfolded
from superopt.verifier.prover import prove
from superopt.verifier.sides import Side, aligned, digest_of, literal
from superopt.verifier.verdict import ProvedAllSizes

__all__ = ["GraphVerdict", "Region", "certify_result", "verify"]

_LARGEST = 400  # operators of one side of a region


@dataclass(frozen=True)
class Region:
    """A value of the second model and how it is known to equal one of the first: "proved" or "tested", and why not."""

    output: str
    verdict: str
    operators: int
    reason: str = ""


@dataclass(frozen=True)
class GraphVerdict:
    """What is known of two models.

    Attributes:
        verdict: "proved" (over the reals, from the aligned values on), "tested", "refuted" or "unknown".
        same: nodes of the second model that are literally in the first.
        proved, tested: nodes of the second model in regions that were proved, or only tested.
        regions: what was not literally the same.
        check: the run of both models against the float64 reference.
        feeds: inputs on which the models differ, when refuted.
        reason: in words.
    """

    verdict: str
    same: int = 0
    proved: int = 0
    tested: int = 0
    regions: tuple[Region, ...] = ()
    check: CheckResult = field(default_factory=lambda: CheckResult("skipped"))
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    reason: str = ""

    @property
    def proved_share(self) -> float:
        """The part of the second model's nodes that is the same or proved."""
        total = self.same + self.proved + self.tested
        return (self.same + self.proved) / total if total else 1.0


def certify_result(
    before: Graph, after: Graph, *, seed: int = 0, time_limit: float = 2.0, total: float = 60.0
) -> GraphVerdict:
    """:func:`verify` for ``optimize --verify certify``: what the optimiser made of a model, within a time in all.

    Regions that the time does not suffice for count as tested.

    Raises:
        UsageError: inputs or outputs differ in names, order or types.
    """
    return verify(before, after, seed=seed, time_limit=time_limit, total=total)


def verify(
    a: Graph, b: Graph, *, seed: int = 0, time_limit: float = 5.0, trials: int = 3, total: float = float("inf")
) -> GraphVerdict:
    """Compare two models with the same signature.

    Args:
        a: the first model, checked.
        b: the second.
        seed: of the random inputs.
        time_limit: seconds for the proof of one region.
        trials: inputs on which both are run against the reference.
        total: seconds for all proofs.

    Raises:
        UsageError: their inputs or outputs differ in names, order or types.
    """
    difference = signature_difference(a, b)
    if difference is not None:
        raise UsageError(
            f"the models have different signatures: {difference[1]}",
            hint="only models that take and give the same can be equal",
        )
    opened = unfolded(a, b)
    sides = (Side(a, infer(a)), Side(opened.graph, infer(opened.graph), opened.nodes))
    classes: dict[str, str] = {}
    for side in sides:
        side.classify(classes)
    known = set(sides[0].classes.values())
    same = sum(all(sides[1].classes[o] in known for o in n.outputs if o) for n in b.nodes)
    ran = check(a, b, seed=seed, trials=trials)
    if ran.verdict == "failed":
        return GraphVerdict("refuted", same, check=ran, feeds=witness(a, b, seed), reason=ran.reason)
    if same == len(b.nodes) and all(sides[0].classes[v.name] == sides[1].classes[v.name] for v in a.outputs):
        return GraphVerdict("proved", same, check=ran, reason="every node is literally the same")
    found = _by_regions(sides[0], sides[1], same, ran, seed, (time_limit, time.monotonic() + total))
    if found.verdict != "proved" and (apart := far_apart(a, opened.graph, seed)) is not None:
        return replace(found, verdict="refuted", feeds=apart[1], reason=apart[0])
    count = sum(1 for w in b.weights if w.name in sides[1].folded)
    if not count:
        return found
    note = f"{count} folded weights are, within rounding, what they were computed from"
    return replace(found, reason=f"{found.reason}; {note}" if found.reason else note)


def _by_regions(a: Side, b: Side, same: int, ran: CheckResult, seed: int, limits: tuple[float, float]) -> GraphVerdict:
    """Align the values of ``b`` with values of ``a``, and prove each alignment from the ones before."""
    try:
        partners = aligned(a, b, seed)
    except SuperoptError as error:
        verdict = "tested" if ran.verdict == "passed" else "unknown"
        return GraphVerdict(verdict, same, 0, len(b.running) - same, check=ran, reason=f"not aligned: {error}")
    work = _Work(a, b, partners, *limits)
    for node in b.running:
        for output in node.outputs:
            if output and work.congruent(output):
                continue
            if output in partners and b.classes[output] != a.classes[partners[output]]:
                work.region(output)
    for name in b.graph.weight:  # a folded constant: near to what the first model computes, not equal to it
        if name in partners and b.classes[name] != a.classes[partners[name]]:
            work.regions.append(Region(name, "tested", 0, "a folded constant, equal up to rounding"))
    counted = work.covered()
    known = set(a.classes.values())
    new = [n for n in b.running if not all(b.classes[o] in known for o in n.outputs if o)]
    proved = sum(1 for n in new if counted.get(n.outputs[0]) == "proved")
    rest = len(new) - proved
    missing = [
        v.name for v in b.graph.outputs if partners.get(v.name) != v.name and b.classes[v.name] != a.classes[v.name]
    ]
    regions = tuple(work.regions)
    if not missing and rest == 0 and all(r.verdict == "proved" for r in regions):
        return GraphVerdict("proved", same, proved, 0, regions, ran)
    if ran.verdict == "passed":
        return GraphVerdict("tested", same, proved, rest, regions, ran, reason="some regions were tested, not proved")
    return GraphVerdict("unknown", same, proved, rest, regions, ran, reason=ran.reason or "the models could not be run")


@dataclass
class _Work:
    """Proofs of aligned values, each from the aligned values before it."""

    a: Side
    b: Side
    partners: dict[str, str]
    time_limit: float
    deadline: float
    regions: list[Region] = field(default_factory=list)
    _memo: dict[str, tuple[bool, str]] = field(default_factory=dict)
    _inside: dict[str, str] = field(default_factory=dict)

    @cached_property
    def outputs(self) -> frozenset[str]:
        return frozenset(v.name for v in self.b.graph.outputs)

    def congruent(self, output: str) -> bool:
        """Whether a changed value is what some node of ``a`` computes, of aligned values: then it equals that.

        It holds for any node, opaque ones too: equal arguments give equal results.
        """
        known = self.partners.get(output)
        if known is not None and self.b.classes[output] == self.a.classes[known]:
            return False  # literally the same
        node, form, position = self.b.made[output]
        reads = [n for n in (*(form.args if isinstance(form, Applied) else ()), *node.inputs, *node.captures) if n]
        classes = {n: self.a.classes[self.partners[n]] if n in self.partners else self.b.classes[n] for n in reads}
        found = self.a.named.get(digest_of(self.b.text(node, form, position, classes)))
        if found is None or (output in self.outputs and self.a.classes[found] != self.a.classes[output]):
            return False
        self.partners[output] = found
        self._note(output, "proved", [output], "")
        return True

    def region(self, output: str) -> None:
        """Decide whether a value of ``b`` equals its partner, given that what it is computed from does."""
        goal = self.partners[output]
        reason = ""
        for near in (True, False):  # from the nearest aligned values, then from those that no region changed
            leaf = (lambda n: n in self.partners) if near else self._unchanged
            right, why, inside = self._term(self.b, output, lambda n, leaf=leaf: n != output and leaf(n))  # type: ignore[misc]
            reason = reason or why
            if right is None:
                continue
            names = {self.partners[n] for n in inside["leaves"]}
            for cut in ((names | set(self.partners.values())) if near else names, names):
                if goal in names:  # the value is computed from one that equals it already
                    left: Term | None = self._leaf(goal)
                else:
                    left, why, _ = self._term(self.a, goal, _cut(goal, cut))
                shown, why = self._proved(left, right) if left is not None else (False, why)
                if shown:
                    self._note(output, "proved", inside["nodes"] if near else [output], "")
                    return
                reason = reason or why
        self._note(output, "tested", [output], reason)

    def _unchanged(self, name: str) -> bool:
        """Whether a value of ``b`` is literally one of ``a``, or a weight that is near to one."""
        partner = self.partners.get(name)
        return partner is not None and (name not in self.b.made or self.b.classes[name] == self.a.classes[partner])

    def _note(self, output: str, verdict: str, nodes: Sequence[str], reason: str) -> None:
        self.regions.append(Region(output, verdict, len(nodes), reason))
        for name in nodes:
            if self._inside.get(name) != "tested":
                self._inside[name] = verdict

    def covered(self) -> dict[str, str]:
        """By first output of each node of ``b``: "proved" where every region that uses it was proved."""
        return {self.b.made[n][0].outputs[0]: v for n, v in self._inside.items() if n in self.b.made}

    def _term(
        self, side: Side, root: str, leaf: Callable[[str], bool]
    ) -> tuple[Term | None, str, dict[str, list[str]]]:
        """The term of a value over leaves, named by ``a``'s values; ``None`` and a reason where there is none."""
        terms: dict[str, Term] = {}
        used: dict[str, list[str]] = {"leaves": [], "nodes": []}
        stack = [(root, False)]
        while stack:
            name, expanded = stack.pop()
            if name in terms:
                continue
            cut = leaf(name)
            if cut or name not in side.made:
                if not cut and side is self.b:
                    number = literal(side, name)
                    if number is None:
                        return None, f"the value {name} is only in the second model", used
                    terms[name] = number
                    continue
                used["leaves"].append(name)
                terms[name] = self._leaf(self.partners[name] if side is self.b else name)
                continue
            node, form, position = side.made[name]
            if isinstance(form, Barrier):
                return None, f"{node.op} is opaque: {form.reason}", used
            if not expanded:
                stack.append((name, True))
                stack += [(x, False) for x in form.args if x is not None]
                continue
            used["nodes"].append(name)
            if len(used["nodes"]) > _LARGEST:
                return None, f"the region has more than {_LARGEST} operators", used
            app = App(
                form.operator.name,
                tuple(None if x is None else terms[x] for x in form.args),
                tuple(sorted(form.attributes.items())),
            )
            terms[name] = (
                app
                if len(form.operator.outputs) == 1 and not form.operator.outputs[0].endswith("*")
                else Project(app, position)
            )
        return terms[root], "", used

    def _leaf(self, name: str) -> Term:
        """A variable, or the numbers of a small weight."""
        return literal(self.a, name) or Var(name)

    def _proved(self, left: Term, right: Term) -> tuple[bool, str]:
        """Whether two terms over ``a``'s values are equal at the values' types."""
        renamed = {n: f"x{i}" for i, n in enumerate(variables(left, right))}
        forall: dict[str, TensorScheme] = {}
        for name, short in renamed.items():
            kind = self.a.typing.types.get(name)
            if not isinstance(kind, TensorType) or kind.shape is None:
                return False, f"the type of {name} is not known"
            letter = (
                "f"
                if kind.dtype.is_float
                else "b"
                if kind.dtype is DType.BOOL
                else "i"
                if kind.dtype is DType.INT64
                else ""
            )
            if not letter:
                return False, f"{name} is {kind.dtype}"
            forall[short] = TensorScheme(letter, kind.shape)
        sides = tuple(_renamed(t, renamed) for t in (left, right))
        key = f"{sides[0]} = {sides[1]} for {forall}"
        if key not in self._memo:
            rule = Rule("region", forall, (), (sides[0],), (sides[1],))
            seconds = min(self.time_limit, self.deadline - time.monotonic())
            if seconds <= 0:
                return False, "the time for proofs ran out"
            verdict = prove(rule, time_limit=seconds)
            shown = isinstance(verdict, ProvedAllSizes)
            self._memo[key] = shown, "" if shown else getattr(verdict, "reason", "")
        return self._memo[key]


def _renamed(term: Term, names: Mapping[str, str]) -> Term:
    """The term with variables renamed and element types left to the rule."""
    made: dict[Term, Term] = {}
    for t in postorder(term):
        attributes = None
        if isinstance(t, App):
            attributes = tuple(
                (k, v)
                for k, v in t.attributes
                if not (k == "dtype" and v in ("float32", "float16", "bfloat16", "float64"))
            )
        made[t] = Var(names[t.name]) if isinstance(t, Var) else remade(t, made, attributes)
    return made[term]


def _cut(goal: str, at: set[str]) -> Callable[[str], bool]:
    return lambda name: name != goal and name in at
