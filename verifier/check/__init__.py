"""The differential check of a rewritten model against the original in its runtime."""
