"""The rule library: the grammar rules are written in, the reader of ``*.toml``, and the store of verdicts."""

from __future__ import annotations

if __name__ != "superopt.rules":
    raise ImportError("import superopt.rules; rules/ is where its source lives")

from superopt.rules.grammar import RuleError, format_rule, parse_rule, parse_term
from superopt.rules.library import RuleLibrary, load_library
from superopt.rules.rule import AttributeVariableType, Rule, RulePrecondition, TensorVariableType, TypeScheme

__all__ = [
    "AttributeVariableType",
    "RulePrecondition",
    "RuleLibrary",
    "Rule",
    "RuleError",
    "TensorVariableType",
    "TypeScheme",
    "format_rule",
    "load_library",
    "parse_rule",
    "parse_term",
]
