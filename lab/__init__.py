"""The laboratory: benchmarks, ablations and networks that judge superopt. It is not part of the package."""
