"""What the elements of a model's own weights allow: claims about slices, and the certificate of a rewrite by them.

A *slice* of a value is what an index on one axis selects: a channel, a column, a neuron. The finder
(:mod:`superopt.passes.weights`) writes down what it claims, the checker
(:mod:`superopt.verifier.weights.claim_checker`) believes none of it; they share these rows and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from superopt.ir.errors import InvalidModel

__all__ = [
    "WeightRewriteCertificate", "ConstantNanTest", "EqualSlices", "LowRankProduct", "KeptSlices", "ConstantIndexAccess",
    "ValueAlias", "LookupTableValue", "UniformSlices",
]  # fmt: skip


@dataclass(frozen=True)
class UniformSlices:
    """All elements of these slices of a value are one number each, whatever the inputs."""

    value: str
    axis: int
    indices: tuple[int, ...]
    numbers: tuple[float, ...]

    def __str__(self) -> str:
        zero = not any(self.numbers)
        return f"{len(self.indices)} slices of {self.value!r} along axis {self.axis} are {'0' if zero else 'constant'}"


@dataclass(frozen=True)
class EqualSlices:
    """Slices of a value that are equal to earlier ones, whatever the inputs: (slice, earlier slice)."""

    value: str
    axis: int
    pairs: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"{len(self.pairs)} slices of {self.value!r} along axis {self.axis} repeat others"


@dataclass(frozen=True)
class ConstantNanTest:
    """A test of a value whose every element has one answer, whatever finite numbers the model is given."""

    value: str
    answer: bool

    def __str__(self) -> str:
        return f"{self.value!r} is {'true' if self.answer else 'false'} everywhere"


@dataclass(frozen=True)
class KeptSlices:
    """A value of the result that holds some slices of a value of the model, in order, and no others.

    ``axes`` are pairs of an axis and the indices that are left on it, ``removed`` counts those that are not.
    """

    value: str
    becomes: str
    axes: tuple[tuple[int, tuple[int, ...]], ...]
    removed: int


@dataclass(frozen=True)
class ValueAlias:
    """A value of the model that is another of the model's values or weights, or broadcasts it: what reads it may read
    that."""

    value: str
    other: str

    def __str__(self) -> str:
        return f"{self.value!r} is {self.other!r}"


@dataclass(frozen=True)
class LowRankProduct:
    """A product with a weight that is, within ``error`` of its largest element, of a rank that two thinner products
    have. ``value`` is the result of the product, ``exact`` says that the factors' product is the weight itself."""

    value: str
    weight: str
    rank: int
    error: float
    exact: bool

    def __str__(self) -> str:
        how = "is" if self.exact else f"is within {self.error:.1e} of its largest element"
        return f"weight {self.weight!r} {how} of rank {self.rank}"


@dataclass(frozen=True)
class ConstantIndexAccess:
    """A value whose elements an operator reads from, or writes to, known positions: the result makes it of the same
    elements otherwise, and computes nothing."""

    value: str

    def __str__(self) -> str:
        return f"every position that {self.value!r} is read from is known"


@dataclass(frozen=True)
class LookupTableValue:
    """A value of which each element is decided by the element of an integer value at the same place; the integers from
    ``low`` to ``high`` have rows of a table, and what others give is one of these rows, or an error."""

    value: str
    index: str
    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.value!r} is a function of {self.index!r}, with a table of {self.high - self.low + 1} rows"


@dataclass(frozen=True)
class WeightRewriteCertificate:
    """A rewrite by the elements of weights, as claims that can be checked without its finder.

    Attributes:
        weights: name → digest of the contents, of every weight whose elements a claim rests on.
        uniform, equal, same: claims about values of the model.
        kept: values of the result, by what they hold of values of the model.
        factored: products with weights of lower rank.
        moved: values that other movements of elements make.
        decided: tests that have one answer.
        tabulated: values that are read from tables.
        finite: whether a claim takes running values to be finite (0·x is 0).
    """

    weights: tuple[tuple[str, str], ...] = ()
    uniform: tuple[UniformSlices, ...] = ()
    equal: tuple[EqualSlices, ...] = ()
    same: tuple[ValueAlias, ...] = ()
    kept: tuple[KeptSlices, ...] = ()
    factored: tuple[LowRankProduct, ...] = ()
    finite: bool = False
    moved: tuple[ConstantIndexAccess, ...] = ()
    decided: tuple[ConstantNanTest, ...] = ()
    tabulated: tuple[LookupTableValue, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether the result computes the same over the reals, but for the rounding of sums of weights."""
        return all(f.exact for f in self.factored)

    def as_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)

    @staticmethod
    def from_json(data: object) -> WeightRewriteCertificate:
        """The inverse of :meth:`as_json`.

        Raises:
            InvalidModel: it is not what :meth:`as_json` gives.
        """
        try:
            row = _row(data)
            certificate = WeightRewriteCertificate(
                tuple((_text(name), _text(digest)) for name, digest in map(_rows, _rows(row["weights"]))),
                tuple(
                    UniformSlices(_text(r["value"]), _whole(r["axis"]), _wholes(r["indices"]), _numbers(r["numbers"]))
                    for r in map(_row, _rows(row["uniform"]))
                ),
                tuple(
                    EqualSlices(_text(r["value"]), _whole(r["axis"]), _pairs(r["pairs"]))
                    for r in map(_row, _rows(row["equal"]))
                ),
                tuple(ValueAlias(_text(r["value"]), _text(r["other"])) for r in map(_row, _rows(row["same"]))),
                tuple(
                    KeptSlices(
                        _text(r["value"]),
                        _text(r["becomes"]),
                        tuple((_whole(axis), _wholes(kept)) for axis, kept in map(_rows, _rows(r["axes"]))),
                        _whole(r["removed"]),
                    )
                    for r in map(_row, _rows(row["kept"]))
                ),
                tuple(
                    LowRankProduct(
                        _text(r["value"]), _text(r["weight"]), _whole(r["rank"]), _number(r["error"]), _flag(r["exact"])
                    )
                    for r in map(_row, _rows(row["factored"]))
                ),
                _flag(row["finite"]),
                tuple(ConstantIndexAccess(_text(r["value"])) for r in map(_row, _rows(row.get("moved", ())))),
                tuple(
                    ConstantNanTest(_text(r["value"]), _flag(r["answer"]))
                    for r in map(_row, _rows(row.get("decided", ())))
                ),
                tuple(
                    LookupTableValue(_text(r["value"]), _text(r["index"]), _whole(r["low"]), _whole(r["high"]))
                    for r in map(_row, _rows(row.get("tabulated", ())))
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InvalidModel(f"not a certificate of values: {error!r}") from error
        return certificate


def _row(data: object) -> Mapping[str, object]:
    if not isinstance(data, Mapping):
        raise TypeError("an object is expected")
    return data


def _rows(data: object) -> tuple[object, ...]:
    if not isinstance(data, list | tuple):
        raise TypeError("a list is expected")
    return tuple(data)


def _text(data: object) -> str:
    if not isinstance(data, str):
        raise TypeError("a string is expected")
    return data


def _whole(data: object) -> int:
    if not isinstance(data, int) or isinstance(data, bool):
        raise TypeError("an integer is expected")
    return data


def _number(data: object) -> float:
    if not isinstance(data, int | float) or isinstance(data, bool):
        raise TypeError("a number is expected")
    return float(data)


def _flag(data: object) -> bool:
    if not isinstance(data, bool):
        raise TypeError("true or false is expected")
    return data


def _wholes(data: object) -> tuple[int, ...]:
    return tuple(map(_whole, _rows(data)))


def _pairs(data: object) -> tuple[tuple[int, int], ...]:
    return tuple((_whole(a), _whole(b)) for a, b in map(_rows, _rows(data)))


def _numbers(data: object) -> tuple[float, ...]:
    return tuple(map(_number, _rows(data)))
