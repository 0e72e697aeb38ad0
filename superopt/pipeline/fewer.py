"""Fewer multiplications for a result: forms that prices choose, raced beside the result without them, checked.

The last step of an optimisation, and one that can only add: a form that fails the check, costs more accuracy than the
mode allows, or does not win the race leaves the result as it was. Forms are chosen by prices alone
(:func:`superopt.search.bilinear.choosing.choose`), so that without a race the result is a function of graph and prices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from superopt import cost as costs
from superopt import report
from superopt.cost import CostModel, GraphCost
from superopt.cost.trial import sizes_fed
from superopt.ir.errors import InvalidModel, ResourceLimit, SuperoptError, Unsupported, UsageError
from superopt.ir.graph import Graph
from superopt.ops.infer import infer
from superopt.pipeline.judge import CHEAP, LOOKS, SITTING, Belief, Judgement, regret
from superopt.pipeline.memory import needed
from superopt.pipeline.racing import LARGE, clock_of, measured_of, refuse_fatal
from superopt.pipeline.trials import tried_alone
from superopt.rules.floats import MOST_ERROR
from superopt.runtime import reference
from superopt.runtime.limits import refuse_unbounded
from superopt.runtime.protocol import Runtime
from superopt.runtime.race import SETTLED, RaceResult, race_bound
from superopt.runtime.spread import SURELY
from superopt.search.bilinear.choosing import (
    GROWTH,
    LEAST_GAIN,
    NEAR,
    Choice,
    accuracy_of,
    choose,
    in_place,
    layouts_us,
    named,
    rewritten,
)
from superopt.search.bilinear.matmul import MatMulForm
from superopt.search.bilinear.sharing import shared
from superopt.search.bilinear.sites import possible
from superopt.verifier.differential import CheckResult, Slack, make_inputs
from superopt.verifier.running import Bench

__all__ = ["Accuracy", "Formed", "Setting", "accuracy", "with_forms"]

_LESS = (6.0, 3.0)  # growth of errors of algorithms that are tried in turn where those of the mode are too inaccurate
_LEAST = 3 * SITTING  # share of the whole that forms have to gain for what they cost in accuracy and memory
_SPENT = 0.5  # of the budget, at most, on the few inputs that are measured: on 100 it was up to 1.8 times as much
_INPUTS, _WORK = 3, 1e10  # inputs on which errors are measured, at most, and FLOPs of the reference for all but one


@dataclass(frozen=True)
class Accuracy:
    """Largest errors against float64, relative to the largest element of the output, over so many random inputs."""

    before: float
    after: float
    inputs: int

    def within(self, mode: str, share: float = 1.0) -> bool:
        """Whether a mode's budget, or a share of it, allows it; what errs no more than the model does is allowed."""
        return self.after <= max(self.before, share * min(MOST_ERROR[mode], GROWTH[mode] * self.before))


Check = Callable[[Graph, Slack], CheckResult]  # of a result
Beside = Callable[[Graph, GraphCost], tuple[Judgement, report.Measured | None]]  # of a result, beside the input


@dataclass(frozen=True)
class Setting:
    """How forms are tried.

    Attributes:
        mode: the budget of errors, as ``--float`` says it.
        sizes: what symbolic dimensions are costed and run at.
        seed: of inputs and of the order in a race.
        threads, runtime: of the race.
        races: whether there is one; prices decide otherwise.
        seconds: for the race.
        left: seconds until the time is up.
        needs: seconds that have to be left before anything is tried.
        memory: bytes that weights and activations may take together; ``None`` without a limit.
        inputs: on which errors are measured; ``None``: as many as that is worth.
        trials: whether, with races, operators are timed alone first, and the result beside the one without forms;
            otherwise prices choose, and the only race is beside the input.
    """

    mode: str
    sizes: Mapping[str, int]
    seed: int
    threads: int
    runtime: Runtime
    races: bool
    seconds: float
    left: Callable[[], float]
    needs: float = 0.0
    memory: int | None = None
    inputs: int | None = None
    trials: bool = True

    @property
    def tries(self) -> bool:
        """Whether forms that prices leave in doubt are timed."""
        return self.races and self.trials


@dataclass(frozen=True)
class Formed:
    """A result with forms: faster than without them as far as a race or prices say, checked, and accurate enough.

    Attributes:
        graph: the result.
        choices: its forms.
        checked: against the input; ``None`` where no check was asked for.
        errors: of the input and of the result.
        cost: what it is modelled to take.
        slack: share of an output's largest magnitude by which the mode lets it be off.
        judged: how it is better than the input.
        measured: a race of the input and the result, if there was one.
    """

    graph: Graph
    choices: tuple[Choice, ...]
    checked: CheckResult | None
    errors: Accuracy
    cost: GraphCost
    slack: float
    judged: Judgement
    measured: report.Measured | None

    def reported(self) -> tuple[report.Algorithm, ...]:
        """What a report says of each."""
        return tuple(_reported(choice) for choice in self.choices)

    def errors_reported(self, mode: str) -> report.Errors:
        """The errors, with what a mode allows."""
        found = self.errors
        return report.Errors(found.before, found.after, found.inputs, MOST_ERROR[mode], GROWTH[mode])


def with_forms(
    original: Graph,
    plain: Graph,
    prices: CostModel,
    setting: Setting,
    bench: Bench,
    check: Check | None,
    beside: Beside,
    notes: list[str],
    progress: Callable[[int, int | None, str], None],
) -> Formed | None:
    """A result with forms in the place of some operators; ``None`` where there is nothing to gain.

    Args:
        original: the input.
        plain: the result so far, or the input.
        prices: the target's cost model.
        setting: how.
        bench: keeps the sessions of the input and of what is returned, or of ``plain``.
        check: a result against the input; ``None`` for no check.
        beside: whether a result is better than the input.
        notes: why forms that were tried are left out is added.
        progress: called with (done, total, what).

    Raises:
        KeyboardInterrupt: nothing is kept of what was begun.
    """
    if GROWTH[setting.mode] <= 1.0 or not prices.backend.processor or not possible(plain):
        return None
    pricing = _pricing(prices)
    if pricing is None:
        return None
    if plain.weight_bytes > LARGE:  # the race and the errors need the model whole
        return None
    if setting.left() < setting.needs:
        notes.append("there was no time left to look for fewer multiplications")
        return None
    progress(0, None, "looking for fewer multiplications")
    typing = infer(plain)
    before = costs.graph_cost(plain, pricing, sizes=setting.sizes).us
    tried: list[list[Choice]] = []
    least = -NEAR if setting.tries else LEAST_GAIN
    worth = _hoped if setting.tries else _gain
    enough, too_large = _LEAST * before, False
    for growth in (GROWTH[setting.mode], *(less for less in _LESS if less < GROWTH[setting.mode])):
        chosen = choose(plain, pricing, growth=growth, typing=typing, sizes=setting.sizes, gain=least)
        if worth(chosen) < enough:
            break  # fewer forms gain no more
        if chosen in tried:
            continue
        tried.append(chosen)
        chosen = _fitting(plain, chosen, setting)
        if setting.tries and worth(chosen) >= enough:
            progress(0, None, "measuring operators with fewer multiplications")
            chosen, asked, gained = tried_alone(
                plain, typing, chosen, before, _LEAST, bench, runtime=setting.runtime, threads=setting.threads,
                sizes=setting.sizes, seed=setting.seed, left=lambda: setting.left() - setting.needs,
                settle=lambda some: in_place(plain, typing, some, pricing),
                lost=lambda some: layouts_us(plain, typing, some, pricing),
            )  # fmt: skip
            if gained < asked:
                notes.append(f"of {asked} kinds of operators that might gain by fewer multiplications, each timed "
                             f"beside its forms, {gained} took one")  # fmt: skip
            if _gain(chosen) < enough:
                break
            chosen = _fitting(plain, chosen, setting)  # rivals have other weights
        if _gain(chosen) < enough:
            too_large = True
            continue
        found = _tried(original, plain, before, chosen, prices, setting, bench, check, beside, progress)
        if found.formed is not None:
            return found.formed
        notes.append(f"{len(chosen)} operators with fewer multiplications were left out: {found.why}")
        if found.final or setting.left() <= 0.0:
            break
    if too_large:
        most = LARGE if setting.memory is None else min(LARGE, setting.memory)
        notes.append(f"fewer multiplications were left out: the model with their weights would take more than "
                     f"{most >> 20} MiB")  # fmt: skip
    return None


def _gain(chosen: Sequence[Choice]) -> float:
    """Microseconds."""
    return sum(c.before - c.after for c in chosen)


def _hoped(chosen: Sequence[Choice]) -> float:
    """Microseconds that choices gain at most, as far as prices can be off."""
    return sum(max(0.0, c.before - c.after + c.error) for c in chosen)


@dataclass(frozen=True)
class _Outcome:
    """What became of some choices.

    Attributes:
        formed: the result with them, if they are to stay.
        why: they are not.
        final: more accurate forms would not help either.
    """

    formed: Formed | None
    why: str = ""
    final: bool = False


def _pricing(prices: CostModel) -> CostModel | None:
    """What prices forms, which measures nothing: where all is measured, a recorded profile of the same backend, however
    many threads that had; ``None`` where there is none."""
    if prices.recorded is not None:
        return prices.recorded
    headers = {name: costs.shipped_header(name) for name in costs.profile_names()}
    alike = (n for n, header in headers.items() if costs.BACKENDS.get(str(header.get("backend"))) is prices.backend)
    found = next(alike, None)
    return None if found is None else costs.RecordedProfile(costs.load_profile(found), prices.sizes)


def _tried(
    original: Graph, plain: Graph, before: float, chosen: Sequence[Choice], prices: CostModel, setting: Setting,
    bench: Bench, check: Check | None, beside: Beside, progress: Callable[[int, int | None, str], None],
) -> _Outcome:  # fmt: skip
    """The result with some choices, raced, measured against float64, and checked."""
    made = rewritten(plain, chosen, reserved=original.names)
    cost = costs.graph_cost(made, prices.recorded or prices, sizes=setting.sizes)  # a race says more than questions
    if not setting.tries and cost.us > (1.0 - _LEAST) * before:
        why = f"they are modelled at {cost.us / before:.3f} of the result without them"
        return _Outcome(None, why, final=True)
    try:
        refuse_unbounded(made, setting.sizes)
        progress(0, None, "measuring with fewer multiplications")
        judged, measured = _beside_both(original, plain, made, _believed(chosen, before), cost, setting, bench, beside)
        if not judged.taken:
            bench.drop(made)
            return _Outcome(None, judged.reason, final=True)
        errors = _errors(original, made, setting, bench)
    except (InvalidModel, Unsupported, ResourceLimit) as error:
        return _Outcome(None, f"the model could not be run with them: {error}")
    for found in errors:
        if not found.within(setting.mode, _SPENT):
            why = f"errors grow from {found.before:.1e} to {found.after:.1e}, which {setting.mode!r} does not allow"
            bench.drop(made)
            return _Outcome(None, why)
    checked: CheckResult | None = None
    if check is not None:
        progress(0, None, "checking")
        new = frozenset(n.name for n in made.nodes) - {n.name for n in plain.nodes}
        checked = check(made, Slack(MOST_ERROR[setting.mode], new))
        if checked.verdict != "passed":
            bench.drop(made)
            return _Outcome(None, f"the check {checked.verdict}: {checked.reason}")
    return _Outcome(
        Formed(made, tuple(chosen), checked, _largest(errors), cost, MOST_ERROR[setting.mode], judged, measured)
    )


def _believed(chosen: Sequence[Choice], before: float) -> Belief:
    """What a result with forms takes of the time without them, as far as prices and trials say."""
    return Belief(1.0 - _gain(chosen) / before, sum(c.error for c in chosen) / before)


def _beside_both(
    original: Graph, plain: Graph, made: Graph, modelled: Belief, cost: GraphCost, setting: Setting, bench: Bench,
    beside: Beside,
) -> tuple[Judgement, report.Measured | None]:  # fmt: skip
    """Whether a result with forms is better than the result without them, and than the input; the race beside the
    input, if there was one.

    Beside the result without forms it is not raced where little could be lost by that: where it is known to be faster.
    """
    first: report.Measured | None = None
    doubted = setting.trials and regret([Belief(1.0 - _LEAST, 0.0), modelled]) > CHEAP
    if setting.races and (plain is original or doubted):
        raced = _race(plain, made, modelled, setting, bench)
        if not raced.won:
            why = f"beside the result without them, they take {raced.text} of its time"
            return Judgement(None, why), None
        first = measured_of(raced.result) if plain is original else None
    if plain is not original:
        bench.drop(plain)
    judged, measured = beside(made, cost)
    return judged, measured or first


def _fitting(plain: Graph, chosen: list[Choice], setting: Setting) -> list[Choice]:
    """As many of the forms as memory allows, without those first that gain the least for a byte."""
    weights = plain.weight_bytes
    kept = list(chosen)
    while kept:
        if weights + sum(c.more_bytes for c in kept) <= LARGE and (
            setting.memory is None
            or needed(rewritten(plain, kept, filled=False), None, setting.sizes) <= setting.memory
        ):
            return kept
        least = min(range(len(kept)), key=lambda i: (kept[i].before - kept[i].after) / max(kept[i].more_bytes, 1))
        del kept[least]
        kept = shared(kept)
    return kept


@dataclass(frozen=True)
class _Raced:
    """A race of the result without forms and the result with them.

    Attributes:
        result: the race.
        modelled: what the result with forms was taken to need of the time of that without, before the race.
    """

    result: RaceResult
    modelled: Belief

    @cached_property
    def ratios(self) -> list[float]:
        """By round, of the time with forms to that without."""
        return [with_them / without for without, with_them in self.result.samples]

    @cached_property
    def against(self) -> Belief:
        """The ratio of the time with forms to that without."""
        return self.modelled.measured(self.ratios)

    @property
    def won(self) -> bool:
        return self.against.mean < 1.0 - _LEAST and self.against.mean + SURELY * self.against.deviation < 1.0

    @property
    def unanimous(self) -> bool:
        """Whether prices and each round by itself say that it wins."""
        least = max(self.modelled.mean + SURELY * self.modelled.deviation, *self.ratios)
        return least < 1.0 - _LEAST

    @property
    def settled(self) -> bool:
        """Whether more rounds would hardly change anything."""
        known = self.against
        return known.sure or abs(known.mean - (1.0 - _LEAST)) > SURELY * known.deviation

    @property
    def text(self) -> str:
        rounds, together = median(self.ratios), self.against.mean
        return f"{rounds:.3f} by {self.result.rounds} rounds, {together:.3f} by rounds and prices together,"


def _race(plain: Graph, made: Graph, modelled: Belief, setting: Setting, bench: Bench) -> _Raced:
    feeds = make_inputs(plain, setting.seed, "normal", sizes=sizes_fed(plain, setting.sizes))
    refuse_fatal((plain, made), feeds, bench)
    loaded = bench.loaded_all((plain, made), setting.runtime, threads=setting.threads, keep=True)
    bound = [model.bound(feeds) for model in loaded]
    result = race_bound(
        bound, runtime=setting.runtime, rounds=LOOKS[-1], burst=1, threads=setting.threads,
        clock=clock_of(setting.threads), time_limit=setting.seconds, seed=setting.seed,
        looks={
            LOOKS[0] + 1: lambda r: _Raced(r, modelled).unanimous,
            **dict.fromkeys(LOOKS[1:], lambda r: _Raced(r, modelled).settled),
        },
        shortest=SETTLED,
    )  # fmt: skip
    return _Raced(result, modelled)


def accuracy(
    before: Graph, after: Graph, *, sizes: Mapping[str, int], runtime: Runtime, seed: int = 0, inputs: int = 3
) -> Accuracy:
    """Errors of two graphs in a runtime against the first in float64, on the same standard normal inputs.

    Raises:
        InvalidModel, Unsupported, ResourceLimit: one of them cannot be run.
    """
    fed = [make_inputs(before, number, "normal", sizes=sizes) for number in range(seed, seed + inputs)]
    with Bench() as bench:
        found = _errors_on(before, after, bench, runtime, 1, sizes, fed)
    return _largest([f for f in found if f is not None])


def _errors(original: Graph, made: Graph, setting: Setting, bench: Bench) -> list[Accuracy]:
    """Errors on standard normal inputs, as many as that is worth, and on one of large, small and repeated elements, as
    far as the model takes them: where an exponential follows, what is large is where errors grow."""
    done = costs.work(original, infer(original, setting.sizes), setting.sizes)
    count = setting.inputs or max(1, min(_INPUTS, int(_WORK / max(done.flops, 1))))
    seeds = range(setting.seed, setting.seed + count)
    kinds = [*(("normal", seed) for seed in seeds), ("edge", setting.seed)]
    fed = [make_inputs(original, seed, kind, sizes=setting.sizes) for kind, seed in kinds]
    found = _errors_on(original, made, bench, setting.runtime, setting.threads, setting.sizes, fed)
    taken = [[f for f in some if f is not None] for some in (found[:count], found[count:])]
    return [_largest(some) for some in taken if some]


def _largest(found: Sequence[Accuracy]) -> Accuracy:
    """Of all inputs together."""
    return Accuracy(max(f.before for f in found), max(f.after for f in found), sum(f.inputs for f in found))


def _errors_on(
    before: Graph, after: Graph, bench: Bench, runtime: Runtime, threads: int, sizes: Mapping[str, int],
    fed: Sequence[Mapping[str, np.ndarray]],
) -> list[Accuracy | None]:  # fmt: skip
    """Errors on each of these inputs; ``None`` for one that the first graph refuses. One after the other is in memory:
    each graph's session, then the reference.

    Raises:
        InvalidModel: it refuses all of them, or the second graph refuses another.
    """
    names = [v.name for v in before.outputs]
    made: list[list[dict[str, np.ndarray] | None]] = []
    refused: set[int] = set()
    why: SuperoptError | None = None
    for side, graph in enumerate((before, after)):
        session = bench.loaded(graph, runtime, threads=threads)
        runs: list[dict[str, np.ndarray] | None] = []
        for number, feeds in enumerate(fed):
            try:
                runs.append(None if number in refused else session.run(feeds, names))
            except (InvalidModel, UsageError) as error:
                if side:
                    raise InvalidModel(f"what the model takes is refused: {error.what}") from error
                refused.add(number)
                why = error
                runs.append(None)
        made.append(runs)
        del session
        bench.drop(graph)
        if why is not None and len(refused) == len(fed):
            raise InvalidModel(why.what) from why
    found: list[Accuracy | None] = []
    for feeds, old, new in zip(fed, *made, strict=True):
        if old is None or new is None:
            found.append(None)
            continue
        exact = reference.run(before, feeds, sizes=sizes)
        errors = [_errors_of(old[n], new[n], exact[n]) for n in names]
        found.append(Accuracy(max(e[0] for e in errors), max(e[1] for e in errors), 1))
    return found


def _errors_of(old: np.ndarray, new: np.ndarray, exact: np.ndarray) -> tuple[float, float]:
    """Largest errors relative to the largest element, over those that are finite exactly and as the model computes
    them."""
    if exact.dtype.kind != "f":
        return 0.0, 0.0
    usable = np.isfinite(exact) & np.isfinite(old)
    if not usable.any():
        return 0.0, 0.0
    exact = exact[usable]
    off = [np.abs(made[usable].astype(np.float64) - exact).max() for made in (old, new)]
    before, after = (float(e / (np.abs(exact).max() or 1.0)) for e in off)
    return before, after if np.isfinite(after) else np.inf


def _reported(choice: Choice) -> report.Algorithm:
    growth, bound = accuracy_of(choice.form)
    name = named(choice.form)
    where = choice.site.node.name or choice.site.output
    op = "MatMul" if isinstance(choice.form, MatMulForm) else "Conv"
    return report.Algorithm(where, op, name, growth, bound, choice.before, choice.after)
