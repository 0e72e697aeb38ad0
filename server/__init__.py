"""The HTTP service and its pages."""

if __name__ != "superopt.server":
    raise ImportError("import superopt.server; server/ is where its source lives")
