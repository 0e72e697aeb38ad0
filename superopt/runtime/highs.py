"""HiGHS, silent and deterministic.

From 1.16 on a ``highspy.Highs`` writes its banner to standard output during construction, where a command's JSON
belongs, unless its output is off before its callbacks are set.
"""

from __future__ import annotations

import highspy

__all__ = ["solver"]


class _Silent(highspy.Highs):
    def enableCallbacks(self) -> None:
        self.setOptionValue("output_flag", False)
        super().enableCallbacks()  # type: ignore[no-untyped-call]


def solver(**options: float | int | str) -> highspy.Highs:
    """A solver that prints nothing, works on one thread, and has these options besides.

    Without ``time_limit`` its answer is a function of what it is given; ``random_seed`` is 0 unless it is said.

    Args:
        options: of HiGHS, by name (https://ergo-code.github.io/HiGHS/dev/options/definitions).
    """
    made = _Silent()  # type: ignore[no-untyped-call]
    for name, value in {"output_flag": False, "threads": 1, "parallel": "off", "random_seed": 0, **options}.items():
        made.setOptionValue(name, value)
    return made
