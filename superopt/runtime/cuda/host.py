"""Generated kernels run on the CPU: the same text, compiled by the host's C++ compiler, block by block.

Not a way to be fast: a way to know, without a GPU, that plans and kernels compute what they should. A kernel whose
threads meet at barriers runs with one thread a block, so what this cannot show is races, occupancy and time.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from superopt.ir.errors import BackendUnavailable, SuperoptError
from superopt.ir.terms import AttributeValue
from superopt.ops import REGISTRY
from superopt.runtime.cuda.plan import Convolution, Plan, Product, Step
from superopt.runtime.cuda.source import PRELUDE, Kernel
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


def compiled(kernels: Iterable[Kernel], *, optimise: int = 1) -> ctypes.CDLL:
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


class HostDriver:
    """Runs a plan's steps over arrays in memory; ``library`` holds its compiled kernels (made here if not given)."""

    def __init__(self, plan: Plan, library: ctypes.CDLL | None = None) -> None:
        self.plan = plan
        self._library = library

    @cached_property
    def library(self) -> ctypes.CDLL:
        """The compiled kernels."""
        return self._library or compiled(self.plan.kernels)

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """All steps, the intermediates in one arena as on a device; outputs by name."""
        plan = self.plan
        held: dict[str, np.ndarray] = {}
        for name, weight in plan.graph.weight.items():
            if name in plan.types and weight.data is not None:
                held[name] = np.ascontiguousarray(weight.data.numpy()).reshape(weight.data.numpy().shape)
        held |= {name: np.ascontiguousarray(value).reshape(np.shape(value)) for name, value in feeds.items()}
        block = np.zeros(plan.arena + 256, np.uint8)
        start = -block.ctypes.data % 256
        for name in plan.empty:
            held[name] = np.empty(plan.shape(name), plan.types[name].dtype.numpy)
        for step in (*plan.setup, *plan.steps):
            kind = plan.types[step.output]
            shape = plan.shape(step.output)
            offset = plan.offsets.get(step.output)
            if offset is None:
                held[step.output] = _aligned(shape, kind.dtype.numpy)
            else:
                raw = block[start + offset : start + offset + (kind.nbytes or 0)]
                held[step.output] = raw.view(kind.dtype.numpy).reshape(shape)
            self._step(step, held)
        return {v.name: self._value(v.name, held) for v in plan.graph.outputs}

    def _value(self, name: str, held: Mapping[str, np.ndarray]) -> np.ndarray:
        return held[self.plan.root(name)].reshape(self.plan.shape(name))

    def _step(self, step: Step, held: Mapping[str, np.ndarray]) -> None:
        target = held[step.output]
        match step:
            case Product():
                target[...] = self._product(step, held).reshape(target.shape)
            case Convolution():
                target[...] = self._convolution(step, held)
            case _:
                arrays = [held[self.plan.root(n)] for n in step.kernel.operands]
                self._launch(step.kernel, arrays, target)

    def _launch(self, kernel: Kernel, arrays: Sequence[np.ndarray], target: np.ndarray) -> None:
        whole = [a if a.ctypes.data % 16 == 0 else _copied(a) for a in arrays]
        pointers = (ctypes.c_void_p * (len(whole) + 1))(*(a.ctypes.data for a in (*whole, target)))
        self.library[f"run_{kernel.name}"](pointers)

    def _product(self, step: Product, held: Mapping[str, np.ndarray]) -> np.ndarray:
        a, b = (held[self.plan.root(n)].reshape(-1).astype(np.float64) for n in step.reads)
        left = a.reshape(
            step.batch if step.strides[0] else 1, *((step.k, step.m) if step.turned[0] else (step.m, step.k))
        )
        right = b.reshape(
            step.batch if step.strides[1] else 1, *((step.n, step.k) if step.turned[1] else (step.k, step.n))
        )
        left = left.swapaxes(1, 2) if step.turned[0] else left
        right = right.swapaxes(1, 2) if step.turned[1] else right
        return (left @ right).astype(step.dtype.numpy)

    def _convolution(self, step: Convolution, held: Mapping[str, np.ndarray]) -> np.ndarray:
        arrays = [self._value(n, held) for n in step.reads]
        attributes: dict[str, AttributeValue] = {
            "strides": step.strides,
            "pads": step.pads,
            "dilations": step.dilations,
            "group": step.group,
        }
        types = [self.plan.types[n] for n in step.reads]
        made = evaluate_application(REGISTRY["Conv"], attributes, arrays, types)[0]
        assert made is not None
        return made


def _aligned(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An empty array that begins at a multiple of 16 bytes."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.zeros(size + 16, np.uint8)
    start = -raw.ctypes.data % 16
    return raw[start : start + size].view(dtype).reshape(shape)


def _copied(array: np.ndarray) -> np.ndarray:
    made = _aligned(array.shape, array.dtype)
    made[...] = array
    return made


def _driver(kernel: Kernel) -> str:
    """A function that goes through a kernel's blocks and threads (one thread a block where they meet at barriers)."""
    arguments = ", ".join(f"({kind})p[{i}]" for i, kind in enumerate(kernel.pointers))
    block = 1 if kernel.form == "row" else kernel.block
    return (
        f'extern "C" void run_{kernel.name}(void** p) {{\n  blockDim.x = {block};\n'
        f"  for (blockIdx.x = 0; blockIdx.x < {kernel.grid}; ++blockIdx.x)\n"
        f"    for (threadIdx.x = 0; threadIdx.x < {block}; ++threadIdx.x) {kernel.name}({arguments});\n}}\n"
    )
