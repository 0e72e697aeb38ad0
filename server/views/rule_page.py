"""What a rule's page begins with: what the rule gains, an example, its verdicts in floating point, and its sides drawn.

A side is an SVG: inputs at the top, shared parts once, the result at the bottom. No script, no style.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from superopt.ir.terms import OperatorTerm, OutputTerm, Term, VariableTerm, postorder
from superopt.report.quantities import scientific_text, speedup_text, time_text
from superopt.rules import Rule
from superopt.rules.rule import AttributeVariableType, TensorVariableType, scalar_value

__all__ = ["draw", "example_of", "float_rows", "gain_text", "reach_text", "read_rule", "say"]

_SAME = 0.02  # share of the time below which a side is not called faster
_FLOATS: Mapping[str, str] = {
    "safe": "safe", "conditional": "safe under a condition", "unsafe": "unsafe: used by --float fast at most",
    "unknown": "not known, so it is not used",
}  # fmt: skip

_CHAR, _SMALL, _HIGH, _LINE, _GAP, _BETWEEN = 7.6, 5.2, 32, 12, 18, 28
_WRAP = 38  # characters of a line of attributes: all of them are shown, for they may be what a rule is about


def gain_text(rule: Mapping[str, Any], gain: Mapping[str, Any] | None) -> str:
    """What a rule gains by itself, in words.

    Args:
        rule: the catalogue's entry.
        gain: microseconds of both sides (:meth:`superopt.server.views.catalogue.RuleEvidence.gain`), where they are
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


def draw(roots: Sequence[Term], title: str) -> str:
    """The expression graph of some terms, which may share parts.

    Args:
        roots: one per output.
        title: what a screen reader says.
    """
    terms = [t for t in postorder(*roots) if not isinstance(t, OutputTerm)]
    level = _levels(terms)
    rows: list[list[Term]] = [[] for _ in range(max(level.values()) + 1)]
    for term in terms:
        rows[level[term]].append(term)
    place, width, height = _places(rows)
    parts = [_edges(term, place) for term in terms]
    parts += [_box(term, *place[term]) for term in terms]
    for number, root in enumerate(roots):
        x, y = place[_below(root)]
        bottom = y + _high(_below(root)) / 2
        label = f"output {number + 1}" if len(roots) > 1 else "output"
        shift = _port(root) * 12
        parts.append(f'<path class="edge" d="M{x + shift:.0f} {bottom:.0f} v14"/>'
                     f'<text class="out" x="{x + shift:.0f}" y="{bottom + 26:.0f}">{label}</text>')  # fmt: skip
    return (
        f'<svg class="graph" role="img" viewBox="0 0 {width:.0f} {height + 22:.0f}" width="{width:.0f}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def _below(term: Term) -> Term:
    while isinstance(term, OutputTerm):
        term = term.term
    return term


def _port(term: Term) -> int:
    return term.index if isinstance(term, OutputTerm) else 0


def _arguments(term: Term) -> list[Term]:
    return [a for a in term.args if a is not None] if isinstance(term, OperatorTerm) else []


def _levels(terms: Sequence[Term]) -> dict[Term, int]:
    level: dict[Term, int] = {}
    for term in terms:
        level[term] = max((level[_below(a)] + 1 for a in _arguments(term)), default=0)
    return level


def _label(term: Term) -> tuple[str, list[str]]:
    """The text in a box, and the lines of its attributes."""
    if isinstance(term, VariableTerm):
        return term.name, []
    assert isinstance(term, OperatorTerm)
    if (value := scalar_value(term)) is not None:
        return (f"{value:g}" if isinstance(value, float) else str(value)), []
    return term.op, textwrap.wrap(", ".join(f"{k}={_text(v)}" for k, v in term.attributes), _WRAP)


def _text(value: object) -> str:
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, tuple) else str(value)


def _wide(term: Term) -> float:
    label, more = _label(term)
    return max(30.0, len(label) * _CHAR + 16, max(map(len, more), default=0) * _SMALL + 12)


def _high(term: Term) -> float:
    return _HIGH + _LINE * max(0, len(_label(term)[1]) - 1)


def _places(rows: Sequence[Sequence[Term]]) -> tuple[dict[Term, tuple[float, float]], float, float]:
    """Centres, each row in the middle; how wide and how high all of it is."""
    spans = [sum(_wide(t) for t in row) + _GAP * (len(row) - 1) for row in rows]
    width = max(spans) + 2 * _GAP
    place: dict[Term, tuple[float, float]] = {}
    top: float = _GAP
    for row, span in zip(rows, spans, strict=True):
        x, high = (width - span) / 2, max(map(_high, row))
        for term in row:
            place[term] = (x + _wide(term) / 2, top + high / 2)
            x += _wide(term) + _GAP
        top += high + _BETWEEN
    return place, width, top


def _edges(term: Term, place: dict[Term, tuple[float, float]]) -> str:
    found = []
    arguments = _arguments(term)
    x, y = place[term]
    for number, argument in enumerate(arguments):
        source_x, source_y = place[_below(argument)]
        start = source_x + _port(argument) * 12
        end = x + (number - (len(arguments) - 1) / 2) * 10
        y0, y1 = source_y + _high(_below(argument)) / 2, y - _high(term) / 2
        middle = (y0 + y1) / 2
        found.append(f'<path class="edge" d="M{start:.0f} {y0:.0f} C{start:.0f} {middle:.0f} {end:.0f} {middle:.0f} '
                     f'{end:.0f} {y1:.0f}"/>')  # fmt: skip
    return "".join(found)


def _box(term: Term, x: float, y: float) -> str:
    label, more = _label(term)
    wide, high = _wide(term), _high(term)
    top = y - high / 2
    kind = "op" if isinstance(term, OperatorTerm) and scalar_value(term) is None else "leaf"
    round_ = 5 if kind == "op" else 13
    text = f'<text x="{x:.0f}" y="{top + (14 if more else 20.5):.0f}">{escape(label)}</text>'
    for number, line in enumerate(more):
        text += f'<text class="more" x="{x:.0f}" y="{top + 27 + _LINE * number:.0f}">{escape(line)}</text>'
    return (
        f'<g class="{kind}"><title>{escape(" ".join((label, *more)))}</title>'
        f'<rect x="{x - wide / 2:.0f}" y="{top:.0f}" width="{wide:.0f}" height="{high:.0f}" rx="{round_}"/>'
        f"{text}</g>"
    )
