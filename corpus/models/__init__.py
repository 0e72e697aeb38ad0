"""The corpus: true architectures at their true sizes, written through the symbolic builder, a file per family."""
