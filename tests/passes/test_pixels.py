"""Neighbouring pixels as channels: values, what no rule speaks of, what prices choose, and where it is from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from superopt import formats
from superopt.cost.target_cost_models import for_target
from superopt.frontend import GraphBuilder
from superopt.ir.graph import RULES, Graph
from superopt.ops.shape_inference import infer
from superopt.passes.fast_algorithms.selection import GROWTH, FastAlgorithmChoice, choose, rewritten
from superopt.passes.fast_algorithms.sites import possible, sites_of
from superopt.passes.fast_algorithms.space_to_depth_convolution import SpaceToDepthConvolution, pixel_forms
from superopt.passes.fast_algorithms.winograd_convolution import ReplacedConvolution, changes
from superopt.rules.library import load_library
from superopt.runtime import onnx_runtime

PROFILE = "profile:cpu-epyc-2core"
BLOCKED = frozenset({"Conv", "Relu"})


def conv(
    channels: int, out: int, taps: Sequence[int], sizes: Sequence[int | str], *, bias: bool = True, act: str = "",
    batch: int | str = 1, group: int = 1, **attributes: Sequence[int],
) -> Graph:  # fmt: skip
    """One convolution, and what follows it."""
    b = GraphBuilder("conv")
    x = b.input("x", "float32", (batch, channels, *sizes))
    operands = [b.weight("k", (out, channels // group, *taps), scale=0.2)]
    operands += [b.weight("q", (out,))] if bias else []
    y = b.op("Conv", x, *operands, group=group, **attributes)
    b.output(b.op(act, y) if act else y, "y")
    return b.build()


def forms(graph: Graph) -> list[SpaceToDepthConvolution]:
    return [form for site in sites_of(graph) if site.pads for form in pixel_forms(site)]


def run(graph: Graph, feeds: Mapping[str, np.ndarray]) -> np.ndarray:
    return onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(graph), threads=1), feeds)["y"]


@pytest.mark.parametrize(
    ("graph", "blocks"),
    [
        (conv(3, 1, (3, 3), (12, 24), pads=[1, 1, 1, 1]), [2, 3, 4]),
        (conv(5, 7, (2, 5), (8, 6), pads=[1, 4, 0, 2], act="Sigmoid"), [2, 4]),  # an even kernel, uneven padding
        (conv(4, 3, (3, 3), (15, 9), pads=[1, 1, 1, 1], bias=False), [3]),
        (conv(2, 2, (3, 2), (17, 14), strides=[2, 4]), [2, 4]),  # 8 × 4
        (conv(2, 2, (3, 3), (16, 16), pads=[2, 2, 2, 2], dilations=[2, 2], act="Relu"), [2, 4]),
        (conv(2, 1, (3, 2), (13, 14), strides=[3, 2], dilations=[1, 2], pads=[1, 0, 1, 0]), []),  # 5 × 6
        (conv(1, 1, (1, 1), (8, 8)), [2, 4]),
        (conv(16, 15, (3, 3), (8, 8), pads=[1, 1, 1, 1], batch=3), [2, 4]),
    ],
)
def test_the_values_are_those_of_the_convolution(graph: Graph, blocks: list[int]) -> None:
    made = forms(graph)
    assert [form.block for form in made] == blocks
    (kind,) = (v.type for v in graph.inputs)
    feeds = {"x": np.random.default_rng(0).standard_normal(kind.shape).astype(np.float32)}  # type: ignore[arg-type]
    wanted, (site,) = run(graph, feeds), sites_of(graph)
    for form in made:
        found = run(rewritten(graph, [FastAlgorithmChoice(site, form, 1.0, 0.5)]), feeds)
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= 2e-6 * np.abs(wanted).max()


@pytest.mark.parametrize(
    "graph",
    [
        conv(2, 3, (3, 3), (13, 11), pads=[1, 1, 1, 1]),  # odd sizes without a common divisor
        conv(2, 3, (3, 3), (18, 18), strides=[2, 2]),  # the last pixel is read by no window
        conv(4, 4, (3, 3), (8, 8), pads=[1, 1, 1, 1], group=2),
        conv(2, 3, (3, 3), ("h", "w"), pads=[1, 1, 1, 1]),
        conv(2, 3, (3,), (12,), pads=[1, 1]),
        conv(2, 16, (3, 3), (8, 8), pads=[1, 1, 1, 1]),  # a whole block of channels
    ],
)
def test_what_no_rule_speaks_of_stays(graph: Graph) -> None:
    assert forms(graph) == []
    with for_target(PROFILE) as costs:
        assert not [
            c for c in choose(graph, costs, growth=GROWTH["standard"]) if isinstance(c.form, SpaceToDepthConvolution)
        ]


def test_an_open_batch_stays_open() -> None:
    graph = conv(3, 2, (3, 3), (8, 8), pads=[1, 1, 1, 1], batch="n")
    (site,) = sites_of(graph)
    made = rewritten(graph, [FastAlgorithmChoice(site, next(pixel_forms(site)), 1.0, 0.5)])
    for count in (1, 5):
        feeds = {"x": np.random.default_rng(count).standard_normal((count, 3, 8, 8)).astype(np.float32)}
        np.testing.assert_allclose(run(made, feeds), run(graph, feeds), rtol=1e-5, atol=1e-6)


def test_prices_see_blocks_that_are_half_empty() -> None:
    """One channel of many is sixteen times the work that it seems; many images of one channel are read as they are."""
    few, wide = conv(32, 1, (5, 5), (64, 64), pads=[2] * 4), conv(1, 8, (3, 3), (64, 64), pads=[1] * 4)
    assert possible(few)
    with for_target(PROFILE) as costs:
        (chosen,) = choose(few, costs, growth=GROWTH["standard"])
        assert isinstance(chosen.form, SpaceToDepthConvolution)
        assert chosen.form.block == 4
        assert choose(wide, costs, growth=GROWTH["standard"]) == []


def test_each_node_names_the_admitted_rule_that_made_it() -> None:
    graph = conv(8, 1, (3, 3), (8, 8), pads=[1, 1, 1, 1], act="Relu")
    (site,) = sites_of(graph)
    made = rewritten(graph, [FastAlgorithmChoice(site, next(pixel_forms(site)), 1.0, 0.5)])
    assert [n.op for n in made.nodes] == ["Conv", "Relu", "DepthToSpace"]
    admitted = {rule.id: rule for rule in load_library().admitted}
    first, last = (admitted[n.metadata[RULES]] for n in (made.nodes[0], made.nodes[-1]))
    assert "weights solved for" in first.origin
    assert {"SpaceToDepth", "Conv"} <= first.operators
    assert last.operators == {"DepthToSpace", "SpaceToDepth"}


def test_its_result_is_no_image_in_blocks() -> None:
    b = GraphBuilder("two")
    x = b.input("x", "float32", (1, 16, 8, 8))
    small = b.op("Conv", x, b.weight("k", (8, 16, 3, 3)), pads=[1, 1, 1, 1])
    b.output(b.op("Conv", small, b.weight("l", (16, 8, 3, 3)), pads=[1, 1, 1, 1]), "y")
    graph = b.build()
    first = graph.nodes[0]
    place = ReplacedConvolution((first,), "x", direct=True)
    typing = infer(graph)
    before, after = (changes(graph, typing, some, BLOCKED) for some in ([], [place]))
    assert before.get(first.outputs[0], 0) == 0
    assert after[first.outputs[0]] == 1
    assert {n: c for n, c in after.items() if n != first.outputs[0]} == before
