"""Results kept across runs: the same result, never a wrong one, whatever stands in the folder."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace

import pytest
from graphs import assert_equivalent, f32, graph, linear_stack, op, qkv, siamese, weight
from roofline import Roofline
from rules_for_tests import rules

from superopt.formats import to_onnx_bytes
from superopt.ir import disk_cache
from superopt.ir.types import DType, TensorType
from superopt.passes import SearchOptions, search
from superopt.regions import cache


class Known(Roofline):
    """Costs that say what they are."""

    digest = "roofline"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path))
    return tmp_path / "regions"


def run(model, names=(), **options):
    costs = Known()
    result = search(model, rules(*names), costs, SearchOptions(**options))
    return result, costs.asked


def entries(folder):
    return sorted(p for p in folder.glob("*") if not p.name.startswith("."))


MODELS = [qkv(4), linear_stack(4), siamese(2)]


@pytest.mark.parametrize("model", MODELS, ids=["qkv", "stack", "siamese"])
def test_the_same_result_with_and_without(model, folder):
    plain, _ = run(model, cache=False)
    assert not folder.exists()
    cold, asked = run(model)
    warm, again = run(model)
    assert to_onnx_bytes(plain.graph) == to_onnx_bytes(cold.graph) == to_onnx_bytes(warm.graph)
    assert asked > 0 == again
    figures = ("before_us", "after_us", "regions", "distinct_regions", "e_nodes", "stopped", "applied", "near_misses")
    for name in figures:
        assert getattr(cold, name) == getattr(warm, name), name
    assert_equivalent(model, warm.graph)


def test_other_weights_share_an_entry(folder):
    def model(seed):
        nodes = [op("MatMul", "h", "x", "a"), op("MatMul", "y", "h", "b")]
        return graph({"x": f32(4, 8)}, ["y"], [weight("a", 8, 8, seed=seed), weight("b", 8, 8, seed=seed)], nodes)

    run(model(1))
    count = len(entries(folder))
    found, asked = run(model(2))
    assert asked == 0
    assert len(entries(folder)) == count
    assert_equivalent(model(2), found.graph)


@pytest.mark.parametrize(
    "change",
    [{"names": ("assoc", "relu-relu")}, {"node_limit": 900}, {"least_gain": 0.5}, {"seed": 1}, {"sizes": {"n": 3}}],
    ids=str,
)
def test_what_the_result_depends_on_is_in_the_key(change):
    run(linear_stack(3), ("assoc",))
    _, asked = run(linear_stack(3), **{"names": ("assoc",), **change})
    assert asked > 0


def test_a_changed_rule_is_another_rule():
    (rule,) = rules("assoc")
    model = linear_stack(3)
    search(model, [rule], Known())
    backwards = replace(rule, lhs=rule.rhs, rhs=rule.lhs)
    costs = Known()
    search(model, [backwards], costs)
    assert costs.asked > 0


def test_other_costs_and_costs_of_no_name(folder):
    class Other(Known):
        digest = "another"

    run(qkv())
    for costs in (Other(), Roofline()):
        search(qkv(), rules(), costs)
        assert costs.asked > 0
    assert Roofline().digest is None


def damaged(content, kind):
    if kind == "empty":
        return b""
    if kind == "cut":
        return content[: len(content) // 2]
    return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]


@pytest.mark.parametrize("kind", ["empty", "cut", "flipped"])
def test_damaged_entries_are_ignored(kind, folder):
    first, _ = run(linear_stack(4))
    whole = {path: path.read_bytes() for path in entries(folder)}
    for path, content in whole.items():
        path.write_bytes(damaged(content, kind))
    again, asked = run(linear_stack(4))
    assert to_onnx_bytes(first.graph) == to_onnx_bytes(again.graph)
    assert asked > 0
    assert {path: path.read_bytes() for path in entries(folder)} == whole


def other(found, kind):
    """A result that no search made, of the right classes."""
    plan = found.plan
    if plan is None:
        return found
    *others, last = plan.nodes
    if kind == "operator":
        plan = replace(plan, nodes=(*others, replace(last, op="NoSuchOperator")))
    elif kind == "reference":
        plan = replace(plan, results=((7, 7), *plan.results[1:]))
    elif kind == "type":
        plan = replace(plan, nodes=(*others, replace(last, types=(TensorType(DType.FLOAT32, (1, 2, 3)),))))
    elif kind == "number":
        plan = replace(plan, after=float("nan"))
    else:
        plan = replace(plan, nodes=(*others, replace(last, args=None)))
    return replace(found, plan=plan)


@pytest.mark.parametrize("kind", ["operator", "reference", "type", "number", "fields"])
def test_what_does_not_fit_the_region_is_searched_again(kind, folder):
    first, _ = run(linear_stack(4))
    for path in entries(folder):
        found = disk_cache.load_object(cache.FOLDER, path.name, cache._CLASSES)
        disk_cache.store_object(cache.FOLDER, path.name, other(found, kind), 1000)
    again, asked = run(linear_stack(4))
    assert to_onnx_bytes(first.graph) == to_onnx_bytes(again.graph)
    assert asked > 0


def test_an_entry_that_others_may_write_is_not_believed(folder):
    run(linear_stack(4))
    folder.chmod(0o777)
    assert run(linear_stack(4))[1] > 0


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "file"))
    found, _ = run(linear_stack(3))
    assert caplog.text.count("superopt keeps nothing for its next run") == 1
    assert len(found.graph.nodes) == 1


def _in_a_process(number):
    return to_onnx_bytes(run(qkv(3 + number % 2))[0].graph)


def test_two_processes_may_share_it(folder):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        texts = pool.map(_in_a_process, range(4))
    assert texts[0] == texts[2]
    assert texts[1] == texts[3]
    assert not list(folder.glob(".*"))
    assert run(qkv(3))[1] == 0


def test_the_folder_stays_small(folder, monkeypatch):
    monkeypatch.setattr(cache, "_MOST", 4)
    for depth in range(2, 9):
        run(linear_stack(depth))
        assert 0 < len(entries(folder)) <= 4
