"""Regions: parts of a program, each searched as an e-graph; its plan is replayed wherever the part repeats."""
