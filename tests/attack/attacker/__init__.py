"""An attacker of superopt: a seeded generator of models, inputs steered by what it knows, and an oracle of its own.

Nothing here reads the product's verifier, evaluator or rules: models are made with ``onnx.helper``, truth is ONNX
Runtime with its optimisations off, and the bound is the original's own rounding, measured by perturbing it.
"""
