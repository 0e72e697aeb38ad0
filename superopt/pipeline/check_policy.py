"""The check policy: what checks of candidates may take, and how a failed check is followed."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CHECKS", "CheckPolicy"]


@dataclass(frozen=True)
class CheckPolicy:
    """The numbers that decide how candidates are checked.

    Attributes:
        flops, weight_bytes: FLOPs and bytes of weights that a check gets through in a second, at worst. From them
            follows the time that the search leaves for it.
        least_seconds: of checking and reporting the smallest model.
        node_seconds: that checking takes for each node: 10 seconds for 10,000.
        reserved_share: of the time limit, at most, that the search leaves for the check. The rest finds something to
            check.
        grace_share: of the time limit, by which a check that has begun may go over it: its result decides.
        interrupted_seconds: for timing and checking what there is after an interrupt, if they take less.
        suspects: rules that are left out after a failed check, and after each that follows; each costs a search.
        proof_seconds: for all proofs of a result with ``--verify certify``.
        memory_factor: times its weights, of memory that is left, for which a large model is checked as a whole.
        error_inputs: on which errors of fast algorithms are measured, at most.
        error_flops: of the float64 reference on all of these inputs but the first.
        error_share: of the error budget, at most, on these few inputs. On 100 inputs errors were up to 1.8 times as
            large.
        fault_run_seconds: for one run that looks for a fault of the runtime.
        brief_fault_seconds: that running a model is expected to take at most, for the quick effort to look for a fault
            of the runtime in it.
        fault_share: of the time that is left, which looking for copies that avoid a fault may take.
    """

    flops: float = 1e10
    weight_bytes: float = 3e8
    least_seconds: float = 0.4
    node_seconds: float = 1e-3
    reserved_share: float = 0.6
    grace_share: float = 0.1
    interrupted_seconds: float = 3.0
    suspects: tuple[int, ...] = (1, 4, 8)
    proof_seconds: float = 60.0
    memory_factor: int = 8
    error_inputs: int = 3
    error_flops: float = 1e10
    error_share: float = 0.5
    fault_run_seconds: float = 20.0
    brief_fault_seconds: float = 0.2
    fault_share: float = 0.3


CHECKS = CheckPolicy()
