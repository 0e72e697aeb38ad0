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
from superopt.ir.graph import Graph

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
    graph = exported(module, inputs)
    tried(module, inputs)
    return graph


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
