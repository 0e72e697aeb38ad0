"""Convolutions of volumes that are convolutions of images, which runtimes have faster loops for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from graphs import assert_equivalent

from superopt import cost
from superopt.discovery.config import load_config
from superopt.discovery.vocabulary_exploration import explore
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import infer
from superopt.passes import SearchOptions, search
from superopt.rules import load_library
from superopt.rules.canonical import text_digest

ROOT = Path(__file__).resolve().parents[2]
CHANNELS = 32


@pytest.fixture(scope="module")
def prices() -> cost.CostModel:
    return cost.ProfileCostModel(cost.load_profile("cpu-epyc-2core"))


def filtered(
    shape: tuple[int | str, ...], kernel: tuple[int, ...], stride: tuple[int, ...] = (1, 1, 1), bias: bool = True
) -> Graph:
    """A convolution of volumes or signals, each channel by itself: where the prices leave no doubt."""
    b, rng = GraphBuilder("volume", opset=18), np.random.default_rng(0)
    weights = [rng.standard_normal((CHANNELS, 1, *kernel), dtype=np.float32)]
    weights += [rng.standard_normal(CHANNELS, dtype=np.float32)] * bias
    pads = tuple(k // 2 for k in kernel) * 2
    x = b.input("x", "float32", shape)
    b.output(b.op("Conv", x, *weights, dilations=(1,) * len(kernel), group=CHANNELS, pads=pads, strides=stride), "out")
    return b.build()


def ranks(graph: Graph, prices: cost.CostModel) -> list[int]:
    """Of what is convolved in what a search makes of a graph, which does the same."""
    library = load_library()
    made = search(graph, library.admitted, prices, SearchOptions(cache=False, floats=library.floats("standard"))).graph
    if made is not graph:
        assert_equivalent(graph, made)
    types = infer(made).types
    return [len(types[n.inputs[0]].shape or ()) for n in made.nodes if n.op == "Conv"]


@pytest.mark.parametrize(
    ("shape", "kernel", "stride", "bias"),
    [
        ((1, CHANNELS, 1, 28, 28), (1, 3, 3), (1, 1, 1), True),
        ((1, CHANNELS, 1, 28, 28), (1, 3, 3), (1, 2, 2), False),
        ((1, CHANNELS, 28, 1, 28), (3, 1, 3), (1, 1, 2), True),
        ((2, CHANNELS, 28, 28, 1), (5, 3, 1), (1, 1, 1), False),
        ((1, CHANNELS, 8, 28, 28), (3, 1, 1), (1, 1, 1), True),
        ((1, CHANNELS, 8, 28, 28), (3, 1, 1), (1, 1, 1), False),
        (("b", CHANNELS, 1, "h", "w"), (1, 3, 3), (1, 1, 1), True),
        ((1, CHANNELS, 8, 28, 28), (3, 1, 1), (2, 1, 1), True),
        ((2, CHANNELS, 9, 28, 28), (5, 1, 1), (3, 1, 1), False),
        ((1, CHANNELS, 2048), (3,), (1,), True),
        ((2, CHANNELS, 2049), (5,), (2,), False),
    ],
    ids=[
        "depth",
        "every second",
        "height",
        "width",
        "over time",
        "over time, no bias",
        "open",
        "over time in steps",
        "in steps, no bias",
        "signal",
        "signal in steps",
    ],
)
def test_volumes_that_are_images(
    shape: tuple[int | str, ...], kernel: tuple[int, ...], stride: tuple[int, ...], bias: bool,
    prices: cost.CostModel,
) -> None:  # fmt: skip
    assert ranks(filtered(shape, kernel, stride, bias), prices) == [4]


@pytest.mark.parametrize(
    ("shape", "kernel"),
    [
        ((1, CHANNELS, 4, 28, 28), (3, 3, 3)),
        ((1, CHANNELS, 1, 28, 28), (3, 3, 3)),
        ((1, CHANNELS, 4, 28, 28), (1, 3, 3)),
    ],
    ids=["of all axes", "that pads the axis of one element", "of frames"],
)
def test_volumes_that_are_none_stay(
    shape: tuple[int, ...], kernel: tuple[int, int, int], prices: cost.CostModel
) -> None:
    assert ranks(filtered(shape, kernel), prices) == [5]


@pytest.mark.slow
def test_the_themes_find_the_rules_that_are_shipped(tmp_path: Path) -> None:
    names = ("conv-of-flat-depth", "conv-over-time", "conv-over-time-in-steps", "conv-of-signal")
    config = load_config(ROOT / "docs" / "later.toml").select(themes=names)
    shipped = {text_digest(replace(rule, where=())) for rule in load_library().values()}  # "in steps" says w >= 2
    found = [rule for theme in config.themes for rule in explore(theme, config, str(tmp_path / theme.name)).rules]
    assert len(found) == 8
    assert all(template.operators == 1 for theme in config.themes for template in theme.vocabulary)
    assert {text_digest(rule) for rule in found} <= shipped
