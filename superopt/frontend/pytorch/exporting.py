"""A module as a graph, by PyTorch's own export to ONNX."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from superopt.formats import from_onnx
from superopt.ir.errors import Unsupported, printable
from superopt.ir.graph import Graph, constant

__all__ = ["exported", "from_torch", "tried"]

OPSET = 20


def from_torch(module: torch.nn.Module, example_inputs: Sequence[Any]) -> Graph:
    """A module's graph for inputs of these shapes and types, with its parameters as weights.

    Args:
        module: in the mode, training or not, that it is wanted in.
        example_inputs: positional arguments of a call.

    Raises:
        Unsupported: PyTorch cannot export it, or a call changes what it is given or draws random numbers.
    """
    inputs = tuple(example_inputs)
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
    kept = tuple(w for w in (*weights, *graph.weights) if w.name in used)
    return replace(graph, inputs=graph.inputs[: len(inputs)], nodes=nodes, weights=kept).checked()


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
        with quiet(), torch.no_grad():
            program = torch.export.export(module, inputs, strict=False)
            refuse_effects(program)
            proto = torch.onnx.export(program, dynamo=True, opset_version=OPSET, verbose=False).model_proto
    except Unsupported:
        raise
    except Exception as error:  # whatever the exporter runs into, the module can still run as it is
        first = str(error).strip().splitlines()
        raise Unsupported(f"PyTorch does not export it: {printable(first[0] if first else repr(error), 200)}") from None
    return replace(from_onnx(proto), doc="", metadata={})


def refuse_effects(program: Any) -> None:
    """Refuse what a graph of values does not say: changed buffers and inputs.

    Raises:
        Unsupported: there is some.
    """
    signature = program.graph_signature
    changed = [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]
    if changed:
        raise Unsupported(f"it changes {', '.join(map(str, changed[:4]))}")


def tried(module: torch.nn.Module, inputs: tuple[Any, ...]) -> Any:
    """What a call on copies of the inputs gives, if it changes none of them and draws no random numbers.

    Raises:
        Unsupported: it does.
    """
    copies = tuple(v.clone() if isinstance(v, torch.Tensor) else v for v in inputs)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        result = module(*copies)
        drawn = not torch.equal(before, torch.get_rng_state())
    if drawn:
        raise Unsupported("it draws random numbers")
    for place, (old, new) in enumerate(zip(inputs, copies, strict=True)):
        if isinstance(old, torch.Tensor) and not torch.equal(torch.nan_to_num(old), torch.nan_to_num(new)):
            raise Unsupported(f"it changes its input {place}")
    return result


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporter says on the way."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
