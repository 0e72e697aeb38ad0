"""Forms that prices leave in doubt, timed beside the operator that they would replace.

Prices of a form are off by a tenth of its operator's time (:data:`~superopt.search.bilinear.choosing.FORM_ERROR`), and
to race whole models for a gain of less costs more than the gain is worth. So where choosing by prices is expected to
lose more than :data:`CHEAP` of the model's time to whoever knew, or where it is as open whether all forms together
gain what they have to, the operator and its forms are raced alone first, once for all sites that are alike: a few
milliseconds a run. Where an operator lies in memory decides more than what a round scatters by, so they are loaded
several times. What is believed then, by prices and rounds, chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot

from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported
from superopt.ir.graph import Graph
from superopt.ops.infer import Typing
from superopt.pipeline.judge import CHEAP, Belief, regret
from superopt.pipeline.racing import clock_of
from superopt.runtime.protocol import Runtime
from superopt.runtime.race import race_sittings
from superopt.search.bilinear.choosing import FORM_ERROR, LEAST_GAIN, Choice, Form, named, rewritten
from superopt.search.bilinear.sites import alike, isolated
from superopt.verifier.differential import make_inputs
from superopt.verifier.running import Bench

__all__ = ["tried_alone"]

_SITTINGS, _ROUNDS = 4, 12  # loadings at most, and rounds of all of them together
_HELD = 1 << 28  # bytes of weights that are held at once for a trial: larger operators are loaded less often
_SITTING = 0.05  # standard deviation of the ratio of a form to its operator, from one loading of both to another
# Microseconds that all trials of a model are modelled to run; what does not fit is decided by prices. Not the clock's:
# a busy machine would decide more by prices, and differently.
_MOST_US = 3e6
_PLAIN = Belief(1.0 - LEAST_GAIN, 0.0)  # of the operator itself: a form has to gain more than that


def tried_alone(
    plain: Graph,
    typing: Typing,
    chosen: Sequence[Choice],
    whole: float,
    least: float,
    bench: Bench,
    *,
    runtime: Runtime,
    threads: int,
    sizes: Mapping[str, int],
    seed: int,
    left: Callable[[], float],
) -> tuple[list[Choice], int, int]:
    """The choices that gain as far as prices and timing say; how many kinds were timed, and how many gained.

    Args:
        plain: the graph whose operators they are.
        typing: its types.
        chosen: forms by prices, with their rivals.
        whole: microseconds that all of the graph is modelled to take.
        least: share of it that all forms together have to gain, or none is kept.
        bench: where weights are written.
        runtime: of the races.
        threads: of the races.
        sizes: what symbolic dimensions are run at.
        seed: of inputs and orders.
        left: seconds that may still be spent; then prices decide.
    """
    kinds: dict[Hashable, list[Choice]] = {}
    graphs: dict[Hashable, Graph] = {}
    for choice in chosen:
        graph = isolated(plain, typing, choice.site)
        key: Hashable = (alike(graph), choice.spared and (named(choice.form), choice.spared))
        kinds.setdefault(key, []).append(choice)
        graphs.setdefault(key, graph)
    us = _MOST_US
    asked = gained = 0
    known = {key: _Options(kind[0], sum(c.before for c in kind) / whole) for key, kind in kinds.items()}
    for key in sorted(known, key=lambda k: -known[k].share):
        options = known[key]
        unsure = options.loses > CHEAP or (options.unsure and _all_lose(known.values(), least) > CHEAP)
        if unsure and options.us <= us and left() > 0.0:
            asked += 1
            us -= options.us
            raced = _race(graphs[key], options, bench, runtime, threads, sizes, seed, left())
            if raced is None:
                del known[key]
                continue
            known[key] = raced
            gained += raced.best > 0
    kept: dict[int, Choice] = {}
    for key, options in known.items():
        if options.best > 0:
            form, belief = options.forms[options.best - 1], options.beliefs[options.best - 1]
            for c in kinds[key]:  # alone is not in place: what it may be off by stays
                kept[id(c)] = replace(c, form=form, after=belief.mean * c.before, rivals=())
    return [kept[id(c)] for c in chosen if id(c) in kept], asked, gained


@dataclass(frozen=True)
class _Options:
    """An operator (number 0) and its forms, with what each form is taken to need of the operator's time.

    ``rounds`` are those of all sittings, of which each has ``each``; ``share`` is what all operators like it take of
    the model's time.
    """

    choice: Choice
    share: float
    rounds: tuple[tuple[float, ...], ...] = ()
    each: int = _ROUNDS // _SITTINGS

    @property
    def forms(self) -> tuple[Form, ...]:
        return (self.choice.form, *(form for form, _ in self.choice.rivals))

    @property
    def us(self) -> float:
        """What all rounds of it are modelled to take."""
        return _ROUNDS * (self.choice.before + self.choice.after + sum(us for _, us in self.choice.rivals))

    @cached_property
    def beliefs(self) -> list[Belief]:
        modelled = (self.choice.after, *(us for _, us in self.choice.rivals))
        priors = [Belief(us / self.choice.before, FORM_ERROR) for us in modelled]
        sitting = _SITTING * (self.each / max(len(self.rounds), self.each)) ** 0.5
        spared = self.choice.spared / self.choice.before  # alone, a form takes its image apart by itself
        return [
            b.measured([row[n + 1] / row[0] - spared for row in self.rounds], sitting=sitting)
            for n, b in enumerate(priors)
        ]

    @property
    def best(self) -> int:
        """The number of the option to take: the operator itself unless a form gains enough."""
        means = [_PLAIN.mean, *(b.mean for b in self.beliefs)]
        return min(range(len(means)), key=lambda n: means[n])

    @property
    def cheapest(self) -> Belief:
        """Of the form that is taken to need the least."""
        return min(self.beliefs, key=lambda b: b.mean)

    @property
    def unsure(self) -> bool:
        """Whether timing it can tell anything about what all forms together gain."""
        return self.share * self.cheapest.deviation > CHEAP

    @property
    def loses(self) -> float:
        """What taking the best as far as is known is expected to lose, as a share of the model's time."""
        return self.share * regret([_PLAIN, *self.beliefs])


def _all_lose(known: Iterable[_Options], least: float) -> float:
    """What keeping all forms, or none where they do not gain that much together, is expected to lose, as a share of
    the model's time."""
    best = [(o.share, o.cheapest) for o in known]
    gain = sum(share * max(0.0, 1.0 - b.mean) for share, b in best)
    return regret([Belief(1.0 - least, 0.0), Belief(1.0 - gain, hypot(*(share * b.deviation for share, b in best)))])


def _race(
    graph: Graph, options: _Options, bench: Bench, runtime: Runtime, threads: int, sizes: Mapping[str, int], seed: int,
    seconds: float,
) -> _Options | None:  # fmt: skip
    """With rounds of the operator and its forms, in turn, until it is settled which is best; ``None`` where they cannot
    be run."""
    feeds = make_inputs(graph, seed, "normal", sizes=sizes)
    # How long products take does not depend on what is multiplied, so no weights are read or computed for that.
    made = [bench.filled(rewritten(graph, [replace(options.choice, form=f)], filled=False)) for f in options.forms]
    bare = tuple(replace(w, data=None) if w.name == options.choice.site.weights else w for w in graph.weights)
    graph = bench.filled(replace(graph, weights=bare))
    sittings = max(1, min(_SITTINGS, _HELD // max(1, sum(g.weight_bytes for g in (graph, *made)))))
    options = replace(options, each=_ROUNDS // sittings)
    try:
        raced = race_sittings(
            lambda: [m.bound(feeds) for m in bench.loaded_all((graph, *made), runtime, threads=threads)],
            sittings=sittings, rounds=options.each, runtime=runtime, threads=threads, clock=clock_of(threads),
            time_limit=seconds, seed=seed, enough=lambda r: replace(options, rounds=r.samples).loses <= CHEAP,
        )  # fmt: skip
    except (InvalidModel, Unsupported, ResourceLimit):
        return None
    return replace(options, rounds=raced.samples)
