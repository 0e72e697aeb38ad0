"""A strategy assignment problem: read from JSON, checked, and held as flat arrays.

A problem is a PBQP (partitioned boolean quadratic problem) with a limit on memory over time. The JSON is that of the
ASPLOS 2025 contest on intra-operator parallelism (``google/iopddl``), plain or compressed by gzip.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from superopt.errors import InvalidModel

__all__ = ["Integers", "StrategyAssignmentProblem", "parse_problem", "problem_from_json", "read_problem"]

Integers = NDArray[np.int64]
_MAGIC = b"\x1f\x8b"  # with which gzip begins
_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class StrategyAssignmentProblem:
    """Nodes with strategies, tables of costs on edges, and bytes over time.

    Attributes:
        name: of the problem.
        sizes: strategies by node, shape (nodes,).
        costs: cost of each strategy, all nodes in one row; costs have any unit.
        usages: bytes that each strategy holds, in the same order.
        intervals: shape (nodes, 2): a node holds its bytes at the times ``start <= t < end``.
        edges: shape (edges, 2): a pair of nodes. Several edges may join one pair; both ends may be one node.
        tables: costs of edges, row-major of shape (strategies of the first, strategies of the second), in one row.
        usage_limit: bytes that may be held at any one time.
    """

    name: str
    sizes: Integers
    costs: Integers
    usages: Integers
    intervals: Integers
    edges: Integers
    tables: Integers
    usage_limit: int

    @property
    def nodes(self) -> int:
        return len(self.sizes)

    @property
    def offsets(self) -> Integers:
        """Where the strategies of each node begin in ``costs`` and ``usages``, and their end."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    @property
    def table_offsets(self) -> Integers:
        """Where the table of each edge begins in ``tables``, and their end."""
        if not len(self.edges):
            return np.zeros(1, dtype=np.int64)
        return np.concatenate([[0], np.cumsum(self.sizes[self.edges[:, 0]] * self.sizes[self.edges[:, 1]])])

    def node_costs(self) -> Iterator[Integers]:
        """Costs of the strategies, by node."""
        yield from np.split(self.costs, self.offsets[1:-1]) if self.nodes else ()

    def node_usages(self) -> Iterator[Integers]:
        """Bytes of the strategies, by node."""
        yield from np.split(self.usages, self.offsets[1:-1]) if self.nodes else ()

    def edge_tables(self) -> Iterator[tuple[int, int, Integers]]:
        """First node, second node and table, by edge."""
        sizes, offsets = self.sizes.tolist(), self.table_offsets.tolist()
        for (a, b), start, end in zip(self.edges.tolist(), offsets, offsets[1:], strict=False):
            yield a, b, self.tables[start:end].reshape(sizes[a], sizes[b])


def read_problem(path: Path) -> StrategyAssignmentProblem:
    """Read a problem.

    Args:
        path: JSON, or JSON compressed by gzip, whatever its name.

    Raises:
        InvalidModel: it is neither, or is no problem; the message names the place.
        OSError: it cannot be read.
    """
    return parse_problem(path.read_bytes(), str(path))


def parse_problem(data: bytes, where: str) -> StrategyAssignmentProblem:
    """A problem from the bytes of a file.

    Args:
        data: JSON, or JSON compressed by gzip.
        where: the file's name, for messages.

    Raises:
        InvalidModel: it is neither, or is no problem; the message names the place.
    """
    try:
        return problem_from_json(_parsed(_decompressed(data)))
    except InvalidModel as error:
        raise error.within(where) from None


def _decompressed(data: bytes) -> bytes:
    if not data.startswith(_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidModel(f"gzip data is broken: {error}", hint="copy or download the file again") from None


def _parsed(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        hint = "a problem is JSON in the format of docs/assignment.md, plain or compressed by gzip"
        raise InvalidModel(f"is not JSON: {error}", hint=hint) from None


def problem_from_json(document: object) -> StrategyAssignmentProblem:
    """A problem from parsed JSON: ``{"problem": {"nodes": …, "edges": …, "usage_limit": …}}``.

    Raises:
        InvalidModel: a key is missing, a size does not fit, an interval is reversed, or a number is no 64-bit integer.
    """
    problem = _mapping(_key(_mapping(document, ""), "problem", ""), "/problem")
    nodes = _mapping(_key(problem, "nodes", "/problem"), "/problem/nodes")
    edges = _mapping(_key(problem, "edges", "/problem"), "/problem/edges")
    costs, sizes = _rows(nodes, "costs", "/problem/nodes")
    usages, usage_sizes = _rows(nodes, "usages", "/problem/nodes")
    _fit("/problem/nodes/usages", usage_sizes, sizes, "strategies in costs")
    if len(empty := np.flatnonzero(sizes == 0)):
        _refuse(f"/problem/nodes/costs/{empty[0]}", "has no strategy", "every node needs one at least")
    if len(negative := np.flatnonzero(usages < 0)):
        node = int(np.searchsorted(np.cumsum(sizes), negative[0], side="right"))
        _refuse(f"/problem/nodes/usages/{node}", "is negative", "bytes are not")
    pairs, tables = _edges(edges, sizes)
    limit = _key(problem, "usage_limit", "/problem")
    name = problem.get("name", "")
    _integers([limit], "/problem/usage_limit")
    if not isinstance(name, str):
        _refuse("/problem/name", "is not text", "leave it out, or write text")
    return StrategyAssignmentProblem(
        name, sizes, costs, usages, _intervals(nodes, len(sizes)), pairs, tables, int(limit)
    )


def _intervals(nodes: Mapping[str, Any], count: int) -> Integers:
    where = "/problem/nodes/intervals"
    flat, widths = _rows(nodes, "intervals", "/problem/nodes")
    _fit(where, widths, np.full(count, 2), "numbers: the first moment, and the first after the last")
    intervals = flat.reshape(-1, 2)
    if len(reversed_ := np.flatnonzero(intervals[:, 0] > intervals[:, 1])):
        start, end = intervals[reversed_[0]].tolist()
        _refuse(f"{where}/{reversed_[0]}", f"[{start}, {end}] ends before it begins", "start <= end; equal: no time")
    return intervals


def _edges(edges: Mapping[str, Any], sizes: Integers) -> tuple[Integers, Integers]:
    where = "/problem/edges"
    ends, widths = _rows(edges, "nodes", where)
    tables, table_sizes = _rows(edges, "costs", where)
    _fit(f"{where}/nodes", widths, np.full(len(widths), 2), "nodes")
    pairs = ends.reshape(-1, 2)
    if len(outside := np.flatnonzero(((pairs < 0) | (pairs >= len(sizes))).any(axis=1))):
        edge, last = int(outside[0]), len(sizes) - 1
        _refuse(f"{where}/nodes/{edge}", f"{pairs[edge].tolist()} names no node", f"nodes are 0 to {last}")
    expected = sizes[pairs[:, 0]] * sizes[pairs[:, 1]]
    _fit(f"{where}/costs", table_sizes, expected, "entries: strategies of the first node × those of the second")
    return pairs, tables


def _rows(parent: Mapping[str, Any], key: str, where: str) -> tuple[Integers, Integers]:
    """A list of lists of integers as one row, and the lengths of the lists."""
    rows, where = _key(parent, key, where), f"{where}/{key}"
    if not isinstance(rows, list):
        _refuse(where, "is not a list", "write a list for each node or edge")
    for k, row in enumerate(rows):
        if not isinstance(row, list):
            _refuse(f"{where}/{k}", "is not a list", "write a list of integers")
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    flat = list(chain.from_iterable(rows))
    try:
        return _integers(flat, where), lengths
    except InvalidModel:
        for k, row in enumerate(rows):
            _integers(row, f"{where}/{k}")
        raise


def _integers(values: Sequence[object], where: str) -> Integers:
    if values and set(map(type, values)) != {int}:
        bad = next(v for v in values if type(v) is not int)
        _refuse(where, f"{json.dumps(bad)[:40]} is not an integer", "write whole numbers")
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        bad = next(v for v in values if not _LEAST <= int(str(v)) <= _MOST)
        _refuse(where, f"{str(bad)[:40]} does not fit into 64 bits", "scale the numbers down")


def _fit(where: str, lengths: Integers, expected: Integers, what: str) -> None:
    if len(lengths) != len(expected):
        _refuse(where, f"has {len(lengths)} lists, not {len(expected)}", "one for each node or edge")
    if len(different := np.flatnonzero(lengths != expected)):
        k = int(different[0])
        _refuse(f"{where}/{k}", f"has {lengths[k]} numbers", f"expected are {expected[k]} {what}")


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        _refuse(
            where or "/",
            "is not a JSON object",
            'the format is {"problem": {"nodes": …, "edges": …, "usage_limit": …}}',
        )
    return value


def _key(parent: Mapping[str, Any], key: str, where: str) -> Any:
    if key not in parent:
        _refuse(where or "/", f"the key {key!r} is missing", "see docs/assignment.md for the format")
    return parent[key]


def _refuse(where: str, what: str, hint: str) -> NoReturn:
    raise InvalidModel(what, where=where, hint=hint)
