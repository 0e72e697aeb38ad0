"""What came of an optimisation, in one line: the same for terminals, batches, notebooks and the service."""

from __future__ import annotations

from superopt.report.measured import Measured
from superopt.report.model import Report
from superopt.report.quantities import bytes_text, count_text, speedup_text, times_text

__all__ = ["summary"]


_OTHERWISE = {
    "memory": "less memory, as asked for", "runs": "runs where the runtime breaks or refuses the input",
}  # fmt: skip


def summary(report: Report) -> str:
    """``1.18x faster (5.8 → 4.9 µs, measured); checked equal``, or why the input is returned."""
    if report.status == "unchanged":
        return f"unchanged: {report.reason.text}"
    other = _OTHERWISE.get(report.reason.code)
    what = other or (_faster if report.reason.code == "faster" else _simpler)(report)
    return f"{what}; {_checked(report)}"


def _times(report: Report) -> tuple[float, str]:
    """The ratio of after ÷ before, and the times with where they come from."""
    m: Measured | None = report.measured
    if m is not None:
        return m.ratio, f"{times_text(1e3 * m.before_ms, 1e3 * m.after_paired_ms)}, measured"
    before, after = report.cost.before_us, report.cost.after_us
    return after / before if before else 1.0, f"{times_text(before, after)}, estimated for {report.target}"


def _faster(report: Report) -> str:
    ratio, times = _times(report)
    return f"{speedup_text(ratio, 'x')} faster ({times})" if ratio > 0.0 else f"faster ({times})"


def _simpler(report: Report) -> str:
    """What there is less of, and the time where it was measured: it does not differ beyond its uncertainty."""
    nodes, work = report.nodes, report.work
    less = [f"{nodes.before} → {nodes.after} nodes"] if nodes.after < nodes.before else []
    sides = (
        (count_text(work.flops_before), count_text(work.flops_after), "FLOPs"),
        (bytes_text(work.bytes_before), bytes_text(work.bytes_after), "moved"),
    )
    less += [f"{before} → {after} {what}" for before, after, what in sides if before != after]
    times = "" if report.measured is None else f"; no clear difference in time ({_times(report)[1]})"
    return f"simpler ({', '.join(less) or 'less work'}){times}"


def _checked(report: Report) -> str:
    if report.verification is not None and report.verification.verdict.startswith("proved"):
        return report.verification.verdict if " " in report.verification.verdict else "proved equal"
    if report.check.verdict == "passed":
        return "checked equal" if report.errors is None else f"checked equal up to errors of {report.errors.most:.0e}"
    return f"not checked ({report.check.reason})" if report.check.reason else "not checked"
