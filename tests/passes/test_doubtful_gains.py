"""What a search does of a plan whose gain is partly in doubt."""

from __future__ import annotations

import numpy as np
import pytest
from graphs import f32, graph, op
from roofline import Roofline

from superopt.cost.measurement_record import CostEstimate
from superopt.ir.graph import constant
from superopt.passes import SearchOptions, search
from superopt.rules.grammar import parse_rule

PRICES = {"Where": CostEstimate(1000.0, "measured"), "Sub": CostEstimate(1500.0, "measured")}


class Doubtful(Roofline):
    """A device on which nobody has timed an Add."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.prices = {**PRICES, "Add": CostEstimate(1000.0, "roofline", sigma)}

    def application(self, op, *args, **kwargs):
        return self.prices.get(op) or super().application(op, *args, **kwargs)


def operators(sigma: float, device: Doubtful | None = None, cheap_us: float = 0.0) -> list[str]:
    rules = [
        parse_rule({"id": "sum", "forall": {"x": "f[m, n]", "y": "f[m, n]"}, "lhs": ["Sub(x, y)"],
                    "rhs": ["Add(x, Neg(y))"]}),
        parse_rule({"id": "mask", "forall": {"c": "b[m, n]", "x": "f[m, n]"}, "lhs": ["Where(c, x, 0.0)"],
                    "rhs": ['Mul(x, Cast(c, to="float32"))']}),
    ]  # fmt: skip
    model = graph(
        {"x": f32(4, 16), "y": f32(4, 16)}, ["o"], [constant("zero", np.float32(0))],
        [op("Greater", "c", "y", "zero"), op("Where", "z", "c", "x", "zero"), op("Sub", "o", "z", "y")],
    )  # fmt: skip
    options = SearchOptions(cache=False, cheap_us=cheap_us)
    return sorted(n.op for n in search(model, rules, device or Doubtful(sigma), options).graph.nodes)


def test_what_is_sure_is_done_without_what_is_in_doubt() -> None:
    assert operators(sigma=0.05) == ["Add", "Cast", "Greater", "Mul", "Neg"]
    assert operators(sigma=1.0) == ["Cast", "Greater", "Mul", "Sub"]


class DoubtfulProducts(Roofline):
    """A device on which nobody has timed a product, and Gemm seems to be the faster one."""

    def __init__(self, sigma: float) -> None:
        super().__init__()
        self.prices = {
            "MatMul": CostEstimate(1000.0, "roofline", sigma),
            "Gemm": CostEstimate(700.0, "roofline", sigma),
        }

    def application(self, op, *args, **kwargs):
        return self.prices.get(op) or super().application(op, *args, **kwargs)


def test_an_operator_that_stays_with_other_weights_is_in_no_doubt() -> None:
    forall = {"x": "f[m, k]", "t": "f[]", "w": "f[k, n]"}
    rules = [
        parse_rule({"id": "scale", "forall": forall, "lhs": ["MatMul(Mul(x, t), w)"], "rhs": ["MatMul(x, Mul(w, t))"]}),
        parse_rule({"id": "gemm", "forall": forall, "lhs": ["MatMul(x, w)"], "rhs": ["Gemm(x, w)"]}),
    ]
    rng = np.random.default_rng(0)
    weights = [constant("t", np.float32(3)), constant("w", rng.normal(size=(16, 8)).astype(np.float32))]
    model = graph({"x": f32(4, 16)}, ["o"], weights, [op("Mul", "s", "x", "t"), op("MatMul", "o", "s", "w")])
    results = [
        [n.op for n in search(model, rules, DoubtfulProducts(s), SearchOptions(cache=False)).graph.nodes]
        for s in (0.01, 0.5)
    ]
    assert results == [["Gemm"], ["MatMul"]]


class Unasked(Doubtful):
    """A device that has not yet been asked what an Add or a Neg takes."""

    timed: list[str]

    def __init__(self, sigma: float) -> None:
        super().__init__(sigma)
        self.timed = []
        self.guesses = {"Add": self.prices.pop("Add"), "Neg": CostEstimate(0.1, "interpolated", 0.5)}

    def has_price(self, op, *args, **kwargs):
        return op not in self.guesses or op in self.timed

    def expected(self, op, *args, **kwargs):
        return self.guesses.get(op) or super().expected(op, *args, **kwargs)

    def application(self, op, *args, **kwargs):
        if op in self.guesses and op not in self.timed:
            self.timed.append(op)
        return self.guesses.get(op) or super().application(op, *args, **kwargs)


def asked(sigma: float, cheap_us: float) -> list[str]:
    device = Unasked(sigma)
    operators(sigma, device, cheap_us)
    return sorted(device.timed)


def test_only_what_may_lose_enough_is_measured() -> None:
    assert asked(0.05, cheap_us=0.0) == ["Add", "Neg"]
    assert asked(0.05, cheap_us=0.1) == ["Add"]  # 1000 µs, of which 50 are open: 20 may be lost
    assert asked(0.05, cheap_us=21.0) == []


def test_what_is_looked_for_beside_a_plan_in_doubt_is_not_measured() -> None:
    device = Unasked(1.0)
    device.guesses["Mul"] = CostEstimate(1400.0, "roofline", 1.0)
    operators(1.0, device, cheap_us=1e4)
    assert device.timed == []


class Answering(Roofline):
    """A device that expects 900 µs of a Sum, and takes what it is told; an Add takes 1000, a Sub 1500."""

    def __init__(self, takes: float, sigma: float) -> None:
        super().__init__()
        self.prices = {**PRICES, "Add": CostEstimate(1000.0, "measured"), "Neg": CostEstimate(0.1, "measured")}
        self.takes, self.sigma, self.timed = takes, sigma, False

    def has_price(self, op, *args, **kwargs):
        return op != "Sum" or self.timed

    def expected(self, op, *args, **kwargs):
        return CostEstimate(900.0, "interpolated", 0.3) if op == "Sum" else super().expected(op, *args, **kwargs)

    def application(self, op, *args, **kwargs):
        if op == "Sum":
            self.timed = True
            return CostEstimate(self.takes, "measured", self.sigma)
        return self.prices.get(op) or super().application(op, *args, **kwargs)


@pytest.mark.parametrize(
    ("takes", "sigma", "chosen"),
    [(850.0, 0.0, ["Neg", "Sum"]), (1003.0, 0.0, ["Neg", "Sum"]), (1020.0, 0.0, ["Add", "Neg", "Neg"]),
     (1020.0, 0.03, ["Neg", "Sum"]), (1080.0, 0.03, ["Add", "Neg", "Neg"])],
)  # fmt: skip
def test_an_answer_changes_the_choice_only_for_what_is_worth_a_question_and_beyond_its_error(
    takes: float, sigma: float, chosen: list[str]
) -> None:
    """What was chosen without it stays in a near tie: else the noise of one timing tells two runs apart."""
    rules = [
        parse_rule({"id": f"by-{n}", "forall": {"x": "f[m, n]", "y": "f[m, n]"}, "lhs": ["Sub(x, y)"], "rhs": [text]})
        for n, text in enumerate(("Neg(Add(y, Neg(x)))", "Sum(x, Neg(y))"))
    ]  # fmt: skip
    model = graph({"x": f32(4, 16), "y": f32(4, 16)}, ["o"], [], [op("Sub", "o", "x", "y")])
    device = Answering(takes, sigma)
    found = search(model, rules, device, SearchOptions(cache=False, cheap_us=10.0))
    assert device.timed
    assert sorted(n.op for n in found.graph.nodes) == chosen
