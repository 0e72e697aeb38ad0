"""The settings and the result of a check."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from superopt.ir.errors import OutOfTime
from superopt.ir.graph import Graph
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.protocol import Runtime
from superopt.verifier.check.mutation_testing import NONE, MutationBudget, MutationScore

__all__ = [
    "BRIEF",
    "EXACT",
    "ORIGINAL",
    "QUICK",
    "RESULT",
    "WHOLE",
    "CheckResult",
    "CheckSettings",
    "ErrorAllowance",
    "CheckWorkBudget",
]

ORIGINAL, RESULT = "original", "result"  # models that do not run
_LONGEST_RUN = 15.0  # seconds of one run


@dataclass(frozen=True)
class CheckResult:
    """The result of a check.

    Attributes:
        verdict: "passed", "failed" (the models differ: see ``reason``), or "skipped" (they could not be run).
        trials: inputs that were tried.
        max_abs_error: largest difference of the result from the original, on inputs of ordinary magnitude.
        max_rel_error: the same, relative to the largest magnitude of that output.
        reference: what judged: "original" (ONNX Runtime on the original), "original and float64" where the second
            criterion was needed, or "float64" where the runtime refuses the original.
        baseline_error: largest move of the original by its own rounding, relative likewise, where it was asked for.
        culprit_output: name of the output that failed.
        reason: in words.
        power: what the inputs can tell apart, if that was measured.
        feeds: the inputs on which a failed check saw the models differ.
        where: values of the original that are made at the place which differs, where it was run by itself.
        alike: whether those inputs were alike by design (:class:`superopt.verifier.check.steered_inputs.SteeredInput`).
        refused: which of the models does not run, where that was the end: :data:`ORIGINAL` or :data:`RESULT`.
        beyond: where the models differ beyond what the reals say (NaN, infinities, numbers that overflow in the
            original), in words; it is no reason to fail.
    """

    verdict: str
    trials: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    reference: str = "original"
    baseline_error: float = 0.0
    culprit_output: str | None = None
    reason: str = ""
    power: MutationScore | None = None
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)
    where: tuple[str, ...] = ()
    cancelling: bool = False
    refused: str = ""
    beyond: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckWorkBudget:
    """How much a check does, in operations: counted work, not time.

    Attributes:
        work: of all runs but those of the first input.
        reference: from which the float64 reference is only run when asked for.
        both: up to which the result is also run with the runtime's optimisations off.
        cancelling: whether inputs of numbers that nearly cancel are tried, whatever they take.
        steered: inputs that are steered, at most.
        sites: of all places that are run by themselves; 0: none is.
        faults: whether it is noted where the runtime's own optimisations move the original as no rounding does. Who
            optimises a model has looked for that, on inputs drawn for it.
    """

    work: float
    reference: float
    both: float
    cancelling: bool = False
    steered: int = 48
    sites: float = 6e9
    faults: bool = False


# Some ten seconds of one core, with the runtime's optimisations off; and one.
WHOLE = CheckWorkBudget(work=8e10, reference=2e9, both=1e9, cancelling=True, faults=True)
QUICK = CheckWorkBudget(work=6e9, reference=1e8, both=1e8)
# A fraction of a second, for results whose places are equal by proved rules: the whole alone is run, which shows that
# they were applied and written as proved.
BRIEF = CheckWorkBudget(work=2e9, reference=1e8, both=1e8, steered=12, sites=0.0)


@dataclass(frozen=True)
class ErrorAllowance:
    """The error that a result may have beyond the original's own rounding.

    Attributes:
        share: of an output's largest magnitude.
        nodes: of the result, by name, for which it is meant: places without any are held to the bound as it is.
    """

    share: float = 0.0
    nodes: frozenset[str] = frozenset()

    @staticmethod
    def of_new_nodes(share: float, result: Graph, original: Graph) -> ErrorAllowance:
        """The error that the nodes of a result may have which the original has not."""
        return ErrorAllowance(share, frozenset(n.name for n in result.nodes) - {n.name for n in original.nodes})

    def at(self, graph: Graph) -> float:
        """The allowed share for a graph: the result or a part of it."""
        return self.share if self.share and any(node.name in self.nodes for node in graph.nodes) else 0.0


EXACT = ErrorAllowance()  # no more than its own rounding explains


@dataclass(frozen=True)
class CheckSettings:
    """Settings of a check: see :func:`superopt.verifier.check.differential.check`."""

    seed: int
    trials: int
    deadline: float | None
    give_up: float
    sizes: dict[str, int]
    full: bool = False
    power: MutationBudget = NONE
    effort: CheckWorkBudget = WHOLE
    runtime: Runtime = ONNX_RUNTIME
    slack: ErrorAllowance = EXACT
    beyond: bool = False
    inside: bool = False

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline

    def longest(self) -> float:
        """Seconds that the next run may take.

        Raises:
            OutOfTime: there is no time for it.
        """
        left = self.give_up - time.monotonic()
        if left <= 0:
            raise OutOfTime("the time ran out during the check")
        return min(_LONGEST_RUN, left)
