"""Costs measured when first asked for, on any :class:`superopt.cost.device.Device`, and kept in the user's cache."""

from __future__ import annotations

from collections.abc import Mapping

from superopt.cost.device import Device
from superopt.cost.measurement_request import Question
from superopt.cost.measurements import Answers, Progress
from superopt.cost.measuring_model import Asked
from superopt.cost.model import Racing
from superopt.cost.peaks import Peaks, peaks_of_header
from superopt.cost.predictor import ceilings_of
from superopt.cost.profile import Store
from superopt.cost.record import Estimate

__all__ = ["OnDevice"]


class OnDevice(Asked):
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
        self.device, self.facts = device, device.facts()
        name = "-".join(str(self.facts[k]) for k in ("backend", "device", "runtime", "precision"))
        kept = store if store is not None else Store("".join(c if c.isalnum() else "-" for c in name), self.facts)
        answers = Answers(kept, ceilings=ceilings_of(self.facts), time_limit=time_limit, progress=progress)
        super().__init__(answers, sizes, device.backend)

    @property
    def racing(self) -> Racing | None:
        return self.device.racing

    @property
    def cache_bytes(self) -> int | None:
        found = self.facts.get("cache_bytes")
        return found if isinstance(found, int) else None

    def peaks(self) -> Peaks | None:
        return peaks_of_header(self.facts)

    def _view(self) -> Estimate:
        return Estimate(float(self.facts["dispatch_ns"]) / 1e3, "measured", 0.1)

    def _lookup(self, question: Question) -> Estimate:
        return self.answers.price(self, question, self.device.key(question), self.device.time)
