"""Running rank files: ``mpiexec -n N python -m superopt.placement.execution DIR [--inputs FILE.npz] [--model MODEL]``.

ONNX Runtime runs what lies between collectives; mpi4py (extra ``mpi``) or, in one process, threads do the collectives.
Without mpiexec all ranks are threads of one process, as a check; their time says nothing of the devices.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from superopt.errors import BackendUnavailable, InvalidModel
from superopt.formats import load, to_onnx_bytes
from superopt.ir.graph import Graph, Node, Value
from superopt.ops.shape_inference import infer
from superopt.placement.placements import DOMAIN, coordinates, parse_placement
from superopt.placement.plan import PLAN, rank_name
from superopt.placement.rank_files import piece_bounds
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.protocol import LoadedModel
from superopt.runtime.synthetic_tensors import feeds_for
from superopt.verifier.check.output_errors import error_of

__all__ = ["RankProgram", "Transport", "main", "run_in_threads", "whole_outputs"]

Arrays = dict[str, np.ndarray]


class Transport(Protocol):
    """How ranks exchange arrays: each method is called by all ranks of a group, with pieces of one shape."""

    def all_reduce(self, group: Sequence[int], piece: np.ndarray) -> np.ndarray:
        """The sum of the pieces."""
        ...

    def all_gather(self, group: Sequence[int], piece: np.ndarray) -> list[np.ndarray]:
        """All pieces, in the order of the group."""
        ...

    def all_to_all(self, group: Sequence[int], parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """From each rank the part that it has for this one."""
        ...

    def reduce_scatter(self, group: Sequence[int], parts: Sequence[np.ndarray]) -> np.ndarray:
        """The sum of what the ranks have for this one."""
        ...


class Threads:
    """Ranks as threads of one process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._boards: dict[tuple[int, ...], tuple[threading.Barrier, list[Any]]] = {}
        self._lock = threading.Lock()

    def transport(self, rank: int) -> Transport:
        """What a rank exchanges by."""
        return _ThreadTransport(self, rank)

    def gathered(self, group: Sequence[int], rank: int, item: Any) -> list[Any]:
        """What each rank of a group brought."""
        key = tuple(group)
        with self._lock:
            barrier, board = self._boards.setdefault(key, (threading.Barrier(len(key)), [None] * len(key)))
        board[key.index(rank)] = item
        barrier.wait()
        found = list(board)
        barrier.wait()
        return found

    def abort(self) -> None:
        """End the waiting of all ranks, when one has failed."""
        with self._lock:
            for barrier, _ in self._boards.values():
                barrier.abort()


@dataclass(frozen=True)
class _ThreadTransport:
    threads: Threads
    rank: int

    def all_reduce(self, group: Sequence[int], piece: np.ndarray) -> np.ndarray:
        return _total(self.threads.gathered(group, self.rank, piece))

    def all_gather(self, group: Sequence[int], piece: np.ndarray) -> list[np.ndarray]:
        return self.threads.gathered(group, self.rank, piece)

    def all_to_all(self, group: Sequence[int], parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        place = list(group).index(self.rank)
        return [given[place] for given in self.threads.gathered(group, self.rank, parts)]

    def reduce_scatter(self, group: Sequence[int], parts: Sequence[np.ndarray]) -> np.ndarray:
        return _total(self.all_to_all(group, parts))


def _total(pieces: Sequence[np.ndarray]) -> np.ndarray:
    total = pieces[0].copy()
    for piece in pieces[1:]:
        total += piece
    return total


class MpiTransport:
    """Ranks as processes of an MPI job.

    Raises:
        BackendUnavailable: mpi4py is missing.
    """

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except ImportError as error:
            raise BackendUnavailable(f"mpi4py cannot be loaded: {error}", hint="pip install superopt[mpi]") from error
        self._mpi: Any = MPI
        self.world: Any = MPI.COMM_WORLD
        self._known: dict[tuple[int, ...], Any] = {}

    def _among(self, group: Sequence[int]) -> Any:
        key = tuple(group)
        if key not in self._known:
            self._known[key] = self.world.Create_group(self.world.Get_group().Incl(list(key)))
        return self._known[key]

    def all_reduce(self, group: Sequence[int], piece: np.ndarray) -> np.ndarray:
        result = np.empty_like(piece, order="C")
        self._among(group).Allreduce(np.ascontiguousarray(piece), result, op=self._mpi.SUM)
        return result

    def all_gather(self, group: Sequence[int], piece: np.ndarray) -> list[np.ndarray]:
        result = np.empty((len(group), *piece.shape), piece.dtype)
        self._among(group).Allgather(np.ascontiguousarray(piece), result)
        return list(result)

    def all_to_all(self, group: Sequence[int], parts: Sequence[np.ndarray]) -> list[np.ndarray]:
        given = np.stack(parts)
        result = np.empty_like(given)
        self._among(group).Alltoall(given, result)
        return list(result)

    def reduce_scatter(self, group: Sequence[int], parts: Sequence[np.ndarray]) -> np.ndarray:
        given = np.stack(parts)
        result = np.empty(given.shape[1:], given.dtype)
        self._among(group).Reduce_scatter_block(given, result, op=self._mpi.SUM)
        return result


# -- A rank ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Segment:
    """Nodes between collectives, as a model."""

    model: LoadedModel
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass
class RankProgram:
    """A rank's file, ready to run: segments and collectives in order."""

    steps: list[_Segment | Node]
    outputs: tuple[str, ...]
    weights: Arrays = field(default_factory=dict)

    @staticmethod
    def from_graph(graph: Graph, threads: int = 1) -> RankProgram:
        """Cut a rank's graph at its collectives.

        Args:
            graph: of a rank file.
            threads: of ONNX Runtime in each operator.
        """
        types = infer(graph).types
        runs: list[list[Node]] = [[]]
        for node in graph.nodes:
            runs[-1].append(node) if node.domain != DOMAIN else runs.extend(([node], []))
        needed = {o.name for o in graph.outputs}
        steps: list[_Segment | Node] = []
        weights: Arrays = {}
        for run in reversed([r for r in runs if r]):
            reads = {n for node in run for n in node.reads}
            if run[0].domain == DOMAIN:
                steps.append(run[0])
                weights |= {n: w.data.numpy() for n in reads if (w := graph.weight.get(n)) is not None and w.data}
            else:
                made = [o for node in run for o in node.outputs if o]
                outputs = tuple(o for o in made if o in needed)
                inputs = tuple(sorted(reads - set(made) - graph.weight.keys()))
                part = replace(
                    graph, nodes=tuple(run), inputs=tuple(Value(n, types[n]) for n in inputs), values=(), extras={},
                    outputs=tuple(Value(n, types[n]) for n in outputs),
                    weights=tuple(w for w in graph.weights if w.name in reads),
                    opset={d: v for d, v in graph.opset.items() if d != DOMAIN},
                )  # fmt: skip
                steps.append(_Segment(ONNX_RUNTIME.load(to_onnx_bytes(part), threads=threads), inputs, outputs))
            needed |= reads
        return RankProgram(steps[::-1], tuple(o.name for o in graph.outputs), weights)

    def run(self, feeds: Mapping[str, np.ndarray], transport: Transport, rank: int) -> Arrays:
        """The rank's pieces of the outputs, from its pieces of the inputs."""
        known = {**self.weights, **feeds}
        for step in self.steps:
            if isinstance(step, _Segment):
                known |= step.model.run({n: known[n] for n in step.inputs}, step.outputs)
            else:
                known[step.outputs[0]] = _exchanged(step, known[step.inputs[0]], transport, rank)
        return {n: known[n] for n in self.outputs}


def _exchanged(node: Node, piece: np.ndarray, transport: Transport, rank: int) -> np.ndarray:
    group = [r for r in _integers(node, "group") if isinstance(r, int)]
    match node.op:
        case "AllReduce":
            return transport.all_reduce(group, piece)
        case "AllGather":
            return np.concatenate(transport.all_gather(group, piece), axis=_integers(node, "gather_axis")[0])
        case "ReduceScatter":
            return transport.reduce_scatter(group, np.split(piece, len(group), axis=_integers(node, "split_axis")[0]))
        case "AllToAll":
            parts = np.split(piece, len(group), axis=_integers(node, "split_axis")[0])
            return np.concatenate(transport.all_to_all(group, parts), axis=_integers(node, "gather_axis")[0])
    raise InvalidModel(f"{node.op} is no collective", where=f"rank {rank}, {node.name}")


def _integers(node: Node, name: str) -> tuple[int, ...]:
    value = node.attributes.get(name)
    if isinstance(value, int):
        return (value,)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


# -- All ranks -------------------------------------------------------------------------------------------------------


def pieces_of(arrays: Mapping[str, np.ndarray], plan: Mapping[str, Any], rank: int) -> Arrays:
    """A rank's pieces of whole inputs."""
    mesh = plan["mesh"]
    place = coordinates(rank, mesh)
    found = {}
    for name, texts in plan["inputs"].items():
        spec = tuple(map(parse_placement, texts))
        found[name] = np.ascontiguousarray(arrays[name][piece_bounds(arrays[name].shape, spec, mesh, place)])
    return found


def whole_outputs(pieces: Sequence[Mapping[str, np.ndarray]], plan: Mapping[str, Any]) -> Arrays:
    """Whole outputs from the pieces of all ranks."""
    mesh = plan["mesh"]
    found = {}
    for name, texts in plan["outputs"].items():
        spec = tuple(map(parse_placement, texts))
        shape = list(pieces[0][name].shape)
        for placement, count in zip(spec, mesh, strict=True):
            if placement.kind == "split":
                shape[placement.axis] *= count
        whole = np.empty(shape, pieces[0][name].dtype)
        for rank, outputs in enumerate(pieces):
            whole[piece_bounds(shape, spec, mesh, coordinates(rank, mesh))] = outputs[name]
        found[name] = whole
    return found


def run_in_threads(folder: Path, feeds: Mapping[str, np.ndarray]) -> Arrays:
    """The outputs of the ranks of a plan, as threads of this process."""
    plan = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    count = len(plan["devices"])
    programs = [RankProgram.from_graph(load(folder / rank_name(r))) for r in range(count)]
    ranks, found, failures = Threads(count), dict[int, Arrays](), list[BaseException]()

    def work(rank: int) -> None:
        try:
            found[rank] = programs[rank].run(pieces_of(feeds, plan, rank), ranks.transport(rank), rank)
        except BaseException as error:  # raised below, in the thread that waits
            failures.append(error)
            ranks.abort()

    started = [threading.Thread(target=work, args=(rank,)) for rank in range(count)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if failures:
        raise next((f for f in failures if not isinstance(f, threading.BrokenBarrierError)), failures[0])
    return whole_outputs([found[r] for r in range(count)], plan)


def _timed(run: Callable[[], Arrays], runs: int, wait: Callable[[], object]) -> tuple[Arrays, float]:
    """The result of a run, and the median seconds of so many more."""
    result, seconds = run(), []
    for _ in range(runs):
        wait()
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return result, float(np.median(seconds)) if seconds else 0.0


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, metavar="DIR", help="what superopt place -o wrote")
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz", help="whole inputs by name")
    parser.add_argument("--model", type=Path, help="the model, for inputs where none are given, and to compare with")
    parser.add_argument("--runs", type=int, default=0, help="runs that are timed")
    options = parser.parse_args()
    original = None if options.model is None else load(options.model)
    if options.inputs is not None:
        feeds = dict(np.load(options.inputs))
    elif original is not None:
        feeds = dict(feeds_for(original))
    else:
        parser.error("--inputs or --model")
    transport = MpiTransport()
    world = transport.world
    rank, count = int(world.Get_rank()), int(world.Get_size())
    plan = json.loads((options.folder / PLAN).read_text(encoding="utf-8"))
    if count not in (1, len(plan["devices"])):
        parser.error(f"the plan is for {len(plan['devices'])} ranks, not {count}")
    if count == 1:
        whole, seconds = _timed(lambda: run_in_threads(options.folder, feeds), options.runs, lambda: None)
    else:
        program = RankProgram.from_graph(load(options.folder / rank_name(rank)))
        own = pieces_of(feeds, plan, rank)
        pieces, seconds = _timed(lambda: program.run(own, transport, rank), options.runs, world.Barrier)
        gathered = world.gather(pieces, root=0)
        seconds = max(world.allgather(seconds))
        whole = {} if rank else whole_outputs(gathered, plan)
    if rank == 0:
        _say(whole, seconds, count, original, feeds, options.runs)


def _say(
    whole: Arrays, seconds: float, count: int, original: Graph | None, feeds: Mapping[str, np.ndarray], runs: int
) -> None:
    row: dict[str, Any] = {"ranks": count, "milliseconds": seconds * 1e3}
    if original is not None:
        loaded = ONNX_RUNTIME.load(to_onnx_bytes(original), threads=1)
        names = [o.name for o in original.outputs]
        expected, alone = _timed(lambda: loaded.run(feeds, names), runs, lambda: None)
        row |= {"one_process_milliseconds": alone * 1e3, "max_rel_error": error_of(expected, whole).relative}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
