"""Generated kernels run on the CPU: the same text, compiled by the host's C++ compiler, block by block.

Not a way to be fast: a way to know, without a GPU, that plans and kernels compute what they should. A kernel whose
threads meet at barriers runs with one thread a block, so what this cannot show is races, occupancy and time.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np

from superopt.ir.errors import BackendUnavailable, SuperoptError
from superopt.ir.terms import AttributeValue
from superopt.ir.types import TensorType
from superopt.ops import REGISTRY
from superopt.runtime.cuda.execution_plan import KernelLaunch, Step
from superopt.runtime.cuda.kernel_source import PRELUDE, CudaKernel
from superopt.runtime.cuda.vendor_libraries import Call, LibraryConvolution, LibraryMatMul
from superopt.runtime.reference import evaluate_application

__all__ = ["HostDriver", "compiled"]

SHIM = """\
#include <cmath>
#include <cstring>
using namespace std;
#define DEVICE inline
#define BARRIER
#define __global__
#define __shared__ static
#define __restrict__
static struct Three { int x; } blockIdx, threadIdx, blockDim;
DEVICE float bits_as_float(unsigned b) { float x; memcpy(&x, &b, 4); return x; }
DEVICE unsigned float_as_bits(float x) { unsigned b; memcpy(&b, &x, 4); return b; }
DEVICE float half_to_float(unsigned short h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
DEVICE unsigned short float_to_half(float f) {
  _Float16 x = (_Float16)f; unsigned short h; memcpy(&h, &x, 2); return h;
}
"""


def compiled(kernels: Iterable[CudaKernel], *, optimise: int = 1) -> ctypes.CDLL:
    """Kernels as a library of the host.

    Raises:
        BackendUnavailable: there is no C++ compiler.
        SuperoptError: a kernel does not compile, which is a bug.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise BackendUnavailable("there is no C++ compiler to run kernels on the CPU with", hint="install g++")
    text = SHIM + PRELUDE + "".join(k.source + _driver(k) for k in {k.name: k for k in kernels}.values())
    folder = Path(tempfile.mkdtemp(prefix="superopt-kernels-"))
    try:
        source, made = folder / "kernels.cpp", folder / "kernels.so"
        source.write_text(text)
        flags = [f"-O{optimise}", "-std=c++17", "-shared", "-fPIC", "-w", "-ffp-contract=off"]
        done = subprocess.run([compiler, *flags, str(source), "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise SuperoptError(f"a generated kernel does not compile: {done.stderr[:2000]}")
        return ctypes.CDLL(str(made))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _driver(kernel: CudaKernel) -> str:
    """A function that goes through a kernel's blocks and threads. How many there are is the launch's to say: kernels of
    the same text are one."""
    arguments = ", ".join(f"({kind})p[{i}]" for i, kind in enumerate(kernel.pointers))
    return (
        f'extern "C" void run_{kernel.name}(void** p, int blocks, int threads) {{\n  blockDim.x = threads;\n'
        "  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)\n"
        f"    for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) {kernel.name}({arguments});\n}}\n"
    )


class HostDriver:
    """A :class:`superopt.runtime.cuda.session.ExecutionDevice` whose device is the CPU; library calls run in float64.

    Args:
        library: compiled kernels, when they were made before; else ``prepare`` makes them.
    """

    def __init__(self, library: ctypes.CDLL | None = None) -> None:
        self.library = library
        self.memory: list[mmap.mmap] = []

    def supports(self, call: Call) -> bool:
        """Everything runs."""
        return True

    def prepare(self, steps: Sequence[Step]) -> None:
        """Compile the kernels."""
        if self.library is None:
            self.library = compiled(s.kernel for s in steps if isinstance(s, KernelLaunch))

    def allocate(self, nbytes: int) -> int:
        """Zeroed memory at a multiple of 256 bytes, before a page that must not be touched.

        A kernel that goes past the end of an array stops here every time; on a device it would now and then.
        """
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.memory.append(mmap.mmap(-1, size + mmap.PAGESIZE))
        start = ctypes.addressof(ctypes.c_char.from_buffer(self.memory[-1]))
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(start + size), mmap.PAGESIZE, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        return start + (size - nbytes) // 256 * 256

    def upload(self, pointer: int, array: np.ndarray) -> None:
        """Copy to an address."""
        ctypes.memmove(pointer, array.ctypes.data, array.nbytes)

    def download(self, pointer: int, array: np.ndarray) -> None:
        """Copy from an address."""
        ctypes.memmove(array.ctypes.data, pointer, array.nbytes)

    def capture(self, body: Callable[[], None]) -> Callable[[], None]:
        """There is nothing to record: the body itself."""
        return body

    def step(self, step: Step, pointers: Sequence[int]) -> None:
        """Run one step."""
        match step:
            case LibraryMatMul():
                self._product(step, pointers)
            case LibraryConvolution():
                self._convolution(step, pointers)
            case KernelLaunch(kernel):
                self._kernel(kernel, pointers)

    def _kernel(self, kernel: CudaKernel, pointers: Sequence[int]) -> None:
        assert self.library is not None, "prepared first"
        threads = 1 if kernel.form == "row" else kernel.block  # one where they meet at barriers
        self.library[f"run_{kernel.name}"]((ctypes.c_void_p * len(pointers))(*pointers), kernel.grid, threads)

    def _product(self, step: LibraryMatMul, pointers: Sequence[int]) -> None:
        shapes = [
            (step.batch if step.strides[0] else 1, *((step.k, step.m) if step.turned[0] else (step.m, step.k))),
            (step.batch if step.strides[1] else 1, *((step.n, step.k) if step.turned[1] else (step.k, step.n))),
            (step.batch, step.m, step.n),
        ]
        a, b, out = (_view(p, s, step.dtype.numpy) for p, s in zip(pointers, shapes, strict=True))
        left, right = a.astype(np.float64), b.astype(np.float64)
        left = left.swapaxes(1, 2) if step.turned[0] else left
        right = right.swapaxes(1, 2) if step.turned[1] else right
        out[...] = left @ right

    def _convolution(self, step: LibraryConvolution, pointers: Sequence[int]) -> None:
        arrays = [_view(p, s, step.dtype.numpy) for p, s in zip(pointers, step.shapes, strict=True)]
        attributes: Mapping[str, AttributeValue] = {
            "strides": step.strides, "pads": step.pads, "dilations": step.dilations, "group": step.group,
        }  # fmt: skip
        types = [TensorType(step.dtype, s) for s in step.shapes[:-1]]
        arrays[-1][...] = evaluate_application(REGISTRY["Conv"], attributes, arrays[:-1], types)[0]


def _view(pointer: int, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Memory at an address as an array."""
    raw = (ctypes.c_ubyte * (prod(shape) * dtype.itemsize)).from_address(pointer)
    return np.ctypeslib.as_array(raw).view(dtype).reshape(shape)
