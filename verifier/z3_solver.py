"""Z3: proofs need it, optimisations do not, so it is an extra."""

from __future__ import annotations

from importlib.util import find_spec

from superopt.ir.errors import UsageError

__all__ = ["require_solver"]


def require_solver() -> None:
    """Raise ``UsageError``, with the next step, where Z3 is not installed."""
    if find_spec("z3") is None:
        raise UsageError("proofs need Z3, which is not installed", hint="pip install 'superopt[prove]'")
