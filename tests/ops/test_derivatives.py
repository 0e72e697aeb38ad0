"""Derivatives of every operator at random attributes: against differences in float64, each other, and second order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from superopt.frontend.autodiff import gradients, hessian_vector
from superopt.frontend.training.step import with_loss
from superopt.ir.terms import OperatorTerm, computed
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.ops.derivative.declarations import DECLARED
from superopt.ops.derivative.pullback_pushforward import is_still, pull, push
from superopt.ops.derivative.typed_terms import DifferentiationSite, NotDifferentiable, TypedTerm, variable
from superopt.ops.operator_definition import Operator
from superopt.ops.shape_inference import CanonicalNode, infer
from superopt.runtime.reference import evaluate_application, run
from superopt.verifier.prover.gradients import cases

STEP = 1e-6


def site_of(sample: Any) -> tuple[Operator, DifferentiationSite, list[np.ndarray | None]]:
    """The sample as a site, its real operands moving, and the operands in float64."""
    graph = sample.graph()
    (found,) = infer(graph).nodes
    assert isinstance(found, CanonicalNode), found
    types = infer(graph).types
    args, arrays = [], []
    for name in found.args:
        array = None if name is None else sample.arrays[int(name[1:])]
        args.append(None if name is None else variable(name, types[name]))
        real = array is not None and types[name].dtype.is_float
        arrays.append(array.astype(np.float64) if real else array)
    wanted = frozenset(p for p, a in enumerate(args) if a is not None and a.type.dtype.is_float)
    return found.operator, DifferentiationSite(found.operator.name, tuple(args), found.attributes, wanted), arrays


def rounds(sample: Any) -> bool:
    """Whether nothing is there to move: a cast to integers, or tensors without elements."""
    return sample.op in ("Cast", "CastLike") or any(a is not None and a.size == 0 for a in sample.arrays)


def is_refused(sample: Any) -> bool:
    """Whether the operator has no derivative that a training could follow; asked for one, it says why."""
    declared = DECLARED.get(sample.op)
    if declared is None or not declared.refused:
        return False
    _, site, _ = site_of(sample)
    with pytest.raises(NotDifferentiable, match=declared.refused):
        pull(site, [variable(f"c{p}", y.type) for p, y in enumerate(site.outputs())])
    return True


def evaluated(exprs: Sequence[TypedTerm], given: dict[str, tuple[np.ndarray, TensorType]]) -> list[np.ndarray]:
    """Terms in float64, from the meanings of their operators."""

    def compute(app: OperatorTerm, operands: list[Any]) -> Sequence[Any]:
        arrays = [None if o is None else o[0] for o in operands]
        types = [None if o is None else o[1] for o in operands]
        _, results = REGISTRY[app.op].apply(types, dict(app.attributes))
        found = evaluate_application(REGISTRY[app.op], dict(app.attributes), arrays, types, cast=False)
        return [(array, kind) for array, kind in zip(found, results, strict=True)]

    values = computed([e.term for e in exprs], given, compute)
    return [values[e.term][0] for e in exprs]


def test_both_modes_agree_with_differences_and_each_other(sample: Any) -> None:
    operator, site, arrays = site_of(sample)
    if is_refused(sample):
        return
    if not site.wanted or is_still(site):
        assert operator.name not in cases() or rounds(sample) or not site.wanted
        return
    source = np.random.default_rng(3)
    tangents = [source.standard_normal(a.shape) if p in site.wanted else None for p, a in enumerate(arrays)]
    tangent_exprs = [None if t is None else variable(f"t{p}", site.arg(p).type) for p, t in enumerate(tangents)]
    given = {str(a.term): (x, a.type) for a, x in zip(site.args, arrays, strict=True) if a is not None}
    given |= {f"t{p}": (t, site.arg(p).type) for p, t in enumerate(tangents) if t is not None}
    outputs = site.outputs()
    cotangents = [source.standard_normal(tuple(map(int, y.shape))) for y in outputs]
    given |= {f"c{p}": (c, y.type) for p, (c, y) in enumerate(zip(cotangents, outputs, strict=True))}

    moved = push(site, tangent_exprs)
    assert all(m is not None for m in moved)
    forward = evaluated([m for m in moved if m is not None], given)
    pulled = pull(site, [variable(f"c{p}", y.type) for p, y in enumerate(outputs)])
    backward = dict(zip(pulled, evaluated(list(pulled.values()), given), strict=True))

    kinds = [None if a is None else a.type for a in site.args]

    def at(step: float) -> list[np.ndarray]:
        there = [a if t is None else a + step * t for a, t in zip(arrays, tangents, strict=True)]
        found = evaluate_application(operator, dict(site.attributes), there, kinds, cast=False)
        return [y for y in found if y is not None]

    for expected_above, expected_below, tangent, y in zip(at(STEP), at(-STEP), forward, outputs, strict=True):
        assert tangent.shape == tuple(map(int, y.shape))
        difference = (expected_above - expected_below) / (2 * STEP)
        np.testing.assert_allclose(tangent, difference, rtol=2e-4, atol=2e-6)
    for place, array in backward.items():
        assert array.shape == arrays[place].shape
    left = sum(float((c * m).sum()) for c, m in zip(cotangents, forward, strict=True))
    right = sum(float((backward[p] * tangents[p]).sum()) for p in backward)
    assert left == pytest.approx(right, rel=1e-9, abs=1e-9)


def test_second_order_agrees_with_differences_of_gradients(newer: Any) -> None:
    """The Hessian of a squared distance times a vector, on the samples of newer opsets."""
    operator, site, _ = site_of(newer)
    if is_refused(newer) or not site.wanted or is_still(site) or operator.name in ("Cast", "CastLike"):
        return
    graph = newer.graph()
    types = infer(graph).types
    graph = replace(graph, outputs=tuple(replace(v, type=types[v.name]) for v in graph.outputs))
    loss, name, targets = with_loss(graph, "mse", None)
    moving = [v.name for v in loss.inputs if v.name not in targets and v.type.dtype.is_float]
    source = np.random.default_rng(5)
    point = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in newer.feeds.items()}
    wide = {v.name: source.standard_normal(tuple(map(int, v.type.shape))) for v in loss.inputs if v.name in targets}
    vectors = {n: source.standard_normal(point[n].shape) for n in moving}
    try:
        second = run(
            hessian_vector(loss, name, moving), {**point, **wide, **{f"tangent {n}": v for n, v in vectors.items()}}
        )
    except NotDifferentiable as reason:
        pytest.fail(str(reason))
    first = gradients(loss, [name], moving)

    def at(step: float) -> dict[str, np.ndarray]:
        return run(first, {**wide, **{n: a + step * vectors[n] if n in vectors else a for n, a in point.items()}})

    above, below = at(STEP), at(-STEP)
    for n in moving:
        difference = (above[f"d {name}/d {n}"] - below[f"d {name}/d {n}"]) / (2 * STEP)
        np.testing.assert_allclose(second[f"H tangent {n}"], difference, rtol=2e-3, atol=2e-5)


def test_every_operator_has_a_statement_or_does_not_move(samples: list[Any]) -> None:
    stated = set(cases())
    assert stated <= set(REGISTRY)
    still = set(REGISTRY) - stated
    seen = dict.fromkeys(still, 0)
    for sample in samples:
        if sample.op in still:
            _, site, _ = site_of(sample)
            assert not site.wanted or is_still(site) or is_refused(sample), sample
            seen[sample.op] += 1
    assert all(seen.values()), [name for name, count in seen.items() if not count]


def test_a_kink_takes_what_is_said_of_it() -> None:
    """Relu has 0 at 0, LeakyRelu its slope, Clip 0 below and 1 above, Abs 0; equal maxima share."""

    def slope(op: str, at: Sequence[float], **attributes: Any) -> list[float]:
        kind = TensorType(REGISTRY["Relu"].apply([FLOAT], {})[1][0].dtype, (len(at),))
        site = DifferentiationSite(op, (variable("x", kind),), attributes, frozenset({0}))
        (found,) = push(site, [variable("t", kind)])
        assert found is not None
        x = np.array(at, np.float64)
        (value,) = evaluated([found], {"x": (x, kind), "t": (np.ones_like(x), kind)})
        return value.tolist()

    from superopt.ir.types import DType

    FLOAT = TensorType(DType.FLOAT32, (1,))
    assert slope("Relu", [-1, 0, 1]) == [0, 0, 1]
    assert slope("LeakyRelu", [-1, 0, 1], alpha=0.25) == [0.25, 0.25, 1]
    assert slope("Clip", [-1, 0, 3, 6, 7], min=0.0, max=6.0) == [0, 0, 1, 1, 0]
    assert slope("Abs", [-1, 0, 1]) == [-1, 0, 1]
    kind = TensorType(DType.FLOAT32, (3,))
    site = DifferentiationSite("ReduceMax", (variable("x", kind),), {"axes": (0,), "keepdims": 0}, frozenset({0}))
    pulled = pull(site, [variable("c", TensorType(DType.FLOAT32, ()))])[0]
    (value,) = evaluated(
        [pulled], {"x": (np.array([2.0, 1.0, 2.0]), kind), "c": (np.array(1.0), TensorType(DType.FLOAT32, ()))}
    )
    assert value.tolist() == [0.5, 0, 0.5]


@pytest.mark.parametrize("op", ["Sigmoid", "Softplus", "Mish", "Swish", "Elu", "Celu", "Selu", "HardSwish", "Gelu"])
def test_slopes_are_finite_where_exponentials_overflow(op: str) -> None:
    """In float32, at ±1000, the emitted graphs give numbers."""
    import onnxruntime

    from superopt.formats import to_onnx_bytes
    from superopt.frontend import GraphBuilder

    b = GraphBuilder("g", opset=24 if op == "Swish" else 21)
    b.output(b.op(op, b.input("x", "float32", (4,))), "y")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(to_onnx_bytes(gradients(b.build())), options)
    except onnxruntime.capi.onnxruntime_pybind11_state.Fail:
        pytest.skip(f"this ONNX Runtime does not have opset {24 if op == 'Swish' else 21}")
    (found,) = session.run(None, {"x": np.array([-1000, -100, 100, 1000], np.float32)})
    assert np.isfinite(found).all()
    assert found[3] == pytest.approx({"Sigmoid": 0.0, "Selu": 1.0507}.get(op, 1.0), rel=1e-3)
