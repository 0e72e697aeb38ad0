"""Rules from the models themselves, and from what the library's search leaves of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from superopt import cost as costs
from superopt.discovery.discover import claimed
from superopt.discovery.learn import LearningResult, learn
from superopt.passes import SearchOptions, search
from superopt.pipeline.optimization import load
from superopt.rules import load_library

__all__ = ["learn_from"]

_SEARCHING = 0.3  # of the time limit, for searches by the library


def learn_from(
    models: Sequence[str | Path], *, out: Path, target: str, time_limit: float, runtime: str = "onnxruntime",
    rules: Path | None = None, sizes: Mapping[str, int] | None = None, seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> LearningResult:  # fmt: skip
    """Find rules that make parts of models cheaper and that the library does not derive; see ``discovery.learn``.

    Args:
        models: paths.
        out: the folder of rules that is written.
        target: whose prices count; a recorded profile makes the result repeatable.
        time_limit: seconds for everything.
        runtime: what the models will run in.
        rules: known rules besides the library.
        sizes: of symbolic dimensions.
        seed: of every random choice.
        say: told what happens.

    Raises:
        InvalidModel, UsageError: a model cannot be read, there is no such target, another run writes ``out``, or it
            holds other things. OSError: ``out`` is not writable.
    """
    graphs = {_name(m, models): load(m) for m in models}
    library = load_library(rules)
    with claimed(out) as asked, costs.for_target(target, sizes=sizes, runtime=runtime) as prices:
        started = time.monotonic()
        limits = SearchOptions(
            time_limit=_SEARCHING * time_limit / len(graphs),
            seed=seed,
            sizes=dict(sizes or {}),
            floats=library.floats("standard"),
        )
        left = {n: search(g, library.admitted, prices, limits).graph for n, g in graphs.items()}
        return learn(
            graphs, library, prices, out=out, asked=asked, target=f"{target} {runtime}", left=left, sizes=sizes,
            seed=seed, say=say, seconds=time_limit - (time.monotonic() - started),
        )  # fmt: skip


def _name(model: str | Path, models: Sequence[str | Path]) -> str:
    """What a model is called: as its file, and by its path where files of two folders are called alike."""
    alike = {str(m) for m in models if Path(m).stem == Path(model).stem}
    return Path(model).stem if len(alike) == 1 else str(model)
