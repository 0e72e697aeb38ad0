"""One model's result under recorded prices, and what of it has to stay the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from superopt.ir.errors import SuperoptError
from superopt.ir.graph import Graph, structural_hash
from superopt.pipeline.optimization import optimize
from superopt.pipeline.options import Options

__all__ = ["GoldenResult", "row_of"]

_TARGET = "profile:cpu-epyc-2core"


@dataclass(frozen=True)
class GoldenResult:
    """What came of one model.

    Attributes:
        structure: digest of the result without the values of its weights, which depend on the processor's order of
            summation where constants are folded.
        digest: of the whole result.
        ratio: modelled cost of the result ÷ that of the model.
        check: verdict of the check.
        rules: how often each rule was applied.
        cpu_seconds: of the optimisation; recorded, not compared.
        error: why there is no result.
    """

    structure: str = ""
    digest: str = ""
    status: str = ""
    nodes: tuple[int, int] = (0, 0)
    ratio: float = 1.0
    check: str = ""
    rules: Mapping[str, int] | None = None
    cpu_seconds: float = 0.0
    error: str = ""

    def compared(self, digests: bool) -> tuple[object, ...]:
        """What has to stay the same; the whole digest only between runs on one kind of processor."""
        digest = self.digest if digests else ""
        ratio = round(self.ratio, 6)
        return self.structure, digest, self.status, self.nodes, ratio, self.check, self.rules, self.error


def row_of(read: Callable[[], Graph]) -> GoldenResult:
    """Optimise a model under recorded prices."""
    began = time.process_time()
    try:
        result = optimize(read(), options=Options(target=_TARGET, time_limit=None))
    except SuperoptError as error:
        return GoldenResult(error=str(error))
    report, structure = result.report, structural_hash(result.graph, values=False)
    digest = "" if report.result is None else report.result.digest
    return GoldenResult(
        structure, digest, report.status, (report.nodes.before, report.nodes.after),
        report.cost.after_us / report.cost.before_us if report.cost.before_us else 1.0, report.check.verdict,
        {a.rule: a.count for a in report.rules_applied}, time.process_time() - began,
    )  # fmt: skip
