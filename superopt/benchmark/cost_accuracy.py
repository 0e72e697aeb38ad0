"""How good costs are: sums of parts against whole models, direction of changes, predictions of what was held out."""

from __future__ import annotations

import hashlib
import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from superopt import formats
from superopt.cost.device_profile import DeviceProfileStore
from superopt.cost.graph_costs import graph_cost
from superopt.cost.measured_cost_models import MeasuredCpuCostModel
from superopt.cost.measurement_record import NOT_OPERATORS, MeasurementRecord
from superopt.cost.operator_time_predictor import OperatorTimePredictor
from superopt.cost.roofline_ceilings import RooflineCeilings
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ir.temporary_folders import TemporaryFolder
from superopt.ops.operator_definition import UnsupportedNodeForm
from superopt.runtime.paired_benchmark import PairedTimes, median_error, time_models
from superopt.runtime.synthetic_tensors import feeds_for, with_values

__all__ = [
    "RewriteSpeedupPrediction", "HeldOutAccuracy", "ModelTimePrediction", "ProfileRepeatability", "held_out",
    "predict_changes", "repeat", "right_share", "spearman", "validate",
]  # fmt: skip

_HELD_OUT = 10  # one record in this many is held out
_ROUNDS = 15
_SETTLED, _SETTLING_US = 10, 50_000.0  # runs in a burst, until caches have settled; not more than so long together
_SESSIONS = 3  # of a race for its direction: where a session's memory lies is good for 3 % either way


@dataclass(frozen=True)
class ModelTimePrediction:
    """A model's cost as the sum of its parts, beside its measured time; microseconds.

    ``measured_us`` is the lower quartile of the rounds, as for the parts: noise only adds. ``spread`` is the relative
    interquartile range; ``seconds`` is what profiling the model took.
    """

    name: str
    predicted_us: float
    measured_us: float
    measured_share: float
    seconds: float
    spread: float = 0.0
    failure: str = ""

    @property
    def error(self) -> float:
        """Relative error of the prediction, signed."""
        return self.predicted_us / self.measured_us - 1.0 if self.measured_us else 0.0


@dataclass(frozen=True)
class RewriteSpeedupPrediction:
    """A model before and after a rewrite: predicted and measured time after ÷ before.

    ``spread`` is the interquartile range of the rounds' ratios; ``doubt`` how far the median may be off (two standard
    errors).
    """

    name: str
    how: str
    predicted: float
    measured: float
    spread: float = 0.0
    failure: str = ""
    doubt: float = 0.0

    def counts(self, least: float) -> bool:
        """Whether the measured change is large enough, and sure enough, for its direction to mean something."""
        return not self.failure and abs(self.measured - 1) > max(least, self.doubt)

    @property
    def right(self) -> bool:
        """Whether the prediction points the same way as the measurement."""
        return (self.predicted < 1) == (self.measured < 1)


@dataclass(frozen=True)
class HeldOutAccuracy:
    """The predictor on records that it did not see: relative errors, and how often an error was within 1σ and 2σ."""

    records: int
    median: float
    worst_tenth: float
    within_one: float
    within_two: float
    rank: float


@dataclass(frozen=True)
class ProfileRepeatability:
    """A model profiled twice from nothing: seconds of each (by the clock, and of CPU), and how much the two differ.

    ``median_difference`` is the median over records of |second ÷ first − 1|, ``on_ratios`` the same once both runs are
    divided by their overall level: what a comparison of two graphs sees.
    """

    name: str
    records: int
    seconds: tuple[float, float]
    median_difference: float
    on_ratios: float
    cpu_seconds: tuple[float, float] = (0.0, 0.0)


def validate(
    models: Iterable[tuple[str, Graph]],
    costs: MeasuredCpuCostModel,
    *,
    sizes: Mapping[str, int] | None = None,
    rounds: int = _ROUNDS,
    time_limit: float = 10.0,
) -> list[ModelTimePrediction]:
    """Compare the sum of parts with whole-model time. A model that cannot run gives a row that says why."""
    return [_prediction(name, graph, costs, sizes or {}, rounds, time_limit) for name, graph in models]


def _prediction(
    name: str, graph: Graph, costs: MeasuredCpuCostModel, sizes: Mapping[str, int], rounds: int, time_limit: float
) -> ModelTimePrediction:
    started = time.monotonic()
    try:
        found = graph_cost(graph, costs, sizes=sizes)
        seconds = time.monotonic() - started
        raced = _raced([_written(graph)], feeds_for(graph, sizes, integer=0), costs, rounds, time_limit, found.us)
    except (SuperoptError, UnsupportedNodeForm) as error:
        return ModelTimePrediction(name, 0.0, 0.0, 0.0, time.monotonic() - started, failure=str(error))
    low, middle, high = np.quantile([s[0] for s in raced.samples], [0.25, 0.5, 0.75])
    return ModelTimePrediction(name, found.us, low * 1e3, found.measured_share, seconds, float((high - low) / middle))


def predict_changes(
    name: str,
    forms: Sequence[tuple[str, Graph]],
    costs: MeasuredCpuCostModel,
    *,
    sizes: Mapping[str, int] | None = None,
    rounds: int = _ROUNDS,
    time_limit: float = 10.0,
) -> list[RewriteSpeedupPrediction]:
    """The same for equal graphs in a row, each a rewrite of the one before it: all of them are timed interleaved, in a
    few sessions one after the other.

    Args:
        name: of what they compute.
        forms: how each came about, and the graph; one that cannot run gives a row that says why.
        costs: predicts.
        sizes: what symbolic dimensions are costed at.
        rounds: of the race.
        time_limit: seconds of the race.
    """
    failed: list[RewriteSpeedupPrediction] = []
    able: list[tuple[str, bytes, float]] = []
    for how, graph in forms:
        try:
            content, feeds = _written(graph), feeds_for(graph, sizes, integer=0)
            _raced([content], feeds, costs, 1, 0.0, float("inf"))
            able.append((how, content, graph_cost(graph, costs, sizes=sizes).us))
        except (SuperoptError, UnsupportedNodeForm) as error:
            failed.append(RewriteSpeedupPrediction(name, how, 0.0, 0.0, failure=str(error)))
    if len(able) < 2:
        return failed
    contents = [content for _, content, _ in able]
    each, seconds = -(-rounds // _SESSIONS), time_limit / _SESSIONS
    slowest = max(us for _, _, us in able)
    races = [_raced(contents, feeds, costs, each, seconds, slowest) for _ in range(_SESSIONS)]
    table = np.array([sample for raced in races for sample in raced.samples])
    found = []
    for at in range(1, len(able)):
        low, middle, high = np.quantile(table[:, at] / table[:, at - 1], [0.25, 0.5, 0.75])
        (first, _, before), (second, _, after) = able[at - 1 : at + 1]
        doubt = float(2 * median_error(len(table)) * (high - low))
        found.append(
            RewriteSpeedupPrediction(
                name, f"{first} → {second}", after / before, float(middle), float(high - low), doubt=doubt
            )
        )
    return found + failed


def _written(graph: Graph) -> bytes:
    return formats.to_onnx_bytes(with_values(graph))


def _raced(
    contents: Sequence[bytes],
    feeds: Mapping[str, np.ndarray],
    costs: MeasuredCpuCostModel,
    rounds: int,
    seconds: float,
    run_us: float,
) -> PairedTimes:
    """A race in bursts that are long enough for the caches to settle.

    What is predicted is a model that runs again and again. After the others' runs it takes more than three of its own
    until the last cache holds its weights (no least-recently-used cache): of two forms of an LSTM cell with 17 MB of
    packed weights, bursts of 3 said 219 and 690 µs with 25 % of scatter, bursts of 10 and more 218 and 278 with 2 %.
    """
    meter = costs.meter
    burst = max(3, min(_SETTLED, int(_SETTLING_US / run_us)))
    return time_models(
        contents, feeds, rounds=rounds, burst=burst, threads=meter.threads, time_limit=seconds, clock=meter.clock
    )


def spearman(rows: Sequence[ModelTimePrediction]) -> float:
    """Rank correlation of predicted and measured times; 1 for fewer than two rows."""
    good = [r for r in rows if not r.failure]
    return _rank_correlation([r.predicted_us for r in good], [r.measured_us for r in good])


def _rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    if len(a) < 2:
        return 1.0
    first, second = (np.argsort(np.argsort(v)).astype(np.float64) for v in (a, b))
    return float(np.corrcoef(first, second)[0, 1])


def right_share(rows: Iterable[RewriteSpeedupPrediction], least: float = 0.03) -> tuple[float, int]:
    """Share of the rows whose measured change exceeds ``least`` that were predicted right, and how many those are."""
    counted = [r for r in rows if r.counts(least)]
    return (sum(r.right for r in counted) / len(counted) if counted else 1.0), len(counted)


def held_out(records: Iterable[MeasurementRecord], ceilings: RooflineCeilings | None = None) -> HeldOutAccuracy:
    """Predict every tenth record (by digest of its key, so the same ones anywhere) from the other nine."""
    every = [r for r in records if r.key.op not in NOT_OPERATORS and r.ns_cold > 0]
    apart = [r for r in every if int(hashlib.sha256(r.key.text.encode()).hexdigest(), 16) % _HELD_OUT == 0]
    kept = set(map(id, apart))
    predictor = OperatorTimePredictor.fit([r for r in every if id(r) not in kept], ceilings)
    if not apart:
        return HeldOutAccuracy(0, 0.0, 0.0, 1.0, 1.0, 1.0)
    guesses = [predictor.predict(r.key.op, r.flops, r.bytes, r.key) for r in apart]
    off = [abs(g.us * 1e3 / r.ns_cold - 1) for g, r in zip(guesses, apart, strict=True)]
    logs = [abs(math.log(g.us * 1e3 / r.ns_cold)) / g.sigma for g, r in zip(guesses, apart, strict=True)]
    return HeldOutAccuracy(
        len(apart), statistics.median(off), sorted(off)[(9 * len(off)) // 10],
        sum(z <= 1 for z in logs) / len(logs), sum(z <= 2 for z in logs) / len(logs),
        _rank_correlation([g.us for g in guesses], [r.ns_cold for r in apart]),
    )  # fmt: skip


def repeat(
    name: str,
    graph: Graph,
    make: Callable[[DeviceProfileStore], MeasuredCpuCostModel],
    *,
    sizes: Mapping[str, int] | None = None,
) -> ProfileRepeatability:
    """Profile a model twice from nothing: ONNX Runtime's nodes of it and its own operators."""
    runs: list[dict[str, float]] = []
    seconds, cpu = [], []
    with TemporaryFolder("predictions") as folder:
        for number in range(2):
            store = DeviceProfileStore(f"run-{number}", {}, folder)
            started, used = time.monotonic(), time.process_time()
            costs = make(store)
            for model in (costs, costs.recording()):
                graph_cost(graph, model, sizes=sizes)
            seconds.append(time.monotonic() - started)
            cpu.append(time.process_time() - used)
            runs.append({r.key.text: r.ns_cold for r in store.records})
    ratios = [runs[1][k] / ns for k, ns in runs[0].items() if k in runs[1] and ns > 0]
    level = statistics.median(ratios) if ratios else 1.0
    return ProfileRepeatability(
        name, len(ratios), (seconds[0], seconds[1]), statistics.median(abs(r - 1) for r in ratios) if ratios else 0.0,
        statistics.median(abs(r / level - 1) for r in ratios) if ratios else 0.0, (cpu[0], cpu[1]),
    )  # fmt: skip
