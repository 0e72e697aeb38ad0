"""Choices of forms, and what they share: forms of one image that take it apart in the same way do it once.

What that takes is laid to the charge of those that share it in proportion to what their operators take without forms:
so a Conv of few channels, whose form would lose by itself, can go along with one of many.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from superopt.passes.fast_algorithms.conv import ConvForm
from superopt.passes.fast_algorithms.matmul import MatMulForm
from superopt.passes.fast_algorithms.sites import Site

__all__ = ["Choice", "Form", "Priced", "common", "shared"]

Form = ConvForm | MatMulForm


@dataclass(frozen=True)
class Choice:
    """A site with its form.

    Attributes:
        site: the operator.
        form: what takes its place.
        before, after: what the operator and the form are taken to need, in microseconds.
        error: standard deviation of ``after``, in microseconds.
        rivals: other forms that prices put near this one, and what they are modelled to take; the cheapest first.
        apart: of ``after``, what takes the image apart.
        spared: microseconds by which ``after`` is less than what the form takes alone, since others share that.
    """

    site: Site
    form: Form
    before: float
    after: float
    error: float = 0.0
    rivals: tuple[tuple[Form, float], ...] = ()
    apart: float = 0.0
    spared: float = 0.0

    @property
    def begins(self) -> Hashable:
        """Equal for forms that take one image apart in one way; ``None`` for a product of matrices."""
        return (self.site.node.inputs[0], self.form.tiled) if isinstance(self.form, ConvForm) else None

    @property
    def more_bytes(self) -> int:
        """By how much the weights grow, about."""
        return round(4 * prod(self.site.kernel) * (self.form.grown - 1.0))


@dataclass(frozen=True)
class Priced:
    """A form of a site, its number among them, and what it is modelled to take, in microseconds.

    ``apart`` is the part of it that takes the image apart, which other forms of the image can share.
    """

    us: float
    number: int
    form: Form
    apart: float


Row = tuple[Site, float, Sequence[Priced]]  # a site, what its operator takes, and its forms


def common(rows: Sequence[Row]) -> Mapping[int, Priced]:
    """The forms of those Convs that are cheapest if they share what takes an image apart, by their nodes' identity.

    Of each image there is at most one way in which its Convs do; those that are cheaper by themselves stay so.
    """
    found: dict[int, Priced] = {}
    images: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row[0].pads:
            images[row[0].node.inputs[0]].append(row)
    for several in images.values():
        if len(several) > 1:
            alone = sum(map(_least, several))
            plans = [_plan(several, tiled) for tiled in dict.fromkeys(_tilings(several))]
            us, plan = min(plans, key=lambda p: p[0], default=(alone, {}))
            if len(plan) > 1 and us < alone:
                found.update(plan)
    return found


def _tilings(rows: Sequence[Row]) -> Iterator[Hashable]:
    return (p.form.tiled for _, _, priced in rows for p in priced if isinstance(p.form, ConvForm))


def _least(row: Row) -> float:
    """What a site takes by itself."""
    _, before, priced = row
    return min((before, *(p.us for p in priced)))


def _plan(rows: Sequence[Row], tiled: Hashable) -> tuple[float, dict[int, Priced]]:
    """What an image's Convs take if it is taken apart in this way, and the forms of those that use it."""
    total = once = 0.0
    users: dict[int, Priced] = {}
    for row in rows:
        alike = (p for p in row[2] if isinstance(p.form, ConvForm) and p.form.tiled == tiled)
        priced, least = next(alike, None), _least(row)
        if priced is not None and priced.us - priced.apart < least:
            users[id(row[0].node)] = priced
            once = max(once, priced.apart)
            least = priced.us - priced.apart
        total += least
    return total + once, users


def shared(chosen: Sequence[Choice]) -> list[Choice]:
    """The choices, each with what it is spared by those of the others that take its image apart in the same way."""
    whole: dict[Hashable, float] = defaultdict(float)
    for choice in chosen:
        whole[choice.begins] += choice.before
    found: list[Choice] = []
    for choice in chosen:
        own = 1.0 if choice.begins is None else choice.before / whole[choice.begins]
        spared = (1.0 - own) * choice.apart
        found.append(replace(choice, after=choice.after + choice.spared - spared, spared=spared))
    return found
