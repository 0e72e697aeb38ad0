"""Clusters, movements between placements, the choice beside exhaustive search, rank files and their check."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from lab.placements import cluster, drawn_cluster, drawn_model, exchanges, least_seconds, mlp, problem_of, transformer
from superopt.assignment import evaluate, solve
from superopt.cli import app
from superopt.errors import InvalidModel, NotEquivalent, UsageError
from superopt.formats import load, save, to_onnx_bytes
from superopt.ir.graph import ArrayWeightData, Graph, Node
from superopt.ir.types import DType, TensorType
from superopt.placement import Plan, check_ranks, cluster_of, place, read_cluster, write_plan
from superopt.placement.choice import choose
from superopt.placement.collectives import Step, axis_networks, reshardings, specs, step_seconds
from superopt.placement.execution import RankProgram, Threads, run_in_threads
from superopt.placement.placements import PARTIAL, REPLICATED, Spec, coordinates, group_of, split
from superopt.placement.plan import layout_of, rank_name
from superopt.placement.rank_files import piece_bounds
from superopt.placement.schedule import Task, chrome_trace, simulate
from superopt.runtime.onnx_runtime import ONNX_RUNTIME
from superopt.runtime.synthetic_tensors import feeds_for

SLOW = {"flops": 20e12, "bandwidth": 1e12}
GOOD: dict[str, Any] = {
    "name": "two", "device": [{"name": "d", "count": 2, "memory": 1e9, "flops": 1e12, "bandwidth": 1e11}],
    "link": [{"between": ["d*", "s"], "latency": 1e-6, "bandwidth": 1e10}],
}  # fmt: skip


# -- Clusters --------------------------------------------------------------------------------------------------------


def test_a_cluster_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'name = "pair"\n[[device]]\nname = "d"\ncount = 2\nmemory = 1e9\nflops = 1e12\nbandwidth = 1e11\n'
        '[[link]]\nbetween = ["d*", "s"]\nlatency = 1e-6\nbandwidth = 1e10\n'
    )
    found = read_cluster(path)
    assert [d.name for d in found.devices] == ["d0", "d1"]
    assert [(k.first, k.second) for k in found.links] == [("d0", "s"), ("d1", "s")]


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("memory", -1, "/device/0/memory"), ("count", 0, "/device/0/count"), ("flops", "fast", "/device/0/flops"),
        ("profile", "h100", "/device/0"), ("colour", 1, "/device/0"), ("name", "", "/device/0/name"),
    ],
)  # fmt: skip
def test_a_wrong_device_is_refused_at_its_place(key: str, value: object, where: str) -> None:
    with pytest.raises(InvalidModel) as caught:
        cluster_of({**GOOD, "device": [{**GOOD["device"][0], key: value}]})
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("link", "where"),
    [
        ({"between": ["d*"]}, "/link/0/between"), ({"between": ["e*", "s"]}, "/link/0/between"),
        ({"bandwidth": 0}, "/link/0/bandwidth"), ({"between": ["d0", "s"]}, "/link"),
    ],
)  # fmt: skip
def test_a_wrong_link_is_refused_at_its_place(link: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidModel) as caught:
        cluster_of({**GOOD, "link": [{**GOOD["link"][0], **link}]})
    assert caught.value.where == where


def test_text_that_is_no_toml_is_refused_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text("name = ")
    with pytest.raises(InvalidModel) as caught:
        read_cluster(path)
    assert str(path) in caught.value.where


def test_rings_that_share_a_link_share_its_bandwidth() -> None:
    hosts = cluster(16, link=1e9)  # two hosts of eight
    across, inside = axis_networks(hosts, (2, 8))
    assert across.byte_seconds == pytest.approx(8 / 1e9)  # eight pairs at once over the link of a host
    assert inside.byte_seconds == pytest.approx(1 / 1e9)
    assert across.latency > inside.latency


# -- Movements -------------------------------------------------------------------------------------------------------


def _moved(step: Step, pieces: dict[int, np.ndarray], mesh: tuple[int, ...]) -> dict[int, np.ndarray]:
    """A step on all ranks' pieces."""
    found = {}
    for rank in pieces:
        group = group_of(rank, mesh, step.mesh_axis)
        place, all_pieces = group.index(rank), [pieces[r] for r in group]
        whole = np.concatenate(all_pieces, axis=step.source.axis) if step.source.kind == "split" else pieces[rank]
        whole = sum(all_pieces) if step.source == PARTIAL else whole
        if step.op == "First":
            found[rank] = whole if place == 0 else np.zeros_like(whole)
        elif step.target.kind == "split":
            found[rank] = np.split(whole, len(group), axis=step.target.axis)[place]
        else:
            found[rank] = whole
    return found


def _meaning(pieces: dict[int, np.ndarray], spec: Spec, mesh: tuple[int, ...], shape: tuple[int, ...]) -> np.ndarray:
    """The tensor of which pieces in a placement are; all copies of a piece must be equal."""
    whole, counted = np.zeros(shape), np.zeros(shape)
    for rank, piece in pieces.items():
        place = coordinates(rank, mesh)
        bounds = piece_bounds(shape, spec, mesh, place)
        whole[bounds] += piece
        counted[bounds] += all(k == 0 for k, p in zip(place, spec, strict=True) if p == PARTIAL)
        twin = tuple(0 if p == REPLICATED else k for k, p in zip(place, spec, strict=True))
        assert np.allclose(piece, pieces[[coordinates(r, mesh) for r in pieces].index(twin)])
    return whole / counted


@pytest.mark.parametrize("mesh", [(2, 2), (2, 3)])
def test_every_way_between_placements_keeps_the_tensor(mesh: tuple[int, ...]) -> None:
    shape, rng = (12, 12), np.random.default_rng(5)
    kind = TensorType(DType.FLOAT32, shape)
    ranks, networks = range(mesh[0] * mesh[1]), axis_networks(cluster(mesh[0] * mesh[1]), mesh)
    choices = specs(kind, mesh, partial=True)
    assert len(choices) == 16
    for source in choices:
        drawn: dict[tuple[object, ...], np.ndarray] = {}
        pieces = {}
        for rank in ranks:
            place = coordinates(rank, mesh)
            own = tuple(0 if p == REPLICATED else k for k, p in zip(place, source, strict=True))
            sizes = [s.stop - s.start for s in piece_bounds(shape, source, mesh, place)]
            pieces[rank] = drawn.setdefault(own, rng.normal(size=sizes))
        tensor = _meaning(pieces, source, mesh, shape)
        ways = reshardings(kind, source, mesh, networks, lambda _: 1e-9)
        assert set(ways) == set(choices)
        for target, (seconds, steps) in ways.items():
            after = pieces
            for step in steps:
                after = _moved(step, after, mesh)
            assert np.allclose(_meaning(after, target, mesh, shape), tensor), (source, target)
            assert (seconds > 0) == bool(steps)


def test_times_of_collectives() -> None:
    (network,) = axis_networks(cluster(4, latency=1e-6, link=1e9), (4,))
    kind = TensorType(DType.FLOAT32, (1_000_000,))

    def seconds(op: str, size: TensorType = kind) -> float:
        return step_seconds(Step(op, 0, REPLICATED, split(0)), size, network, lambda _: 0.0)

    hop = 2e-6  # through the switch
    assert seconds("AllReduce") == pytest.approx(6 * (hop + 1e-3))
    assert seconds("AllGather") == pytest.approx(3 * (hop + 4e-3))
    assert seconds("ReduceScatter") == pytest.approx(3 * (hop + 1e-3))
    assert seconds("AllReduce", TensorType(DType.FLOAT32, (1,))) == pytest.approx(2 * (hop + 4e-9))  # doubling


# -- The choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_choice_is_the_best_of_all(seed: int) -> None:
    problem = problem_of(drawn_model(seed, 4), drawn_cluster(seed))
    chosen, _ = choose(problem.model, problem.cluster, mesh=problem.mesh)
    assert chosen.seconds == pytest.approx(least_seconds(problem), rel=1e-6)
    assert chosen.bound <= chosen.seconds * (1 + 1e-6)


def test_the_choice_is_the_best_that_fits_into_memory() -> None:
    problem = problem_of(drawn_model(2, 2), cluster(2, **SLOW))
    free = problem.problem(10**9)
    every = [evaluate(free, s) for s in itertools.product(*(range(n) for n in free.sizes.tolist()))]
    allowed = [e for e in every if e.cost < 10**18]
    least = min(e.cost for e in allowed)
    limit = min(e.peak for e in allowed if e.cost == least) - 1
    best = min(e.cost for e in allowed if e.peak <= limit)
    assert solve(replace(free, usage_limit=limit), work=20).cost == best > least


def test_examples_are_divided_where_a_batch_is_large() -> None:
    choice, problem = choose(problem_of(transformer(batch=4, length=32, width=64, heads=4), cluster(4)).model,
                             cluster(4, **SLOW), mesh=(4,))  # fmt: skip
    assert not exchanges(choice, problem)
    assert all(choice.specs[w] == (REPLICATED,) for w in problem.model.graph.constants if w in choice.specs)
    assert choice.specs["x"] == choice.specs["y"] == (split(0),)


def test_two_layers_are_divided_by_columns_and_rows() -> None:
    model = problem_of(mlp(3, 1024, hidden=4096), cluster(4)).model
    choice, problem = choose(model, cluster(4, **SLOW), mesh=(4,))
    first, second = (o.args[1] for o in problem.model.operations if o.name == "MatMul")
    assert first is not None
    assert second is not None
    assert (choice.specs[first], choice.specs[second]) == ((split(1),), (split(0),))
    assert sum(exchanges(choice, problem).values()) == 1


def test_heads_are_divided_where_a_batch_is_one() -> None:
    model = problem_of(transformer(length=128, width=512, heads=4), cluster(4)).model
    choice, problem = choose(model, cluster(4, latency=1e-6, flops=1e12, bandwidth=1e12), mesh=(4,))
    scores = next(o for o in problem.model.operations if o.name == "Softmax").outputs[0]
    assert choice.specs[scores] in ((split(1),), (split(2),))
    assert choice.seconds < problem.seconds([f[0] for f in problem.forms], dict.fromkeys(problem.values, (REPLICATED,)))


def test_weights_are_divided_where_memory_is_short() -> None:
    graph, devices = transformer(batch=4, length=16, width=128, heads=4), cluster(4, **SLOW)
    rich, _ = choose(problem_of(graph, devices).model, devices, mesh=(4,))
    short = cluster(4, memory=int(rich.peak * 0.6), **SLOW)
    poor, _ = choose(problem_of(graph, short).model, short, mesh=(4,))
    assert poor.peak <= rich.peak * 0.6
    assert poor.seconds > rich.seconds


def test_what_fits_nowhere_is_refused() -> None:
    with pytest.raises(InvalidModel):
        place(mlp(), cluster(2, memory=1000))


def test_a_mesh_must_have_a_place_for_each_device() -> None:
    with pytest.raises(UsageError):
        place(mlp(), cluster(4), mesh=(3,))


# -- Files -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Path]:
    """A block of a transformer on 2 × 2 slow devices with fast links, so that much is divided."""
    folder = tmp_path_factory.mktemp("plan")
    graph = transformer(batch=2, length=8, width=16, heads=2)
    devices = cluster(4, latency=1e-8, link=10e9, flops=1e9, bandwidth=1e9, overhead=1e-9)
    return write_plan(place(graph, devices, mesh=(2, 2)), folder), folder


def test_the_ranks_together_compute_the_model(written: tuple[Plan, Path]) -> None:
    plan, folder = written
    assert plan.check is not None
    assert plan.check.verdict == "passed", plan.check.reason
    assert plan.proofs
    assert set(plan.certificates.values()) == {"holds"}
    graph = plan.model.graph
    feeds = feeds_for(graph)
    expected = ONNX_RUNTIME.load(to_onnx_bytes(graph)).run(feeds, ["y"])["y"]
    assert np.allclose(run_in_threads(folder, feeds)["y"], expected, rtol=1e-4, atol=1e-5)


def test_a_plan_says_what_it_rests_on(written: tuple[Plan, Path]) -> None:
    plan, folder = written
    data = json.loads((folder / "plan.json").read_text("utf-8"))
    assert data["format"] == "superopt.placement"
    assert data["mesh"] == [2, 2]
    assert {d for o in data["operations"] for d in o["proofs"]} == set(data["proofs"])
    assert all((folder / "certificates" / f"{digest}.json").exists() for digest in data["proofs"])
    trace = json.loads((folder / "timeline.json").read_text("utf-8"))["traceEvents"]
    assert {e["pid"] for e in trace} == {0, 1, 2, 3}
    assert max(e["ts"] + e["dur"] for e in trace if e["ph"] == "X") == pytest.approx(plan.simulated * 1e6)
    assert plan.simulated <= plan.choice.seconds * (1 + 1e-9)


def _first(graph: Graph, *ops: str) -> Node:
    return next(n for n in graph.nodes if n.op in ops)


def _without_exchange(graph: Graph) -> Graph:
    """A sum over devices that is left out."""
    node = _first(graph, "AllReduce")
    return replace(
        graph, nodes=tuple(replace(n, op="Identity", domain="", attributes={}) if n is node else n for n in graph.nodes)
    )


def _other_weight(graph: Graph) -> Graph:
    """A matrix that is another's."""
    weight = max((w for w in graph.weights if w.type.rank == 2), key=lambda w: w.type.nbytes or 0)
    assert weight.data is not None
    changed = replace(weight, data=ArrayWeightData(np.ascontiguousarray(weight.data.numpy()[::-1])))
    return replace(graph, weights=tuple(changed if w is weight else w for w in graph.weights))


def _other_activation(graph: Graph) -> Graph:
    """Another function on one device."""
    node = _first(graph, "Gelu")
    return replace(graph, nodes=tuple(replace(n, op="Relu", attributes={}) if n is node else n for n in graph.nodes))


@pytest.mark.parametrize("change", [_without_exchange, _other_weight, _other_activation])
@pytest.mark.parametrize("everywhere", [False, True], ids=["on one rank", "on all"])
def test_changed_rank_files_are_refuted(tmp_path: Path, change: Any, everywhere: bool) -> None:
    plan = place(mlp(6, 8, hidden=12), cluster(2, latency=1e-9, flops=1e8, bandwidth=1e9), mesh=(2,))
    forced = _column_row(plan)
    write_plan(forced, tmp_path, checked=False)
    layout = layout_of(forced)
    assert check_ranks(plan.model.graph, plan.model, layout, tmp_path).verdict == "passed"
    for rank in (0, 1) if everywhere else (1,):
        path = tmp_path / rank_name(rank)
        save(change(load(path)), path, force=True)
    assert check_ranks(plan.model.graph, plan.model, layout, tmp_path).verdict == "failed"


def _column_row(plan: Plan) -> Plan:
    """The plan with the first matrix by columns and the second by rows, and an AllReduce."""
    problem = plan.problem
    wanted = {"w": iter([(split(1),), (split(0),)])}
    names = [o.args[1] for o in plan.model.operations if o.name == "MatMul"]
    placed = dict.fromkeys(problem.values, (REPLICATED,)) | {n: next(wanted["w"]) for n in names if n}
    forms = []
    for operation, choices in zip(plan.model.operations, problem.forms, strict=True):
        fitting = [f for f in choices if all(
            s is None or a is None or a not in plan.model.graph.constants or len(plan.model.types[a].shape or ()) < 2
            or s == placed[a] for a, s in zip(operation.args, f.operands, strict=True)
        )]  # fmt: skip
        forms.append(min(fitting, key=lambda f: problem.form_seconds(operation, f)))
        placed |= {v: (REPLICATED,) if s == (PARTIAL,) else s
                   for v, s in zip(operation.outputs, forms[-1].results, strict=True)}  # fmt: skip
    choice = replace(plan.choice, forms=tuple(forms), specs=placed)
    return replace(plan, choice=choice)


def test_ranks_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    plan = place(mlp(6, 8, hidden=12), cluster(2), mesh=(2,))
    forced = _column_row(plan)
    write_plan(forced, tmp_path, checked=False)
    path = tmp_path / rank_name(1)
    graph = load(path)
    node = _first(graph, "AllReduce")
    alone = replace(node, attributes={**node.attributes, "group": (1,)})
    save(replace(graph, nodes=tuple(alone if n is node else n for n in graph.nodes)), path, force=True)
    result = check_ranks(plan.model.graph, plan.model, layout_of(forced), tmp_path)
    assert result.verdict == "failed"
    assert "does not take part" in result.reason


def test_a_plan_that_is_wrong_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from superopt.placement import plan as module

    plan = _column_row(place(mlp(6, 8, hidden=12), cluster(2), mesh=(2,)))
    honest = module.rank_graphs
    monkeypatch.setattr(module, "rank_graphs", lambda *a: [_other_activation(g) for g in honest(*a)])
    with pytest.raises(NotEquivalent):
        write_plan(plan, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_failing_rank_ends_the_others(tmp_path: Path) -> None:
    plan = _column_row(place(mlp(6, 8, hidden=12), cluster(2), mesh=(2,)))
    write_plan(plan, tmp_path, checked=False)
    program = RankProgram.from_graph(load(tmp_path / rank_name(0)))
    ranks = Threads(2)
    ranks.abort()
    with pytest.raises(KeyError):
        program.run({}, ranks.transport(0), 0)


# -- Time ------------------------------------------------------------------------------------------------------------


def test_a_device_exchanges_while_it_computes() -> None:
    tasks = [
        Task("a", (0,), "compute", 2.0, ()), Task("b", (1,), "compute", 3.0, ()),
        Task("sum", (0, 1), "network", 1.0, (0, 1)), Task("other", (0,), "compute", 5.0, (0,)),
        Task("reader", (0,), "compute", 1.0, (2,)),
    ]  # fmt: skip
    events = simulate(tasks)
    assert [(e.start, e.end) for e in events] == [(0, 2), (0, 3), (3, 4), (2, 7), (7, 8)]
    rows = [r for r in chrome_trace(events, ["d0", "d1"])["traceEvents"] if r["ph"] == "X"]
    assert [(r["pid"], r["tid"]) for r in rows if r["name"] == "sum"] == [(0, 1), (1, 1)]


# -- The command -----------------------------------------------------------------------------------------------------


def test_the_command_places_a_model(tmp_path: Path) -> None:
    save(mlp(6, 8, hidden=12), tmp_path / "m.onnx")
    (tmp_path / "c.toml").write_text(
        'name = "pair"\n[[device]]\nname = "d"\ncount = 2\nmemory = 1e9\nflops = 1e8\nbandwidth = 1e9\n'
        '[[link]]\nbetween = ["d0", "d1"]\nlatency = 1e-9\nbandwidth = 1e10\n'
    )
    command = ["place", str(tmp_path / "m.onnx"), "--cluster", str(tmp_path / "c.toml"), "-o", str(tmp_path / "out")]
    found = CliRunner().invoke(app, [*command, "--json", "-"])
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["check"]["verdict"] == "passed"
    again = CliRunner().invoke(app, command)
    assert isinstance(again.exception, UsageError)
    assert "-f replaces it" in str(again.exception)


@pytest.mark.parametrize("mesh", ["2y2", "0", ""])
def test_a_mesh_that_is_none_is_refused(tmp_path: Path, mesh: str) -> None:
    save(mlp(6, 8, hidden=12), tmp_path / "m.onnx")
    (tmp_path / "c.toml").write_text("")
    found = CliRunner().invoke(
        app, ["place", str(tmp_path / "m.onnx"), "--cluster", str(tmp_path / "c.toml"), "--mesh", mesh]
    )
    assert isinstance(found.exception, UsageError)
