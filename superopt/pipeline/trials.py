"""Forms that prices leave in doubt, timed beside the operator that they would replace.

Prices of a form are off by a tenth of its operator's time (:data:`~superopt.search.bilinear.choosing.FORM_ERROR`), and
to race whole models for a gain of less costs more than the gain is worth. So where choosing by prices is expected to
lose more than :data:`CHEAP` of the model's time to whoever knew, or where it is as open whether all forms together
gain what they have to, the operator and its forms are raced alone first, once for all sites that are alike: a few
milliseconds a run. Where an operator lies in memory decides more than what a round scatters by, so they are loaded
several times. What is believed then, by prices and rounds, chooses. But what prices alone choose stands until a kind's
rounds change it to what is believed to gain more than :data:`CHEAP`, and more than that belief is off by (one standard
deviation), so that a near tie ends as it does on other runs. Two deviations are steadier, and cost RepVGG 6.5 %.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from math import hypot

from superopt.cost.trial import sizes_fed
from superopt.ir.errors import InvalidModel, ResourceLimit, Unsupported
from superopt.ir.graph import Graph
from superopt.ops.infer import Typing
from superopt.pipeline.judge import CHEAP, Belief, regret
from superopt.pipeline.racing import clock_of
from superopt.runtime.limits import give_back
from superopt.runtime.protocol import Runtime
from superopt.runtime.race import race_sittings
from superopt.search.bilinear.choosing import FORM_ERROR, LEAST_GAIN, Choice, Form, named, rewritten
from superopt.search.bilinear.sites import alike, isolated
from superopt.verifier.differential import make_inputs
from superopt.verifier.running import Bench

__all__ = ["tried_alone"]

_SITTINGS, _ROUNDS = 4, 12  # loadings, and rounds of all of them together
# Loadings where they are cheap: all together a tenth of what a model's trials may take. RepVGG's thirteen convolutions
# of 192 channels are 6 % faster by one form than by the one that prices put first: of 20 runs 13 found that by four
# loadings, which are off by 2.5 %.
_MANY, _CHEAP = 12, 0.1
_CLEAR = 2.0  # deviations by which rounds speak against prices before no more loadings are made
_HELD = 1 << 28  # bytes of weights that all loadings of a trial read together: larger operators are loaded less often
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
    settle: Callable[[list[Choice]], list[Choice]] = list,
    lost: Callable[[Sequence[Choice]], float] = lambda _: 0.0,
) -> tuple[list[Choice], int, int]:
    """The choices that gain as far as prices and timing say; how many kinds were timed, and how many of them are kept.

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
        settle: which of the choices that gain by themselves are made, at what they are taken to need.
        lost: microseconds that choices take beside their own.
    """
    kinds: dict[Hashable, list[Choice]] = {}
    graphs: dict[Hashable, Graph] = {}
    for choice in chosen:
        graph = isolated(plain, typing, choice.site)
        key: Hashable = (alike(graph), choice.spared and (named(choice.form), choice.spared))
        kinds.setdefault(key, []).append(choice)
        graphs.setdefault(key, graph)
    us = _MOST_US
    raced: set[Hashable] = set()
    known = {key: _Options(kind[0], sum(c.before for c in kind) / whole) for key, kind in kinds.items()}
    order = sorted(known, key=lambda k: -known[k].share)
    asked = 0
    for key in order:
        options = known[key]
        unsure = options.loses > CHEAP or (options.unsure and _all_lose(known.values(), least) > CHEAP)
        if unsure and options.us <= us and left() > 0.0:
            asked += 1
            sittings = max(_SITTINGS, min(_MANY, int(_CHEAP * us * _SITTINGS / options.us)))
            us -= options.us * sittings / _SITTINGS
            found = _race(graphs[key], options, sittings, bench, runtime, threads, sizes, seed, left())
            give_back()  # what its operators were loaded with
            if found is None:
                del known[key]
                continue
            known[key] = found
            raced.add(key)
    decided = _Decided({key: (known[key], kinds[key]) for key in order if key in known}, chosen, settle, lost)
    trusted: set[Hashable] = set()
    kept = decided.by(trusted)
    for key in (k for k in order if k in raced):
        other = decided.by({*trusted, key})
        if decided.gain(other) - decided.gain(kept) > whole * max(CHEAP, known[key].doubt):
            trusted.add(key)
            kept = other
    sites = {id(c.site.node) for c in kept}
    return kept, asked, sum(any(id(c.site.node) in sites for c in kinds[key]) for key in raced)


@dataclass(frozen=True)
class _Decided:
    """What is chosen, by which kinds' rounds.

    ``kinds`` are options and choices that are alike, ``every`` choice is in the graph's order; ``settle`` and ``lost``
    as for :func:`tried_alone`.
    """

    kinds: Mapping[Hashable, tuple[_Options, Sequence[Choice]]]
    every: Sequence[Choice]
    settle: Callable[[list[Choice]], list[Choice]]
    lost: Callable[[Sequence[Choice]], float]

    def by(self, trusted: AbstractSet[Hashable]) -> list[Choice]:
        """By prices, and by the rounds of these kinds; at what is believed by both."""
        kept: dict[int, Choice] = {}
        more: dict[int, float] = {}
        for key, (options, kind) in self.kinds.items():
            beliefs = options.beliefs if key in trusted else options.modelled
            best = _best(beliefs)
            if best is not None:
                taken = beliefs[best].mean
                for c in kind:
                    number = id(c.site.node)
                    kept[number] = replace(c, form=options.forms[best], after=taken * c.before, rivals=())
                    more[number] = (options.beliefs[best].mean - taken) * c.before
        found = self.settle([kept[id(c.site.node)] for c in self.every if id(c.site.node) in kept])
        return [replace(c, after=c.after + more[id(c.site.node)]) for c in found]

    def gain(self, chosen: Sequence[Choice]) -> float:
        """Microseconds that choices gain beyond what a form has to, and beyond what they take beside their own."""
        return sum(_PLAIN.mean * c.before - c.after for c in chosen) - self.lost(chosen)


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
        """What the rounds of as many loadings as are always made are modelled to take."""
        return _ROUNDS * (self.choice.before + self.choice.after + sum(us for _, us in self.choice.rivals))

    @cached_property
    def modelled(self) -> list[Belief]:
        """By prices."""
        us = (self.choice.after, *(us for _, us in self.choice.rivals))
        return [Belief(each / self.choice.before, FORM_ERROR) for each in us]

    @cached_property
    def beliefs(self) -> list[Belief]:
        """By prices and rounds."""
        sitting = _SITTING * (self.each / max(len(self.rounds), self.each)) ** 0.5
        spared = self.choice.spared / self.choice.before  # alone, a form takes its image apart by itself
        return [
            b.measured([row[n + 1] / row[0] - spared for row in self.rounds], sitting=sitting)
            for n, b in enumerate(self.modelled)
        ]

    @property
    def cheapest(self) -> Belief:
        """Of the form that is taken to need the least."""
        return min(self.beliefs, key=lambda b: b.mean)

    @property
    def doubt(self) -> float:
        """What a gain over the choice by prices is off by, as a share of the model's time."""
        places = {_best(self.modelled), _best(self.beliefs)} - {None}
        return self.share * hypot(*(b.deviation for n, b in enumerate(self.beliefs) if n in places))

    @property
    def settled(self) -> bool:
        """Whether what is chosen is as good as the best, and rounds that speak against prices speak clearly."""
        best, by_prices = _best(self.beliefs), _best(self.modelled)
        taken = [_PLAIN.mean if n is None else self.beliefs[n].mean for n in (best, by_prices)]
        clear = best == by_prices or self.share * (taken[1] - taken[0]) > max(CHEAP, _CLEAR * self.doubt)
        return clear and self.loses <= CHEAP

    @property
    def unsure(self) -> bool:
        """Whether timing it can tell anything about what all forms together gain."""
        return self.share * self.cheapest.deviation > CHEAP

    @property
    def loses(self) -> float:
        """What taking the best as far as is known is expected to lose, as a share of the model's time."""
        return self.share * regret([_PLAIN, *self.beliefs])


def _best(beliefs: Sequence[Belief]) -> int | None:
    """The number of the form that is taken; ``None`` for the operator as it is."""
    best = min(range(len(beliefs)), key=lambda n: beliefs[n].mean)
    return best if beliefs[best].mean < _PLAIN.mean else None


def _all_lose(known: Iterable[_Options], least: float) -> float:
    """What keeping all forms, or none where they do not gain that much together, is expected to lose, as a share of
    the model's time."""
    best = [(o.share, o.cheapest) for o in known]
    gain = sum(share * max(0.0, 1.0 - b.mean) for share, b in best)
    return regret([Belief(1.0 - least, 0.0), Belief(1.0 - gain, hypot(*(share * b.deviation for share, b in best)))])


def _race(
    graph: Graph, options: _Options, most: int, bench: Bench, runtime: Runtime, threads: int, sizes: Mapping[str, int],
    seed: int, seconds: float,
) -> _Options | None:  # fmt: skip
    """With rounds of the operator and its forms, in turn, until it is settled which is best; ``None`` where they cannot
    be run."""
    feeds = make_inputs(graph, seed, "normal", sizes=sizes_fed(graph, sizes))
    # How long products take does not depend on what is multiplied, so no weights are read or computed for that.
    made = [bench.filled(rewritten(graph, [replace(options.choice, form=f)], filled=False)) for f in options.forms]
    bare = tuple(replace(w, data=None) if w.name == options.choice.site.weights else w for w in graph.weights)
    graph = bench.filled(replace(graph, weights=bare))
    sittings = max(1, min(most, _HELD // max(1, sum(g.weight_bytes for g in (graph, *made)))))
    options = replace(options, each=_ROUNDS // min(_SITTINGS, sittings))
    try:
        raced = race_sittings(
            lambda: [m.bound(feeds) for m in bench.loaded_all((graph, *made), runtime, threads=threads)],
            sittings=sittings, rounds=options.each, runtime=runtime, threads=threads, clock=clock_of(threads),
            time_limit=seconds, seed=seed, enough=lambda r: replace(options, rounds=r.samples).settled,
        )  # fmt: skip
    except (InvalidModel, Unsupported, ResourceLimit):
        return None
    return replace(options, rounds=raced.samples)
