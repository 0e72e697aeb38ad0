"""Sliding windows: the sizes and positions that convolutions and pools share.

Along one spatial axis, output position ``y`` and tap ``t`` look at input position ``y·stride + t·dilation − before``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from superopt.ir.poly import Dim, Poly
from superopt.ir.terms import AttributeValue
from superopt.ops.forms import integers, known_ints, text, truth
from superopt.ops.meaning import Condition, Contradiction, IllTyped, at_least, require
from superopt.ops.record import NodeView, NotCovered

__all__ = ["Windows", "read_windows", "vector", "windows"]


@dataclass(frozen=True)
class Windows:
    """Windows over the spatial axes, with one entry per axis in each field."""

    sizes: tuple[Dim, ...]
    kernel: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    dilations: tuple[Dim, ...]
    before: tuple[Dim, ...]
    after: tuple[Dim, ...]

    @property
    def inside(self) -> bool:
        """Whether no window leaves the input."""
        return all(isinstance(p, int) and p <= 0 for p in (*self.before, *self.after))

    def outputs(self) -> tuple[Dim, ...]:
        """Number of windows along each axis: ``(size + before + after − dilation (kernel − 1) − 1) // stride + 1``."""
        found: list[Dim] = []
        for axis, size in enumerate(self.sizes):
            room = size + self.before[axis] + self.after[axis] - self.dilations[axis] * (self.kernel[axis] - 1) - 1
            require(at_least(room, 0), f"a window of {self.kernel[axis]} does not fit into a padded {size}")
            found.append(room // self.strides[axis] + 1)
        return tuple(found)

    def positions(self, at: Sequence[Dim], taps: Sequence[Dim]) -> tuple[Dim, ...]:
        """Input positions that the taps of a window look at."""
        return tuple(
            y * s + t * d - p for y, t, s, d, p in zip(at, taps, self.strides, self.dilations, self.before, strict=True)
        )

    def bounds(self, positions: Sequence[Dim]) -> tuple[Condition, ...]:
        """Conditions that positions are inside the input; none for an axis that is not padded."""
        found: list[Condition] = []
        for axis, position in enumerate(positions):
            padding = (self.before[axis], self.after[axis])
            if not all(isinstance(p, int) and p <= 0 for p in padding):
                found += [at_least(position, 0), at_least(self.sizes[axis] - 1, position)]
        return tuple(found)


def vector(value: AttributeValue, length: int, name: str) -> tuple[Dim, ...]:
    """A list attribute of sizes with a known length.

    Raises:
        IllTyped: it is not a list of that many sizes.
    """
    if not isinstance(value, tuple) or len(value) != length:
        raise IllTyped(f"{name} needs {length} entries, not {value}")
    if not all(isinstance(v, int | Poly) for v in value):
        raise IllTyped(f"{name} {value} must be integers")
    return tuple(v for v in value if isinstance(v, int | Poly))


def windows(
    sizes: Sequence[Dim], kernel: Sequence[Dim], strides: AttributeValue, pads: AttributeValue,
    dilations: AttributeValue,
) -> Windows:  # fmt: skip
    """Windows from canonical attributes; strides, dilations and kernel must be at least 1."""
    rank = len(sizes)
    padding = vector(pads, 2 * rank, "pads")
    steps, gaps = vector(strides, rank, "strides"), vector(dilations, rank, "dilations")
    for value in (*steps, *gaps, *kernel):
        require(at_least(value, 1), "strides, dilations and kernel sizes must be at least 1")
    return Windows(tuple(sizes), tuple(kernel), steps, gaps, padding[:rank], padding[rank:])


def read_windows(view: NodeView, kernel: Sequence[Dim]) -> dict[str, AttributeValue]:
    """Strides, pads and dilations of a node; ``auto_pad`` and ``ceil_mode`` are resolved into pads.

    Raises:
        NotCovered: the padding depends on a size that is not known.
        Contradiction: there are not as many as the input has spatial axes.
    """
    sizes = view.type(0).shape or ()
    rank = len(sizes) - 2
    if rank < 1 or len(kernel) != rank:
        raise Contradiction(f"a kernel with {len(kernel)} axes on an input of rank {len(sizes)}")
    strides, dilations = integers(view, "strides", (1,) * rank), integers(view, "dilations", (1,) * rank)
    pads = integers(view, "pads", (0,) * (2 * rank))
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank or min((*strides, *dilations)) < 1:
        raise Contradiction(
            f"strides {strides}, dilations {dilations} or pads {pads} are not positive or do not fit {rank} axes"
        )
    mode = text(view, "auto_pad", "NOTSET")
    if mode.startswith("SAME"):
        pairs = [
            same_padding(*axis, upper=mode == "SAME_UPPER")
            for axis in zip(sizes[2:], kernel, strides, dilations, strict=True)
        ]
        pads = (*(a for a, _ in pairs), *(b for _, b in pairs))
    elif mode == "VALID":
        pads = (0,) * (2 * rank)
    elif mode != "NOTSET":
        raise NotCovered(f"auto_pad {mode!r} is not known")
    if truth(view, "ceil_mode", 0):
        extra = [
            ceil_padding(*axis)
            for axis in zip(sizes[2:], kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
        ]
        if any(extra) and truth(view, "count_include_pad", 0):
            raise NotCovered("ceil_mode that adds a window, with count_include_pad")
        pads = (*pads[:rank], *(p + e for p, e in zip(pads[rank:], extra, strict=True)))
    return {"strides": strides, "pads": pads, "dilations": dilations}


def same_padding(size: Dim, kernel: Dim, stride: int, dilation: int, *, upper: bool) -> tuple[int, int]:
    """Padding with which there are ``ceil(size / stride)`` windows."""
    (taps,) = known_ints((kernel,), "the kernel of an auto-padded window")
    if stride == 1:
        needed = dilation * (taps - 1)
    else:
        (known,) = known_ints((size,), "a size with auto_pad")
        needed = max((-(-known // stride) - 1) * stride + dilation * (taps - 1) + 1 - known, 0)
    small = needed // 2
    return (small, needed - small) if upper else (needed - small, small)


def ceil_padding(size: Dim, kernel: Dim, stride: int, dilation: int, before: int, after: int) -> int:
    """Padding to add behind so that rounding down gives the windows that ``ceil_mode`` asks for.

    A window that would start in the padding behind is left out, as ONNX Runtime does.
    """
    if stride == 1:
        return 0
    known, taps = known_ints((size, kernel), "a size with ceil_mode")
    room = known + before + after - dilation * (taps - 1) - 1
    count = -(-room // stride) + 1
    if (count - 1) * stride >= known + before:
        count -= 1
    extra = max((count - 1) * stride - room, 0)
    if after + extra >= taps and extra:
        raise NotCovered("ceil_mode makes a window of padding alone")
    return extra
