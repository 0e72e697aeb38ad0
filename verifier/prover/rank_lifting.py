"""Leading axes ``...`` as one axis of any size: why a proof at rank 1 is a proof at every rank.

If every operator of a rule reads its operands at exactly the leading positions of the element that it computes, an
element of a term depends only on the slices of the variables at those positions, however many axes they are written
in. So the term at positions ``(i0, i1, …)`` is the term with one leading axis at the position ``L`` that stands for
them. That is checked here on the meanings themselves: at each rank, with the run ``i0, i1, …`` written as ``L``, they
must be the meaning at rank 1, and no leading position or size may occur in any other way.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from superopt.ir.terms import App, postorder
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.rules.typing import instances, types_of

__all__ = ["RANKS", "one_axis"]

RANKS = (2, 3, 4)  # numbers of leading axes that are compared with one


def one_axis(rule: Rule) -> bool:
    """Whether every meaning in the rule treats leading axes at every rank of :data:`RANKS` as it treats one."""
    try:
        wanted = _meanings(rule, 1)
        return wanted is not None and all(_meanings(rule, rank) == wanted for rank in RANKS)
    except RuleError:
        return False


def _meanings(rule: Rule, rank: int) -> Sequence[str] | None:
    """The meanings of the rule's applications with leading positions as ``L``; ``None`` where that cannot be done."""
    (instance,) = instances(rule, (rank,))
    typed = types_of(instance)
    found = [
        _folded(str(output), rank)
        for term in postorder(*instance.lhs, *instance.rhs) if isinstance(term, App)
        for output in typed.meanings[term].outputs
    ]  # fmt: skip
    found += [_folded(str(o), rank) for meaning in typed.meanings.values() for o in meaning.obligations]
    texts = [t for t in found if t is not None]
    return texts if len(texts) == len(found) else None


def _folded(text: str, rank: int) -> str | None:
    """The text of a meaning with the run of leading positions as ``L``, and the other positions numbered from it."""
    first = re.match(r"\[i(\d+) <", text)
    start = int(first.group(1)) if first else 0  # positions are numbered on over the outputs of an operator
    text = re.sub(r"\bi(\d+)\b", lambda m: f"i{int(m.group(1)) - start}", text)
    axes = ", ".join(f"i{n} < lead_{n}" for n in range(rank))
    made = text.replace(axes, "L < lead")
    if made == text:  # no leading axes here, hence no leading positions either
        return None if re.search(r"\blead_", text) else text
    if rank == 1:
        made = re.sub(r"(?<=\[)i0(?=[,\]])", "L", made)
    else:
        made = re.sub(r"(?<=\[)" + ", ".join(f"i{n}" for n in range(rank)) + r"(?=[,\]])", "L", made)
    if re.search(r"\blead_", made) or any(re.search(rf"\bi{n}\b", made) for n in range(rank)):
        return None
    return re.sub(r"\bi(\d+)\b", lambda m: f"j{int(m.group(1)) - rank}", made)
