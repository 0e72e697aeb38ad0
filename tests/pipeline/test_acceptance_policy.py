"""One policy about noise: what it takes, what it refuses, and that chance seldom decides."""

from __future__ import annotations

import random
from statistics import NormalDist, median, quantiles, stdev

import numpy as np
import pytest
from sampling import slow

from superopt.cost import InferenceWork
from superopt.pipeline.acceptance_policy import POLICY, CandidateComparison, GraphSize, TimeRatioEstimate, regret
from superopt.report import PairedMeasurement
from superopt.runtime.paired_benchmark import IQR_OF_NORMAL

INPUT = GraphSize(100, 1_000_000, InferenceWork(1000, 1000, 10))
LESS = GraphSize(90, 1_000_000, InferenceWork(900, 1000, 10))
FEWER = GraphSize(99, 1_000_000, INPUT.work)  # a node that the runtime does not run is gone
FOLDED = GraphSize(90, 1_000_600, INPUT.work)  # shapes that ten nodes made are constants
BLOATED = GraphSize(90, 1_400_000, InferenceWork(900, 1000, 10))  # a table that one node made is a constant
MORE_KERNELS = GraphSize(90, 1_000_000, InferenceWork(900, 900, 11))
TRADED = GraphSize(300, 1_300_000, InferenceWork(500, 2000, 30))


def raced(ratio: float, spread: float = 0.01, rounds: int = 15, loadings: int = 1) -> PairedMeasurement:
    return PairedMeasurement(1.0, ratio, ratio, rounds, spread, deviation=spread / IQR_OF_NORMAL, loadings=loadings)


@pytest.mark.parametrize(
    ("after", "measured", "improvement"),
    [
        (LESS, None, "simpler"),
        (LESS, raced(1.004), "simpler"),  # within noise
        (LESS, raced(1.02, spread=0.001), "simpler"),  # two loadings of one model differ by as much
        (LESS, raced(1.02, spread=0.001, loadings=16), None),  # which so many loadings do not
        (LESS, raced(1.05), None),
        (LESS, raced(1.05, spread=0.3), "simpler"),  # a race that scatters shows nothing
        (LESS, raced(0.9), "faster"),
        (FEWER, raced(1.0), "simpler"),
        (FOLDED, raced(1.0), "simpler"),  # what the nodes took in the file
        (BLOATED, raced(1.0), None),
        (BLOATED, raced(0.9), "faster"),
        (MORE_KERNELS, raced(1.0), None),
        (TRADED, raced(0.9), "faster"),
        (TRADED, raced(0.9, spread=0.3), None),  # it trades, and nothing is shown
        (TRADED, raced(0.976, spread=0.03), None),  # a ResNet-50 of 518 nodes for 175
        (TRADED, raced(0.976, spread=0.001), None),  # two loadings of one model differ by as much
        (TRADED, raced(0.976, spread=0.001, loadings=16), "faster"),
        (TRADED, raced(0.999), None),
        (TRADED, None, None),  # it could not be timed
        (INPUT, raced(1.0), None),  # as large, and as fast
        (INPUT, raced(0.5), "faster"),
    ],
)
def test_a_result_is_better_if_it_is_faster_beyond_doubt_or_simpler(
    after: GraphSize, measured: PairedMeasurement | None, improvement: str | None
) -> None:
    found = CandidateComparison(INPUT, after, 0.5, measured=measured).decide()
    assert found.improvement == improvement
    assert found.accepted is (improvement is not None)
    assert found.accepted or found.reason


@pytest.mark.parametrize(
    ("after", "modelled", "improvement"),
    [(TRADED, 0.5, "faster"), (TRADED, 0.98, None), (TRADED, 1.1, None), (LESS, 0.99, "simpler"),
     (LESS, 1.2, "simpler"), (INPUT, 1.0, None)],
)  # fmt: skip
def test_where_nothing_can_be_timed_prices_say_what_is_faster(
    after: GraphSize, modelled: float, improvement: str | None
) -> None:
    assert CandidateComparison(INPUT, after, modelled, timed=False).decide().improvement == improvement


def test_what_is_refused_is_said_with_figures() -> None:
    why = CandidateComparison(INPUT, TRADED, 0.5, measured=raced(0.976, spread=0.001)).decide().reason
    assert "nodes 100 → 300" in why
    assert "bytes of weights 1,000,000 → 1,300,000" in why
    assert "0.976 ± 0.035" in why


def race(rng: random.Random, truth: float, noise: float, rounds: int) -> PairedMeasurement:
    ratios = [truth * rng.lognormvariate(0.0, noise) for _ in range(rounds)]
    low, _, high = quantiles(ratios, n=4)
    return PairedMeasurement(1.0, 1.0, median(ratios), rounds, high - low, deviation=stdev(ratios))


@pytest.mark.parametrize(
    ("noise", "rounds"),
    [
        (0.01, 3), (0.05, 7), (0.2, 3), (0.2, 31), *(slow(0.01, rounds) for rounds in (7, 15, 31)),
        *(slow(0.05, rounds) for rounds in (3, 15, 31)), slow(0.2, 7), slow(0.2, 15),
    ],
)  # fmt: skip
def test_noise_seldom_decides(noise: float, rounds: int) -> None:
    """Of equal models, one that does less is refused, and one that trades is taken, about as seldom as is said."""
    rng = random.Random(7)
    races = [race(rng, 1.0, noise, rounds) for _ in range(4000)]
    refused = sum(not CandidateComparison(INPUT, LESS, 0.9, measured=m).decide().accepted for m in races)
    taken = sum(CandidateComparison(INPUT, TRADED, 0.98, measured=m).decide().accepted for m in races)
    most = 2 * POLICY.error_rate * len(races)  # one look has a quarter of the doubt; ratios are not quite normal
    assert refused <= most
    assert taken <= most


@pytest.mark.parametrize(
    ("modelled", "ratio", "spread", "accepted"),
    [
        (0.93, 0.96, 0.06, True),  # beside other work
        (0.93, 1.00, 0.01, False),  # a quiet machine shows that prices are wrong
        (0.93, 0.995, 0.02, False),
        (0.98, 0.96, 0.06, False),  # prices say little, rounds as well
        (0.93, 1.05, 0.06, False),
        (1.02, 0.96, 0.06, False),
    ],
)
def test_where_rounds_are_in_doubt_prices_and_rounds_decide_together(
    modelled: float, ratio: float, spread: float, accepted: bool
) -> None:
    comparison = CandidateComparison(INPUT, TRADED, modelled, measured=raced(ratio, spread=spread))
    decision = comparison.decide()
    assert decision.accepted is accepted
    if accepted:
        assert "rounds alone are in doubt" in decision.reason
        assert not comparison.conclusive or comparison.undecided  # more rounds come first


def sat(rng: random.Random, truth: float, noise: float) -> bool:
    """Whether a result that does less is taken, after a loading and, where that is what decides, more of them."""
    compared = CandidateComparison(
        INPUT, LESS, 0.9, measured=race(rng, truth * rng.lognormvariate(0.0, POLICY.loading_deviation), noise, 31)
    )
    if not compared.undecided:
        return compared.decide().accepted
    ratios: list[float] = []
    for number in range(1, POLICY.loadings + 1):
        here = truth * rng.lognormvariate(0.0, POLICY.loading_deviation)
        ratios += [here * rng.lognormvariate(0.0, noise) for _ in range(POLICY.fewest_rounds)]
        low, _, high = quantiles(ratios, n=4)
        found = PairedMeasurement(1.0, 1.0, median(ratios), len(ratios), high - low, {}, stdev(ratios), number)
        compared = CandidateComparison(INPUT, LESS, 0.9, measured=found)
        if number > 1 and compared.conclusive:
            break
    return compared.decide().accepted


@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_how_models_were_loaded_seldom_decides_and_hides_little(noise: float) -> None:
    rng = random.Random(10)
    assert sum(not sat(rng, 1.0, noise) for _ in range(2000)) <= 2 * POLICY.error_rate * 2000
    assert sum(sat(rng, 1.03, noise) for _ in range(200)) < 0.2 * 200  # one loading takes most of them


def traded(rng: random.Random, truth: float, noise: float) -> bool:
    """Whether a candidate that has to be faster is accepted, after one loading and, where that is open, more."""

    def looked_at(ratios: list[float], loadings: int) -> CandidateComparison:
        low, _, high = quantiles(ratios, n=4)
        measurement = PairedMeasurement(1.0, 1.0, median(ratios), len(ratios), high - low, {}, stdev(ratios), loadings)
        return CandidateComparison(INPUT, TRADED, 0.9, measured=measurement)

    def rounds(count: int) -> list[float]:
        loaded = truth * rng.lognormvariate(0.0, POLICY.loading_deviation)
        return [loaded * rng.lognormvariate(0.0, noise) for _ in range(count)]

    first = rounds(POLICY.looks[-1])
    looks = [looked_at(first[:n], 1) for n in POLICY.looks]
    comparison = next((c for c in looks if c.conclusive), looks[-1])
    if not comparison.undecided:
        return comparison.decide().accepted
    ratios: list[float] = []
    for number in range(1, POLICY.loadings + 1):
        ratios += rounds(POLICY.loading_rounds)
        comparison = looked_at(ratios, number)
        if number > 1 and comparison.conclusive:
            break
    return comparison.decide().accepted


@pytest.mark.parametrize("noise", [0.005, 0.04])
def test_a_candidate_that_gains_a_twentieth_is_accepted_every_time(noise: float) -> None:
    """On a quiet machine and on a busy one; equal models are not told apart."""
    rng = random.Random(11)
    assert sum(not traded(rng, 0.95, noise) for _ in range(300)) <= 3
    assert sum(traded(rng, 1.0, noise) for _ in range(1500)) <= 2 * POLICY.combined_error_rate * 1500  # prices say 0.9
    assert sum(traded(rng, 1.03, noise) for _ in range(300)) == 0


def test_what_matters_is_seen() -> None:
    """A model that is a tenth slower or faster is told from noise of a twentieth."""
    rng = random.Random(8)
    slower = [
        CandidateComparison(INPUT, LESS, 0.9, measured=race(rng, 1.1, 0.05, 31)).decide().accepted for _ in range(300)
    ]
    faster = [
        CandidateComparison(INPUT, TRADED, 0.9, measured=race(rng, 0.9, 0.05, 31)).decide().accepted for _ in range(300)
    ]
    assert sum(slower) < 0.1 * len(slower)
    assert sum(faster) > 0.9 * len(faster)


@pytest.mark.parametrize("rounds", [15, 31])
def test_rounds_that_something_else_disturbed_do_not_hide_a_slower_result(rounds: int) -> None:
    """Two in ten of a race's rounds took three times as long, or a third."""
    rng = random.Random(9)
    lost = 0
    for _ in range(300):
        ratios = [
            rng.lognormvariate(0.077, 0.01) * (1.0 if n % 5 else 3.0 ** rng.choice((-1, 1))) for n in range(rounds)
        ]
        low, _, high = quantiles(ratios, n=4)
        found = PairedMeasurement(1.0, 1.0, median(ratios), rounds, high - low, deviation=stdev(ratios))
        lost += not CandidateComparison(INPUT, LESS, 0.9, measured=found).decide().accepted
    assert lost > 0.9 * 300


def test_a_race_goes_on_while_it_could_change_something() -> None:
    assert CandidateComparison(INPUT, LESS, 0.9, measured=raced(0.99, spread=0.3)).conclusive  # taken whatever comes
    assert not CandidateComparison(
        INPUT, LESS, 0.9, measured=raced(0.9, spread=0.3)
    ).conclusive  # it may be shown to be faster
    assert CandidateComparison(INPUT, LESS, 0.9, measured=raced(0.9)).conclusive
    assert not CandidateComparison(
        INPUT, LESS, 0.99, measured=raced(0.99, spread=0.3)
    ).conclusive  # as likely a little slower
    assert not CandidateComparison(INPUT, LESS, 0.9, measured=raced(1.02, spread=0.3)).conclusive
    assert not CandidateComparison(INPUT, TRADED, 0.9, measured=raced(0.99, spread=0.3)).conclusive
    assert CandidateComparison(INPUT, TRADED, 0.9, measured=raced(0.5)).conclusive
    close = CandidateComparison(INPUT, TRADED, 0.9, measured=raced(0.98, spread=0.01))
    assert close.conclusive  # what is open is how the models were loaded, so they are loaded again
    assert (close.undecided, close.faster) == (True, True)  # and prices decide where there is no time for that
    again = CandidateComparison(INPUT, TRADED, 0.9, measured=raced(0.98, spread=0.01, rounds=31, loadings=16))
    assert (again.conclusive, again.undecided, again.decide().improvement) == (True, False, "faster")
    assert CandidateComparison(INPUT, TRADED, 0.9, measured=raced(0.5, rounds=3)).conclusive  # it is that large
    assert not CandidateComparison(INPUT, TRADED, 0.9, measured=raced(0.9, rounds=3)).conclusive
    assert not CandidateComparison(
        INPUT, TRADED, 0.9, measured=raced(0.5, spread=0.0, rounds=2)
    ).conclusive  # two are too few
    assert CandidateComparison(
        INPUT, TRADED, 0.9, measured=raced(1.03, rounds=7)
    ).conclusive  # it has to be faster, and is not
    assert CandidateComparison(
        INPUT, LESS, 0.9, measured=raced(1.002, rounds=7)
    ).conclusive  # it cannot be shown to be slower any more


def test_two_rounds_decide_nothing() -> None:
    assert not CandidateComparison(INPUT, TRADED, 0.9, measured=raced(0.5, spread=0.0, rounds=2)).decide().accepted
    assert CandidateComparison(INPUT, LESS, 0.9, measured=raced(1.5, spread=0.0, rounds=2)).decide().accepted


def test_what_no_race_could_show_is_not_raced() -> None:
    assert CandidateComparison(INPUT, TRADED, 0.995).undetectable
    assert not CandidateComparison(INPUT, TRADED, 0.97).undetectable
    assert not CandidateComparison(INPUT, TRADED, 1.2).undetectable  # prices may be wrong by as much
    assert not CandidateComparison(
        INPUT, LESS, 0.995
    ).undetectable  # it does less, and is taken unless it is shown slower


@pytest.mark.parametrize("mean", [0.7, 0.9, 0.97, 1.05])
def test_what_a_choice_is_expected_to_lose_to_whoever_knew(mean: float) -> None:
    """Beside something certain, in closed form: the unit normal loss."""
    off = abs(0.97 - mean) / 0.1
    normal = NormalDist()
    loss = 0.1 * (normal.pdf(off) - off * (1.0 - normal.cdf(off)))
    assert regret([TimeRatioEstimate(0.97, 0.0), TimeRatioEstimate(mean, 0.1)]) == pytest.approx(loss, abs=2e-4)


def test_a_choice_between_several_loses_what_draws_of_them_say() -> None:
    known = [
        TimeRatioEstimate(0.97, 0.0),
        TimeRatioEstimate(0.66, 0.1),
        TimeRatioEstimate(0.67, 0.1),
        TimeRatioEstimate(0.68, 0.05),
    ]
    source = np.random.default_rng(0)
    draws = source.normal([b.mean for b in known], [b.deviation for b in known], (200_000, 4))
    assert regret(known) == pytest.approx(0.66 - draws.min(axis=1).mean(), abs=1e-3)
    assert (
        regret([TimeRatioEstimate(0.97, 0.0)])
        == regret([TimeRatioEstimate(0.97, 0.0), TimeRatioEstimate(0.2, 0.01)])
        == pytest.approx(0.0, abs=1e-9)
    )
