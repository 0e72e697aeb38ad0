"""Training steps beside PyTorch's: ``make bench-train`` writes the table of ``lab/notes/training.md``.

Each model's whole step (forward pass, loss, backward pass, update of all weights, the state moved on) runs four ways in
one process, in an order that is drawn anew in every round, with one thread on that thread's CPU clock: the step as
superopt's gradients write it and the step as ``superopt.optimize`` returns it, both in ONNX Runtime with all its own
optimisations; eager PyTorch; and ``torch.compile`` with inductor, both with PyTorch's fused SGD. All start from the
same weights, and their losses over the first steps have to agree.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lab.algorithms import replaced
from lab.training_models import CASES, TrainingCase
from superopt.frontend.pytorch import from_torch
from superopt.frontend.training import SGD, TrainingLoop, TrainingStep, train_step
from superopt.ir.errors import NotEquivalent, printable
from superopt.pipeline.optimization import optimize
from superopt.runtime.paired_benchmark import circumstances, time_bound
from superopt.runtime.protocol import InputBoundModel

__all__ = ["TrainingBenchmarkResult", "main", "measured"]

RATE = 0.01
AGREE = 5  # steps from the same weights whose losses are compared
VARIANTS = ("as written", "optimised", "eager", "inductor")
_ROUNDS, _LONGEST = 25, 12.0  # of a model's race; seconds


@dataclass(frozen=True)
class TrainingBenchmarkResult:
    """What a race of one model gave.

    Attributes:
        name: of the model.
        ways: that ran, in the order of :data:`WAYS`.
        samples: milliseconds of each, a row a round.
        nodes: of the step as written, and optimised.
        losses: of the first steps.
        seconds: that ``superopt.optimize`` took, and after which it and inductor's compiler, side by side, were done.
        notes: what did not run, and why.
    """

    name: str
    variants: tuple[str, ...]
    samples: np.ndarray
    nodes: tuple[int, int]
    losses: tuple[float, ...]
    seconds: tuple[float, float]
    notes: tuple[str, ...]

    def ms(self, variant: str) -> float:
        """The median."""
        return float(np.median(self.samples[:, self.variants.index(variant)]))

    def ratio(self, variant: str, others: Sequence[str]) -> tuple[float, float]:
        """The median over rounds of a way's time ÷ the better of others in the same round, and its standard error.

        The better of others is the one with the least median, not the least of each round.
        """
        other = min((w for w in others if w in self.variants), key=self.ms)
        each = self.samples[:, self.variants.index(variant)] / self.samples[:, self.variants.index(other)]
        quarter, three = np.quantile(each, [0.25, 0.75])
        return float(np.median(each)), float(1.253 * (three - quarter) / 1.349 / np.sqrt(len(each)))


class OnnxRuntimeStep:
    """A step in ONNX Runtime."""

    def __init__(self, step: TrainingStep, batch: dict[str, np.ndarray]) -> None:
        self.loop = TrainingLoop(step, threads=1)
        self.loop.feed(batch)

    def __call__(self) -> None:
        self.loop.again()

    @property
    def loss(self) -> float:
        return self.loop.loss


class PyTorchStep:
    """A step in PyTorch."""

    def __init__(self, case: TrainingCase, x: torch.Tensor, target: torch.Tensor, *, compiled: bool) -> None:
        torch.manual_seed(0)
        module = case.make()
        self.optimiser = torch.optim.SGD(module.parameters(), lr=RATE, fused=True)

        def value(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return case.value(module(x), target)

        self.value: Callable[..., Any] = torch.compile(value) if compiled else value
        self.x, self.target = x, target
        self.last: Any = None

    def __call__(self) -> None:
        self.last = self.value(self.x, self.target)
        self.last.backward()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

    @property
    def loss(self) -> float:
        return float(self.last.detach())


def compiler() -> str:
    """The C++ compiler that inductor will find, or "" where there is none."""
    return next((found for name in ("g++", "clang++", "c++") if (found := shutil.which(name))), "")


def first_losses(variant: OnnxRuntimeStep | PyTorchStep) -> tuple[float, ...]:
    found = []
    for _ in range(AGREE):
        variant()
        found.append(variant.loss)
    return tuple(found)


def theirs(case: TrainingCase, *, compiled: bool) -> PyTorchStep:
    x, target = case.batch(torch.Generator().manual_seed(1))
    return PyTorchStep(case, x, target, compiled=compiled)


def tried(name: str) -> subprocess.Popen[str]:
    """Inductor on a model in a process of its own, which fills its cache, and may crash without taking all with it."""
    command = [sys.executable, "-m", "lab.training", "--compile", name]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def objection(trial: subprocess.Popen[str], seconds: float) -> str:
    """Why inductor cannot be raced; "" where it can."""
    try:
        out, said = trial.communicate(timeout=max(seconds, 1.0))
    except subprocess.TimeoutExpired:
        trial.kill()
        trial.communicate()
        return "the time was up; what it compiled is kept, so the next call goes on"
    if trial.returncode < 0:
        return f"it crashed (signal {-trial.returncode})"
    if trial.returncode or not out.strip():
        return printable(said.strip().splitlines()[-1] if said.strip() else "it failed", 160)
    return ""


def measured(name: str, case: TrainingCase, *, search: float, deadline: float) -> TrainingBenchmarkResult:
    """Race one model.

    Args:
        name: of the model, in :data:`CASES`.
        case: the model.
        search: seconds that ``superopt.optimize`` may take.
        deadline: of ``time.monotonic``; what inductor has not compiled then is left out.

    Raises:
        NotEquivalent: losses differ.
    """
    began = time.monotonic()
    trial = tried(name) if compiler() else None
    torch.manual_seed(0)
    module = case.make()
    x, target = case.batch(torch.Generator().manual_seed(1))
    written = train_step(from_torch(module, (x,)), case.loss, SGD(RATE))
    start = time.monotonic()
    better = TrainingStep.read(optimize(written.graph, time_limit=search, threads=1).graph)
    searched = time.monotonic() - start
    why = objection(trial, deadline - time.monotonic()) if trial is not None else "there is no C++ compiler here"
    compiled = time.monotonic() - began
    (fed,) = (v.name for v in written.graph.inputs if v.name not in (*written.state.values(), *written.targets))
    batch = {fed: x.numpy(), written.targets[0]: target.numpy()}
    variants: dict[str, OnnxRuntimeStep | PyTorchStep] = {
        "as written": OnnxRuntimeStep(written, batch),
        "optimised": OnnxRuntimeStep(better, batch),
        "eager": theirs(case, compiled=False),
    }
    if not why:
        variants["inductor"] = theirs(case, compiled=True)
    losses = {variant: first_losses(run) for variant, run in variants.items()}
    notes = [f"no inductor: {why}"] if why else []
    for variant, found in losses.items():
        if not np.allclose(found, losses["eager"], rtol=2e-3, atol=1e-5):
            raise NotEquivalent(f"{name}, {variant}: losses {found}, eager {losses['eager']}")
    bound = [InputBoundModel(run, list, (run,)) for run in variants.values()]
    raced = time_bound(bound, rounds=_ROUNDS, burst=2, threads=1, time_limit=_LONGEST, clock="cpu")
    return TrainingBenchmarkResult(
        name, tuple(variants), np.array(raced.samples), (len(written.graph.nodes), len(better.graph.nodes)),
        losses["optimised"], (searched, compiled), tuple(notes),
    )  # fmt: skip


def table(found: Sequence[TrainingBenchmarkResult]) -> list[str]:
    """Markdown: a row a model, and what the rows say together."""
    lines = [
        "| model | as written, ms | optimised, ms | eager, ms | inductor, ms | optimised ÷ as written "
        "| optimised ÷ better of eager and inductor | nodes | seconds: optimize, both |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        times = " | ".join(f"{one.ms(variant):.2f}" if variant in one.variants else "–" for variant in VARIANTS)
        own, own_error = one.ratio("optimised", ["as written"])
        peer, peer_error = one.ratio("optimised", ["eager", "inductor"])
        lines.append(
            f"| {one.name}: {CASES[one.name].text} | {times} | {own:.3f} ± {own_error:.3f} "
            f"| **{peer:.3f}** ± {peer_error:.3f} | {one.nodes[0]} → {one.nodes[1]} "
            f"| {one.seconds[0]:.0f}, {one.seconds[1]:.0f} |"
        )
    faster = sum(one.ratio("optimised", ["eager", "inductor"])[0] <= 1.0 for one in found)
    notes = [f"{one.name}: {note}." for one in found for note in one.notes]
    return [*lines, "", f"At most the better of the two on **{faster} of {len(found)}**. {' '.join(notes)}".strip()]


def main() -> None:
    """Measure, and write the table into the page."""
    parser = argparse.ArgumentParser(prog="python -m lab.training", description=__doc__)
    parser.add_argument("--page", type=Path, default=Path("lab/notes/training.md"))
    parser.add_argument("--models", nargs="*", choices=list(CASES), default=list(CASES))
    parser.add_argument("--search", type=float, default=30.0, help="seconds of superopt.optimize for each model")
    parser.add_argument("--limit", type=float, default=330.0, help="seconds in all")
    parser.add_argument("--compile", choices=list(CASES), help="only try inductor on this model, and print its losses")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.compile is not None:
        print(json.dumps(first_losses(theirs(CASES[chosen.compile], compiled=True))))
        return
    began = time.monotonic()
    found: list[TrainingBenchmarkResult] = []
    for position, name in enumerate(chosen.models):
        left = len(chosen.models) - position
        now = time.monotonic()
        share = (began + chosen.limit - now) / left
        search = max(min(chosen.search, share - _LONGEST - 15), 5.0)
        deadline = now + share - _LONGEST - 10
        found.append(measured(name, CASES[name], search=search, deadline=deadline))
        print("\n".join(table(found[-1:])), flush=True)
    about = {**circumstances(1, "cpu"), "PyTorch": torch.__version__, "C++ compiler": compiler() or "none"}
    lines = ["", *table(found), "", f"({', '.join(f'{k} {v}' for k, v in about.items())})", ""]
    text = chosen.page.read_text(encoding="utf-8")
    chosen.page.write_text(replaced(text, "steps", lines), encoding="utf-8")


if __name__ == "__main__":
    main()
