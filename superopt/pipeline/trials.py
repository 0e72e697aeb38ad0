"""Forms that prices leave in doubt, each timed beside the operator that it would replace.

Prices of a form are off by some 7 % of its operator (``docs/algorithms.md``), and to race whole models for a gain of
less costs more than the gain is worth. So where a form is modelled to gain less than :data:`CLEAR`, the operator and
the form are raced alone first, once for all sites that are alike: a few milliseconds a run. What does not gain there is
left out.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported
from superopt.ir.graph import Graph
from superopt.ops.infer import Typing
from superopt.pipeline.judge import LOOKS
from superopt.pipeline.racing import clock_of, ratio_of
from superopt.runtime.protocol import Runtime
from superopt.runtime.race import RaceResult, race_bound
from superopt.search.bilinear.choosing import LEAST_GAIN, Choice, alike, isolated, named, rewritten
from superopt.verifier.differential import make_inputs
from superopt.verifier.running import Bench

__all__ = ["CLEAR", "tried_alone"]

CLEAR = (
    0.3  # share of an operator's time: what is modelled to gain so much gains (docs/algorithms.md: all of 60 shapes)
)
_SECONDS = 3.0  # for all trials of a model together


def tried_alone(
    plain: Graph,
    typing: Typing,
    chosen: Sequence[Choice],
    bench: Bench,
    *,
    runtime: Runtime,
    threads: int,
    sizes: Mapping[str, int],
    seed: int,
) -> tuple[list[Choice], int, int]:
    """The choices that are clear or gained when they were timed; how many kinds were timed, and how many gained.

    Args:
        plain: the graph whose operators they are.
        typing: its types.
        chosen: forms by prices; what a timed one takes is then what was measured.
        bench: where weights are written.
        runtime: of the races.
        threads: of the races.
        sizes: what symbolic dimensions are run at.
        seed: of inputs and orders.
    """
    kinds: dict[tuple[Hashable, str], list[Choice]] = {}
    graphs: dict[tuple[Hashable, str], Graph] = {}
    for choice in chosen:
        if choice.after >= (1.0 - CLEAR) * choice.before:
            graph = isolated(plain, typing, choice.site)
            key = alike(graph), named(choice.form)
            kinds.setdefault(key, []).append(choice)
            graphs.setdefault(key, graph)
    deadline = time.monotonic() + _SECONDS
    after: dict[int, float] = {}
    asked = gained = 0
    for key in sorted(kinds, key=lambda k: -sum(c.before for c in kinds[k])):
        ratio = 1.0
        left = deadline - time.monotonic()
        if left > 0.0:
            asked += 1
            ratio = _ratio(graphs[key], kinds[key][0], bench, runtime, threads, sizes, seed, left)
            gained += ratio < 1.0
        after.update({id(choice): ratio * choice.before for choice in kinds[key]})
    timed = [replace(c, after=after.get(id(c), c.after)) for c in chosen]
    return [c for c in timed if c.after < c.before], asked, gained


def _ratio(
    graph: Graph, choice: Choice, bench: Bench, runtime: Runtime, threads: int, sizes: Mapping[str, int], seed: int,
    seconds: float,
) -> float:  # fmt: skip
    """What the form takes of the operator's time; 1 where it does not gain enough. The whole has the last word, so
    that doubt which is left decides nothing here."""
    made = rewritten(graph, [choice])
    feeds = make_inputs(graph, seed, "normal", sizes=sizes)
    try:
        bound = [bench.loaded(g, runtime, threads=threads).bound(feeds) for g in (graph, made)]
        result = race_bound(
            bound, runtime=runtime, rounds=LOOKS[-1], burst=1, threads=threads, clock=clock_of(threads),
            time_limit=seconds, seed=seed, looks=dict.fromkeys(LOOKS, _settled),
        )  # fmt: skip
    except (InvalidModel, Unsupported, ResourceLimit):
        return 1.0
    ratio, _ = ratio_of(result)
    return ratio if ratio <= 1.0 - LEAST_GAIN else 1.0


def _settled(result: RaceResult) -> bool:
    ratio, doubt = ratio_of(result)
    return ratio + doubt < 1.0 - LEAST_GAIN or ratio - doubt > 1.0 - LEAST_GAIN
