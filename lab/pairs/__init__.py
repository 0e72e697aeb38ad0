"""Small compositions for which a person finds a cheaper equal: which of them optimisation finds."""
