"""The rules that TASO's generator finds, found its way and not ours: graphs of operator instances at fixed shapes.

TASO (Jia et al., SOSP 2019) enumerates graphs of at most three of its operator instances over twenty inputs of fixed
shapes, runs each on one random sample with ``relu(x) = x·(x + 1) + 1``, and takes graphs of equal values as a rule. Two
prunings: a rule that another one is up to the names of inputs, and a rule whose two graphs share a part that can be cut
off. This does the same over shared terms, with none of superopt's enumeration: it shares with it no code but the types
that the rules are written with.

A rule found at fixed shapes says nothing of others. It is stated for the most general sizes at which both sides are
well-formed (every axis of every input a size of its own, made equal where an operator needs it); exact tests at other
sizes then tell the sound from the false.

Run as a program, it writes the held-out list: ``python tests/discovery/taso_generator.py tests/discovery/taso``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from taso_rules import Untypable, stated

from superopt.rules import Rule
from superopt.rules.canonical import text_digest
from superopt.rules.library import write_rules
from superopt.rules.scanner import RuleError
from superopt.verifier.exact.testing import test as exact
from superopt.verifier.verdict import RefutedVerdict, TestedVerdict

__all__ = ["LEAVES", "Found", "Generator", "general", "generated", "pairs", "pruned"]

PRIME = 1_048_573
MOST = 3
LEAVES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("x1", "x2", "x3"), (2, 4)),
    **dict.fromkeys(("w1", "w2", "w3"), (4, 4)),
    **dict.fromkeys(("i1", "i2", "i3"), (2, 4, 5, 5)),
    **dict.fromkeys(("w4", "w5", "w6"), (4, 4, 3, 3)),
    **dict.fromkeys(("w7", "w8", "w9"), (4, 4, 1, 3)),
    **dict.fromkeys(("w10", "w11", "w12"), (4, 4, 3, 1)),
    "w13": (4, 1, 3, 3),
    "s0": (),
}
BINARY = {
    (2, 2): ("matmul", "ewadd", "ewmul", "concat0", "concat1"), (2, 0): ("smul",), (4, 0): ("smul",),
    (4, 4): ("ewadd", "ewmul", "conv", "convrelu", "concat0", "concat1"),
}  # fmt: skip
CONSTANTS = ("Cpool", "Iconv", "Imm", "One")
Array = NDArray[np.float64]
Tree = int | tuple["Tree", "Tree"]  # how an axis was put together, in sizes


@dataclass(frozen=True, eq=False)
class Node:
    """One tensor of a graph: what made it, its value, and what it takes.

    Attributes:
        term: nested tuples: operator, output, operands; a leaf is its name.
        splits: per axis, how concatenation put it together.
        applied: the applications below and including this one, by number: a shared one counts once.
    """

    term: object
    value: Array
    splits: tuple[Tree, ...]
    applied: frozenset[int]
    leaf: bool
    place: int

    @property
    def size(self) -> int:
        return len(self.applied)


@dataclass
class Generator:
    """All tensors that at most :data:`MOST` applications make, by size."""

    seed: int = 1
    nodes: list[list[Node]] = field(default_factory=list)
    splits: list[tuple[Node, Node]] = field(default_factory=list)
    shapes: dict[object, tuple[int, ...]] = field(default_factory=dict)
    by_set: dict[frozenset[int], list[Node]] = field(default_factory=dict)
    above: dict[frozenset[int], list[Node]] = field(default_factory=dict)
    count: int = 0

    def run(self) -> None:
        """Enumerate."""
        rng = np.random.default_rng(self.seed)
        leaves = [self._leaf(n, rng.integers(0, PRIME, s).astype(np.float64)) for n, s in LEAVES.items()]
        self.nodes = [leaves]
        self._indexed(leaves)
        for size in range(1, MOST + 1):
            self.nodes.append(list(self._applications(size)))
            if size < MOST:
                self._indexed(self.nodes[size])
        self.shapes = {n.term: n.value.shape for level in self.nodes for n in level}

    def _leaf(self, name: str, value: Array) -> Node:
        self.count += 1
        return Node(name, value, value.shape, frozenset(), True, self.count)

    def _node(self, op: str, output: int, operands: Sequence[Node], value: Array, splits: tuple[Tree, ...]) -> Node:
        applied = frozenset().union(*(o.applied for o in operands)) | {self.count}
        return Node((op, output, *(o.term for o in operands)), value, splits, applied, False, self.count)

    def _applications(self, size: int) -> Iterator[Node]:
        smaller = [n for level in self.nodes[:size] for n in level]
        if size == 1:
            for name in CONSTANTS:
                self.count += 1
                value = constant(name)
                yield self._node(name, 0, (), value, value.shape)
        for node in self.nodes[size - 1]:
            for op in ("relu", "transpose", "poolavg", "poolmax", "enlarge", "split0", "split1"):
                yield from self._apply(op, (node,), size)
        for first in smaller:
            for second in self._partners(first, size):
                for op in BINARY.get((first.value.ndim, second.value.ndim), ()):
                    if op in ("ewadd", "ewmul") and (first.place >= second.place):
                        continue
                    if op.startswith("concat") and (first is second or (second.leaf and first.place > second.place)):
                        continue
                    yield from self._apply(op, (first, second), size)

    def _partners(self, first: Node, size: int) -> Iterator[Node]:
        """Second operands with which exactly ``size`` applications are used."""
        wanted = size - 1
        if first.size == wanted:
            for count in range(wanted + 1):
                for some in combinations(sorted(first.applied), count):
                    yield from self.by_set.get(frozenset(some), ())
            return
        yield from (n for n in self.above.get(first.applied, ()) if n.size == wanted)
        for level in range(1, wanted):
            for second in self.nodes[level]:
                if len(first.applied | second.applied) == wanted:
                    yield second

    def _indexed(self, nodes: Sequence[Node]) -> None:
        """By the applications that a node has, and by those that it has among others."""
        for node in nodes:
            self.by_set.setdefault(node.applied, []).append(node)
            for count in range(node.size):
                for some in combinations(sorted(node.applied), count):
                    self.above.setdefault(frozenset(some), []).append(node)

    def _apply(self, op: str, operands: tuple[Node, ...], size: int) -> Iterator[Node]:
        if size == MOST and not _in_order(operands):
            return
        if op.startswith("split"):
            yield from self._split(operands[0], int(op[-1]))
            return
        found = computed(op, operands)
        if found is not None:
            self.count += 1
            yield self._node(op, 0, operands, *found)

    def _split(self, node: Node, axis: int) -> Iterator[Node]:
        if node.value.ndim not in (2, 4) or not isinstance(node.splits[axis], tuple):
            return
        first, second = node.splits[axis]  # type: ignore[misc]
        at = _total(first)
        self.count += 1
        parts = [np.take(node.value, range(at), axis), np.take(node.value, range(at, node.value.shape[axis]), axis)]
        made = []
        for output, (part, tree) in enumerate(zip(parts, (first, second), strict=True)):
            splits = (*node.splits[:axis], tree, *node.splits[axis + 1 :])
            made.append(self._node(f"split{axis}", output, (node,), part, splits))
        self.splits.append((made[0], made[1]))
        yield from made


def constant(name: str) -> Array:
    """TASO's constants: an averaging window (here a summing one), identities, and ones."""
    if name == "Cpool":
        return np.ones((4, 1, 3, 3))
    if name == "Imm":
        return np.eye(4)
    if name == "One":
        return np.ones((2, 4, 5, 5))
    made = np.zeros((4, 4, 3, 3))
    made[range(4), range(4), 1, 1] = 1
    return made


def _total(tree: Tree) -> int:
    return tree if isinstance(tree, int) else _total(tree[0]) + _total(tree[1])


def computed(op: str, operands: Sequence[Node]) -> tuple[Array, tuple[Tree, ...]] | None:
    """Value and axes of an application, ``None`` where TASO does not apply the operator."""
    a = operands[0]
    rank = a.value.ndim
    if len(operands) == 1:
        return _unary(op, a, rank)
    b = operands[1]
    match op:
        case "matmul" if rank == b.value.ndim == 2 and a.value.shape[1] == b.value.shape[0]:
            return (a.value @ b.value) % PRIME, (a.splits[0], b.splits[1])
        case "ewadd" | "ewmul" if rank and a.value.shape == b.value.shape:
            value = a.value + b.value if op == "ewadd" else a.value * b.value
            same = [s if s == t else _total(s) for s, t in zip(a.splits, b.splits, strict=True)]
            return value % PRIME, tuple(same)
        case "smul" if rank and b.value.ndim == 0:
            return (a.value * b.value) % PRIME, a.splits
        case "conv" | "convrelu" if rank == b.value.ndim == 4 and b.value.shape[2:] in ((3, 3), (1, 3), (3, 1)):
            return _conv(op, a, b)
        case "concat0" | "concat1" if rank == b.value.ndim and rank in (2, 4):
            axis = int(op[-1])
            if all(p == q for i, (p, q) in enumerate(zip(a.value.shape, b.value.shape, strict=True)) if i != axis):
                same = [s if s == t else _total(s) for s, t in zip(a.splits, b.splits, strict=True)]
                same[axis] = (a.splits[axis], b.splits[axis])
                return np.concatenate([a.value, b.value], axis), tuple(same)
    return None


def _unary(op: str, a: Node, rank: int) -> tuple[Array, tuple[Tree, ...]] | None:
    match op:
        case "relu" if rank:
            return (a.value * (a.value + 1) + 1) % PRIME, a.splits
        case "transpose" if rank == 2:
            return a.value.T, a.splits[::-1]
        case "poolavg" | "poolmax" if rank == 4:
            windows = _windows(a.value, 3, 3)
            return (windows.sum((-1, -2)) % PRIME if op == "poolavg" else windows.max((-1, -2))), a.splits
        case "enlarge" if rank == 4 and a.leaf and a.value.shape[2:] in ((1, 3), (3, 1)):
            h, w = ((3 - n) // 2 for n in a.value.shape[2:])
            return np.pad(a.value, ((0, 0), (0, 0), (h, h), (w, w))), (*a.splits[:2], 3, 3)
    return None


def _windows(value: Array, height: int, width: int) -> Array:
    h, w = height // 2, width // 2
    padded = np.pad(value, ((0, 0), (0, 0), (h, h), (w, w)))
    return np.lib.stride_tricks.sliding_window_view(padded, (height, width), (2, 3))


def _conv(op: str, x: Node, k: Node) -> tuple[Array, tuple[Tree, ...]] | None:
    """Stride 1, the same size out as in; as many groups as the channels say."""
    n, channels, height, width = x.value.shape
    out, each, u, v = k.value.shape
    if channels % each or out % (channels // each):
        return None
    group = channels // each
    windows = _windows(x.value, u, v).reshape(n, group, each, height, width, u * v)
    kernels = k.value.reshape(group, out // group, each, u * v)
    columns = windows.transpose(1, 0, 3, 4, 2, 5).reshape(group, n * height * width, each * u * v)
    value = (columns @ kernels.reshape(group, out // group, each * u * v).transpose(0, 2, 1)) % PRIME
    value = value.reshape(group, n, height, width, out // group).transpose(1, 0, 4, 2, 3).reshape(n, out, height, width)
    if op == "convrelu":
        value = (value * (value + 1) + 1) % PRIME
    return value, (x.splits[0], k.splits[0], _total(x.splits[2]), _total(x.splits[3]))


_GROUPS = {n: (s, n[0] == "i") for n, s in LEAVES.items()}


def _in_order(operands: Sequence[Node]) -> bool:
    """Whether the inputs of each shape that occur are the first ones of it: any other term is a renaming."""
    used = {n for o in operands for n in names(o.term)}
    by_kind: dict[object, list[str]] = {}
    for name in LEAVES:
        by_kind.setdefault(_GROUPS[name], []).append(name)
    return all(
        [n in used for n in group] == sorted((n in used for n in group), reverse=True) for group in by_kind.values()
    )


def names(term: object) -> list[str]:
    """Inputs, in reading order."""
    if isinstance(term, str):
        return [term]
    assert isinstance(term, tuple)
    return [n for t in term[2:] for n in names(t)]


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pairs(generator: Generator) -> Iterator[tuple[tuple[object, ...], tuple[object, ...]]]:
    """Equal graphs: with one output, and with the two of a Split on one side."""
    first: dict[tuple[tuple[int, ...], bytes], list[Node]] = {}
    for node in (n for level in generator.nodes for n in level):
        known = first.setdefault((node.value.shape, node.value.tobytes()), [])
        if known:
            yield (node.term,), (known[0].term,)
        known.append(node)
    for one, two in generator.splits:
        left, right = (first[n.value.shape, n.value.tobytes()] for n in (one, two))
        for a in left[:6]:
            for b in right[:6]:
                if a is not one and len(a.applied | b.applied) <= MOST and not _is_split(a) and not _is_split(b):
                    yield (a.term, b.term), (one.term, two.term)


def _is_split(node: Node) -> bool:
    return isinstance(node.term, tuple) and str(node.term[0]).startswith("split")


def pruned(found: Iterator[tuple[tuple[object, ...], tuple[object, ...]]]) -> Iterator[tuple[tuple[object, ...], ...]]:
    """Without those that share a part to be cut off, and one of those that differ in names of inputs."""
    seen: set[str] = set()
    for left, right in found:
        if any(_common(a, b) for a, b in zip(left, right, strict=True)) or _needless(left, right):
            continue
        texts = sorted(_renamed_texts(left, right))
        if texts[0] not in seen:
            seen.add(texts[0])
            yield left, right


def general(
    found: Iterator[tuple[tuple[object, ...], ...]], shapes: Mapping[object, tuple[int, ...]]
) -> list[tuple[tuple[object, ...], ...]]:
    """Without those that are another one with terms put for its inputs: that one says them, too.

    TASO keeps such instances (its list has ``Relu(Add(x, y))`` where ``Relu(z)`` says it); what a library derives of
    the general rules, it derives of these.
    """
    ordered = sorted(found, key=lambda p: (len(p[0]), sum(map(_weight, (*p[0], *p[1]))), str(p)))
    kept: dict[object, list[tuple[tuple[object, ...], tuple[object, ...]]]] = {}
    result = []
    for left, right in ordered:
        if not any(
            _instance((*a, *b), (*left, *right), shapes)
            for root in {_root(left[0]), _root(right[0]), None}
            for a, b in kept.get((len(left), root), ())
        ):
            result.append((left, right))
            for a, b in ((left, right), (right, left)):
                kept.setdefault((len(left), _root(a[0])), []).append((a, b))
    return result


def _root(term: object) -> object:
    return term[:2] if isinstance(term, tuple) else None


def _weight(term: object) -> int:
    return 1 + sum(map(_weight, term[2:])) if isinstance(term, tuple) else 1


def _instance(patterns: Sequence[object], terms: Sequence[object], shapes: Mapping[object, tuple[int, ...]]) -> bool:
    """Whether terms put for the inputs of the patterns give the terms; an input's kernel size is part of its type."""
    bound: dict[str, object] = {}
    stack = list(zip(patterns, terms, strict=True))
    while stack:
        pattern, term = stack.pop()
        if isinstance(pattern, str):
            if bound.setdefault(pattern, term) != term or not _fits(LEAVES[pattern], shapes[term]):
                return False
        elif not isinstance(term, tuple) or pattern[:2] != term[:2]:  # type: ignore[index]
            return False
        else:
            stack.extend(zip(pattern[2:], term[2:], strict=True))  # type: ignore[index]
    return True


def _fits(wanted: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    if len(wanted) != len(shape):
        return False
    if len(wanted) != 4 or wanted[2:] == (5, 5):
        return True
    return wanted[2:] == shape[2:] and (wanted[1] != 1 or shape[1] == 1)


def _common(a: object, b: object) -> bool:
    """The same last operator on operands of which all but one are alike: the rule without it says the same."""
    if not (isinstance(a, tuple) and isinstance(b, tuple)) or a[:2] != b[:2] or len(a) != len(b):
        return False
    return len(a) > 2 and sum(p != q for p, q in zip(a[2:], b[2:], strict=True)) <= 1


def _needless(left: Sequence[object], right: Sequence[object]) -> bool:
    """A part that both sides have, and that could be an input: no input below it occurs elsewhere."""
    sides = [[t for root in side for t in _parts(root)] for side in (left, right)]
    for part in {t for t in sides[0] if isinstance(t, tuple) and len(t) > 2} & set(sides[1]):
        hidden = set(names(part))
        outside = [n for side in (left, right) for root in side for n in _outside(root, part)]
        if not hidden & set(outside):
            return True
    return False


def _parts(term: object) -> Iterator[object]:
    yield term
    if isinstance(term, tuple):
        for t in term[2:]:
            yield from _parts(t)


def _outside(term: object, part: object) -> list[str]:
    if term == part:
        return []
    return [term] if isinstance(term, str) else [n for t in term[2:] for n in _outside(t, part)]  # type: ignore[index]


def _renamed_texts(left: Sequence[object], right: Sequence[object]) -> Iterator[str]:
    """The rule's text for every renaming of inputs of one kind, either way round."""
    for first, second in ((left, right), (right, left)):
        order = dict.fromkeys(n for t in (*first, *second) for n in names(t))
        counts: dict[object, int] = {}
        renaming: dict[str, str] = {}
        for name in order:
            kind = _GROUPS[name]
            counts[kind] = counts.get(kind, 0) + 1
            renaming[name] = f"{kind}#{counts[kind]}"
        yield f"{[_rename(t, renaming) for t in first]} = {[_rename(t, renaming) for t in second]}"


def _rename(term: object, renaming: Mapping[str, str]) -> object:
    if isinstance(term, str):
        return renaming[term]
    assert isinstance(term, tuple)
    return (*term[:2], *(_rename(t, renaming) for t in term[2:]))


@dataclass(frozen=True)
class Found:
    """What came of a run: rules by verdict, and the counts on the way.

    Attributes:
        pairs: equal graphs; ``pruned`` of them after TASO's two prunings, ``general`` after dropping instances.
        left_out: not to be stated for symbolic sizes, or alike in our terms (a convolution with and without Relu).
    """

    sound: tuple[Rule, ...]
    false: tuple[Rule, ...]
    pairs: int
    pruned: int
    general: int
    left_out: int


def generated(seed: int = 1) -> Found:
    """Enumerate, prune, state for the most general sizes, and test at other sizes."""
    generator = Generator(seed)
    generator.run()
    equal = list(pairs(generator))
    few = list(pruned(iter(equal)))
    chosen = general(iter(few), generator.shapes)
    stated_rules: dict[str, Rule] = {}
    left_out = 0
    for left, right in chosen:
        try:
            rule = stated(left, right, LEAVES)
        except (Untypable, RuleError):
            left_out += 1
            continue
        if rule.lhs == rule.rhs:
            left_out += 1
        else:
            stated_rules.setdefault(text_digest(rule), rule)
    sound, false = [], []
    for rule in stated_rules.values():
        verdict = exact(rule, seed=seed, trials=6)
        if isinstance(verdict, TestedVerdict | RefutedVerdict):
            (sound if isinstance(verdict, TestedVerdict) else false).append(rule)
    return Found(tuple(sound), tuple(false), len(equal), len(few), len(chosen), left_out)


def main(folder: str) -> None:
    """Write ``sound.toml`` to a folder, the false ones to ``false/false.toml``."""
    found = generated()
    heading = "Found as TASO's generator finds rules; written by tests/discovery/taso_generator.py, do not edit."
    for name, rules in (("sound.toml", found.sound), ("false/false.toml", found.false)):
        file = Path(folder) / name
        file.parent.mkdir(parents=True, exist_ok=True)
        write_rules(file, [_numbered(r, i) for i, r in enumerate(rules)], heading=heading)
    print(
        f"{found.pairs} equal graphs, {found.pruned} after TASO's prunings, {found.general} general ones; "
        f"{len(found.sound)} sound, {len(found.false)} false, {found.left_out} alike or not to be stated"
    )


def _numbered(rule: Rule, number: int) -> Rule:
    return replace(rule, id=f"taso-{number:04}", origin="TASO's method")


if __name__ == "__main__":
    main(sys.argv[1])
