"""What may be run at all: a model that would take terabytes or years is refused before it is given to a runtime.

Sizes are read from the inferred types, so refusing costs nothing. What types do not show (subgraphs, custom operators,
sizes that depend on data) is bounded while it runs: memory by the system, time by ONNX Runtime's own switch
(:mod:`superopt.runtime.watchdog`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

from onnx import AttributeProto, ModelProto

from superopt.formats.onnx_nodes import expanded_nodes, more_subgraphs
from superopt.ir.errors import ResourceLimit
from superopt.ir.graph import Graph, OpaqueAttribute, label
from superopt.ir.size_polynomial import symbols, value_at
from superopt.ir.types import TensorType
from superopt.ops.flops_and_bytes import flops
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.ops.shape_inference import CanonicalNode, InferredTypes, infer, small_of_weight

__all__ = [
    "LARGE",
    "available",
    "bounded_memory",
    "give_back",
    "refuse_unbounded",
    "resident",
    "thrifty_heap",
]

SIZE = 8  # of a symbolic dimension whose size is not given
MOST_FLOPS = 4e12  # of one operator: a minute or two on a core, in which nothing can interrupt it
MOST_NODES = 100_000  # after inlining the model's own functions; ONNX Runtime takes half a minute for as many
MOST_SUBGRAPHS = 5_000  # ONNX Runtime takes 0.25 ms and more for each, in every session; branches that nest double
_SUBGRAPH_BYTES = 2  # that a subgraph has at least
MOST_TURNS = 1_000_000  # of a loop with a known trip count
LARGE = 1 << 30  # bytes of weights above which a model is handled through files and place by place, to bound memory
ABSURD = 32 << 30  # bytes of values alive at once
_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # glibc's numbers of these settings
# Bytes from which memory is mapped for itself. By default that grows with what is freed, to 32 MiB, and as much stays.
_MAPPED = 1 << 22
_FALLBACK = 4 << 30  # bytes, where the system does not say


def available() -> int:
    """Bytes of memory that can still be had: what the system and the process's control group have left."""
    found = [_FALLBACK]
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = [int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]) << 10]
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        found.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    soft = resource.getrlimit(resource.RLIMIT_AS)[0]
    return max(0, min(found + ([soft] if soft > 0 else [])))


def resident() -> int:
    """Bytes of memory that the process occupies; 0 where the system does not say."""
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0


def give_back() -> None:
    """Hand free memory back to the system, where the C library has a way to: it keeps what a session was made with, of
    which only half is still in use (ResNet-50: 100 of 245 MB)."""
    _trimmer()(0)


@lru_cache(maxsize=1)
def _trimmer() -> Callable[[int], int]:
    found: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    return found or (lambda _: 0)


def thrifty_heap() -> None:
    """Let all threads of this process allocate from one heap, and map what is large for itself, where the C library has
    a way to: of other heaps the free end is never handed back (ResNet-50: 24 MiB, SegFormer 53), and of one heap not
    what lies under a part in use (SegFormer: 128 MiB, Whisper's encoder 30). For whoever owns the process: allocating
    in turn is its price, which few large allocations do not feel."""
    choose: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if choose is not None and hasattr(os, "confstr") and "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or ""):
        choose(_ARENA_MAX, 1)
        choose(_MMAP_THRESHOLD, _MAPPED)


def refuse_unbounded(
    graph: Graph,
    sizes: Mapping[str, int] | None = None,
    *,
    typing: InferredTypes | None = None,
    copies: float = 1.0,
    absurd: bool = False,
) -> None:
    """Pass a graph that can be run in reasonable time and memory.

    Args:
        graph: a checked graph.
        sizes: of symbolic dimensions; others count as 8.
        typing: its types, if at hand.
        copies: how many times the memory of one run is needed (a reference in float64 needs more).
        absurd: refuse only what no machine of today's would run: more than 32 GiB, whatever is left here.

    Raises:
        ResourceLimit: it needs more than half of the memory that is left, or an operator more than 4·10¹² operations,
            a loop more than 10⁶ turns, its functions expand to more than 10⁵ nodes, or it holds more than 5,000
            subgraphs.
    """
    typing = typing or infer(graph, sizes)
    _refuse_functions(graph)
    if not absurd:
        _refuse_subgraphs(graph)
    limit = max(available() / 2 / copies, ABSURD if absurd else 0)
    total = 0
    last = {name: i for i, node in enumerate(graph.nodes) for name in node.reads}
    ends: dict[int, list[int]] = {}
    outputs = {v.name for v in graph.outputs}
    total = sum(_bytes(typing.types.get(v.name), sizes) for v in graph.inputs)
    _fits(total, limit, "its inputs")
    for position, (node, found) in enumerate(zip(graph.nodes, typing.nodes, strict=True)):
        for name in node.outputs:
            size = _bytes(typing.types.get(name), sizes) if name else 0
            total += size
            if size and name not in outputs:
                ends.setdefault(last.get(name, position), []).append(size)
        _fits(total, limit, label(node))
        total -= sum(ends.pop(position, ()))
        if isinstance(found, CanonicalNode) and not absurd:
            _refuse_work(found, typing, sizes, label(node))
        elif not isinstance(found, CanonicalNode) and node.op == "Loop" and node.inputs[:1] != ("",):
            turns = _constant(graph, typing, node.inputs[0])
            if turns is not None and turns > MOST_TURNS:
                raise ResourceLimit(f"it turns {turns:.3g} times", where=label(node))


def _refuse_functions(graph: Graph) -> None:
    functions = ModelProto.FromString(graph.extras.get("onnx.model", b"")).functions
    if not functions:
        return
    calls = [(n.domain, n.op, n.overload) for n in graph.nodes]
    nested = [(f.domain, f.name, f.overload) for f in functions]  # a subgraph may call any of them
    count = expanded_nodes(functions, [*calls, *nested])
    if count > MOST_NODES:
        raise ResourceLimit(f"the model's functions expand to {count:.3g} nodes")


def _refuse_subgraphs(graph: Graph) -> None:
    payloads = [a.payload for n in graph.nodes for a in n.attributes.values() if isinstance(a, OpaqueAttribute)]
    if sum(map(len, payloads)) <= _SUBGRAPH_BYTES * MOST_SUBGRAPHS:
        return
    attributes = [AttributeProto.FromString(payload) for payload in payloads]
    if more_subgraphs(
        (g for a in attributes for g in [*([a.g] if a.HasField("g") else ()), *a.graphs]), MOST_SUBGRAPHS
    ):
        raise ResourceLimit(f"the model holds more than {MOST_SUBGRAPHS:,} subgraphs")


def _constant(graph: Graph, typing: InferredTypes, name: str) -> int | None:
    """The one integer that a value holds, where it is known."""
    weight = graph.constants.get(name)
    known = typing.values.get(name) or (None if weight is None else small_of_weight(weight))
    array = None if known is None else known.array
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _fits(total: int, limit: float, where: str) -> None:
    if total > limit:
        raise ResourceLimit(f"running it would take {total / 2**30:.3g} GiB of memory and more", where=where)


def _bytes(kind: TensorType | None, sizes: Mapping[str, int] | None) -> int:
    if kind is None or kind.shape is None:
        return 0
    count = kind.dtype.bits
    for size in kind.shape:
        count *= size if isinstance(size, int) else max(0, value_at(size, _Sizes(sizes or {}, symbols(size))))
    return count // 8


class _Sizes(dict[str, int]):
    def __init__(self, given: Mapping[str, int], names: frozenset[str]) -> None:
        super().__init__({n: given.get(n, SIZE) for n in names})


def _refuse_work(found: CanonicalNode, typing: InferredTypes, sizes: Mapping[str, int] | None, where: str) -> None:
    if found.operator.name not in ("MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "Attention", "Expand", "Tile"):
        return
    types = tuple(None if a is None else typing.types.get(a) for a in found.args)
    try:
        count = flops(found.operator, types, found.attributes)
    except (IllTypedOperator, ArithmeticError):
        return
    number = count if isinstance(count, int) else value_at(count, _Sizes(sizes or {}, symbols(count)))
    if number > MOST_FLOPS:
        raise ResourceLimit(f"running it would take {number:.3g} operations", where=where)


@contextlib.contextmanager
def bounded_memory(share: float = 0.75) -> Iterator[None]:
    """Allocations beyond a share of the memory that is left fail here, instead of the system killing the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        held = int(next(line for line in lines if line.startswith("VmData")).split()[1]) << 10
    except (OSError, ValueError, StopIteration):
        yield  # not Linux: the limit would mean something else
        return
    wanted = held + int(available() * share)
    if 0 <= soft <= wanted or 0 <= hard < wanted:
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
    try:
        yield
    except SystemError as error:  # an allocation failed where Python has no exception for it
        raise MemoryError(str(error)) from error
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
