"""ONNX Runtime's CPU provider as a :class:`superopt.runtime.protocol.Runtime`."""

from __future__ import annotations

import copy
import ctypes
import json
import mmap
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as state
from onnxruntime.capi.onnxruntime_inference_collection import InferenceSession, OrtValue

from superopt.ir.errors import (
    InvalidModel,
    ResourceLimit,
    SuperoptError,
    Unsupported,
    UsageError,
    printable,
    quoted_error,
    system_limits,
)
from superopt.ir.temporary_folders import TemporaryFolder
from superopt.ir.types import DType
from superopt.runtime.protocol import InputBoundModel, LoadedModel, Runtime, TracedKernel
from superopt.runtime.watchdog import stopped_after

__all__ = [
    "InferenceSession",
    "ONNX_RUNTIME",
    "OrtValue",
    "RAISED",
    "OnnxRuntimeSession",
    "bind",
    "element_type",
    "shrink_arena_after",
    "is_native",
    "writable_feeds",
    "make_session",
    "run",
    "to_array",
    "to_value",
    "translated",
]


# -- Sessions ------------------------------------------------------------------------------------------------------
#
# Sessions without output, element types that NumPy lacks, and errors as superopt's own.


_OUTSIDE = "session.optimized_model_external_initializers_"
# BatchNormalization's attribute, unless it is 0 as protobuf writes that: its kernel then writes the new mean and
# variance over the ones that it reads, the caller's included.
_OVERWRITES = re.compile(rb"training_mode(?!\x18\x00)")
QUIET = 4  # only fatal messages: what goes wrong is raised, so ONNX Runtime need not print it too

# ONNX Runtime's spelling of an element type, and ONNX's number for it.
_ELEMENT = {
    "float": (DType.FLOAT32, 1), "uint8": (DType.UINT8, 2), "int8": (DType.INT8, 3), "uint16": (DType.UINT16, 4),
    "int16": (DType.INT16, 5), "int32": (DType.INT32, 6), "int64": (DType.INT64, 7), "string": (DType.STRING, 8),
    "bool": (DType.BOOL, 9), "float16": (DType.FLOAT16, 10), "double": (DType.FLOAT64, 11),
    "uint32": (DType.UINT32, 12), "uint64": (DType.UINT64, 13), "complex64": (DType.COMPLEX64, 14),
    "complex128": (DType.COMPLEX128, 15), "bfloat16": (DType.BFLOAT16, 16), "float8e4m3fn": (DType.FLOAT8E4M3FN, 17),
    "float8e4m3fnuz": (DType.FLOAT8E4M3FNUZ, 18), "float8e5m2": (DType.FLOAT8E5M2, 19),
    "float8e5m2fnuz": (DType.FLOAT8E5M2FNUZ, 20), "uint4": (DType.UINT4, 21), "int4": (DType.INT4, 22),
    "float4e2m1": (DType.FLOAT4E2M1, 23), "float8e8m0": (DType.FLOAT8E8M0, 24), "uint2": (DType.UINT2, 25),
    "int2": (DType.INT2, 26),
}  # fmt: skip
_NATIVE = frozenset(d for d in DType if d.numpy.kind in "biuf" and d.numpy.isbuiltin == 1)
_NOISE = re.compile(r"^.*\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : |/\S+\.(?:cc|h):\d+ \S.*?\) (?=[A-Z])")
RAISED: tuple[type[Exception], ...] = (
    state.EPFail, state.EngineError, state.Fail, state.InvalidArgument, state.InvalidGraph, state.InvalidProtobuf,
    state.NoModel, state.NoSuchFile, state.NotImplemented, state.RuntimeException, RuntimeError,
)  # fmt: skip
# Sessions of models that may write over what they read, with the shared elements that are theirs alone.
_overwriting: WeakKeyDictionary[InferenceSession, Mapping[str, OrtValue]] = WeakKeyDictionary()


def make_session(
    model: bytes | Path, *, threads: int | None = None, optimise: bool = True, save_optimised: Path | None = None,
    trace: Path | None = None, shared: Mapping[str, OrtValue] | None = None, discard: int | None = None,
    kind: type[InferenceSession] = InferenceSession,
) -> InferenceSession:  # fmt: skip
    """A CPU session that prints nothing and whose idle threads do not spin.

    Args:
        model: a serialised ONNX model, or the path of one (needed above 2 GiB or with external data).
        threads: threads inside an operator; ``None`` lets ONNX Runtime use every core.
        optimise: run all of ONNX Runtime's own graph optimisations, or none.
        save_optimised: also write the graph that ONNX Runtime will really run.
        trace: record what runs execute, in a file whose name begins so.
        shared: elements of initializers, which the caller keeps as long as the session: it reads them where they are,
            no kernel rearranges a copy of its weights, no memory is held between runs, and operators run in the order
            that they stand in. Such a session starts at once and runs up to a fifth slower.
        discard: bytes from which weights are left out of what ``save_optimised`` gets: it points to nothing for them.
        kind: the class that the session is of.

    Raises:
        InvalidModel: ONNX Runtime cannot read the model or finds it inconsistent.
        Unsupported: the model needs an operator, type or version that this ONNX Runtime does not implement.
        ResourceLimit: it does not fit in memory.
    """
    options = state.SessionOptions()
    options.log_severity_level = QUIET
    options.enable_mem_pattern = True
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads == 1:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    levels = state.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimise else levels.ORT_DISABLE_ALL
    if save_optimised is not None:
        saved_to(options, save_optimised, discard)
    overwriting = _may_overwrite(model)
    if shared is not None:
        if overwriting:
            shared = {name: OrtValue.ortvalue_from_numpy(value.numpy().copy()) for name, value in shared.items()}
        options.add_session_config_entry("session.disable_prepacking", "1")
        options.enable_cpu_mem_arena = False
        options.execution_order = state.ExecutionOrder.PRIORITY_BASED  # as they stand, not backwards from the outputs
        for name, value in shared.items():
            options.add_initializer(name, value)
    if trace is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(trace)
    source = str(model) if isinstance(model, Path) else bytes(model)
    with translated(str(model) if isinstance(model, Path) else ""):
        # Without a fallback, which is the same provider again: it prints a banner on standard output before it fails.
        made = kind(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    if overwriting:
        _overwriting[made] = shared or {}
    return made


def _may_overwrite(model: bytes | Path) -> bool:
    """Whether some operator of a model, in whatever subgraph or function, may write over what it reads."""
    if not isinstance(model, Path):
        return _OVERWRITES.search(model) is not None
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            return _OVERWRITES.search(whole) is not None
    except (OSError, ValueError):
        return False  # no such file, or an empty one: ONNX Runtime says so


def writable_feeds(session: InferenceSession, feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """The feeds, as arrays that a session may do with what it wants: copies, where it may write over them."""
    return copy.deepcopy(dict(feeds)) if session in _overwriting else feeds


def saved_to(options: state.SessionOptions, path: Path, discard: int | None = None) -> None:
    """Have a session write the graph that it runs, weights of so many bytes left out: it points to nothing for them."""
    options.optimized_model_filepath = str(path)
    if discard is not None:
        nowhere = path.with_name("nowhere")
        nowhere.symlink_to(os.devnull)
        options.add_session_config_entry(_OUTSIDE + "file_name", nowhere.name)
        options.add_session_config_entry(_OUTSIDE + "min_size_in_bytes", str(discard))


@contextmanager
def translated(where: str, *, running: bool = False) -> Iterator[None]:
    """Turns ONNX Runtime's exceptions into superopt's, keeping the first line of the reason."""
    try:
        yield
    except SuperoptError:
        raise
    except RAISED as error:
        with system_limits(where):
            if (quoted := quoted_error(error)) is not None:
                raise quoted from error
        raise _translation(error, where, running) from error


def _translation(error: Exception, where: str, running: bool) -> SuperoptError:
    text = str(error).strip().splitlines()
    reason = printable(_NOISE.sub("", text[0]) if text else type(error).__name__, 300)
    whole = str(error)
    if "allocate memory" in whole or "bad_alloc" in whole or "bad allocation" in whole:
        return ResourceLimit(f"ONNX Runtime ran out of memory: {reason}", where=where)
    missing = ("not a registered", "nsupported", "not supported", "No corresponding Numpy type", "*guarantees*")
    if isinstance(error, state.NotImplemented) or any(m in whole for m in missing):
        return Unsupported(f"ONNX Runtime cannot run it: {reason}", where=where)
    if isinstance(error, state.NoSuchFile):
        return UsageError(f"there is no such file: {reason}", where=where)
    if running and isinstance(error, state.InvalidArgument):
        return UsageError(f"ONNX Runtime refuses the inputs: {reason}", where=where)
    return InvalidModel(f"ONNX Runtime refuses it: {reason}", where=where)


def element_type(ort_type: str) -> DType | None:
    """The element type in a session's ``tensor(float)``; ``None`` when it is not a tensor or not one we know."""
    if not (ort_type.startswith("tensor(") and ort_type.endswith(")")):
        return None
    found = _ELEMENT.get(ort_type[7:-1].lower())
    return found[0] if found else None


def run(
    session: InferenceSession,
    feeds: Mapping[str, np.ndarray],
    outputs: Sequence[str] | None = None,
    *,
    time_limit: float | None = None,
    keep: bool = False,
) -> dict[str, np.ndarray]:
    """Run once. Arrays of ``bfloat16``, float8 and 4- or 2-bit types (``ml_dtypes``) go in and come out.

    The memory that values lay in is given back at the end, but for the piece that was taken first: a session that
    stands idle then holds its weights and little else.

    Args:
        session: made by :func:`make_session`.
        feeds: an array per input. Names that the model does not have are ignored; a sequence is an object array.
        outputs: names of the wanted outputs; all, by default.
        time_limit: seconds after which the run is ended.
        keep: the memory for the next run, which then takes less time.

    Returns:
        An array per output. A sequence output is a one-dimensional object array of its items.

    Raises:
        UsageError: an input is missing or has the wrong type or shape.
        InvalidModel: an operator failed.
        ResourceLimit: the time or the memory ran out.
        Unsupported: it mixes strings or sequences with types that ONNX Runtime cannot exchange with NumPy.
    """
    inputs = {i.name: i.type for i in session.get_inputs()}
    feeds = writable_feeds(session, feeds)
    wanted = list(outputs) if outputs is not None else [o.name for o in session.get_outputs()]
    missing = [n for n in inputs if n not in feeds]
    if missing:
        raise UsageError(f"input {printable(missing[0])!r} was not given", hint=f"the inputs are {sorted(inputs)}")
    kinds = {o.name: o.type for o in session.get_outputs()}
    odd = [t for t in (*inputs.values(), *(kinds[n] for n in wanted if n in kinds)) if _is_odd(t)]
    options = state.RunOptions()
    options.log_severity_level = QUIET
    if not keep:
        shrink_arena_after(options, session)
    with stopped_after(options, time_limit), translated("", running=True):
        if not odd:
            plain = {n: list(feeds[n]) if t.startswith("seq(") else feeds[n] for n, t in inputs.items()}
            return dict(zip(wanted, map(_as_array, session.run(wanted, plain, options)), strict=True))
        values = {n: to_value(feeds[n], inputs[n]) for n in inputs}
        made = session.run_with_ort_values(wanted, values, options)
        return dict(zip(wanted, map(to_array, made), strict=True))


def shrink_arena_after(options: Any, session: InferenceSession) -> None:
    """Have a run with these options give back, at its end, the memory that its values lay in."""
    if session.get_session_options().enable_cpu_mem_arena:
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")


def is_native(dtype: DType) -> bool:
    """Whether NumPy's own arrays hold such elements."""
    return dtype in _NATIVE


def _is_odd(ort_type: str) -> bool:
    """A tensor whose elements ONNX Runtime's NumPy interface does not exchange."""
    dtype = element_type(ort_type)
    return dtype is not None and dtype not in _NATIVE and dtype is not DType.STRING


def _as_array(value: Any) -> np.ndarray:
    if isinstance(value, list):
        items = np.empty(len(value), dtype=object)
        items[:] = value
        return items
    if isinstance(value, state.SparseTensor):
        raise Unsupported("ONNX Runtime gives a sparse tensor, of which superopt reads no elements")
    return np.asarray(value)


def to_value(array: np.ndarray, ort_type: str) -> Any:
    """An array as an ``OrtValue`` of the declared type; 4- and 2-bit elements are packed, low bits first.

    Raises:
        UsageError: the array's element type is not the declared one.
        Unsupported: strings and non-tensors, which ONNX Runtime takes only from :func:`run`.
    """
    dtype = element_type(ort_type)
    if dtype is None or dtype is DType.STRING:
        raise Unsupported(f"ONNX Runtime cannot bind a {ort_type} from Python")
    array = np.asarray(array)
    if array.dtype != dtype.numpy:
        raise UsageError(f"an input is {array.dtype}, but the model wants {dtype}")
    if dtype in _NATIVE:
        return OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array).reshape(array.shape))
    value = OrtValue.ortvalue_from_shape_and_type(list(array.shape), _ELEMENT[ort_type[7:-1].lower()][1])
    packed = _pack(np.ascontiguousarray(array), dtype)
    ctypes.memmove(value.data_ptr(), packed.ctypes.data, packed.nbytes)
    return value


def to_array(value: Any) -> np.ndarray:
    """The elements of a tensor ``OrtValue``, copied, as the ``DType``'s NumPy type.

    Raises:
        Unsupported: it is not a tensor.
    """
    dtype = element_type(value.data_type()) if value.is_tensor() else None
    if dtype is None:
        raise Unsupported(f"ONNX Runtime cannot hand over a {value.data_type()}")
    if dtype in _NATIVE or dtype is DType.STRING:
        return np.asarray(value.numpy())
    shape = tuple(value.shape())
    count = int(np.prod(shape, dtype=np.int64))
    raw = np.frombuffer(ctypes.string_at(value.data_ptr(), (count * dtype.bits + 7) // 8), dtype=np.uint8)
    return _unpack(raw, dtype, count).reshape(shape)


def _pack(array: np.ndarray, dtype: DType) -> np.ndarray:
    raw: np.ndarray = array.reshape(-1).view(np.uint8)
    if dtype.bits >= 8:
        return raw
    per = 8 // dtype.bits
    padded = np.zeros(-(-raw.size // per) * per, dtype=np.uint8)
    padded[: raw.size] = raw & ((1 << dtype.bits) - 1)
    shifts = np.arange(per, dtype=np.uint8) * np.uint8(dtype.bits)
    packed: np.ndarray = np.bitwise_or.reduce(padded.reshape(-1, per) << shifts, axis=1)
    return packed


def _unpack(raw: np.ndarray, dtype: DType, count: int) -> np.ndarray:
    if dtype.bits >= 8:
        return raw.view(dtype.numpy)[:count]
    shifts = np.arange(8 // dtype.bits, dtype=np.uint8) * np.uint8(dtype.bits)
    fields: np.ndarray = ((raw[:, None] >> shifts) & np.uint8((1 << dtype.bits) - 1)).reshape(-1)[:count]
    if not dtype.is_integer:
        return fields.view(dtype.numpy)
    if dtype.value.startswith("int"):
        half = 1 << (dtype.bits - 1)
        fields = (fields.astype(np.int8) ^ half) - half
    return fields.astype(dtype.numpy)


# -- Bound sessions ------------------------------------------------------------------------------------------------
#
# Inputs and outputs are bound to memory once, so that a step is the run alone.


_LONGEST_RUN = 10.0  # seconds: a model that runs longer once is not timed


def bind(
    session: InferenceSession,
    feeds: Mapping[str, np.ndarray],
    *,
    like: InputBoundModel | None = None,
    over: Mapping[str, str] = MappingProxyType({}),
    longest: float = _LONGEST_RUN,
) -> InputBoundModel:
    """Bind inputs, and outputs where they are tensors, to memory that lives as long as the result.

    Args:
        session: the model.
        feeds: its inputs.
        like: the same model, bound before, whose outputs' memory is written to as well.
        over: outputs that are written over an input of the same size, by name.
        longest: seconds that the first run may take.

    Raises:
        UsageError, InvalidModel, ResourceLimit: as :func:`run` does; the model has run once on
            return.
    """
    missing = [i.name for i in session.get_inputs() if i.name not in feeds]
    if missing:
        raise UsageError(f"input {missing[0]!r} was not given")
    feeds = writable_feeds(session, feeds)
    try:
        values = {i.name: to_value(feeds[i.name], i.type) for i in session.get_inputs()}
    except Unsupported:  # strings and sequences cannot be bound, but they can be run
        run(session, feeds, time_limit=longest)
        return InputBoundModel(lambda: run(session, feeds, keep=True), list, (session, feeds))
    steps = _Steps(session, values, like.outputs() if like is not None else [], over)
    with translated("", running=True):
        steps.prepare(longest)
    return InputBoundModel(steps.run, lambda: steps.made, (steps,))


class _Steps:
    """Runs of one session on fixed inputs. Outputs keep their memory too, unless their shapes turn out to change."""

    def __init__(
        self, session: InferenceSession, inputs: Mapping[str, Any], given: Sequence[Any], over: Mapping[str, str]
    ) -> None:
        self._session: Any = session  # ONNX Runtime leaves the methods used here untyped
        self._inputs = inputs
        self._given, self._over = given, over
        self._outputs = [o.name for o in session.get_outputs()]
        self._binding: Any = None
        self._fixed = False
        self.made: list[Any] = []

    def prepare(self, longest: float) -> None:
        """Run once, for so many seconds at most, to learn the outputs' shapes, then give them memory of their own.

        That run takes a piece for each value, and later ones a block for all beside what the arena still holds of
        them: so it gives its memory back (SegFormer, 2 MiB of weights: 445 MiB as bound, and 234 so).
        """
        options = state.RunOptions()
        shrink_arena_after(options, self._session)
        with stopped_after(options, longest):
            self._run_fresh(options)
        if not all(v.is_tensor() and v.data_type() != "tensor(string)" for v in self.made):
            return
        self.made = list(self._given) or [
            self._inputs[self._over[name]]
            if name in self._over
            else OrtValue.ortvalue_from_shape_and_type(list(v.shape()), v.element_type())
            for name, v in zip(self._outputs, self.made, strict=True)
        ]
        self._binding = self._with_inputs()
        for name, value in zip(self._outputs, self.made, strict=True):
            self._binding.bind_ortvalue_output(name, value)
        self._fixed = True

    def run(self) -> None:
        """Run once.

        Raises:
            InvalidModel, ResourceLimit, Unsupported: as :func:`superopt.runtime.onnx_runtime.run`.
        """
        if self._fixed:
            try:
                self._session.run_with_iobinding(self._binding)
                return
            except RAISED as error:
                if "shape" not in str(error) and "dimensions" not in str(error):
                    with translated("", running=True):
                        raise
                self._fixed = False  # a shape that depends on data: bind the outputs afresh from now on
        with translated("", running=True):
            self._run_fresh()

    def _run_fresh(self, options: Any = None) -> None:
        binding = self._with_inputs()
        for name in self._outputs:
            binding.bind_output(name, "cpu")
        self._session.run_with_iobinding(binding, options)
        self.made = binding.get_outputs()
        self._binding = binding

    def _with_inputs(self) -> Any:
        binding = self._session.io_binding()
        for name, value in self._inputs.items():
            binding.bind_ortvalue_input(name, value)
        return binding


# -- The runtime ---------------------------------------------------------------------------------------------------


NCHWC = "com.microsoft.nchwc"  # the domain of its blocked layout for convolutions
_LAYOUT = frozenset({"ReorderInput", "ReorderOutput"})


@dataclass(frozen=True, eq=False)
class OnnxRuntimeSession:
    """A session of ONNX Runtime as a :class:`superopt.runtime.protocol.LoadedModel`."""

    session: InferenceSession

    def run(
        self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str], *, time_limit: float | None = None
    ) -> dict[str, np.ndarray]:
        return run(self.session, feeds, outputs, time_limit=time_limit)

    def bound(
        self,
        feeds: Mapping[str, np.ndarray],
        *,
        like: InputBoundModel | None = None,
        over: Mapping[str, str] = MappingProxyType({}),
    ) -> InputBoundModel:
        return bind(self.session, feeds, like=like, over=over)


class _OnnxRuntime:
    name, lowers, apart = "onnxruntime", True, "Relu"

    @property
    def version(self) -> str:
        return str(onnxruntime.__version__)

    def load(self, model: bytes | Path, *, threads: int | None = None, optimise: bool = True) -> LoadedModel:
        return OnnxRuntimeSession(make_session(model, threads=threads, optimise=optimise))

    def lowered(self, model: bytes) -> bytes:
        with TemporaryFolder("runtime") as folder:
            path = folder / "lowered.onnx"
            make_session(model, threads=1, save_optimised=path)
            return path.read_bytes()

    def trace(self, model: bytes, feeds: Mapping[str, np.ndarray], *, runs: int = 9) -> tuple[TracedKernel, ...]:
        with TemporaryFolder("runtime") as folder:
            session = make_session(model, threads=1, trace=folder / "trace")
            for _ in range(1 + max(runs, 1)):
                run(session, feeds, keep=True)
            ended: Any = session  # whose end of profiling is left untyped
            events = json.loads(Path(ended.end_profiling()).read_text())
        found: dict[str, TracedKernel] = {}
        for event in events:
            if event.get("cat") != "Node" or not event["name"].endswith("_kernel_time"):
                continue
            kernel, place = event["args"]["op_name"], event["args"]["node_index"]
            name = event["name"].removesuffix("_kernel_time")
            least = min(float(event["dur"]), found[place].us if place in found else float("inf"))
            found[place] = TracedKernel(kernel, (name,), least, kernel in _LAYOUT)
        return tuple(found.values())


ONNX_RUNTIME: Runtime = _OnnxRuntime()
