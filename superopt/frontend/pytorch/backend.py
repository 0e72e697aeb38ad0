"""A backend of ``torch.compile``: regions run as graphs in ONNX Runtime, backward passes by superopt's own gradients.

A region that cannot be taken (it changes a buffer, draws random numbers, has an operator that is not exported, runs on
another device) stays as it is, and :func:`explain` names it with the reason. Nothing is raised that the region itself
would not raise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from superopt.formats import to_onnx_bytes
from superopt.frontend.autodiff import joint
from superopt.frontend.pytorch.exchange import (
    all_finite,
    array_of,
    check_type,
    laid_out,
    leaves_of,
    near,
    overlap,
    shape_of,
    tensor_of,
)
from superopt.frontend.pytorch.onnx_export import FunctionalizedModule, ParameterLiftedModule, exported, trial
from superopt.ir.errors import SuperoptError, Unsupported, printable
from superopt.ir.graph import Graph
from superopt.runtime.onnx_runtime import make_session, translated

__all__ = ["TorchCompileReport", "TorchRegionReport", "backend", "explain"]

Rewrite = Callable[[Graph], Graph]
SIGNATURES = 8  # of a region whose sizes vary: so many graphs, and the region itself for more


@dataclass
class TorchRegionReport:
    """What became of one region that ``torch.compile`` handed over.

    Attributes:
        operators: of the region, as PyTorch names them.
        graph: the graph it runs as; ``None`` where it stayed as it was.
        reason: why it stayed, or why single calls did.
        backward: "" until a gradient was asked for, then "graph" or why it is PyTorch's own.
    """

    operators: tuple[str, ...]
    graph: Graph | None = None
    reason: str = ""
    backward: str = ""


@dataclass
class TorchCompileReport:
    """The regions of a call, in order."""

    regions: list[TorchRegionReport] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """How many regions run as graphs."""
        return sum(r.graph is not None for r in self.regions)

    def __str__(self) -> str:
        lines = [f"{self.taken} of {len(self.regions)} regions run as graphs"]
        for number, region in enumerate(self.regions, 1):
            what = f"{len(region.operators)} operators"
            state = f"{len(region.graph.nodes)} ONNX nodes" if region.graph is not None else f"stays: {region.reason}"
            rest = [
                region.reason if region.graph is not None else "",
                region.backward and f"backward: {region.backward}",
            ]
            lines.append("; ".join([f"  region {number}: {what}, {state}", *filter(None, rest)]))
        return "\n".join(lines)


class _NotFinite(Exception):
    """A graph gave infinities or NaN: whether the region does, only the region can say."""


_watched: list[TorchCompileReport] = []


def as_it_is(graph: Graph) -> Graph:
    return graph


def backend(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, rewrite: Rewrite = as_it_is
) -> Callable[..., Any]:
    """Compile a region; never raises for what it cannot take.

    Args:
        module: the region.
        example_inputs: of its first call; not used: they may have no elements, so the region is compiled when called.
        rewrite: makes a better graph of one, with the same inputs and outputs.
    """
    region = TorchRegionReport(tuple(str(n.target) for n in module.graph.nodes if n.op.startswith("call")))
    for watching in _watched:
        watching.regions.append(region)
    return _Callable(module, region, rewrite)


def explain(model: Callable[..., Any], inputs: Sequence[Any]) -> TorchCompileReport:
    """Which regions of a call superopt takes, and why it does not take the others.

    The call is made on copies of the tensors; a module's buffers and the random numbers are put back after it.

    Args:
        model: a module or a function.
        inputs: its positional arguments.
    """
    explanation = TorchCompileReport()
    copies = [v.detach().clone().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v for v in inputs]
    buffers = list(model.buffers()) if isinstance(model, torch.nn.Module) else []
    before = [v.clone() for v in buffers]
    _watched.append(explanation)
    try:
        torch._dynamo.reset()
        with torch.random.fork_rng(devices=[]):
            torch.compile(model, backend=backend)(*copies)
    finally:
        with torch.no_grad():
            for value, old in zip(buffers, before, strict=True):
                value.copy_(old)
        _watched.remove(explanation)
        torch._dynamo.reset()
    return explanation


class _Callable:
    """A region: a graph for each signature of its arguments, the region itself where it cannot be one."""

    def __init__(self, module: torch.fx.GraphModule, region: TorchRegionReport, rewrite: Rewrite) -> None:
        self.module, self.region, self.rewrite = ParameterLiftedModule(module), region, rewrite
        self.known: dict[Any, _Compiled | None] = {}

    def __call__(self, *given: Any) -> Any:
        inputs = (*given, *self.module.held)
        if all(isinstance(v, torch.Tensor | int | float) for v in inputs):
            key = tuple((v.dtype, v.shape) if isinstance(v, torch.Tensor) else (type(v), v) for v in inputs)
            if key not in self.known and len(self.known) < SIGNATURES:
                self.known[key] = self.compiled(inputs)
            found = self.known.get(key)
            if found is not None:
                try:
                    return found(*inputs)
                except _NotFinite:
                    self.region.reason = "results that are not finite are PyTorch's own"
                except (
                    Exception
                ) as error:  # an index out of bounds, no memory left …: the region says it in its own words
                    self.region.reason = f"once: {printable(str(error), 200)}"
        return self.module(*inputs)

    def compiled(self, inputs: tuple[Any, ...]) -> _Compiled | None:
        try:
            return _Compiled(self.module, inputs, self.region, self.rewrite)
        except Exception as reason:  # whatever stands in the way, the region can still run as it is
            self.region.graph, self.region.reason = None, printable(str(reason) or type(reason).__name__, 300)
            return None


@dataclass(frozen=True)
class _Backward:
    """What runs a region whose gradients are asked for.

    Attributes:
        forward: the session that gives the outputs and what the backward pass is to have.
        kept: that, by name.
        backward: the session of the backward pass.
        inputs: names of the inputs that it reads.
        of, to: names of the outputs that have cotangents, and of the inputs that get them.
        reached: names of the inputs that an output depends on, by its name: the others get no gradient from it, and
            not a gradient of 0.
    """

    forward: Any
    kept: tuple[str, ...]
    backward: Any
    inputs: tuple[str, ...]
    of: tuple[str, ...]
    to: tuple[str, ...]
    reached: Mapping[str, frozenset[str]]


class _Compiled:
    """A region for one signature as a callable: ONNX Runtime forward, and backward where a gradient is asked for."""

    def __init__(
        self, module: ParameterLiftedModule, inputs: tuple[Any, ...], region: TorchRegionReport, rewrite: Rewrite
    ) -> None:  # fmt: skip
        fixed = {p: v for p, v in enumerate(inputs) if not isinstance(v, torch.Tensor)}
        given = tuple(v for v in inputs if isinstance(v, torch.Tensor))
        for value in given:
            check_type(value, "input")
        if any("_enter_dual_level" in name for name in region.operators):  # an export that fails would not leave it
            raise Unsupported("it differentiates in forward mode")
        self.tensors = [p for p in range(len(inputs)) if p not in fixed]
        found_trial = trial(module, inputs)
        if found_trial.drawn:
            raise Unsupported("it draws random numbers")
        if found_trial.shared:
            raise Unsupported("a result is a view of an input, or of another result")
        if any(inputs[p].requires_grad for p in found_trial.changed):
            raise Unsupported("it changes an input that has a gradient")
        for value in found_trial.results:
            check_type(value, "result")
        self.module, self.region, self.rewrite = module, region, rewrite
        self.changed = tuple(found_trial.changed)
        self.pure = FunctionalizedModule(module, fixed, len(inputs), self.changed)
        plain = tuple(v.detach().clone() for v in given)
        graph = exported(self.pure, plain)
        if len(graph.inputs) != len(given):
            raise Unsupported(f"of {len(given)} inputs {len(graph.inputs)} are left in what is exported")
        if len(graph.outputs) != len(found_trial.results) + len(found_trial.changed):
            raise Unsupported("some results are not left in what is exported")
        self.graph = graph
        self.names = [v.name for v in graph.inputs]
        self.outputs = [v.name for v in graph.outputs]
        self.count = len(found_trial.results)
        better = rewrite(graph)
        self.session = make_session(to_onnx_bytes(better))
        self.shape = shape_of(module.module, self.count)
        self.back: dict[tuple[bool, ...], _Backward | None] = {}
        self.moving: tuple[bool, ...] = ()
        self.like = {
            n: torch.empty_like(v, device="meta") for n, v in zip(self.outputs, found_trial.results, strict=False)
        }
        self.strides = [v.stride() for v in (*found_trial.results, *found_trial.changed.values())]
        self.check(self.run(self.session, self.outputs, plain), (*found_trial.results, *found_trial.changed.values()))
        region.graph = better

    def check(self, found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> None:
        """Compare with what the region itself gives.

        Raises:
            Unsupported: it gives something else.
        """
        for got, want in zip(found, expected, strict=True):
            if got.shape != want.shape or got.dtype != want.dtype or not near(got, want):
                raise Unsupported("what is exported gives something else than the region")

    def __call__(self, *inputs: Any) -> Any:
        given = tuple(inputs[p] for p in self.tensors)
        if self.changed and overlap(given):  # what is written to one of them is in another
            return self.module(*inputs)
        if torch.is_grad_enabled() and any(v.requires_grad for v in given):
            needed = tuple(v.requires_grad for v in given)
            if needed not in self.back:
                self.back[needed] = self.reverse(needed, given)
            if self.back[needed] is None:
                return self.module(*inputs)
            return self.shape(tuple(_Differentiable.apply(self, needed, *given)))
        values = self.finite(self.run(self.session, self.outputs, given))
        self.write(given, values)
        return self.shape(values[: self.count])

    def finite(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """The results of the region, if all are finite.

        PyTorch and the operators that it is exported to round alike, and overflow apart: ``log(sigmoid(x))`` is
        infinite where ``logsigmoid(x)`` is -200.

        Raises:
            _NotFinite: they are not.
        """
        if not all_finite(values[: len(self.outputs)]):
            raise _NotFinite
        return values

    def write(self, given: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
        """Give what the region changes its new value."""
        for position, value in zip(self.changed, values[self.count :], strict=True):
            with torch.no_grad():
                given[self.tensors.index(position)].copy_(value)

    def run(self, session: Any, outputs: Sequence[str], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Outputs of a session; those of the region, which come first, are laid out in memory as it does."""
        feeds = {n: array_of(v) for n, v in zip(self.names, inputs, strict=True)}
        with translated("", running=True):
            values = session.run(list(outputs), feeds)
        return [laid_out(tensor_of(v), s) for v, s in zip_longest(values, self.strides)]

    def reverse(self, needed: tuple[bool, ...], given: tuple[torch.Tensor, ...]) -> _Backward | None:
        """Sessions for these inputs; ``None`` where superopt cannot differentiate it, or gives something else."""
        to = tuple(n for n, need in zip(self.names, needed, strict=True) if need)
        try:
            leaves = [v.detach().clone().requires_grad_(v.requires_grad) for v in given]
            results = self.pure(*leaves)[: self.count]
            moving = tuple(y.requires_grad for y in results)
            of = tuple(n for n, moves in zip(self.outputs, moving, strict=False) if moves)
            made = joint(self.graph, of, to)
            forward = make_session(to_onnx_bytes(self.rewrite(made.forward)))
            backward = make_session(to_onnx_bytes(self.rewrite(made.backward)))
            read = {i.name for i in backward.get_inputs()}
            inputs = tuple(n for n in self.names if n in read)
            leaf = {id(v): n for n, v in zip(self.names, leaves, strict=True)}
            reached = {
                n: frozenset(leaf[i] for i in leaves_of(y) if i in leaf)
                for n, y in zip(self.outputs, results, strict=False)
            }
            found = _Backward(forward, made.kept, backward, inputs, of, to, reached)
            self.compare(found, leaves, results, moving)
        except SuperoptError as reason:
            self.region.backward = f"PyTorch's own: {printable(str(reason), 200)}"
            return None
        self.moving = moving
        self.region.backward = "graph"
        return found

    def compare(
        self, made: _Backward, leaves: Sequence[torch.Tensor], results: Sequence[torch.Tensor], moving: Sequence[bool]
    ) -> None:  # fmt: skip
        """Hold gradients against PyTorch's: a region may cut them off (``detach``) or have its own.

        Raises:
            Unsupported: they differ.
        """
        source = torch.Generator().manual_seed(0)
        chosen = [y for y, moves in zip(results, moving, strict=True) if moves]
        given = [torch.randn(y.shape, generator=source, dtype=torch.float64).to(y.dtype) for y in chosen]
        wanted = [v for v in leaves if v.requires_grad]
        expected = torch.autograd.grad(chosen, wanted, given, allow_unused=True)
        inputs = {n: array_of(v) for n, v in zip(self.names, leaves, strict=True)}
        with translated("", running=True):
            values = made.forward.run(list(made.kept), inputs) if made.kept else []
        kept = dict(zip(made.kept, values, strict=True))
        found = self.pulled(made, {**inputs, **kept}, dict(zip(made.of, given, strict=True)))
        wholes = [torch.zeros_like(got) if e is None else e for got, e in zip(found, expected, strict=True)]
        most = max((float(e.abs().max()) for e in wholes if e.numel()), default=0.0)
        for got, want in zip(found, wholes, strict=True):
            if not near(got, want, least=1e-6 * most):  # a bias before a normalisation has 0 but for rounding
                raise Unsupported("its gradient is another than the graph's")

    def pulled(
        self, made: _Backward, values: Mapping[str, np.ndarray], given: Mapping[str, torch.Tensor]
    ) -> list[torch.Tensor]:
        """Gradients of the inputs ``made.to``."""
        feeds = {**values, **{f"cotangent {n}": array_of(g) for n, g in given.items()}}
        there = {i.name for i in made.backward.get_inputs()}
        with translated("", running=True):
            found = made.backward.run([f"d/d {n}" for n in made.to], {n: v for n, v in feeds.items() if n in there})
        return [tensor_of(v) for v in found]

    def own_backward(self, needed: tuple[bool, ...], inputs: Sequence[torch.Tensor], given: Sequence[Any]) -> list[Any]:
        """Gradients by running the region again under PyTorch's autograd; they can be differentiated again."""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            leaves = [
                v if again and v.requires_grad else v.detach().requires_grad_(need)
                for v, need in zip(inputs, needed, strict=True)
            ]
            results = self.pure(*leaves)
            pairs = [(y, g) for y, g in zip(results, given, strict=False) if g is not None and y.requires_grad]
            wanted = [v for v, need in zip(leaves, needed, strict=True) if need]
            grads = torch.autograd.grad(
                [y for y, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True, create_graph=again
            )
        rest = iter(grads)
        return [next(rest) if need else None for need in needed]


class _Differentiable(torch.autograd.Function):
    """A region under autograd: what the backward pass reads is kept, not computed again.

    Autograd calls it from within what is compiled, too, where Dynamo would look into it.
    """

    @staticmethod
    @torch._dynamo.disable
    def forward(ctx: Any, compiled: _Compiled, needed: tuple[bool, ...], *inputs: torch.Tensor) -> Any:
        made = compiled.back[needed]
        assert made is not None
        names = (*compiled.outputs, *(n for n in made.kept if n not in compiled.outputs))
        values = compiled.finite(compiled.run(made.forward, names, inputs))
        by_name = dict(zip(names, values, strict=True))
        results = tuple(values[: compiled.count])
        ctx.compiled, ctx.made, ctx.needed = compiled, made, needed
        # Of what the region changes, what it was; of the results that are kept, a copy, for they may be changed.
        ctx.kept = {n: array_of(by_name[n].clone() if n in compiled.outputs else by_name[n]) for n in made.kept}
        written = {compiled.tensors.index(p) for p in compiled.changed}
        ctx.save_for_backward(*(v.clone() if p in written else v for p, v in enumerate(inputs)))
        compiled.write(inputs, values[: len(compiled.outputs)])
        still = [y for y, moves in zip(results, compiled.moving, strict=True) if not moves]
        ctx.mark_non_differentiable(*still)
        ctx.set_materialize_grads(False)
        return results

    @staticmethod
    @torch._dynamo.disable
    def backward(ctx: Any, *given: Any) -> tuple[Any, ...]:
        compiled, made, inputs = ctx.compiled, ctx.made, ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients
            return (None, None, *compiled.own_backward(ctx.needed, inputs, given))
        cotangents = {n: g for n, g in zip(compiled.outputs, given, strict=False) if g is not None}
        reached = frozenset[str]().union(*(made.reached[n] for n in cotangents))
        try:
            values = {n: array_of(v) for n, v in zip(compiled.names, inputs, strict=True) if n in made.inputs}
            zeros = {n: torch.zeros_like(compiled.like[n], device="cpu") for n in made.of if n not in cotangents}
            parts = compiled.pulled(made, {**values, **ctx.kept}, {**zeros, **cotangents})
        except Exception:  # no memory left, cotangents that are batches of vmap …: PyTorch may still do it
            parts = []
        if parts and all_finite(parts):  # at a kink PyTorch may have another convention than a NaN
            found = dict(zip(made.to, parts, strict=True))
            return (None, None, *(found.get(n) if n in reached else None for n in compiled.names))
        return (None, None, *compiled.own_backward(ctx.needed, inputs, given))
