"""HTTP: connections, bodies, headers, problems, limits."""
