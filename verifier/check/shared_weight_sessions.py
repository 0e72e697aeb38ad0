"""Sessions of several graphs in ONNX Runtime that share weights: each big weight is written once, for all sessions."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType

import numpy as np

from superopt.fleet.child import ChildProcessPool, TaskLost, packed, unpacked
from superopt.formats.mapped_file import MemoryMap, ScratchArray, located
from superopt.formats.onnx_writer import save_with_external, to_onnx_bytes
from superopt.formats.weight_data import (
    FileWeightData,
    PackedWeightData,
    SparseWeightData,
    expected_bytes,
    packed_chunks,
    shape_of,
)
from superopt.ir.errors import (
    BackendUnavailable,
    InvalidModel,
    ResourceLimit,
    Unsupported,
    UsageError,
)
from superopt.ir.graph import ArrayWeightData, Graph, Weight, WeightData
from superopt.ir.interpreter_settings import side_by_side
from superopt.ir.temporary_folders import TemporaryFolder
from superopt.ir.types import DType, TensorType
from superopt.runtime import isolated_process
from superopt.runtime.crash_isolation import IsolatedSession, refuse_fatal_loading, risk_of
from superopt.runtime.onnx_runtime import (
    ONNX_RUNTIME,
    InferenceSession,
    OnnxRuntimeSession,
    OrtValue,
    is_native,
    make_session,
)
from superopt.runtime.onnx_runtime import run as run_session
from superopt.runtime.protocol import LoadedModel, Runtime
from superopt.runtime.resource_limits import give_back, resident
from superopt.runtime.synthetic_tensors import with_values, without_elements

__all__ = ["LARGE", "LONGEST", "REFUSALS", "Arrays", "SharedWeightSessions", "attempt"]

Arrays = dict[str, np.ndarray]
REFUSALS = (InvalidModel, Unsupported, ResourceLimit, UsageError)  # with which ONNX Runtime says that it cannot run

LONGEST = 60.0  # seconds of a run for which nobody states a limit: a loop of a disturbed or mutated model may never end
# Operators through which ONNX Runtime's optimiser moves no Transpose.
_UNMOVED = frozenset({"Conv", "ConvTranspose", "Gather", "GRU", "Gemm", "LSTM", "MatMul", "RNN"})
_BIG = 1 << 16  # bytes of a weight that is written once, to a file, and read by all sessions
_PAGE = mmap.ALLOCATIONGRANULARITY  # bytes between the beginnings of weights in one file
_BLOCK, _AGAIN = (1 << 18) + 1, 16  # numbers that are drawn, and how often they are written: no two pages are equal
LARGE = 1 << 24  # bytes that a session holds or a run takes from which giving them back is worth its milliseconds
_GROWN = 1 << 25  # bytes by which the process has grown when free memory is looked for between two places
_FilePosition = tuple[str, int, int]  # a file's name, the first byte in it, and how many
_Key = tuple[int, str, int]  # a graph's identity, a runtime's name, and threads


class SharedWeightSessions:
    """Sessions in one folder of weights, as long as it is open.

    Sessions are of one thread unless more are asked for, so that equal runs round equally. Those of a check
    share the weights in memory, as they lie in their files; those that are timed hold them as their kernels want them.
    """

    def __init__(self) -> None:
        self._folder: TemporaryFolder | None = None
        # by the identity of who has the
        self._positions: dict[int, tuple[WeightData, np.ndarray | None, _FilePosition]] = {}
        # elements; they themselves, where they lie in the process's scratch file
        self._names: dict[tuple[int, int], str | None] = {}  # of scratch files, in the folder
        self._maps: list[MemoryMap] = []
        self._crew: ChildProcessPool | None = None
        self._mapped: dict[tuple[_FilePosition, TensorType], OrtValue] = {}  # one file position may hold several shapes
        self._models = self._fillings = 0
        self._least = resident()
        self._cached: dict[_Key, tuple[Graph, LoadedModel]] = {}

    def __enter__(self) -> SharedWeightSessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cached.clear()
        self._mapped.clear()
        self._maps.clear()
        if self._crew is not None:
            self._crew.close()
        if self._folder is not None:
            self._folder.remove()
            give_back()

    def session(self, graph: Graph, *, optimise: bool) -> InferenceSession:
        """A session for a graph that runs a few times: one that was timed and kept, or one that reads the weights where
        they lie and holds no memory between runs, so that it starts in milliseconds.

        Args:
            graph: the model.
            optimise: with all of the runtime's optimisations, or none.

        Raises:
            InvalidModel, Unsupported, ResourceLimit: ONNX Runtime refuses it.
        """
        risk = risk_of(graph)
        if risk is not None:
            source = self._source(graph)
            refuse_fatal_loading(graph, source, self._other_process)
            made = make_session(source, threads=1, optimise=optimise, kind=IsolatedSession)
            assert isinstance(made, IsolatedSession)
            made.guard(risk, source, optimise, self._other_process)
            return made
        key = _key(graph, ONNX_RUNTIME, 1)
        if optimise and key in self._cached and isinstance(kept := self._cached[key][1], OnnxRuntimeSession):
            return kept.session
        source = self._source(graph)
        shared = self._shared(graph, _transposable(graph) if optimise else frozenset())
        return make_session(source, threads=1, optimise=optimise, shared=shared)

    def survives(self, graph: Graph, feeds: Mapping[str, np.ndarray], seconds: float) -> bool:
        """Whether a process lives that runs a graph on inputs, with the runtime's optimisations and without: another
        one than this. False, too, where it takes longer, and where none can be started."""
        call = packed(
            isolated_process.attempt, (self._source(graph), dict(feeds)), files=None, seconds=seconds, last=False
        )
        try:
            unpacked(self._other_process.run(call))
        except (TaskLost, BackendUnavailable):
            return False
        return True

    @property
    def _other_process(self) -> ChildProcessPool:
        if self._crew is None:
            self._crew = ChildProcessPool()
        return self._crew

    def drop(self, graph: Graph) -> None:
        """Close a graph's sessions."""
        for key in [key for key in self._cached if key[0] == id(graph)]:
            del self._cached[key]
        if self.is_large(graph):
            give_back()
        else:
            self.release_if_grown()  # what it ran with may be large all the same

    def release_memory(self) -> None:
        """Release the memory that runs allocated: free memory, and the mapped pages of weights."""
        for elements in self._maps:
            elements.drop_pages()
        give_back()

    def release_if_grown(self) -> None:
        """:meth:`release_memory`, if the process has grown by enough."""
        if resident() > self._least + _GROWN:
            self.release_memory()
            self._least = resident()
        self._least = min(self._least, resident())

    def loaded(self, graph: Graph, runtime: Runtime, *, threads: int = 1, keep: bool = False) -> LoadedModel:
        """A graph in a runtime, as its user runs it.

        Args:
            graph: the model.
            runtime: where it runs.
            threads: inside an operator.
            keep: for who asks next, until it is dropped or the bench is closed.

        Raises:
            InvalidModel, Unsupported, ResourceLimit: the runtime refuses it.
        """
        return self.loaded_all([graph], runtime, threads=threads, keep=keep)[0]

    def loaded_all(
        self, graphs: Sequence[Graph], runtime: Runtime, *, threads: int = 1, keep: bool = False
    ) -> list[LoadedModel]:  # fmt: skip
        """:meth:`loaded` for several graphs, prepared side by side: most of that is the runtime's, and of one core.

        A large one is prepared by itself, and its free memory handed back before the next: preparing takes up to twice
        as much again as stays (ResNet-50 beside its forms: 468 MiB side by side, 273 so; 257 stay).
        """
        keys = [_key(graph, runtime, threads) for graph in graphs]
        missing = {key: graph for key, graph in zip(keys, graphs, strict=True) if key not in self._cached}
        sources = [self._source(graph) for graph in missing.values()]
        for graph, source in zip(missing.values(), sources, strict=True):
            refuse_fatal_loading(graph, source, self._other_process)
        load = partial(runtime.load, threads=threads)
        if any(map(self.is_large, missing.values())):
            give_back()  # what weights were computed with
            made = [_load_and_release(load, source) for source in sources]
        else:
            made = side_by_side(load, sources)
        found = dict(zip(missing, made, strict=True))
        loaded = [found[key] if key in found else self._cached[key][1] for key in keys]
        if keep:
            self._cached.update((key, (missing[key], one)) for key, one in found.items())
        return loaded

    def filled(self, graph: Graph) -> Graph:
        """The graph with elements for weights that have none, for sessions that are timed.

        Big ones lie in one file, each from another place on, so that none is drawn or written for long and no two are
        equal: kernels hold copies of their own.
        """
        weights = tuple(self._filled(w) if w.data is None and _is_plain(w) else w for w in graph.weights)
        return with_values(replace(graph, weights=weights))

    def _filled(self, weight: Weight) -> Weight:
        new_weight, self._fillings = without_elements(weight), self._fillings + 1
        assert new_weight.data is not None
        start, size = self._fillings * _PAGE, expected_bytes(weight.type)
        name, length = "filling", start + size
        with (self._directory / name).open("ab") as file:
            while (end := file.tell()) < length:
                block = np.random.default_rng(end).random(_BLOCK, dtype=np.float32) + 0.5
                for _ in range(_AGAIN):
                    file.write(block.tobytes())
        self._positions[id(new_weight.data)] = (new_weight.data, None, (name, start, size))
        return new_weight

    def is_large(self, graph: Graph) -> bool:
        """Whether what a session of it holds is worth the time that giving it back or making it again takes."""
        return sum(map(_size, graph.weights)) >= LARGE

    @property
    def _directory(self) -> Path:
        if self._folder is None:
            self._folder = TemporaryFolder("check")
        return self._folder.path

    def _source(self, graph: Graph) -> bytes | Path:
        if all(_size(w) < _BIG for w in graph.weights):
            return to_onnx_bytes(graph)
        folder = self._directory
        places = {w.name: self._position(folder, w) for w in graph.weights if _size(w) >= _BIG}
        self._models += 1
        path = folder / f"model-{self._models}.onnx"
        save_with_external(graph, path, places)
        return path

    def _shared(self, graph: Graph, but: Collection[str]) -> dict[str, OrtValue]:
        """The elements of a graph's big weights, mapped from their files, ``but`` some."""
        big = (w for w in graph.weights if w.name not in but and _size(w) >= _BIG and is_native(w.type.dtype))
        return {w.name: self._map(w) for w in big}

    def _map(self, weight: Weight) -> OrtValue:
        assert self._folder is not None
        folder = self._folder.path
        place = self._position(folder, weight)
        key = place, weight.type
        if key not in self._mapped:
            name, start, size = place
            with (folder / name).open("rb") as file:
                mapped = MemoryMap(file.fileno(), size, offset=start, private=True)
            elements = mapped.array().view(weight.type.dtype.numpy).reshape(shape_of(weight.type))
            self._maps.append(mapped)
            self._mapped[key] = OrtValue.ortvalue_from_numpy(elements)
        return self._mapped[key]

    def _position(self, folder: Path, weight: Weight) -> _FilePosition:
        """The file position of a weight's elements; they are written if they were not.

        Graphs that share a weight share the object that holds its elements: a digest would cost reading them twice.
        """
        data = weight.data
        assert data is not None
        if id(data) not in self._positions:
            self._positions[id(data)] = (data, *self._scratch_position(folder, data, weight.type))
        return self._positions[id(data)][2]

    def _scratch_position(
        self, folder: Path, data: WeightData, kind: TensorType
    ) -> tuple[np.ndarray | None, _FilePosition]:
        """Elements that lie in the scratch file stay there: it gets a name beside the models. Others are written to
        one file."""
        size = expected_bytes(kind)
        if not isinstance(data, FileWeightData | PackedWeightData) and kind.dtype.bits >= 8:
            array = data.numpy()
            held = located(array)
            if held is not None and held.size == size and array.dtype == kind.dtype.numpy:
                name = self._named(folder, held)
                if name is not None:
                    return array, (name, held.start, size)
            data = ArrayWeightData(array)
        with (folder / "weights").open("ab") as file:
            start = -(-file.tell() // _PAGE) * _PAGE
            file.truncate(start)
            file.writelines(packed_chunks(data, kind.dtype))
        return None, ("weights", start, size)

    def _named(self, folder: Path, held: ScratchArray) -> str | None:
        """The name in the folder of a scratch file, ``None`` where it cannot have one: one name for all that is in it,
        since ONNX Runtime opens each file of a model by itself."""
        file = held.file
        if file not in self._names:
            name = f"scratch-{len(self._names)}"
            self._names[file] = name if held.name(folder / name) else None
        return self._names[file]


def _transposable(graph: Graph) -> frozenset[str]:
    """Weights that ONNX Runtime's optimiser may transpose, moving Transposes through what reads them.

    It gives the transposed elements the name of the weight, so that a session that shares the weight by its name would
    read them untransposed.
    """
    return frozenset(i for n in graph.nodes if n.op not in _UNMOVED for i in n.reads)


def _load_and_release(load: Callable[[bytes | Path], LoadedModel], source: bytes | Path) -> LoadedModel:
    made = load(source)
    give_back()
    return made


def _key(graph: Graph, runtime: Runtime, threads: int) -> _Key:
    return id(graph), runtime.name, threads


def _is_plain(weight: Weight) -> bool:
    """Whether a weight without elements may have those of the file for all."""
    return weight.type.dtype is DType.FLOAT32 and expected_bytes(weight.type) >= _BIG


def _size(weight: Weight) -> int:
    """Bytes of a weight that may lie outside its model."""
    data = weight.data
    if data is None or isinstance(data, SparseWeightData) or weight.type.dtype is DType.STRING:
        return 0
    return expected_bytes(weight.type)


def attempt(
    session: InferenceSession, feeds: Mapping[str, np.ndarray], *, time_limit: float | None = None
) -> Arrays | None:
    """The outputs, or ``None`` if ONNX Runtime refuses the inputs.

    Raises:
        ResourceLimit: the run took longer than it may: by default, :data:`LONGEST` seconds.
    """
    try:
        return run_session(session, feeds, time_limit=LONGEST if time_limit is None else time_limit)
    except (InvalidModel, UsageError):
        return None
