"""The laboratory of networks that are in no corpus: what it draws, and what its table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.networks import NETWORKS, drawn
from lab.unseen_network_learning import UnseenNetworkRow, rendered, studied

CORPUS = {p.stem for p in (Path(__file__).parents[2] / "corpus").glob("*.json")}


def test_a_seed_draws_networks_that_are_in_no_corpus() -> None:
    assert drawn(18, 12) == drawn(18, 12) != drawn(19, 12)
    assert len(set(drawn(18, 12))) == 12
    assert not set(NETWORKS) & CORPUS


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_each_is_a_graph_with_weights_of_its_own(name: str) -> None:
    graph = NETWORKS[name]()
    assert graph.name == name
    assert graph.outputs
    assert any(w.data is not None for w in graph.weights)


def test_the_table_counts_networks_with_rules_and_those_that_gain() -> None:
    rows = [
        UnseenNetworkRow(
            "one", ("a = b", "c = d", "e = f"), 1, 0, 0.02, 9, 9, 3.0, 0.9, 0.8, 4, ((0.95, 0.01), (0.85, 0.01))
        ),
        UnseenNetworkRow("two", (), 0, 0, 0.0, 5, 4, 2.0, 1.0, 1.0, 0),
    ]
    text = rendered(rows)
    assert "| one | 2 | 1 | 9 of 9 | 3 | 2.0% | 0.900 | 0.800 | 4 | 0.950 ± 0.010 | 0.850 ± 0.010 |" in text
    assert "2 networks; on 1 there are rules" in text
    assert "on 1 the search applied them, on 1 the result" in text


@pytest.mark.slow
def test_what_is_learnt_from_one_is_proved_and_used(tmp_path: Path) -> None:
    row = studied("dlinear", tmp_path, target="profile:cpu-epyc-2core", seconds=30.0, seed=19, measure=False)
    assert row.parts >= row.looked_at > 0
    assert not row.false
    assert row.learnt <= row.library
