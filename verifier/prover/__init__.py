"""The prover: equality of guarded sums at all sizes."""
