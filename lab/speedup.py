"""How much faster discovery is on several workers: ``python -m lab.speedup [--profile taso] [--workers 2]``.

Whole runs of ``superopt discover`` with one worker and with several take turns, each in a folder of its own, so that
what disturbs the machine meanwhile disturbs both. Printed are the ratio of their times by pairs, with its uncertainty
(Student, 95 %), whether both wrote the same bytes, and what bounds it by processor time, which load hardly touches:
the work of all tasks, and what the client does between them. Two workers can be at most *bound* times as fast; what a
quiet machine then lacks is waiting (``idle``, by phase in ``--json``): the end of a phase, and rules whose turn has not
come.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

__all__ = ["Run", "bound", "main", "ratio"]

_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26)  # 97.5 % quantiles, from one degree of freedom


@dataclass(frozen=True)
class Run:
    """One run of discovery: workers, seconds from its start to its end, and its phases (``run.json``)."""

    workers: int
    seconds: float
    phases: dict[str, dict[str, float]]

    @property
    def tasks(self) -> float:
        """Seconds of processor time of all tasks."""
        return sum(p["tasks"] for p in self.phases.values())

    @property
    def idle(self) -> float:
        """Seconds in which workers had nothing to do, of all workers together; whatever else the machine did."""
        return sum(p["idle"] for p in self.phases.values())

    @property
    def own(self) -> float:
        """Seconds of processor time of the client."""
        return sum(p["own"] for p in self.phases.values())


def ratio(one: list[Run], several: list[Run]) -> tuple[float, float]:
    """How many times as fast several workers are: geometric mean over pairs, and half its 95 % interval (infinite for
    one pair)."""
    logs = [log(a.seconds / b.seconds) for a, b in zip(one, several, strict=True)]
    middle = exp(mean(logs))
    if len(logs) < 2:
        return middle, float("inf")
    quantile = _STUDENT[min(len(logs) - 2, len(_STUDENT) - 1)]
    return middle, middle * quantile * stdev(logs) / sqrt(len(logs))


def bound(one: Run, several: Run) -> float:
    """The most that several workers can gain: all work of one, over the tasks shared out with no gap, or the client's
    own work where that is more, phase by phase."""
    least = sum(max(p["tasks"] / several.workers, p["own"]) for p in several.phases.values())
    return (one.tasks + one.own) / least


def _run(workers: int, given: list[str], out: Path) -> Run:
    shutil.rmtree(out, ignore_errors=True)
    started = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "superopt.cli", "discover", *given, "--out", str(out), "--workers", str(workers)],
        check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    seconds = time.monotonic() - started
    return Run(workers, seconds, json.loads((out / "run.json").read_text())["phases"])


def _same(a: Path, b: Path) -> bool:
    """Whether two runs wrote the same bytes, but for their logs."""
    names = [sorted(p.name for p in f.iterdir() if p.is_file() and p.name != "run.json") for f in (a, b)]
    return names[0] == names[1] and not any(filecmp.cmpfiles(a, b, names[0], shallow=False)[1:])


def main() -> int:
    """The command: 0 where the results are the same and the speed-up is at least ``--least``, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--config", metavar="FILE", help="a configuration of discovery, in place of a profile")
    parser.add_argument("--profile", default="taso")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=2, help="runs of each")
    parser.add_argument("--least", type=float, default=0.0, help="speed-up below which the exit code is 1")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    what = ["--config", given.config] if given.config else ["--profile", given.profile]
    runs: dict[int, list[Run]] = {1: [], given.workers: []}
    same = True
    with tempfile.TemporaryDirectory(prefix="superopt-speedup-") as place:
        for pair in range(given.pairs):
            for workers in sorted(runs, reverse=bool(pair % 2)):  # one, several, several, one: a drift meets both
                made = _run(workers, what, Path(place) / str(workers))
                runs[workers].append(made)
                print(
                    f"{workers} workers: {made.seconds:.1f} s, tasks {made.tasks:.1f} s, client {made.own:.1f} s of "
                    f"processor time, workers idle {made.idle:.1f} s, load {os.getloadavg()[0]:.1f}", file=sys.stderr,
                )  # fmt: skip
            same = same and _same(Path(place) / "1", Path(place) / str(given.workers))
    found, doubt = ratio(runs[1], runs[given.workers])
    data: dict[str, Any] = {
        "what": what, "cores": os.cpu_count(), "workers": given.workers, "speedup": round(found, 3),
        "doubt": round(doubt, 3) if doubt < float("inf") else None,
        "bound": round(mean(map(bound, runs[1], runs[given.workers])), 3), "same": same,
        "runs": [{"workers": r.workers, "seconds": round(r.seconds, 2), "phases": r.phases}
                 for some in runs.values() for r in some],
    }  # fmt: skip
    if given.json is not None:
        given.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    print(
        f"{given.workers} workers are {found:.2f} ± {doubt:.2f} times as fast as one (at most {data['bound']:.2f} by "
        f"processor time); results {'are the same' if same else 'DIFFER'}"
    )
    return 0 if same and found >= given.least else 1


if __name__ == "__main__":
    sys.exit(main())
