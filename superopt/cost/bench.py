"""Pairs of models timed side by side: the rows of ``make bench``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from superopt import formats
from superopt.cost.trial import feeds_for, with_values
from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph
from superopt.ops.record import NotCovered
from superopt.runtime.race import Clock, race

__all__ = ["BenchRow", "bench", "geometric_mean"]


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
