"""Proving many rules in worker processes, and verdicts as JSON."""

from __future__ import annotations

import pickle

import pytest

from superopt.fleet import WorkerPool
from superopt.rules import parse_rule
from superopt.verifier import ProvedVerdict, RefutedVerdict, TestedVerdict, UnknownVerdict, Verdict
from superopt.verifier.batch_proving import prove_all
from superopt.verifier.verdict import kind_of, verdict_from_json, verdict_to_json

RULES = [
    parse_rule({"id": "true", "forall": {"x": "f[n]"}, "lhs": ["Relu(Relu(x))"], "rhs": ["Relu(x)"]}),
    parse_rule(
        {"id": "false", "forall": {"a": "f[k,k]", "b": "f[k,k]"}, "lhs": ["MatMul(a, b)"], "rhs": ["MatMul(b, a)"]}
    ),
    parse_rule({"id": "ill", "forall": {"x": "f[n,m]", "y": "f[n,k]"}, "lhs": ["Add(x, x)"], "rhs": ["MatMul(x, y)"]}),
]  # fmt: skip


@pytest.mark.parametrize("workers", [1, 2])
def test_prove_all(workers: int) -> None:
    seen: list[tuple[str, int, int]] = []
    with WorkerPool.open(workers) as fleet:
        found = prove_all(RULES, fleet=fleet, progress=lambda i, v, n, total: seen.append((i, n, total)))
    assert list(found) == ["true", "false", "ill"]
    assert isinstance(found["true"], ProvedVerdict)
    assert isinstance(found["false"], RefutedVerdict)
    assert kind_of(found["ill"]) in ("unknown", "refuted")
    assert [n for _, n, _ in seen] == [1, 2, 3]


@pytest.mark.parametrize(
    "verdict",
    [ProvedVerdict(("k >= 2",), ("y",), (0, 1)), TestedVerdict(8, 1e-6), RefutedVerdict({"n": 2}),
     UnknownVerdict("why", ("n >= 2",))],
)  # fmt: skip
def test_verdicts_round_trip(verdict: Verdict) -> None:
    assert verdict_from_json(verdict_to_json(verdict)) == verdict


@pytest.mark.parametrize("data", [{}, {"verdict": "true"}, {"verdict": "tested", "odd": 1}])
def test_what_is_not_a_verdict_is_refused(data: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="verdict"):
        verdict_from_json(data)


def test_a_rule_means_the_same_in_another_process() -> None:
    """Hashes of text differ between processes: none may travel with a size or a term."""
    rule = parse_rule({"id": "r", "forall": {"x": "f[n, 2*m]"}, "lhs": ["Add(x, x)"], "rhs": ["Mul(x, 2.0)"]})
    hash(rule.lhs)
    copy = pickle.loads(pickle.dumps(rule))
    assert copy == rule
    assert "_hash" not in vars(copy.lhs[0])
    assert all("_hash" not in vars(size) for size in copy.tensors["x"].shape)
