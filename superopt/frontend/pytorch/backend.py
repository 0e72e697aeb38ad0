"""A backend of ``torch.compile``: regions run as graphs in ONNX Runtime, backward passes by superopt's own gradients.

A region that cannot be taken (it changes a buffer, draws random numbers, has an operator that is not exported, runs on
another device) stays as it is, and :func:`explain` names it with the reason. Nothing is raised that the region itself
would not raise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from superopt.formats import to_onnx_bytes
from superopt.frontend.autodiff import vjp
from superopt.frontend.pytorch.exporting import exported, tried
from superopt.ir.errors import SuperoptError, Unsupported, printable
from superopt.ir.graph import Graph
from superopt.runtime.ort import make_session

__all__ = ["Explanation", "Region", "backend", "explain"]

Rewrite = Callable[[Graph], Graph]


@dataclass
class Region:
    """What became of one region that ``torch.compile`` handed over.

    Attributes:
        operators: of the region, as PyTorch names them.
        graph: the graph it runs as; ``None`` where it stayed as it was.
        reason: why it stayed.
        backward: "" until a gradient was asked for, then "graph" or why it is PyTorch's own.
    """

    operators: tuple[str, ...]
    graph: Graph | None = None
    reason: str = ""
    backward: str = ""


@dataclass
class Explanation:
    """The regions of a call, in order."""

    regions: list[Region] = field(default_factory=list)

    @property
    def taken(self) -> int:
        """How many regions run as graphs."""
        return sum(r.graph is not None for r in self.regions)

    def __str__(self) -> str:
        lines = [f"{self.taken} of {len(self.regions)} regions run as graphs"]
        for number, region in enumerate(self.regions, 1):
            what = f"{len(region.operators)} operators"
            state = f"{len(region.graph.nodes)} ONNX nodes" if region.graph is not None else f"stays: {region.reason}"
            lines.append(f"  region {number}: {what}, {state}{region.backward and f'; backward: {region.backward}'}")
        return "\n".join(lines)


_watched: list[Explanation] = []


def as_it_is(graph: Graph) -> Graph:
    return graph


def backend(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], *, rewrite: Rewrite = as_it_is
) -> Callable[..., Any]:
    """Compile a region; never raises for what it cannot take.

    Args:
        module: the region.
        example_inputs: of its first call.
        rewrite: makes a better graph of one, with the same inputs and outputs.
    """
    region = Region(tuple(str(n.target) for n in module.graph.nodes if n.op.startswith("call")))
    for watching in _watched:
        watching.regions.append(region)
    try:
        return _Compiled(module, tuple(example_inputs), region, rewrite)
    except SuperoptError as reason:
        region.graph, region.reason = None, str(reason)
        return module.forward


def explain(model: Callable[..., Any], inputs: Sequence[Any]) -> Explanation:
    """Which regions of a call superopt takes, and why it does not take the others.

    Args:
        model: a module or a function.
        inputs: its positional arguments.
    """
    found = Explanation()
    _watched.append(found)
    try:
        torch._dynamo.reset()
        torch.compile(model, backend=backend)(*inputs)
    finally:
        _watched.remove(found)
        torch._dynamo.reset()
    return found


class _Compiled:
    """A region as a callable: ONNX Runtime forward, and backward where a gradient is asked for."""

    def __init__(
        self, module: torch.fx.GraphModule, inputs: tuple[Any, ...], region: Region, rewrite: Rewrite
    ) -> None:  # fmt: skip
        for value in inputs:
            if not isinstance(value, torch.Tensor):
                raise Unsupported(f"an input is {type(value).__name__}: sizes vary from call to call")
            if value.device.type != "cpu" or value.layout is not torch.strided or value.is_complex():
                raise Unsupported(f"an input is on {value.device}, {value.layout}, {value.dtype}")
        self.module, self.region, self.rewrite = module, region, rewrite
        plain = tuple(v.detach() for v in inputs)
        expected = _tensors(tried(module, plain))
        graph = exported(module, plain)
        if len(graph.inputs) != len(inputs):
            raise Unsupported(f"of {len(inputs)} inputs {len(graph.inputs)} are left in what is exported")
        self.graph = graph
        self.names = [v.name for v in graph.inputs]
        self.outputs = [v.name for v in graph.outputs]
        region.graph = rewrite(graph)
        self.session = make_session(to_onnx_bytes(region.graph))
        self.shape = _shape_of(module, len(self.outputs))
        self.back: dict[tuple[bool, ...], Any] = {}
        self.shapes = tuple(expected)
        self.check(plain, expected)

    def check(self, inputs: tuple[torch.Tensor, ...], expected: Sequence[torch.Tensor]) -> None:
        """Compare with what the region itself gave.

        Raises:
            Unsupported: it gives something else.
        """
        for got, want in zip(self.forward(inputs), expected, strict=True):
            scale = float(want.abs().max()) if want.numel() and want.is_floating_point() else 1.0
            near = got.shape == want.shape and got.dtype == want.dtype
            if not near or not torch.allclose(got, want, rtol=1e-3, atol=1e-4 * max(scale, 1e-3), equal_nan=True):
                raise Unsupported("what is exported gives something else than the region")

    def __call__(self, *inputs: torch.Tensor) -> Any:
        if torch.is_grad_enabled() and any(v.requires_grad for v in inputs):
            return self.shape(_Differentiable.apply(self, *inputs))
        return self.shape(self.forward(inputs))

    def forward(self, inputs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        feeds = {n: v.detach().contiguous().numpy() for n, v in zip(self.names, inputs, strict=True)}
        return tuple(torch.from_numpy(np.asarray(v)) for v in self.session.run(self.outputs, feeds))

    def backward(self, needed: tuple[bool, ...], inputs: Sequence[torch.Tensor], given: Sequence[Any]) -> list[Any]:
        """Gradients of the inputs that need them, from those of the outputs (``None``: 0)."""
        if needed not in self.back:
            self.back[needed] = self.reverse(needed)
        made = self.back[needed]
        if made is None:
            return self.own_backward(needed, inputs, given)
        session, of, to = made
        feeds = {n: v.detach().contiguous().numpy() for n, v in zip(self.names, inputs, strict=True)}
        kinds = dict(zip(self.outputs, zip(self.shapes, given, strict=True), strict=True))
        for name in of:
            like, g = kinds[name]
            feeds[f"cotangent {name}"] = (torch.zeros_like(like) if g is None else g).detach().contiguous().numpy()
        there = {i.name for i in session.get_inputs()}
        values = session.run([f"d/d {n}" for n in to], {n: v for n, v in feeds.items() if n in there})
        found = dict(zip(to, (torch.from_numpy(np.asarray(v)) for v in values), strict=True))
        return [found.get(n) if need else None for n, need in zip(self.names, needed, strict=True)]

    def reverse(self, needed: tuple[bool, ...]) -> Any:
        """The backward pass for these inputs as a session, or ``None`` where superopt cannot differentiate it."""
        to = [n for n, need in zip(self.names, needed, strict=True) if need]
        of = [n for n, like in zip(self.outputs, self.shapes, strict=True) if like.is_floating_point()]
        try:
            session = make_session(to_onnx_bytes(self.rewrite(vjp(self.graph, of, to))))
        except SuperoptError as reason:
            self.region.backward = f"PyTorch's own: {printable(str(reason), 200)}"
            return None
        self.region.backward = "graph"
        return session, of, to

    def own_backward(self, needed: tuple[bool, ...], inputs: Sequence[torch.Tensor], given: Sequence[Any]) -> list[Any]:
        """Gradients by running the region again under PyTorch's autograd."""
        with torch.enable_grad():
            leaves = [v.detach().requires_grad_(need) for v, need in zip(inputs, needed, strict=True)]
            results = _tensors(self.module(*leaves))
            pairs = [(y, g) for y, g in zip(results, given, strict=True) if g is not None and y.requires_grad]
            wanted = [v for v, need in zip(leaves, needed, strict=True) if need]
            grads = torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
        rest = iter(grads)
        return [next(rest) if need else None for need in needed]


class _Differentiable(torch.autograd.Function):
    """A region under autograd."""

    @staticmethod
    def forward(ctx: Any, compiled: _Compiled, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = compiled.forward(inputs)
        ctx.compiled = compiled
        ctx.save_for_backward(*inputs)
        ctx.mark_non_differentiable(*(y for y in results if not y.is_floating_point()))
        return results

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *given: Any) -> tuple[Any, ...]:
        needed = tuple(ctx.needs_input_grad[1:])
        return (None, *ctx.compiled.backward(needed, ctx.saved_tensors, given))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [value] if isinstance(value, torch.Tensor) else [v for v in value if isinstance(v, torch.Tensor)]


def _shape_of(module: torch.fx.GraphModule, count: int) -> Callable[[tuple[torch.Tensor, ...]], Any]:
    """How the region gives its results: one, or several with what is no tensor among them.

    Raises:
        Unsupported: what is exported has another number of results.
    """
    (output,) = (n for n in module.graph.nodes if n.op == "output")
    result = output.args[0]
    if not isinstance(result, tuple | list):
        return lambda values: values[0]
    places = [isinstance(r, torch.fx.Node) for r in result]
    if sum(places) != count:
        raise Unsupported(f"of {sum(places)} results {count} are left in what is exported")

    def shape(values: tuple[torch.Tensor, ...]) -> Any:
        given = iter(values)
        return type(result)(next(given) if there else r for there, r in zip(places, result, strict=True))

    return shape
