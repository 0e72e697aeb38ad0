"""Extraction: the cheapest program of an e-graph, by its cost as a directed acyclic graph."""
