"""What would have to be measured: the costs that a recorded profile gives, and a note of what it could not answer.

The search asks such a model as it asks one that measures (:class:`superopt.extraction.node_costs.Pricer`): what is not
in its store is predicted, and asked for once an extraction wants it. So the notes hold what is decisive, not every
e-node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from superopt.cost.fusion import Backend
from superopt.cost.measurement_request import Question
from superopt.cost.profile import Profile
from superopt.cost.record import Estimate, Key, Record
from superopt.cost.recorded import RecordedProfile

__all__ = ["Planning"]


class Planning(RecordedProfile):
    """A recorded profile that grows: what it is asked and lacks is noted in ``missing``, by key.

    Args:
        records: what is known already.
        header: of the profile that is being recorded.
        backend: what runs the operators.
        sizes: what symbolic dimensions are costed at.
    """

    def __init__(
        self,
        records: Iterable[Record],
        header: Mapping[str, Any],
        backend: Backend,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        known = {r.key.text: r for r in records}
        super().__init__(Profile({**header, "backend": backend.name}, known), sizes)
        self.asked: dict[tuple[object, ...], Question] = {}
        self.missing: dict[tuple[object, ...], Question] = {}

    def _known(self, key: Key) -> bool:
        return key.question in self._answers

    def _lookup(self, question: Question) -> Estimate:
        place = question.key.question
        self.asked.setdefault(place, question)
        if place not in self._answers:
            self.missing.setdefault(place, question)
        return super()._lookup(question)
