"""The rules of a greedy search are rules of the library, with its verdicts, chosen by the operators of a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.peephole_recording import main, recorded
from superopt.ops import REGISTRY
from superopt.rules import load_library, peepholes
from superopt.rules.float_verdicts import float_key
from superopt.rules.peepholes import only_moves, peephole_library, recorded_rules, reducing_operators

GOLDEN = Path(__file__).resolve().parents[2] / "corpus" / "golden"


def test_they_are_read_as_the_whole_library_has_them() -> None:
    whole, found = load_library(), peephole_library(REGISTRY)
    reducing = {i for i, rule in whole.items() if any(reducing_operators(rule))}
    assert found.rules.keys() == recorded_rules() | reducing | {i for i, rule in whole.items() if only_moves(rule)}
    assert all(found[i] == whole[i] and found.verdict_name(i) == whole.verdict_name(i) for i in found)
    assert {r.id for r in found.admitted} == {r.id for r in whole.admitted} & found.rules.keys()
    keys = [float_key(r) for r in found.values()]
    assert [found.float_store.get(k) for k in keys] == [whole.float_store.get(k) for k in keys]


def test_of_reducing_rules_those_whose_operators_a_model_has_are_chosen() -> None:
    signs, none = peephole_library({"Neg", "Relu"}), peephole_library(())
    assert none.rules.keys() == recorded_rules()
    others = signs.rules.keys() - recorded_rules()
    assert others
    for rule in map(signs.__getitem__, others):
        assert any(operators <= {"Neg", "Relu"} for operators in reducing_operators(rule))


def test_rules_that_move_elements_are_for_models_that_quantise() -> None:
    quantised, none = peephole_library({"QuantizeLinear"}), peephole_library(())
    others = quantised.rules.keys() - none.rules.keys()
    assert others
    assert all(only_moves(quantised[i]) for i in others)


def test_recorded_results_rest_on_them(tmp_path: Path) -> None:
    made = recorded(sorted(GOLDEN.glob("*.json")))
    assert made["rules"].keys() == recorded_rules()
    assert main(["--check"]) == 0
    file = tmp_path / "some.json"
    assert main([str(GOLDEN / "networks.json"), "--check", "--out", str(file)]) == 1
    assert not file.exists()
    assert main([str(GOLDEN / "networks.json"), "--out", str(file)]) == 0
    assert main([str(GOLDEN / "networks.json"), "--check", "--out", str(file)]) == 0


def test_a_file_of_another_kind_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "peepholes.json"
    other.write_text('{"format": "superopt.proofs", "version": 1}')
    monkeypatch.setattr(peepholes, "PEEPHOLES", other)
    recorded_rules.cache_clear()
    with pytest.raises(ValueError, match=r"not a superopt\.peepholes file"):
        recorded_rules()
    recorded_rules.cache_clear()
