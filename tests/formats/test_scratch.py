"""Drawn elements in the scratch file: the same whoever reads them, gone with their holder, and safe across a fork."""

from __future__ import annotations

import os
import pickle

import numpy as np
import pytest

from superopt.formats import scratch as module
from superopt.formats.scratch import Scratch, scratch
from superopt.formats.tensors import AsideData, RandomData, set_aside
from superopt.ir.graph import ArrayData
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


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool, DType.BFLOAT16.numpy])
def test_computed_elements_are_set_aside_and_stay_what_they_were(dtype: np.dtype) -> None:
    array = np.arange(1 << 17).reshape(2, -1).astype(dtype)
    held, plain = set_aside(array), ArrayData(array)
    assert isinstance(held, AsideData)
    assert held.digest == plain.digest
    assert held.numpy().dtype == array.dtype
    for again in (held.numpy(), pickle.loads(pickle.dumps(held)).numpy()):
        assert again.shape == array.shape
        assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize("array", [np.ones(8), np.full(1 << 16, "a", object)])
def test_what_is_small_or_no_bytes_stays_in_memory(array: np.ndarray) -> None:
    assert isinstance(set_aside(array), ArrayData)
