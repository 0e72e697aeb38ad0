"""The rule library, operators and profiles as the service shows them, and what is recorded of the rules; read once.

Names are made from a rule's shape (:mod:`superopt.report.naming`), so many rules share one. A rule's difference is the
shortest choice of facts (operators, attributes, types, conditions) that no other rule of its name has together.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from superopt import cost
from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.ops import REGISTRY, Operator
from superopt.report.algorithm_names import search_algorithms
from superopt.report.naming import RuleIndex
from superopt.rules import Rule, RuleLibrary, format_rule, load_library
from superopt.rules.float_verdicts import float_key
from superopt.rules.rule import TensorVariableType, scalar_value

__all__ = ["RuleLibraryView", "RuleDifferences", "RuleEvidence", "built_in_catalogue"]

log = logging.getLogger("superopt.serve")
_LITERAL = re.compile(r"(\w+)=(\"[^\"]*\"|\[[-\d.\", ]+\]|-?\d[\d.e+-]*)(?=[,)])")
_SETTING = re.compile(r"(\w+)=(\[[^\[\]]*\]|[^,()\[\]]+)")
_MOST = 3  # facts of one difference
_KINDS = {"f": "reals", "i": "integers", "b": "booleans"}


class RuleLibraryView:
    """The built-in library, indexed."""

    def __init__(self) -> None:
        self.library: RuleLibrary = load_library()
        self.index = RuleIndex(self.library)
        self.differences = RuleDifferences(self.library, self.index.names)
        self.entries: Mapping[str, Mapping[str, Any]] = {i: self._entry(self.library[i]) for i in self.library}

    @cached_property
    def digest(self) -> str:
        """Of every rule's text, meaning and verdict: what a result depends on."""
        rows = [(i, self.library.digests[i], self.library.verdict_name(i)) for i in self.library]
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()

    @lru_cache(maxsize=256)  # noqa: B019  (one catalogue per process)
    def choices(self, operator: str, family: str, verdict: str, q: str) -> Mapping[str, Mapping[str, int]]:
        """For each filter its values, sorted, and how many rules would be found with it and the other filters."""
        return {
            "operator": _counts(o for e in self.select("", family, verdict, q) for o in e["operators"]),
            "family": _counts(e["family"] for e in self.select(operator, "", verdict, q)),
            "verdict": _counts(e["verdict"] for e in self.select(operator, family, "", q)),
        }

    def _entry(self, rule: Rule) -> dict[str, Any]:
        text = format_rule(rule)
        return {
            "id": rule.id, "name": self.index.names[rule.id], "differs": self.differences.of(rule.id),
            "known_as": list(self.index.known_as(rule.id)),
            "family": rule.family, "verdict": self.library.verdict_name(rule.id),
            "operators": sorted(rule.operators), "forall": text["forall"], "where": text["where"],
            "lhs": text["lhs"], "rhs": text["rhs"], "origin": rule.origin,
            "directions": [d for d, can in (("left to right", rule.forward), ("right to left", rule.backward)) if can],
        }  # fmt: skip

    def rule(self, rule_id: str) -> dict[str, Any] | None:
        """One rule with all that is known of it."""
        if rule_id not in self.entries:
            return None
        proof = {k: v for k, v in self.library.verdicts.get(rule_id, {}).items() if k != "id"}
        certificate = f"/v1/rules/{rule_id}/certificate" if self.proved(rule_id) else None
        return {
            **self.entries[rule_id], "digest": self.library.digests[rule_id], "proof": proof,
            "floats": self._floats(rule_id),
            "links": {"self": f"/v1/rules/{rule_id}", "page": f"/rules/{rule_id}", "certificate": certificate},
        }  # fmt: skip

    def _floats(self, rule_id: str) -> list[dict[str, Any]]:
        """Verdicts in floating point: of each direction in each element type, with the worst point found."""
        found = self.library.float_store.get(float_key(self.library[rule_id]), {})
        names = {"forward": "left to right", "backward": "right to left"}
        return [
            {"direction": names[way], "type": dtype, "sentence": verdict.sentence, **verdict.as_data()}
            for way, by_type in found.items() for dtype, verdict in by_type.items()
        ]  # fmt: skip

    def proved(self, rule_id: str) -> bool:
        """Whether a rule is proved for all sizes, so that there is a certificate of it."""
        return self.library.verdict_name(rule_id) == "proved_all_sizes"

    @lru_cache(maxsize=512)  # noqa: B019  (one catalogue per process)
    def select(self, operator: str, family: str, verdict: str, q: str) -> Sequence[Mapping[str, Any]]:
        """The entries that fit all filters, by id; with words (:meth:`RuleIndex.search`) the likeliest first. An empty
        filter fits everything."""
        return [
            e for e in (self.entries[i] for i in self.index.search(q))
            if (not operator or operator in e["operators"])
            and (not family or family == e["family"])
            and (not verdict or verdict == e["verdict"])
        ]  # fmt: skip

    def rest(self, operator: str, family: str, verdict: str, q: str, after: str) -> Sequence[Mapping[str, Any]]:
        """The entries of :meth:`select` that come after one; all of them after none, or after one that is not there."""
        found = self.select(operator, family, verdict, q)
        if not q:
            return [e for e in found if e["id"] > after]
        return found[1 + next((n for n, e in enumerate(found) if e["id"] == after), -1) :]

    @lru_cache(maxsize=256)  # noqa: B019
    def page(self, operator: str, family: str, verdict: str, q: str, after: str, limit: int) -> bytes:
        """A page of the list as JSON, ready to send."""
        found = self.select(operator, family, verdict, q)
        rest = self.rest(operator, family, verdict, q, after)
        following = rest[limit - 1]["id"] if len(rest) > limit else None
        data: dict[str, Any] = {"rules": rest[:limit], "total": len(found), "next": following, "digest": self.digest}
        if q and not (operator or family or verdict or after):
            data["algorithms"] = search_algorithms(q)
        return json.dumps(data, ensure_ascii=False).encode()

    @cached_property
    def operators(self) -> bytes:
        """Every operator superopt understands, as JSON."""
        used: dict[str, int] = {}
        for entry in self.entries.values():
            for name in entry["operators"]:
                used[name] = used.get(name, 0) + 1
        rows = [{**_operator(REGISTRY[name]), "rules": used.get(name, 0)} for name in REGISTRY]
        return json.dumps({"operators": rows, "total": len(rows)}).encode()

    def profiles(self) -> list[dict[str, Any]]:
        """The recorded profiles that ship with superopt, and what they were recorded on."""
        return [
            {"name": name, "target": f"profile:{name}", **cost.load_profile(name).header}
            for name in cost.profile_names()
        ]


@cache
def built_in_catalogue() -> RuleLibraryView:
    """The catalogue of this process: its library never changes, and indexing it takes a second."""
    return RuleLibraryView()


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _operator(record: Operator) -> dict[str, Any]:
    return {
        "name": record.name, "domain": record.domain, "family": record.family, "since": record.since,
        "inputs": list(record.inputs), "outputs": list(record.outputs), "attributes": dict(record.attributes),
        "dtypes": sorted(record.dtypes), "commutative": record.commutative,
    }  # fmt: skip


class RuleEvidence:
    """The files beside the rules; read once. What is not there is not known."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def _gains(self) -> Mapping[str, Any]:
        return self._read("gains.json")

    @cached_property
    def _record(self) -> Mapping[str, Any]:
        return self._read("certificates/record.json")

    def gain(self, rule_id: str) -> Mapping[str, Any] | None:
        """``lhs_us``, ``rhs_us`` (microseconds) and their ``source``: both sides costed at the sizes of discovery."""
        found = self._gains.get(rule_id)
        return found if found and found["lhs_us"] is not None and found["rhs_us"] is not None else None

    def certified(self, digest: str) -> Mapping[str, Any] | None:
        """When a rule's certificate was checked, by which solvers, and how many goals they answered."""
        row = self._record.get("rules", {}).get(digest)
        if row is None:
            return None
        solvers = [f"{name} {release}" for name, release in self._record["solvers"].items()]
        return {"date": self._record["date"], "solvers": solvers, "goals": row["goals"], "points": row["points"]}

    def _read(self, name: str) -> Mapping[str, Any]:
        path = self._folder / name
        try:
            found = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            log.warning("%s: %s", path, error)
            return {}
        return found if isinstance(found, dict) else {}


class RuleDifferences:
    """Differences of a library's rules; those of a name are found when one of them is asked for.

    Args:
        library: whose rules.
        names: of the rules, by id.
    """

    def __init__(self, library: RuleLibrary, names: Mapping[str, str]) -> None:
        self._library = library
        self._names = names
        self._groups: dict[str, list[str]] = defaultdict(list)
        for rule_id, name in names.items():
            self._groups[name].append(rule_id)
        self._found: dict[str, str] = {}

    def namesakes(self, rule_id: str) -> Sequence[str]:
        """The other rules of a rule's name."""
        return [i for i in self._groups[self._names[rule_id]] if i != rule_id]

    def of(self, rule_id: str) -> str:
        """What a rule has that the others of its name have not; empty where its name is its own."""
        group = self._groups[self._names[rule_id]]
        if len(group) < 2:
            return ""
        if rule_id not in self._found:
            self._found |= _group_differences({i: self._library[i] for i in group}, self._names[rule_id])
        return self._found[rule_id]


def _group_differences(rules: Mapping[str, Rule], name: str) -> dict[str, str]:
    facts = {i: _facts(rule, name) for i, rule in rules.items()}
    operators = {i: rule.operators for i, rule in rules.items()}
    every = sorted(set().union(*operators.values()))
    for i in rules:
        facts[i] += [f"no {op}" for op in every if op not in operators[i]]
    holders: dict[str, set[str]] = defaultdict(set)
    for i, found in facts.items():
        for fact in found:
            holders[fact].add(i)
    return {i: _shortest(i, facts[i], holders) or _equation(rules[i]) for i in rules}


def _shortest(rule_id: str, facts: Sequence[str], holders: Mapping[str, set[str]]) -> str:
    """Facts that no other rule has together, each the one that leaves the fewest others; empty where there are none."""
    others = set().union(*(holders[f] for f in facts)) - {rule_id}
    chosen: list[str] = []
    while others and len(chosen) < _MOST:
        best = min(facts, key=lambda fact: len(others & holders[fact]))
        left = others & holders[best]
        if left == others:
            return ""
        chosen.append(best)
        others = left
    return ", ".join(chosen) if not others else ""


def _facts(rule: Rule, name: str) -> list[str]:
    """Facts in words, the most telling first."""
    text: dict[str, Any] = format_rule(rule)
    mentioned = set(name.replace(",", "").split())
    found = [f"with {op}" for op in sorted(rule.operators) if op not in mentioned]
    found += [f"if {condition}" for condition in text["where"]]
    if len(rule.lhs) > 1:
        found.append(f"{len(rule.lhs)} outputs")
    found += dict.fromkeys(f"{key}={value}" for side in (*text["lhs"], *text["rhs"])
                           for key, value in _LITERAL.findall(side))  # fmt: skip
    found += _type_facts(rule)
    found += [f"{n} {op} on the {side}" for side, roots in (("left", rule.lhs), ("right", rule.rhs))
              for op, n in sorted(_operator_counts(roots).items())]  # fmt: skip
    found += [f"the constant {value:g}" for value in _constants((*rule.lhs, *rule.rhs))]
    found += [f"only {way}" for way, can in (("right to left", rule.forward), ("left to right", rule.backward))
              if not can]  # fmt: skip
    found += [f"{name}: {scheme}" for name, scheme in text["forall"].items()]
    found += dict.fromkeys(f"{key}={value}" for side in (*text["lhs"], *text["rhs"])
                           for key, value in _SETTING.findall(side))  # fmt: skip
    return [*found, _skeleton(rule)]


def _type_facts(rule: Rule) -> list[str]:
    schemes = [s for s in rule.tensors.values() if isinstance(s, TensorVariableType)]
    kinds = sorted({s.dtype for s in schemes} - {"f"})
    facts = [f"on {_KINDS[kind]}" for kind in kinds]
    facts.append("for any rank" if any(s.lead for s in schemes) else
                 f"for rank {max((len(s.shape) for s in schemes), default=0)}")  # fmt: skip
    return [*facts, f"{len(schemes)} tensors"]


def _operator_counts(roots: Iterable[Term]) -> Counter[str]:
    return Counter(t.op for t in postorder(*roots) if isinstance(t, OperatorTerm) and scalar_value(t) is None)


def _constants(roots: Iterable[Term]) -> list[float]:
    values = (scalar_value(t) for t in postorder(*roots) if isinstance(t, OperatorTerm))
    return sorted({float(v) for v in values if isinstance(v, int | float)})


def _equation(rule: Rule) -> str:
    """Both sides as they are written: for a rule that a few facts do not tell from the others."""
    text: dict[str, Any] = format_rule(rule)
    return "; ".join(f"{left} = {right}" for left, right in zip(text["lhs"], text["rhs"], strict=True))


def _skeleton(rule: Rule) -> str:
    """Both sides without attributes."""
    left, right = (" and ".join(map(_plain, side)) for side in (rule.lhs, rule.rhs))
    return f"{left} = {right}"


def _plain(root: Term) -> str:
    words: dict[Term, str] = {}
    for term in postorder(root):
        if isinstance(term, VariableTerm):
            words[term] = term.name
        elif isinstance(term, OutputTerm):
            words[term] = f"{words[term.term]}[{term.index}]"
        elif (value := scalar_value(term)) is not None:
            words[term] = f"{value:g}" if isinstance(value, float) else str(value)
        else:
            words[term] = f"{term.op}({', '.join(words[a] for a in term.args if a is not None)})"
    return words[root]
