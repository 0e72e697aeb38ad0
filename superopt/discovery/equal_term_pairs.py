"""Coinciding terms as how they are made: rows of thirty bytes, and terms of a kilobyte while somebody looks at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from superopt.ir.terms import OperatorTerm, OutputTerm, Term
from superopt.rules.canonical import map_terms
from superopt.runtime.comprehension_evaluation import Array

__all__ = ["CompactTermPairs", "TemplateApplication", "EqualTermPairs"]


class EqualTermPairs(Protocol):
    """Coinciding terms in order: (member, representative)."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[tuple[Term, Term]]: ...


@dataclass(frozen=True)
class TemplateApplication:
    """How a template is applied.

    Attributes:
        term: with variables for the operands; ``holes`` are their names.
        several: whether it has more than one output.
    """

    term: Term
    holes: tuple[str, ...]
    several: bool

    def applied(self, operands: Sequence[Term], output: int) -> Term:
        """An output of the template applied to terms."""
        (term,) = map_terms((self.term,), dict(zip(self.holes, operands, strict=True)), {})
        return OutputTerm(term, output) if self.several and isinstance(term, OperatorTerm) else term


@dataclass
class CompactTermPairs:
    """:class:`EqualTermPairs` of one size after the other, whose terms are made whenever somebody goes through them.

    Attributes:
        pairs: the first ones, as terms.
        classes: terms of the classes that are operands, by their numbers; it may grow as long as pairs are added.
        arity: operands of a form, at most.
    """

    pairs: Sequence[tuple[Term, Term]]
    classes: list[Term]
    arity: int
    _forms: dict[TemplateApplication, int] = field(default_factory=dict)
    _sizes: list[tuple[Array, Array, Array]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.pairs) + sum(len(members) for members, _, _ in self._sizes)

    def __iter__(self) -> Iterator[tuple[Term, Term]]:
        yield from self.pairs
        forms = list(self._forms)
        for members, known_array, firsts in self._sizes:
            for member, number, first in zip(members, known_array.tolist(), firsts, strict=True):
                yield self._term(forms, member), self.classes[number] if number >= 0 else self._term(forms, first)

    def _term(self, forms: Sequence[TemplateApplication], row: Any) -> Term:
        form = forms[int(row["form"])]
        return form.applied([self.classes[c] for c in row["operands"][: len(form.holes)].tolist()], int(row["output"]))

    def compact(self, rows: Array, form: Callable[[int, int], TemplateApplication]) -> Array:
        """Rows that say how a term is made, in few bytes.

        Args:
            rows: with fields ``group``, ``variant``, ``output`` and ``operands``, which are classes.
            form: of a group and a variant.
        """
        array = np.zeros(len(rows), [("form", "<i4"), ("output", "i1"), ("operands", "<i4", (self.arity,))])
        array["output"], array["operands"] = rows["output"], rows["operands"]
        which, inverse = np.unique(rows["group"].astype(np.int64) << 8 | rows["variant"], return_inverse=True)
        numbers = [self._forms.setdefault(form(w >> 8, w & 255), len(self._forms)) for w in which.tolist()]
        array["form"] = np.array(numbers, np.int32)[inverse.ravel()] if numbers else 0
        return array

    def add(self, members: Array, firsts: Array, known: Array) -> None:
        """The pairs of a size, in order: compact rows of the members and of what each coincides with, and the class of
        the latter where it is one, else -1."""
        self._sizes.append((members, known.astype(np.int32), firsts))
