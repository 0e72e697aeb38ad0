"""The memory of models of unusual kinds: without nodes, without inputs, with inputs that are no tensors."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import f32, graph, op
from onnx import TypeProto

from superopt.ir.errors import InvalidModel, Unsupported
from superopt.ir.graph import constant
from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, OpaqueType, TensorType, ValueType
from superopt.pipeline.memory_timeline import footprint

SEQUENCE = TypeProto(sequence_type=TypeProto.Sequence())
SEQUENCE.sequence_type.elem_type.tensor_type.elem_type = 1


@pytest.mark.parametrize(
    ("model", "held"),
    [
        (graph({"x": f32(2, 3)}, ["x"], [], []), 24),
        (graph({}, ["y"], [constant("w", np.ones(4, np.float32))], [op("Relu", "y", "w")]), 0),
    ],
    ids=["no nodes", "no inputs"],
)
def test_a_model_that_computes_nothing_takes_what_it_is_fed(model, held: int) -> None:
    found = footprint(model)
    assert (found.plan.block, sum(kind.nbytes or 0 for n, kind in found.known.items() if n == "x")) == (0, held)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(OpaqueType(SEQUENCE.SerializeToString()), "is no tensor"), (TensorType(DType.FLOAT32, None), "of unknown rank")],
)
def test_an_input_without_sizes_is_told(kind: ValueType, said: str) -> None:
    nodes = [op("SequenceLength" if "tensor" in said else "Relu", "y", "x")]
    with pytest.raises(Unsupported, match=f"'x' is {said.removeprefix('is ')}"):
        footprint(graph({"x": kind}, ["y"], [], nodes))


def test_a_model_for_other_sizes_names_those_at_which_it_was_counted() -> None:
    nodes = [op("Add", "a", "x", "w"), op("NonZero", "y", "a")]  # of whose sizes only a run knows
    model = graph({"x": f32(sym("N"), 2)}, ["y"], [constant("w", np.ones((5, 2), np.float32))], nodes)
    with pytest.raises(InvalidModel, match="N=8; other sizes: --dim"):
        footprint(model)
    assert footprint(model, sizes={"N": 5}).known["a"].shape == (5, 2)
