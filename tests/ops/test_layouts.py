"""Every form of every operator in another layout computes what the operator does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import CanonicalNode, infer
from superopt.passes.layouts.operator_layouts import Layout, OperatorLayout, forms, in_layout, layout_of, unchanged
from superopt.runtime.reference import evaluate_application

PERMS = (
    (1, 0), (0, 2, 1), (2, 0, 1), (0, 3, 1, 2), (0, 2, 3, 1), (0, 2, 1, 3), (0, 4, 1, 2, 3), (0, 2, 3, 4, 1),
)  # fmt: skip
LAYOUTS = tuple(map(layout_of, PERMS))


def laid_out(array: np.ndarray, layout: Layout) -> np.ndarray:
    own = [a for a in layout if -a <= array.ndim]
    moved = array.transpose([a + array.ndim for a in own])
    return moved.reshape([array.shape[a] if -a <= array.ndim else 1 for a in layout])


def forms_of(sample: Any) -> tuple[CanonicalNode, list[np.ndarray | None], tuple[OperatorLayout, ...]]:
    graph = sample.graph()
    typing = infer(graph)
    (found,) = typing.nodes
    assert isinstance(found, CanonicalNode), found
    kinds = tuple(None if a is None else typing.types[a] for a in found.args)
    arrays = [None if a is None else sample.arrays[int(a[1:])] for a in found.args]
    return found, arrays, forms(found.operator, tuple(sorted(found.attributes.items())), kinds, LAYOUTS)


def test_a_form_computes_what_the_operator_does(sample: Any) -> None:
    found, arrays, made = forms_of(sample)
    own, *others = made
    assert own.attributes == tuple(sorted(found.attributes.items()))
    if not others:
        return
    kinds = [None if a is None else TensorType(DType.of(a.dtype), a.shape) for a in arrays]
    expected = evaluate_application(found.operator, found.attributes, arrays, kinds, cast=False)
    for form in others:
        moved = [None if a is None else laid_out(a, p) for a, p in zip(arrays, form.operands, strict=True)]
        types = [None if k is None else in_layout(k, p) for k, p in zip(kinds, form.operands, strict=True)]
        results = evaluate_application(found.operator, dict(form.attributes), moved, types, cast=False)
        for want, layout, got in zip(expected, form.results, results, strict=True):
            np.testing.assert_allclose(got, laid_out(np.asarray(want), layout), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["Add", "Clip", "Concat", "PRelu", "Pad", "ReduceMean", "Slice", "Softmax", "Split"])
def test_operators_that_have_axes_have_forms(name: str, samples: list[Any]) -> None:
    found = [form for s in samples if s.op == name for form in forms_of(s)[2]]
    assert any(layout is not None and layout != unchanged(len(layout)) for f in found for layout in f.operands)


def test_operators_of_one_layout_have_no_forms(samples: list[Any]) -> None:
    for sample in (s for s in samples if s.op in ("Conv", "MaxPool", "BatchNormalization")):
        own, *others = forms_of(sample)[2]
        assert all(f.results == own.results for f in others), sample  # windows over both axes of the image may change
