"""Slices of parts of models at symbols: phases of an axis, and crops to the length of another.

A slice with steps that reaches the end of its axis says that this axis is a multiple of the step; one that ends where
some leaf's axis would says that it cuts off what a window has added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from superopt.ir.poly import Dim, Poly, sym
from superopt.ir.terms import App, AttributeValue
from superopt.ir.types import TensorType
from superopt.rules.rule import TensorScheme, TypeScheme

__all__ = ["cropped", "has_steps", "phase", "short_of"]


def cropped(app: App, forall: Mapping[str, TypeScheme], kinds: Mapping[str, TensorType]) -> App:
    """A slice that ends as far away as some leaf's same axis is long, with that size for its end; else as it was."""
    given = dict(app.attributes)
    axes, ends = given["axes"], given["ends"]
    if not isinstance(axes, tuple) or not isinstance(ends, tuple):
        return app
    sizes = {
        (axis, size): schemes.shape[axis]
        for name, schemes in forall.items() if isinstance(schemes, TensorScheme)
        for axis, size in enumerate(kinds[name].shape or ())
    }  # fmt: skip
    found = tuple(sizes.get((a, e), e) for a, e in zip(axes, ends, strict=True))  # type: ignore[arg-type]
    return app if found == ends else replace(app, attributes=tuple(sorted({**given, "ends": found}.items())))


def phase(
    app: App, operands: Sequence[TensorType | None], fresh: Callable[[], str], values: dict[str, float]
) -> App | None:
    """A slice with steps up to the ends of axes that these steps divide, which are so many times a size; else None."""
    given = dict(app.attributes)
    shape = (None if operands[0] is None else operands[0].shape) or ()
    rows = list(zip(*(_numbers(given[k]) for k in ("axes", "starts", "ends", "steps")), strict=False))
    if all(step == 1 for *_, step in rows):
        return None
    whole: list[Dim] = []
    for axis, start, end, step in rows:
        size = shape[axis]
        if not isinstance(size, int) or not 0 <= start < step or end < size or size % step:
            return None
        name = fresh()
        values[name] = float(size // step)
        whole.append(step * sym(name))
    return replace(app, attributes=tuple(sorted({**given, "ends": tuple(whole)}.items())))


def short_of(shape: Sequence[Dim], given: Mapping[str, AttributeValue]) -> Dim | None:
    """What an axis has more than so many steps, where a slice with steps is to reach its end."""
    axes, ends, steps = given["axes"], given["ends"], given["steps"]
    if isinstance(axes, tuple) and isinstance(ends, tuple) and isinstance(steps, tuple):
        for axis, end, step in zip(axes, ends, steps, strict=True):
            if isinstance(axis, int) and isinstance(step, int) and isinstance(end, Poly) and shape[axis] != end:
                steps_more = (shape[axis] - end) // step
                return steps_more if steps_more * step == shape[axis] - end else shape[axis] - end
    return None


def has_steps(app: App) -> bool:
    steps = dict(app.attributes)["steps"]
    return isinstance(steps, tuple) and not set(steps) <= {1}


def _numbers(value: AttributeValue) -> list[int]:
    """A list of whole numbers; empty where it is none."""
    parts = value if isinstance(value, tuple) else ()
    numbers = [v for v in parts if isinstance(v, int)]
    return numbers if len(numbers) == len(parts) else []
