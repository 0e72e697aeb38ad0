"""Other tools' outputs: none is refuted wrongly, and no mutant of one is proved. The whole table: `peers.py`."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from blocks import BLOCKS
from mutations import mutants
from peers import LEVELS, installed, optimised, write_models
from sampling import slow

from superopt.formats import load
from superopt.verifier.equivalence.graphs import PROVED, ROUNDED, verify

MODELS = ("mobilenet_v2", "lstm", "lora")  # of the corpus: folded norms, merged gates, fused products


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("peers")
    return {p.stem.removeprefix("block_"): p for p in write_models(folder, (*MODELS, *BLOCKS))}


@pytest.mark.parametrize("name", [slow(n) if n in ("mamba", "mobilenet_v2") else n for n in (*MODELS, *BLOCKS)])
@pytest.mark.parametrize("tool", LEVELS)
def test_what_onnx_runtime_makes_is_proved(sources: dict[str, Path], name: str, tool: str) -> None:
    target = optimised(tool, sources[name])
    assert target is not None
    found = verify(load(sources[name]), load(target), power="none")
    assert found.verdict in (PROVED, ROUNDED), (found.words, found.reason, found.regions)
    assert found.max_ulp <= 4
    assert found.proved_share == 1.0


@pytest.mark.parametrize(("name", "count"), [slow("mobilenet_v2", 4), ("vit", 2)])
def test_no_mutant_of_it_is_proved(sources: dict[str, Path], name: str, count: int) -> None:
    target = optimised("ort-extended", sources[name])
    assert target is not None
    before = load(sources[name])
    said = [(m.what, verify(before, m.graph, power="none").verdict) for m in mutants(load(target), count, seed=11)]
    assert len(said) == count
    assert {v for _, v in said} == {"refuted"}, said


@pytest.mark.parametrize("tool", [t for t in installed() if t not in LEVELS])
@pytest.mark.parametrize("name", ["resnet_d", "vit", "quantised_weights"])
def test_what_other_tools_make_is_proved(sources: dict[str, Path], name: str, tool: str) -> None:
    target = optimised(tool, sources[name])
    if target is None:
        pytest.skip(f"{tool} fails on {name}")
    found = verify(load(sources[name]), load(target), power="none")
    assert found.verdict in (PROVED, ROUNDED), (found.words, found.reason, found.regions)


def test_mutants_are_valid_models_that_differ(sources: dict[str, Path]) -> None:
    graph = load(sources["mobilenet_v2"])
    made = list(mutants(graph, 4, seed=2))
    assert [m.what.split()[0] for m in made] == ["constant", "attribute", *[m.what.split()[0] for m in made[2:]]]
    assert all(m.graph != graph for m in made)


def test_blocks_are_valid_models() -> None:
    for make in BLOCKS.values():
        onnx.checker.check_model(make(), full_check=True)
