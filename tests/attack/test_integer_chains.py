"""Random chains of int8 operators, dynamic and static, judged by ONNX Runtime with its optimisations off."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from attacker.build import MODERATE, Attack, Build
from attacker.campaign import attack_one
from attacker.carriers import around
from attacker.generate import OPSETS, ranked
from attacker.noise import EXACT_OPERATORS

MODELS = 6
TIME_LIMIT = 60.0
LIMITS = {"uint8": (0, 256), "int8": (-128, 128)}


def stored(b: Build, *shape: int, dtype: str) -> str:
    """Constant integers, the limits of the type among them."""
    return b.const(b.rng.integers(*LIMITS[dtype], size=shape), dtype)


def scale(b: Build, *shape: int) -> str:
    return b.const(np.exp(b.rng.normal(-4, 1, shape)), "float32")


def moved(b: Build, x: str) -> str:
    """Integers or reals of two axes through movements that cancel, or not at all."""
    choice = int(b.rng.integers(4))
    if choice == 0:
        return b.op("Transpose", b.op("Transpose", x, perm=[1, 0]), perm=[1, 0])
    if choice == 1:
        return b.op("Squeeze", b.op("Unsqueeze", x, b.ints(0)), b.ints(0))
    if choice == 2:
        return b.op("Reshape", b.op("Reshape", x, b.ints(-1)), b.op("Shape", x))
    return x


def dynamic_layer(b: Build, x: str, quantised: tuple[str, str, str], wide: int, out: int) -> str:
    """A product of integers, scaled, in the form of ONNX Runtime's quantiser; sometimes with columns of their own."""
    q, s, z = quantised
    dtype = str(b.pick("uint8", "int8"))
    columns = (out,) if b.maybe() else ()
    product = b.op("MatMulInteger", moved(b, q), stored(b, wide, out, dtype=dtype), z, stored(b, *columns, dtype=dtype))
    y = b.op("Mul", b.cast(product, "float32"), b.op("Mul", s, scale(b, *columns)))
    y = b.op("Add", y, b.weight(out)) if b.maybe() else y
    return b.op(str(b.pick("Relu", "Sigmoid", "Neg")), y) if b.maybe() else moved(b, y)


def dynamic(b: Build) -> None:
    """Layers that quantise what they read, several of one value, products of their results, a residual sum."""
    wide = int(b.rng.integers(2, 9))
    x = around(b, b.input(2, wide, families=MODERATE), 2)
    for _ in range(int(b.rng.integers(1, 3))):
        quantised = b.ops("DynamicQuantizeLinear", x, count=3)
        again = b.ops("DynamicQuantizeLinear", x, count=3) if b.maybe() else quantised
        y, other = (dynamic_layer(b, x, tuple(q), wide, wide) for q in (quantised, again))  # type: ignore[arg-type]
        x = b.op("Add", x, b.op("Mul", y, 0.5)) if b.maybe() else b.op("Mul", y, b.op("Sigmoid", other))
    b.output(x)


def static(b: Build) -> None:
    """Integers from end to end, with movements between the layers."""
    dtype = str(b.pick("uint8", "int8"))
    weights = dtype if dtype == "int8" else str(b.pick("uint8", "int8"))
    wide, out = (int(n) for n in b.rng.integers(2, 9, 2))
    s, z = scale(b), stored(b, dtype=dtype)
    x = b.op("QuantizeLinear", around(b, b.input(2, wide, families=MODERATE), 2), s, z)
    columns = (out,) if b.maybe() else ()
    after, zero = b.const(1.5, "float32"), stored(b, dtype=dtype)
    y = b.op(
        "QLinearMatMul", moved(b, x), s, z, stored(b, wide, out, dtype=weights), scale(b, *columns),
        stored(b, *columns, dtype=weights), after, zero,
    )  # fmt: skip
    b.output(around(b, b.op("DequantizeLinear", moved(b, y), after, zero), 2), y)


def convolved(b: Build) -> None:
    """A convolution of integers, dynamic or static."""
    inner, out = (int(n) for n in b.rng.integers(1, 5, 2))
    x = around(b, b.input(1, inner, 5, 4, families=MODERATE), 4)
    window = {"pads": [int(p) for p in b.rng.integers(0, 2, 4)], "strides": [int(b.rng.integers(1, 3)), 1]}
    q, s, z = b.ops("DynamicQuantizeLinear", x, count=3)
    if b.maybe():
        product = b.op(
            "ConvInteger", q, stored(b, out, inner, 3, 2, dtype="int8"), z, stored(b, dtype="int8"), **window
        )
        b.output(around(b, b.op("Mul", b.cast(product, "float32"), b.op("Mul", s, scale(b))), 4))
        return
    dtype = str(b.pick("uint8", "int8"))
    filters, zeros = stored(b, out, inner, 3, 2, dtype=dtype), b.const(np.full(out, 5), dtype)
    bias = b.const(b.rng.integers(-999, 999, out), "int32")
    after, zero = scale(b), stored(b, dtype="uint8")
    y = b.op("QLinearConv", q, s, z, filters, scale(b, out), zeros, after, zero, bias, **window)
    b.output(around(b, b.op("DequantizeLinear", y, after, zero), 4))


CHAINS = (dynamic, static, convolved)


def attack(seed: int) -> Attack:
    rng = np.random.default_rng([seed, 57])
    b = Build(rng, dtype="float32", opset=int(rng.choice(OPSETS)))
    chain = CHAINS[seed % len(CHAINS)]
    chain(b)
    return ranked(Attack(seed, "integers", chain.__name__, b.model(), tuple(b.specs), dict(b.sizes)))


@pytest.mark.parametrize(
    "seeds",
    [range(MODELS), *(pytest.param(range(n, n + 50), marks=pytest.mark.slow) for n in (MODELS, 56, 106))],
    ids=lambda seeds: f"{seeds.start} to {seeds.stop}",
)
def test_chains_are_neither_wrong_nor_refused(seeds: range, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attacker.campaign.TARGET", target)
    outcomes = [attack_one(attack(seed), time_limit=TIME_LIMIT, count=8)[0] for seed in seeds]
    failures = [f"{o.seed} {o.motif}: {o.outcome} {o.kind} {o.detail}" for o in outcomes if o.outcome != "right"]
    assert not failures, "\n".join(failures)
    rewritten = Counter(o.motif for o in outcomes if o.rewritten)
    assert all(rewritten[chain.__name__] for chain in CHAINS), rewritten  # what is never rewritten attacks nothing


def test_products_of_integers_round_nothing() -> None:
    """The judge then asks for the same bits, where nothing else stands before them."""
    assert {"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"} <= EXACT_OPERATORS
