"""Truth: exact testing, the all-sizes prover, certificates and their independent checker, whole-graph equivalence."""

if __name__ != "superopt.verifier":
    raise ImportError("import superopt.verifier; verifier/ is where its source lives")

from typing import TYPE_CHECKING

from superopt.ir.lazy_names import lazy_names
from superopt.verifier.verdict import ProvedVerdict, RefutedVerdict, TestedVerdict, UnknownVerdict, Verdict

if TYPE_CHECKING:
    from superopt.verifier.batch_proving import prove_all
    from superopt.verifier.certificates.certificate import certify
    from superopt.verifier.certificates.checker import check_certificate
    from superopt.verifier.equivalence.graphs import verify
    from superopt.verifier.exact.testing import test
    from superopt.verifier.prover.prover import prove

__all__ = [
    "ProvedVerdict", "RefutedVerdict", "TestedVerdict", "UnknownVerdict", "Verdict", "certify", "check_certificate",
    "prove", "prove_all", "test", "verify",
]  # fmt: skip

# Loaded when first asked for: the prover brings Z3 in, which most runs do not need.
_HOMES = {
    "certify": "certificates.certificate",
    "check_certificate": "certificates.checker",
    "prove": "prover.prover",
    "prove_all": "batch_proving",
    "test": "exact.testing",
    "verify": "equivalence.graphs",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
