"""What forms with fewer multiplications leave to be done, counted.

*Sums*: the least that a model can take with its forms at the ceilings of a recorded profile, by parts, beside what it
is priced at: whether a goal is out of reach, and what still loses something. For single operators, what the products
take by themselves is measured, too. *Shared*: how many Convs of one image are left for forms to share a transform.
*Devices*: what forms are priced at where there are ceilings and no records.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.networks import NETWORKS
from superopt import cost as costs
from superopt import formats
from superopt.cost.backend_capabilities import SUPEROPT_CUDA
from superopt.cost.cost_model import CostModel
from superopt.cost.graph_costs import graph_cost
from superopt.cost.roofline_ceilings import DevicePeakPerformance, RooflineCeilings
from superopt.ir.errors import UsageError
from superopt.ir.graph import Graph, Node, Value
from superopt.ops.shape_inference import infer
from superopt.passes.fast_algorithms.selection import (
    GROWTH,
    FastAlgorithmChoice,
    alternatives,
    choose,
    forms_of,
    named,
    rewritten,
)
from superopt.passes.fast_algorithms.sites import sites_of
from superopt.passes.fast_algorithms.winograd_convolution import ReplacedConvolution, WinogradConvolution, changes_us
from superopt.pipeline.optimization import optimize
from superopt.pipeline.options import ALGORITHMS
from superopt.pipeline.paired_benchmark import clock_of
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.paired_benchmark import PairedTimes, time_loadings
from superopt.verifier.check.differential import make_inputs

__all__ = [
    "FastAlgorithmTimeParts", "SharedInputConvs", "devices_table", "graph_of", "operators_table", "parts_of",
    "products_alone", "shared_table", "siblings_of", "sums_table",
]  # fmt: skip

# Ceilings of the float32 units and the memory of an H200, from its data sheet: prices of a device before anything of it
# is recorded. What a kernel takes at least inside a captured graph is not in it: about a microsecond is usual.
H200: Mapping[str, float] = {"flops_per_s": 67e12, "bytes_per_s": 4.8e12, "cache_bytes_per_s": 4.8e12}
_LEAST_US = 1.0
H200_HEADER: Mapping[str, Any] = {
    "backend": SUPEROPT_CUDA.name, "peaks": H200, "dispatch_ns": 0.0,
    "calibration": {"factors": {"overhead": _LEAST_US * 1e3 / RooflineCeilings.least_ns}},
}  # fmt: skip
_SITTINGS, _ROUNDS, _SECONDS = 4, 5, 40.0  # loadings of an operator's graphs, and rounds of each


@dataclass(frozen=True)
class FastAlgorithmTimeParts:
    """Milliseconds of a model before and with its forms: the least at the ceilings, and what prices say.

    Attributes:
        forms: operators that have one.
        direct: those operators as they were.
        rest: everything else.
        products: of the forms.
        transforms: everything else that the forms consist of; data from the last cache.
        weights: reading the products' weights from memory, where no cache holds them. ONNX Runtime does it beside the
            products in part, so that it is no part of the least.
        priced: time after ÷ before by prices, changes of layout included.
    """

    forms: int
    direct: float
    rest: float
    products: float
    transforms: float
    weights: float
    priced: float

    @property
    def least(self) -> float:
        """Time after ÷ before if everything ran at the ceilings, weights from the last cache."""
        return (self.rest + self.products + self.transforms) / (self.rest + self.direct)

    @property
    def from_memory(self) -> float:
        """The same, with the products' weights from memory and nothing else done meanwhile."""
        return self.least + self.weights / (self.rest + self.direct)


def parts_of(graph: Graph, chosen: Sequence[FastAlgorithmChoice], prices: CostModel) -> FastAlgorithmTimeParts:
    """The sums of a model with these forms.

    Raises:
        UsageError: the prices come without ceilings.
    """
    peaks = prices.peaks()
    if peaks is None or peaks.cache_bytes_per_second is None:
        raise UsageError("the profile holds no ceilings", hint="record it anew: superopt profile")
    new_graph = rewritten(graph, chosen, filled=False)
    replaced = {node.name for choice in chosen for node in choice.site.nodes}
    kept = {node.name for node in graph.nodes} - replaced
    taken_nodes = _products(graph, new_graph)
    products, held = (
        {n.name for n in taken_nodes},
        sum(new_graph.constants[n.inputs[1]].type.nbytes or 0 for n in taken_nodes),
    )
    before, after = _roofs(graph, prices, peaks), _roofs(new_graph, prices, peaks)
    typing = infer(graph)
    form_sites = [ReplacedConvolution(c.site.nodes, c.site.node.inputs[0], c.begins) for c in chosen if c.site.pads]
    more = changes_us(graph, typing, form_sites, prices) - changes_us(graph, typing, [], prices)
    us = graph_cost(graph, prices, typing).us
    return FastAlgorithmTimeParts(
        len(chosen), _sum(before, replaced), _sum(before, kept), _sum(after, products),
        _sum(after, after.keys() - kept - products), 1e3 * held / peaks.bytes_per_second,
        1.0 + (more - sum(c.before - c.after for c in chosen)) / us,
    )  # fmt: skip


def _products(graph: Graph, new_graph: Graph) -> list[Node]:
    """What multiplies by weights among what forms added to a graph."""
    known = {node.name for node in graph.nodes}
    return [
        n for n in new_graph.nodes if n.name not in known and n.op == "MatMul" and n.inputs[1] in new_graph.constants
    ]


def products_alone(graph: Graph, made: Graph) -> Graph:
    """The products of a graph's forms, without what takes data apart and puts results together."""
    nodes, types = _products(graph, made), infer(made).types
    weights = {n.inputs[1] for n in nodes}
    return Graph(
        "products", tuple(Value(n, types[n]) for n in dict.fromkeys(n.inputs[0] for n in nodes)),
        tuple(Value(n.outputs[0], None) for n in nodes), tuple(w for w in made.weights if w.name in weights),
        tuple(nodes), made.opset,
    ).checked()  # fmt: skip


def _roofs(graph: Graph, prices: CostModel, peaks: DevicePeakPerformance) -> dict[str, float]:
    """The least milliseconds of each node that runs by itself, with all data in the last cache."""
    found_graph_cost = graph_cost(graph, prices)
    assert peaks.cache_bytes_per_second is not None
    return {
        name: 1e3 * max(flops / peaks.flops_per_second, moved / peaks.cache_bytes_per_second) if estimate.us else 0.0
        for (name, _, estimate), (flops, moved) in zip(
            found_graph_cost.per_node, found_graph_cost.per_node_work, strict=True
        )
    }


def _sum(roofs: Mapping[str, float], names: set[str]) -> float:
    return sum(ms for name, ms in roofs.items() if name in names)


@dataclass(frozen=True)
class SharedInputConvs:
    """Convs of one image that are left when a model is optimised.

    Attributes:
        convs: that some form applies to.
        formed: that prices give one.
        groups: images that two or more Convs with forms read.
        alike: groups in which two have tiles that both can be taken apart by: their forms could share the transform.
        shared: Convs whose chosen form finds its image taken apart already.
    """

    convs: int
    formed: int
    groups: int
    alike: int
    shared: int


def siblings_of(graph: Graph, prices: CostModel) -> SharedInputConvs:
    """Counts of an optimised model, before it has forms."""
    growth = GROWTH["standard"]
    tiles: dict[str, list[set[object]]] = defaultdict(list)
    for site in sites_of(graph):
        kinds: set[object] = {form.tiled for form in forms_of(site, growth) if isinstance(form, WinogradConvolution)}
        if kinds:
            tiles[site.node.inputs[0]].append(kinds)
    chosen = [c for c in choose(graph, prices, growth=growth) if isinstance(c.form, WinogradConvolution)]
    taken = {(c.site.node.inputs[0], c.form.tiled) for c in chosen if isinstance(c.form, WinogradConvolution)}
    groups = [kinds for kinds in tiles.values() if len(kinds) > 1]
    alike = sum(any(a & b for i, a in enumerate(kinds) for b in kinds[:i]) for kinds in groups)
    return SharedInputConvs(sum(map(len, tiles.values())), len(chosen), len(groups), alike, len(chosen) - len(taken))


def graph_of(name: str) -> Graph:
    """A model: a network of :data:`lab.networks.NETWORKS`, one of the corpus, or a file."""
    if name in NETWORKS:
        return NETWORKS[name]()
    return formats.load(name if Path(name).suffix else f"corpus/{name}.json")


def _plain(graph: Graph, profile: str, seconds: float | None) -> Graph:
    """The model as it is optimised without forms."""
    return optimize(graph, target=profile, time_limit=seconds, disable=(ALGORITHMS,), check=False).graph


def sums_table(names: Sequence[str], profile: str, seconds: float | None) -> list[str]:
    """Markdown rows: the least that models can take with the forms that prices choose."""
    lines = [
        "| model | forms | the operators as they were, ms | the rest | products | transforms | weights from memory "
        "| **least ÷ before** | with weights from memory | priced |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    with costs.for_target(profile) as prices:
        for name in names:
            graph = _plain(graph_of(name), profile, seconds)
            found = parts_of(graph, choose(graph, prices, growth=GROWTH["standard"]), prices)
            lines.append(f"| {name} {_cells(found)}")
            print(lines[-1], flush=True)
    return lines


def _cells(found: FastAlgorithmTimeParts) -> str:
    """The cells of a table of sums."""
    return (
        f"| {found.forms} | {found.direct:.2f} | {found.rest:.2f} | {found.products:.2f} | {found.transforms:.2f} "
        f"| {found.weights:.2f} | **{found.least:.3f}** | {found.from_memory:.3f} | {found.priced:.3f} |"
    )


def operators_table(shapes: Sequence[tuple[str, Graph]], profile: str, threads: int) -> list[str]:
    """Markdown rows: single operators with the form that prices choose, its products timed alone."""
    lines = [
        "| operator | form | direct, ms | form ÷ direct | **products alone** | products at the ceilings "
        "| transforms at the ceilings | load |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with costs.for_target(profile) as prices:
        for shape, graph in shapes:
            chosen = choose(graph, prices, growth=GROWTH["standard"])
            if not chosen:
                lines.append(f"| {shape} | none | | | | | | |")
                continue
            sums = parts_of(graph, chosen, prices)
            new_graph = rewritten(graph, chosen)
            raced, load = _raced((graph, new_graph, products_alone(graph, new_graph)), threads), os.getloadavg()[0]
            lines.append(
                f"| {shape} | {named(chosen[0].form)} | {raced.ms[0]:.2f} | {raced.ratios[1]:.3f} "
                f"| **{raced.ratios[2]:.3f}** | {sums.products / sums.direct:.3f} "
                f"| {sums.transforms / sums.direct:.3f} | {load:.1f} |"
            )
            print(lines[-1], flush=True)
    return lines


def _raced(graphs: Sequence[Graph], threads: int) -> PairedTimes:
    """Graphs of inputs of their own, in turn."""
    given = [(formats.to_onnx_bytes(graph), make_inputs(graph, 0, "normal")) for graph in graphs]
    return time_loadings(
        lambda: [ONNX_RUNTIME.load(model, threads=threads).bound(feeds) for model, feeds in given],
        loadings=_SITTINGS, rounds=_ROUNDS, burst=2, threads=threads, clock=clock_of(threads), time_limit=_SECONDS,
    )  # fmt: skip


def shared_table(names: Sequence[str], profile: str, seconds: float | None) -> list[str]:
    """Markdown rows: Convs of one image that optimised models have."""
    lines = [
        "| model | Convs with forms | chosen | images of two and more | of them with equal tiles | transforms shared |",
        "|---|---|---|---|---|---|",
    ]
    with costs.for_target(profile) as prices:
        for name in names:
            found = siblings_of(_plain(graph_of(name), profile, seconds), prices)
            lines.append(
                f"| {name} | {found.convs} | {found.formed} | {found.groups} | {found.alike} | {found.shared} |"
            )
            print(lines[-1], flush=True)
    return lines


def devices_table(shapes: Sequence[tuple[str, Graph]]) -> list[str]:
    """Markdown rows: operators and their cheapest forms on a CUDA device that is known by its ceilings alone."""
    prices = costs.ProfileCostModel(costs.DeviceProfile(H200_HEADER, {}))
    lines = ["| operator | direct, µs | cheapest form | ÷ direct |", "|---|---|---|---|"]
    for shape, graph in shapes:
        (direct, _), *forms = alternatives(graph, sites_of(graph, costs=prices)[0], prices, GROWTH["standard"])
        if forms:
            us, form = forms[0]
            assert form is not None
            lines.append(f"| {shape} | {direct:.1f} | {named(form)} | {us / direct:.2f} |")
        else:
            lines.append(f"| {shape} | {direct:.1f} | none whose products alone take less | |")
        print(lines[-1], flush=True)
    return lines
