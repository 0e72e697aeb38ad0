"""Drawn elements in the scratch file: the same whoever reads them, gone with their holder, and safe across a fork."""

from __future__ import annotations

import os

import numpy as np
import pytest

from superopt.formats import scratch as module
from superopt.formats.scratch import Scratch, scratch
from superopt.formats.tensors import RandomData
from superopt.ir.types import DType, TensorType


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.INT64, DType.BOOL, DType.INT4])
def test_elements_come_back(dtype: DType) -> None:
    drawn = RandomData(TensorType(dtype, (300, 401)), 5, 3.0)
    first = drawn.numpy().copy()
    again = drawn.numpy()
    assert again.dtype == first.dtype
    assert again.shape == first.shape
    assert again.tobytes() == first.tobytes() == RandomData(drawn.type, 5, 3.0).numpy().tobytes()


def test_the_file_is_emptied_when_nobody_holds_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_arenas", [])
    one, two = scratch(np.ones(1 << 16)), scratch(np.zeros(1 << 16))
    assert one is not None
    assert two is not None
    arena = module._arenas[-1]
    view = two.array()
    assert os.fstat(arena.descriptor).st_size == 2 * view.nbytes
    del one
    assert not view.any()
    assert os.fstat(arena.descriptor).st_size == 2 * view.nbytes
    del two, view
    assert os.fstat(arena.descriptor).st_size == 0


def test_a_child_neither_empties_nor_writes_its_parent_s_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_arenas", [])
    held = Scratch(np.arange(1 << 16))
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        same = bool((held.array() == np.arange(1 << 16)).all())
        own = Scratch(np.zeros(1 << 16))
        same &= not own.array().any()
        held.__del__()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (held.array() == np.arange(1 << 16)).all()


def test_without_room_elements_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr(module, "_arenas", [])
    monkeypatch.setattr(os, "pwrite", full)
    drawn = RandomData(TensorType(DType.FLOAT32, (1 << 16,)), 7)
    first = drawn.numpy().tobytes()
    assert drawn.numpy().tobytes() == first
    assert os.fstat(module._arenas[-1].descriptor).st_size == 0
