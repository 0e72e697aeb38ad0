"""Derivatives of matrix products: products with the other factor, transposed."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from superopt.ops.derivative.declared import Cotangents, Derivative, Site, Tangents, linear_in
from superopt.ops.derivative.expressions import (
    Expr,
    apply,
    expanded,
    is_smaller,
    product,
    reshaped,
    squeezed,
    summed_to,
    turned,
    unsqueezed,
)

__all__ = ["EINSUM", "GEMM", "MATMUL"]


def _matmul(site: Site, given: Tangents) -> Cotangents:
    """``g·Bᵀ`` and ``Aᵀ·g``, summed over what broadcasting added; a vector is a row or a column."""
    if (g := given[0]) is None:
        return {}
    a, b = site.arg(0), site.arg(1)
    if b.rank == 1:
        g = unsqueezed(g, (g.rank,))
    if a.rank == 1:
        g = unsqueezed(g, (g.rank - 1,))
    left = unsqueezed(a, (0,)) if a.rank == 1 else a
    right = unsqueezed(b, (1,)) if b.rank == 1 else b
    found: dict[int, Expr] = {}
    if 0 in site.wanted:
        part = summed_to(product(g, turned(right)), left.shape)
        found[0] = squeezed(part, (0,)) if a.rank == 1 else part
    if 1 in site.wanted:
        if right.rank == 2 and left.rank > 2:  # one product over all rows, instead of a sum of products
            rows = prod(left.shape[:-1], start=1)
            left, g = reshaped(left, (rows, left.shape[-1])), reshaped(g, (rows, g.shape[-1]))
        part = summed_to(product(turned(left), g), right.shape)
        found[1] = squeezed(part, (1,)) if b.rank == 1 else part
    return found


def scaled(a: Expr, b: Expr, site: Site, turn_a: int, turn_b: int) -> Expr:
    """``alpha`` times a product of matrices."""
    made = apply("Gemm", a, b, alpha=site.attributes["alpha"], beta=1.0, transA=turn_a, transB=turn_b)
    if is_smaller(a, made) and (is_smaller(a, b) or not is_smaller(b, made)):
        return replace(made, multiple=lambda f: scaled(a * f, b, site, turn_a, turn_b))
    return replace(made, multiple=lambda f: scaled(a, b * f, site, turn_a, turn_b)) if is_smaller(b, made) else made


def _gemm(site: Site, given: Tangents) -> Cotangents:
    if (g := given[0]) is None:
        return {}
    a, b = site.arg(0), site.arg(1)
    turn_a, turn_b = site.int("transA"), site.int("transB")
    found: dict[int, Expr] = {}
    if 0 in site.wanted:
        found[0] = scaled(b, g, site, turn_b, 1) if turn_a else scaled(g, b, site, 0, 1 - turn_b)
    if 1 in site.wanted:
        found[1] = scaled(g, a, site, 1, turn_a) if turn_b else scaled(a, g, site, 1 - turn_a, 0)
    if 2 in site.wanted and site.attributes["beta"] != 0:
        found[2] = summed_to(g, site.arg(2).shape) * site.number("beta")
    return found


def _gemm_push(site: Site, tangents: Tangents) -> Tangents:
    whole: Expr | None = None
    a, b = site.arg(0), site.arg(1)
    moves = (*tangents, None, None)
    pairs = [(moves[0], b), (a, moves[1])]
    for left, right in pairs:
        if left is not None and right is not None:
            part = scaled(left, right, site, site.int("transA"), site.int("transB"))
            whole = part if whole is None else whole + part
    if (moved := moves[2]) is not None and site.attributes["beta"] != 0:
        part = moved * site.number("beta")
        whole = expanded(part, site.output().shape) if whole is None else whole + part
    return [whole]


def _einsum(site: Site, given: Tangents) -> Cotangents:
    """The equation with the output in an operand's place; a letter that only it has is broadcast.

    A letter twice in one operand is a diagonal: the second one is another letter, tied to the first by an identity.
    """
    if (g := given[0]) is None:
        return {}
    left, _, result = str(site.attributes["equation"]).partition("->")
    terms = left.split(",")
    found: dict[int, Expr] = {}
    for place in sorted(site.wanted):
        x, own = site.arg(place), ""
        inputs, letters = [g], [result]
        for other, letter_list in enumerate(terms):
            if other != place:
                inputs.append(site.arg(other))
                letters.append(letter_list)
        spare = iter(c for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in left + result)
        for letter, size in zip(terms[place], x.shape, strict=True):
            if letter in own:
                again = next(spare)
                letters.append(letter + again)
                inputs.append(apply("EyeLike", shape=(size, size), k=0, dtype=x.dtype.value))
                letter = again
            own += letter
        known = set("".join(letters))
        there = "".join(c for c in own if c in known)
        whole = apply("Einsum", *inputs, equation=f"{','.join(letters)}->{there}")
        missing = [axis for axis, c in enumerate(own) if c not in known]
        found[place] = expanded(unsqueezed(whole, missing), x.shape)
    return found


def _einsum_push(site: Site, tangents: Tangents) -> Tangents:
    return linear_in(*range(len(site.args)))(site, tangents)


MATMUL = Derivative(_matmul, linear_in(0, 1))
GEMM = Derivative(_gemm, _gemm_push)
EINSUM = Derivative(_einsum, _einsum_push)
