"""A vocabulary from a list of operators: their signatures, axes and attributes are read off their records.

A theme of this kind (``enumerate = [...]``) says which operators, how many in a term, and of which rank its data are.
Tensors have that rank, and one name an axis for its size. An operand is anything; an axis is every axis; a flag is both
its values; a real attribute is a symbol. Where positions are asked for, each axis is three named lengths, and a slice
is from any of their sums to any later one, in the tensor or in what stands behind another or behind padding. What an
operator makes out of nothing is of the tensors' shape or a scalar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations, product

from superopt.ir.types import DType, TensorType
from superopt.ops import REGISTRY
from superopt.ops.meaning import IllTyped
from superopt.ops.record import Operator

__all__ = ["generated"]

_AXES: Mapping[int, tuple[str, ...]] = {1: ("n",), 2: ("m", "n"), 3: ("k", "m", "n")}
_HOLES = ("A", "B", "C")
_OPERANDS = 2  # of what takes any number
_FLAGS = frozenset({"keepdims", "fmod", "upper", "exclusive", "reverse"})


def generated(row: Mapping[str, object]) -> Mapping[str, object]:
    """The row of a theme with leaves and templates instead of ``enumerate``.

    Args:
        row: with ``enumerate`` (operators) and perhaps ``data`` (``[rank]``, 2 unless said otherwise) and ``tensors``
            (how many variables, 2 unless said otherwise).

    Raises:
        KeyError: there is no such operator, or no axes for such a rank.
    """
    given, data = row["enumerate"], row.get("data", [2])
    assert isinstance(given, list)
    assert isinstance(data, list)
    operators = [str(op) for op in given]
    frame = _Frame(operators, int(data[0]), int(str(row.get("tensors", 2))))
    made = {k: v for k, v in row.items() if k not in ("enumerate", "data", "tensors")}
    leaves, attributes = frame.leaves(), frame.attributes()
    vocabulary = list(dict.fromkeys([*frame.constants(), *(t for op in operators for t in frame.templates(op))]))
    return {
        **made, "records": operators, "leaves": leaves, "attributes": attributes, "weights": frame.scalars,
        "vocabulary": vocabulary, "sizes": {n: [1, 3] for n, kind in attributes.items() if kind != "real"},
    }  # fmt: skip


class _Frame:
    """What the tensors of a vocabulary are: their rank and sizes, and which kinds its operators take."""

    def __init__(self, operators: Sequence[str], rank: int, tensors: int) -> None:
        records = [REGISTRY[op] for op in operators]
        self.axes = _AXES[rank]
        self.tensors = tensors
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
        self.scalars = ["t"] if self.numbers else []

    @property
    def shape(self) -> list[str]:
        """Sizes along the axes, each of three lengths where positions are asked for."""
        return [" + ".join(_lengths(n)) if self.cuts else name for n, name in enumerate(self.axes)]

    def leaves(self) -> dict[str, str]:
        shape = ", ".join(self.shape)
        found = dict.fromkeys("xyz"[: self.tensors], f"f[{shape}]")
        if self.booleans:
            found |= dict.fromkeys("pq", f"b[{shape}]")
        if self.gathers:
            found |= {f"i{a}": f"i[j{a}]<{size}" for a, size in enumerate(self.shape)}
        if self.expands and len(self.axes) > 1:
            found |= dict.fromkeys("vw"[: self.tensors], f"f[{self.shape[-1]}]") | {"e": "f[]"}
        return found | dict.fromkeys(self.scalars, "f[]")

    def attributes(self) -> dict[str, str]:
        found = dict.fromkeys(self.reals.values(), "real")
        if self.cuts:
            names = [_lengths(axis) for axis, _ in enumerate(self.axes)]
            found |= {name: "int>=1" if name == some[1] else "int>=0" for some in names for name in some}
        if self.pads:
            found |= {f"{name}{axis}": "int>=0" for axis, _ in enumerate(self.axes) for name in "ba"}
        if self.expands:
            found |= {"h": "int>=1"}
        return found

    def constants(self) -> Iterator[str]:
        """Numbers and truth values, as scalars and of the tensors' shape."""
        for shape in ("", ", ".join(self.shape)):
            if self.numbers:
                values = ("0.0", "1.0", *(self.reals.values() if not shape else ()))
                yield from (f"ConstantOfShape(shape=[{shape}], value={v})" for v in values)
            if self.booleans:
                yield from (f'ConstantOfShape(dtype="bool", shape=[{shape}], value={v})' for v in ("0.0", "1.0"))

    def templates(self, op: str) -> Iterator[str]:
        record = REGISTRY[op]
        if op == "Split":
            yield from (f"Split(A, axis={axis})" for axis in range(len(self.axes)))
            return
        for operands in self._operands_of(record):
            for attributes in self._attributes(record, operands):
                yield f"{op}({', '.join((*operands, *attributes))})"

    def _operands_of(self, record: Operator) -> Iterator[tuple[str, ...]]:
        names = _operands(record)
        if "indices" in names:
            yield from (("A", f"i{axis}") for axis in range(len(self.axes)))
        else:
            yield _HOLES[: len(names)]

    def _attributes(self, record: Operator, operands: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        if "starts" in record.attributes:
            yield from self._cuts()
            return
        ways = [list(self._values(record, key, kind, operands)) for key, kind in record.attributes.items()]
        for chosen in product(*ways):
            yield tuple(f"{k}={v}" for k, v in zip(record.attributes, chosen, strict=True) if v)

    def _values(self, record: Operator, key: str, kind: str, operands: tuple[str, ...]) -> Iterator[str]:
        rank = len(self.axes)
        if key == "axis":
            yield from (str(a) for a in range(rank)) if len(operands) < 2 or operands[1][0] != "i" else operands[1][1:]
        elif key == "axes":
            count = rank + (record.family == "shape")
            most = rank if record.family == "reduce" else 1
            yield from (str(list(some)) for n in range(1, most + 1) for some in combinations(range(count), n))
        elif key in _FLAGS:
            yield from ("0", "1")
        elif key == "perm":
            yield from (str(list(p)) for n in range(2, rank + 1) for p in permutations(range(n)))
        elif key == "pads":
            for some in ([n] for n in range(rank)) if rank == 1 else (*([n] for n in range(rank)), range(rank)):
                pads = [f"{name}{n}" if n in some else "0" for name in "ba" for n in range(rank)]
                yield f"[{', '.join(pads)}]"
        elif key == "shape":
            yield from self._shapes(record)
        elif kind == "float":
            yield self.reals[key]
        else:
            yield ""  # by default

    def _shapes(self, record: Operator) -> Iterator[str]:
        """The tensors' shape; of what is expanded, also with an axis more, and cut; of constants, beside a tensor."""
        if record.inputs:
            ways = [[size, *(_lengths(n)[1:2] if self.cuts else [])] for n, size in enumerate(self.shape)]
            yield from (f"[{', '.join(p)}]" for some in product(*ways) for p in permutations(some))
            yield f"[h, {', '.join(self.shape)}]"
            return
        yield f"[{', '.join(self.shape)}]"
        for axis, new in product(range(len(self.axes)), "ba" if self.pads else ""):
            yield f"[{', '.join(f'{new}{n}' if n == axis else size for n, size in enumerate(self.shape))}]"

    def _cuts(self) -> Iterator[tuple[str, ...]]:
        """Slices along one axis, and along all; backwards; every other element of the middle."""
        every = list(range(len(self.shape)))
        for axis in every:
            for before in ("", self.shape[axis], *((f"b{axis}",) if self.pads else ())):
                sums = _sums([before, *_lengths(axis)] if before else _lengths(axis))
                later = sums[1:] if before else sums
                for first, last in combinations(later, 2):
                    yield _cut([axis], [first], [last], 1)
            yield _cut([axis], [f"{self.shape[axis]} - 1"], ["-1"], -1)
            yield _cut([axis], _sums(_lengths(axis))[1:2], _sums(_lengths(axis))[2:3], 2)
        if len(every) > 1:
            yield _cut(every, [_sums(_lengths(a))[1] for a in every], [_sums(_lengths(a))[2] for a in every], 1)
            yield _cut(every, [f"{size} - 1" for size in self.shape], ["-1"] * len(every), -1)


def _lengths(axis: int) -> list[str]:
    """Names of the three lengths that an axis is cut into."""
    return [f"{name}{axis}" for name in ("s", "l", "u")]


def _sums(parts: Sequence[str]) -> list[str]:
    """Positions between parts that follow each other."""
    return ["0", *(" + ".join(parts[:n]) for n in range(1, len(parts) + 1))]


def _cut(axes: Sequence[int], starts: Sequence[str], ends: Sequence[str], step: int) -> tuple[str, ...]:
    listed = (("axes", list(map(str, axes))), ("ends", ends), ("starts", starts), ("steps", [str(step)] * len(axes)))
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
    except (IllTyped, TypeError, ValueError):
        return None
