"""Costs of e-nodes on the target, each asked of the cost model (:class:`superopt.cost.CostModel`) once."""

from __future__ import annotations

import copy
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import pi, sqrt

from superopt.cost.cost_model import CostModel
from superopt.cost.measurement_record import CostEstimate
from superopt.egraph.egraph import ABSENT, LEAF, PROJECT, EGraph, ENode
from superopt.ir.symbolic_size_binding import at_sizes, value_at_sizes
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.flops_and_bytes import InferenceWork, work_of
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.ops.operator_semantics import IllTypedOperator

__all__ = ["BYTE_US", "FORBIDDEN", "Application", "ENodeCostModel", "MeasurementRequestCounts"]

BYTE_US = 2e-7  # µs per byte of new weights: 5 MB weigh as much as a microsecond, enough to break ties
FORBIDDEN = float("inf")  # the cost of what cannot be written at the model's opset


Application = tuple[str, tuple[tuple[str, AttributeValue], ...], tuple[TensorType | None, ...], tuple[bool, ...]]


_FREE = CostEstimate(0.0, "free")
_UNKNOWN = CostEstimate(0.0, "roofline")
_IMPOSSIBLE = CostEstimate(FORBIDDEN, "roofline")


@dataclass
class MeasurementRequestCounts:
    """What was asked beyond what was known: answers that an extraction wanted, and how often they changed choices.

    ``cheap_us`` is what a price may be expected to lose by being off, and still not be asked for.
    """

    requested: int = 0
    changed_choice: int = 0
    cheap_us: float = 0.0

    def matters(self, estimate: CostEstimate) -> bool:
        """Whether it is worth measuring what is expected: were that as good as what it is chosen before, knowing it
        would be worth σ/√2π (the expected value of perfect information)."""
        return estimate.us * estimate.sigma / sqrt(2 * pi) >= self.cheap_us


@dataclass(eq=False)
class _Priced:
    """An application and what it costs; ``answered``: because it was asked for. ``after``: by producer, what of it is
    left when the backend fuses the two."""

    what: Application
    estimate: CostEstimate | None = None
    guessed: bool = False
    answered: bool = False
    after: dict[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class _Form:
    """E-nodes of one head and argument types, whatever the graph."""

    priced: _Priced
    writable: bool | None = None


class ENodeCostModel:
    """A cost model at one opset and choice of sizes, with a memory.

    A model that would have to measure is not asked about every e-node: what it does not know is expected, and asked
    only once an extraction wants it (:meth:`measure_predicted`). ``questions`` counts what was asked so.
    """

    def __init__(
        self, costs: CostModel, opsets: Mapping[str, int], sizes: Mapping[str, int], deadline: float = float("inf")
    ) -> None:
        self.costs = costs
        self.opsets = opsets
        self.sizes = sizes
        self.deadline = deadline
        self.byte_us = BYTE_US  # of new weights
        self.questions = MeasurementRequestCounts()
        self._known: dict[Application, _Priced] = {}
        self._forms: dict[tuple[int, ...], _Form] = {}

    def unweighted(self) -> ENodeCostModel:
        """The same prices and memory, with new weights for nothing: where what only gets simpler is looked for."""
        other = copy.copy(self)
        other.byte_us = 0.0
        return other

    def reading_us(self, read: int) -> float:
        """Microseconds that an inference which reads so many bytes of weights waits for those that come from memory."""
        return read * self._far_byte_us * self.costs.cold_share(read)

    @cached_property
    def _far_byte_us(self) -> float:
        """Microseconds to read a byte from memory rather than from the last cache."""
        known = self.costs.peaks()
        return BYTE_US if known is None else known.far_byte_us

    def node(self, graph: EGraph, node: ENode, *, kept: bool = False, ask: bool = True) -> CostEstimate:
        """The cost of an e-node; leaves and projections are free.

        Args:
            graph: where it is; rebuilt.
            node: the e-node.
            kept: the e-node is in the input, so it need not be written, and is measured at once if that matters and
                what is expected is not good enough to wait; if nothing is known of it, it counts 0.
            ask: whether it may be measured; else what it is expected to be stands for it.
        """
        if graph.heads[node[0]].op in (LEAF, PROJECT):
            return _FREE
        form = self._form(graph, node)
        if not kept and not self._writable(graph, node, form):
            return _IMPOSSIBLE
        found = self._estimate(form.priced, now=kept and ask)
        return _UNKNOWN if kept and found.us == FORBIDDEN else found

    def measure_predicted(self, graph: EGraph, nodes: Sequence[ENode]) -> bool:
        """Measure what was only predicted among the e-nodes, as far as it matters; True if any cost changed."""
        changed = False
        asked = self.questions
        for node in nodes:
            if graph.heads[node[0]].op in (LEAF, PROJECT):
                continue
            priced = self._form(graph, node).priced
            known = priced.estimate
            if priced.guessed and known is not None and asked.matters(known) and time.monotonic() < self.deadline:
                before = known.us
                asked.requested += 1
                changed |= abs(self._estimate(priced, now=True).us - before) > 1e-3
        return changed

    def answers_error(self, graph: EGraph, nodes: Sequence[ENode]) -> float:
        """Microseconds that the cost of e-nodes is off by (one standard deviation) because of what was asked for."""
        inner = [node for node in nodes if graph.heads[node[0]].op not in (LEAF, PROJECT)]
        times = Counter(p for p in (self._form(graph, node).priced for node in inner) if p.answered)
        known = [(count, p.estimate) for p, count in times.items()]
        return sqrt(sum((count * e.us * e.sigma) ** 2 for count, e in known if e is not None))

    def _form(self, graph: EGraph, node: ENode) -> _Form:
        """What is known of e-nodes of this head over arguments of these types, constant where these are."""
        classes, head = graph.classes, graph.heads[node[0]]
        key = (head.number, *[a if a == ABSENT else (g := classes[a]).kind << 1 | g.constant for a in node[1:]])
        found = self._forms.get(key)
        if found is None:
            types = tuple(None if t is None else self.static(t) for t in graph.argument_types(node))
            fixed = tuple(a != ABSENT and graph.constant(a) for a in node[1:])
            found = self._forms[key] = _Form(self._priced((head.op, head.attributes, types, fixed)))
        return found

    def _priced(self, what: Application) -> _Priced:
        found = self._known.get(what)
        if found is None:
            found = self._known[what] = _Priced(what)
        return found

    def _estimate(self, priced: _Priced, *, now: bool) -> CostEstimate:
        if priced.estimate is None:
            priced.estimate, priced.guessed = self._ask(priced.what, now=False)
        if now and priced.guessed and self.questions.matters(priced.estimate):
            priced.estimate, priced.guessed = self._ask(priced.what, now=True)
            priced.answered = not priced.guessed
            priced.after.clear()  # what is left of it is told from the same answer
        return priced.estimate

    def _writable(self, graph: EGraph, node: ENode, form: _Form) -> bool:
        """Whether the e-node has a node form at the model's opset."""
        if form.writable is None:
            head = graph.heads[node[0]]
            record = graph.operators[head.op]
            form.writable = record.domain in self.opsets
            if form.writable:
                try:
                    record.write(dict(head.attributes), graph.argument_types(node), self.opsets[record.domain])
                except UnsupportedNodeForm:
                    form.writable = False
        return form.writable

    def _ask(self, what: Application, *, now: bool) -> tuple[CostEstimate, bool]:
        """The estimate, and whether it is only a prediction."""
        op, attributes, types, fixed = what
        values = {k: value_at_sizes(v, self.sizes) for k, v in attributes}
        record = REGISTRY.get(op)
        try:
            outputs = record.apply(types, values)[1] if record is not None else ()
            if not now and not self.costs.has_price(op, values, types, fixed):
                return self.costs.expected(op, values, types, outputs, fixed), True
            return self.costs.application(op, values, types, outputs, constant_args=fixed), False
        except (UnsupportedNodeForm, IllTypedOperator):
            return _IMPOSSIBLE, False

    def naming(self, kind: TensorType) -> float:
        """Microseconds of giving a value a second name that must stay: of an Identity."""
        return self._estimate(self._priced(("Identity", (), (self.static(kind),), (False,))), now=False).us

    def saving(self, graph: EGraph, producer: str, consumer: ENode) -> float:
        """Microseconds that the backend saves by running an e-node as one with the operator whose only reader it is."""
        if graph.heads[consumer[0]].op in (LEAF, PROJECT):  # which do not run
            return 0.0
        return self._saved(producer, self._form(graph, consumer).priced)

    def alone(self, what: Application) -> float:
        """Microseconds of an application by itself, as far as they are known without measuring."""
        return self.expected(what).us

    def expected(self, what: Application) -> CostEstimate:
        """The same, with its error."""
        return _IMPOSSIBLE if what[0] not in REGISTRY else self._estimate(self._sized(what), now=False)

    def fused(self, producer: str, what: Application) -> float:
        """Microseconds that the backend saves by running an application as one with what makes its moving operand."""
        return 0.0 if what[0] not in REGISTRY else self._saved(producer, self._sized(what))

    def _sized(self, what: Application) -> _Priced:
        op, attributes, types, fixed = what
        return self._priced((op, attributes, tuple(None if t is None else self.static(t) for t in types), fixed))

    def _saved(self, producer: str, consumer: _Priced) -> float:
        if producer in ("", LEAF, PROJECT, consumer.what[0]):
            return 0.0  # two operators of one kind stay two, whatever the backend fuses around them
        alone = self._estimate(consumer, now=False).us
        if alone == FORBIDDEN:
            return 0.0
        rest = consumer.after.get(producer)
        if rest is None:
            rest = consumer.after[producer] = self._rest(producer, consumer.what)
        return max(0.0, alone - rest)

    def _rest(self, producer: str, what: Application) -> float:
        """What the consumer still costs when it is fused; infinite where it is not."""
        op, attributes, types, fixed = what
        moving = sum(not f and t is not None for f, t in zip(fixed, types, strict=True))
        if not self.costs.fusable(producer, op, constant_others=moving == 1):
            return FORBIDDEN
        values = {k: value_at_sizes(v, self.sizes) for k, v in attributes}
        outputs = REGISTRY[op].apply(types, values)[1]
        return self.costs.application(op, values, types, outputs, constant_args=fixed, after=producer).us

    def demand(self, what: Application, outputs: Sequence[TensorType]) -> InferenceWork:
        """What an application asks of a machine; nothing where the backend only renames memory."""
        op, attributes, types, _ = what
        if op in self.costs.backend.views:
            return InferenceWork()
        args = [None if t is None else self.static(t) for t in types]
        values = {k: value_at_sizes(v, self.sizes) for k, v in attributes}
        return InferenceWork(*work_of(op, values, args, [self.static(t) for t in outputs]), 1)

    def static(self, kind: TensorType) -> TensorType:
        """The type at the chosen sizes."""
        return at_sizes(kind, self.sizes)
