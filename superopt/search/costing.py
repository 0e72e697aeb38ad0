"""What e-nodes cost on the target, asked of the cost model once each.

The search's own demands on a cost model are :class:`Costs`; a model may also time whole graphs (``graphs``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol, cast

from superopt.cost.fusion import Backend
from superopt.cost.model import work_of
from superopt.cost.peaks import Peaks
from superopt.cost.predictor import Predictor
from superopt.cost.profile import Store
from superopt.cost.record import Estimate, key_of
from superopt.ir.poly import Dim, Poly, substitute, symbols
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.meaning import IllTyped
from superopt.ops.record import NotCovered
from superopt.search.egraph import ABSENT, LEAF, PROJECT, EGraph, ENode

__all__ = ["BYTE_US", "FORBIDDEN", "Application", "Costs", "Pricer"]

BYTE_US = 2e-7  # µs per byte of new weights: 5 MB weigh as much as a microsecond, enough to break ties
FORBIDDEN = float("inf")  # the cost of what cannot be written at the model's opset
UNSPECIFIED = 8  # what a symbolic size is costed at when the caller does not say


class Costs(Protocol):
    """What search asks of a cost model."""

    def application(
        self,
        op: str,
        attributes: Mapping[str, AttributeValue],
        arg_types: Sequence[TensorType | None],
        out_types: Sequence[TensorType],
        *,
        constant_args: Sequence[bool] = (),
        after: str | None = None,
    ) -> Estimate:
        """Microseconds of one application to static types; ``after``: the operator it could be fused into."""
        ...

    def fusable(self, producer: str, consumer: str, *, constant_others: bool = True) -> bool:
        """Whether the consumer is nearly free when it alone reads the producer's result."""
        ...


Application = tuple[str, tuple[tuple[str, AttributeValue], ...], tuple[TensorType | None, ...], tuple[bool, ...]]


class Pricer:
    """A cost model at one opset and choice of sizes, with a memory.

    A model that measures when asked (it has a ``store`` of records) is not asked about every e-node: what is not in its
    store is predicted, and measured only once an extraction wants it (:meth:`settle`).
    """

    def __init__(
        self, costs: Costs, opsets: Mapping[str, int], sizes: Mapping[str, int], deadline: float = float("inf")
    ) -> None:
        self.costs = costs
        self.opsets = opsets
        self.sizes = sizes
        self.deadline = deadline
        self.byte_us = BYTE_US  # of new weights; nothing where what only gets simpler is looked for
        self._known: dict[Application, Estimate] = {}
        self._guessed: set[Application] = set()
        self._savings: dict[tuple[str, Application], float] = {}
        store = getattr(costs, "store", None)
        self._store = store if isinstance(store, Store) else None
        self.timed = getattr(costs, "graphs", None) is not None  # changed regions are timed whole before they count
        known = getattr(costs, "predictor", None)  # a recorded profile's own, which knows the device's ceilings
        fitted = self._store.records if self._store is not None else ()
        self._predictor = known if isinstance(known, Predictor) else Predictor.fit(fitted)

    @cached_property
    def far_byte_us(self) -> float:
        """Microseconds to read a byte from memory rather than from the last cache, which held it a moment ago."""
        peaks = getattr(self.costs, "peaks", None)
        known = peaks() if peaks is not None else None
        if not isinstance(known, Peaks):
            return self.byte_us
        near = known.cache_bytes_per_second
        return max(0.0, 1e6 / known.bytes_per_second - (1e6 / near if near else 0.0))

    def describe(self, graph: EGraph, node: ENode) -> Application:
        """An e-node without its graph: operator, attributes, argument types and which of them are constant."""
        head = graph.heads[node[0]]
        types = tuple(None if t is None else self.static(t) for t in graph.argument_types(node))
        fixed = tuple(a != ABSENT and graph.constant(a) for a in node[1:])
        return head.op, head.attributes, types, fixed

    def node(self, graph: EGraph, node: ENode, *, kept: bool = False) -> Estimate:
        """The cost of an e-node; leaves and projections are free.

        Args:
            graph: where it is.
            node: the e-node.
            kept: the e-node is in the input, so it need not be written, and is measured at once; if nothing is known
                of it, it counts 0.
        """
        if graph.heads[node[0]].op in (LEAF, PROJECT):
            return Estimate(0.0, "free")
        if not kept and not self._writable(graph, node):
            return Estimate(FORBIDDEN, "roofline")
        what = self.describe(graph, node)
        if what not in self._known or (kept and what in self._guessed):
            self._known[what] = self._ask(what, now=kept)
        found = self._known[what]
        return Estimate(0.0, "roofline") if kept and found.us == FORBIDDEN else found

    def settle(self, graph: EGraph, nodes: Sequence[ENode]) -> bool:
        """Measure what was only predicted among the e-nodes; True if any cost changed."""
        changed = False
        for node in nodes:
            if graph.heads[node[0]].op in (LEAF, PROJECT):
                continue
            what = self.describe(graph, node)
            if what in self._guessed and time.monotonic() < self.deadline:
                before = self._known[what].us
                self._known[what] = self._ask(what, now=True)
                changed |= abs(self._known[what].us - before) > 1e-3
        return changed

    def _writable(self, graph: EGraph, node: ENode) -> bool:
        """Whether the e-node has a node form at the model's opset."""
        head = graph.heads[node[0]]
        record = graph.operators[head.op]
        if record.domain not in self.opsets:
            return False
        try:
            record.write(dict(head.attributes), graph.argument_types(node), self.opsets[record.domain])
        except NotCovered:
            return False
        return True

    def _ask(self, what: Application, *, now: bool) -> Estimate:
        op, attributes, types, fixed = what
        values = {k: self._value(v) for k, v in attributes}
        record = REGISTRY.get(op)
        try:
            outputs = record.apply(types, values)[1] if record is not None else ()
            if not now and self._store is not None and not self._stored(op, values, types, fixed):
                self._guessed.add(what)
                return self._predictor.predict(
                    op, *self._work(op, values, types, outputs), key_of(op, values, types, fixed)
                )
            self._guessed.discard(what)
            return self.costs.application(op, values, types, outputs, constant_args=fixed)
        except (NotCovered, IllTyped):
            return Estimate(FORBIDDEN, "roofline")

    def _stored(
        self, op: str, values: Mapping[str, AttributeValue], types: Sequence[TensorType | None], fixed: tuple[bool, ...]
    ) -> bool:
        if self._store is None or op in self._views():
            return True
        backend = getattr(self.costs, "backend", None)
        if isinstance(backend, Backend):
            types, fixed = backend.as_run(op, types, fixed)
        return self._store.get(key_of(op, values, types, fixed).text) is not None

    def _views(self) -> frozenset[str]:
        backend = getattr(self.costs, "backend", None)
        return backend.views if isinstance(backend, Backend) else frozenset()

    def _work(
        self, op: str, values: Mapping[str, AttributeValue], types: Sequence[TensorType | None],
        outputs: Sequence[TensorType],
    ) -> tuple[int, int]:  # fmt: skip
        return work_of(op, values, types, outputs)

    def saving(self, graph: EGraph, producer: ENode, consumer: ENode) -> float:
        """Microseconds that the backend saves by running the two as one kernel, the producer's only reader."""
        first, second = graph.heads[producer[0]].op, graph.heads[consumer[0]].op
        if first in (LEAF, PROJECT) or second in (LEAF, PROJECT) or first == second:
            return 0.0  # two operators of one kind stay two, whatever the backend fuses around them
        what = self.describe(graph, consumer)
        key = (first, what)
        if key not in self._savings:
            self._savings[key] = self._saving(first, what)
        alone = self._known.get(what)
        return max(0.0, alone.us - self._savings[key]) if alone is not None else 0.0

    def fused(self, producer: str, what: Application) -> float:
        """Microseconds that the backend saves by running an application as one with what makes its moving operand."""
        if not producer or producer == what[0] or what[0] not in REGISTRY:
            return 0.0
        op, attributes, types, fixed = what
        what = (op, attributes, tuple(None if t is None else self.static(t) for t in types), fixed)
        if what not in self._known:
            self._known[what] = self._ask(what, now=False)
        saving = self._known[what].us - self._saving(producer, what)
        return max(0.0, saving) if self._known[what].us != FORBIDDEN else 0.0

    def _saving(self, producer: str, what: Application) -> float:
        """What the consumer still costs when it is fused; infinite where it is not."""
        op, attributes, types, fixed = what
        moving = sum(not f and t is not None for f, t in zip(fixed, types, strict=True))
        if not self.costs.fusable(producer, op, constant_others=moving == 1):
            return FORBIDDEN
        values = {k: self._value(v) for k, v in attributes}
        outputs = REGISTRY[op].apply(types, values)[1]
        return self.costs.application(op, values, types, outputs, constant_args=fixed, after=producer).us

    def static(self, kind: TensorType) -> TensorType:
        """The type at the chosen sizes."""
        if kind.is_static or kind.shape is None:
            return kind
        return TensorType(kind.dtype, tuple(self._size(d) for d in kind.shape))

    def _value(self, value: AttributeValue) -> AttributeValue:
        if isinstance(value, tuple):
            return tuple(map(self._value, value))
        return self._size(value) if isinstance(value, Poly) else value

    def _size(self, size: Dim) -> Dim:
        if isinstance(size, int):
            return size
        return substitute(size, cast(Mapping[str, Dim], {n: self.sizes.get(n, UNSPECIFIED) for n in symbols(size)}))
