"""Right or wrong: the result against the original under ONNX Runtime with its optimisations off.

The bound, elementwise, for an output that arithmetic stands before::

    |result − original|  ≤  SLACK · max over SAMPLES noisy runs |noisy − original|  +  ULPS ulp of the original

plus, in float32 and float64, the smallest normal number, below which kernels of ONNX Runtime flush
(``flushed`` counts what only that excuses);

where a noisy run moves each arithmetic operation of the original by ``noise.AMPLITUDE`` machine epsilons
(:mod:`attacker.noise`). Where nothing rounds between an input or a constant and the output (data movement, integers,
comparisons, rounding, the folding of the model's own constants) the bits must be equal, signs of zeros and places of
NaN included. Steps that round on purpose are granted no noise. Finite must stay finite unless a noisy run overflows
there, as it may where the original's own arithmetic comes within ``noise.HOT`` of overflow. A flip at a discontinuity
is excused by the same bound: only if noise of that size flips the original.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import onnx
import onnxruntime as ort

from attacker.build import EXACT
from attacker.feeds import Feed
from attacker.interpret import Interpreter
from attacker.sessions import Values, open_session, run, same_bits

SLACK = 4.0  # sampling finds a part of the worst case only
SAMPLES, CONFIRMING = 6, 48  # runs with noise; before anything is called wrong, so many
ULPS = 4.0  # a result may be computed by another kernel than the original
FLUSHED = {"float16": 0.0, "float32": 1.0, "float64": 1.0}  # smallest normal numbers: kernels flush below them


@dataclass(frozen=True)
class Verdict:
    """What was found.

    Attributes:
        kind: right, or why not: "value", "bits", "overflow", "type", "cannot run", "names", "zero sign", "nonfinite".
        detail: where and how far.
        feed: the inputs that show it.
        flushed: elements that only the smallest normal number excuses.
        lost: elements at which the original was infinite or NaN and the result is not the same: counted, not wrong.
    """

    kind: str = "right"
    detail: str = ""
    feed: Feed | None = None
    lost: int = 0
    flushed: int = 0

    @property
    def wrong(self) -> bool:
        """Whether anything is."""
        return self.kind != "right"

    def then(self, other: Verdict) -> Verdict:
        """The other's finding, with the counts of both."""
        return replace(other, lost=self.lost + other.lost, flushed=self.flushed + other.flushed)


class Oracle:
    """Judges results against one original."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.plain = open_session(model, optimised=False)
        try:
            self.tuned: ort.InferenceSession | None = open_session(model, optimised=True)
        except (
            Exception
        ):  # ONNX Runtime's own optimiser may fail on a valid model; then there is nothing to compare with
            self.tuned = None
        self.interpreter = Interpreter(model)

    def judge(self, result: onnx.ModelProto | bytes, feeds: Iterable[Feed]) -> Verdict:
        """The first thing that is wrong, or that all is right."""
        try:
            sessions = [open_session(result, optimised=False), open_session(result, optimised=True)]
        except Exception as error:  # of whatever kind: a result that does not load is wrong
            return Verdict("cannot run", str(error)[:300])
        interface = self._interface(sessions[0])
        if interface:
            return Verdict("names", interface)
        total = Verdict()
        for feed in feeds:
            try:
                truth = run(self.plain, feed)
            except Exception:  # inputs that the original refuses say nothing
                continue
            for session, theirs in ((sessions[0], None), (sessions[1], self._tuned(feed))):
                verdict = self._one(session, feed, truth, theirs)
                total = total.then(verdict)
                if verdict.wrong:
                    return replace(total, feed=feed)
        return total

    def _tuned(self, feed: Feed) -> Values | None:
        try:
            return run(self.tuned, feed) if self.tuned else None
        except Exception:  # as above: nothing to compare with
            return None

    def _interface(self, session: ort.InferenceSession) -> str:
        for what in ("get_inputs", "get_outputs"):
            mine, theirs = ([(v.name, v.type) for v in getattr(s, what)()] for s in (self.plain, session))
            if mine != theirs:
                return f"{what[4:]} {mine} became {theirs}"
        return ""

    def _one(self, session: ort.InferenceSession, feed: Feed, truth: Values, theirs: Values | None) -> Verdict:
        try:
            got = run(session, feed)
        except Exception as error:  # of whatever kind: the original ran
            return Verdict("cannot run", str(error)[:300])
        different = [n for n in truth if not same_bits(truth[n], got[n])]
        different = [n for n in different if theirs is None or not same_bits(theirs[n], got[n])]
        if not different:
            return Verdict()
        verdict = self._compared(feed, truth, got, theirs, different, SAMPLES)
        return self._compared(feed, truth, got, theirs, different, CONFIRMING) if verdict.wrong else verdict

    def _compared(
        self, feed: Feed, truth: Values, got: Values, theirs: Values | None, names: list[str], samples: int
    ) -> Verdict:
        base = self.interpreter.run(feed)
        noisy = [self.interpreter.run(feed, np.random.default_rng([i])) for i in range(samples)]
        total = Verdict()
        for name in names:
            right, mine = truth[name], got[name]
            if isinstance(right, list):
                return Verdict("bits", f"{name}: a sequence differs")
            alone = same_bits(right, base[name])  # without native kernels float16 passes between nodes unrounded
            if alone and name not in self.interpreter.noisy and not self._on_purpose(name):
                tossed = [np.asarray(n[name]) for n in noisy]
                verdict = _bits(name, np.asarray(right), np.asarray(mine), theirs, tossed)
            else:
                references = [base[name], *(n[name] for n in noisy), *([theirs[name]] if theirs else [])]
                verdict = _near(name, np.asarray(right), np.asarray(mine), references, finite_inputs=_finite(feed))
            total = total.then(verdict)
            if verdict.wrong:
                return total
        return total

    def _on_purpose(self, name: str) -> bool:
        """Whether a marked step stands before an output: it may differ by a few ulp, being arithmetic all the same."""
        before = {name}
        for group in reversed(self.interpreter.groups):
            if before.intersection(group.gives) and group.runtime:
                if any(n.name.startswith(EXACT) for n in group.nodes):
                    return True
                before.update(group.reads)
        return False


def _shapes(name: str, right: np.ndarray, mine: np.ndarray) -> str:
    if right.dtype != mine.dtype or right.shape != mine.shape:
        return f"{name}: {right.dtype}{list(right.shape)} became {mine.dtype}{list(mine.shape)}"
    return ""


def _shown(name: str, right: np.ndarray, mine: np.ndarray, bad: np.ndarray, bound: np.ndarray | None = None) -> str:
    at = tuple(int(i) for i in np.argwhere(bad)[0]) if bad.ndim else ()
    allowed = f", allowed {bound[at]:.3g}" if bound is not None else ""
    return f"{name}{list(at)}: {right[at]!r} became {mine[at]!r}{allowed}; {int(bad.sum())} of {bad.size} elements"


def _bits(name: str, right: np.ndarray, mine: np.ndarray, theirs: Values | None, tossed: list[np.ndarray]) -> Verdict:
    """Compare bits; ``tossed`` are runs in which the signs that nobody defines are drawn."""
    if shapes := _shapes(name, right, mine):
        return Verdict("type", shapes)
    if right.dtype.kind != "f":
        return Verdict("bits", _shown(name, right, mine, right != mine)) if (right != mine).any() else Verdict()
    same = (right == mine) | (np.isnan(right) & np.isnan(mine))
    signs = (np.signbit(right) == np.signbit(mine)) | np.isnan(right)
    for run_of in tossed:
        same |= (run_of == mine) | (np.isnan(run_of) & np.isnan(mine))  # an infinity behind 1 ÷ ±0
        signs |= np.signbit(run_of) == np.signbit(mine)
    if theirs is not None:  # what ONNX Runtime's own optimiser makes of the original is not our doing
        other = np.asarray(theirs[name])
        same |= (other == mine) | (np.isnan(other) & np.isnan(mine))
        signs |= np.signbit(other) == np.signbit(mine)
    if not same.all():
        strange = ~same & ~(np.isfinite(right) & np.isfinite(mine))
        return Verdict("nonfinite" if strange.any() else "bits", _shown(name, right, mine, ~same))
    return Verdict("zero sign", _shown(name, right, mine, ~signs)) if not signs.all() else Verdict()


def _finite(feed: Feed) -> bool:
    """Whether a run is within what superopt promises by default (docs/floats.md): arithmetic on finite inputs."""
    return all(np.isfinite(a).all() for a in feed.values() if isinstance(a, np.ndarray) and a.dtype.kind == "f")


def _near(
    name: str, right: np.ndarray, mine: np.ndarray, references: list[object], *, finite_inputs: bool = True
) -> Verdict:
    """Compare where something rounds; ``references`` are other runs of the original.

    Behind arithmetic on inputs that are infinite or NaN, where these spread to is counted, and not wrong.
    """
    runs = [np.asarray(r) for r in references]
    if shapes := _shapes(name, right, mine):
        return (
            Verdict() if any(r.shape == mine.shape and r.dtype == mine.dtype for r in runs) else Verdict("type", shapes)
        )
    runs = [r for r in runs if r.shape == right.shape]
    if right.dtype.kind != "f":
        excused = np.any([r != right for r in runs], axis=0)
        bad = (right != mine) & ~excused
        return Verdict("bits", _shown(name, right, mine, bad)) if bad.any() else Verdict()
    wide = np.longdouble if right.dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        exact, found = right.astype(wide), mine.astype(wide)
        spread = np.max([np.abs(np.nan_to_num(r.astype(wide) - exact, nan=np.inf)) for r in runs], axis=0)
        ulp = np.spacing(np.abs(right)).astype(wide)
        bound = SLACK * spread + ULPS * np.nan_to_num(ulp, nan=0.0, posinf=0.0)
        finite, fine = np.isfinite(exact), np.isfinite(found)
        far = finite & fine & (np.abs(found - exact) > bound)
        floor = FLUSHED[str(right.dtype)] * float(np.finfo(right.dtype).tiny)
        flushed = far & (np.abs(found - exact) <= bound + floor)
        far &= ~flushed
    bursting = finite & ~fine & ~np.any([~np.isfinite(r) for r in runs], axis=0)
    lost = int((~finite & ~((right == mine) | (np.isnan(right) & np.isnan(mine)))).sum())
    if not finite_inputs:
        lost, bursting = lost + int(bursting.sum()), np.zeros_like(bursting)
    counts = Verdict(lost=lost, flushed=int(flushed.sum()))
    if far.any():
        return replace(counts, kind="value", detail=_shown(name, right, mine, far, bound))
    if bursting.any():
        return replace(counts, kind="overflow", detail=_shown(name, right, mine, bursting))
    return counts
