"""Rules of the user's own come first: a search that is full of the library's moves may never get round to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from superopt.ir.graph import Graph
from superopt.passes import SearchResult
from superopt.rules import Library, Rule, load_library

__all__ = ["user_rules", "search_user_rules_first"]

Search = Callable[[Graph, tuple[Rule, ...]], SearchResult]


def user_rules(library: Library, rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """Those of the rules that did not come with superopt."""
    built_in = load_library()
    return tuple(r for r in rules if r.id in library and r.id not in built_in)


def search_user_rules_first(
    graph: Graph,
    rules: tuple[Rule, ...],
    own: tuple[Rule, ...],
    search: Search,
    first: SearchResult | None = None,
) -> SearchResult:
    """The best of three: own rules and then all; the others alone; what these leave, by own rules and then by all.

    Regions have room for so many e-nodes, and what grows them least comes first; rules that compute new weights grow
    them most. Few rules are quick, so that they come first in time as well: after a search by all of them there may be
    none rest. Rules that were learnt from what a search by the others leaves apply to that, and to nothing that another
    rule of one's own has been applied to. With no rules of the user's own, it is one search.

    Args:
        graph: the model.
        rules: all rules.
        own: those of the user's own.
        search: searches by some rules.
        first: the result of the first search, where it was made already.
    """
    if not own:
        return search(graph, rules) if first is None else first
    results: list[SearchResult] = []

    def recorded(start: Graph, chosen: tuple[Rule, ...]) -> SearchResult:
        results.append(search(start, chosen))
        return results[-1]

    if first is None:
        first = recorded(graph, own)
    else:
        results.append(first)
    if first.stopped == "interrupted":
        return first
    candidates = [] if first.graph is graph else [_then(first, recorded(first.graph, rules))]
    if not candidates or candidates[0].stopped != "interrupted":
        known = {r.id for r in own}
        plain = recorded(graph, tuple(r for r in rules if r.id not in known))
        candidates.append(plain)
        if plain.graph is not graph and plain.stopped != "interrupted":
            rest = recorded(plain.graph, own)
            if rest.graph is not plain.graph:
                more = _then(plain, rest)
                candidates.append(more if rest.stopped == "interrupted" else _then(more, recorded(rest.graph, rules)))
    stopped = next((f.stopped for f in candidates if f.stopped == "interrupted"), None)
    best = min(reversed(candidates), key=lambda f: f.after_us)
    return replace(best, seconds=sum(m.seconds for m in results), stopped=stopped or best.stopped)


def _then(first: SearchResult, second: SearchResult) -> SearchResult:
    """A search, and another of its result."""
    return replace(second, before_us=first.before_us, applied=(*first.applied, *second.applied))
