"""The CUDA device, through CuPy: memory, streams and graph capture; cuBLAS by ctypes, cuDNN by its frontend.

CuPy has no convolutions (it dropped cuDNN), and its ``matmul`` neither captures nor keeps half precision, so products
and convolutions go to the vendor's libraries directly. Everything launches on one stream of our own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from superopt.ir.errors import BackendUnavailable, SuperoptError
from superopt.ir.types import DType
from superopt.runtime.cuda.execution_plan import KernelLaunch, Step
from superopt.runtime.cuda.kernel_source import PRELUDE, CudaKernel
from superopt.runtime.cuda.vendor_libraries import Call, LibraryConvolution, LibraryMatMul

__all__ = ["CudaDevice", "CudaAvailability", "cupy", "probe"]


# -- Probe ---------------------------------------------------------------------------------------------------------
#
# Is there a CUDA device that CuPy can use? Asked once, without raising; CuPy is imported only when somebody asks.


@dataclass(frozen=True)
class CudaAvailability:
    """Whether the backend works, and why not; ``device`` names it where it does."""

    ok: bool
    reason: str
    device: str = ""


@cache
def probe() -> CudaAvailability:
    """Looks for CuPy, a driver and a device. The answer is kept for the process."""
    try:
        module = import_module("cupy")
    except ImportError as error:
        return CudaAvailability(False, f"CuPy is not installed ({error})")
    if not module.cuda.is_available():
        return CudaAvailability(False, "CuPy finds no CUDA device or driver")
    try:
        properties = module.cuda.runtime.getDeviceProperties(0)
        module.zeros(1, dtype="float32").sum().item()
    except RuntimeError as error:  # CUDARuntimeError is one: a device that is there and does not work
        return CudaAvailability(False, f"the CUDA device does not work: {error}")
    return CudaAvailability(True, "", properties["name"].decode())


def cupy() -> Any:
    """The CuPy module, of a machine on which it works.

    Raises:
        BackendUnavailable: with the reason and the next step.
    """
    found = probe()
    if not found.ok:
        raise BackendUnavailable(
            f"there is no CUDA backend here: {found.reason}",
            hint="install the extra superopt[cuda] on a machine with an NVIDIA GPU, or use --target profile:NAME",
        )
    return import_module("cupy")


# -- Device --------------------------------------------------------------------------------------------------------


WORKSPACE = 32 << 20  # bytes that cuBLAS may use on Hopper (its documentation recommends 32 MiB)

# cudaDataType and cublasComputeType_t, from the headers.
_DATA = {DType.FLOAT32: 0, DType.FLOAT64: 1, DType.FLOAT16: 2, DType.BFLOAT16: 14}
_COMPUTE = {("ieee", DType.FLOAT32): 68, ("tf32", DType.FLOAT32): 77, ("ieee", DType.FLOAT64): 70}
_COMPUTE_FLOAT = 68
_PLAIN, _TURNED = 0, 1  # CUBLAS_OP_N, CUBLAS_OP_T
_DEFAULT_ALGORITHM = -1
_MODULE = 4  # kernels that are compiled as one: half of one's time goes into what all have in common


class CudaDevice:
    """A :class:`superopt.runtime.cuda.session.ExecutionDevice` on device 0.

    Args:
        precision: "ieee" computes float32 products in float32; "tf32" lets tensor cores round their inputs to 10 bits.

    Raises:
        BackendUnavailable: no CuPy, no driver, no device, or no cuBLAS; with the next step.
    """

    def __init__(self, precision: str = "ieee") -> None:
        self.cp = cupy()
        self.precision = precision
        self.stream = self.cp.cuda.Stream(non_blocking=True)
        self.memory: list[Any] = []
        self.functions: dict[str, Any] = {}
        self.blas = _Blas(self.stream.ptr)
        self.dnn = _dnn(self.stream.ptr)
        self.plans: dict[tuple[Any, ...], _ConvolutionPlan | None] = {}
        self.scratches: list[tuple[int, Any]] = []  # of convolutions: bytes and memory, the largest last
        self.workspace = self.allocate(WORKSPACE)
        self.blas.workspace(self.workspace, WORKSPACE)

    def supports(self, call: Call) -> bool:
        """Products always; convolutions where cuDNN has a precompiled engine for them."""
        return isinstance(call, LibraryMatMul) or self._plan_of(call) is not None

    def prepare(self, steps: Sequence[Step]) -> None:
        """Compile all kernels, several at a time, and build the convolutions' plans with their workspace."""
        kernels = {s.kernel.name: s.kernel for s in steps if isinstance(s, KernelLaunch)}
        missing = [k for name, k in kernels.items() if name not in self.functions]
        parts = min(os.cpu_count() or 1, -(-len(missing) // _MODULE))
        if parts:
            with ThreadPoolExecutor(parts) as pool:  # the compiler lets go of the interpreter's lock
                for found in pool.map(self._compiled, (missing[i::parts] for i in range(parts))):
                    self.functions.update(found)
        needed = [
            p.workspace for s in steps if isinstance(s, LibraryConvolution) and (p := self._plan_of(s)) is not None
        ]
        self._reserve(max([*needed, 1]))

    def _compiled(self, kernels: Sequence[CudaKernel]) -> dict[str, Any]:
        """A module of kernels."""
        self.cp.cuda.Device(0).use()  # a new thread has no context
        text = PRELUDE + "".join(k.source for k in kernels)
        module = self.cp.RawModule(code=text, options=("-std=c++17", "-default-device"), backend="nvrtc")
        return {k.name: module.get_function(k.name) for k in kernels}

    def _reserve(self, nbytes: int) -> None:
        """At least so much scratch memory. What was there stays: captured graphs hold its address, and a session that
        needs less, made later, must not leave an earlier one with too little.
        """
        if not self.scratches or self.scratches[-1][0] < nbytes:
            with self.stream:
                self.scratches.append((nbytes, self.cp.zeros(nbytes, dtype=self.cp.uint8)))
            self.stream.synchronize()

    def allocate(self, nbytes: int) -> int:
        """Zeroed device memory."""
        with self.stream:
            block = self.cp.zeros(nbytes, dtype=self.cp.uint8)
        self.stream.synchronize()
        self.memory.append(block)
        return int(block.data.ptr)

    def upload(self, pointer: int, array: np.ndarray) -> None:
        """Copy to the device, and wait."""
        if array.nbytes:
            runtime = self.cp.cuda.runtime
            runtime.memcpyAsync(pointer, array.ctypes.data, array.nbytes, runtime.memcpyHostToDevice, self.stream.ptr)
            self.stream.synchronize()

    def download(self, pointer: int, array: np.ndarray) -> None:
        """Copy from the device after what was launched, and wait."""
        if array.nbytes:
            runtime = self.cp.cuda.runtime
            runtime.memcpyAsync(array.ctypes.data, pointer, array.nbytes, runtime.memcpyDeviceToHost, self.stream.ptr)
        self.stream.synchronize()

    def step(self, step: Step, pointers: Sequence[int]) -> None:
        """Launch one step."""
        match step:
            case KernelLaunch(kernel):
                with self.stream:
                    arguments = tuple(np.uintp(p) for p in pointers)
                    self.functions[kernel.name]((kernel.grid,), (kernel.block,), arguments)
            case LibraryMatMul():
                self.blas.product(step, pointers, self.precision)
            case LibraryConvolution():
                found = self._plan_of(step)
                assert found is not None, "supported, or it would be a kernel"
                found.launch(pointers, int(self.scratches[-1][1].data.ptr))

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """The launches of ``body`` as one CUDA graph."""
        self.stream.synchronize()
        self.stream.begin_capture()
        try:
            body()
        finally:
            graph = self.stream.end_capture()
        self.memory.append(graph)

        def replay() -> None:
            graph.launch(self.stream)

        return replay

    def allocated(self) -> int:
        """A mark for :meth:`release`."""
        return len(self.memory)

    def release(self, mark: int) -> None:
        """Give back the memory and the captured graphs that came after a mark; nothing may use them any more."""
        self.stream.synchronize()
        del self.memory[mark:]

    def facts(self) -> dict[str, str | int]:
        """The device, and the versions of what runs on it."""
        properties = self.cp.cuda.runtime.getDeviceProperties(0)
        versions = {"cupy": self.cp.__version__, "cuda": self.cp.cuda.runtime.runtimeGetVersion()}
        cudnn = "none" if self.dnn is None else self.dnn[0].backend_version()
        return {
            "device": properties["name"].decode(), "cores": properties["multiProcessorCount"],
            "driver": self.cp.cuda.runtime.driverGetVersion(), "cache_bytes": properties["l2CacheSize"],
            "runtime": f"cupy {versions['cupy']}, cuda {versions['cuda']}, cudnn {cudnn}",
        }  # fmt: skip

    def elapsed(self, body: Callable[[], None]) -> float:
        """Microseconds between two events around a body that only launches."""
        start, stop = self.cp.cuda.Event(), self.cp.cuda.Event()
        start.record(self.stream)
        body()
        stop.record(self.stream)
        stop.synchronize()
        return float(self.cp.cuda.get_elapsed_time(start, stop)) * 1e3

    def _plan_of(self, call: LibraryConvolution) -> _ConvolutionPlan | None:
        key = (call.shapes, call.strides, call.pads, call.dilations, call.group, call.dtype, self.precision)
        if key not in self.plans:
            self.plans[key] = None if self.dnn is None else _ConvolutionPlan.make(self.dnn, call, self.precision)
        return self.plans[key]


class _Blas:
    """cuBLAS's strided batched product, by ctypes."""

    def __init__(self, stream: int) -> None:
        self.library = _library("cublas")
        self.handle = ctypes.c_void_p()
        self._checked("cublasCreate_v2", ctypes.byref(self.handle))
        self._checked("cublasSetStream_v2", self.handle, ctypes.c_void_p(stream))

    def workspace(self, pointer: int, nbytes: int) -> None:
        """Memory of ours, so that a captured product allocates nothing."""
        self._checked("cublasSetWorkspace_v2", self.handle, ctypes.c_void_p(pointer), ctypes.c_size_t(nbytes))

    def product(self, step: LibraryMatMul, pointers: Sequence[int], precision: str) -> None:
        """Row-major ``A·B`` is column-major ``Bᵀ·Aᵀ``: the operands change places, and nothing is turned."""
        a, b, out = (ctypes.c_void_p(p) for p in pointers)
        compute = _COMPUTE.get((precision, step.dtype), _COMPUTE_FLOAT)
        real = ctypes.c_double if step.dtype is DType.FLOAT64 else ctypes.c_float
        data = _DATA[step.dtype]
        turn = [_TURNED if t else _PLAIN for t in step.turned]
        self._checked(
            "cublasGemmStridedBatchedEx", self.handle, turn[1], turn[0], step.n, step.m, step.k, ctypes.byref(real(1)),
            b, data, step.k if step.turned[1] else step.n, ctypes.c_longlong(step.strides[1]),
            a, data, step.m if step.turned[0] else step.k, ctypes.c_longlong(step.strides[0]), ctypes.byref(real(0)),
            out, data, step.n, ctypes.c_longlong(step.m * step.n), step.batch, compute, _DEFAULT_ALGORITHM,
        )  # fmt: skip

    def _checked(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, name)(*arguments)
        if status:
            raise SuperoptError(f"{name} failed with status {status}")


def _library(name: str) -> ctypes.CDLL:
    """A CUDA library: that of an NVIDIA wheel, else the system's.

    Raises:
        BackendUnavailable: it is not installed.
    """
    try:
        loaded = import_module("cuda.pathfinder").load_nvidia_dynamic_lib(name)
        return ctypes.CDLL(loaded.abs_path)
    except (ImportError, RuntimeError, OSError) as error:
        for version in (13, 12):
            try:
                return ctypes.CDLL(f"lib{name}.so.{version}")
            except OSError:
                continue
        raise BackendUnavailable(f"lib{name} is not here", hint="install the extra superopt[cuda]") from error


def _dnn(stream: int) -> tuple[Any, Any] | None:
    """cuDNN's frontend and a handle on the stream, or ``None`` where it is not installed."""
    try:
        module = import_module("cudnn")
        handle = module.create_handle()
        module.set_stream(stream=stream, handle=handle)
    except (ImportError, OSError, RuntimeError):
        return None
    return module, handle


class _ConvolutionPlan:
    """A built cuDNN plan for one convolution; ``workspace`` in bytes."""

    def __init__(self, graph: Any, tensors: Sequence[Any], handle: Any) -> None:
        self.graph, self.tensors, self.handle = graph, tensors, handle
        self.workspace = int(graph.get_workspace_size())

    @classmethod
    def make(cls, dnn: tuple[Any, Any], call: LibraryConvolution, precision: str) -> _ConvolutionPlan | None:
        """The best precompiled plan; ``None`` where cuDNN has none (plans compiled at run time cost seconds each)."""
        module, handle = dnn
        kinds = {DType.FLOAT32: "FLOAT", DType.FLOAT16: "HALF", DType.BFLOAT16: "BFLOAT16"}
        data, real = getattr(module.data_type, kinds[call.dtype]), module.data_type.FLOAT
        graph = module.pygraph(io_data_type=data, intermediate_data_type=real, compute_data_type=real, handle=handle)
        inputs = [
            graph.tensor(name=name, dim=list(shape), stride=_strides(shape), data_type=data)
            for name, shape in zip(("X", "W"), call.shapes[:2], strict=True)
        ]
        top, left, bottom, right = call.pads
        made = graph.conv_fprop(
            image=inputs[0], weight=inputs[1], pre_padding=[top, left], post_padding=[bottom, right],
            stride=list(call.strides), dilation=list(call.dilations), compute_data_type=real,
        )  # fmt: skip
        if len(call.shapes) == 4:
            shape = (1, call.shapes[1][0], 1, 1)
            inputs.append(graph.tensor(name="B", dim=list(shape), stride=_strides(shape), data_type=data))
            made = graph.bias(input=made, bias=inputs[2])
        made.set_output(True).set_data_type(data).set_dim(list(call.shapes[-1])).set_stride(_strides(call.shapes[-1]))
        try:
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([module.heur_mode.A, module.heur_mode.FALLBACK])
            graph.deselect_behavior_notes([module.behavior_note.RUNTIME_COMPILATION])
            if precision == "ieee" and call.dtype is DType.FLOAT32:
                graph.deselect_numeric_notes([module.numerical_note.TENSOR_CORE])
            graph.check_support()
            graph.build_plans()
        except (module.cudnnGraphNotSupportedError, RuntimeError, ValueError):
            return None
        return cls(graph, [*inputs, made], handle)

    def launch(self, pointers: Sequence[int], workspace: int) -> None:
        """Launch on the handle's stream."""
        self.graph.execute(dict(zip(self.tensors, pointers, strict=True)), workspace, handle=self.handle)


def _strides(shape: Sequence[int]) -> list[int]:
    """Row-major strides in elements."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides
