"""Convs of one image whose forms take it apart once: chosen together, priced once, and timed for what they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from superopt import formats
from superopt.cost import graph_cost
from superopt.cost.backend_capabilities import ONNX_RUNTIME_CPU
from superopt.cost.target_cost_models import for_target
from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.ops.shape_inference import infer
from superopt.passes.fast_algorithms import selection
from superopt.passes.fast_algorithms.selection import (
    GROWTH,
    FastAlgorithmChoice,
    PricedFastAlgorithm,
    choose,
    common,
    rewritten,
    shared,
)
from superopt.passes.fast_algorithms.sites import sites_of
from superopt.passes.fast_algorithms.winograd_convolution import ReplacedConvolution, WinogradConvolution, changes
from superopt.runtime import onnx_runtime

PROFILE = "profile:cpu-epyc-2core"
STANDARD = GROWTH["standard"]


def heads(*outs: int, inner: int = 256, size: int = 20, apart: bool = False) -> Graph:
    """Convs of one image, or each of its own image."""
    b = GraphBuilder("heads")
    image = b.input("x", "float32", (1, inner, size, size))
    for number, out in enumerate(outs):
        with b.scope(str(number)):
            x = b.op("Exp", image) if apart and number else image
            weights = b.weight("w", (out, inner, 3, 3), scale=(9 * inner) ** -0.5)
            b.output(b.op("Conv", x, weights, pads=[1, 1, 1, 1]), f"y{number}")
    return b.build()


def test_a_conv_that_would_lose_alone_goes_along_with_its_sibling() -> None:
    with for_target(PROFILE) as costs:
        chosen = choose(heads(128, 16), costs, growth=STANDARD)
        alone = choose(heads(128, 16, apart=True), costs, growth=STANDARD)
    assert [c.site.kernel[0] for c in alone] == [128]
    assert [c.site.kernel[0] for c in chosen] == [128, 16]
    first, second = chosen
    assert first.begins == second.begins
    assert first.spared + second.spared == pytest.approx(first.transform_us)  # it is paid once
    assert second.after + second.spared > second.before > second.after
    assert sum(c.after for c in chosen) < alone[0].after + second.before


def test_what_is_shared_is_written_once_and_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_APART", {})
    monkeypatch.setattr(selection, "_FAMILY", dict.fromkeys(selection._FAMILY, 1.0))
    graph = heads(96, 64)
    with for_target(PROFILE) as costs:
        chosen = choose(graph, costs, growth=STANDARD)
        made = rewritten(graph, chosen, filled=False)
        assert [n.op for n in made.nodes].count("Gather") == 1
        # Two operators of one image leave less of their weights in the cache than one, so both sums are only near.
        assert sum(c.after for c in chosen) == pytest.approx(graph_cost(made, costs).us, rel=0.05)
        assert sum(c.after + c.spared for c in chosen) > 1.1 * graph_cost(made, costs).us
    made = rewritten(graph, chosen)
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 256, 20, 20)).astype(np.float32)}
    wanted, found = (
        onnx_runtime.run(onnx_runtime.make_session(formats.to_onnx_bytes(g), threads=1), feeds) for g in (graph, made)
    )
    for name, exact in wanted.items():
        assert np.abs(found[name] - exact).max() <= 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize(("apart", "together"), [(1.0, 0), (2.0, 0), (3.0, 2), (5.0, 2)])
def test_siblings_go_together_where_that_is_cheaper_than_each_by_itself(apart: float, together: int) -> None:
    """Two operators of 10 and 4, whose forms take 7 and 6, so much of it to take the image apart."""
    first, second = sites_of(heads(32, 32))
    form = next(f for f in selection.forms_of(first, STANDARD) if isinstance(f, WinogradConvolution))
    rows = [
        (first, 10.0, [PricedFastAlgorithm(7.0, 0, form, apart)]),
        (second, 4.0, [PricedFastAlgorithm(6.0, 0, form, apart)]),
    ]
    assert len(common(rows)) == together
    other = replace(second, node=replace(second.node, inputs=("elsewhere", *second.node.inputs[1:])))
    assert common([rows[0], (other, *rows[1][1:])]) == {}


def test_what_a_sibling_spared_is_paid_again_without_it() -> None:
    with for_target(PROFILE) as costs:
        first, second = choose(heads(128, 16), costs, growth=STANDARD)
    (left,) = shared([first])
    assert left.spared == 0.0
    assert left.after == pytest.approx(first.after + first.spared)
    assert shared(shared([first, second])) == [first, second]


def test_forms_that_share_begin_with_one_transpose() -> None:
    b = GraphBuilder("m")
    x = b.op("Conv", b.input("x", "float32", (1, 32, 12, 12)), b.weight("v", (32, 32, 1, 1)))
    for name in "ab":
        b.output(b.op("Conv", x, b.weight(name, (32, 32, 3, 3)), pads=[1, 1, 1, 1]), f"y{name}")
    graph = b.build()
    sites = [s for s in sites_of(graph) if s.kernel[2:] == (3, 3)]
    form = next(f for f in selection.forms_of(sites[0], STANDARD) if isinstance(f, WinogradConvolution))
    begins = [FastAlgorithmChoice(site, form, 1.0, 0.5).begins for site in sites]
    assert begins[0] == begins[1]
    makers = ReplacedConvolution((graph.nodes[0],), "x")

    def spared(*kinds: object) -> int:
        readers = [ReplacedConvolution(s.nodes, s.node.inputs[0], k) for s, k in zip(sites, kinds, strict=True)]
        return changes(graph, infer(graph), [makers, *readers], ONNX_RUNTIME_CPU.blocked)[sites[0].node.inputs[0]]

    assert spared(*begins) == -2  # the maker's last and the readers' first
    assert spared(None, None) == -3
