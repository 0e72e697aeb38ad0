"""Certificates of the library's rules, made when they are first asked for and kept.

They are kept under the rule's digest, which changes with its text and with what its operators mean, in a folder for
the verifier that made them, whose name changes with its sources. A proof takes seconds and a solver, so it is made in a
process of its own; one at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import superopt
from superopt.ir.disk_cache import code_digest
from superopt.server.http.problems import HttpProblem

__all__ = ["CertificateCache"]

_ROOT = str(Path(superopt.__file__).parents[1])
_MAKE = (
    "import sys; sys.path.append({root!r})\n"
    "from superopt.rules import load_library\n"
    "from superopt.verifier.certificates.certificate import certificate_of\n"
    "verdict, text = certificate_of(load_library()[sys.argv[1]], time_limit=float(sys.argv[2]))\n"
    "sys.stdout.write(text)\n"
    "print('seconds', getattr(verdict, 'seconds', ''), file=sys.stderr)\n"
)
_PROOF = 30.0  # seconds
_PROCESS = 60.0
_TURN = 20.0  # seconds that a request waits for another's proof


class CertificateCache:
    """The certificates of one service."""

    def __init__(self, folder: Path) -> None:
        self._maker = code_digest("verifier")[:16]  # the sources that make certificates and check them
        self._folder = folder / self._maker
        self._turn = threading.Lock()

    def path(self, rule_id: str, digest: str) -> Path:
        """The certificate of a proved rule of the library, as a file.

        Raises:
            HttpProblem: 503 while others wait for a proof, or if it could not be made again here.
        """
        kept = self._folder / f"{digest}.json"
        if kept.is_file():
            return kept
        if not self._turn.acquire(timeout=_TURN):
            raise HttpProblem(503, "unavailable", "another certificate is being made", retry_after=5)
        try:
            if not kept.is_file():
                self._make(rule_id, kept)
        finally:
            self._turn.release()
        return kept

    def tag(self, digest: str) -> str:
        """The ETag of a certificate."""
        return f'"{digest}-{self._maker}"'

    def seconds(self, digest: str) -> float | None:
        """How long the proof took when the certificate was made here."""
        try:
            return float((self._folder / f"{digest}.seconds").read_text())
        except (OSError, ValueError):
            return None

    def _make(self, rule_id: str, kept: Path) -> None:
        command = [sys.executable, "-I", "-c", _MAKE.format(root=_ROOT), rule_id, str(_PROOF)]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROCESS, check=False)
        except subprocess.TimeoutExpired:
            raise HttpProblem(503, "unavailable", "the proof took too long here; try again", retry_after=30) from None
        if done.returncode != 0 or not done.stdout:
            raise HttpProblem(503, "unavailable", "the proof could not be made again here", retry_after=60)
        json.loads(done.stdout)
        word, _, seconds = done.stderr.strip().rpartition(b"\n")[2].partition(b" ")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if word == b"seconds":
            self._place(seconds, kept.with_suffix(".seconds"))
        self._place(done.stdout, kept)

    def _place(self, content: bytes, kept: Path) -> None:
        handle, name = tempfile.mkstemp(dir=self._folder, prefix=".new-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(name, kept)
        except OSError:  # a full disk
            Path(name).unlink(missing_ok=True)
            raise
