"""The memory that a graph's activations take: in a runtime as it plans them, and ideally."""
