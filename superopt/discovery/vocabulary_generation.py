"""A vocabulary from a list of operators: their signatures, axes and attributes are read off their records.

A theme of this kind (``enumerate = [...]``) says which operators, how many in a term, and of which rank its data are.
Tensors have that rank, and one name an axis for its size. An operand is anything; an axis is every axis; a flag is both
its values; a real attribute is a symbol, and of two the one above the other as well. Where positions are asked for,
each axis is three named lengths, and a slice is from any of their sums to any later one, in the tensor or in what
stands behind another or behind padding; it is forwards, backwards, or of every other element, along one axis or two.
Padding is on either side, on both, on none, or of a negative length, which cuts. Positions that are read are a tensor
for each axis' size, or what an operator counts. What an operator makes out of nothing is of the tensors' shape, of one
that slices and padding make of it, or a scalar. What takes any number of operands takes one or two, what cuts an axis
into any number of parts leaves it whole or makes the parts that it has, and what repeats does so along one axis or
none. A real attribute of an activation also has ONNX's default. Where bounds are asked for, real attributes are so many
numbers in order, and of two of one operator the first by name is above the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product
from math import isfinite

from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.operator_definition import Operator
from superopt.ops.operator_semantics import IllTypedOperator
from superopt.rules.onnx_notation import default_of

__all__ = ["generated"]

_AXES: Mapping[int, tuple[str, ...]] = {1: ("n",), 2: ("m", "n"), 3: ("k", "m", "n")}
_HOLES = ("A", "B", "C")
_OPERANDS = 2  # of what takes any number
_BITS = 48  # elements of a tensor of truth values, at least: as many as tell terms apart
_GAP = "g"  # between two real attributes
_FLAGS = frozenset({"keepdims", "fmod", "upper", "exclusive", "reverse"})


def generated(row: Mapping[str, object]) -> Mapping[str, object]:
    """The row of a theme with leaves and templates instead of ``enumerate``.

    Args:
        row: with ``enumerate`` (operators) and perhaps ``data`` (``[rank]``, 2 unless said otherwise), ``tensors`` and
            ``scalars`` (how many variables, 2 and 1 unless said otherwise), ``ones`` (whether tensors with one axis of
            size 1 are looked at as well) and ``bounds`` (how many numbers real attributes are of, none above the next).

    Raises:
        KeyError: there is no such operator, or no axes for such a rank.
    """
    given, data = row["enumerate"], row.get("data", [2])
    assert isinstance(given, list)
    assert isinstance(data, list)
    operators = [str(op) for op in given]
    tensors, scalars = (int(str(row.get(key, number))) for key, number in (("tensors", 2), ("scalars", 1)))
    ones, bounds = bool(row.get("ones", False)), int(str(row.get("bounds", 0)))
    frame = _Frame(operators, int(data[0]), tensors=tensors, scalars=scalars, ones=ones, bounds=bounds)
    made = {k: v for k, v in row.items() if k not in ("enumerate", "data", "tensors", "scalars", "ones", "bounds")}
    leaves, attributes = frame.leaves(), frame.attributes()
    vocabulary = list(dict.fromkeys([*frame.constants(), *(t for op in operators for t in frame.templates(op))]))
    sizes = {n: [1, 3] for n, kind in attributes.items() if kind != "real"}
    if frame.booleans:  # an element of a comparison is one bit
        made = {**made, "instances": _BITS // 4}
        sizes |= {name: [most := round(_BITS ** (1 / len(frame.axes))), most + 2] for name in frame.axes}
    return {
        **made, "records": operators, "leaves": leaves, "attributes": attributes, "weights": frame.scalars,
        "vocabulary": vocabulary, "sizes": sizes,
    }  # fmt: skip


class _Frame:
    """What the tensors of a vocabulary are: their rank and sizes, and which kinds its operators take."""

    def __init__(
        self, operators: Sequence[str], rank: int, *, tensors: int, scalars: int, ones: bool, bounds: int
    ) -> None:
        records = [REGISTRY[op] for op in operators]
        self.axes = _AXES[rank]
        self.tensors = tensors
        self.ones = ones
        self.cuts = any("starts" in r.attributes for r in records)
        self.pads = any("pads" in r.attributes for r in records)
        self.gathers = [r for r in records if "indices" in r.inputs]
        self.expands = any(r.family == "shape" and "shape" in r.attributes for r in records)
        self.fills = any(not r.inputs and "value" in r.attributes for r in records)
        elementwise = [r for r in records if r.family in ("elementwise", "activation")]
        self.booleans = any(_takes(r, DType.BOOL) for r in elementwise)
        self.numbers = any(_reckons(r) for r in elementwise)
        keys = dict.fromkeys(n for r in records for n, kind in r.attributes.items() if kind == "float")
        self.reals = {key: f"r{number}" for number, key in enumerate(keys)}
        self.scalars = [f"t{n}" if n else "t" for n in range(scalars)] if self.numbers else []
        self.bounds = any(list(r.attributes.values()).count("float") > 1 for r in records)
        self.counts = any("limit" in r.attributes for r in records)
        self.turns = any("perm" in r.attributes for r in records)
        self.repeats = any("repeats" in r.attributes for r in records)
        self.ladder = [" + ".join(["r", *(f"{_GAP}{n}" for n in range(count))]) for count in range(bounds)]

    @property
    def shape(self) -> list[str]:
        """Sizes along the axes, each of three lengths where positions are asked for."""
        return [" + ".join(_lengths(n)) if self.cuts else name for n, name in enumerate(self.axes)]

    def leaves(self) -> dict[str, str]:
        shape = ", ".join(self.shape)
        found = dict.fromkeys("xyz"[: self.tensors], f"f[{shape}]")
        if self.ones:
            one = [[*self.shape[:n], "1", *self.shape[n + 1 :]] for n in range(len(self.axes))]
            found |= {f"o{n}": f"f[{', '.join(sizes)}]" for n, sizes in enumerate(one)}
        if self.booleans:
            found |= dict.fromkeys("pq", f"b[{shape}]")
        if self.gathers and not self.counts:
            found |= {f"i{a}": f"i[j{a}]<{size}" for a, size in enumerate(self.shape)}
        if self.expands and len(self.axes) > 1:
            found |= dict.fromkeys("vw"[: self.tensors], f"f[{self.shape[-1]}]") | {"e": "f[]"}
        return found | dict.fromkeys(self.scalars, "f[]")

    def attributes(self) -> dict[str, str]:
        found = dict.fromkeys([] if self.ladder else self.reals.values(), "real")
        if self.ladder:
            found |= {"r": "real"} | {f"{_GAP}{n}": "real>=0" for n in range(len(self.ladder) - 1)}
        elif self.bounds:
            found |= {_GAP: "real>0"}
        if self.cuts:
            names = [_lengths(axis) for axis, _ in enumerate(self.axes)]
            found |= {name: "int>=1" if name == some[1] else "int>=0" for some in names for name in some}
        if self.pads:
            found |= {f"{name}{axis}": "int>=0" for axis, _ in enumerate(self.axes) for name in "ba"}
        if self.expands or self.repeats:
            found |= {"h": "int>=1"}
        return found

    def constants(self) -> Iterator[str]:
        """Numbers and truth values, as scalars and of the tensors' shape."""
        for shape in ("", ", ".join(self.shape)):
            if self.numbers:
                reals = self._numbers() if not shape else []
                values = (*(("0.0", "1.0") if self.scalars else ()), *reals)
                yield from (f"ConstantOfShape(shape=[{shape}], value={v})" for v in values)
            if self.booleans:
                yield from (f'ConstantOfShape(dtype="bool", shape=[{shape}], value={v})' for v in ("0.0", "1.0"))

    def _numbers(self) -> list[str]:
        """What real attributes are; where they are bounds, also each and a gap."""
        above = [f"{name} + {_GAP}" for name in self.reals.values()] if self.bounds else []
        return self.ladder or [*self.reals.values(), *above]

    def templates(self, op: str) -> Iterator[str]:
        record = REGISTRY[op]
        if op == "Split":
            yield from (f"Split(A, axis={axis})" for axis in range(len(self.axes)))
            yield from (f"Split(A, axis={axis}, split=[{size}])" for axis, size in enumerate(self.shape))
            return
        for operands in self._operands_of(record):
            for attributes in self._attributes(record):
                yield f"{op}({', '.join((*operands, *attributes))})"

    def _operands_of(self, record: Operator) -> Iterator[tuple[str, ...]]:
        names = _operands(record)
        if "indices" in names and not self.counts:
            yield from (("A", f"i{axis}") for axis in range(len(self.axes)))
        else:
            if len(record.inputs) == 1 and record.inputs[0].endswith("*"):
                yield _HOLES[:1]
            yield _HOLES[: len(names)]

    def _attributes(self, record: Operator) -> Iterator[tuple[str, ...]]:
        if "starts" in record.attributes:
            yield from self._cuts()
            return
        if "limit" in record.attributes:
            for axis, size in enumerate(self.shape):
                for first, last in combinations(_sums(_lengths(axis)), 2) if self.cuts else [("0", size)]:
                    yield "delta=1", 'dtype="int64"', f"limit={last}", f"start={first}"
            return
        keys = [key for key, kind in record.attributes.items() if kind == "float"]
        if self.ladder and len(keys) == 2:
            for above, below in combinations(reversed(self.ladder), 2):
                yield tuple(f"{k}={v}" for k, v in zip(sorted(keys), (above, below), strict=True))
            return
        ways = [list(self._values(record, key, kind)) for key, kind in record.attributes.items()]
        for chosen in product(*ways):
            yield tuple(f"{k}={v}" for k, v in zip(record.attributes, chosen, strict=True) if v)

    def _values(self, record: Operator, key: str, kind: str) -> Iterator[str]:
        rank = len(self.axes)
        if key == "axis":
            yield from (str(a) for a in range(rank))
        elif key == "axes":
            more, most = (0, rank) if record.family == "reduce" else (1, 2)  # axes of size 1 that come or go
            yield from (str(list(some)) for n in range(1, most + 1) for some in combinations(range(rank + more * n), n))
        elif key in _FLAGS:
            yield from ("0", "1")
        elif key == "perm":
            yield from (str(list(p)) for n in range(2, rank + 1) for p in permutations(range(n)))
        elif key == "pads":
            yield from self._pads()
        elif key == "repeats":
            yield str([1] * rank)
            yield from (f"[{', '.join('h' if n == axis else '1' for n in range(rank))}]" for axis in range(rank))
        elif key == "shape":
            yield from self._shapes(record)
        elif kind == "float":
            yield self.reals[key]
            default = default_of(record.name, key)
            if record.family == "activation" and isinstance(default, float) and isfinite(default):
                yield repr(default)
            yield from (
                f"{other} + {_GAP}" for name, other in self.reals.items() if name in record.attributes and name != key
            )
        else:
            yield ""  # by default

    def _pads(self) -> Iterator[str]:
        """Along no axis, one, or all: on both sides or on either; beside slices also as long as an axis, or cutting."""
        count = len(self.axes)
        around = {n: (f"b{n}", f"a{n}") for n in range(count)}
        ways: list[Mapping[int, tuple[str, str]]] = [{}, *({n: pair} for n, pair in around.items())]
        ways += [{n: pair} for n, (b, a) in around.items() for pair in ((b, "0"), ("0", a))]
        if self.cuts:
            ways += [{n: pair} for n, size in enumerate(self.shape) for pair in ((size, "0"), ("0", size))]
            for n in range(count):
                start, _, rest = _lengths(n)
                ways += [{m: around[m] for m in around if m != n} | {n: (f"-{start}", f"-{rest}")}]
        if count > 1:
            ways.append(around)
        for way in ways:
            sides = zip(*(way.get(n, ("0", "0")) for n in range(count)), strict=True)
            yield f"[{', '.join(part for side in sides for part in side)}]"
        if self.expands:
            yield f"[0, {', '.join(b for b, _ in around.values())}, 0, {', '.join(a for _, a in around.values())}]"

    def _extents(self, axis: int) -> list[str]:
        """An axis' size, and what slices, padding and positions make of it."""
        found = [self.shape[axis]]
        if self.cuts:
            length = _lengths(axis)[1]
            found += [length, f"({length} + 1)//2"]
        if self.pads:
            found.append(f"{self.shape[axis]} + a{axis} + b{axis}")
        if self.gathers and not self.counts:
            found.append(f"j{axis}")
        return found

    def _shapes(self, record: Operator) -> Iterator[str]:
        """The tensors' shape, and what becomes of it along some axes; of what is expanded, also with an axis more."""
        every = [self._extents(n) for n in range(len(self.axes))]
        if record.inputs:
            if record.name == "Reshape":
                yield from _joined(self.shape)
            turned = permutations(self.shape) if self.turns or record.name != "Reshape" else [self.shape]
            yield from (f"[{', '.join(p)}]" for p in turned)
            yield from (f"[{', '.join(some)}]" for some in product(*every) if list(some) != self.shape)
            yield f"[h, {', '.join(self.shape)}]"
            if self.pads:
                yield f"[h, {', '.join(some[1] for some in every)}]"
            if self.ones:
                for axis in range(len(every)) if len(every) > 1 else ():
                    others = [size for n, size in enumerate(self.shape) if n != axis]
                    yield f"[{', '.join(others)}]"
                    if record.name == "Reshape":
                        yield from (f"[{', '.join(some)}]" for some in permutations(["1", *others]))
            return
        yield f"[{', '.join(self.shape)}]"
        for axis, some in enumerate(every):
            for new in (*some[1:], *((f"b{axis}", f"a{axis}") if self.pads else ())):
                yield f"[{', '.join(new if n == axis else size for n, size in enumerate(self.shape))}]"

    def _cuts(self) -> Iterator[tuple[str, ...]]:
        """Slices along one axis and along two: of a part, backwards, of every other element."""
        styles: list[list[tuple[int, str, str, int]]] = []
        for axis, size in enumerate(self.shape):
            start, length, rest = _lengths(axis)
            for before in ("", size, *((f"b{axis}",) if self.pads else ())):
                sums = _sums([before, start, length, rest] if before else [start, length, rest])
                later = sums[1:] if before else sums
                for first, last in combinations(later, 2):
                    yield _cut((axis, first, last, 1))
            first, last = _sums([start, length])[1:]
            styles.append([(axis, first, last, 1)])
            if self.pads:
                continue  # what cuts padding off goes forwards
            yield _cut((axis, rest, f"{rest} + {length}", 1))  # the middle of what was turned round
            yield _cut((axis, f"{length} - 1", "-1", -1))
            yield _cut((axis, f"{size} + {first}", f"{size} + {last}", 2))
            if self.ones:
                yield _cut((axis, "0", "-1", -1))
            styles[-1] += [(axis, f"{size} - 1", "-1", -1), (axis, first, last, 2)]
            yield from (_cut(style) for style in styles[-1][1:])
        for some in combinations(styles, 2):
            yield from (_cut(*pair) for pair in product(*some))


def _joined(shape: Sequence[str]) -> Iterator[str]:
    """The shapes in which some neighbouring axes are one."""
    for count in range(len(shape) - 1):
        for cuts in combinations(range(1, len(shape)), count):
            parts = [shape[a:b] for a, b in zip((0, *cuts), (*cuts, len(shape)), strict=True)]
            yield f"[{', '.join('*'.join(f'({n})' for n in part) for part in parts)}]"


def _lengths(axis: int) -> list[str]:
    """Names of the three lengths that an axis is cut into."""
    return [f"{name}{axis}" for name in ("s", "l", "u")]


def _sums(parts: Sequence[str]) -> list[str]:
    """Positions between parts that follow each other."""
    return ["0", *(" + ".join(parts[:n]) for n in range(1, len(parts) + 1))]


def _cut(*along: tuple[int, str, str, int]) -> tuple[str, ...]:
    """The attributes of a slice: of each axis its number, first position, the one that ends it, and step."""
    axes, starts, ends, steps = ([str(way[n]) for way in along] for n in range(4))
    listed = (("axes", axes), ("ends", ends), ("starts", starts), ("steps", steps))
    return tuple(f"{key}=[{', '.join(some)}]" for key, some in listed)


def _operands(record: Operator) -> list[str]:
    """Names of operands; of what takes any number, two."""
    found: list[str] = []
    for name in record.inputs:
        if name.endswith("*"):
            found += [name] * _OPERANDS
        elif not name.endswith("?"):
            found.append(name)
    return found


def _takes(record: Operator, dtype: DType) -> bool:
    """Whether some operand may be of an element type, the others of that or of numbers."""
    kinds = [TensorType(d, (2,)) for d in dict.fromkeys((dtype, DType.FLOAT32))]
    chosen = product(kinds, repeat=len(_operands(record)))
    return any(kinds[0] in some and _result(record, some) is not None for some in chosen)


def _reckons(record: Operator) -> bool:
    """Whether it makes a number of several."""
    count = len(_operands(record))
    return count > 1 and _result(record, [TensorType(DType.FLOAT32, (2,))] * count) is DType.FLOAT32


def _result(record: Operator, kinds: Sequence[TensorType]) -> DType | None:
    try:
        return record.apply(list(kinds), dict.fromkeys(record.attributes, 0))[1][0].dtype
    except (IllTypedOperator, TypeError, ValueError):
        return None
