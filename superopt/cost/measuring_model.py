"""What cost models have in common that measure when they are asked, and keep the answers."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.cost.fusion import Backend
from superopt.cost.measurement_request import Question
from superopt.cost.measurements import Answers
from superopt.cost.model import CostModel
from superopt.cost.profile import Store
from superopt.cost.record import Estimate, Key

__all__ = ["Asked"]


class Asked(CostModel):
    """A cost model over a device's answers.

    Args:
        answers: what was measured, and how more is.
        sizes: what symbolic dimensions are costed at.
        backend: what runs the operators.
    """

    answers: Answers

    def __init__(self, answers: Answers, sizes: Mapping[str, int] | None, backend: Backend) -> None:
        super().__init__(sizes, backend)
        self.answers = answers

    @property
    def recorded(self) -> CostModel | None:
        return None

    @property
    def store(self) -> Store:
        """The answers that are kept."""
        return self.answers.store

    @property
    def measured(self) -> int:
        return self.answers.measured

    @property
    def digest(self) -> str | None:
        return f"{self.answers.digest} {self.cold!r}"

    def _known(self, key: Key) -> bool:
        return self.store.get(key.text) is not None

    def _expected(self, question: Question) -> Estimate:
        return self.predicted(question.op, question.work, question.key)

    def predicted(self, op: str, work: tuple[int, int], key: Key) -> Estimate:
        """What is expected of an application that was not measured: its operator, FLOPs and bytes, and key."""
        return self.answers.predict(op, work, key, self.colder(key))
