"""By hand, where no container engine runs: the commands of ``compose.yaml`` as plain processes, Debian's PostgreSQL.

``python tests/server/compose_check.py`` makes a key, starts the database, the API and the workers as the file says
(on a free port, with a temporary folder as the volume), has a job done with the key and one refused without.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent))
from service_testing import GRAPH, free_port, postgres, tiny, until

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent


def command(service: str) -> list[str]:
    """The command of a service, with our interpreter's programs."""
    text = (ROOT / "compose.yaml").read_text()
    found = re.search(rf"^  {service}:\n(?:    .*\n)*?    command: \[(.*)\]", text, re.MULTILINE)
    assert found is not None, service
    words = [word.strip().strip('"') for word in found[1].split(",")]
    return [str(BIN / words[0]), *words[1:]]


def replicas() -> int:
    """How many workers."""
    found = re.search(r"replicas: (\d+)", (ROOT / "compose.yaml").read_text())
    assert found is not None
    return int(found[1])


def main() -> None:
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as volumes, postgres() as url:
        environment = {
            "PATH": f"{BIN}:{os.defpath}", "SUPEROPT_DATA": f"{volumes}/api", "SUPEROPT_DATABASE": url, "HOME": volumes,
            "SUPEROPT_APART": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }  # fmt: skip
        port = str(free_port())
        api = [port if word == "8000" else word for word in command("api")]
        refused = subprocess.run(api, env=environment, capture_output=True, text=True, check=False)
        assert refused.returncode == 2, refused
        assert "API key" in refused.stderr
        adding = [sys.executable, "-m", "superopt.server.http.keys", "add", "me"]
        key = subprocess.run(adding, env=environment, capture_output=True, text=True, check=True).stdout.strip()
        try:
            processes.append(subprocess.Popen(api, env=environment))
            for number in range(replicas()):
                own = {**environment, "SUPEROPT_DATA": f"{volumes}/{number}"}
                processes.append(subprocess.Popen(command("worker"), env=own))
            drive(f"http://127.0.0.1:{port}", key)
        finally:
            for process in processes:
                process.terminate()
            codes = [process.wait(20) for process in processes]
    assert codes == [0] * len(codes), codes
    print(f"api and {replicas()} workers did a job and ended with {codes}")


def drive(base: str, key: str) -> None:
    with httpx.Client(base_url=base, timeout=30) as http:

        def ready() -> bool:
            try:
                return http.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        until(ready, 60)
        headers = {"Content-Type": GRAPH}
        assert http.post("/v1/jobs", content=tiny(), headers=headers).status_code == 401
        answer = http.post(
            "/v1/jobs?time_limit=1", content=tiny(), headers={**headers, "Authorization": f"Bearer {key}"}
        )
        assert answer.status_code == 202, answer.text
        until(lambda: http.get(answer.headers["location"]).json()["state"] == "succeeded", 60)
        assert http.get(f"{answer.headers['location']}/result").status_code == 200


if __name__ == "__main__":
    main()
