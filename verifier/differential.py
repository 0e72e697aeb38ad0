"""Does a rewritten model still compute what it did? Both run on random and edge inputs; a float64 reference judges.

A proof is about real numbers; this is about the rounding that is left, and the last net under everything else.

A result passes an output when its error against the reference is at most ``max(4 × the original's error,
tolerance)``, both for the largest error and for the root mean square. The tolerance is the output's largest magnitude
times the element type's epsilon times a factor (:data:`MARGIN`). Where the original gives NaN or an infinity, the
result must give the same, or agree with a finite reference. Outputs that are not reals must equal the original's,
except at as many places as four times those where the original itself differs from the reference.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from superopt.formats.onnx_writer import save_onnx, to_onnx_bytes
from superopt.ir.errors import InvalidModel, OutOfTime, ResourceLimit, SuperoptError, Unsupported, UsageError
from superopt.ir.graph import Graph, OpaqueAttribute
from superopt.ir.types import TensorType
from superopt.runtime import reference
from superopt.runtime.limits import bounded_memory, refuse_unbounded
from superopt.runtime.ort import InferenceSession, make_session
from superopt.runtime.ort import run as run_session
from superopt.verifier._feeds import KINDS, LEVELS, fed_types, make_inputs
from superopt.verifier._judgement import FACTOR, MARGIN, Comparison, compare, equal

__all__ = ["FACTOR", "MARGIN", "CheckResult", "check", "check_regions", "make_inputs"]

LARGE = 2**30  # bytes of weights from which a model goes to ONNX Runtime through a file
_COPIES = 3.0  # memory of a check: the original's values, and the reference's, twice as wide
_LONGEST_RUN = 15.0  # seconds of one run
_RANDOM = ("RandomNormal", "RandomUniform", "Multinomial", "Bernoulli", "Dropout")

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class CheckResult:
    """What a check found.

    Attributes:
        verdict: "passed", "failed" (the models differ: see ``reason``), or "skipped" (they could not be run).
        trials: inputs that were tried.
        max_abs_error: largest difference of the result from the reference.
        max_rel_error: the same, relative to the largest magnitude of that output.
        reference: "float64", or "original" when the reference cannot run the model.
        baseline_error: largest difference of the original from the reference, relative to the output's magnitude.
        culprit_output: name of the output that failed.
        reason: in words.
    """

    verdict: str
    trials: int = 0
    max_abs_error: float = 0.0
    max_rel_error: float = 0.0
    reference: str = "float64"
    baseline_error: float = 0.0
    culprit_output: str | None = None
    reason: str = ""


def check(
    before: Graph,
    after: Graph,
    *,
    seed: int = 0,
    trials: int = 3,
    time_limit: float | None = None,
    patience: float | None = None,
    sizes: Mapping[str, int] | None = None,
) -> CheckResult:
    """Compare a model with its rewritten form.

    Args:
        before: the original.
        after: the result; inputs and outputs must be the same in name, order and type.
        seed: of all random choices.
        trials: inputs to try: standard normal, edge values, uniform, and again with other seeds.
        time_limit: seconds after which no further trial is begun (one is always made, if ``patience`` lets it).
        patience: seconds after which the check is given up, with the verdict "skipped".
        sizes: symbolic dimensions that are fixed; the others get small sizes, different in each trial.
    """
    difference = signature_difference(before, after)
    if difference is not None:
        return CheckResult("failed", culprit_output=difference[0], reason=difference[1])
    deadline = None if time_limit is None else time.monotonic() + time_limit
    give_up = float("inf") if patience is None else time.monotonic() + patience
    try:
        for graph in (before, after):
            refuse_unbounded(graph, sizes, copies=_COPIES)
        with bounded_memory():
            return _checked(before, after, seed, trials, deadline, sizes or {}, give_up)
    except ResourceLimit as error:
        return CheckResult("skipped", reason=str(error))
    except MemoryError:
        return CheckResult("skipped", reason="not enough memory to run the model")
    except Unsupported as error:
        return CheckResult("skipped", reason=str(error))


def check_regions(
    pairs: Iterable[tuple[Graph, Graph]], *, seed: int = 0, trials: int = 1, time_limit: float | None = None
) -> CheckResult:
    """Check a model too large to run whole, region by region: the same check on pairs of subgraphs.

    Stops at the first that fails or cannot be checked: then the whole is not checked either. Errors are the largest of
    any region.
    """
    deadline = None if time_limit is None else time.monotonic() + time_limit
    total = CheckResult("skipped", reason="no region was checked")
    for position, (before, after) in enumerate(pairs):
        left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
        if left == 0.0:
            return replace(total, verdict="skipped", reason=f"the time ran out after {position} regions")
        found = check(before, after, seed=seed + position, trials=trials, time_limit=left, patience=left)
        if found.verdict == "failed":
            return replace(found, reason=f"region {position}: {found.reason}")
        if found.verdict == "skipped" and deadline is not None and time.monotonic() > deadline:
            return replace(found, reason=f"the time ran out in region {position}")
        if found.verdict == "skipped":
            return replace(found, reason=f"region {position} was skipped: {found.reason}")
        total = CheckResult(
            "passed", total.trials + found.trials, max(total.max_abs_error, found.max_abs_error),
            max(total.max_rel_error, found.max_rel_error),
            "original" if "original" in (found.reference, total.reference) else "float64",
            max(total.baseline_error, found.baseline_error),
        )  # fmt: skip
    return total


def signature_difference(before: Graph, after: Graph) -> tuple[str | None, str] | None:
    """The first difference in inputs or outputs (names, order, element types, declared dimensions), in words."""
    for what, old, new in (("input", before.inputs, after.inputs), ("output", before.outputs, after.outputs)):
        if [v.name for v in old] != [v.name for v in new]:
            return None, f"the {what}s were {[v.name for v in old]} and are {[v.name for v in new]}"
        for a, b in zip(old, new, strict=True):
            if a.type != b.type:
                return (a.name if what == "output" else None), f"{what} {a.name!r} was {a.type} and is {b.type}"
    return None


@dataclass(frozen=True)
class _Trial:
    feeds: Arrays
    sizes: Mapping[str, int]
    original: Arrays | None  # None: ONNX Runtime refuses the original


def _checked(
    before: Graph, after: Graph, seed: int, trials: int, deadline: float | None, sizes: Mapping[str, int],
    give_up: float,
) -> CheckResult:  # fmt: skip
    ran, refusal, erratic = _original(before, seed, trials, deadline, sizes, give_up)
    names = [v.name for v in before.outputs if v.name not in erratic]
    if not names:
        return CheckResult("skipped", reason="every output is random: it differs from run to run")
    results = _result(after, ran, give_up) if refusal is None else None
    if isinstance(results, CheckResult):
        return results
    types = {v.name: v.type for v in before.outputs}
    notes = [f"ONNX Runtime refuses the original ({refusal}): compared in float64 only"] if refusal else []
    notes += [f"random outputs not compared: {', '.join(sorted(erratic))}"] if erratic else []
    total = CheckResult("passed")
    for number, trial in enumerate(ran):
        if number and deadline is not None and time.monotonic() > deadline:
            break
        exact, why = _reference(before, trial, names, give_up)
        if why is not None and why not in notes:
            notes.append(why)
        new = (
            results[number]
            if results is not None
            else reference.run(after, trial.feeds, outputs=names, deadline=give_up)
        )
        for name in names:
            dtype = kind.dtype if isinstance(kind := types[name], TensorType) else None
            old = None if trial.original is None else trial.original[name]
            found = compare(old, new[name], None if exact is None else exact[name], dtype)
            total = _worse(total, found, name, KINDS[number % len(KINDS)], exact is None)
            if total.verdict == "failed":
                return replace(total, trials=number + 1)
        total = replace(total, trials=number + 1)
    return replace(total, reason="; ".join(notes))


def _original(
    before: Graph, seed: int, trials: int, deadline: float | None, sizes: Mapping[str, int], give_up: float
) -> tuple[list[_Trial], str | None, set[str]]:
    """Inputs that the original accepts with its outputs, why ONNX Runtime refuses it if so, and its random outputs."""
    fed_types(before)
    ran: list[_Trial] = []
    refusal: str | None = None
    erratic: set[str] = set()
    with _Session(before) as session:
        if isinstance(session, SuperoptError):
            refusal = session.what
        level = 0
        for number in range(max(trials, 1)):
            if number and deadline is not None and time.monotonic() > deadline:
                break
            kind = KINDS[number % len(KINDS)]
            while True:
                feeds = make_inputs(before, seed + number, kind, sizes, level=level)
                try:
                    original = (
                        None
                        if isinstance(session, SuperoptError)
                        else run_session(session, feeds, time_limit=_longest(give_up))
                    )
                    break
                except (InvalidModel, UsageError) as error:
                    level += 1
                    if level == LEVELS:
                        raise Unsupported(f"ONNX Runtime refuses every input that was tried: {error.what}") from error
            ran.append(_Trial(feeds, dict(sizes), original))
            if original is not None and not number and _is_random(before):
                again = run_session(session, feeds, time_limit=_longest(give_up))  # type: ignore[arg-type]
                erratic = {n for n, a in original.items() if not equal(a, again[n])}
    return ran, refusal, erratic


def _longest(give_up: float) -> float:
    """Seconds that the next run may take.

    Raises:
        OutOfTime: there is no time for it.
    """
    left = give_up - time.monotonic()
    if left <= 0:
        raise OutOfTime("the time ran out during the check")
    return min(_LONGEST_RUN, left)


def _result(after: Graph, ran: Sequence[_Trial], give_up: float) -> list[Arrays] | CheckResult:
    _longest(give_up)
    with _Session(after) as session:
        if isinstance(session, SuperoptError):
            return CheckResult(
                "failed", reason=f"ONNX Runtime accepts the original but refuses the result: {session.what}"
            )
        results = []
        for trial in ran:
            try:
                results.append(run_session(session, trial.feeds, time_limit=_longest(give_up)))
            except (InvalidModel, UsageError) as error:
                return CheckResult(
                    "failed", len(results), reason=f"the result fails where the original runs: {error.what}"
                )
        return results


def _reference(before: Graph, trial: _Trial, names: Sequence[str], give_up: float) -> tuple[Arrays | None, str | None]:
    """The float64 outputs, or why there are none."""
    try:
        return reference.run(before, trial.feeds, outputs=names, sizes=trial.sizes, deadline=give_up), None
    except OutOfTime:
        raise
    except (Unsupported, ResourceLimit) as error:
        if trial.original is None:
            raise Unsupported(f"neither ONNX Runtime nor the reference can run the model: {error.what}") from error
        return None, f"compared with the original only, since the reference cannot run: {error}"


class _Session:
    """A session for a graph while it is needed, or the error with which ONNX Runtime refuses it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> InferenceSession | SuperoptError:
        try:
            if sum(w.type.nbytes or 0 for w in self.graph.weights) < LARGE:
                return make_session(to_onnx_bytes(self.graph))
            self.folder = tempfile.TemporaryDirectory(prefix="superopt-check-")
            path = Path(self.folder.name) / "model.onnx"
            save_onnx(self.graph, path)
            return make_session(path)
        except (InvalidModel, Unsupported) as error:
            return error

    def __exit__(self, *_: object) -> None:
        if self.folder is not None:
            self.folder.cleanup()


def _is_random(graph: Graph) -> bool:
    marks = [m.encode() for m in _RANDOM]
    return any(
        n.op.startswith(_RANDOM)
        or any(isinstance(a, OpaqueAttribute) and any(m in a.payload for m in marks) for a in n.attributes.values())
        for n in graph.nodes
    ) or any(m in payload for payload in graph.extras.values() for m in marks)


def _worse(total: CheckResult, found: Comparison, name: str, kind: str, alone: bool) -> CheckResult:
    total = replace(
        total, max_abs_error=max(total.max_abs_error, found.absolute),
        max_rel_error=max(total.max_rel_error, found.relative),
        baseline_error=max(total.baseline_error, found.baseline),
        reference="original" if alone else total.reference,
    )  # fmt: skip
    if found.problem is None:
        return total
    return replace(
        total, verdict="failed", culprit_output=name, reason=f"output {name!r} ({kind} inputs): {found.problem}"
    )
