"""However many weights a model has, and in however many files, few files are open."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from superopt import formats
from superopt.formats.mapped_file import MemoryMap, scratch
from superopt.ir.errors import InvalidModel
from superopt.verifier.check.shared_weight_sessions import SharedWeightSessions

COUNT = 40
SIDE = 520  # rows and columns of a weight: more than a MiB, so that it is mapped


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def stack(folder: Path, *, together: bool, count: int = COUNT, side: int = SIDE) -> Path:
    """A stack of sums with a weight each, in one file beside the model or in a file for each."""
    array = np.ones((side, side), np.float32)
    weights = [numpy_helper.from_array(array * i, f"w{i}") for i in range(count)]
    nodes = [helper.make_node("Add", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [side, side]) for n in ("x0", f"x{count}")]
    graph = helper.make_graph(nodes, "stack", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    path = folder / "stack.onnx"
    location = "stack.data" if together else None
    onnx.save(
        model, path, save_as_external_data=True, all_tensors_to_one_file=together, location=location, size_threshold=0
    )
    return path


@pytest.mark.parametrize("together", [True, False], ids=["one file", "a file for each weight"])
def test_weights_in_files_hold_few_descriptors(tmp_path: Path, together: bool) -> None:
    before = open_files()
    graph = formats.load(stack(tmp_path, together=together))
    arrays = [w.data.numpy() for w in graph.weights if w.data is not None]
    assert [int(a[-1, -1]) for a in arrays] == list(range(COUNT))
    assert open_files() <= before + 16
    with SharedWeightSessions() as bench:
        bench.session(graph, optimise=False)
        assert open_files() <= before + 18
    del arrays, graph, bench
    assert open_files() <= before + 2  # of the process: its folder of temporary files, its scratch file


def test_arrays_in_the_scratch_file_hold_one_descriptor() -> None:
    before = open_files()
    held = [scratch(np.full(1 << 16, i)) for i in range(COUNT)]
    arrays = [h.array() for h in held if h is not None]
    assert [int(a[-1]) for a in arrays] == list(range(COUNT))
    assert open_files() <= before + 1


def test_one_of_many_files_that_is_replaced_is_not_read(tmp_path: Path) -> None:
    graph = formats.load(stack(tmp_path, together=False, count=20, side=4))
    last = graph.weights[-1].data
    assert last is not None
    other = tmp_path / "other"
    other.write_bytes((tmp_path / "w19").read_bytes())
    other.replace(tmp_path / "w19")
    with pytest.raises(InvalidModel, match="w19: the file changed since the model was loaded"):
        last.numpy()


def test_a_map_outlives_its_descriptor_and_goes_with_its_last_array(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_bytes(np.arange(1 << 15, dtype=np.int32).tobytes())
    with path.open("rb") as file:
        shared = MemoryMap(file.fileno(), 1 << 16, offset=mmap.ALLOCATIONGRANULARITY)
        private = MemoryMap(file.fileno(), 1 << 16, private=True)
    path.unlink()
    view = shared.array().view(np.int32)[1:]
    assert not view.flags.writeable
    private.array()[:4] = 255
    assert private.array().view(np.int32)[:2].tolist() == [-1, 1]
    del shared
    assert view[0] == mmap.ALLOCATIONGRANULARITY // 4 + 1
    maps = Path("/proc/self/maps")
    assert str(path) in maps.read_text()
    del view, private
    assert str(path) not in maps.read_text()
    with pytest.raises(OSError, match="Bad file descriptor"):
        MemoryMap(-1, 4096)
