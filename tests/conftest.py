"""What holds for all tests: nothing that a slow machine decides. Hypothesis asks the clock otherwise."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("superopt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("superopt")
