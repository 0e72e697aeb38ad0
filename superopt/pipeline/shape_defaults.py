"""Sizes at which a model with open ones is costed and timed, where its user does not say.

A symbolic dimension counts as 8. That is no image: a network for images of 8×8 does other work than the same one for
224×224 (a result that took 1.15 of a text recogniser's time was measured at 0.57), and many refuse it. So height and
width of images are 224, the size that most are trained at, or the nearest that the model accepts and a core runs in
about a second, by the operations it takes; images come one at a time. 8 samples are no sound, either: a network with
windows over an open axis that refuses them is costed at the first length that
it accepts. Which of two graphs is faster may also depend on how many examples come at once: what trades one kind of
work for another has to be faster for 8, and not slower for one. Where 8 are much work (images of a stated size, say),
the model is costed at one: a kernel that one example keeps busy takes 8 times as long for 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from superopt.cost.graph_costs import work
from superopt.ir.graph import Graph
from superopt.ir.size_polynomial import Dim, SizePolynomial, symbols
from superopt.ir.symbolic_size_binding import UNSPECIFIED
from superopt.ir.types import TensorType
from superopt.ops.shape_inference import infer, is_symbol
from superopt.runtime.resource_limits import refuse_unbounded
from superopt.verifier.check.differential import make_inputs
from superopt.verifier.check.shared_weight_sessions import REFUSALS, SharedWeightSessions, attempt

__all__ = ["single_example_sizes", "default_sizes", "sizes_text"]


@dataclass(frozen=True)
class DefaultShapePolicy:
    """The sizes that open dimensions are costed at.

    Attributes:
        channels: channels of an image, at most: grey, RGB, and one that says what is seen through.
        images: heights and widths: those of ImageNet; lines of text, as recognisers take them; what is refused
            above is small.
        lengths: of sound, windows of which are up to 2,048 samples.
        operations: operations of a run at a size that is chosen for a model: a second of a core. Counted, because
            seconds would make the load of the machine choose the size.
        most_operations: of a model that takes no smaller size: five seconds.
        seconds: seconds of a run, in which a model does more than what can be counted of it.
        heavy_operations: operations of a run: a quarter of a second of a core.
    """

    channels: int = 4
    images: tuple[tuple[int, int], ...] = ((224, 224), (48, 224), (32, 224), (64, 64), (32, 32))
    lengths: tuple[int, ...] = (64, 512, 4096, 16384)
    operations: float = 6e10
    most_operations: float = 3e11
    seconds: float = 60.0
    heavy_operations: float = 1.6e10


POLICY = DefaultShapePolicy()
_WINDOWS = frozenset({"AveragePool", "Conv", "ConvTranspose", "DFT", "MaxPool", "STFT"})


def default_sizes(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    """The given sizes, and those of images and sounds that are open: the first which the model accepts; else none of
    its own. Besides, one example where several are much work.

    Args:
        graph: a checked graph.
        given: sizes that its user says.
    """
    sizes = _accepted(graph, given)
    one = single_example_sizes(graph, sizes, given)
    if one is not None and work(graph, infer(graph, sizes), sizes).flops > POLICY.heavy_operations:
        return one
    return sizes


def _accepted(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    tall, wide, first = (names - given.keys() for names in _images(graph))
    if not tall | wide:
        return _sizes_for_windows(graph, given)
    with SharedWeightSessions() as bench:
        each = [
            {**dict.fromkeys(first, 1), **dict.fromkeys(tall, height), **dict.fromkeys(wide, width), **given}
            for height, width in (POLICY.images if tall else POLICY.images[:1])
        ]
        done = [work(graph, infer(graph, sizes), sizes).flops for sizes in each]
        light = [sizes for sizes, flops in zip(each, done, strict=True) if flops <= POLICY.operations]
        heavy = [
            sizes
            for sizes, flops in zip(each, done, strict=True)
            if POLICY.operations < flops <= POLICY.most_operations
        ]
        for sizes in (*light, *reversed(heavy)):
            if _accepts(graph, sizes, bench):
                return sizes
    return dict(given)


def _sizes_for_windows(graph: Graph, given: Mapping[str, int]) -> dict[str, int]:
    """The given sizes, and those of axes that windows may go along: none if the model accepts what counts as usual."""
    behind = [d for t in _kinds(graph) if t.dtype.is_float for d in (t.shape or ())[1:] if is_symbol(d)]
    long = {n for d in behind for n in symbols(d)} - given.keys()
    if not long or not any(node.op in _WINDOWS for node in graph.nodes):
        return dict(given)
    usual = dict.fromkeys({n for t in _kinds(graph) for n in _names(t)}, UNSPECIFIED)
    with SharedWeightSessions() as bench:
        for own in ({}, *(dict.fromkeys(long, length) for length in POLICY.lengths)):
            if _accepts(graph, {**usual, **own, **given}, bench):
                return {**own, **given}
    return dict(given)


def single_example_sizes(graph: Graph, sizes: Mapping[str, int], given: Mapping[str, int]) -> dict[str, int] | None:
    """The sizes at which a graph's inputs hold one example; ``None`` where they are that, or where its user said how
    many.

    Args:
        graph: a checked graph.
        sizes: what it is costed at.
        given: those that its user said.
    """
    firsts = {n for t in _kinds(graph) for d in (t.shape or ())[:1] if is_symbol(d) for n in symbols(d)}
    open_ones = {n for n in firsts if n not in given and sizes.get(n) != 1}
    return {**sizes, **dict.fromkeys(open_ones, 1)} if open_ones else None


def sizes_text(graph: Graph, sizes: Mapping[str, int]) -> str:
    """The sizes of a graph's open dimensions, in words: ``batch=8, height=224``; nothing where all are fixed."""
    return ", ".join(f"{n}={size}" for n, size in sorted(sizes.items()) if any(n in _names(t) for t in _kinds(graph)))


def _names(kind: TensorType) -> frozenset[str]:
    return frozenset(n for d in kind.shape or () for n in symbols(d))


def _kinds(graph: Graph) -> list[TensorType]:
    return [v.type for v in graph.inputs if isinstance(v.type, TensorType)]


def _images(graph: Graph) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The open heights, widths, and numbers of images of a graph's inputs, channels first or last."""
    found: tuple[set[str], set[str], set[str]] = (set(), set(), set())
    for kind in _kinds(graph):
        shape = kind.shape or ()
        if len(shape) < 4:
            continue
        if _is_colours(shape[1]):
            axes = len(shape) - 2, len(shape) - 1
        elif _is_colours(shape[-1]):
            axes = len(shape) - 3, len(shape) - 2
        else:
            continue
        for names, axis in zip(found, (*axes, 0), strict=True):
            if is_symbol(shape[axis]):
                names |= symbols(shape[axis])
    tall, wide, first = map(frozenset, found)
    return tall, wide - tall, first - tall - wide


def _is_colours(size: Dim) -> bool:
    return not isinstance(size, SizePolynomial) and 1 <= size <= POLICY.channels


def _accepts(graph: Graph, sizes: Mapping[str, int], bench: SharedWeightSessions) -> bool:
    try:
        refuse_unbounded(graph, sizes)
        feeds = make_inputs(graph, 0, "normal", sizes=sizes)
        return attempt(bench.session(graph, optimise=True), feeds, time_limit=POLICY.seconds) is not None
    except REFUSALS:
        return False
