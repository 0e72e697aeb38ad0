"""Seeded attacks, judged by ONNX Runtime with its optimisations off: none wrong, none refused. Twenty-five in the gate.

``python tests/attack/run.py --models 2000`` is the long form; a failure here is looked at with ``--only SEED``.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from attacker import campaign
from attacker.feeds import feeds
from attacker.generate import GROUPS, generate
from attacker.interpret import Interpreter
from attacker.oracle import Oracle
from attacker.registry import MOTIFS
from attacker.sessions import open_session, run, same_bits

MODELS = 50  # of a run; the gate takes the first half of the first
FOUND = (147, 218, 224, 488, 572, 997, 1245, 1667)  # seeds of longer runs that were wrong, or refused, once
TIME_LIMIT = 60.0  # far above what a model takes; a search that it stopped would depend on the machine


@pytest.mark.parametrize(
    "seeds",
    [range(MODELS // 2), *(pytest.param(range(n, n + MODELS), marks=pytest.mark.slow) for n in (25, 75, 125, 175))],
    ids=lambda seeds: f"{seeds.start} to {seeds.stop}",
)
def test_generated_models_are_neither_wrong_nor_refused(
    seeds: range, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The issue's must-show, in the small: every failure is listed, so that one run shows them all."""
    monkeypatch.setattr(campaign, "TARGET", target)
    outcomes = [campaign.attack_one(generate(seed), time_limit=TIME_LIMIT, count=8)[0] for seed in seeds]
    failures = [
        f"{o.seed} {o.group}/{o.motif}: {o.outcome} {o.kind} {o.detail}" for o in outcomes if o.outcome != "right"
    ]
    assert not failures, "\n".join(failures)
    rewritten = Counter(o.group for o in outcomes if o.rewritten)
    for group in GROUPS:  # what is never rewritten attacks nothing; how many of so small models pay, prices decide
        assert rewritten[group] >= 1, (group, rewritten)


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_wrong_once_is_right(seed: int, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "TARGET", target)
    outcome = campaign.attack_one(generate(seed), time_limit=TIME_LIMIT, count=24)[0]
    assert outcome.outcome == "right", outcome


def test_every_motif_makes_valid_models_that_run() -> None:
    """The generator keeps its promise: the checker and ONNX Runtime accept each, and some inputs go through."""
    for group, motifs in MOTIFS.items():
        for seed in range(len(motifs)):
            attack = generate(seed, group)
            onnx.checker.check_model(attack.model, full_check=True)
            session = open_session(attack.model, optimised=False)
            assert run(session, next(feeds(attack, 1))), (group, attack.motif)


def test_equal_seeds_give_equal_attacks() -> None:
    for seed in (0, 7, 41):
        assert generate(seed).model.SerializeToString() == generate(seed).model.SerializeToString()
        for left, right in zip(feeds(generate(seed), 4), feeds(generate(seed), 4), strict=True):
            assert left.keys() == right.keys()
            assert all(same_bits(left[k], right[k]) for k in left)


def test_node_by_node_is_the_whole() -> None:
    """Without noise the oracle's interpreter gives what the runtime gives for the whole model, but for float16."""
    for seed in range(0, 60, 3):
        attack = generate(seed)
        if any(s.dtype == "float16" for s in attack.specs) or "half" in attack.motif:
            continue  # ONNX Runtime has few kernels of float16 and keeps float32 between those it has not
        interpreter, session = Interpreter(attack.model), open_session(attack.model, optimised=False)
        for feed in feeds(attack, 2):
            values = interpreter.run(feed)
            for name, value in run(session, feed).items():
                np.testing.assert_allclose(values[name], value, rtol=1e-5, atol=1e-6, err_msg=f"{seed} {name}")


def changed(model: onnx.ModelProto, kind: str, attribute: str | None = None) -> onnx.ModelProto:
    """The model with the first node of a kind made another: what an oracle must notice."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    node = next(n for n in copy.graph.node if n.op_type == kind)
    node.op_type = attribute or kind
    return copy


@pytest.mark.parametrize(
    ("group", "motif", "old", "new"),
    [
        ("folding", "rounded_product", "Mul", "Div"), ("branches", "where_threshold", "Mul", "Add"),
        ("rounding", "twosum", "Sub", "Add"), ("blocks", "conv_bn_relu", "Relu", "Abs"),
        ("ranges", "common_factor", "Mul", "Add"), ("branches", "rounding_symmetry", "Neg", "Identity"),
    ],
)  # fmt: skip
def test_the_oracle_sees_mutants_and_passes_the_original(group: str, motif: str, old: str, new: str) -> None:
    attack = generate(list(MOTIFS[group]).index(motif), group)
    oracle = Oracle(attack.model)
    assert not oracle.judge(attack.model, feeds(attack, 12)).wrong
    assert oracle.judge(changed(attack.model, old, new), feeds(attack, 12)).wrong
