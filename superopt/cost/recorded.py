"""Costs read from a recorded profile: nothing is measured, and the same answer comes everywhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property

from superopt.cost.cache_model import Ramp, ramp_of_header
from superopt.cost.fusion import BACKENDS, ONNX_RUNTIME_CPU, Backend
from superopt.cost.measurement_request import Question
from superopt.cost.measurements import refused
from superopt.cost.model import CostModel
from superopt.cost.peaks import Peaks, peaks_of_header
from superopt.cost.predictor import Predictor, ceilings_of
from superopt.cost.profile import Profile, factor_of
from superopt.cost.record import Estimate, Key, Record

__all__ = ["RecordedProfile"]

_DISPATCH_NS = 200.0  # of a view, where the profile does not say


class RecordedProfile(CostModel):
    """Costs from a recorded profile of any device; what it lacks is predicted from its own records.

    Args:
        profile: header and records. Its header names the backend (what fuses, what is a view), the size of the last
            cache, and the measured ceilings. Of several engines that answer one question the fastest counts.
        sizes: what symbolic dimensions are costed at.
        backend: what runs the operators, if not what the profile was recorded with.
    """

    def __init__(
        self, profile: Profile, sizes: Mapping[str, int] | None = None, backend: Backend | None = None
    ) -> None:
        super().__init__(sizes, backend or BACKENDS.get(str(profile.header.get("backend")), ONNX_RUNTIME_CPU))
        self.profile = profile
        self.predictor = Predictor.fit(profile.records.values(), ceilings_of(profile.header))
        self._answers: dict[tuple[object, ...], Record] = {}
        self._predicted: dict[tuple[str, tuple[int, int], Key], Estimate] = {}
        for _, record in sorted(profile.records.items()):
            known = self._answers.get(record.key.question)
            if known is None or record.ns_cold < known.ns_cold:
                self._answers[record.key.question] = record

        refused = profile.header.get("refused")
        self._refused = frozenset(map(_asked, refused)) if isinstance(refused, list) else frozenset()

    @property
    def cache_bytes(self) -> int | None:
        limit = self.profile.header.get("cache_bytes")
        return int(limit) if isinstance(limit, int) else None

    @property
    def streamed(self) -> float:
        return super().streamed / factor_of(self.profile.header, "memory")

    @cached_property
    def ramp(self) -> Ramp | None:
        return ramp_of_header(self.profile.header) or super().ramp

    @property
    def digest(self) -> str | None:
        profile = self.profile
        scale = json.dumps(profile.header.get("calibration", {}).get("factors"), sort_keys=True)
        return (
            f"recorded {profile.header.get('sha256')} {len(profile.records)} {scale} {self.backend.name} {self.cold!r}"
        )

    def peaks(self) -> Peaks | None:
        return peaks_of_header(self.profile.header)

    def predicted(self, op: str, work: tuple[int, int], key: Key) -> Estimate:
        """What is expected of an application that was not measured: its operator, FLOPs and bytes, and key."""
        # Of cold weights, wherever they are: nothing settles these by measuring, and warm times scatter more, so that
        # gains drown in the noise (MobileOne kept its branches, 0.44 of the cost where it had been 0.22).
        asked = op, work, key
        found = self._predicted.get(asked)
        if found is None:
            found = self._predicted[asked] = self.predictor.predict(op, *work, key)
        return found

    def _expected(self, question: Question) -> Estimate:
        return self.predicted(question.op, question.work, question.key)

    def _view(self) -> Estimate:
        return Estimate(float(self.profile.header.get("dispatch_ns", _DISPATCH_NS)) / 1e3, "measured", 0.1)

    def _lookup(self, question: Question) -> Estimate:
        record = self._answers.get(question.key.question)
        if record is not None:
            return self.estimate_of(record)
        found = self.predicted(question.op, question.work, question.key)
        return refused(found) if question.key.question in self._refused else found


def _asked(text: object) -> tuple[object, ...]:
    """What the key of a refused form asked for, whatever engine refused it."""
    data = json.loads(str(text))
    return data["op"], data["attrs"], data["dtype"], tuple(data["shapes"])
