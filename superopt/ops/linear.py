"""Matrix products."""

from __future__ import annotations

from superopt.ops.forms import reader, writer
from superopt.ops.meaning import Comprehension, IllTyped, Operand, broadcast_dims, require, same, tensor, total
from superopt.ops.record import NUMERIC, Operator

__all__ = ["OPERATORS"]


def matmul(a: Operand, b: Operand) -> Comprehension:
    """``numpy.matmul``: leading axes broadcast, a vector is a row on the left and a column on the right."""
    if a.rank == 0 or b.rank == 0:
        raise IllTyped("MatMul takes no scalars")
    inner = a.shape[-1]
    require(same(inner, b.shape[-2] if b.rank > 1 else b.shape[0]), f"inner sizes of {a.type} and {b.type} differ")
    batch = broadcast_dims([a.shape[:-2], b.shape[:-2]])
    rows, columns = a.shape[-2:-1], b.shape[-1:] if b.rank > 1 else ()

    def value(*index):  # type: ignore[no-untyped-def]
        lead, row = index[: len(batch)], index[len(batch) : len(batch) + len(rows)]
        column = index[len(batch) + len(rows) :]

        def term(t):  # type: ignore[no-untyped-def]
            return batched(a, lead, (*row, t)) * batched(b, lead, (t, *column))

        return total(inner, term)

    return tensor((*batch, *rows, *columns), value)


def batched(x: Operand, lead, core):  # type: ignore[no-untyped-def]
    """Element of ``x`` whose leading axes broadcast against ``lead``."""
    axes = lead[len(lead) - (x.rank - len(core)) :] if x.rank > len(core) else ()
    index = [0 if isinstance(s, int) and s == 1 else i for i, s in zip(axes, x.shape, strict=False)]
    return x[(*index, *core)]


OPERATORS = (
    Operator(
        name="MatMul", inputs=("A", "B"), meaning=matmul, since=1, dtypes=NUMERIC,
        read=reader(), write=writer(1), family="linear",
    ),
)  # fmt: skip
