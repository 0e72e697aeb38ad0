"""Certificates of proofs, and the independent checker that reads them. It needs Z3 (the extra ``prove``)."""

from superopt.verifier.solver import require_solver

require_solver()
