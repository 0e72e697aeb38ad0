"""Rules of the user's own come first, in the search and in time."""

from __future__ import annotations

from dataclasses import dataclass, field

from superopt.frontend import GraphBuilder
from superopt.ir.graph import Graph
from superopt.passes import SearchResult
from superopt.pipeline.search_runner import search_user_rules_first
from superopt.rules.grammar import parse_rule
from superopt.rules.rule import Rule

TYPES = {"forall": {"x": "f[n]"}, "lhs": ["Neg(Neg(x))"], "rhs": ["x"]}
LIBRARY, OWN = (parse_rule({"id": name, **TYPES}) for name in ("library", "own"))


def graph(name: str) -> Graph:
    b = GraphBuilder(name)
    b.output(b.input("x", "float32", (2,)).relu(), "y")
    return b.build()


@dataclass
class Searches:
    """Costs of results by the graph that a search begins with and whether the library takes part; seconds left."""

    costs: dict[tuple[str, bool], float]
    left: int = 9
    seen: list[tuple[str, bool]] = field(default_factory=list)

    def __call__(self, given: Graph, rules: tuple[Rule, ...]) -> SearchResult:
        key = (given.name, LIBRARY in rules)
        self.seen.append(key)
        self.left -= 1
        before = self.costs.get((given.name, False) if self.left < 0 else key, 9.0)
        changed = given if key not in self.costs or self.left < 0 else graph(f"{given.name}+{int(key[1])}")
        return SearchResult(changed, before_us=10.0, after_us=before, stopped="time" if self.left < 0 else "saturated")


def test_the_better_of_both_is_taken() -> None:
    for plain, name in ((4.0, "m+1"), (6.0, "m+0+1")):
        searches = Searches({("m", False): 9.0, ("m", True): plain, ("m+0", True): 5.0, ("m+0", False): 9.0})
        found = search_user_rules_first(graph("m"), (LIBRARY, OWN), (OWN,), searches)
        assert found.graph.name == name
        assert found.after_us == min(plain, 5.0)


def test_own_rules_apply_to_what_the_library_leaves() -> None:
    searches = Searches({("m", True): 4.0, ("m+1", False): 3.5, ("m+1+0", True): 3.0})
    found = search_user_rules_first(graph("m"), (LIBRARY, OWN), (OWN,), searches)
    assert found.graph.name == "m+1+0+1"
    assert (found.before_us, found.after_us) == (10.0, 3.0)


def test_they_are_searched_before_time_runs_out() -> None:
    searches = Searches({("m", False): 9.0, ("m", True): 4.0, ("m+0", True): 5.0, ("m+0", False): 9.0}, left=2)
    found = search_user_rules_first(graph("m"), (LIBRARY, OWN), (OWN,), searches)
    assert searches.seen[0] == ("m", False)
    assert found.graph.name == "m+0+1"


def test_without_any_it_is_one_search() -> None:
    searches = Searches({("m", True): 4.0})
    assert search_user_rules_first(graph("m"), (LIBRARY,), (), searches).after_us == 4.0
    assert searches.seen == [("m", True)]


def test_what_the_library_leaves_is_left_by_the_library_alone() -> None:
    """A rule learnt from it would not apply to what another own rule has been at."""
    seen: list[tuple[str, frozenset[str]]] = []
    searches = Searches({("m", True): 4.0, ("m+1", False): 3.5})

    def search(given: Graph, rules: tuple[Rule, ...]) -> SearchResult:
        seen.append((given.name, frozenset(r.id for r in rules)))
        return searches(given, rules)

    search_user_rules_first(graph("m"), (LIBRARY, OWN), (OWN,), search)
    assert seen[:3] == [("m", {"own"}), ("m", {"library"}), ("m+1", {"own"})]
