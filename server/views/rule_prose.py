"""A rule in plain language: what it needs, what it says."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.ir.terms import App, Project, Term, Var, postorder
from superopt.rules import Rule
from superopt.rules.rule import AttributeScheme, TensorScheme, scalar_value

__all__ = ["read_rule", "say"]

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
        if isinstance(term, Var):
            words[term], depth[term] = term.name, 0
        elif isinstance(term, Project):
            words[term] = f"part {term.index + 1} of {words[term.term]}"
            depth[term] = depth[term.term]
        else:
            words[term], depth[term] = _phrase(term, words, depth)
    return words[root]


def _phrase(term: App, words: Mapping[Term, str], depth: Mapping[Term, int]) -> tuple[str, int]:
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


def _shape(scheme: TensorScheme) -> str:
    sizes = [*(["any leading axes"] if scheme.lead else []), *map(str, scheme.shape)]
    kind = {"f": "", "i": "integers, ", "b": "booleans, "}[scheme.dtype]
    return kind + (" × ".join(sizes) if sizes else "a single number")


def _range(scheme: AttributeScheme) -> str:
    what = "integer" if scheme.kind == "int" else "number"
    count = what if scheme.length is None else f"{scheme.length} {what}{'s' if scheme.length != 1 else ''}"
    return f"{count} {scheme.relation} {scheme.bound}" if scheme.relation else count


def _list(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
