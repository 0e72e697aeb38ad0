"""Sums, shared transforms and drawn shapes: what the laboratory says of forms without timing them."""

from __future__ import annotations

import pytest

from lab.algorithms import PROFILE, FastAlgorithmMeasurement, _scatter, conv, drawn, matmul, plan
from lab.fast_algorithm_limits import devices_table, parts_of, products_alone, siblings_of
from superopt import cost as costs
from superopt import formats
from superopt.ir.errors import UsageError
from superopt.passes.fast_algorithms.selection import GROWTH, choose, forms_of, kind_of, rewritten
from superopt.passes.fast_algorithms.sites import sites_of
from superopt.passes.fast_algorithms.strassen_matmul import StrassenMatMul

STANDARD = GROWTH["standard"]


def test_sums_are_of_the_multiplications_that_are_left() -> None:
    with costs.for_target(PROFILE) as prices:
        graph = conv(512, 512, 28)
        chosen = choose(graph, prices, growth=STANDARD)
        found = parts_of(graph, chosen, prices)
        none = parts_of(graph, [], prices)
    # F(4, 3) of 49 whole tiles: 36 products for 144 multiplications; all of it is the operator's time.
    assert found.products / found.direct == pytest.approx(36 / 144, rel=0.01)
    assert found.rest == 0.0
    assert 0.0 < found.transforms < found.products
    assert found.products / found.direct < found.least < found.from_memory < found.priced + 0.2
    assert found.weights == pytest.approx(1e3 * 36 * 512 * 512 * 4 / 22461717886, rel=0.01)
    assert (none.forms, none.least, none.priced) == (0, 1.0, 1.0)
    assert none.rest == pytest.approx(found.direct)


def test_sums_need_ceilings() -> None:
    bare = costs.ProfileCostModel(costs.DeviceProfile({"backend": "onnxruntime-cpu"}, {}))
    with pytest.raises(UsageError, match="ceilings"):
        parts_of(conv(64, 64, 28), [], bare)


def test_products_by_themselves_are_all_of_a_forms() -> None:
    graph = matmul(1024, 1024, 1024)
    with costs.for_target(PROFILE) as prices:
        (choice,) = choose(graph, prices, growth=STANDARD)
    assert isinstance(choice.form, StrassenMatMul)
    alone = products_alone(graph, rewritten(graph, [choice], filled=False))
    assert [n.op for n in alone.nodes] == ["MatMul"] * choice.form.algorithm.rank
    assert len(alone.outputs) == len(alone.weights) == choice.form.algorithm.rank


def test_siblings_are_counted() -> None:
    with costs.for_target(PROFILE) as prices:
        assert siblings_of(conv(256, 128, 20), prices).groups == 0
        found = siblings_of(formats.load("corpus/ssd_head.json"), prices)
    assert (found.convs, found.groups, found.alike) == (12, 6, 6)
    assert 2 * found.shared == found.formed > 0  # they come in pairs


def test_devices_without_records_have_prices() -> None:
    header, rule, one, other = devices_table([("a", conv(512, 512, 28)), ("b", conv(16, 16, 7))])
    assert header.count("|") == rule.count("|") == one.count("|") == other.count("|")
    assert float(one.split("|")[2]) > 2 * 9 * 512 * 512 * 784 / 67e12 * 1e6  # not below the roof
    assert "none" in other


def test_what_prices_are_off_by_is_said_by_kind() -> None:
    graph = conv(256, 256, 28)
    both, direct = (
        next(f for f in forms_of(sites_of(graph)[0], STANDARD) if kind_of(f) == kind)
        for kind in ("both axes", "one axis direct")
    )
    found = FastAlgorithmMeasurement(
        "a", (None, both, direct), (10.0, 5.0, 8.0), (1.0, 0.6, 0.4), (1.0, 0.6, 0.4), 1.0, None, 0.0
    )
    assert _scatter([found, found]) == (
        "Measured ÷ modelled: both axes 1.200 (σ of the logarithm 0.000, 2 forms); "
        "one axis direct 0.500 (σ of the logarithm 0.000, 2 forms)."
    )


def test_drawn_shapes_are_models_and_the_same_every_time(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plan(tmp_path, 5, 7)
    found = [formats.load(path) for path in sorted(tmp_path.iterdir())]
    wanted = [graph for _, graph, _ in drawn(5, 7)]
    assert [[v.type for v in g.inputs] for g in found] == [[v.type for v in g.inputs] for g in wanted]
    assert [[n.op for n in g.nodes] for g in found] == [[n.op for n in g.nodes] for g in wanted]
