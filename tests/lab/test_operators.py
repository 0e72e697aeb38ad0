"""Operators that are drawn for a profile: every one that takes time, and the same on every run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from lab.operator_models import drawn, plan
from superopt import formats
from superopt.cost.measurement_record import question_of
from superopt.ops import REGISTRY

EACH = 3


def test_every_operator_that_takes_time_is_drawn_as_often() -> None:
    counts = Counter(question.op for question in drawn(7, EACH))
    assert {n for n in REGISTRY if counts[n] < EACH} == {
        "CastLike", "Constant", "ConstantOfShape", "Dropout", "EyeLike", "Flatten", "Gemm", "Identity",
        "MatMul", "Range", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze", "Upsample",
    }  # fmt: skip


def test_a_convolution_is_drawn_of_volumes_and_images_are_left_to_the_forms() -> None:
    found = list(drawn(7, 9, ["Conv"]))
    assert len(found) == 9
    assert {question.op for question in found} == {"Conv"}
    assert {question.args[0].rank for question in found if question.args[0] is not None} == {5}


def test_what_is_drawn_can_be_asked_of_any_device_and_is_the_same_every_time() -> None:
    keys = [question.key for question in drawn(3, EACH)]
    assert keys == [question.key for question in drawn(3, EACH)]
    assert [question_of(key).key for key in keys] == keys


def test_a_plan_is_a_folder_of_models(tmp_path: Path) -> None:
    count = plan(tmp_path, 7, 1)
    models = sorted(tmp_path.glob("*.json"))
    assert len(models) == count > 90
    assert all(len(formats.load(path).nodes) == 1 for path in models[::10])
