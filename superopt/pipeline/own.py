"""Rules of the user's own come first: a search that is full of the library's moves may never get round to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from superopt.ir.graph import Graph
from superopt.rules import Library, Rule, load_library
from superopt.search import SearchResult

__all__ = ["own_rules", "search_own_first"]

Search = Callable[[Graph, tuple[Rule, ...]], SearchResult]


def own_rules(library: Library, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Those of the rules that did not come with superopt."""
    built_in = load_library()
    return tuple(r for r in rules if r.id in library and r.id not in built_in)


def search_own_first(graph: Graph, rules: tuple[Rule, ...], own: tuple[Rule, ...], search: Search) -> SearchResult:
    """The better of two searches: by all rules at once, and by the user's own before all of them.

    Regions have room for so many e-nodes, and what grows them least comes first; rules that compute new weights grow
    them most. With no rules of the user's own, or none that applies, it is one search.
    """
    plain = search(graph, rules)
    if not own or plain.stopped == "interrupted":
        return plain
    first = search(graph, own)
    if first.graph is graph:
        return plain
    second = search(first.graph, rules)
    if second.after_us >= plain.after_us:
        return plain
    return replace(
        second, before_us=first.before_us, applied=(*first.applied, *second.applied),
        seconds=plain.seconds + first.seconds + second.seconds,
    )  # fmt: skip
