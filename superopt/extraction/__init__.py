"""Extraction of the cheapest program from an e-graph. The cost of a shared value counts once."""
