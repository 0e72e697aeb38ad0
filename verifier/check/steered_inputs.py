"""Inputs steered by two graphs: to where they change their behaviour, and to the ends of arithmetic.

Random numbers of one magnitude miss a threshold at 1000, a modulus, a row of a table, a sum that cancels. Each
:class:`SteeredInput` aims at one such class, with the constants and operators of both graphs
(:mod:`superopt.verifier.check.boundary_value_targets`). The feeds are ordered by benefit per work, and are the same for
the same graphs and seed.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import numpy as np

from superopt.ir.errors import ResourceLimit
from superopt.ir.graph import Graph, Node, Weight
from superopt.ir.types import DType
from superopt.verifier.check.boundary_value_targets import input_targets, literals, sums
from superopt.verifier.check.edge_value_generation import (
    Fill,
    among,
    around,
    as_drawn,
    booleans,
    closeness,
    divides,
    ends,
    exponents,
    in_parts,
    near_integers,
    next_number,
    power_at,
    scale,
    special,
    spread,
    tied,
    underflows,
)  # fmt: skip
from superopt.verifier.check.input_generation import (
    EMPTY,
    KINDS,
    NO_BATCH,
    accepted,
    domain_of,
    draw_strings,
    fed_types,
    make_inputs,
    reads_numbers,
    strings_of,
)

__all__ = ["SteeredInput", "changed_rows", "steered"]

_GENERIC = 16  # elements of a constant that is a target by itself
_CLOSE = 2  # feeds of numbers that nearly cancel which are tried whatever they take
_OPPOSED = 3  # feeds in which inputs are opposite: any two of eight
_SUMS = 2  # feeds in which a sum of three or more cancels as a whole
_SWEEPS = 16  # runs in which the rows of one table are visited
_STREAMS = 500  # more than there are feeds of one check
_FILLED = 8  # targets that fill a whole input
_EXTREME = 8  # feeds of the ends of integer types, where inputs are small
_COUNTS, _COUNT = 6, 1 << 12  # sizes and counts of the graphs' own that are fed, and the largest
_WORDED = 4  # feeds of strings
_FEWER = frozenset({10, 16, 17, 18, 19, 20, 23})  # ONNX's numbers of reals of 16 bits or less
_DIGITS = 20.0  # binary ones, to which a number may be like a target
_SIZED, _SPECIAL, _ENDS, _COUNTED, _STRINGS, _NARROWED = (
    100,
    20,
    30,
    40,
    50,
    60,
)  # numbers of these feeds' own, from each on


@dataclass(frozen=True)
class SteeredInput:
    """The inputs of one run.

    Attributes:
        name: what they aim at.
        arrays: by input.
        mixed: neighbouring elements differ in magnitude by design.
        tiny: values are near the smallest numbers.
        scaled: values are far from 1 by design, where sums overflow or vanish; how far two results are apart there is
            no measure of either.
        cancelling: values are equal or nearly so by design, as no other inputs make them.
        risky: kernels may end the process: the least integer by -1.
        special: some elements are NaN or infinite.
    """

    name: str
    arrays: dict[str, np.ndarray]
    mixed: bool = False
    tiny: bool = False
    scaled: bool = False
    cancelling: bool = False
    risky: bool = False
    special: bool = False


def steered(
    before: Graph, after: Graph, seed: int, sizes: Mapping[str, int], level: int, most: int, *, cancelling: bool =
        False,
    beside: Iterable[Mapping[str, int]] = (), special: bool = False,
) -> Iterator[SteeredInput]:  # fmt: skip
    """At most so many feeds beyond random ones, and feeds without elements, which take no work.

    Args:
        before: the original.
        after: the result, with equal inputs.
        seed: of all choices.
        sizes: symbolic dimensions that are fixed.
        level: how the others are chosen (:func:`superopt.verifier.check.input_generation.choose_sizes`).
        most: feeds.
        cancelling: whether the first of numbers that nearly cancel are among them, however few they are.
        beside: sizes of symbolic dimensions, by name, one for each further feed.
        special: whether NaN and infinities are among them, however few they are.
    """
    aim = _Aim(before, after, seed, dict(sizes), level)
    yield from aim.empty()
    yield from aim.of_sizes(beside)
    if special:
        yield from aim.not_finite()
    tried: set[str] = set()
    for feed in islice(aim.feeds(), max(most, 0)):
        tried.add(feed.name)
        yield feed
    close = islice(aim.close(), _CLOSE + len(aim.sums) if cancelling else 0)
    yield from (feed for feed in close if feed.name not in tried)


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

    def empty(self) -> Iterator[SteeredInput]:
        """A batch, or all that is open, of nothing."""
        if self.open:
            yield self._feed("sizes of 0", as_drawn, level=EMPTY, own=1)
        if any(not isinstance(d, int) for t in self.types.values() for d in (t.shape or ())[1:]):
            yield self._feed("a batch of 0", as_drawn, level=NO_BATCH, own=5)

    def feeds(self) -> Iterator[SteeredInput]:
        inputs = {n: t.dtype for n, t in self.types.items() if n not in self.weights}
        reals = self._reals()
        whole = [n for n, d in inputs.items() if d.is_integer]
        yield from self._rows()
        if any(self.targets.values()):
            for turn in range(2):
                yield self._feed(f"near the constants {turn + 1}", self._near, mixed=True)
            if any(_narrows(node) for graph in (self.before, self.after) for node in graph.nodes):
                yield self._feed("less and less near the constants", self._less_near, mixed=True, own=_NARROWED)
        yield from self.close()
        if reals:
            yield self._feed("few numbers, so that many are equal", tied, own=2, cancelling=True)
        if len(whole) > 0:
            yield self._feed("integers over their domain", self._near, mixed=True)
            yield self._feed("integers over their type", self._any, mixed=True, own=3)
            yield from self._extreme(whole)
            if any(domain_of(self.before, n).stop is not None for n in whole):
                yield self._feed("positions counted from the end", self._from_end, own=4)
        if any(d.is_integer and domain_of(self.before, n).small for n, d in inputs.items()):
            for number in (0, 1, 3):
                yield self._feed(f"sizes and counts of {number}", self._counts(number))
            for turn, number in enumerate(self._compared_counts(inputs)):
                yield self._feed(f"sizes and counts of {number}", self._counts(number), own=_COUNTED + turn)
        if any(d is DType.STRING for d in inputs.values()):
            for turn in range(_WORDED):
                yield self._feed(f"strings {turn + 1}", self._strings, own=_STRINGS + turn)
        if any(d is DType.BOOL for d in inputs.values()):
            for truth in (True, False):
                yield self._feed(f"booleans {truth}".lower(), booleans(truth))
        if reals:
            yield from self._scaled(reals)
        yield from self._filled()
        if any(self.targets.values()):
            yield self._feed("near the constants 3", self._near, mixed=True)
        yield from self._sized()

    def close(self) -> Iterator[SteeredInput]:
        """Reals whose differences cancel, and, of any two inputs, their sum: one is nearly the other's opposite. A
        sum of more, as the original has it, cancels as a whole."""
        reals = self._reals()
        if reals:
            name = "all nearly equal" if len(reals) > 1 else "close together"
            yield self._feed(name, self._close_numbers, cancelling=True)
        for number, signs in enumerate(self.sums):
            name = f"the sum of {', '.join(signs)} cancels"
            yield self._feed(name, self._balanced(signs), own=6 + _OPPOSED + number, cancelling=True)
        for turn in range(min((len(reals) - 1).bit_length(), _OPPOSED) if reals else 0):
            turned = {n for i, n in enumerate(reals) if i >> turn & 1}
            yield self._feed(f"nearly opposite {turn + 1}", self._opposed(turned), own=6 + turn, cancelling=True)

    def _reals(self) -> list[str]:
        return [n for n, t in self.types.items() if n not in self.weights and t.dtype.is_float]

    def _feed(
        self, name: str, fill: Fill, *, mixed: bool = False, tiny: bool = False, scaled: bool = False,
        cancelling: bool = False, level: int | None = None, own: int = 0, sizes: Mapping[str, int] | None = None,
        risky: bool = False, special: bool = False,
    ) -> SteeredInput:  # fmt: skip
        """A feed; one with a number of its ``own`` leaves the draws of those after it as they are without it."""
        self.count += not own
        seed = self.seed + 1000 * (own + _STREAMS if own else self.count)
        fixed = {**self.sizes, **(sizes or {})}
        arrays = make_inputs(self.before, seed, KINDS[0], fixed, level=self.level if level is None else level)
        rng = np.random.default_rng([seed, 7])
        for n, array in arrays.items():
            if n not in self.weights and array.size:
                filled = np.asarray(fill(n, self.types[n].dtype, array, rng)).astype(array.dtype, copy=False)
                arrays[n] = accepted(self.before, n, filled.reshape(array.shape))
        return SteeredInput(name, arrays, mixed, tiny, scaled, cancelling, risky, special)

    def of_sizes(self, beside: Iterable[Mapping[str, int]]) -> Iterator[SteeredInput]:
        """Each of these sizes, the others as they are drawn."""
        for turn, sizes in enumerate(beside):
            name = ", ".join(f"{symbol} of {size}" for symbol, size in sizes.items())
            with suppress(ResourceLimit):
                yield self._feed(name, as_drawn, own=_SIZED + turn, sizes=sizes)

    def not_finite(self) -> Iterator[SteeredInput]:
        """NaN, then infinities, among ordinary reals."""
        kinds = (("NaN", (np.nan,)), ("infinities", (np.inf, -np.inf)))
        for turn, (name, values) in enumerate(kinds if self._reals() else ()):
            yield self._feed(name, among(values), mixed=True, special=True, own=_SPECIAL + turn)

    def _extreme(self, whole: Sequence[str]) -> Iterator[SteeredInput]:
        """Integers at the ends of their types, and where narrower types wrap around."""
        free = [n for n in whole if (d := domain_of(self.before, n)).stop is None and not d.small]
        risky = divides(self.before) or divides(self.after)
        for turn in range(_EXTREME if free else 0):

            def fill(
                name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator, turn: int = turn
            ) -> np.ndarray:
                numbers = special(dtype, safe=risky and turn % 2 == 1) if name in free else []
                return spread(numbers, array, turn if name == free[0] else -1, rng) if numbers else array

            feed = self._feed(f"ends of integer types {turn + 1}", fill, mixed=True, own=_ENDS + turn, risky=risky)
            yield feed
            reached = ((turn + 1) * feed.arrays[n].size / len(special(self.types[n].dtype, safe=False)) for n in free)
            if turn and min(reached) >= 1:
                return

    def _compared_counts(self, inputs: Mapping[str, DType]) -> list[int]:
        """Sizes and counts that the graphs compare such integers with."""
        told = (t for n, d in inputs.items() if d.is_integer for t in self.targets.get(n, ()))
        numbers = dict.fromkeys(s for t in told if t == int(t) for s in (int(t) + 1, int(t)) if 3 < s <= _COUNT)
        return list(numbers)[:_COUNTS]

    def _strings(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if dtype is not DType.STRING:
            return array
        return draw_strings(self.before, array.shape, strings_of(self.after), reads_numbers(self.before, name), rng)

    def _near(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Elements at, beside and around the targets, among ordinary ones."""
        targets = self.targets.get(name, [])
        if dtype.is_integer:
            return near_integers(self.before, name, dtype, array, targets, rng)
        if not dtype.is_float or not targets:
            return array
        return in_parts(array, lambda part: around(targets, dtype, part, rng))

    def _less_near(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Reals beside the targets, at distances of any magnitude: where they are rounded to fewer digits shows."""
        targets = self.targets.get(name, [])
        if not dtype.is_float or not targets:
            return array
        distance = rng.choice([-1.0, 1.0], array.shape) * np.exp2(rng.uniform(-_DIGITS, -2, array.shape))
        made = rng.choice(np.asarray(targets), array.shape) * (1 + distance)
        with np.errstate(over="ignore"):  # beyond the type's largest number it is infinity
            rounded = made.astype(dtype.numpy).astype(float)
        return np.asarray(np.where(np.isfinite(rounded), made, array))

    def _any(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Integers of any magnitude, where they are no positions, sizes or counts: sums and products wrap."""
        domain = domain_of(self.before, name)
        if not dtype.is_integer or domain.small or domain.stop is not None:
            return array
        low, high = ends(dtype)
        held = dtype.numpy if dtype.bits >= 8 else np.int8
        drawn = rng.integers(low, high, array.shape, dtype=held, endpoint=True)
        shift = rng.integers(0, dtype.bits, array.shape, dtype=held)
        return np.asarray(np.where(rng.random(array.shape) < 0.5, drawn, drawn >> shift))

    def _from_end(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Positions as the negative numbers that mean the same, which most operators take."""
        stop = domain_of(self.before, name).stop if dtype.is_integer else None
        return array if stop is None or ends(dtype)[0] == 0 else array.astype(np.int64) - stop

    def _counts(self, number: int) -> Fill:
        """Integers that sizes or trip counts are made of."""

        def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            small = dtype.is_integer and domain_of(self.before, name).small
            return np.full(array.shape, number) if small else array

        return fill

    def _close_numbers(self, name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Numbers close together, far from 0: differences cancel. Some are equal."""
        if not dtype.is_float:
            return array
        offset, spread = closeness(dtype)
        new_array: np.ndarray = np.array(array, np.float64 if dtype.bits > 32 else np.float32)  # of a standard normal
        np.multiply(new_array, offset * spread, out=new_array)
        np.add(new_array, offset, out=new_array)
        new_array[rng.random(array.shape, dtype=np.float32) < 0.1] = offset
        return new_array

    def _opposed(self, turned: Collection[str]) -> Fill:
        """Numbers close together, far from 0, and of the other sign in some inputs."""

        def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            new_array = self._close_numbers(name, dtype, array, rng)
            return -new_array if dtype.is_float and name in turned else new_array

        return fill

    def _balanced(self, signs: Mapping[str, bool]) -> Fill:
        """Numbers close together, far from 0, in the terms of a sum, but for the last, which is nearly the opposite of
        all others; numbers as small as what is left of that in what is no term."""
        last = [*signs][-1]

        def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            if not dtype.is_float:
                return array
            if name not in signs:
                return array * math.prod(closeness(dtype))
            new_array = self._close_numbers(name, dtype, array, rng)
            scaled = new_array * (len(signs) - 1) if name == last else new_array
            return -scaled if signs[name] != (name == last) else scaled

        return fill

    def _scaled(self, reals: Sequence[str]) -> Iterator[SteeredInput]:
        """Whole inputs of very different magnitudes, then elements of all magnitudes side by side."""
        ends = {n: exponents(self.types[n].dtype) for n in reals}
        rng = np.random.default_rng([self.seed, 11])
        plans: list[tuple[str, dict[str, int]]] = []
        for name, share in (("large", 0.15), ("small", -0.15), ("huge", 0.46), ("minute", -0.46)):
            plans.append((f"{name} numbers", {n: power_at(ends[n], share) for n in reals}))
        if len(reals) > 1:
            plans += [(f"one least, the others large {k + 1}", {
                n: ends[n][0] if i == k else power_at(ends[n], 0.9) for i, n in enumerate(reals)
            }) for k in range(min(len(reals), 4))]  # fmt: skip
            # products of any two are lost though the whole is not
            plans += [(f"one large, the others small {k + 1}", {
                n: power_at(ends[n], 0.9 if i == k else -0.55) for i, n in enumerate(reals)
            }) for k in range(min(len(reals), 4))]  # fmt: skip
            plans += [(f"magnitudes {k + 1}", {
                n: int(rng.choice([ends[n][0], power_at(ends[n], -0.3), 0, power_at(ends[n], 0.3), ends[n][1]]))
                for n in reals
            }) for k in range(4)]  # fmt: skip
        plans += [
            ("largest numbers", {n: ends[n][1] for n in reals}),
            ("smallest numbers", {n: ends[n][0] for n in reals}),
        ]
        for name, plan in plans[:2]:
            yield self._feed(name, scale(plan), scaled=True)
        yield self._feed("all magnitudes", self._wide(0.3), mixed=True, scaled=True)
        if len(reals) > 1:
            for one in reals[:4]:  # what is finite beside a 0 may not be when it is formed first
                yield self._feed(
                    f"{one!r} is 0, the others largest", scale({n: ends[n][1] for n in reals}, zero=one), scaled=True
                )
        for name, plan in plans[2:]:
            yield self._feed(name, scale(plan), tiny=underflows(plan, min(e[0] for e in ends.values())), scaled=True)
        yield self._feed("the whole range", self._wide(1.0), mixed=True, tiny=True, scaled=True)

    def _wide(self, share: float) -> Fill:
        def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            if not dtype.is_float:
                return array
            low, high = exponents(dtype)

            def any_magnitude(part: np.ndarray) -> np.ndarray:
                powers = np.floor(rng.uniform(share * low, share * high, part.shape))
                sign = rng.choice([-1.0, 1.0], part.shape)
                return np.asarray(np.ldexp(sign * rng.uniform(1, 2, part.shape), powers.astype(int)))

            return in_parts(array, any_magnitude)

        return fill

    def _filled(self) -> Iterator[SteeredInput]:
        """Inputs that are a target everywhere, give or take a unit in the last place."""
        whole = (n for n, t in self.types.items() if n not in self.weights and t.dtype.is_integer)
        free = {n for n in whole if (d := domain_of(self.before, n)).stop is None and not d.small}
        order = sorted({t for ts in self.targets.values() for t in ts}, key=lambda t: (abs(t), t))
        for t in order[:_FILLED]:

            def fill(name: str, dtype: DType, array: np.ndarray, rng: np.random.Generator, t: float = t) -> np.ndarray:
                if dtype.is_integer and name in free and t == int(t) and ends(dtype)[0] <= t <= ends(dtype)[1]:
                    return np.full(array.shape, int(t), dtype=object)
                if not dtype.is_float:
                    return array
                with np.errstate(over="ignore"):  # beyond the type's largest number it is infinity
                    exact = np.full(array.shape, t).astype(dtype.numpy)
                way = rng.integers(-1, 2, array.shape)
                return np.where(
                    way == 0, exact, np.where(way > 0, next_number(exact, dtype, 1), next_number(exact, dtype, -1))
                )

            yield self._feed(f"{t:.9g} everywhere", fill, mixed=True)

    def _rows(self) -> Iterator[SteeredInput]:
        """Indices of the rows in which two tables differ, else of all rows, in a few runs."""
        for name, rows in changed_rows(self.before, self.after).items():

            def chosen(n: str, dtype: DType, array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
                return np.resize(rng.permutation(rows), array.shape) if n == name else array  # noqa: B023

            yield self._feed(f"changed rows of the table that {name!r} indexes", chosen)
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

                yield self._feed(f"rows {turn + 1} that {name!r} indexes", sweep)

    def _sized(self) -> Iterator[SteeredInput]:
        """Other sizes of symbolic dimensions: all 1, and larger ones."""
        if self.open:
            for level, name in ((5, "sizes of 1"), (1, "sizes of 8")):
                yield self._feed(name, as_drawn, level=level)


def _targets(before: Graph, after: Graph, inputs: Sequence[str]) -> dict[str, list[float]]:
    """Targets of either graph by input; small constants are targets of every input, too."""
    generic = literals(after, _GENERIC) | literals(before, _GENERIC)
    first, second = input_targets(after), input_targets(before)
    return {n: list(dict.fromkeys([*second.get(n, ()), *first.get(n, ()), *list(generic)[:16]])) for n in inputs}


def _narrows(node: Node) -> bool:
    """Whether a node rounds to fewer digits."""
    return node.op == "Cast" and node.attributes.get("to") in _FEWER


def changed_rows(before: Graph, after: Graph) -> dict[str, np.ndarray]:
    """By input that indexes a table along its first axis: the rows that differ between the two graphs' tables."""
    arrays: dict[str, np.ndarray] = {}
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
            arrays[index] = rows
    return arrays


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
