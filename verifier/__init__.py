"""Truth: exact testing, the all-sizes prover, certificates and their independent checker, whole-graph equivalence."""

if __name__ != "superopt.verifier":
    raise ImportError("import superopt.verifier; verifier/ is where its source lives")

from superopt.verifier.prover import prove
from superopt.verifier.verdict import ProvedAllSizes, ProvedBounded, Refuted, Tested, Unknown, Verdict

__all__ = ["ProvedAllSizes", "ProvedBounded", "Refuted", "Tested", "Unknown", "Verdict", "prove"]
