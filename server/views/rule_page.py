"""What a rule's page begins with: what the rule gains, an example, and its verdicts in floating point in few words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.report.quantities import scientific_text, speedup_text, time_text
from superopt.rules import Rule
from superopt.rules.rule import AttributeVariableType, TensorVariableType, scalar_value

__all__ = ["example_of", "float_rows", "gain_text", "reach_text", "read_rule", "say"]

_SAME = 0.02  # share of the time below which a side is not called faster
_FLOATS: Mapping[str, str] = {
    "safe": "safe", "conditional": "safe under a condition", "unsafe": "unsafe: used by --float fast at most",
    "unknown": "not known, so it is not used",
}  # fmt: skip


def gain_text(rule: Mapping[str, Any], gain: Mapping[str, Any] | None) -> str:
    """What a rule gains by itself, in words.

    Args:
        rule: the catalogue's entry.
        gain: microseconds of both sides (:meth:`superopt.server.views.rule_evidence.RuleEvidence.gain`), where they are
            recorded.
    """
    if gain is None:
        return "Its gain is not recorded."
    left, right = float(gain["lhs_us"]), float(gain["rhs_us"])
    way = "left to right" if right <= left else "right to left"
    before, after = max(left, right), min(left, right)
    if before <= 0.0 or after >= before * (1.0 - _SAME):
        return f"Nothing by itself: each side takes {time_text(before)}, estimated."
    unused = "" if way in rule["directions"] else " That direction is not used: a name would be unbound."
    if after == 0.0:
        return f"All {time_text(before)} from {way}, estimated: what remains depends on weights alone.{unused}"
    times = f"{time_text(before)} → {time_text(after)}"
    return f"{speedup_text(after / before)} faster from {way}: {times}, estimated at the sizes of discovery.{unused}"


def reach_text(runs: Sequence[Mapping[str, Any]]) -> str:
    """In which recorded models a rule is applied, in words; of the run in which these are most."""
    most = max(runs, key=lambda run: len(run["fires"]), default=None)
    if most is None or not most["fires"]:
        return ""
    fires = most["fires"]
    names = ", ".join(f["name"] for f in fires[:3])
    first = ", among them" if len(fires) > 3 else ":"
    return f"Applied in {len(fires)} of {len(most['data'].rows)} recorded models{first} {names}."


def example_of(trial: Mapping[str, Any] | None) -> str:
    """A rule at small sizes, in words: shapes of its tensors, and how far the sides differ.

    Args:
        trial: JSON data (``superopt.trial``); none where the rule was not evaluated.
    """
    if trial is None or trial["outcome"] == "none":
        return ""
    shapes = ", ".join(f"{name}: {kind}" for name, kind in trial["inputs"].items())
    outputs = ", ".join(o["type"] for o in trial["outputs"])
    worst = max((o["difference32"] for o in trial["outputs"]), default=0.0)
    same = "equal" if trial["outcome"] == "equal" else "different"
    near = "bit for bit" if worst == 0.0 else f"within {scientific_text(worst, 1)}"
    return f"With {shapes} both sides give {outputs}, {same}{f' in float32 {near}' if same == 'equal' else ''}."


def float_rows(floats: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Verdicts in floating point with a short form each, and whether the long one says more."""
    return [{**f, "short": (short := _FLOATS.get(f["verdict"], f["verdict"])), "more": f["sentence"] != short}
            for f in floats]  # fmt: skip


# -- Prose -------------------------------------------------------------------------------------------------------------
#
# A rule in plain language: what it needs, what it says.


_PHRASES: Mapping[str, str] = {
    "Add": "{0} plus {1}", "Sub": "{0} minus {1}", "Mul": "{0} times {1}", "Div": "{0} divided by {1}",
    "Neg": "minus {0}", "MatMul": "the matrix product of {0} and {1}", "Transpose": "{0} with its axes permuted",
    "Reshape": "{0} reshaped", "Conv": "the convolution of {0} with {1}", "Relu": "the positive part of {0}",
    "Exp": "e to the power {0}", "Log": "the logarithm of {0}", "Sqrt": "the square root of {0}",
    "Pow": "{0} to the power {1}", "Abs": "the absolute value of {0}", "Max": "the larger of {0} and {1}",
    "Min": "the smaller of {0} and {1}", "ReduceSum": "the sum of {0} over some axes",
    "ReduceMean": "the mean of {0} over some axes", "ReduceMax": "the largest of {0} over some axes",
    "Slice": "a slice of {0}", "Pad": "{0} with a border", "Split": "{0} cut into pieces",
    "Softmax": "the softmax of {0}", "Sigmoid": "the sigmoid of {0}", "Tanh": "the hyperbolic tangent of {0}",
    "Clip": "{0} limited to a range", "Identity": "{0} itself", "Expand": "{0} repeated to a larger shape",
    "Squeeze": "{0} without some axes of size 1", "Unsqueeze": "{0} with new axes of size 1",
    "BatchNormalization": "the batch normalisation of {0} with scale {1}, offset {2}, mean {3} and variance {4}",
    "LayerNormalization": "the layer normalisation of {0}",
    "Gather": "the entries of {0} at the positions {1}", "Reciprocal": "one over {0}",
}  # fmt: skip
_OPTIONAL = {"Conv": ("bias",), "ConvTranspose": ("bias",), "LayerNormalization": ("scale", "offset")}
_DEEP = 6  # terms nested deeper are named by their operator


def say(root: Term) -> str:
    """A term as a noun phrase."""
    words: dict[Term, str] = {}
    depth: dict[Term, int] = {}
    for term in postorder(root):
        if isinstance(term, VariableTerm):
            words[term], depth[term] = term.name, 0
        elif isinstance(term, OutputTerm):
            words[term] = f"part {term.index + 1} of {words[term.term]}"
            depth[term] = depth[term.term]
        else:
            words[term], depth[term] = _phrase(term, words, depth)
    return words[root]


def _phrase(term: OperatorTerm, words: Mapping[Term, str], depth: Mapping[Term, int]) -> tuple[str, int]:
    if (value := scalar_value(term)) is not None:
        return (f"{value:g}" if isinstance(value, float) else str(value)), 0
    deep = 1 + max((depth[a] for a in term.args if a is not None), default=0)
    args = [words[a] if depth[a] == 0 else f"({words[a]})" for a in term.args if a is not None]
    if term.op == "Concat":
        return "the concatenation of " + " and ".join(args), deep
    pattern = _PHRASES.get(term.op)
    taken = 0 if pattern is None else pattern.count("{")
    if pattern is None or deep > _DEEP or taken > len(args):
        return f"{term.op} of {_list(args)}" if args else term.op, deep
    names = _OPTIONAL.get(term.op, ())
    rest = [f"{names[i]} {a}" if i < len(names) else a for i, a in enumerate(args[taken:])]
    return pattern.format(*args) + (f" and {_list(rest)}" if rest else ""), deep


def read_rule(rule: Rule) -> list[str]:
    """Sentences: the variables, the preconditions, the equality."""
    tensors = [f"{name} ({_shape(scheme)})" for name, scheme in rule.tensors.items()]
    sentences = [f"For all tensors {_list(tensors)}" if tensors else "Always"]
    if rule.attributes:
        sentences[0] += " and all " + _list([f"{n} ({_range(s)})" for n, s in rule.attributes.items()])
    if rule.where:
        sentences[0] += f", provided that {_list([f'{g.left} {g.relation} {g.right}' for g in rule.where])}"
    for left, right in zip(rule.lhs, rule.rhs, strict=True):
        sentences.append(f"{say(left)} equals {say(right)}.")
    sentences[0] += ":" if len(rule.lhs) == 1 else ", at the same time:"
    return sentences


def _shape(scheme: TensorVariableType) -> str:
    sizes = [*(["any leading axes"] if scheme.lead else []), *map(str, scheme.shape)]
    kind = {"f": "", "i": "integers, ", "b": "booleans, "}[scheme.dtype]
    return kind + (" × ".join(sizes) if sizes else "a single number")


def _range(scheme: AttributeVariableType) -> str:
    what = "integer" if scheme.kind == "int" else "number"
    count = what if scheme.length is None else f"{scheme.length} {what}{'s' if scheme.length != 1 else ''}"
    return f"{count} {scheme.relation} {scheme.bound}" if scheme.relation else count


def _list(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
