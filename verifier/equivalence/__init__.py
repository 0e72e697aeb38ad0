"""Equivalence of two models: proved region by region, tested, or refuted."""
