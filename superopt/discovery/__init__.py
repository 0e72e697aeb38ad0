"""Proposing: rules enumerated, generalised, handed to the verifier and minimised. Believes nothing by itself."""
