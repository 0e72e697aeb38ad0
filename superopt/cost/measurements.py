"""What a device has answered, and how it is asked more: a store, a limit on the time spent measuring, a prediction.

Shared by every cost model that measures (:mod:`superopt.cost.measured`, :mod:`superopt.cost.on_device`) and by its
copies in context, so that all of them spend one budget, know what failed, and fit one predictor.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from superopt.cost.measure import Timing
from superopt.cost.measurement_request import Question
from superopt.cost.predictor import Ceilings, Predictor
from superopt.cost.profile import Store
from superopt.cost.record import Estimate, Key, Record
from superopt.ir.errors import SuperoptError
from superopt.ops.record import NotCovered

__all__ = ["Answers", "Learnt", "Progress", "refused"]

Progress = Callable[[int, int | None, str], None]
_REFIT = 1.25  # growth of the store after which the predictor is fitted again: the first records say the most
_CANNOT_RUN = 1e3  # a form that a device refuses is costed at this many times its prediction: finite, never chosen


@dataclass(frozen=True)
class Learnt:
    """What one process found out: new records, the measurements it made for them, and the seconds they took."""

    records: tuple[Record, ...]
    measured: int
    seconds: float
    failed: AbstractSet[str]
    alone: AbstractSet[str]


class Answers:
    """Records by key, measured when first asked for.

    Args:
        store: where records are kept.
        ceilings: the device's, for predictions; by default the usual ones.
        time_limit: seconds that may be spent measuring; what comes later is not measured.
        progress: called with (measured so far, None, what) before each measurement.

    Attributes:
        measured: how many measurements were made (what the store held already is not counted).
    """

    def __init__(
        self,
        store: Store,
        *,
        ceilings: Ceilings | None = None,
        time_limit: float = float("inf"),
        progress: Progress | None = None,
    ) -> None:
        self.store = store
        self.measured = 0
        self._ceilings, self._progress, self._limit = ceilings, progress, time_limit
        self._seconds = 0.0  # that measuring took
        self._failed: set[str] = set()
        self._alone: set[str] = set()  # what cannot be timed by itself
        self._fitted: tuple[int, Predictor] | None = None
        self._begun = (0, 0, 0.0)  # records, measurements and seconds when this process began

    def get(self, key: Key, time_it: Callable[[], Timing], work: tuple[int, int]) -> Record | None:
        """The record of a key, measured now if need be; ``None`` when it cannot be measured or time is up.

        Args:
            key: what it is filed under.
            time_it: measures it; a ``SuperoptError`` says that the device refuses it, ``NotCovered`` only that it
                cannot be timed by itself.
            work: FLOPs and bytes, for the record.
        """
        known = self.store.get(key.text)
        if known is not None or self.late or key.text in self._failed or key.text in self._alone:
            return known
        if self._progress is not None:
            self._progress(self.measured, None, f"measuring {key.op}")
        start = time.monotonic()
        try:
            record = time_it().record(key, *work)
        except NotCovered:
            self._alone.add(key.text)
            return None
        except SuperoptError:
            self._failed.add(key.text)
            return None
        finally:
            self._seconds += time.monotonic() - start
            self.measured += 1
        self.store.add(record)
        return record

    @property
    def late(self) -> bool:
        """Whether nothing more is measured because the time for it is over: the clock decides what is predicted."""
        return self._seconds >= self._limit

    @property
    def digest(self) -> str:
        """What tells these answers from a device's others: the store, and the first of its records, since records are
        added to, not changed."""
        first = next(iter(self.store.records), None)
        start = "" if first is None else json.dumps(first.as_data(), sort_keys=True)
        return f"measured {self.store.path.name} {start}{' late' * self.late}"

    def tell(self, progress: Progress) -> None:
        """Call this before each measurement from here on."""
        self._progress = progress

    def begin(self) -> None:
        """This is a copy of a process: what it knows so far, that one knows, too."""
        self._begun = (len(self.store), self.measured, self._seconds)

    def learnt(self) -> Learnt:
        """What this process found out since it began."""
        records, measured, seconds = self._begun
        return Learnt(
            self.store.records[records:], self.measured - measured, self._seconds - seconds, self._failed, self._alone
        )

    def take(self, learnt: Learnt) -> None:
        """Know what a copy of this process found out, too; the store's file has it already."""
        self.store.know(learnt.records)
        self.measured += learnt.measured
        self._seconds += learnt.seconds
        self._failed |= learnt.failed
        self._alone |= learnt.alone

    def failed(self, key: Key) -> bool:
        """Whether the device refused what the key names."""
        return key.text in self._failed

    def price(self, model: Pricing, question: Question, key: Key, time_it: Callable[[Question], Timing]) -> Estimate:
        """What a model says of a question: by its record, measured now if need be; else predicted, and dear where the
        device refuses the form."""
        record = self.get(key, partial(time_it, question), question.work)
        if record is not None:
            return model.estimate_of(record)
        found = model.predicted(question.op, question.work, question.key)
        return refused(found) if self.failed(key) else found

    def predict(self, op: str, work: tuple[int, int], key: Key, cold: float) -> Estimate:
        """What is not measured, from what is; fitted again as records come in."""
        if self._fitted is None or len(self.store) > _REFIT * self._fitted[0]:
            self._fitted = (len(self.store), Predictor.fit(self.store.records, self._ceilings))
        return self._fitted[1].predict(op, *work, key, cold)


class Pricing(Protocol):
    """A cost model as far as :meth:`Answers.price` needs it."""

    def estimate_of(self, record: Record) -> Estimate:
        """What a record says."""

    def predicted(self, op: str, work: tuple[int, int], key: Key) -> Estimate:
        """What is expected of an application that was not measured."""


def refused(prediction: Estimate) -> Estimate:
    """The cost of a form that the device refuses to run: finite, and never chosen."""
    return Estimate(prediction.us * _CANNOT_RUN, "roofline", 1.0)
