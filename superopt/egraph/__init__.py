"""The e-graph: e-classes, e-matching over an index of patterns, rewrites, and equality saturation."""
