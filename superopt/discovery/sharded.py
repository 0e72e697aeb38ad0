"""The enumeration of :mod:`.enumerate` on a fleet, by ranges of fingerprints: nobody holds all classes.

A level takes two passes. Blocks of applications are evaluated wherever there is a worker: their operands' values
travel there, and a row for each term (fingerprint, type, how it is made) travels back and into the file of its range on
disk. Then each range is joined by one worker: the first row of a fingerprint is a class, later ones are coincidences.
Ranges and blocks do not depend on the number of workers, and rows keep their places, so that the outcome is that of one
process, term by term. Only classes that are operands of the next level are kept, by the client; those of the last
level, which are by far the most, are rows in the ranges.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import io
import os
import platform
import tempfile
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from superopt.discovery.config import OperatorVocabulary
from superopt.discovery.enumerate import (
    BATCH,
    Enumeration,
    EnumerationCounts,
    TermEnumerator,
    TermEquivalenceClass,
    algebra_of,
    begun,
    written_as,
)
from superopt.discovery.equal_term_pairs import CompactTermPairs, TemplateApplication
from superopt.discovery.result_cache import code_digest, digest_of
from superopt.discovery.template import TypedTemplate
from superopt.fleet import TaskResultStore, WorkerPool, WorkerTask
from superopt.ir.terms import Term, variables
from superopt.ir.types import TensorType
from superopt.runtime.comprehension_evaluation import Array
from superopt.verifier.exact.sampling import SizeSample

__all__ = ["ShardTaskCost", "TermSizeCosts", "DistributedEnumerationStatistics", "enumerate_sharded"]

_BLOCK = BATCH  # applications that are evaluated by one task; the client holds eight results a worker
_VALUED = BATCH // 2  # where values go back too, which take ten times the memory of rows
_MMAP_THRESHOLD, _LARGE = -3, 1 << 18  # mallopt(3): bytes from which memory is taken from the system, and goes back
_EARLIER = np.int64(-(1 << 62))  # places of classes of earlier levels: this plus their number
Group = tuple[int, tuple[TensorType, ...], Array]  # template, types of the operands, and the operands, a row each


@dataclass(frozen=True)
class ShardTaskCost:
    """What one task took: seconds of processor time, bytes of arrays sent to it and received, rows of terms; and the
    process that did it."""

    seconds: float
    sent: int
    received: int
    rows: int
    worker: int = 0


@dataclass
class TermSizeCosts:
    """What one size took: its tasks, and the client's own processor time between them and after the last."""

    blocks: list[ShardTaskCost] = field(default_factory=list)
    joins: list[ShardTaskCost] = field(default_factory=list)
    submitting: float = 0.0
    collecting: float = 0.0
    finishing: float = 0.0


@dataclass
class DistributedEnumerationStatistics:
    """What a sharded enumeration took, for the capacity plan (lab/notes/scale.md).

    Attributes:
        sizes: costs by size.
        rows: terms; ``row_bytes``: of one; ``largest``: the most rows that one worker held.
    """

    sizes: list[TermSizeCosts] = field(default_factory=list)
    rows: int = 0
    row_bytes: int = 0
    largest: int = 0

    def as_json(self) -> dict[str, float]:
        """Sums, as the log of a theme has them."""
        blocks = [c for s in self.sizes for c in s.blocks]
        joins = [c for s in self.sizes for c in s.joins]
        return {
            "rows": self.rows, "row_bytes": self.row_bytes, "most_rows_held": self.largest,
            "blocks": len(blocks), "joins": len(joins),
            "block_seconds": sum(c.seconds for c in blocks), "join_seconds": sum(c.seconds for c in joins),
            "block_bytes": sum(c.sent + c.received for c in blocks),
            "join_bytes": sum(c.sent + c.received for c in joins),
            "client_seconds": sum(s.submitting + s.collecting + s.finishing for s in self.sizes),
        }  # fmt: skip


def enumerate_sharded(
    theme: OperatorVocabulary,
    points: Sequence[SizeSample],
    seed: int,
    most: int,
    *,
    shards: int,
    fleet: WorkerPool,
    kept: TaskResultStore | None = None,
    folder: Path | None = None,
    progress: Callable[[EnumerationCounts], None] | None = None,
) -> tuple[Enumeration, DistributedEnumerationStatistics]:
    """What :func:`.enumerate_terms` finds, made by a fleet; ``classes`` lack those of the last size, and all values.

    Args:
        theme: the vocabulary.
        points: concrete sizes and attributes at which values are compared.
        seed: of the elements.
        most: stop beyond this many terms.
        shards: ranges of fingerprints; a worker holds one at a time. They do not change the outcome.
        fleet: what evaluates and joins.
        kept: where finished tasks are kept.
        folder: where ranges are kept while a level lasts; a temporary one by default.
        progress: called after each size.
    """
    _give_back()
    builder = begun(theme, points, seed, most)
    key = digest_of("sharded", code_digest(), theme.text, theme.operators, [repr(p) for p in points], seed)
    run = _Sharded(builder, shards, fleet, kept, key, DistributedEnumerationStatistics())
    for size in range(1, theme.operators + 1):
        with tempfile.TemporaryDirectory(dir=folder, prefix="ranges-") as place:
            run.grow(size, last=size == theme.operators, ranges=Path(place))
        if progress is not None:
            progress(builder.found.levels[-1])
        if not builder.found.complete:
            break
    return builder.found, run.traffic


@dataclass
class _Sharded:
    builder: TermEnumerator
    shards: int
    fleet: WorkerPool
    checkpoints: TaskResultStore | None
    key: str
    traffic: DistributedEnumerationStatistics
    groups: list[tuple[int, tuple[TensorType, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        arity = max([len(t.holes) for t in self.builder.theme.vocabulary] + [1])
        self.dtype = _row_type(arity, len(self.builder.points))
        self.traffic.row_bytes = self.dtype.itemsize
        self.values: dict[int, tuple[Array, ...]] = {}  # of the size that grows, by place
        self.stacks: dict[TensorType, tuple[Array, ...]] = {}  # values of classes of a type, at each point
        self.rows: list[int] = []  # of a class in its type's
        self._stack()
        self.pairs = CompactTermPairs(tuple(self.builder.pairs), [c.term for c in self.builder.found.classes], arity)
        self.builder.found.pairs = self.pairs

    def grow(self, size: int, *, last: bool, ranges: Path) -> None:
        """All terms of a size."""
        self.values = {}
        self.size_costs = TermSizeCosts()
        self.traffic.sizes.append(self.size_costs)
        first, position = self.traffic.rows, 0
        source, more = self._timed(self._blocks(size, _BLOCK if last else _VALUED)), True

        def tasks() -> Iterator[WorkerTask[dict[str, Any]]]:
            nonlocal more
            for block in source:
                if block is None:
                    more = True
                    return
                yield self._block(block, keep=not last, size=size)

        while more:
            more = False
            for outcome in self.fleet.map(tasks(), kept=self.checkpoints):
                clock = time.thread_time()
                arrays, block = _unpacked(outcome.result()), outcome.task.arguments[2]
                rows = arrays["rows"]
                rows["place"] = np.arange(position, position + len(rows))
                rows["group"] += block.first
                for kind in range(int(arrays["kinds"])):
                    each = zip(*(arrays[f"values-{kind}-{n}"] for n in range(len(self.builder.points))), strict=True)
                    self.values.update(zip((arrays[f"firsts-{kind}"] + position).tolist(), each, strict=True))
                position += len(rows)
                self._spool(rows, ranges)
                sent = sum(v.nbytes for _, values in block.values for v in values)
                self.size_costs.blocks.append(_cost(sent, len(rows), outcome.result(), arrays))
                self.size_costs.collecting += time.thread_time() - clock
            self.builder.terms = self.builder.terms - self._pending + position - (self.traffic.rows - first)
            self.traffic.rows = first + position
        self._joined(size, last, ranges)

    def _timed(self, blocks: Iterator[_Block | None]) -> Iterator[_Block | None]:
        """What making them takes is the client's own time."""
        while True:
            clock = time.thread_time()
            try:
                block = next(blocks)
            except StopIteration:
                return
            finally:
                self.size_costs.submitting += time.thread_time() - clock
            yield block

    def _blocks(self, size: int, most: int) -> Iterator[_Block | None]:
        """Blocks of ``most`` applications, each made when a worker wants it; ``None`` where all before it are to be
        counted first: there the bound on terms may be met."""
        builder, gathered, held = self.builder, list[Group](), 0
        self._pending = 0
        for number, types, calls in builder.groups(size):
            forms = builder.typing(number, types)
            if builder.terms > builder.most:
                if gathered:
                    yield self._gathered(gathered)
                    gathered, held = [], 0
                yield None
                self._pending = 0
                if builder.terms > builder.most:
                    builder.found.complete = False
                    return
            for part in _cut(builder, forms, calls, most):
                gathered.append((number, types, part))
                held += len(part) * len(forms)
                if held >= most:
                    yield self._gathered(gathered)
                    gathered, held = [], 0
            bound = len(calls) * sum(len(f.outputs) for f in forms)
            builder.terms += bound
            self._pending += bound
        if gathered:
            yield self._gathered(gathered)

    def _gathered(self, groups: list[Group]) -> _Block:
        first = len(self.groups)
        self.groups += [(number, types) for number, types, _ in groups]
        classes = self.builder.found.classes
        needed = set(range(len(self.builder.theme.leaves))).union(*(np.unique(c).tolist() for _, _, c in groups))
        kinds: dict[TensorType, list[int]] = {}
        for number in sorted(needed):
            kinds.setdefault(classes[number].type, []).append(number)
        values = tuple(
            (tuple(alike), tuple(stack[[self.rows[c] for c in alike]] for stack in self.stacks[kind]))
            for kind, alike in kinds.items()
        )
        return _Block(tuple(groups), values, first)

    def _block(self, block: _Block, *, keep: bool, size: int) -> WorkerTask[dict[str, Any]]:
        key = ""
        if self.checkpoints is not None:
            calls = [(n, hashlib.sha256(c.tobytes()).hexdigest()) for n, _, c in block.groups]
            key = digest_of(self.key, "block", size, keep, block.first, calls)
        theme, points = self.builder.theme, tuple(self.builder.points)
        return WorkerTask(_evaluated, (theme, points, block, keep, self.dtype.descr), f"{theme.name}, size {size}", key)

    def _spool(self, rows: Array, ranges: Path) -> None:
        """Rows into the files of their ranges."""
        number = _range_of(rows, self.shards)
        for shard in np.unique(number).tolist():
            with (ranges / str(shard)).open("ab") as file:
                file.write(rows[number == shard].tobytes())

    def _joined(self, size: int, last: bool, ranges: Path) -> None:
        """Coincidences and classes of a size, from the ranges."""
        builder, enumeration = self.builder, self.builder.found
        earlier = self._earlier()
        home = _range_of(earlier, self.shards)

        def tasks() -> Iterator[WorkerTask[dict[str, Any]]]:
            for shard in range(self.shards):
                path = ranges / str(shard)
                if not path.is_file():
                    continue
                rows = np.concatenate([earlier[home == shard], np.fromfile(path, self.dtype)])
                self.traffic.largest = max(self.traffic.largest, len(rows))
                name = f"{builder.theme.name}, size {size}, range {shard + 1} of {self.shards}"
                key = "" if self.checkpoints is None else digest_of("joined", code_digest(), last, _digest(rows))
                yield WorkerTask(_join, (rows, last), name, key)

        pairs, new, fresh = list[tuple[Array, Array, Array, Array]](), [], 0
        for outcome in self.fleet.each(tasks(), kept=self.checkpoints):
            arrays = _unpacked(outcome.result())
            rows, first = arrays["members"], arrays["first"]
            member, other = (self.pairs.compact(r, self._written) for r in (rows, first))
            pairs.append((rows["place"].copy(), first["place"].copy(), member, other))
            new.append(arrays["new"])
            fresh += int(arrays["count"])
            given = outcome.task.arguments[0]
            self.size_costs.joins.append(_cost(given.nbytes, len(given), outcome.result(), arrays))
        clock = time.thread_time()
        classes = len(builder.index)
        numbers: dict[int, int] = {}
        for row in np.sort(np.concatenate(new), order="place") if new else ():
            numbers[int(row["place"])] = self._admit(row, size)
        self._stack()
        if pairs:
            places, others, members, firsts = map(np.concatenate, zip(*pairs, strict=True))
            self._coincide(places, others, members, firsts, numbers)
        if enumeration.complete:
            enumeration.levels.append(EnumerationCounts(size, builder.terms, classes + fresh, len(enumeration.pairs)))
        self.size_costs.finishing = time.thread_time() - clock

    def _stack(self) -> None:
        """Put the values of new classes into their types' stacks: one array takes less than thousands."""
        fresh: dict[TensorType, list[TermEquivalenceClass]] = {}
        held = Counter({kind: len(stacks[0]) for kind, stacks in self.stacks.items()})
        for found_class in self.builder.found.classes[len(self.rows) :]:
            self.rows.append(held[found_class.type])
            held[found_class.type] += 1
            fresh.setdefault(found_class.type, []).append(found_class)
        for kind, some in fresh.items():
            more = [np.stack(each) for each in zip(*(c.values for c in some), strict=True)]
            known_arrays = self.stacks.get(kind)
            self.stacks[kind] = tuple(
                more if known_arrays is None else map(np.concatenate, zip(known_arrays, more, strict=True))
            )
            for found_class in some:
                found_class.values = ()
        self.values = {}

    def _coincide(
        self, places: Array, others: Array, members: Array, firsts: Array, numbers: Mapping[int, int]
    ) -> None:  # fmt: skip
        """Note coinciding terms in order: by the places of members and of what these coincide with, how each is made,
        and the classes of this size by their places."""
        order = np.argsort(places, kind="stable")
        others = others[order]
        known_array = np.where(others < 0, others - _EARLIER, -1)
        if numbers:
            known_array[others >= 0] = [numbers[p] for p in others[others >= 0].tolist()]
        self.pairs.add(members[order], firsts[order], known_array)

    def _earlier(self) -> Array:
        """Classes of earlier sizes as rows."""
        rows = np.zeros(len(self.builder.index), self.dtype)
        for number, ((kind, mark), known) in enumerate(self.builder.index.items()):
            rows[number]["place"] = _EARLIER + known
            rows[number]["kind"] = _kind(kind)
            rows[number]["mark"] = np.frombuffer(mark, np.uint64)
        return rows

    def _form(self, row: Any) -> TypedTemplate:
        number, types = self.groups[int(row["group"])]
        return self.builder.typing(number, types)[int(row["variant"])]

    def _written(self, group: int, variant: int) -> TemplateApplication:
        return written_as(self.builder.typing(*self.groups[group])[variant])

    def _admit(self, row: Any, size: int) -> int:
        """Make a class of a row, an operand of the next size."""
        builder, classes = self.builder, self.builder.found.classes
        form, output = self._form(row), int(row["output"])
        kind = form.outputs[output]
        term = builder.term_of(form, row["operands"][: len(form.holes)].tolist(), output)
        constant = all(builder.theme.is_weight(n) for n in variables(term))
        builder.index[kind, row["mark"].tobytes()] = len(classes)
        builder.by_size.setdefault(size, []).append(len(classes))
        classes.append(TermEquivalenceClass(term, kind, size, self.values[int(row["place"])], constant))
        self.pairs.classes.append(term)
        return len(classes) - 1


@dataclass(frozen=True)
class _Block:
    """Applications for one task, with the values of their operands: for each type classes, and at each point what they
    are. ``first``: the number of the first group."""

    groups: tuple[Group, ...]
    values: tuple[tuple[tuple[int, ...], tuple[Array, ...]], ...]
    first: int


def _cut(
    builder: TermEnumerator, forms: Sequence[TypedTemplate], calls: Array, most: int
) -> Iterator[Array]:  # fmt: skip
    """Calls in parts of the size of a block, in steps that are evaluated at once; whole where there are variants."""
    if len(forms) != 1:
        if forms:
            yield calls
        return
    step = builder.batch_size(forms[0])
    part = max(step, most // step * step)
    for start in range(0, len(calls), part):
        yield calls[start : start + part]


class _Recorder(TermEnumerator):
    """Evaluates applications whose operands' values it was given, and notes each term as a row."""

    def __init__(
        self, theme: OperatorVocabulary, points: Sequence[SizeSample], block: _Block, dtype: np.dtype[Any]
    ) -> None:
        super().__init__(theme, points, np.random.default_rng(0), most=0)
        self.submitting = {c: each for alike, values in block.values for c, *each in zip(alike, *values, strict=True)}
        self.use(algebra_of(theme))
        self.group = 0
        self.variants: dict[int, int] = {}
        self.row_type = dtype
        self.arity: int = dtype["operands"].shape[0]
        self.kinds, self.marks = array("Q"), bytearray()  # of terms, one after the other: as compact as rows
        self.made, self.operands = array("i"), array("i")
        self.first: dict[tuple[int, bytes], int] = {}
        self.own: dict[int, list[tuple[int, tuple[Array, ...]]]] = {}  # by type: rows and values

    def values_of(self, number: int) -> tuple[Array, ...]:
        return tuple(self.submitting[number])

    def typing(self, number: int, types: tuple[TensorType, ...]) -> list[TypedTemplate]:
        found = super().typing(number, types)
        self.variants = {id(form): n for n, form in enumerate(found)}
        return found

    def add_term(
        self, term: Term | None, kind: TensorType, size: int, values: tuple[Array, ...], *, keep: bool,
        mark: bytes | None = None, make: tuple[TypedTemplate, Sequence[int], int] | None = None,
    ) -> None:  # fmt: skip
        assert mark is not None
        assert make is not None
        form, operands, output = make
        type_, number = _kind(kind), len(self.kinds)
        if keep and self.first.setdefault((type_, mark), number) == number:
            self.own.setdefault(type_, []).append((number, values))
        self.kinds.append(type_)
        self.marks += mark
        self.made.extend((self.group, self.variants[id(form)], output))
        self.operands.extend(operands)
        self.operands.extend((0,) * (self.arity - len(operands)))

    def rows(self) -> Array:
        """The terms as rows, in order; their places are the client's to say."""
        found_array = np.zeros(len(self.kinds), self.row_type)
        found_array["kind"] = self.kinds
        found_array["mark"] = (
            np.frombuffer(bytes(self.marks), np.uint64).reshape(len(found_array), -1) if len(found_array) else 0
        )
        new_array = np.array(self.made, np.int32).reshape(len(found_array), 3)
        for position, name in enumerate(("group", "variant", "output")):
            found_array[name] = new_array[:, position]
        found_array["operands"] = np.array(self.operands, np.int32).reshape(len(found_array), self.arity)
        return found_array


def _evaluated(
    theme: OperatorVocabulary, points: Sequence[SizeSample], block: _Block, keep: bool, dtype: Sequence[Any]
) -> dict[str, Any]:  # fmt: skip
    """The rows of a block's terms, in order, and with ``keep`` the values of the first of each fingerprint."""
    _give_back()
    started = time.process_time()
    recorder = _Recorder(theme, points, block, np.dtype(list(dtype)))
    for number, (template, types, calls) in enumerate(block.groups):
        recorder.group = number
        recorder.apply_all(template, types, calls, 0, keep=keep)
    rows = recorder.rows()
    values = {"kinds": np.asarray(len(recorder.own))}
    for number, found in enumerate(recorder.own.values()):
        values[f"firsts-{number}"] = np.array([row for row, _ in found], np.int64)
        for point in range(len(points)):
            values[f"values-{number}-{point}"] = np.stack([v[point] for _, v in found])
    del recorder  # before what it holds is held in two more forms
    return _packed(started, rows=rows, **values)


def _join(rows: Array, last: bool) -> dict[str, Any]:
    """Of the rows of a range, in order: those that coincide with an earlier one, that one, and the new classes."""
    _give_back()
    started = time.process_time()
    keys = np.ascontiguousarray(np.concatenate([rows["kind"][:, None], rows["mark"]], axis=1))
    _, index, inverse = np.unique(
        keys.view(np.dtype((np.void, keys.dtype.itemsize * keys.shape[1]))).ravel(), return_index=True,
        return_inverse=True,
    )  # fmt: skip
    first = index[inverse.ravel()]
    alone = first == np.arange(len(rows))
    own = rows["place"] >= 0
    members, new = np.flatnonzero(~alone & own), np.flatnonzero(alone & own)
    return _packed(
        started, members=rows[members], first=rows[first[members]], new=rows[new[:0] if last else new],
        count=np.asarray(len(new)),
    )  # fmt: skip


@cache
def _give_back() -> None:
    """Have this process give large arrays back to the system once they are dropped. By itself glibc keeps what it has
    seen to come and go, in heaps of each thread: 5 of 49 MB of a worker that holds one block or range at a time."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, _LARGE)


def _row_type(arity: int, points: int) -> np.dtype[Any]:
    """A term: its place among all of its size, how it is made, its type and its fingerprint."""
    return np.dtype([
        ("place", "<i8"), ("group", "<i4"), ("variant", "i1"), ("output", "i1"), ("operands", "<i4", (arity,)),
        ("kind", "<u8"), ("mark", "<u8", (2 * points,)),
    ])  # fmt: skip


@lru_cache(maxsize=4096)
def _kind(kind: TensorType) -> int:
    """64 bits of a type."""
    return int.from_bytes(hashlib.blake2b(f"{kind.dtype} {kind.shape}".encode(), digest_size=8).digest(), "little")


def _range_of(rows: Array, shards: int) -> Array:
    """The range of each row's fingerprint, by its first 32 bits."""
    high = rows["mark"][:, 0] >> np.uint64(32)
    return np.asarray((high * np.uint64(shards)) >> np.uint64(32)).astype(np.int64)


def _digest(rows: Array) -> str:
    return hashlib.sha256(rows.tobytes()).hexdigest()


def _packed(started: float, **arrays: Array) -> dict[str, Any]:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # its second parameter is a flag, which none of the names is
    return {
        "npz": base64.b64encode(buffer.getbuffer()).decode(),
        "seconds": time.process_time() - started,
        "worker": os.getpid(),
    }


def _unpacked(data: Mapping[str, Any]) -> dict[str, Array]:
    with np.load(io.BytesIO(base64.b64decode(data["npz"])), allow_pickle=False) as found:
        return {name: found[name] for name in found.files}


def _cost(sent: int, rows: int, data: Mapping[str, Any], arrays: Mapping[str, Array]) -> ShardTaskCost:
    received = sum(a.nbytes for a in arrays.values())
    return ShardTaskCost(float(data["seconds"]), sent, received, rows, int(data["worker"]))
