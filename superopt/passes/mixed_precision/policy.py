"""Constants of mixed precision, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["POLICY", "MixedPrecisionPolicy"]


@dataclass(frozen=True)
class MixedPrecisionPolicy:
    """What decides which operators and weights are of half precision, besides the graph and the budget of errors.

    Attributes:
        error: budget of errors where none is given: of an output's largest element. Half a unit of float16 is half of
            it, so that a few roundings fit.
        inputs: on which a result has to keep to the budget. The largest error on 100 inputs is up to 1.8 times that on
            3.
        share: of the budget, that errors on these inputs keep to. On other 100 they are up to 1.2 times as large.
        rounded_inputs: of them, on which every result is rounded, where the backend rounds fewer.
        observed_inputs: of them, on which magnitudes are observed.
        extreme: inputs of edge values, on which a result has to be finite.
        steered: further inputs on which magnitudes are observed: near constants, few numbers, nearly equal ones.
        margin: times a magnitude on ordinary inputs that values may reach on others.
        exponent: error of an exponential's exponent, up to which the errors that it causes are in proportion, so that a
            few inputs show them. Beyond, what is nearly a tie decides them: most inputs show nothing.
        rounding: units of a weight's largest element by which storing it may move an element: half a unit is what
            rounding to nearest does in the normal range.
        cast_bytes: of a file that a Cast takes. Smaller weights are not worth one.
        sum_share: of the budget that the rounding of one operator's inner sum may take.
        error_inputs: on which the error of rounding one value alone is measured.
        error_flops: of all these runs together. Where values are more, neighbouring ones are measured together.
        run_flops: that a run counts at least: starting one takes as long.
        rounds: assignments that are tried. Each takes a run on all inputs, if it keeps to the budget.
        tightening, loosening: what the measured error is to be of the budget after one that exceeds it, and after one
            that leaves more than ``room`` of it: the sum of single errors is an estimate, and leaves some in doubt.
        room: share of the budget that is not worth another assignment.
        largest_change, least_change: factors by which the limit of the sum of single errors changes in a round. A first
            guess may be far off; limits nearer to each other choose alike.
        growth, counted: single errors that rise by this factor, and above this share of the budget, make a limit that
            allowed too much worth another try.
        solver_steps, solver_seconds: of the search for one assignment; by the steps equal runs end equal.
        kept_bytes: of outputs that are kept while results are compared. The original runs again for larger ones.
    """

    error: float = 1e-3
    inputs: int = 100
    share: float = 0.85
    rounded_inputs: int = 16
    observed_inputs: int = 16
    extreme: int = 12
    steered: int = 8
    margin: float = 8.0
    exponent: float = 0.05
    rounding: float = 0.5
    cast_bytes: int = 128
    sum_share: float = 1.0
    error_inputs: int = 3
    error_flops: float = 4e11
    run_flops: float = 1e6
    rounds: int = 16
    tightening: float = 0.9
    loosening: float = 0.9
    room: float = 0.15
    largest_change: float = 4.0
    least_change: float = 1.1
    growth: float = 1.2
    counted: float = 0.1
    solver_steps: int = 60
    solver_seconds: float = 20.0
    kept_bytes: int = 1 << 28


POLICY = MixedPrecisionPolicy()
