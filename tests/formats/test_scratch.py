"""Drawn elements in the scratch file: the same whoever reads them, gone with their holder, and safe across a fork."""

from __future__ import annotations

import mmap
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ParamSpec

import numpy as np
import pytest

from superopt.formats.mapped_file import ScratchArray, located, scratch
from superopt.formats.weight_data import RandomWeightData, ScratchWeightData, set_aside
from superopt.ir.graph import ArrayWeightData
from superopt.ir.types import DType, TensorType


@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16, DType.INT64, DType.BOOL, DType.INT4])
def test_elements_come_back(dtype: DType) -> None:
    drawn = RandomWeightData(TensorType(dtype, (300, 401)), 5, 3.0)
    first = drawn.numpy().copy()
    again = drawn.numpy()
    assert again.dtype == first.dtype
    assert again.shape == first.shape
    assert again.tobytes() == first.tobytes() == RandomWeightData(drawn.type, 5, 3.0).numpy().tobytes()


P = ParamSpec("P")


def in_a_child(test: Callable[P, None]) -> Callable[P, None]:
    """A test in a child of this process: a child has a file of its own, in which nothing lies yet."""

    @wraps(test)
    def forked(*given: P.args, **named: P.kwargs) -> None:
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            try:
                test(*given, **named)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    return forked


def length(file: tuple[int, int]) -> int:
    """Bytes of an open file, by its device and number."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):
            facts = os.fstat(descriptor)
            if (facts.st_dev, facts.st_ino) == file:
                return facts.st_size
    raise AssertionError(f"no open file is {file}")


def of(held: ScratchArray | None) -> ScratchArray:
    assert held is not None
    return held


@in_a_child
def test_the_file_is_emptied_when_nobody_holds_an_array() -> None:
    one, two = of(scratch(np.ones(1 << 16))), of(scratch(np.zeros(1 << 16)))
    file, view = one.file, two.array()
    assert length(file) == 2 * view.nbytes
    del one
    assert not view.any()
    assert length(file) == 2 * view.nbytes
    del two, view
    assert length(file) == 0


@in_a_child
def test_a_child_neither_empties_nor_writes_its_parent_s_file() -> None:
    held = scratch(np.arange(1 << 16))
    assert held is not None
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        same = bool((held.array() == np.arange(1 << 16)).all())
        own = scratch(np.zeros(1 << 16))
        same &= own is not None and not own.array().any()
        held.__del__()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (held.array() == np.arange(1 << 16)).all()


@in_a_child
def test_without_room_elements_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        drawn = RandomWeightData(TensorType(DType.FLOAT32, (1 << 16,)), 7)
        first = drawn.numpy().tobytes()
        assert drawn.numpy().tobytes() == first
    assert of(scratch(np.ones(8))).start == 0  # nothing is left of the attempt


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool, DType.BFLOAT16.numpy])
def test_computed_elements_are_set_aside_and_stay_what_they_were(dtype: np.dtype) -> None:
    array = np.arange(1 << 17).reshape(2, -1).astype(dtype)
    held, plain = set_aside(array), ArrayWeightData(array)
    assert isinstance(held, ScratchWeightData)
    assert held.digest == plain.digest
    assert held.numpy().dtype == array.dtype
    for again in (held.numpy(), pickle.loads(pickle.dumps(held)).numpy()):
        assert again.shape == array.shape
        assert again.tobytes() == array.tobytes()


@pytest.mark.parametrize("array", [np.ones(8), np.full(1 << 16, "a", object)])
def test_what_is_small_or_no_bytes_stays_in_memory(array: np.ndarray) -> None:
    assert isinstance(set_aside(array), ArrayWeightData)


@in_a_child
def test_elements_are_where_a_file_with_a_name_says_and_outlive_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first, array = scratch(np.ones(1000)), np.arange(1 << 16)
    held = scratch(array)
    assert first is not None
    assert held is not None
    view = held.array()
    assert located(view) is held is located(view.reshape(2, -1))
    assert all(located(other) is None for other in (array, view[1:], view[::2], view.reshape(2, -1).T, view.copy()))
    path = tmp_path / "named"
    if not held.name(path):
        return  # this system gives no names to files without one
    again = np.fromfile(path, np.int64, len(array), offset=held.start)
    assert (again == array).all()
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    path.unlink()
    start = held.start
    del first, held, view  # the last of them: what comes next lies in another file
    other = scratch(np.zeros(1 << 17))
    assert other is not None
    assert not other.array().any()
    assert (np.frombuffer(mapped, np.int64, len(array), start) == array).all()


@in_a_child
def test_a_view_holds_what_it_shows() -> None:
    held = of(scratch(np.arange(1 << 16)))
    file, view = held.file, held.array()[1:]
    del held
    assert length(file) >= view.nbytes
    assert int(view[-1]) == (1 << 16) - 1
