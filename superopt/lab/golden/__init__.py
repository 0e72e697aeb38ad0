"""Recorded results of optimisations: ``python -m superopt.lab.golden``."""
