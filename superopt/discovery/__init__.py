"""Proposing: rules enumerated, generalised, handed to the verifier and minimised. Believes nothing by itself."""

from __future__ import annotations

from superopt.discovery.config import Config, load_config
from superopt.discovery.derive import Coverage, derive
from superopt.discovery.discover import DiscoveryResult, discover, merge

__all__ = ["Config", "Coverage", "DiscoveryResult", "derive", "discover", "load_config", "merge"]
