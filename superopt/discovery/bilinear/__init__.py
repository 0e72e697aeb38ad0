"""Algorithms with fewer multiplications, found from the meanings of operators (:mod:`superopt.rules.bilinear`)."""
