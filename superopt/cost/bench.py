"""Pairs of models timed side by side: the rows of ``make bench``."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from superopt import formats
from superopt.cost.measured import MeasuredCpu
from superopt.cost.trial import feeds_for, with_values
from superopt.cost.whole import graph_cost
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ops.record import NotCovered
from superopt.runtime.race import Clock, race

__all__ = ["BenchRow", "Prediction", "bench", "geometric_mean", "spearman", "validate"]


@dataclass(frozen=True)
class BenchRow:
    """One pair: times in milliseconds, ``ratio`` after ÷ before (below 1 is faster), its spread; or why it has none."""

    name: str
    before_ms: float = 0.0
    after_ms: float = 0.0
    ratio: float = 0.0
    spread: float = 0.0
    rounds: int = 0
    failure: str = ""
    circumstances: Mapping[str, str | int | float] = field(default_factory=dict)


def bench(
    pairs: Iterable[tuple[str, Graph | bytes | Path, Graph | bytes | Path]],
    *,
    sizes: Mapping[str, int] | None = None,
    threads: int = 1,
    rounds: int = 25,
    time_limit: float = 20.0,
) -> list[BenchRow]:
    """Time each pair interleaved, on the same random inputs. A pair that cannot run gives a row that says why."""
    return [_row(name, before, after, sizes or {}, threads, rounds, time_limit) for name, before, after in pairs]


def _row(
    name: str,
    before: Graph | bytes | Path,
    after: Graph | bytes | Path,
    sizes: Mapping[str, int],
    threads: int,
    rounds: int,
    time_limit: float,
) -> BenchRow:
    clock: Clock = "cpu" if threads == 1 else "wall"
    try:
        first, models = _graph(before), [_model(before), _model(after)]
        feeds: Mapping[str, np.ndarray] = feeds_for(first, sizes, integer=0)
        result = race(models, feeds, rounds=rounds, threads=threads, time_limit=time_limit, clock=clock)
    except (SuperoptError, NotCovered) as error:
        return BenchRow(name, failure=str(error))
    return BenchRow(
        name, result.ms[0], result.ms[1], result.ratios[1], result.spread[1], result.rounds,
        circumstances=result.circumstances,
    )  # fmt: skip


def _graph(model: Graph | bytes | Path) -> Graph:
    if isinstance(model, Graph):
        return model
    return formats.from_bytes(model) if isinstance(model, bytes) else formats.load(model)


def _model(model: Graph | bytes | Path) -> bytes | Path:
    return formats.to_onnx_bytes(with_values(model)) if isinstance(model, Graph) else model


def geometric_mean(rows: Iterable[BenchRow]) -> float:
    """The geometric mean of the ratios of the rows that have one; 1 when none has."""
    ratios = [r.ratio for r in rows if not r.failure]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0


@dataclass(frozen=True)
class Prediction:
    """A model's cost as the sum of its parts, beside its measured time; microseconds."""

    name: str
    predicted_us: float
    measured_us: float
    measured_share: float
    seconds: float
    failure: str = ""

    @property
    def error(self) -> float:
        """Relative error of the prediction, signed."""
        return self.predicted_us / self.measured_us - 1.0 if self.measured_us else 0.0


def validate(
    models: Iterable[tuple[str, Graph]],
    costs: MeasuredCpu,
    *,
    sizes: Mapping[str, int] | None = None,
    rounds: int = 9,
    time_limit: float = 10.0,
) -> list[Prediction]:
    """Compare the sum of parts with whole-model time. ``seconds`` is what profiling the model took."""
    rows = []
    for name, graph in models:
        started = time.monotonic()
        found = graph_cost(graph, costs, sizes=sizes)
        seconds = time.monotonic() - started
        row = _row(name, graph, graph, sizes or {}, costs.meter.threads, rounds, time_limit)
        rows.append(Prediction(name, found.us, row.before_ms * 1e3, found.measured_share, seconds, row.failure))
    return rows


def spearman(rows: Sequence[Prediction]) -> float:
    """Rank correlation of predicted and measured times; 1 for fewer than two rows."""
    good = [r for r in rows if not r.failure]
    if len(good) < 2:
        return 1.0
    predicted = np.argsort(np.argsort([r.predicted_us for r in good])).astype(np.float64)
    measured = np.argsort(np.argsort([r.measured_us for r in good])).astype(np.float64)
    return float(np.corrcoef(predicted, measured)[0, 1])
