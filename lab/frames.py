"""Every frame of a replay through ``superopt verify``:

    python -m lab.frames corpus/mobileone_s0.json --frames build/frames [--before] [--workers 2]

Optimises a model, writes the whole model after each step of its derivation (as the service keeps them), reads the files
again and compares each with the input, as the command ``superopt verify MODEL FRAME`` does (but for the power of what
is only tested, whose mutants take most of the time and change no verdict); with ``--before`` also with the frame before
it, which is what one rewrite changed. Frames that are in the folder already (``frame-N.json``, as ``Client.frame``
fetches them) are taken as they are. What was verified is kept in the folder's ``verdicts.jsonl``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from superopt.benchmark.row_cache import file_digest
from superopt.fleet import Fleet, Journal, Task, digest
from superopt.formats import load, save_together
from superopt.ir import disk_cache as digests
from superopt.pipeline import Options, explained, optimize
from superopt.verifier.equivalence.graphs import PROVED, ROUNDED, verify

__all__ = ["Frame", "frames_of", "main", "verified"]

GOOD = (PROVED, ROUNDED, "tested")
_SHARED = "frames.safetensors"
_DECISIVE = ("ir", "ops", "formats", "runtime", "rules", "verifier")  # what verdicts come from


@dataclass(frozen=True)
class Frame:
    """What is known of a frame.

    Attributes:
        number: of the step, from 1.
        against: "the input" or "the one before".
        verdict: of :func:`superopt.verifier.equivalence.graphs.verify`.
        left: nodes that were tested and not proved; ``nodes``: all of the frame's.
        seconds: of processor time.
    """

    number: int
    against: str
    verdict: str
    left: int
    nodes: int
    seconds: float


def frames_of(model: Path, folder: Path, options: Options) -> list[Path]:
    """The files of a model's frames in a folder, in order; made there if there are none.

    Raises:
        UsageError, InvalidModel: as :func:`superopt.pipeline.optimization` has them.
    """
    if not any(folder.glob("frame-*.json")):
        way = explained(optimize(load(model), options=options), options)[1]
        graphs = [step.graph for step in way.steps] if way is not None else []
        folder.mkdir(parents=True, exist_ok=True)
        save_together({folder / f"frame-{n}.json": g for n, g in enumerate(graphs, 1)}, folder / _SHARED)
    return sorted(folder.glob("frame-*.json"), key=lambda p: int(p.stem.rpartition("-")[2]))


def _compared(a: Path, b: Path) -> dict[str, Any]:
    started = time.process_time()
    first, second = load(a), load(b)
    found = verify(first, second, power="none")
    seconds = round(time.process_time() - started, 2)
    return {"verdict": found.verdict, "left": found.tested, "nodes": len(second.nodes), "seconds": seconds}


def verified(model: Path, frames: Sequence[Path], fleet: Fleet, kept: Journal, *, before: bool) -> list[Frame]:
    """What ``superopt verify`` says of each frame.

    Args:
        model: the input.
        frames: the files, in order.
        fleet: what does the work.
        kept: verdicts of earlier runs.
        before: compare each with the frame before it, too.
    """
    pairs = [(n, "the input", model, frame) for n, frame in enumerate(frames, 1)]
    if before:
        pairs += [(n, "the one before", a, b) for n, (a, b) in enumerate(pairwise(frames), 2)]
    content = {path: file_digest(path) for path in (model, *frames)}
    stamp = digest(digests.code_digest(*_DECISIVE), file_digest(frames[0].with_name(_SHARED)) if frames else "")
    tasks = [
        Task(_compared, (a, b), f"step {n}", digest(stamp, content[a], content[b]), files=(a, b))
        for n, _, a, b in pairs
    ]  # fmt: skip
    found: list[Frame] = []
    for (number, against, _, _), outcome in zip(pairs, fleet.map(tasks, kept=kept), strict=True):
        said: Mapping[str, Any] = outcome.result()
        found.append(Frame(number, against, **said))
        print(_line(found[-1]), file=sys.stderr, flush=True)
    return found


def _line(frame: Frame) -> str:
    left = f", {frame.left} of {frame.nodes} nodes tested" if frame.verdict == "tested" else ""
    return f"step {frame.number} and {frame.against}: {frame.verdict}{left} ({frame.seconds:.1f} s)"


def _summary(name: str, found: Sequence[Frame]) -> str:
    parts = []
    for against in dict.fromkeys(f.against for f in found):
        some = [f for f in found if f.against == against]
        counts = Counter(f.verdict for f in some)
        said = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        parts.append(f"{len(some)} frames beside {against}: {said}; {sum(f.seconds for f in some):.0f} s")
    return f"{name}: " + "; ".join(parts or ["nothing changed, so there are no frames"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each model; 0, or 5 where a frame is refuted or nothing is known of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--frames", type=Path, required=True, metavar="DIR", help="a folder for each model in it")
    parser.add_argument("--before", action="store_true", help="also beside the frame before")
    parser.add_argument("--target", default="profile:cpu-epyc-2core")
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args(arguments)
    good = True
    with Fleet.open(given.workers) as fleet:
        for model in given.models:
            folder = given.frames / model.stem
            frames = frames_of(model, folder, Options(target=given.target, time_limit=given.time_limit))
            with Journal(folder / "verdicts.jsonl") as kept:
                found = verified(model, frames, fleet, kept, before=given.before)
            print(_summary(model.stem, found), flush=True)
            good = good and all(f.verdict in GOOD for f in found)
    return 0 if good else 5


if __name__ == "__main__":
    sys.exit(main())
