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
    """The better of two searches: by the user's own rules and then by all, and by all at once.

    Regions have room for so many e-nodes, and what grows them least comes first; rules that compute new weights grow
    them most. Few rules are quick, so that they come first in time as well: after a search by all of them there may be
    none left. With no rules of the user's own, or none that applies, it is one search.
    """
    first = search(graph, own) if own else None
    if first is None or (first.graph is graph and first.stopped != "interrupted"):
        return search(graph, rules)
    if first.stopped == "interrupted":
        return first
    second = search(first.graph, rules)
    both = replace(
        second, before_us=first.before_us, applied=(*first.applied, *second.applied),
        seconds=first.seconds + second.seconds,
    )  # fmt: skip
    if second.stopped == "interrupted":
        return both
    plain = search(graph, rules)
    seconds = both.seconds + plain.seconds
    return replace(plain if plain.after_us <= both.after_us else both, seconds=seconds)
