"""What TASO's method finds, found without our enumeration, is derived by the recorded library; what is false is not."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import taso_generator
from taso_generator import LEAVES, Generator, general, pairs, pruned
from taso_rules import Untypable, stated
from taso_shipped import axioms, shipped, strongest, widened

from superopt.discovery.config import load_config
from superopt.discovery.derive import derive, derived, parts_of, rewrites_of
from superopt.rules import Rule, parse_rule
from superopt.rules.library import BUILT_IN, parse_file
from superopt.verifier.exact.testing import test as exact
from superopt.verifier.verdict import RefutedVerdict, TestedVerdict

LIST = Path(__file__).parent / "taso"
# one of each kind that the library of before did not derive
HARDEST = ("0019", "0105", "0158", "0416", "0520", "0021", "0075", "0112", "0133", "0411", "0777", "0785", "1757")
EVERY = 112  # of the list: all of it is `superopt rules derive …/sound.toml --rules rules/discovered/taso --alone`


def matmul(a: object, b: object) -> tuple[object, ...]:
    return ("matmul", 0, a, b)


def test_a_rule_is_stated_for_the_most_general_sizes() -> None:
    rule = stated([matmul(matmul("x1", "w1"), "w2")], [matmul("x1", matmul("w1", "w2"))], LEAVES)
    shapes = {n: [str(d) for d in s.shape] for n, s in rule.tensors.items()}
    assert shapes["x1"][1] == shapes["w1"][0]
    assert shapes["w1"][1] == shapes["w2"][0]
    assert len({d for s in shapes.values() for d in s}) == 4
    assert isinstance(exact(rule, trials=4), TestedVerdict)


def test_what_needs_sizes_that_cannot_be_equal_is_not_stated() -> None:
    with pytest.raises(Untypable):
        stated([("ewadd", 0, "x1", "i1")], ["x1"], LEAVES)


def test_an_instance_says_nothing_new() -> None:
    rule = (matmul(matmul("w1", "w2"), "w3"),), (matmul("w1", matmul("w2", "w3")),)
    inner = matmul("w1", "w2")
    instance = (matmul(matmul(inner, "w2"), "w3"),), (matmul(inner, matmul("w2", "w3")),)
    shapes: dict[object, tuple[int, ...]] = defaultdict(lambda: (4, 4), LEAVES)
    assert general(iter([instance, rule]), shapes) == [rule]


def test_two_operators_are_enumerated_and_a_known_rule_is_among_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taso_generator, "MOST", 2)
    generator = Generator()
    generator.run()
    assert len(generator.nodes[1]) > 300
    found = list(pruned(pairs(generator)))
    assert ((("transpose", 0, ("transpose", 0, "x1")),), ("x1",)) in found
    assert ((("split0", 0, ("concat0", 0, "i1", "i2")),), ("i1",)) in found


@pytest.fixture(scope="module")
def library() -> tuple[Rule, ...]:
    recorded = json.loads((BUILT_IN / "discovered" / "taso" / "run.json").read_text())["config"]
    config = load_config(Path(__file__).parents[2] / "docs" / "taso.toml").select(profile="taso")
    assert recorded == config.digest, "run: superopt discover --config docs/taso.toml --profile taso"
    return tuple(r for f in sorted((BUILT_IN / "discovered" / "taso").glob("*.toml")) for r in parse_file(f))


@pytest.fixture(scope="module")
def sound() -> tuple[Rule, ...]:
    """What TASO's method finds; reading it takes seconds."""
    return parse_file(LIST / "sound.toml")


def followed(rule: Rule, library: tuple[Rule, ...]) -> bool:
    near = [r for r in library if r.operators <= rule.operators]
    return any(derived(rule, rewrites_of(some, parts_of(rule))) is not None for some in (near, library))


def test_what_tasos_method_finds_is_derived(library: tuple[Rule, ...], sound: tuple[Rule, ...]) -> None:
    """None is left out: rules of kernels alone, which TASO's shapes allow and no network computes, count as well."""
    assert not [r.id for r in sound[::EVERY] if not followed(r, library)]


@pytest.mark.parametrize("name", HARDEST)
def test_what_takes_rules_about_kernels_is_derived(
    library: tuple[Rule, ...], sound: tuple[Rule, ...], name: str
) -> None:
    (rule,) = (r for r in sound if r.id == f"taso-{name}")
    assert followed(rule, library)


def test_rules_about_windows_are_derived_by_themselves(library: tuple[Rule, ...]) -> None:
    """Few draws of sizes, strides and dilations let a window fit: asking goes on until one does."""
    found = derive(BUILT_IN / "discovered" / "taso" / "pooling.toml", library)
    assert not found.missing


def test_what_is_false_at_other_sizes_is_not_derived(library: tuple[Rule, ...]) -> None:
    for rule in parse_file(LIST / "false" / "false.toml")[::EVERY]:
        assert isinstance(exact(rule), RefutedVerdict), rule.id
        assert not followed(rule, library), rule.id


def test_shipped_rules_are_stated_as_widely_as_they_are_proved() -> None:
    """Products hold with a batch in front of either side; what is one step of others is left out."""
    rule = parse_rule(
        {
            "id": "r", "forall": {"a": "f[m, k]", "b": "f[k, n]", "c": "f[k, n]"},
            "lhs": ["Add(MatMul(a, b), MatMul(a, c))"], "rhs": ["MatMul(a, Add(b, c))"],
        }
    )  # fmt: skip
    leads = {frozenset(n for n, s in w.tensors.items() if s.lead) for w in widened(rule)}
    assert {frozenset("abc"), frozenset("a"), frozenset("bc")} <= leads
    special = replace(rule, id="s", lhs=rule.lhs[::-1])
    assert {r.id.split("-")[0] for r in strongest([rule, special])} == {"r"}


def test_the_shipped_list_is_of_the_recorded_one(sound: tuple[Rule, ...]) -> None:
    """What is compared in the ablation is made of the sound rules and of the axioms, and nothing else."""
    recorded = parse_file(LIST / "shipped" / "shipped.toml")
    sources = {r.id for r in shipped(sound)} | {r.id for r in axioms()}
    assert {r.id for r in recorded} <= {f"{s}{end}" for s in sources for end in ("", *(f"-{i}" for i in range(1, 8)))}
    assert all(isinstance(exact(r, trials=2), TestedVerdict) for r in recorded[::9])
