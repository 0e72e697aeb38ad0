"""A whole run on a small vocabulary: it finds, is reproducible, survives being killed, and believes nothing."""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from superopt.discovery.config import DiscoveryConfig, load_config
from superopt.discovery.derive import derive, derived, rewrites_of
from superopt.discovery.discover import DiscoveryResult, discover
from superopt.discovery.minimise import minimised
from superopt.discovery.result_cache import DiscoveryResultCache
from superopt.discovery.vocabulary_exploration import explore
from superopt.fleet import WorkerPool
from superopt.ir.errors import ResourceLimit, UsageError
from superopt.ir.terms import OperatorTerm, postorder
from superopt.ops import REGISTRY
from superopt.ops.elementwise import pointwise
from superopt.ops.operator_definition import Operator
from superopt.rules import load_library, parse_rule
from superopt.rules.canonical import text_digest
from superopt.rules.library import parse_file, write_rules
from superopt.rules.rule import Rule
from superopt.rules.scanner import RuleError
from superopt.verifier import ProvedVerdict, prove

TINY = """
seed = 5
instances = 3
trials = 6
prove_seconds = 20.0

[[theme]]
name = "products"
operators = 3
base = true
leaves = { x = "f[m, k]", a = "f[k, n]", c = "f[k, n]" }
weights = ["a", "c"]
vocabulary = ["MatMul(A, B)", "Add(A, B)", "Concat(A, B, axis=1)"]

[[theme]]
name = "clipping"
operators = 2
leaves = { x = "f[m, n]", t = "f[]" }
vocabulary = ["Relu(A)", "Mul(A, B)", "Neg(A)"]
"""

QKV = {
    "id": "qkv",
    "forall": {"x": "f[..., m, k]", "a": "f[k, p]", "b": "f[k, q]"},
    "lhs": ["MatMul(x, a)", "MatMul(x, b)"],
    "rhs": [
        "Split(MatMul(x, Concat(a, b, axis=1)), axis=-1, split=[p, q])[0]",
        "Split(MatMul(x, Concat(a, b, axis=1)), axis=-1, split=[p, q])[1]",
    ],
}
THREE = {
    "id": "qkv-3",
    "forall": {"x": "f[m, k]", "a": "f[k, p]", "b": "f[k, q]", "c": "f[k, r]"},
    "lhs": ["MatMul(x, a)", "MatMul(x, b)", "MatMul(x, c)"],
    "rhs": [f"Split(MatMul(x, Concat(a, b, c, axis=1)), axis=1, split=[p, q, r])[{i}]" for i in range(3)],
}
DISTRIBUTIVE = {
    "id": "distributive",
    "forall": {"x": "f[..., m, k]", "a": "f[k, n]", "b": "f[k, n]"},
    "lhs": ["Add(MatMul(x, a), MatMul(x, b))"],
    "rhs": ["MatMul(x, Add(a, b))"],
}


@pytest.fixture(scope="module")
def tiny_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("discovery") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def tiny(tiny_file: Path) -> DiscoveryConfig:
    return load_config(tiny_file)


@dataclass(frozen=True)
class Run:
    """A finished run on the small vocabulary, its folder and what it said."""

    result: DiscoveryResult
    folder: Path
    lines: tuple[str, ...]


@pytest.fixture(scope="module")
def run(tiny: DiscoveryConfig, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("whole")
    lines: list[str] = []
    result = discover(tiny, out=folder, progress=lines.append)
    return Run(result, folder, tuple(lines))


def outputs(folder: Path) -> dict[str, bytes]:
    """What must be the same whatever the machine and the number of workers: all files but the log of times."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file() and p.name != "run.json"}


def test_finds_general_proved_rules(run: Run) -> None:
    result = run.result
    for row in (QKV, DISTRIBUTIVE):
        wanted = parse_rule(row)
        assert any(derived(wanted, rewrites_of([r])) and wanted.operators == r.operators for r in result.rules), row[
            "id"
        ]
    assert all(isinstance(prove(r), ProvedVerdict) for r in result.rules)
    assert all(r.origin.startswith("discovered (") for r in result.rules)
    assert any("any number of siblings" in r.origin for r in result.rules)
    library = load_library(run.folder, built_in=False)
    assert set(library) == {r.id for r in result.rules}
    assert result.log["kept"] == len(result.rules) <= result.proved
    assert not result.unfinished
    assert any("size 3" in line for line in run.lines)


def test_same_bytes_with_one_and_two_workers(
    run: Run, tiny: DiscoveryConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And while one worker is at the base theme, the other prepares what does not depend on it."""
    ahead = sys.modules["superopt.discovery.discover"]._PreparedAhead
    made: list[str] = []

    def took(self: Any, outcome: Any) -> bool:
        found = bool(whole(self, outcome))
        made.extend([outcome.task.name] if found else [])
        return found

    whole = ahead.took
    monkeypatch.setattr(ahead, "took", took)
    with WorkerPool.open(2) as fleet:
        result = discover(tiny, out=tmp_path / "two", fleet=fleet)
    assert outputs(run.folder) == outputs(tmp_path / "two")
    assert made == ["clipping"]
    phases = result.log["phases"]
    assert isinstance(phases, dict)
    assert all(0 <= p["idle"] <= 2 * p["seconds"] + 0.01 for p in phases.values())


def test_goes_on_after_a_kill(run: Run, tiny: DiscoveryConfig, tiny_file: Path, tmp_path: Path) -> None:
    partial = tmp_path / "partial"
    script = (
        "import os, sys\n"
        "from superopt.discovery.config import load_config\n"
        "from superopt.discovery.discover import discover\n"
        "def die(line):\n"
        "    if 'clipping: size 1' in line:\n"
        "        os._exit(9)\n"
        "discover(load_config(sys.argv[1]), out=sys.argv[2], progress=die)\n"
    )
    arguments = [sys.executable, "-c", script, str(tiny_file), str(partial)]
    assert subprocess.run(arguments, check=False).returncode == 9
    assert not list(partial.glob("*.toml"))
    lines: list[str] = []
    discover(tiny, out=partial, progress=lines.append)
    assert not any(line.startswith("products: size") for line in lines)  # that theme was finished
    assert outputs(partial) == outputs(run.folder)


def test_what_others_wrote_stays(tiny: DiscoveryConfig, tmp_path: Path) -> None:
    """A library is written over what is in its folder, and families that it has no more go; others' files do not."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(UsageError, match=r"holds pyproject\.toml, and superopt discover did not write that"):
        discover(tiny, out=tmp_path, time_limit=0.0)
    assert [p.name for p in tmp_path.iterdir()] == ["pyproject.toml"]
    out = tmp_path / "out"
    discover(tiny, out=out, time_limit=0.0)
    (out / "clipping.toml").write_bytes((out / "nothing.toml").read_bytes())  # of an earlier run
    discover(tiny, out=out, time_limit=0.0)
    assert [p.name for p in out.glob("*.toml")] == ["nothing.toml"]


def test_a_full_disk_leaves_no_part_of_a_chunk(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ResourceLimit, match=r"abc\.json: cannot be written"):
            DiscoveryResultCache(tmp_path).put("abc", {"rules": "x" * 5000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list((tmp_path / "ab").iterdir())


def test_a_time_limit_leaves_themes_for_later(tiny: DiscoveryConfig, tmp_path: Path) -> None:
    result = discover(tiny, out=tmp_path / "out", time_limit=0.0)
    assert result.unfinished
    assert set(result.unfinished) == {t.name for t in tiny.themes} - {e.theme for e in result.explored}


def test_a_wrong_meaning_cannot_make_a_rule_of_the_right_one(
    tiny: DiscoveryConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Discovery that computes with a wrong Relu proposes false rules; the verifier drops them."""
    right: Operator = REGISTRY["Relu"]
    wrong = replace(right, meaning=pointwise(lambda x: -x))
    for stage in ("enumerate", "template"):
        monkeypatch.setattr(
            f"superopt.discovery.{stage}.operator_of", lambda app: wrong if app.op == "Relu" else REGISTRY[app.op]
        )
    found = explore(tiny.select(themes=("clipping",)).themes[0], tiny, str(tmp_path / "chunks"))
    assert found.refuted > 0
    assert found.near_misses
    assert all("counterexample" in m for m in found.near_misses)
    for rule in found.rules:
        assert isinstance(prove(rule), ProvedVerdict)
    assert not any(_claims(r, "Relu", "Neg") for r in found.rules)


def test_a_planted_rule_is_not_written(tiny: DiscoveryConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever exploring and minimising hand on: what is written was proved, as it is written, by this very run."""
    false = parse_rule({"id": "x", "forall": {"x": "f[m, n]"}, "lhs": ["Relu(Neg(x))"], "rhs": ["Neg(Relu(x))"]})
    planted = replace(false, family="clipping", origin="discovered")
    stage = sys.modules["superopt.discovery.discover"]
    monkeypatch.setattr(stage, "minimised", lambda *given, **named: (*minimised(*given, **named), planted))
    lines: list[str] = []
    result = discover(tiny.select(themes=("clipping",)), out=tmp_path / "out", progress=lines.append)
    assert result.rules
    assert not any(text_digest(r) == text_digest(planted) for r in result.rules)
    assert "Neg(Relu" not in "".join(f.read_text() for f in (tmp_path / "out").glob("*.toml"))
    assert any(line.startswith("left out, not proved again") for line in lines)


def _claims(rule: Rule, one: str, other: str) -> bool:
    """``one(x) = other(x)``, which only the wrong meaning makes true."""
    sides = [{t.op for t in postorder(*side) if isinstance(t, OperatorTerm)} for side in (rule.lhs, rule.rhs)]
    return sides in ([{one}, {other}], [{other}, {one}])


def test_derives_what_follows_and_says_by_which_chain(run: Run, tmp_path: Path) -> None:
    library = run.result.rules
    lora = {
        "id": "lora",
        "forall": {"x": "f[m, k]", "w": "f[k, n]", "a": "f[k, n]", "c": "f[k, n]"},
        "lhs": ["Add(MatMul(x, w), Add(MatMul(x, a), MatMul(x, c)))"],
        "rhs": ["MatMul(x, Add(w, Add(a, c)))"],
    }
    false = {
        "id": "false",
        "forall": {"x": "f[n, n]", "a": "f[n, n]"},
        "lhs": ["MatMul(x, a)"],
        "rhs": ["MatMul(a, x)"],
    }
    file = tmp_path / "wanted.toml"
    write_rules(file, [parse_rule(r) for r in (lora, THREE, QKV, false)])
    coverage = derive(file, library)
    assert set(coverage.chains) == {"lora", "qkv", "qkv-3"}
    assert set(coverage.missing) == {"false"}
    assert set(coverage.chains["lora"]) <= {r.id for r in library}
    assert coverage.chains["lora"]
    assert coverage.share == 0.75


def test_the_built_in_configuration_is_well_formed() -> None:
    config = load_config()
    assert {"taso", "default"} <= {p for t in config.themes for p in t.profiles}
    assert len({t.name for t in config.themes}) == len(config.themes)
    small = config.select(profile="taso", operators=("MatMul", "Add"), most=2)
    assert all(t.operators <= 2 for t in small.themes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 'x'\ntheme = []", "configuration"),
        ("speed = 1\n[[theme]]\nname = 'a'", "speed"),
        ("[[theme]]\nname = 'a'\nvocabulary = ['MatMul(A']", "vocabulary"),
        ("[[theme]]\nname = 'a'\nleafs = {}", "leafs"),
        ("[[theme]]\nname = 'a'\noperators = 0", "positive"),
    ],
)
def test_a_bad_configuration_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(RuleError, match=message):
        load_config(path)


def test_written_rules_parse_back(run: Run) -> None:
    read = [r for f in sorted(run.folder.glob("*.toml")) for r in parse_file(f)]
    assert sorted(r.id for r in read) == sorted(r.id for r in run.result.rules)
