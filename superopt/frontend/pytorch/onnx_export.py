"""A module as a graph, by PyTorch's own export to ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from superopt.formats import from_onnx
from superopt.frontend.pytorch.exchange import overlap
from superopt.ir.errors import InvalidOption, Unsupported, UsageError, printable
from superopt.ir.graph import Graph, constant

__all__ = [
    "ParameterLiftedModule",
    "FunctionalizedModule",
    "RegionSideEffects",
    "exported",
    "from_torch",
    "tensors",
    "trial",
    "tried",
]

OPSET = 20
_QUIET = threading.RLock()


def from_torch(module: torch.nn.Module, example_inputs: Sequence[Any] | torch.Tensor) -> Graph:
    """A module's graph for inputs of these shapes and types, with its parameters as weights.

    Args:
        module: in the mode, training or not, that it is wanted in.
        example_inputs: positional arguments of a call; a tensor is the only one.

    Raises:
        UsageError: the example inputs are no sequence of arguments, or a call with them fails.
        Unsupported: PyTorch cannot export it, or a call changes what it is given or draws random numbers.
    """
    inputs = arguments(example_inputs)
    with buffers_kept(module):
        tried(module, inputs)
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    apart = _WithoutState(module, tuple(held), len(inputs))
    graph = exported(apart, (*inputs, *(v.detach() for v in held.values())))
    if len(graph.inputs) != len(inputs) + len(held):
        raise Unsupported("what is exported does not read all inputs and parameters")
    names = {v.name: name for v, name in zip(graph.inputs[len(inputs) :], held, strict=True)}
    taken = {o for n in graph.nodes for o in n.outputs} | {v.name for v in graph.inputs} - names.keys()
    names = {old: new for old, new in names.items() if new not in taken}

    def new(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(v, v) for v in values)

    arrays = zip(graph.inputs[len(inputs) :], held.values(), strict=True)
    weights = [constant(names.get(v.name, v.name), a.detach().numpy().copy()) for v, a in arrays]
    nodes = tuple(replace(n, inputs=new(n.inputs)) for n in graph.nodes)
    used = {name for n in nodes for name in n.inputs}
    kept_weights = tuple(w for w in (*weights, *graph.weights) if w.name in used)
    return replace(graph, inputs=graph.inputs[: len(inputs)], nodes=nodes, weights=kept_weights).checked()


@contextlib.contextmanager
def buffers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Put a module's buffers back: a call in training mode writes running statistics to them."""
    before = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def arguments(example_inputs: Any) -> tuple[Any, ...]:
    """The positional arguments of a call; a tensor by itself is the only one.

    Raises:
        InvalidOption: it is neither.
    """
    if isinstance(example_inputs, torch.Tensor):
        return (example_inputs,)
    if not isinstance(example_inputs, tuple | list):
        raise InvalidOption(
            f"{type(example_inputs).__name__} is no tuple of arguments", where="example_inputs",
            option="example_inputs", hint="write example_inputs=(x,)",
        )  # fmt: skip
    return tuple(example_inputs)


class _WithoutState(torch.nn.Module):
    """A module whose parameters and buffers are arguments, so that the exporter does not compute with them."""

    def __init__(self, module: torch.nn.Module, names: tuple[str, ...], inputs: int) -> None:
        super().__init__()
        self.inner = [module]  # in a list, so that they are not this module's own
        self.names, self.inputs = names, inputs

    def forward(self, *values: Any) -> Any:
        held = dict(zip(self.names, values[self.inputs :], strict=True))
        return torch.func.functional_call(self.inner[0], held, values[: self.inputs])


def exported(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Graph:
    """The graph of a call that has no effects; see :func:`from_torch`."""
    try:
        with quiet(), levels_kept(), torch.no_grad():
            program = torch.export.export(module, inputs, strict=False)
            refuse_effects(program)
            proto = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False).model_proto
    except Unsupported:
        raise
    except Exception as error:  # whatever the exporter runs into, the module can still run as it is
        raise Unsupported(f"PyTorch does not export it: {printable(root_of(error), 200)}") from None
    return replace(from_onnx(proto), doc="", metadata={})


def root_of(error: BaseException) -> str:
    """What an error says that it comes from, in one line: the exporter wraps them in advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else repr(error)


@contextlib.contextmanager
def levels_kept() -> Iterator[None]:
    """Leave the levels of ``torch.func`` that a call enters and, where it fails, does not leave."""
    depth = torch._C._functorch.get_dynamic_layer_stack_depth()
    try:
        yield
    finally:
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def refuse_effects(program: Any) -> None:
    """Refuse what a graph of values does not say: changed buffers and inputs.

    Raises:
        Unsupported: there is some.
    """
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise Unsupported(f"it changes {', '.join(map(str, changed[:4]))}")


@dataclass(frozen=True)
class RegionSideEffects:
    """What a call on copies of its inputs did.

    Attributes:
        results: the tensors that it gave.
        drawn: it drew random numbers.
        changed: what the inputs that it wrote to are after it, by position.
        shared: it gave a view of an input, or two of the same memory.
    """

    results: tuple[torch.Tensor, ...]
    drawn: bool
    changed: Mapping[int, torch.Tensor]
    shared: bool


def trial(module: Callable[..., Any], inputs: tuple[Any, ...]) -> RegionSideEffects:
    """Call a module on copies of its inputs, without gradients; random numbers that it draws are put back."""
    copies = tuple(v.detach().clone() if isinstance(v, torch.Tensor) else v for v in inputs)
    versions = [v._version if isinstance(v, torch.Tensor) else 0 for v in copies]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        results = tensors(module(*copies))
        drawn = not torch.equal(before, torch.get_rng_state())
    changed = {
        p: v for p, (v, old, version) in enumerate(zip(copies, inputs, versions, strict=True))
        if isinstance(v, torch.Tensor) and (v._version != version or not _same(v, old))
    }  # fmt: skip
    shared = overlap([v for v in (*copies, *results) if isinstance(v, torch.Tensor)])
    return RegionSideEffects(tuple(results), drawn, changed, shared)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether elements are equal; running statistics are written to without a new version."""
    return torch.equal(torch.nan_to_num(a.detach()), torch.nan_to_num(b.detach()))


def tried(module: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    """Make sure that a call changes nothing of what it is given, and draws no random numbers.

    Raises:
        Unsupported: it does.
    """
    try:
        found_trial = trial(module, inputs)
    except Exception as error:  # whatever the module raises of its own
        raise UsageError(
            f"the module cannot be called with them: {printable(str(error).strip() or type(error).__name__, 300)}",
            where="example_inputs",
        ) from error
    if found_trial.drawn:
        raise Unsupported("it draws random numbers")
    if found_trial.changed:
        raise Unsupported(f"it changes its input {min(found_trial.changed)}")


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors among results."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [v for v in value if isinstance(v, torch.Tensor)] if isinstance(value, tuple | list) else []


class ParameterLiftedModule(torch.nn.Module):
    """A region as a function of what it holds, too: parameters and buffers, which others may change between calls.

    Args:
        module: the region.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self._own = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }

    @property
    def held(self) -> tuple[torch.Tensor, ...]:
        """What it holds, the last of its arguments."""
        return tuple(self._own.values())

    def forward(self, *values: Any) -> Any:
        if not self._own:
            return self.module(*values)
        count = len(values) - len(self._own)
        return torch.func.functional_call(
            self.module, dict(zip(self._own, values[count:], strict=True)), values[:count], tie_weights=False
        )


class FunctionalizedModule(torch.nn.Module):
    """A region as a function of its tensors alone: what it writes to is a copy, and a further result.

    Args:
        module: the region.
        fixed: arguments that are no tensors, by position.
        count: of all arguments.
        changed: positions of those that it writes to.
    """

    def __init__(
        self, module: torch.nn.Module, fixed: Mapping[int, Any], count: int, changed: tuple[int, ...] = ()
    ) -> None:  # fmt: skip
        super().__init__()
        self.module, self.fixed, self.count, self.changed = module, dict(fixed), count, changed

    def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        given = iter(values)
        whole = [self.fixed[p] if p in self.fixed else next(given) for p in range(self.count)]
        for position in self.changed:
            whole[position] = whole[position].clone()
        with ExportDecompositionMode():
            results = tensors(self.module(*whole))
        return (*results, *(whole[p] for p in self.changed))


class ExportDecompositionMode(TorchFunctionMode):
    """Functions by others, where PyTorch's exporter is wrong or writes an operator that is not differentiated.

    Normalisation of batches in training is exported as that at inference; cross entropy as one operator.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.batch_norm:
            return _batch_norm(func, *args, **(kwargs or {}))
        if func is torch.nn.functional.cross_entropy:
            return _cross_entropy(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _cross_entropy(
    func: Any, input: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    """``torch.nn.functional.cross_entropy`` of class indices; with weights or smoothing it is left as it is."""
    plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    if not plain or target.is_floating_point() or input.dim() < 2:
        return func(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
    counted = target != ignore_index
    chosen = torch.where(counted, target, 0).unsqueeze(1)
    each = torch.where(counted, -torch.log_softmax(input, 1).gather(1, chosen).squeeze(1), 0.0)
    if reduction == "none":
        return each
    return each.sum() if reduction == "sum" else each.sum() / counted.to(input.dtype).sum()


def _batch_norm(
    func: Any, x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None,
    training: bool = False, momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """``torch.nn.functional.batch_norm``; the running variance is the unbiased one."""
    if not training:
        return func(x, running_mean, running_var, weight, bias, training, momentum, eps)
    axes = [a for a in range(x.dim()) if a != 1]
    shape = [x.shape[1] if a == 1 else 1 for a in range(x.dim())]
    mean = x.mean(axes)
    centred = x - mean.view(shape)
    var = (centred * centred).mean(axes)
    y = centred * (1 / torch.sqrt(var + eps)).view(shape)
    count = x.numel() // x.shape[1]
    for running, value in ((running_mean, mean), (running_var, var * (count / max(count - 1, 1)))):
        if running is not None:
            running.copy_(running * (1 - momentum) + value.detach() * momentum)
    y = y if weight is None else y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporter says on the way; one thread at a time: streams and warnings are the process's."""
    with _QUIET:
        yield from _silenced()


def _silenced() -> Iterator[None]:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
