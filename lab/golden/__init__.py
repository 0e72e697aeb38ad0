"""Recorded results of optimisations: ``python -m lab.golden``."""
