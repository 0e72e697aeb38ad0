"""The optimise report. Its JSON keys are a public contract (docs/usage.md); new keys may be added, none renamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal

from superopt.formats.control_flow_bodies import nested_operators
from superopt.ir.graph import Graph, structural_hash
from superopt.report.quantities import bytes_text, count_text, speedup_text, times_text
from superopt.runtime.paired_measurement import PairedMeasurement, certainty, outcome

__all__ = [
    "FastAlgorithmReport",
    "AppliedRuleReport",
    "CheckReport",
    "CheckFailure",
    "CheckPower",
    "CostReport",
    "NumericalErrorReport",
    "FileSize",
    "Float32ReasonReport",
    "PairedMeasurement",
    "NodeCounts",
    "OpaqueOperators",
    "ResultDigest",
    "MixedPrecisionReport",
    "MeasurementRequestReport",
    "StatusReason",
    "Report",
    "SearchStatistics",
    "VerificationReport",
    "ResourceUsageReport",
    "certainty",
    "operator_counts",
    "outcome",
    "summary",
]


@dataclass(frozen=True)
class CostReport:
    """Modelled cost in microseconds, and the share of it that rests on measurements."""

    before_us: float
    after_us: float
    measured_share: float


_REFERENCES = {"original": "the input", "original and float64": "the input and a float64 reference",
               "float64": "a float64 reference"}  # fmt: skip


@dataclass(frozen=True)
class CheckPower:
    """How sensitive a check is: of so many single changes of the result (``mutants``), its inputs detect ``caught``;
    ``unexercised`` are places that they do not reach."""

    mutants: int
    caught: int
    share: float
    unexercised: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckReport:
    """The differential check of the result against the input.

    The errors are those on inputs of ordinary magnitude. ``reference`` is what judged: "original" (the input in ONNX
    Runtime, its optimisations off), "original and float64", or "float64".
    """

    verdict: str
    trials: int
    max_abs_error: float
    max_rel_error: float
    reference: str
    reason: str = ""
    power: CheckPower | None = None

    @property
    def text(self) -> str:
        """In words: the verdict, the errors where something ran, and the reason."""
        errors = (
            f": {self.trials} trials against {_REFERENCES.get(self.reference, self.reference)}, "
            f"max rel error {self.max_rel_error:.2e}, max abs error {self.max_abs_error:.2e}"
        )
        if self.power is not None and self.power.mutants:
            errors += f", {self.power.caught} of {self.power.mutants} single changes of the result detected"
        return f"{self.verdict}{errors if self.trials else ''}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class CheckFailure:
    """A rewritten graph that failed its check and was not returned.

    Attributes:
        reason: how it differed.
        rules: what it rested on.
        left_out: the rule without which the check passed; empty where there was none.
    """

    reason: str
    rules: tuple[str, ...]
    left_out: str = ""


@dataclass(frozen=True)
class VerificationReport:
    """What could be proved of the result (``--verify certify``): nodes literally the same, proved, or only tested."""

    verdict: str
    same: int
    proved: int
    tested: int
    proved_share: float
    reason: str = ""


@dataclass(frozen=True)
class FileSize:
    """Bytes of the models as ONNX files, weights included."""

    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class StatusReason:
    """Why the status is what it is.

    Attributes:
        code: of "improved": "faster" (beyond the uncertainty of what was measured or modelled), "simpler" (in nodes,
            FLOPs and bytes, and not measured slower), "memory" (less, where that was asked for), "precision" (half,
            where that was asked for), "runs" (where the runtime breaks or refuses the input).
            Of "unchanged": "none_found"; "limits" (e-nodes or steps), "time", "memory_limit", "interrupted": the search
            ended early; "not_better": what was found is neither faster nor simpler; "not_checked", "check_failed",
            "refuted": what was found could not be shown equal.
        text: in words; what to do next, where something can be done.
    """

    code: str
    text: str


@dataclass(frozen=True)
class NodeCounts:
    before: int
    after: int


@dataclass(frozen=True)
class ResourceUsageReport:
    """FLOPs and bytes that running the graph moves, for the sizes it was costed at; intensity is their ratio.

    Memory: bytes of the weights that are present at inference, and of the activations that are alive at once, at most.
    """

    flops_before: int | None
    flops_after: int | None
    bytes_before: int | None
    bytes_after: int | None
    intensity_before: float | None
    intensity_after: float | None
    weight_bytes_before: int | None = None
    weight_bytes_after: int | None = None
    peak_activation_bytes_before: int | None = None
    peak_activation_bytes_after: int | None = None


@dataclass(frozen=True)
class AppliedRuleReport:
    """A rule that the result uses: how often, where (node names of the result) and with which verdict.

    ``gain_us`` is the modelled gain of the steps whose nodes it made where the report has a derivation
    (:mod:`superopt.pipeline.stepwise_derivation`), and that of the search's regions otherwise.
    """

    rule: str
    count: int
    verdict: str
    gain_us: float | None = None
    where: tuple[str, ...] = ()


@dataclass(frozen=True)
class FastAlgorithmReport:
    """An operator that the result computes with fewer multiplications.

    Attributes:
        where: its name in the input, or that of its result.
        operator: Conv or MatMul.
        algorithm: F(4×4, 3×3), 36 products of 49 tiles.
        growth, bound: how much larger than a direct sum's its rounding errors can be: root mean square, at worst.
        before_us, after_us: what the operator and the algorithm are modelled to take.
    """

    where: str
    operator: str
    algorithm: str
    growth: float
    bound: float
    before_us: float
    after_us: float


@dataclass(frozen=True)
class NumericalErrorReport:
    """Largest errors against float64, relative to the largest element of an output, over so many random inputs.

    ``most`` is what the mode allows the result, and ``times`` how many times the input's own.
    """

    before: float
    after: float
    inputs: int
    most: float
    times: float


@dataclass(frozen=True)
class WeightRewriteReport:
    """What the result leaves out because of the elements of the model's weights.

    Attributes:
        claims: what was found, in words, the first ones.
        count: how many claims there are.
        removed: slices of values (channels, columns, heads) that are not computed any more.
        weight_elements: elements of the weights before and after.
        exact: whether the result is equal over the reals, where the inputs are finite.
        checked: what the check of the claims looked at, which is code of its own.
    """

    claims: tuple[str, ...]
    count: int
    removed: int
    weight_elements: tuple[int, int]
    exact: bool
    checked: str


@dataclass(frozen=True)
class SearchStatistics:
    """What the search did; ``stopped`` is "saturated", "nodes", "steps", "time", "memory" or "interrupted".

    The model is cut into regions several times: at most ``regions`` at a time, and
    ``distinct_regions`` different ones are searched with all rules.
    """

    seconds: float
    regions: int
    distinct_regions: int
    e_nodes: int
    stopped: str


@dataclass(frozen=True)
class MeasurementRequestReport:
    """Prices that the search wanted and did not know: how many, how many of them were measured here, and how many of
    its choices the answers changed."""

    asked: int = 0
    measured: int = 0
    decided: int = 0


class ResultDigest:
    """The graph that was returned, by a digest that is computed when it is asked for, since that reads all weights."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    @cached_property
    def digest(self) -> str:
        """A SHA-256 of the graph's canonical form, weights included."""
        return structural_hash(self._graph)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResultDigest) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __getstate__(self) -> dict[str, str]:
        return {"digest": self.digest}  # not the graph


@dataclass(frozen=True)
class OpaqueOperators:
    """Nodes that were carried through untouched, by operator and reason."""

    op: str
    count: int
    reason: str


@dataclass(frozen=True)
class MemoryTimeTradeoffReport:
    """A graph on the front of time and memory.

    Attributes:
        bytes: weights and, as ONNX Runtime's arena was asked for them, activations.
        modelled: time ÷ the fastest graph's, as modelled.
        measured: time ÷ the fastest graph's in a paired benchmark; none where it was not timed.
        doubt: how far that may be off.
        how: what was done: "" (nothing), "order", "open rows", "hidden sizes", "recomputation".
        digest: as :class:`ResultDigest`'s.
    """

    bytes: int
    modelled: float
    measured: float | None
    doubt: float | None
    how: str
    digest: str


@dataclass(frozen=True)
class RuntimeFault:
    """What the runtime's own optimiser breaks in the model.

    Attributes:
        refusal: why the model does not run with it; "" where it does.
        outputs: what it changes, by output in words.
        avoided: "rewritten" or "copies": how the result keeps it from that; "" where no equal graph was found.
        copies: the values that are copied for that.
    """

    refusal: str
    outputs: Mapping[str, str]
    avoided: str = ""
    copies: tuple[str, ...] = ()


@dataclass(frozen=True)
class Float32ReasonReport:
    """What stays in float32 for one kind of reason.

    Attributes:
        what: "operators" or "weights".
        reason: "overflow", "underflow", "pole" (a divisor that half precision would lose), "inner overflow", "long
            sum", "jump", "type", "no kernel", "constant", "no elements", "not understood", or "budget".
        count: how many.
        text: of the first, in words.
        where: names of the first ones.
    """

    what: str
    reason: str
    count: int
    text: str
    where: tuple[str, ...]


@dataclass(frozen=True)
class MixedPrecisionReport:
    """The result in mixed precision.

    Attributes:
        type: of half precision: "float16" or "bfloat16".
        budget: of errors, of an output's largest element.
        error: the largest that was measured.
        inputs: on so many.
        nodes_half, nodes: operators in half precision, and all, Casts left out.
        weight_bytes_half, weight_bytes: of float32, of the weights that are stored in half precision, and of all.
        casts: how many there are.
        kept: why the rest is in float32.
    """

    type: str
    budget: float
    error: float
    inputs: int
    nodes_half: int
    nodes: int
    weight_bytes_half: int
    weight_bytes: int
    casts: int
    kept: tuple[Float32ReasonReport, ...]


@dataclass(frozen=True, repr=False)
class Report:
    """What was done to a model. ``memory``: by "before" and "after" what activations take over the steps of a run
    (:func:`superopt.pipeline.memory_timeline.footprint_data`), no "after" where nothing was changed."""

    status: Literal["improved", "unchanged"]
    target: str
    cost: CostReport
    measured: PairedMeasurement | None
    check: CheckReport
    nodes: NodeCounts
    operators: Mapping[str, Mapping[str, int]]
    work: ResourceUsageReport
    rules_applied: tuple[AppliedRuleReport, ...]
    search: SearchStatistics
    opaque: tuple[OpaqueOperators, ...]
    notes: tuple[str, ...] = ()
    near_misses: tuple[str, ...] = ()
    verification: VerificationReport | None = None
    check_failures: tuple[CheckFailure, ...] = ()
    roofline: Mapping[str, Any] | None = None
    float: str = "standard"
    runtime: str = "onnxruntime"
    questions: MeasurementRequestReport = MeasurementRequestReport()
    result: ResultDigest | None = None
    algorithms: tuple[FastAlgorithmReport, ...] = ()
    errors: NumericalErrorReport | None = None
    values: WeightRewriteReport | None = None
    derivation: Mapping[str, Any] | None = None
    pareto: tuple[MemoryTimeTradeoffReport, ...] = ()
    memory: Mapping[str, Any] | None = None
    reason: StatusReason = StatusReason("none_found", "no better equivalent graph was found")
    file: FileSize | None = None
    runtime_fault: RuntimeFault | None = None
    precision: MixedPrecisionReport | None = None

    @property
    def unchanged(self) -> str:
        """Why the input is what is returned."""
        return self.reason.text

    @property
    def summary(self) -> str:
        """What came of it, in a line: by how much faster, measured or estimated, and whether it was checked."""
        from superopt.report.optimization_report import summary  # which reads a report

        return summary(self)

    def __str__(self) -> str:
        """The table of the command line."""
        from superopt.report.notebook import text

        return text(self)

    def __repr__(self) -> str:
        return f"<superopt Report: {self.summary}>"

    def _repr_html_(self) -> str:
        """As notebooks show it."""
        from superopt.report.notebook import html

        return html(self)

    def _repr_svg_(self) -> str:
        """The times as bars."""
        from superopt.report.notebook import svg

        return svg(self)

    def json(self) -> dict[str, Any]:
        """The report as JSON data, ``{"format": "superopt.report", "version": 1, …}``."""
        told = asdict(replace(self, result=None))
        told["result"] = None if self.result is None else {"digest": self.result.digest}
        data = {"format": "superopt.report", "version": 1, **told, "summary": self.summary}
        return _plain(data)  # type: ignore[no-any-return]


def _plain(value: Any) -> Any:
    """JSON data: tuples become lists, non-finite floats become null (JSON has no word for them)."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def operator_counts(graph: Graph) -> dict[str, int]:
    """Nodes by operator (``domain.op`` outside ONNX's own domain), bodies included, most frequent first."""
    return ordered([*(f"{n.domain}.{n.op}" if n.domain else n.op for n in graph.nodes), *nested_operators(graph)])


def ordered(names: Iterable[str]) -> dict[str, int]:
    """Counts, most frequent first, then by name."""
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


# -- The summary in one sentence -----------------------------------------------------------------------------------
#
# One line for terminals, batches, notebooks and the service.


_OTHERWISE = {
    "memory": "less memory, as asked for", "runs": "runs where the runtime breaks or refuses the input",
}  # fmt: skip


def summary(report: Report) -> str:
    """``1.18x faster (5.8 → 4.9 µs, measured); checked equal``, or why the input is returned."""
    if report.status == "unchanged":
        return f"unchanged: {report.reason.text}"
    if (mixed := report.precision) is not None:
        return f"{_halved(mixed)}; errors up to {mixed.error:.1e} on {mixed.inputs} inputs"
    other = _OTHERWISE.get(report.reason.code)
    what = other or (_faster if report.reason.code == "faster" else _simpler)(report)
    return f"{what}; {_checked(report)}"


def _times(report: Report) -> tuple[float, str]:
    """The ratio of after ÷ before, and the times with where they come from."""
    m: PairedMeasurement | None = report.measured
    if m is not None:
        return m.ratio, f"{times_text(1e3 * m.before_ms, 1e3 * m.after_paired_ms)}, measured"
    before, after = report.cost.before_us, report.cost.after_us
    return after / before if before else 1.0, f"{times_text(before, after)}, estimated for {report.target}"


def _faster(report: Report) -> str:
    ratio, times = _times(report)
    m = report.measured
    if m is not None and m.outcome != "faster":
        doubt = f"in doubt: x{m.ratio:.3f}, {m.certainty}; prices agree"
        return f"about {speedup_text(ratio, 'x')} faster ({times}, {doubt})"
    return f"{speedup_text(ratio, 'x')} faster ({times})" if ratio > 0.0 else f"faster ({times})"


def _simpler(report: Report) -> str:
    """What there is less of, and the time where it was measured: it does not differ beyond its uncertainty."""
    nodes, work = report.nodes, report.work
    less = [f"{nodes.before} → {nodes.after} nodes"] if nodes.after < nodes.before else []
    sides = (
        (count_text(work.flops_before), count_text(work.flops_after), "FLOPs"),
        (bytes_text(work.bytes_before), bytes_text(work.bytes_after), "moved"),
    )
    less += [f"{before} → {after} {what}" for before, after, what in sides if before != after]
    times = "" if report.measured is None else f"; no clear difference in time ({_times(report)[1]})"
    return f"simpler ({', '.join(less) or 'less work'}){times}"


def _halved(found: MixedPrecisionReport) -> str:
    """How much is of half precision."""
    bytes_ = found.weight_bytes_half / (found.weight_bytes or 1)
    return f"{found.type}: {found.nodes_half} of {found.nodes} nodes, {bytes_:.0%} of the weights' bytes"


def _checked(report: Report) -> str:
    if report.verification is not None and report.verification.verdict.startswith("proved"):
        return report.verification.verdict if " " in report.verification.verdict else "proved equal"
    if report.check.verdict == "passed":
        return "checked equal" if report.errors is None else f"checked equal up to errors of {report.errors.most:.0e}"
    return f"not checked ({report.check.reason})" if report.check.reason else "not checked"
