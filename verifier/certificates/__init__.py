"""Certificates of proofs, and the independent checker that reads them. It needs Z3 (the extra ``prove``)."""

from superopt.verifier.z3_solver import require_solver

require_solver()
