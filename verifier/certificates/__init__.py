"""Certificates of proofs, and the independent checker that reads them."""
