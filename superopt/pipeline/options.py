"""Settings of an optimisation: what it may use, and how much."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from superopt import TIME_LIMIT
from superopt.ir.errors import InvalidOption, printable
from superopt.rules.float_verdicts import MODES
from superopt.runtime.protocol import RUNTIMES

__all__ = [
    "ALGORITHMS", "EFFORTS", "FLOAT32", "FUNCTIONS", "MOST_PARETO", "OBJECTIVES", "PRECISIONS", "VALUES",
    "EffortBudget", "Options", "Progress", "pareto_paths", "bytes_of", "one_of", "quiet",
]  # fmt: skip

ALGORITHMS = "algorithms"  # what ``disable`` calls those with fewer multiplications
VALUES = "values"  # and rewrites by the elements of weights
OBJECTIVES = ("time", "memory", "pareto")
FLOAT32 = "float32"  # the precision that changes nothing
PRECISIONS = (FLOAT32, "mixed", "mixed:float16", "mixed:bfloat16")
FUNCTIONS = ("keep", "inline")
MOST_PARETO = 99  # graphs that trade time for memory, whose files are claimed: no front has as many
Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class EffortBudget:
    """Budgets that count work, but for the benchmark's.

    Attributes:
        nodes: e-nodes of all regions.
        rows: of the linear programs that decide what is computed again, as a multiple of the planner's default.
        timing_seconds: of a benchmark, after which what is still in doubt is decided by the work of the graphs and by
            their prices.
        timed: a result is timed beside the input; else prices alone accept it, and a result that they refuse is
            followed by a search with rules that leave less to run.
        calibrates: a profile is scaled to this machine.
        greedy: the search applies rewrites where they gain by price, in this process; it caches no region and does not
            look at the elements of weights.
        peepholes_only: of the built-in library, only the rules that recorded results rest on are used
            (:mod:`superopt.rules.peepholes`).
        fast_algorithms: they are proposed.
        brief_check: outputs are compared on fewer inputs, and a model that runs long is not run with the runtime's
            optimisations off.
    """

    nodes: int
    rows: float
    timing_seconds: float = 4.0
    timed: bool = True
    calibrates: bool = True
    greedy: bool = False
    peepholes_only: bool = False
    fast_algorithms: bool = True
    brief_check: bool = False


EFFORTS: Mapping[str, EffortBudget] = {
    "quick": EffortBudget(
        20_000,
        1 / 3,
        timing_seconds=1.5,
        timed=False,
        calibrates=False,
        greedy=True,
        peepholes_only=True,
        fast_algorithms=False,
        brief_check=True,
    ),
    "default": EffortBudget(200_000, 1.0),
    "thorough": EffortBudget(2_000_000, 10.0),
}


@dataclass(frozen=True)
class Options:
    """Settings of an optimisation.

    Attributes:
        target: "cpu" prices operators by a recorded profile, scaled to this machine, and times whole models on it;
            "profile:NAME" uses the profile's prices and times nothing.
        time_limit: seconds for everything but the calibration that a machine needs once; ``None`` lets the search
            reach its fixpoint, however long that takes.
        memory_limit: bytes that the result's weights and peak activations may take together, and that the search may
            add to the process (:mod:`superopt.pipeline.memory_limit` says what holds where the input takes more
            already).
        sizes: what symbolic dimensions are costed at; they stay symbolic in the result.
        threads: of whatever is timed.
        rules: folder of a rule library used besides the built-in one.
        enable, disable: rule ids or families; "algorithms" among those disabled: none with fewer multiplications, as
            where only some rules are enabled; likewise "values", rewrites by what the weights' elements are.
        measure: time the input and the result side by side at the end.
        check: compare the result with the input in ONNX Runtime before returning it.
        full_check: compare both with the float64 reference on every unsteered input besides, however long that takes.
        certify: prove the result equal to the input, region by region, beyond checking it.
        strict: raise ``Unsupported`` when a node would be carried through opaque.
        floats: which of the rules' verdicts in floating point let a rule be used: "strict" only where it is safe
            whatever the numbers, "standard" also where the conditions of its safety are known to hold or are checked,
            "fast" wherever it is true of the reals and moderate numbers stay finite. Likewise algorithms with fewer
            multiplications: "strict" uses none, the others within a budget of errors
            (:mod:`superopt.pipeline.fast_algorithm_proposals`), and rewrites by weights' elements: "strict" takes no
            running value to be finite, so 0·x is 0 nowhere (:mod:`superopt.pipeline.weight_rewrites`).
        effort: work budgets of the search, in :data:`EFFORTS`.
        runtime: what the model will run in: prices, the final paired benchmark, and a part of the check are its own.
        objective: "memory": the result is written so that its activations take least in ONNX Runtime, values computed
            again where that takes little time; "pareto": besides the fastest result, others that need less memory for
            more time (:mod:`superopt.pipeline.rematerialization`). With a ``memory_limit``, the fastest that is found
            to need no more is the result, whatever the objective.
        functions: the model's own. "keep": a call whose body is not rewritten stays a call, so that the result has the
            model's structure; a body that is rewritten stands in place of its call. "inline": every call's body does,
            for runtimes that do not know functions. Either way rules and prices see the bodies, so a call costs
            nothing but where it stays, and "keep", which loses nothing, is the default.
        opset: version of ONNX's operators that the result is written at; ``None``: the model's.
        precision: "mixed": operators and weights of float32 are in half precision where errors stay within a budget
            (:mod:`superopt.pipeline.mixed_precision`): in float16, or the type behind the colon.
        error: that budget, relative to an output's largest element; ``None``: 1e-3.
    """

    target: str = "cpu"
    time_limit: float | None = TIME_LIMIT
    memory_limit: int | None = None
    seed: int = 0
    rules: Path | None = None
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    threads: int = 1
    measure: bool = False
    check: bool = True
    full_check: bool = False
    certify: bool = False
    strict: bool = False
    floats: str = "standard"
    effort: str = "default"
    runtime: str = "onnxruntime"
    objective: str = "time"
    functions: str = "keep"
    opset: int | None = None
    precision: str = FLOAT32
    error: float | None = None

    def validate(self, flags: bool = False) -> None:
        """Refuse a value that an option does not take.

        Args:
            flags: options are known as flags of the command line.

        Raises:
            InvalidOption: it names the option.
        """
        one_of("float", self.floats, MODES, flags)
        one_of("effort", self.effort, tuple(EFFORTS), flags)
        one_of("objective", self.objective, OBJECTIVES, flags)
        one_of("runtime", self.runtime, tuple(RUNTIMES), flags)
        one_of("functions", self.functions, FUNCTIONS, flags)
        one_of("precision", self.precision, PRECISIONS, flags)
        self._validate_precision(flags)
        least = (("time_limit", self.time_limit, 0.0), ("memory_limit", self.memory_limit, 1), ("seed", self.seed, 0),
                 ("threads", self.threads, 1), ("opset", self.opset, 1))  # fmt: skip
        for name, number, bound in least:
            if number is not None and not number >= bound:
                hint = "None is no limit" if name == "time_limit" and not flags else ""
                raise _refusal(name, f"{number:g} is less than {bound:g}", flags, hint=hint)

    def _validate_precision(self, flags: bool) -> None:
        if self.error is not None and not 0.0 < self.error < 1.0:
            raise _refusal("error", f"{self.error:g} is no share of an output between 0 and 1", flags, hint="try 1e-3")
        if self.error is not None and self.precision == FLOAT32:
            hint = "add --precision mixed" if flags else "add precision='mixed'"
            raise _refusal("error", "is the budget of mixed precision", flags, hint=hint)


def _refusal(name: str, what: str, flags: bool, **more: str) -> InvalidOption:
    """The error for a value, with the option as the command line has it, or as Python's callers write it."""
    if flags:
        return InvalidOption(f"--{name.replace('_', '-')} {what}", option=name, **more)
    return InvalidOption(what, where=name, option=name, **more)


def one_of(name: str, given: object, known: Sequence[str], flags: bool = False) -> None:
    """Refuse what is not one of the words that an option takes.

    Raises:
        InvalidOption: it names the option, its words, and the one that was probably meant.
    """
    if given not in known:
        close = [w for w in known if given and w.startswith(str(given))] or difflib.get_close_matches(str(given), known)
        what = f"{printable(repr(given))} is none of {', '.join(known)}"
        raise _refusal(name, what, flags, suggestion=close[0] if close else "")


def bytes_of(text: str, name: str, flags: bool = False) -> int:
    """``"512M"`` or ``"512MiB"`` → 536870912; a plain number is bytes.

    Raises:
        InvalidOption: it is not a size.
    """
    plain = text.lower().removesuffix("ib") if text.lower()[-3:-2] in ("k", "m", "g", "t") else text.lower()
    scale = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}.get(plain[-1:], 1)
    digits = plain[:-1] if scale > 1 else plain
    try:
        value = float(digits) * scale
    except ValueError:
        value = -1.0
    if not 0 < value < 2**60:
        what = f"{printable(text)!r} is not a size in bytes"
        raise _refusal(name, what, flags, hint="write for example 2G or 512M")
    return int(value)


def quiet(done: int, total: int | None, what: str) -> None:
    """The progress callback that shows nothing."""


def pareto_paths(output: Path, count: int) -> tuple[Path, ...]:
    """Where graphs that trade time for memory are written, by rising time."""
    return tuple(output.with_name(f"{output.stem}-{i + 1}{output.suffix}") for i in range(count))
