"""Bilinear algorithms put to the test: ``make bench-algorithms`` writes the tables of ``lab/notes/algorithms.md``.

Single operators of the shapes that decide, beside every form that the default budget of errors allows; random shapes,
to see whether prices choose well; whole models. Everything is interleaved, with one thread on the thread's CPU clock,
so that other load on the machine disturbs little; the load is written down.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from lab.fast_algorithm_limits import devices_table, operators_table, shared_table, sums_table
from superopt import cost as costs
from superopt import formats
from superopt.cost.cost_model import CostModel
from superopt.frontend import GraphBuilder
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph
from superopt.passes.fast_algorithms.selection import (
    GROWTH,
    LEAST_GAIN,
    FastAlgorithmChoice,
    Form,
    alternatives,
    choose,
    kind_of,
    named,
    rewritten,
)
from superopt.passes.fast_algorithms.sites import sites_of
from superopt.pipeline.fast_algorithm_proposals import NumericalErrorComparison, accuracy
from superopt.pipeline.optimization import optimize
from superopt.pipeline.paired_benchmark import clock_of
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import circumstances, time_loadings
from superopt.verifier.check.differential import make_inputs

__all__ = ["FastAlgorithmMeasurement", "conv", "main", "matmul", "measured", "replaced"]

CONVS = (
    (512, 512, 28), (256, 256, 28), (512, 512, 16), (256, 256, 14), (512, 512, 14), (128, 128, 28), (256, 256, 56),
    (512, 512, 7), (128, 128, 56), (64, 64, 56),
)  # fmt: skip
MATMULS = ((512, 3072, 768), (1024, 1024, 1024), (2048, 2048, 2048), (512, 768, 3072), (128, 768, 3072))
SECTIONS = ("shapes", "random", "models", "errors", "operators", "sums", "shared", "devices")
TIMED = ("shapes", "random", "models", "operators")  # sections that are something else with another number of threads
PROFILE = "profile:cpu-epyc-2core"
MODELS = ("vgg16", "unet", "resnet50", "resnet18", "vit_b16", "bert")
_SITTINGS, _ROUNDS, _SECONDS = 8, 3, 40.0  # loadings of a shape's models, and rounds of each
_NEAR = 1.03  # a choice within this of the fastest is as good


@dataclass(frozen=True)
class FastAlgorithmMeasurement:
    """One operator beside its forms.

    Attributes:
        shape: of the operator, in words.
        forms: that were timed, the operator itself first (``None``).
        modelled: microseconds, by the cost model.
        ratios, best: medians of time ÷ the operator's in the same round, and ratios of the least times.
        ms: of the operator.
        errors: of the form that is fastest.
        load: of the machine, one minute's average.
        kept: the form that an optimisation keeps, by prices and a trial where they are in doubt; ``None``: not asked.
    """

    shape: str
    forms: tuple[Form | None, ...]
    modelled: tuple[float, ...]
    ratios: tuple[float, ...]
    best: tuple[float, ...]
    ms: float
    errors: NumericalErrorComparison | None
    load: float
    kept: int | None = None

    @property
    def fastest(self) -> int:
        return min(range(len(self.ratios)), key=lambda n: self.ratios[n])

    @property
    def chosen(self) -> int:
        """The form that prices choose: the operator itself unless one is clearly cheaper."""
        cheapest = min(range(len(self.modelled)), key=lambda n: self.modelled[n])
        return cheapest if self.modelled[cheapest] < (1.0 - LEAST_GAIN) * self.modelled[0] else 0

    def lost(self, form: int) -> float:
        """Time of a form ÷ the fastest's."""
        return self.ratios[form] / self.ratios[self.fastest]


def conv(inner: int, out: int, size: int) -> Graph:
    """A 3×3 convolution with a bias and Relu, one image."""
    b = GraphBuilder("conv")
    x = b.input("x", "float32", (1, inner, size, size))
    w = b.weight("w", (out, inner, 3, 3), scale=(9 * inner) ** -0.5)
    b.output(b.op("Conv", x, w, b.weight("b", (out,)), pads=[1, 1, 1, 1]).relu(), "y")
    return b.build()


def matmul(rows: int, inner: int, columns: int) -> Graph:
    """A product of data with fixed weights."""
    b = GraphBuilder("matmul")
    x = b.input("x", "float32", (rows, inner))
    b.output(b.op("MatMul", x, b.weight("w", (inner, columns), scale=inner**-0.5)), "y")
    return b.build()


def measured(
    graph: Graph,
    shape: str,
    model: CostModel,
    *,
    rounds: int = _ROUNDS,
    most: int = 6,
    decide: bool = False,
    threads: int = 1,
    burst: int = 2,
) -> FastAlgorithmMeasurement:
    """Time an operator beside its forms, the cheapest ``most`` by the model.

    Args:
        graph: with one site.
        shape: what to call it.
        model: prices.
        rounds: of each loading.
        most: forms.
        decide: also what an optimisation would keep, and time that.
        threads: inside an operator; with one, what counts is the thread's CPU time.
        burst: runs in a row, whose least time counts. With one, what an operator reads was last read before others ran,
            as in a network.

    Raises:
        UsageError: there is no site.
    """
    sites = sites_of(graph, costs=model)
    if not sites:
        raise UsageError(f"no algorithm applies to {shape}")
    kept = _chosen_form(graph, model) if decide else None
    direct, *others = alternatives(graph, sites[0], model, GROWTH["standard"])
    timed = [(us, form) for n, (us, form) in enumerate(others) if form and (n < most or form == kept)]
    graphs = [rewritten(graph, [FastAlgorithmChoice(sites[0], form, 0.0, 0.0)]) for _, form in timed]
    forms = (None, *(form for _, form in timed))
    load = os.getloadavg()[0]
    models, feeds = [formats.to_onnx_bytes(g) for g in (graph, *graphs)], make_inputs(graph, 0, "normal")
    result = time_loadings(
        lambda: [ONNX_RUNTIME.load(m, threads=threads).bound(feeds) for m in models], loadings=_SITTINGS,
        rounds=rounds, burst=burst, threads=threads, clock=clock_of(threads), time_limit=_SECONDS,
    )  # fmt: skip
    found = FastAlgorithmMeasurement(
        shape, forms, (direct[0], *(us for us, _ in timed)), result.ratios,
        tuple(ms / result.best_ms[0] for ms in result.best_ms), result.ms[0], None, load,
        forms.index(kept) if decide else None,
    )  # fmt: skip
    errors = accuracy(graph, graphs[found.fastest - 1], sizes={}, runtime=ONNX_RUNTIME) if found.fastest else None
    return replace(found, errors=errors)


def _chosen_form(graph: Graph, model: CostModel) -> Form | None:
    """The form that an optimisation of a graph with one site would keep."""
    chosen = choose(graph, model, growth=GROWTH["standard"])
    return chosen[0].form if chosen else None


def _name(form: Form | None) -> str:
    return "direct" if form is None else named(form)


def shapes() -> list[tuple[str, Callable[[], Graph]]]:
    """The issue's shapes, in words, each with what builds it."""
    return [
        *((f"Conv 3×3, {i}→{o} at {s}×{s}", partial(conv, i, o, s)) for i, o, s in CONVS),
        *((f"MatMul {m}×{k}·{k}×{n}", partial(matmul, m, k, n)) for m, k, n in MATMULS),
    ]


def shapes_table(model: CostModel, threads: int) -> list[str]:
    """Markdown rows: the issue's shapes."""
    lines = [
        "| operator | direct, ms | fastest form | median ratio | ratio of least times | modelled | prices choose "
        "| largest error: direct, form | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for shape, build in shapes():
        found = measured(build(), shape, model, threads=threads)
        form = min(range(1, len(found.ratios)), key=lambda n: found.ratios[n])
        errors = f"{found.errors.before:.1e}, {found.errors.after:.1e}" if found.errors is not None else ""
        lines.append(
            f"| {shape} | {found.ms:.2f} | {_name(found.forms[form])} | **{found.ratios[form]:.3f}** "
            f"| {found.best[form]:.3f} | {found.modelled[form] / found.modelled[0]:.2f} "
            f"| {_name(found.forms[found.chosen])}: {found.ratios[found.chosen]:.3f} | {errors} | {found.load:.1f} |"
        )
        print(lines[-1], flush=True)
    return lines


def drawn(count: int, seed: int) -> Iterator[tuple[str, Graph, int]]:
    """Random shapes: in words, the operator, and how many of its forms are worth timing."""
    rng = random.Random(seed)
    while count:
        if rng.random() < 0.7:
            inner, out = (rng.choice((24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512)) for _ in range(2))
            size = rng.choice((7, 10, 14, 16, 20, 28, 32, 40, 56, 64))
            if inner * out * size * size > 512 * 512 * 784:
                continue
            yield f"Conv {inner}→{out} at {size}", conv(inner, out, size), 3
        else:
            m, k, n = (rng.choice((128, 192, 256, 384, 512, 768, 1024, 1536)) for _ in range(3))
            yield f"MatMul {m}×{k}×{n}", matmul(m, k, n), 2
        count -= 1


def plan(folder: Path, count: int, seed: int) -> None:
    """Write random shapes as models: what ``superopt profile`` can ask a device for."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, (_, graph, _) in enumerate(drawn(count, seed)):
        formats.save(graph, folder / f"{number:03d}.json", force=True)


def random_table(model: CostModel, count: int, seed: int, threads: int) -> list[str]:
    """Markdown: on shapes that nobody chose, how often prices choose what is fastest, and what it costs where not."""
    found: list[FastAlgorithmMeasurement] = []
    for shape, graph, most in drawn(count, seed):
        one = measured(graph, shape, model, rounds=4, most=most, decide=True, threads=threads, burst=1)
        found.append(one)
        print(f"{one.shape}: kept {_name(one.forms[one.kept or 0])} {one.ratios[one.kept or 0]:.3f}, "
              f"fastest {_name(one.forms[one.fastest])} {one.ratios[one.fastest]:.3f}", flush=True)  # fmt: skip
    kept = [m.lost(m.kept or 0) for m in found]
    priced = [m.lost(m.chosen) for m in found]
    slower = sum(m.ratios[m.kept or 0] > _NEAR for m in found)
    said = (
        f"{len(found)} random shapes (seed {seed}; 70 % convolutions): what an optimisation proposes, which gains by "
        f"price, is the fastest or within 3 % of it on **{_near(kept):.1%}**, what is cheapest by price on "
        f"{_near(priced):.1%}; geometric mean of kept ÷ fastest {np.exp(np.log(kept).mean()):.3f}, worst "
        f"{max(kept):.2f}; slower than the operator itself by more than 3 % on {slower}."
    )
    rows = [
        f"- {m.shape}: kept {_name(m.forms[m.kept or 0])} at {m.ratios[m.kept or 0]:.3f}, fastest was "
        f"{_name(m.forms[m.fastest])} at {m.ratios[m.fastest]:.3f}"
        for m in found
        if m.lost(m.kept or 0) > _NEAR
    ]
    return [said, "", _scatter(found), "", *rows]


def _scatter(found: Sequence[FastAlgorithmMeasurement]) -> str:
    """By kind of form, what was measured ÷ what was modelled, of the operator's time: what prices are off by."""
    logs: dict[str, list[float]] = defaultdict(list)
    for one in found:
        for form, us, ratio in zip(one.forms, one.modelled, one.ratios, strict=True):
            if form is not None:
                logs[kind_of(form)].append(np.log(ratio * one.modelled[0] / us))
    said = (
        f"{kind} {np.exp(np.mean(log)):.3f} (σ of the logarithm {np.std(log):.3f}, {len(log)} forms)"
        for kind, log in sorted(logs.items())
    )
    return f"Measured ÷ modelled: {'; '.join(said)}."


def _near(lost: Sequence[float]) -> float:
    return sum(one <= _NEAR for one in lost) / len(lost)


def models_table(names: Sequence[str], threads: int) -> list[str]:
    """Markdown rows: whole models of the corpus, as ``superopt optimize --measure`` returns them."""
    lines = [
        "| model | rewritten operators | before, ms | after ÷ before | spread, rounds "
        "| largest error: before, after | weights, MB: before, after | seconds | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        load, start = os.getloadavg()[0], time.monotonic()
        report = optimize(formats.load(f"corpus/{name}.json"), measure=True, threads=threads).report
        seconds = time.monotonic() - start
        raced, errors, work = report.measured, report.errors, report.work
        times = "| | | " if raced is None else (
            f"| {raced.before_ms:.1f} | **{raced.ratio:.3f}** | {raced.spread:.3f}, {raced.runs} "
        )  # fmt: skip
        accuracies = f"{errors.before:.1e}, {errors.after:.1e}" if errors is not None else ""
        weights = f"{(work.weight_bytes_before or 0) / 1e6:.0f}, {(work.weight_bytes_after or 0) / 1e6:.0f}"
        lines.append(
            f"| {name} | {len(report.algorithms)} {times}| {accuracies} | {weights} | {seconds:.0f} | {load:.1f} |"
        )
        print(lines[-1], flush=True)
    return lines


def errors_table(names: Sequence[str], seeds: int) -> list[str]:
    """Markdown rows: errors of corpus models against float64 on so many inputs, before and after; recorded prices.

    A result without forms is as accurate as the check of every result says, so no errors are measured for it.
    """
    lines = [
        "| model | rewritten operators | inputs | largest error: before, after | times | within the budget |",
        "|---|---|---|---|---|---|",
    ]
    for name in names:
        graph = formats.load(f"corpus/{name}.json")
        result = optimize(graph, target=PROFILE, time_limit=None)
        if result.report.algorithms:
            errors = accuracy(graph, result.graph, sizes={}, runtime=ONNX_RUNTIME, inputs=seeds)
            lines.append(
                f"| {name} | {len(result.report.algorithms)} | {errors.inputs} | {errors.before:.1e}, "
                f"{errors.after:.1e} | {errors.after / errors.before:.2f} "
                f"| {'yes' if errors.within('standard') else '**no**'} |"
            )
        else:
            lines.append(f"| {name} | none | | | | |")
        print(lines[-1], flush=True)
    return lines


def replaced(text: str, section: str, lines: Sequence[str]) -> str:
    """A page with what is between the marks of a section replaced.

    Raises:
        UsageError: the page has no such marks.
    """
    first, last = f"<!-- {section} -->", f"<!-- end of {section} -->"
    before, found, rest = text.partition(first)
    _, closed, after = rest.partition(last)
    if not found or not closed:
        raise UsageError(f"the page has no section {section!r}", hint=f"it begins with {first} and ends with {last}")
    return "\n".join((before + first, *lines, last + after))


def main() -> None:
    """Measure, and write the tables into the page."""
    parser = argparse.ArgumentParser(prog="python -m lab.algorithms", description=__doc__)
    parser.add_argument("--page", type=Path, default=Path("lab/notes/algorithms.md"))
    parser.add_argument(
        "--only", choices=SECTIONS, action="append", help="shapes, random, models and errors by default"
    )
    parser.add_argument("--count", type=int, default=60, help="random shapes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="*", default=list(MODELS), help="of the corpus, drawn networks, or files")
    parser.add_argument("--seeds", type=int, default=100, help="inputs on which errors are measured")
    parser.add_argument("--threads", type=int, default=1, help="inside an operator; other tables for other numbers")
    parser.add_argument("--profile", default=PROFILE, help="whose prices are asked")
    parser.add_argument(
        "--seconds", type=float, help="of each search for sums and shared; without, as long as it takes"
    )
    parser.add_argument(
        "--plan", type=Path, metavar="DIR", help="write the random shapes as models there, nothing else"
    )
    chosen = parser.parse_args()
    if chosen.plan is not None:
        plan(chosen.plan, chosen.count, chosen.seed)
        return
    for section in chosen.only or SECTIONS[:4]:
        lines = _table(section, chosen)
        about = circumstances(chosen.threads, clock_of(chosen.threads))
        line = ", ".join(f"{k} {v}" for k, v in about.items())
        place = f"{section}, {chosen.threads} threads" if section in TIMED and chosen.threads > 1 else section
        text = chosen.page.read_text(encoding="utf-8")
        chosen.page.write_text(replaced(text, place, ["", *lines, "", f"({line})", ""]), encoding="utf-8")


def _table(section: str, chosen: argparse.Namespace) -> list[str]:
    """The lines of a section."""
    single = [(shape, build()) for shape, build in shapes()] if section in ("operators", "devices") else []
    if section == "models":
        return models_table(chosen.models, chosen.threads)
    if section == "errors":
        return errors_table(chosen.models, chosen.seeds)
    if section == "operators":
        return operators_table(single, chosen.profile, chosen.threads)
    if section == "sums":
        return sums_table(chosen.models, chosen.profile, chosen.seconds)
    if section == "shared":
        return shared_table(chosen.models, chosen.profile, chosen.seconds)
    if section == "devices":
        return devices_table(single)
    here = section == "shapes" and chosen.threads == 1  # with more threads, too, a recorded profile prices forms
    with costs.for_target("cpu" if here else chosen.profile, threads=chosen.threads) as model:
        if section == "shapes":
            return shapes_table(model, chosen.threads)
        return random_table(model, chosen.count, chosen.seed, chosen.threads)


if __name__ == "__main__":
    main()
