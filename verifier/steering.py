"""Inputs that are steered by two graphs: to where they change their behaviour, and to the ends of arithmetic.

Random numbers of one magnitude miss a threshold at 1000, a modulus, a row of a table, a sum that cancels. Each
:class:`Feed` here aims at one such class, with the constants and operators of both graphs (:mod:`.targets`). They come
in the order in which they are worth their work, and are the same for the same graphs and seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import ml_dtypes
import numpy as np

from superopt.ir.graph import Graph, Weight
from superopt.ir.types import DType
from superopt.verifier._feeds import EMPTY, KINDS, NO_BATCH, accepted, domain_of, fed_types, make_inputs
from superopt.verifier._judgement import pieces
from superopt.verifier.cancelling import sums
from superopt.verifier.targets import input_targets, literals

__all__ = ["Feed", "changed_rows", "steered"]

_GENERIC = 16  # elements of a constant that is a target by itself
_OFFSET, _SPREAD = 1000.0, 1e-4  # of data that lie close together, away from 0
_CLOSE = 2  # feeds of numbers that nearly cancel which are tried whatever they take
_OPPOSED = 3  # feeds in which inputs are opposite: any two of eight
_SUMS = 2  # feeds in which a sum of three or more cancels as a whole
_SWEEPS = 16  # runs in which the rows of one table are visited
_STREAMS = 500  # more than there are feeds of one check
_FILLED = 8  # targets that fill a whole input


@dataclass(frozen=True)
class Feed:
    """Inputs of one run.

    Attributes:
        name: what they aim at.
        arrays: by input.
        mixed: neighbouring elements differ in magnitude by design.
        tiny: values are near the smallest numbers.
        scaled: values are far from 1 by design, where sums overflow or vanish; how far two results are apart there is
            no measure of either.
        alike: values are equal or nearly so by design, as no other inputs make them.
    """

    name: str
    arrays: dict[str, np.ndarray]
    mixed: bool = False
    tiny: bool = False
    scaled: bool = False
    alike: bool = False


Fill = Callable[[str, DType, np.ndarray, np.random.Generator], np.ndarray]


def steered(
    before: Graph, after: Graph, seed: int, sizes: Mapping[str, int], level: int, most: int, *, alike: bool = False
) -> Iterator[Feed]:  # fmt: skip
    """Up to so many feeds beyond plain random ones, and those without elements, which take no work.

    Args:
        before: the original.
        after: the result, with equal inputs.
        seed: of all choices.
        sizes: symbolic dimensions that are fixed.
        level: how the others are chosen (:func:`superopt.verifier._feeds.choose_sizes`).
        most: feeds.
        alike: whether the first of numbers that nearly cancel are among them, however few they are.
    """
    aim = _Aim(before, after, seed, dict(sizes), level)
    yield from aim.empty()
    tried: set[str] = set()
    for made in islice(aim.feeds(), max(most, 0)):
        tried.add(made.name)
        yield made
    close = islice(aim.close(), _CLOSE + len(aim.sums) if alike else 0)
    yield from (made for made in close if made.name not in tried)


class _Aim:
    def __init__(self, before: Graph, after: Graph, seed: int, sizes: dict[str, int], level: int) -> None:
        self.before, self.after, self.seed, self.sizes, self.level = before, after, seed, sizes, level
        self.types = fed_types(before)
        self.weights = {n for n in self.types if n in before.weight}
        self.targets = _targets(before, after, [n for n in self.types if n not in self.weights])
        self.sums = sums(before, self._reals())[:_SUMS]
        self.count = 0

    @property
    def open(self) -> bool:
        """Whether a size is the caller's to choose."""
        return any(not isinstance(d, int) for t in self.types.values() for d in t.shape or ())

    def empty(self) -> Iterator[Feed]:
        """A batch, or all that is open, of nothing."""
        if self.open:
            yield self._made("sizes of 0", _as_drawn, level=EMPTY, own=1)
        if any(not isinstance(d, int) for t in self.types.values() for d in (t.shape or ())[1:]):
            yield self._made("a batch of 0", _as_drawn, level=NO_BATCH, own=5)

    def feeds(self) -> Iterator[Feed]:
        inputs = {n: t.dtype for n, t in self.types.items() if n not in self.weights}
        reals = self._reals()
        whole = [n for n, d in inputs.items() if d.is_integer]
        yield from self._rows()
        if any(self.targets.values()):
            for turn in range(2):
                yield self._made(f"near the constants {turn + 1}", self._near, mixed=True)
        yield from self.close()
        if reals:
            yield self._made("few numbers, so that many are equal", _tied, own=2, alike=True)
        if len(whole) > 0:
            yield self._made("integers over their domain", self._near, mixed=True)
            yield self._made("integers over their type", self._any, mixed=True, own=3)
            if any(domain_of(self.before, n).stop is not None for n in whole):
                yield self._made("positions counted from the end", self._from_end, own=4)
        if any(d.is_integer and domain_of(self.before, n).small for n, d in inputs.items()):
            for number in (0, 1, 3):
                yield self._made(f"sizes and counts of {number}", self._counts(number))
        if any(d is DType.BOOL for d in inputs.values()):
            for truth in (True, False):
                yield self._made(f"booleans {truth}".lower(), _booleans(truth))
        if reals:
            yield from self._scaled(reals)
        yield from self._filled()
        if any(self.targets.values()):
            yield self._made("near the constants 3", self._near, mixed=True)
        yield from self._sized()

    def close(self) -> Iterator[Feed]:
        """Reals whose differences cancel, and, of any two inputs, their sum: one is nearly the other's opposite. A
        sum of more, as the original has it, cancels as a whole."""
        reals = self._reals()
        if reals:
            name = "all nearly equal" if len(reals) > 1 else "close together"
            yield self._made(name, self._alike, alike=True)
        for number, signs in enumerate(self.sums):
            name = f"the sum of {', '.join(signs)} cancels"
            yield self._made(name, self._balanced(signs), own=6 + _OPPOSED + number, alike=True)
        for turn in range(min((len(reals) - 1).bit_length(), _OPPOSED)):
            turned = {n for i, n in enumerate(reals) if i >> turn & 1}
            yield self._made(f"nearly opposite {turn + 1}", self._opposed(turned), own=6 + turn, alike=True)

    def _reals(self) -> list[str]:
        return [n for n, t in self.types.items() if n not in self.weights and t.dtype.is_float]

    def _made(
        self, name: str, fill: Fill, *, mixed: bool = False, tiny: bool = False, scaled: bool = False,
        alike: bool = False, level: int | None = None, own: int = 0,
    ) -> Feed:  # fmt: skip
        """A feed; one with a number of its ``own`` leaves the draws of those after it as they are without it."""
        self.count += not own
        seed = self.seed + 1000 * (own + _STREAMS if own else self.count)
        arrays = make_inputs(self.before, seed, KINDS[0], self.sizes, level=self.level if level is None else level)
        rng = np.random.default_rng([seed, 7])
        for n, array in arrays.items():
            if n not in self.weights and array.size:
                filled = np.asarray(fill(n, self.types[n].dtype, array, rng)).astype(array.dtype, copy=False)
                arrays[n] = accepted(self.before, n, filled.reshape(array.shape))
        return Feed(name, arrays, mixed, tiny, scaled, alike)

    def _near(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Elements at, beside and around the targets, among ordinary ones."""
        targets = self.targets.get(name, [])
        if dtype.is_integer:
            return _integers(self.before, name, dtype, array, targets, rng)
        if not dtype.is_float or not targets:
            return array
        return _in_parts(array, lambda part: _around(targets, dtype, part, rng))

    def _any(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Integers of any magnitude, where they are no positions, sizes or counts: sums and products wrap."""
        domain = domain_of(self.before, name)
        if not dtype.is_integer or domain.small or domain.stop is not None:
            return array
        low, high = _ends(dtype)
        held = dtype.numpy if dtype.bits >= 8 else np.int8
        drawn = rng.integers(low, high, array.shape, dtype=held, endpoint=True)
        shift = rng.integers(0, dtype.bits, array.shape, dtype=held)
        return np.asarray(np.where(rng.random(array.shape) < 0.5, drawn, drawn >> shift))

    def _from_end(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Positions as the negative numbers that mean the same, which most operators take."""
        stop = domain_of(self.before, name).stop if dtype.is_integer else None
        return array if stop is None or _ends(dtype)[0] == 0 else array.astype(np.int64) - stop

    def _counts(self, number: int) -> Fill:
        """Integers that sizes or trip counts are made of."""

        def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            small = dtype.is_integer and domain_of(self.before, name).small
            return np.full(array.shape, number) if small else array

        return fill

    def _alike(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Numbers close together, far from 0: differences cancel. Some are equal."""
        if not dtype.is_float:
            return array
        offset, spread = _closeness(dtype)
        made: np.ndarray = np.array(array, np.float64 if dtype.bits > 32 else np.float32)  # of a standard normal
        np.multiply(made, offset * spread, out=made)
        np.add(made, offset, out=made)
        made[rng.random(array.shape, dtype=np.float32) < 0.1] = offset
        return made

    def _opposed(self, turned: Collection[str]) -> Fill:
        """Numbers close together, far from 0, and of the other sign in some inputs."""

        def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            made = self._alike(name, dtype, array, rng)
            return -made if dtype.is_float and name in turned else made

        return fill

    def _balanced(self, signs: Mapping[str, bool]) -> Fill:
        """Numbers close together, far from 0, in the terms of a sum, but for the last, which is nearly the opposite of
        all others; numbers as small as what is left of that in what is no term."""
        last = [*signs][-1]

        def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            if not dtype.is_float:
                return array
            if name not in signs:
                return array * math.prod(_closeness(dtype))
            made = self._alike(name, dtype, array, rng)
            scaled = made * (len(signs) - 1) if name == last else made
            return -scaled if signs[name] != (name == last) else scaled

        return fill

    def _scaled(self, reals: Sequence[str]) -> Iterator[Feed]:
        """Whole inputs of very different magnitudes, then elements of all magnitudes side by side."""
        ends = {n: _exponents(self.types[n].dtype) for n in reals}
        rng = np.random.default_rng([self.seed, 11])
        plans: list[tuple[str, dict[str, int]]] = []
        for name, share in (("large", 0.15), ("small", -0.15), ("huge", 0.46), ("minute", -0.46)):
            plans.append((f"{name} numbers", {n: _at(ends[n], share) for n in reals}))
        if len(reals) > 1:
            plans += [(f"one least, the others large {k + 1}", {
                n: ends[n][0] if i == k else _at(ends[n], 0.9) for i, n in enumerate(reals)
            }) for k in range(min(len(reals), 4))]  # fmt: skip
            # products of any two are lost though the whole is not
            plans += [(f"one large, the others small {k + 1}", {
                n: _at(ends[n], 0.9 if i == k else -0.55) for i, n in enumerate(reals)
            }) for k in range(min(len(reals), 4))]  # fmt: skip
            plans += [(f"magnitudes {k + 1}", {
                n: int(rng.choice([ends[n][0], _at(ends[n], -0.3), 0, _at(ends[n], 0.3), ends[n][1]])) for n in reals
            }) for k in range(4)]  # fmt: skip
        plans += [
            ("largest numbers", {n: ends[n][1] for n in reals}),
            ("smallest numbers", {n: ends[n][0] for n in reals}),
        ]
        for name, plan in plans[:2]:
            yield self._made(name, _scale(plan), scaled=True)
        yield self._made("all magnitudes", self._wide(0.3), mixed=True, scaled=True)
        if len(reals) > 1:
            for one in reals[:4]:  # what is finite beside a 0 may not be when it is formed first
                yield self._made(
                    f"{one!r} is 0, the others largest", _scale({n: ends[n][1] for n in reals}, zero=one), scaled=True
                )
        for name, plan in plans[2:]:
            yield self._made(name, _scale(plan), tiny=_underflows(plan, min(e[0] for e in ends.values())), scaled=True)
        yield self._made("the whole range", self._wide(1.0), mixed=True, tiny=True, scaled=True)

    def _wide(self, share: float) -> Fill:
        def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            if not dtype.is_float:
                return array
            low, high = _exponents(dtype)

            def any_magnitude(part: np.ndarray) -> np.ndarray:
                powers = np.floor(rng.uniform(share * low, share * high, part.shape))
                sign = rng.choice([-1.0, 1.0], part.shape)
                return np.asarray(np.ldexp(sign * rng.uniform(1, 2, part.shape), powers.astype(int)))

            return _in_parts(array, any_magnitude)

        return fill

    def _filled(self) -> Iterator[Feed]:
        """Inputs that are a target everywhere, give or take a unit in the last place."""
        order = sorted({t for ts in self.targets.values() for t in ts}, key=lambda t: (abs(t), t))
        for t in order[:_FILLED]:

            def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator, t: float = t) -> np.ndarray:
                if not dtype.is_float:
                    return array
                with np.errstate(over="ignore"):  # beyond the type's largest number it is infinity
                    exact = np.full(array.shape, t).astype(dtype.numpy)
                way = rng.integers(-1, 2, array.shape)
                return np.where(way == 0, exact, np.where(way > 0, _next(exact, dtype, 1), _next(exact, dtype, -1)))

            yield self._made(f"{t:.9g} everywhere", fill, mixed=True)

    def _rows(self) -> Iterator[Feed]:
        """Indices of the rows in which two tables differ, else of all rows, in a few runs."""
        for name, rows in changed_rows(self.before, self.after).items():

            def chosen(n: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
                return np.resize(rng.permutation(rows), array.shape) if n == name else array  # noqa: B023

            yield self._made(f"changed rows of the table that {name!r} indexes", chosen)
        for name, kind in self.types.items():
            stop = domain_of(self.before, name).stop if kind.dtype.is_integer else None
            count = kind.elements
            if stop is None or not isinstance(count, int) or count == 0 or stop <= count:
                continue
            order = np.random.default_rng([self.seed, 13]).permutation(stop)
            for turn in range(min(_SWEEPS, -(-stop // count))):
                part = order[turn * count : (turn + 1) * count]

                def sweep(n: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
                    return np.resize(part, array.shape) if n == name else array  # noqa: B023

                yield self._made(f"rows {turn + 1} that {name!r} indexes", sweep)

    def _sized(self) -> Iterator[Feed]:
        """Other sizes of symbolic dimensions: all 1, and larger ones."""
        if self.open:
            for level, name in ((5, "sizes of 1"), (1, "sizes of 8")):
                yield self._made(name, _as_drawn, level=level)


def _targets(before: Graph, after: Graph, inputs: Sequence[str]) -> dict[str, list[float]]:
    """Targets of either graph by input; small constants are targets of every input, too."""
    generic = literals(after, _GENERIC) | literals(before, _GENERIC)
    first, second = input_targets(after), input_targets(before)
    return {n: list(dict.fromkeys([*second.get(n, ()), *first.get(n, ()), *list(generic)[:16]])) for n in inputs}


def _in_parts(array: np.ndarray, make: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """An array like one whose elements are made independently of each other, a part of it at a time."""
    flat = array.reshape(-1)
    made = np.empty_like(flat)
    for part in pieces(flat.size):
        made[part] = make(flat[part]).astype(array.dtype)
    return made.reshape(array.shape)


def _around(targets: Sequence[float], dtype: DType, ordinary: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Reals at, beside and around the targets, among ordinary ones."""
    chosen = rng.choice(np.asarray(targets), ordinary.shape)
    kind = rng.integers(0, 8, ordinary.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = chosen.astype(dtype.numpy)
        up, down = (_next(exact, dtype, way) for way in (1, -1))
        wide = chosen + rng.standard_normal(ordinary.shape)
        near = chosen * (1 + 1e-3 * rng.standard_normal(ordinary.shape))
        made = np.select(
            [kind == 0, kind == 1, kind == 2, kind == 3, kind == 4],
            [exact.astype(float), up.astype(float), down.astype(float), wide, near],
            np.where(kind == 5, 2 * chosen, ordinary.astype(float)),
        )
        out = made.astype(dtype.numpy)
    return np.asarray(np.where(np.isfinite(out.astype(float)), out, ordinary))


def _integers(
    graph: Graph, name: str, dtype: DType, array: np.ndarray, targets: Sequence[float], rng: np.random.Generator
) -> np.ndarray:
    """Integers over the domain that their uses allow: any row of a table, or around the targets and beyond."""
    domain = domain_of(graph, name)
    if domain.small:
        return array
    least, most = _ends(dtype)
    if domain.stop is not None:
        return rng.integers(0, max(domain.stop, 1), array.shape)
    marks = np.asarray([t for t in targets if abs(t) < 2**53] or [0.0], dtype=np.float64)
    reach = 4 * float(np.abs(marks).max()) + 1000
    low = 0 if least == 0 else -reach
    spread = rng.integers(int(max(low, least)), int(min(reach, most)), array.shape)
    near = np.rint(rng.choice(marks, array.shape)) + rng.integers(-1, 2, array.shape)
    return np.asarray(np.clip(np.where(rng.random(array.shape) < 0.5, near, spread), least, most))


def _ends(dtype: DType) -> tuple[int, int]:
    """The least and the greatest integer of a type; NumPy's own knows none of four bits."""
    limits = ml_dtypes.iinfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return int(limits.min), int(limits.max)


def _tied(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Numbers among which ties are likely: which of equal ones is chosen shows. Some rows are negative throughout.

    Along each axis the greatest or the least of a line, in turn, is at both of its ends.
    """
    if not dtype.is_float:
        return array
    lowered = 2 * rng.integers(0, 2, (*array.shape[:-1], 1)[: array.ndim])
    tied = np.asarray(rng.integers(-1, 2, array.shape) - lowered)
    for axis in range(tied.ndim if tied.size else 0):
        moved = np.moveaxis(tied, axis, -1)
        lines = moved.reshape(-1, moved.shape[-1]).copy()
        lines[::2, [0, -1]] = lines[::2].max(axis=1, keepdims=True)
        if len(lines) > 1:
            lines[1::2, [0, -1]] = lines[1::2].min(axis=1, keepdims=True)
        elif lines.size > 3:
            lines[:, [1, -2]] = lines.min(axis=1, keepdims=True)
        tied = np.moveaxis(lines.reshape(moved.shape), -1, axis)
    return tied


def _closeness(dtype: DType) -> tuple[float, float]:
    """How far from 0 numbers close together lie in a type, and their distances as a share of that."""
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return min(_OFFSET, float(limits.max) ** 0.25), max(_SPREAD, 4 * float(limits.eps))


def _as_drawn(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return array


def _booleans(truth: bool) -> Fill:
    return lambda name, dtype, array, rng: np.full(array.shape, truth) if dtype is DType.BOOL else array


def _scale(plan: Mapping[str, int], zero: str = "") -> Fill:
    def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if name not in plan:
            return array
        if name == zero:
            return np.zeros_like(array)

        def one_magnitude(part: np.ndarray) -> np.ndarray:
            sign = rng.choice([-1.0, 1.0], part.shape)
            return np.asarray(np.ldexp(sign * rng.uniform(1, 1.99, part.shape), plan[name]))

        return _in_parts(array, one_magnitude)

    return fill


def _underflows(plan: Mapping[str, int], least: int) -> bool:
    """Whether products of two of these magnitudes are near the smallest number, ``2**least``."""
    small = sorted(plan.values())[:2]
    return min(2 * small[0], sum(small)) < 0.8 * least


def _exponents(dtype: DType) -> tuple[int, int]:
    """Powers of two of the smallest and the largest numbers: -145 and 127 in float32, -1070 and 1023 in float64."""
    limits = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
    return int(np.log2(float(limits.smallest_subnormal))) + 4, int(np.frexp(float(limits.max))[1]) - 1


def _at(ends: tuple[int, int], share: float) -> int:
    return int(share * ends[1]) if share > 0 else int(-share * ends[0])


def _next(array: np.ndarray, dtype: DType, way: int) -> np.ndarray:
    """The neighbouring numbers above or below; beside 0 the square of epsilon, whose products do not underflow."""
    beside = way * float(ml_dtypes.finfo(dtype.numpy).eps) ** 2  # type: ignore[no-untyped-call]
    with np.errstate(over="ignore"):  # infinity follows the largest number
        following = np.nextafter(array, np.asarray(np.inf * way, dtype.numpy))
    return np.asarray(np.where(array == 0, np.asarray(beside, dtype.numpy), following))


def changed_rows(before: Graph, after: Graph) -> dict[str, np.ndarray]:
    """By input that indexes a table along its first axis: the rows that differ between the two graphs' tables."""
    found: dict[str, np.ndarray] = {}
    for node in before.nodes:
        if node.op != "Gather" or node.attributes.get("axis", 0) != 0:
            continue
        table, index = before.constants.get(node.inputs[0]), _origin(before, node.inputs[1])
        other = None if table is None else _counterpart(table, before, after)
        if table is None or other is None or table.data is None or other.data is None or index is None:
            continue
        a, b = table.data.numpy(), other.data.numpy()
        odd = (a != b) & ~((a != a) & (b != b))
        rows = np.flatnonzero(odd.reshape(len(a), -1).any(axis=1))
        if rows.size:
            found[index] = rows
    return found


def _counterpart(table: Weight, before: Graph, after: Graph) -> Weight | None:
    """The other graph's table of the same name or, failing that, the only new one of the same type, if it differs."""
    assert table.data is not None
    named = after.constants.get(table.name)
    if named is not None and named.type == table.type and named.data is not None:
        return named if named.data is not table.data and named.data.digest != table.data.digest else None
    known = {w.data.digest for w in before.weights if w.data is not None}
    new = [w for w in after.weights if w.type == table.type and w.data is not None and w.data.digest not in known]
    return new[0] if len(new) == 1 else None


def _origin(graph: Graph, name: str) -> str | None:
    """The input that a value is, but for its shape and element type."""
    fed = {v.name for v in graph.inputs}
    while name not in fed:
        node = graph.producer.get(name)
        if node is None or node.op not in (
            "Cast",
            "Identity",
            "Reshape",
            "Squeeze",
            "Unsqueeze",
            "Flatten",
            "Transpose",
        ):
            return None
        name = node.inputs[0]
    return name
