"""Bilinear algorithms: found from meanings, refused when they are false, and what they come to as graphs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from sampling import slow

from superopt.discovery.bilinear.find import TILES, find, tile_named
from superopt.discovery.bilinear.tensors import tensor_of
from superopt.ir.errors import NotEquivalent, UsageError
from superopt.rules.bilinear import (
    BilinearAlgorithm,
    BilinearTile,
    Matrix,
    algorithms,
    conv_tile,
    load_algorithms,
    matmul_tile,
    save_algorithms,
    shared_sums,
)
from superopt.verifier.exact.bilinear import check_algorithm

FEW = {"steps": 60_000, "walks": 2}


def test_a_tensor_is_what_the_meaning_says() -> None:
    tensor = tensor_of(conv_tile([2], [3]))
    assert tensor.shape == (4, 3, 2)
    assert all(tensor[i, j, k] == (i == j + k) for i, j, k in product(range(4), range(3), range(2)))
    assert sum(v != 0 for v in tensor_of(matmul_tile(2, 3, 4)).flat) == 24


@pytest.mark.parametrize("root", ["Mul(x, x)", "Add(x, w)", "Exp(Mul(x, w))", "Mul(w, w)", "Add(Mul(x, w), x)"])
def test_what_is_not_bilinear_is_refused_by_finder_and_check(root: str) -> None:
    tile = BilinearTile("odd", {"x": "f[1]"}, {"w": "f[1]"}, (root,))
    with pytest.raises(UsageError, match="bilinear"):
        tensor_of(tile)
    one: Matrix = ((Fraction(1),),)
    with pytest.raises(NotEquivalent):
        check_algorithm(BilinearAlgorithm(tile, one, one, one))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("complex", 3),
        ("conv:2:3", 4),
        slow("conv:4:3", 6),
        slow("conv:2:5", 6),
        ("matmul:2:2:2", 7),
        slow("matmul:2:2:3", 11),
        ("conv:3:3:2", 7),
        slow("conv:4:4:2", 10),
        ("conv:3:4:3", 10),
    ],
)
def test_known_ranks_are_found_again(name: str, rank: int) -> None:
    found = find(tile_named(name), **FEW)
    assert found.algorithm is not None
    assert found.algorithm.rank == rank < found.products
    assert found.coefficients == check_algorithm(found.algorithm)


@pytest.mark.parametrize("name", ["complex", "matmul:2:2:2"])
def test_the_same_algorithm_is_found_again(name: str) -> None:
    one, other = (find(tile_named(name), **FEW).algorithm for _ in range(2))
    assert one is not None
    assert other is not None
    assert (one.data, one.weights, one.outputs) == (other.data, other.weights, other.outputs)


def test_what_falls_apart_is_found_part_by_part() -> None:
    """Even places of the data meet the even taps alone, and odd ones the odd taps; nothing says so but the tensor."""
    found = find(tile_named("conv:4:3:2")).algorithm
    assert found is not None
    assert (found.origin["finder"], found.origin["points"][1:]) == ("parts", ["directly"])
    for row, taps in zip(found.data, found.weights, strict=True):
        sides = {n % 2 for n, v in enumerate(row) if v} | {n % 2 for n, v in enumerate(taps) if v}
        assert len(sides) == 1


def test_every_shipped_algorithm_is_exact_and_every_change_of_it_is_noticed() -> None:
    assert tuple(algorithms()) == TILES
    for algorithm in algorithms().values():
        check_algorithm(algorithm)
    small = algorithms()["conv:2:3"]
    for side in ("data", "weights", "outputs"):
        matrix = getattr(small, side)
        for i, j in product(range(len(matrix)), range(len(matrix[0]))):
            rows = [list(row) for row in matrix]
            rows[i][j] += Fraction(1, 7)
            with pytest.raises(NotEquivalent):
                check_algorithm(replace(small, **{side: tuple(map(tuple, rows))}))
    with pytest.raises(NotEquivalent, match="matrix of its weights"):
        check_algorithm(replace(small, data=small.data[:-1]))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    save_algorithms(list(algorithms().values()), tmp_path / "a.json")
    assert load_algorithms(tmp_path / "a.json") == tuple(algorithms().values())
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(UsageError):
        load_algorithms(tmp_path / "b.json")


@pytest.mark.parametrize(
    "name", ["conv", "conv:2", "matmul:2:2", "conv:0:3", "conv:2x2:3", "conv:2:3:0", "complex:1", "dft:4"]
)
def test_a_tile_that_there_is_not_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="no tile"):
        tile_named(name)


def test_shared_sums_are_the_rows() -> None:
    for algorithm in algorithms().values():
        for matrix in (algorithm.data, algorithm.outputs):
            values = [Fraction(3 * i * i + 1, i + 2) for i in range(len(matrix[0]))]
            plan = shared_sums(matrix)
            known = list(values)
            for i, j, factor in plan.shared:
                known.append(known[i] + factor * known[j])
            for row, sums in zip(matrix, plan.rows, strict=True):
                assert sum(c * known[i] for i, c in sums.items()) == sum(
                    c * v for c, v in zip(row, values, strict=True)
                )


def test_errors_in_floating_point_stay_below_the_bound() -> None:
    rng = np.random.default_rng(0)
    for algorithm in algorithms().values():
        data, weights, outputs = (
            np.array([[float(v) for v in row] for row in m])
            for m in (algorithm.data, algorithm.weights, algorithm.outputs)
        )
        tensor = np.einsum("ri,rj,kr->ijk", data, weights, outputs)
        x, w = rng.uniform(-1, 1, (2, 200, max(tensor.shape)))
        x, w = x[:, : tensor.shape[0]], w[:, : tensor.shape[1]]
        exact = np.einsum("ijk,ni,nj->nk", tensor, x, w)
        f = np.float32
        made = ((x.astype(f) @ data.T.astype(f)) * (w @ weights.T).astype(f)) @ outputs.T.astype(f)
        unit = float(np.finfo(f).eps) / 2
        terms = (np.abs(tensor) > 1e-9).sum(axis=(0, 1)).max()
        steps = max(len(r) for r in (*algorithm.data, *algorithm.outputs)) * 2 + 4  # roundings that one value meets
        assert np.abs(made - exact).max() <= unit * steps * algorithm.bound * terms


def test_blocks_of_blocks_are_found_from_smaller_ones() -> None:
    found = find(tile_named("matmul:4:4:4"), **FEW)
    assert found.algorithm is not None
    assert (found.products, found.algorithm.rank) == (64, 49)
    assert found.algorithm.origin["of"] == ["matmul:2:2:2", "matmul:2:2:2"]
