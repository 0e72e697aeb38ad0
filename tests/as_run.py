"""What ONNX Runtime makes of a model before and after the search, with all of its own optimisations off."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from roofline import Roofline
from rules_for_tests import rules

from superopt.formats import to_onnx_bytes
from superopt.ir.graph import Graph, Value
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, SearchResult, search
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule
from superopt.runtime.onnx_runtime import make_session, run

__all__ = ["OPTIONS", "RULES", "as_run", "searched", "typed", "values_as_run"]

OPTIONS = SearchOptions(cache=False, least_gain=0.0, time_limit=900.0)
FACTORS = parse_rule({
    "id": "factors", "forall": {"x": "f[..., n]", "s": "f[]", "t": "f[]"}, "lhs": ["Mul(Mul(x, s), t)"],
    "rhs": ["Mul(x, Mul(s, t))"],
})  # fmt: skip
RULES = (*rules(), FACTORS)


def typed(model: Graph) -> Graph:
    """The model with the types of its outputs, which ONNX asks for."""
    types = infer(model).types
    return replace(model, outputs=tuple(replace(v, type=v.type or types[v.name]) for v in model.outputs))


def as_run(model: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return run(make_session(to_onnx_bytes(model), optimise=False), feeds)


def values_as_run(model: Graph, names: list[str], feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Values inside a model, as its own session makes them: they are outputs besides."""
    types = infer(model).types
    shown = tuple(Value(n, types[n]) for n in names if n not in {v.name for v in model.outputs})
    return as_run(replace(typed(model), outputs=(*typed(model).outputs, *shown)), feeds)


def searched(model: Graph, given: tuple[Rule, ...] = RULES) -> SearchResult:
    """The search's result, valid in ONNX's own eyes, with the signature that the model had."""
    model = typed(model)
    result = search(model, given, Roofline(), OPTIONS)
    onnx.checker.check_model(onnx.ModelProto.FromString(to_onnx_bytes(result.graph)), full_check=True)
    assert [(v.name, v.type) for v in result.graph.inputs] == [(v.name, v.type) for v in model.inputs]
    assert [(v.name, v.type) for v in result.graph.outputs] == [(v.name, v.type) for v in model.outputs]
    return result
