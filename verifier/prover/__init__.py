"""The prover: equality of guarded sums at all sizes. It needs Z3 (the extra ``prove``)."""

from superopt.verifier.solver import require_solver

require_solver()
