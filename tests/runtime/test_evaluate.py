"""The evaluator against NumPy, over floats, residues and rationals, whole and in pieces."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from superopt.ir.size_polynomial import sym
from superopt.ir.types import DType, TensorType
from superopt.ops.operator_semantics import (
    SymbolicOperand,
    TensorComprehension,
    at_least,
    build,
    call,
    combine,
    equal_to,
    largest,
    least,
    tensor,
    total,
    where,
)
from superopt.runtime.comprehension_evaluation import FLOAT64, LIMIT, evaluate

LIMITS = (LIMIT, 64, 1)
rng = np.random.default_rng(7)


def typed(array: np.ndarray) -> TensorType:
    return TensorType(DType.FLOAT32, tuple(int(n) for n in array.shape))


def value(meaning, *arrays: np.ndarray, limit: int = LIMIT, algebra=FLOAT64, sizes=None) -> np.ndarray:
    made: TensorComprehension = build(meaning, [typed(a) for a in arrays]).outputs[0]
    return evaluate(made, arrays, algebra, sizes or {}, limit=limit)


class Rationals:
    """Exact arithmetic on object arrays of Fraction: the smallest algebra."""

    logarithmic = False

    def constant(self, value):
        return np.array(value, dtype=object)

    def integers(self, values):
        return np.vectorize(Fraction, otypes=[object])(values)

    def positions(self, values):
        return values.astype(np.int64)

    def function(self, name, *arrays):
        table = {"add": np.add, "mul": np.multiply, "max": np.maximum, "inv": lambda x: 1 / x}
        return table[name](*arrays)

    def reduce(self, kind, array, axes):
        if kind == "sum":
            return np.asarray(array.sum(axis=axes))
        return np.asarray(array.max(axis=axes))

    def matmul(self, a, b):
        return np.matmul(a, b)


def conv(stride: int, pad: int, dilation: int, group: int = 1):
    def meaning(x: SymbolicOperand, w: SymbolicOperand) -> TensorComprehension:
        n, _, *spatial = x.shape
        outer, inner, *kernel = w.shape
        sizes = [(s + 2 * pad - dilation * (k - 1) - 1) // stride + 1 for s, k in zip(spatial, kernel, strict=True)]

        def at(b, channel, *place):
            def term(c, *taps):
                index = [p * stride + t * dilation - pad for p, t in zip(place, taps, strict=True)]
                out = combine(channel, (group, outer // group))
                return x.padded((b, channel[0] * inner + c, *index)) * w[(out, c, *taps)]

            return total([inner, *kernel], term)

        return tensor([n, (group, outer // group), *sizes], at)

    return meaning


def numpy_conv(x, w, stride, pad, dilation, group):
    padded = np.pad(x, [(0, 0), (0, 0), *[(pad, pad)] * (x.ndim - 2)])
    sizes = [(p - dilation * (k - 1) - 1) // stride + 1 for p, k in zip(padded.shape[2:], w.shape[2:], strict=True)]
    result = np.zeros((x.shape[0], w.shape[0], *sizes))
    for out in range(w.shape[0]):
        first = out // (w.shape[0] // group) * w.shape[1]
        for taps in np.ndindex(*w.shape[2:]):
            cut = [
                slice(t * dilation, t * dilation + (n - 1) * stride + 1, stride)
                for t, n in zip(taps, sizes, strict=True)
            ]
            window = padded[(slice(None), slice(first, first + w.shape[1]), *cut)]
            weights = w[(out, slice(None), *taps)].reshape(-1, *[1] * len(sizes))
            result[:, out] += (window * weights).sum(axis=1)
    return result


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.sampled_from([1, 2, 3]), st.integers(1, 2),
    st.sampled_from(LIMITS),
)  # fmt: skip
def test_convolution(stride, pad, dilation, group, rank, limit):
    x = rng.standard_normal((2, group * 2, *(7, 6)[:rank]))
    w = rng.standard_normal((group * 2, 2, *(3, 2)[:rank]))
    expected = numpy_conv(x, w, stride, pad, dilation, group)
    np.testing.assert_allclose(value(conv(stride, pad, dilation, group), x, w, limit=limit), expected, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4), st.sampled_from(LIMITS))
def test_matrix_product_of_any_size(m, k, n, limit):
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))

    def meaning(a, b):
        return tensor([m, n], lambda i, j: total(k, lambda t: a[i, t] * b[t, j]))

    np.testing.assert_allclose(value(meaning, a, b, limit=limit), a @ b, atol=1e-12)


def test_symbolic_sizes_and_real_attributes():
    m, k = sym("m"), sym("k")
    types = [TensorType(DType.FLOAT32, (m, k))]
    made = build(lambda x: tensor([m], lambda i: total(k, lambda t: x[i, t]) / k + sym("e") * m), types).outputs[0]
    x = rng.standard_normal((3, 5))
    found = evaluate(made, [x], FLOAT64, {"m": 3, "k": 5, "e": np.asarray(0.5)})
    np.testing.assert_allclose(found, x.mean(axis=1) + 1.5)
    with pytest.raises(KeyError, match="k"):
        evaluate(made, [x], FLOAT64, {"m": 3, "e": np.asarray(0.5)})


@pytest.mark.parametrize("limit", LIMITS)
def test_layer_normalisation_and_its_shared_mean(limit):
    x, g = rng.standard_normal((6, 9)), rng.standard_normal(9)

    def meaning(x, g):
        def at(i, j):
            mean = total(9, lambda t: x[i, t]) / 9
            variance = total(9, lambda t: (x[i, t] - mean) * (x[i, t] - mean)) / 9
            return (x[i, j] - mean) / call("sqrt", variance + 1e-5) * g[j]

        return tensor([6, 9], at)

    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * g
    np.testing.assert_allclose(value(meaning, x, g, limit=limit), expected, atol=1e-12)


@pytest.mark.parametrize("limit", LIMITS)
def test_attention_does_not_overflow(limit):
    q, k, v = rng.standard_normal((3, 2, 5, 4)) * 40

    def meaning(q, k, v):
        def score(h, i, t):
            return total(4, lambda c: q[h, i, c] * k[h, t, c])

        def at(h, i, c):
            norm = total(5, lambda u: call("exp", score(h, i, u)))
            return total(5, lambda t: call("exp", score(h, i, t)) / norm * v[h, t, c])

        return tensor([2, 5, 4], at)

    s = q @ k.swapaxes(1, 2)
    e = np.exp(s - s.max(2, keepdims=True))
    np.testing.assert_allclose(value(meaning, q, k, v, limit=limit), e / e.sum(2, keepdims=True) @ v, rtol=1e-9)


def test_logarithms_and_sigmoids_of_large_numbers():
    x = np.array([-1000.0, -1.0, 0.0, 1.0, 1000.0])
    exp = lambda s: call("exp", s)  # noqa: E731

    def each(f):
        return lambda x: tensor([5], lambda i: f(x[i]))

    np.testing.assert_allclose(value(each(lambda s: call("log", 1 + exp(s))), x), np.logaddexp(0, x))
    sigmoid = 0.5 * (1 + np.tanh(x / 2))
    np.testing.assert_allclose(value(each(lambda s: exp(s) / (1 + exp(s))), x), sigmoid, atol=1e-15)
    np.testing.assert_allclose(value(each(lambda s: 1 / (1 + exp(-s))), x), sigmoid, atol=1e-15)
    together = value(lambda x: tensor([], lambda: call("log", total(5, lambda i: exp(x[i])))), x)
    np.testing.assert_allclose(together, 1000.0)
    np.testing.assert_allclose(
        value(lambda x: tensor([], lambda: call("log", total(5, lambda i: exp(x[i])))), np.full(5, -np.inf)), -np.inf
    )


def test_nan_goes_through_relu_and_maximum():
    x = np.array([np.nan, -1.0, np.inf])
    relu = value(lambda x: tensor([3], lambda i: call("max", x[i], 0)), x)
    np.testing.assert_array_equal(relu, [np.nan, 0, np.inf])
    assert np.isnan(value(lambda x: tensor([], lambda: largest(3, lambda i: x[i])), x))


@pytest.mark.parametrize("limit", LIMITS)
def test_reductions_nest_and_may_be_empty(limit):
    x = rng.standard_normal((4, 5, 3))
    nested = value(
        lambda x: tensor([4], lambda i: total(5, lambda j: largest(3, lambda k: x[i, j, k]))), x, limit=limit
    )
    np.testing.assert_allclose(nested, x.max(2).sum(1))
    both = value(lambda x: tensor([], lambda: largest([4, 5], lambda i, j: least(3, lambda k: x[i, j, k]))), x)
    np.testing.assert_allclose(both, x.min(2).max())
    empty = np.zeros((2, 0))
    assert value(lambda x: tensor([2], lambda i: total(0, lambda t: x[i, t])), empty).tolist() == [0, 0]
    assert value(lambda x: tensor([2], lambda i: largest(0, lambda t: x[i, t])), empty).tolist() == [-np.inf] * 2
    repeated = value(lambda x: tensor([5], lambda j: total(7, lambda t: x[0, j, 0])), x)
    np.testing.assert_allclose(repeated, 7 * x[0, :, 0])


@pytest.mark.parametrize("limit", LIMITS)
def test_a_sum_whose_extent_depends_on_the_index(limit):
    x = rng.standard_normal((3, 6))
    found = value(lambda x: tensor([3, 6], lambda i, j: total(j + 1, lambda t: x[i, t])), x, limit=limit)
    np.testing.assert_allclose(found, np.cumsum(x, axis=1))


@pytest.mark.parametrize("limit", LIMITS)
def test_pooling_with_minus_infinity_outside(limit):
    x = rng.standard_normal((2, 9))
    minus = -float("inf")

    def meaning(x):
        return tensor([2, 5], lambda i, j: largest(3, lambda t: x.padded((i, 2 * j + t - 1), minus)))

    padded = np.pad(x, ((0, 0), (1, 1)), constant_values=minus)
    expected = np.stack([padded[:, 2 * j : 2 * j + 3].max(1) for j in range(5)], axis=1)
    np.testing.assert_array_equal(value(meaning, x, limit=limit), expected)


@pytest.mark.parametrize("limit", LIMITS)
def test_guards_split_ranges_or_mask(limit):
    a, b = rng.standard_normal((3, 2)), rng.standard_normal((3, 4))
    joined = value(
        lambda a, b: tensor([3, 6], lambda i, j: where(at_least(1, j), a[i, j], b[i, j - 2])), a, b, limit=limit
    )
    np.testing.assert_array_equal(joined, np.concatenate([a, b], axis=1))
    x = rng.standard_normal((4, 5))
    upper = value(lambda x: tensor([4, 5], lambda i, j: where(at_least(j, i + 1), x[i, j], 0)), x, limit=limit)
    np.testing.assert_array_equal(upper, np.triu(x, 1))
    boxed = value(
        lambda x: tensor(
            [6, 7],
            lambda i, j: where([at_least(i, 1), at_least(4, i), at_least(j, 1), at_least(5, j)], x[i - 1, j - 1], 9),
        ),
        x,
        limit=limit,
    )
    np.testing.assert_array_equal(boxed, np.pad(x, 1, constant_values=9))
    diagonal = value(
        lambda x: tensor([4], lambda i: total(5, lambda j: where(equal_to(i, j), x[i, j], 0))), x, limit=limit
    )
    np.testing.assert_allclose(diagonal, np.diagonal(x))
    np.testing.assert_array_equal(value(lambda x: tensor([4], lambda i: x[i, i]), x), np.diagonal(x))


def test_a_chain_of_thousands_of_guards():
    parts = [rng.standard_normal(1 + i % 2) for i in range(2000)]

    def meaning(*xs):
        size = sum(x.shape[0] for x in xs)

        def at(i):
            start = size - xs[-1].shape[0]
            value = xs[-1][i - start]
            for x in reversed(xs[:-1]):
                value = where(at_least(start - 1, i), x[i - start + x.shape[0]], value)
                start -= x.shape[0]
            return value

        return tensor([size], at)

    np.testing.assert_array_equal(value(meaning, *parts), np.concatenate(parts))


@pytest.mark.parametrize("limit", LIMITS)
def test_transposed_convolution_by_divisibility(limit):
    x, w = rng.standard_normal((2, 5)), rng.standard_normal((2, 3))

    def meaning(x, w):
        def at(j):
            def term(c, t):
                return where(equal_to((j - t) % 2, 0), x.padded((c, (j - t) // 2)) * w[c, t], 0)

            return total([2, 3], term)

        return tensor([11], at)

    expected = np.zeros(11)
    for c, i, t in np.ndindex(2, 5, 3):
        expected[2 * i + t] += x[c, i] * w[c, t]
    np.testing.assert_allclose(value(meaning, x, w, limit=limit), expected, atol=1e-12)


@pytest.mark.parametrize("limit", LIMITS)
def test_positions_that_are_data(limit):
    x, index = rng.standard_normal((5, 4)), np.array([[3, 0], [4, -1]])
    rows = value(lambda x, n: tensor([2, 2, 4], lambda i, j, k: x[n[i, j], k]), x, index, limit=limit)
    np.testing.assert_array_equal(rows[0], x[[3, 0]])
    wrapped = value(
        lambda x, n: tensor([2, 2, 4], lambda i, j, k: x[call("floormod", n[i, j], 5), k]), x, index, limit=limit
    )
    np.testing.assert_array_equal(wrapped, x[index])
    own = np.array([2, 0, 1, 3, 3])
    along = value(lambda x, n: tensor([5], lambda i: x[i, n[i]]), x, own, limit=limit)
    np.testing.assert_array_equal(along, x[np.arange(5), own])
    beyond = value(lambda x, n: tensor([2], lambda i: x.padded((n[0, i] + 4, 0), 7)), x, index, limit=limit)
    np.testing.assert_array_equal(beyond, [7, x[4, 0]])
    enlarged = value(lambda x: tensor([10, 6], lambda i, j: x[i // 2, (j * 4) // 6]), x, limit=limit)
    np.testing.assert_array_equal(enlarged, x[np.arange(10)[:, None] // 2, np.arange(6) * 4 // 6])


def test_digits_merge_and_axes_reverse():
    x = rng.standard_normal((6, 4))
    shuffled = value(lambda x: tensor([(3, 2), 4], lambda d, j: x[d[1] * 3 + d[0], 3 - j]), x)
    np.testing.assert_array_equal(shuffled, x.reshape(2, 3, 4).swapaxes(0, 1).reshape(6, 4)[:, ::-1])


def test_exact_rationals():
    a = np.array([[Fraction(1, 3), Fraction(2)], [Fraction(-1), Fraction(1, 7)]], dtype=object)

    def meaning(a):
        return tensor([2, 2], lambda i, j: call("max", total(2, lambda t: a[i, t] * a.padded((t, j + 1))), 0) + i)

    found = value(meaning, a, algebra=Rationals())
    assert found.tolist() == [[Fraction(20, 21), 0], [1, 1]]


def test_bilinear_products_of_many_factors():
    x, y, z = rng.standard_normal((3, 4)), rng.standard_normal((4, 5)), rng.standard_normal((5, 3))

    def meaning(x, y, z):
        return tensor([3, 3], lambda i, l: total([4, 5], lambda j, k: x[i, j] * y[j, k] * z[k, l] * 2))

    np.testing.assert_allclose(value(meaning, x, y, z), 2 * x @ y @ z)
