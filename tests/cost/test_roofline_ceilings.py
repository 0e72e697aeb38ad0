"""Ceilings, intensity, the roofline plot, and memory as a constraint on results."""

import re
import xml.etree.ElementTree as ET

import pytest

from superopt.cost import (
    DevicePeakPerformance,
    DeviceProfile,
    MeasurementRecord,
    ProfileCostModel,
    graph_cost,
    peaks_of_header,
    roofline_data,
    write_profile,
)
from superopt.cost.measurement_record import key_of
from superopt.cost.roofline_ceilings import PEAK_QUESTIONS, peaks_of_times
from superopt.ir.graph import Graph, Node, Value, constant
from superopt.ir.types import DType, TensorType
from superopt.ops.shape_inference import infer
from superopt.pipeline import cost as cost_of
from superopt.pipeline import inspect, optimize
from superopt.pipeline.memory_limit import memory_bound, needed
from superopt.report.roofline_plot import roofline
from superopt.runtime.synthetic_tensors import sample

HEADER = {
    "device": "<b>evil</b>", "cache_bytes": 1 << 20, "dispatch_ns": 100.0,
    "peaks": {"flops_per_s": 1e11, "bytes_per_s": 2e10, "cache_bytes_per_s": 8e10},
}  # fmt: skip


def f(*shape):
    return TensorType(DType.FLOAT32, shape)


def two_products(inner, outer=64):
    """x (8, outer) times (outer, inner) times (inner, outer): one product of (outer, outer) does the same."""
    weights = (constant("v", sample(f(outer, inner))), constant("w", sample(f(inner, outer), 1)))
    nodes = (Node("m", "MatMul", ("x", "v"), ("m",)), Node("n", "MatMul", ("m", "w"), ("y",)))
    return Graph("g", (Value("x", f(8, outer)),), (Value("y", f(8, outer)),), weights, nodes, {"": 21})


@pytest.fixture
def target(tmp_path):
    rows = []
    for a in (4, 16, 64, 256):
        for b in (4, 16, 64, 256):
            key = key_of("MatMul", {}, (f(8, a), f(a, b)), (False, True))
            flops, moved = 16 * a * b, 4 * (8 * a + a * b + 8 * b)
            rows.append(MeasurementRecord(key, 500 + flops / 50, 500 + flops / 50, 0.0, 0, flops, moved))
    write_profile(tmp_path / "p.jsonl.gz", HEADER, rows)
    return f"profile:{tmp_path / 'p.jsonl.gz'}"


def test_ceilings_come_from_times():
    found = peaks_of_times(lambda q: 1e6)
    assert found["flops_per_s"] == 2 * 768**3 * 1e3
    assert found["bytes_per_s"] == 8 * (16 << 20) * 1e3
    assert {q.op for q in PEAK_QUESTIONS.values()} == {"MatMul", "Relu"}


def test_what_the_cache_holds_need_not_come_from_memory():
    peaks = peaks_of_header(HEADER)
    assert peaks == DevicePeakPerformance("<b>evil</b>", 1e11, 2e10, 8e10, 1 << 20)
    assert peaks.attainable(100, 100) == 8e10
    assert peaks.attainable(1 << 20, 1 << 20) == 2e10
    assert peaks.attainable(1e9, 100) == 1e11
    assert peaks_of_header({}) is None
    assert peaks_of_header({"peaks": {"flops_per_s": "fast", "bytes_per_s": 0}}) is None


def costed(graph):
    return graph_cost(graph, ProfileCostModel(DeviceProfile(HEADER, {})))


def test_every_operator_has_its_work_and_the_sum_is_the_graphs():
    graph = two_products(16)
    found = costed(graph)
    assert [w[0] for w in found.per_node_work] == [2 * 8 * 64 * 16, 2 * 8 * 16 * 64]
    assert sum(w[0] for w in found.per_node_work) == found.flops
    assert sum(w[1] for w in found.per_node_work) == found.bytes
    (row,) = roofline_data(found, None, None)["before"]
    assert (row["op"], row["count"], row["flops"]) == ("MatMul", 2, found.flops)
    assert row["intensity"] == pytest.approx(found.intensity)


def test_the_plot_is_well_formed_and_escapes_what_it_shows():
    before, after = costed(two_products(16)), costed(two_products(4))
    svg, note = roofline(roofline_data(before, after, peaks_of_header(HEADER)))
    tree = ET.fromstring(svg)
    kinds = [e.get("class") for e in tree.iter()]
    assert kinds.count("roof") == kinds.count("roof near") == kinds.count("step") == 1
    assert {"fill-before", "fill-after"} <= set(kinds)
    assert "<b>" not in svg
    assert "<b>evil</b>" in note
    numbers = [float(v) for v in re.findall(r'c[xy]="(-?[\d.]+)"', svg)]
    assert numbers
    assert all(0 <= v <= 640 for v in numbers)


def work(**operators):
    """Rows of a roofline: FLOPs per byte and GFLOPs a second by operator, each of 100 µs."""
    return [{"op": op, "count": 1, "us": 100.0, "flops": speed * 1e5, "bytes": speed * 1e5 / intensity}
            for op, (intensity, speed) in operators.items()]  # fmt: skip


WIDE = {"Shape": (1e-6, 0.01), "Cast": (0.1, 9000)}  # far away, so that the others are near each other


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (work(MatMul=(50, 100), **WIDE), work(MatMul=(45, 101), **WIDE)),  # beside the words of the peak
        (work(Conv=(3, 99), Add=(4, 70)), work(Conv=(4, 100), Add=(4.3, 70))),  # two graphs side by side
        (work(Conv=(1, 30), Add=(0.1, 2)), work(Conv=(1, 30.5), Add=(0.1, 2))),  # one place for both
        (work(A=(0.1, 1), B=(0.1, 1), C=(0.1, 1), D=(0.1, 1)), work(A=(0.1, 1))),  # one place for all
    ],
)
def test_no_word_of_the_plot_covers_another(before, after):
    """An operator whose label would lie over another one is named when pointed at."""
    peaks = {"flops_per_second": 110e9, "bytes_per_second": 20e9, "cache_bytes_per_second": 80e9, "device": "d"}
    svg, _ = roofline({"before": before, "after": after, **peaks})
    boxes = []
    for text in ET.fromstring(svg).iter("text"):
        wide, x, y = 6.5 * len(text.text), float(text.get("x")), float(text.get("y"))
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[text.get("text-anchor")]
        boxes.append((text.text, left, y - 11, left + wide, y + 2))
    assert {"before", "after"} <= {b[0] for b in boxes}
    assert all(f"<title>{row['op']}, before" in svg for row in before)
    words = [b for b in boxes if not b[0][0].isdigit() or b[0].endswith("/s")]  # the rest are the axes' numbers
    assert not [(a[0], b[0]) for i, a in enumerate(words) for b in words[:i]
                if a[1] < b[3] and b[1] < a[3] and a[2] < b[4] and b[2] < a[4]]  # fmt: skip


def test_without_ceilings_or_time_there_is_less_to_draw():
    found = costed(two_products(16))
    svg, note = roofline(roofline_data(found, None, None))
    assert "roof" not in [e.get("class") for e in ET.fromstring(svg).iter()]
    assert "not measured" in note
    assert roofline({}) == ("", "")
    assert roofline({"before": [{"op": "X", "us": 0, "flops": 1, "bytes": 1}]}) == ("", "")


def test_inspection_and_cost_say_intensity_by_node(target):
    nodes = inspect(two_products(16))["work"]["nodes"]
    assert [n["op"] for n in nodes] == ["MatMul", "MatMul"]
    assert all(n["intensity"] == n["flops"] / n["bytes"] for n in nodes)
    facts = cost_of(two_products(16), target=target)
    assert facts["memory_bytes"] == facts["weight_bytes"] + facts["peak_activation_bytes"]
    assert all(0 < n["of_roof"] < 2 for n in facts["nodes"])
    assert facts["roofline"]["flops_per_second"] == 1e11


def test_a_report_has_memory_and_roofline(target):
    report = optimize(two_products(256), target=target, time_limit=None).report
    data = report.json()
    assert report.status == "improved"
    assert data["work"]["weight_bytes_after"] == 4 * 64 * 64
    assert data["work"]["weight_bytes_before"] == 2 * 4 * 64 * 256
    assert data["roofline"]["before"][0]["count"] == 2
    assert data["roofline"]["after"][0]["count"] == 1


@pytest.mark.parametrize("columns", [16, 64, 256])
def test_a_result_needs_no_more_than_the_limit(target, columns):
    """Whatever the rules would make of it without one: one product for two has weights twice as large."""
    graph = two_products(columns)
    limit = needed(graph, None, {}) + 1000
    bound = optimize(graph, target=target, time_limit=None, memory_limit=limit)
    assert needed(bound.graph, None, {}) <= limit


def test_an_input_over_the_limit_is_said_and_not_made_larger(target):
    for graph in (two_products(16), two_products(256)):
        found = optimize(graph, target=target, time_limit=None, memory_limit=1000)
        assert needed(found.graph, None, {}) <= needed(graph, None, {})
        assert any("the input itself needs" in n for n in found.report.notes)


def test_weights_may_grow_by_what_is_left():
    graph = two_products(16)
    own = needed(graph, infer(graph), {})
    assert own == 2 * 4 * 64 * 16 + 4 * (8 * 64 + 8 * 16)
    assert memory_bound(graph, infer(graph), own + 100, {}).growth == 100
    assert memory_bound(graph, infer(graph), own - 1, {}).most == own
    assert memory_bound(graph, infer(graph), 1 << 40, {}).growth < 1 << 30
