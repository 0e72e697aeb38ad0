"""Exact random testing of rules: in a prime field and over the rationals."""
