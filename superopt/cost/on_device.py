"""Costs measured when first asked for, on any :class:`superopt.cost.device.Device`, and kept in the user's cache."""

from __future__ import annotations

import time
from collections.abc import Mapping

from superopt.cost.device import Device
from superopt.cost.model import CostModel, Progress
from superopt.cost.predictor import Predictor, ceilings_of
from superopt.cost.profile import Store
from superopt.cost.question import Question
from superopt.cost.record import Estimate
from superopt.ir.errors import SuperoptError
from superopt.ops.record import NotCovered

__all__ = ["OnDevice"]

_CANNOT_RUN = 1e3  # a form that the device refuses is costed at this many times its prediction: finite, never chosen


class OnDevice(CostModel):
    """A device's own answers.

    Args:
        device: what is timed.
        store: where records are kept; by default a file of the user's cache, named by device, versions and precision.
        sizes: what symbolic dimensions are costed at.
        time_limit: seconds that may be spent measuring; what comes later is predicted.
        progress: called with (measured so far, None, what) before each measurement.
    """

    def __init__(
        self,
        device: Device,
        *,
        store: Store | None = None,
        sizes: Mapping[str, int] | None = None,
        time_limit: float = float("inf"),
        progress: Progress | None = None,
    ) -> None:
        super().__init__(sizes, device.backend)
        self.device, self.facts = device, device.facts()
        name = "-".join(str(self.facts[k]) for k in ("backend", "device", "runtime", "precision"))
        self.store = store if store is not None else Store("".join(c if c.isalnum() else "-" for c in name), self.facts)
        self._progress, self._left = progress, time_limit
        self._refused: set[str] = set()
        self._done = 0

    @property
    def cache_bytes(self) -> int | None:
        found = self.facts.get("cache_bytes")
        return found if isinstance(found, int) else None

    def _view(self) -> Estimate:
        return Estimate(float(self.facts["dispatch_ns"]) / 1e3, "measured", 0.1)

    def _lookup(self, question: Question) -> Estimate:
        key = self.device.key(question)
        record = self.store.get(key.text)
        if record is not None:
            return self._estimate(record)
        if key.text not in self._refused and self._left > 0:
            if self._progress is not None:
                self._progress(self._done, None, f"measuring {key.op}")
            start = time.monotonic()
            try:
                record = self.device.time(question).record(key, *question.work)
                self.store.add(record)
                return self._estimate(record)
            except NotCovered:  # it cannot be written alone, which says nothing against it
                self._refused.discard(key.text)
            except SuperoptError:
                self._refused.add(key.text)
            finally:
                self._left -= time.monotonic() - start
                self._done += 1
        found = Predictor.fit(self.store.records, ceilings_of(self.facts)).predict(question.op, *question.work)
        if key.text in self._refused:
            return Estimate(found.us * _CANNOT_RUN, "roofline", 1.0)
        return found
