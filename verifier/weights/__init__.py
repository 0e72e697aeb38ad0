"""The check of rewrites by the elements of weights."""
