"""The parsed rules of the built-in library, kept between runs with the digests under which their verdicts are stored.

Reading and typing 1,500 rules takes seconds. What is kept follows from the library's files and from superopt's code
alone; whether a rule is admitted is still asked of ``proofs.json`` each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from superopt.ir.disk_cache import code_digest, keep, kept
from superopt.ir.poly import Poly, Quotient
from superopt.ir.terms import App, Project, Var
from superopt.rules.floats import FOLDER, KEPT, float_key
from superopt.rules.rule import AttributeScheme, Guard, Rule, TensorScheme
from superopt.rules.scanner import RuleError
from superopt.rules.typing import DIGEST, meaning_digest

__all__ = ["CLASSES", "kept_rules"]

CLASSES: tuple[type, ...] = (App, AttributeScheme, Guard, Poly, Project, Quotient, Rule, TensorScheme, Var)


def kept_rules(files: Sequence[Path], read: Callable[[], Mapping[str, Rule]]) -> Mapping[str, Rule]:
    """The rules of these files by id.

    Args:
        files: the library.
        read: how to read them if nothing is kept.

    Raises:
        RuleError: a row is not a rule.
    """
    name = _digest(files)
    found = kept(FOLDER, name, CLASSES)
    if isinstance(found, list) and all(isinstance(r, Rule) for r in found):
        return {r.id: r for r in found}
    rules = read()
    try:
        for rule in rules.values():
            rule.__dict__[DIGEST] = meaning_digest(rule)
            _ = rule.fingerprint, rule.operators, rule.forward, rule.backward, float_key(rule)  # kept with the rule
    except RuleError:
        return rules  # whoever asks for that rule's verdict is told
    if _digest(files) == name:  # else the files have changed meanwhile
        keep(FOLDER, name, list(rules.values()), KEPT)
    return rules


def _digest(files: Sequence[Path]) -> str:
    digest = hashlib.sha256(code_digest("rules", "ops", "ir").encode())
    for file in files:
        digest.update(f"\n{file.name}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
