"""What tells apart the rules of one name: operators, attributes, types and conditions that the others do not have.

Names are made from a rule's shape (:mod:`superopt.report.naming`), so many rules share one. A rule's difference is the
shortest choice of facts that no other rule of its name has together.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.rules import Rule, RuleLibrary, format_rule
from superopt.rules.rule import TensorVariableType, scalar_value

__all__ = ["RuleDifferences"]

_LITERAL = re.compile(r"(\w+)=(\"[^\"]*\"|\[[-\d.\", ]+\]|-?\d[\d.e+-]*)(?=[,)])")
_SETTING = re.compile(r"(\w+)=(\[[^\[\]]*\]|[^,()\[\]]+)")
_MOST = 3  # facts of one difference
_KINDS = {"f": "reals", "i": "integers", "b": "booleans"}


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
              for op, n in sorted(_counts(roots).items())]  # fmt: skip
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


def _counts(roots: Iterable[Term]) -> Counter[str]:
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
