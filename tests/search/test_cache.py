"""Results kept across runs: the same result, never a wrong one, whatever stands in the folder."""

from __future__ import annotations

import json
import multiprocessing
import warnings
from dataclasses import replace

import pytest
from graphs import assert_equivalent, f32, graph, linear_stack, op, qkv, siamese, weight
from roofline import Roofline
from rules_for_tests import rules

from superopt.ir.text import format_graph
from superopt.search import SearchOptions, cache, search
from superopt.search.stored import found_as_data, found_from_data


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
    return sorted(folder.glob("*/*.json"))


MODELS = [qkv(4), linear_stack(4), siamese(2)]


@pytest.mark.parametrize("model", MODELS, ids=["qkv", "stack", "siamese"])
def test_the_same_result_with_and_without(model, folder):
    plain, _ = run(model, cache=False)
    assert not folder.exists()
    cold, asked = run(model)
    warm, again = run(model)
    assert format_graph(plain.graph) == format_graph(cold.graph) == format_graph(warm.graph)
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


def broken(text, kind):
    _, payload = text.split("\n")
    data = json.loads(payload)
    if kind == "empty":
        return ""
    if kind == "cut":
        return text[: len(text) // 2]
    if kind == "flipped":
        return text[:-9] + chr(ord(text[-9]) ^ 1) + text[-8:]
    if kind == "nested":
        payload = "[" * 100_000
    elif data["plan"] is not None:
        if kind == "operator":
            data["plan"]["pieces"][0][0] = "NoSuchOperator"
        elif kind == "reference":
            data["plan"]["results"][0] = [7, 7]
        elif kind == "type":
            data["plan"]["pieces"][-1][4][0][1] = [1, 2, 3]
        elif kind == "number":
            data["plan"]["after"] = float("nan")
        payload = json.dumps(data)
    import hashlib

    return f"{cache.FORMAT} {hashlib.sha256(payload.encode()).hexdigest()}\n{payload}"


@pytest.mark.parametrize("kind", ["empty", "cut", "flipped", "nested", "operator", "reference", "type", "number"])
def test_damaged_entries_are_ignored_with_a_warning(kind, folder):
    first, _ = run(linear_stack(4))
    for path in entries(folder):
        path.write_text(broken(path.read_text(), kind))
    with pytest.warns(UserWarning, match="searched again"):
        again, _ = run(linear_stack(4))
    assert format_graph(first.graph) == format_graph(again.graph)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(linear_stack(4))  # they were written anew


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SUPEROPT_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match="not kept"):
        found, _ = run(linear_stack(3))
    assert len(found.graph.nodes) == 1


def _in_a_process(number):
    return format_graph(run(qkv(3 + number % 2))[0].graph)


def test_two_processes_may_share_it(folder):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        texts = pool.map(_in_a_process, range(4))
    assert texts[0] == texts[2]
    assert texts[1] == texts[3]
    assert not list(folder.glob("*/.*"))
    assert run(qkv(3))[1] == 0


def test_the_folder_stays_small(folder):
    for depth in range(2, 6):
        run(linear_stack(depth))
    sizes = [p.stat().st_size for p in entries(folder)]
    known = cache.RegionCache(folder, "", Known(), {})
    known._written.append(folder)
    known.close(most=sum(sizes) // 2)
    assert 0 < sum(p.stat().st_size for p in entries(folder)) <= sum(sizes) // 2


def test_results_survive_being_data(monkeypatch):
    kept = []
    monkeypatch.setattr(cache.RegionCache, "_write", lambda self, path, found: kept.append(found))
    for model in MODELS:
        run(model)
    assert any(f.plan is not None for f in kept)
    for found in kept:
        assert found_from_data(json.loads(json.dumps(found_as_data(found)))) == found
