"""Tensors between PyTorch and ONNX Runtime: what can be exchanged, how it lies in memory, when it is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from superopt.ir.errors import Unsupported

__all__ = ["all_finite", "array_of", "check_type", "laid_out", "leaves_of", "near", "overlap", "shape_of", "tensor_of"]

TYPES = (
    torch.float16, torch.float32, torch.float64, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
    torch.int64,
)  # fmt: skip


def check_type(value: torch.Tensor, what: str) -> None:
    """Raise :class:`Unsupported` for what cannot be exchanged with ONNX Runtime."""
    if value.device.type != "cpu" or value.layout is not torch.strided or value.dtype not in TYPES:
        raise Unsupported(f"{what}s are on {value.device}, {value.layout}, {value.dtype}")
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise Unsupported(f"{what}s are {type(value).__name__}")


def near(got: torch.Tensor, want: torch.Tensor, *, least: float = 0.0) -> bool:
    """Equal up to rounding: 1 in 1,000 of an element, or 1 in 10,000 of the largest, or ``least``."""
    scale = float(want.detach().abs().max()) if want.numel() and want.is_floating_point() else 1.0
    finite = scale if np.isfinite(scale) else 1.0
    slack = max(1e-4 * max(finite, 1e-3), least if np.isfinite(least) else 0.0)
    return torch.allclose(got, want.detach(), rtol=1e-3, atol=slack, equal_nan=True)


def laid_out(value: torch.Tensor, stride: tuple[int, ...] | None) -> torch.Tensor:
    """The same elements at other distances in memory, as the region gives them."""
    if stride is None or value.numel() < 2 or value.stride() == stride:
        return value
    return torch.empty_strided(value.shape, stride, dtype=value.dtype).copy_(value)


def leaves_of(value: torch.Tensor) -> set[int]:
    """Identities of the leaves that autograd reaches from a tensor."""
    found, seen, stack = set[int](), set[Any](), [value.grad_fn]
    if value.grad_fn is None and value.requires_grad:
        return {id(value)}
    while stack:
        here = stack.pop()
        if here is None or here in seen:
            continue
        seen.add(here)
        if here.name() == "torch::autograd::AccumulateGrad":
            found.add(id(here.variable))
        stack.extend(step for step, _ in here.next_functions)
    return found


def array_of(value: torch.Tensor) -> np.ndarray:
    array: np.ndarray = value.detach().resolve_conj().resolve_neg().contiguous().numpy()
    return array


def tensor_of(value: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(value))


def shape_of(module: torch.fx.GraphModule, count: int) -> Callable[[Sequence[torch.Tensor]], Any]:
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

    def shape(values: Sequence[torch.Tensor]) -> Any:
        given = iter(values)
        return type(result)(next(given) if there else r for there, r in zip(places, result, strict=True))

    return shape


def all_finite(values: Sequence[torch.Tensor]) -> bool:
    """Whether no element is infinite or NaN; either shows in the sum, which may overflow besides."""
    return all(
        not v.is_floating_point() or bool(torch.isfinite(v.sum())) or bool(torch.isfinite(v).all()) for v in values
    )


def overlap(values: Sequence[torch.Tensor]) -> bool:
    """Whether two of them lie in the same memory."""
    places = [v.untyped_storage().data_ptr() for v in values if v.numel()]
    return len(set(places)) < len(places)
