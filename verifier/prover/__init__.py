"""The prover: equality of guarded sums at all sizes. It needs Z3 (the extra ``prove``)."""

from superopt.verifier.z3_solver import require_solver

require_solver()
