"""The predictor: exact on a roofline, monotone, independent of order, and honest about what it knows."""

import json
import math
import random
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from superopt.cost import Key, Record, load_profile
from superopt.cost.predictor import Ceilings, Predictor, ceilings_of

CEILINGS = Ceilings(flops_per_ns=50.0, bytes_per_ns=10.0, least_ns=500.0)


def roofline(flops, moved, slowdown=2.0):
    return 500.0 + slowdown * max(flops / 50.0, moved / 10.0)


def synthetic(slowdown=2.0, op="MatMul"):
    rows = []
    for a in range(8, 24, 2):
        for b in range(8, 20, 3):
            flops, moved = 2**a, 2**b
            ns = roofline(flops, moved, slowdown)
            rows.append(Record(Key(op, "{}", "float32", (f"{flops}", f"{moved}")), ns, ns, 0.0, 0, flops, moved))
    return rows


def test_a_measured_size_is_predicted_closely():
    model = Predictor.fit(synthetic(), CEILINGS)
    for row in synthetic():
        found = model.predict("MatMul", row.flops, row.bytes)
        assert found.source == "interpolated"
        assert 0.5 < found.us * 1e3 / row.ns < 2.0


@given(st.integers(10, 22), st.integers(10, 18), st.integers(1, 4))
def test_more_work_is_not_much_cheaper(a, b, factor):
    model = Predictor.fit(synthetic(), CEILINGS)
    small = model.predict("MatMul", 2**a, 2**b)
    large = model.predict("MatMul", 2 ** (a + factor), 2 ** (b + factor))
    assert large.us >= small.us * 0.95


def test_sources_are_labelled_and_uncertainty_grows_with_ignorance():
    model = Predictor.fit(synthetic(), CEILINGS)
    near = model.predict("MatMul", 2**12, 2**11)
    far = model.predict("MatMul", 2**60, 2**50)
    unknown = model.predict("Softmax", 2**12, 2**11)
    assert (near.source, far.source, unknown.source) == ("interpolated", "roofline", "roofline")
    assert near.sigma < far.sigma < unknown.sigma


def test_the_order_of_records_does_not_matter():
    rows = synthetic()
    random.Random(1).shuffle(rows)
    a, b = Predictor.fit(synthetic(), CEILINGS), Predictor.fit(rows, CEILINGS)
    assert a.predict("MatMul", 12345, 6789) == b.predict("MatMul", 12345, 6789)


def test_nothing_measured_still_predicts_something_positive():
    model = Predictor.fit([])
    found = model.predict("Conv", 10**9, 10**6)
    assert found.us > 0
    assert found.source == "roofline"
    assert model.predict("Conv", 0, 0).us > 0


def cached(a, op="MatMul"):
    """A product of one row, whose weights come from memory at 10 bytes/ns and from the cache at 40."""
    size = 2**a
    key = Key(op, "{}", "float32", (f"float32[1, {size}]", f"!float32[{size}, {size}]"))
    moved = 4 * size * (size + 2)
    return Record(key, 500.0 + moved / 40.0, 500.0 + moved / 10.0, 0.0, 0, 2 * size * size, moved)


def test_warm_weights_are_predicted_from_the_cache_and_cold_ones_from_memory():
    ceilings = Ceilings(50.0, 10.0, 500.0, 40.0)
    model = Predictor.fit([cached(a) for a in (6, 7, 8)], ceilings)
    for a in (9, 10, 11):  # larger than anything measured, the last beyond any neighbour
        want = cached(a)
        warm, half, cold = (
            model.predict("MatMul", want.flops, want.bytes, want.key, cold=share).us * 1e3 for share in (0.0, 0.5, 1.0)
        )
        assert abs(warm / want.ns - 1) < 0.05
        assert abs(cold / want.ns_cold - 1) < 0.05
        assert warm < half < cold


def test_a_far_neighbour_counts_only_where_there_is_no_near_one():
    near, far = Record(Key("Relu", "{}", "float32", ("a",)), 1e4, 1e4, 0.0, 0, 1 << 18, 1 << 18), []
    for bits in (15, 16):
        far.append(Record(Key("Relu", "{}", "float32", (f"{bits}",)), 4e4, 4e4, 0.0, 0, 1 << bits, 1 << bits))
    alone, with_near = Predictor.fit(far, CEILINGS), Predictor.fit([near, *far], CEILINGS)
    assert alone.predict("Relu", 1 << 18, 1 << 18).source == "interpolated"
    assert with_near.predict("Relu", 1 << 18, 1 << 18).us < alone.predict("Relu", 1 << 18, 1 << 18).us


def test_a_convolution_of_few_groups_is_not_taken_for_one_of_each_channel_by_itself():
    """A kernel of its own makes that ten times as fast, so that a rewrite to groups of two channels seemed free."""
    profile = load_profile("cpu-epyc-2core")
    convs = [r for r in profile.records.values() if r.key.op == "Conv" and r.ns_cold > 0 and r.key.dtype == "float32"]
    ceilings = ceilings_of(profile.header)
    off: dict[bool, list[float]] = {True: [], False: []}
    for record in [r for r in convs if json.loads(r.key.attrs).get("group", 1) > 1][::3]:
        found = Predictor.fit([r for r in convs if r is not record], ceilings)
        error = math.log(found.predict("Conv", record.flops, record.bytes, record.key).us * 1e3 / record.ns_cold)
        off[",1," in record.key.shapes[1].replace(" ", "")].append(error)
    for errors in off.values():
        assert len(errors) > 10
        assert abs(median(errors)) < 0.15
        assert median(map(abs, errors)) < 0.4
