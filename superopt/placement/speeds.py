"""Seconds that an operator takes on the devices of a cluster: from a recorded profile, or from peak rates."""

from __future__ import annotations

from collections.abc import Sequence

from superopt.cost.cost_model import CostModel, ProfileCostModel
from superopt.cost.device_profile import load_profile
from superopt.ir.terms import Attributes
from superopt.ir.types import TensorType
from superopt.ops.flops_and_bytes import VIEWS, work_of
from superopt.placement.cluster import Cluster

__all__ = ["Speeds"]

_Types = tuple[TensorType | None, ...]


class Speeds:
    """Prices on the slowest kind of device of a cluster: where all do the same, the others wait for it.

    Raises:
        UsageError: a profile that the cluster names does not exist. InvalidModel: it is damaged.
    """

    def __init__(self, cluster: Cluster) -> None:
        kinds = dict.fromkeys(d.kind for d in cluster.devices)
        self._profiles: list[CostModel] = [ProfileCostModel(load_profile(k[0])) for k in kinds if k[0]]
        self._peaks = [k[1:] for k in kinds if not k[0]]
        self._known: dict[tuple[object, ...], float] = {}

    def seconds(
        self, op: str, attributes: Attributes, types: _Types, made: Sequence[TensorType], fixed: Sequence[bool]
    ) -> float:
        """Seconds of an application.

        Args:
            op: operator name.
            attributes: canonical ones.
            types: of the operands, of known sizes.
            made: of the results.
            fixed: which operands are weights.
        """
        key = (op, attributes, types, tuple(made), tuple(fixed))
        if key not in self._known:
            moving = [t for t, f in zip(types, fixed, strict=True) if t is not None and not f]
            self._known[key] = self._priced(op, attributes, types, made, fixed) if moving else 0.0
        return self._known[key]

    def _priced(
        self, op: str, attributes: Attributes, types: _Types, made: Sequence[TensorType], fixed: Sequence[bool]
    ) -> float:
        prices = [m.application(op, attributes, types, made, fixed).us / 1e6 for m in self._profiles]
        if self._peaks:
            flops, moved = (0, 0) if op in VIEWS else work_of(op, dict(attributes), types, made)
            prices += [max(flops / rate, moved / bandwidth) + overhead for rate, bandwidth, overhead in self._peaks]
        return max(prices)

    def copying(self, kind: TensorType) -> float:
        """Seconds in which a device writes a tensor that it has read."""
        rank = kind.rank or 0
        perm = (("perm", (*range(1, rank), 0)),) if rank else ()
        op, attributes = ("Transpose", perm) if rank else ("Identity", ())
        return self.seconds(op, attributes, (kind,), (kind,), (False,))
