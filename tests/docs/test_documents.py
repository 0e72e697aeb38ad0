"""Documents say what holds: commands, options, files and functions exist, cheap examples run, tables are their data.

Of shell blocks, lines that begin with ``superopt`` are run, but for those in ``NOT_RUN`` and those with a placeholder.
Lines with ``curl``, ``docker``, ``pip``, ``dask`` and ``mpiexec`` need a service, an engine or a network.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx.defs
import pytest
import typer
from source_files import sources
from typer.testing import CliRunner

from superopt.cli import app
from superopt.passes.saturation_search import PASSES as SEARCH_PASSES
from superopt.passes.saturation_search import PREPARATION
from superopt.pipeline.driver import PASSES
from superopt.rules import load_library

ROOT = Path(__file__).resolve().parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "tests" / "README.md", *DOCS]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What a reader has to replace: a name in capitals, a file of his own, something left out.
PLACEHOLDER = re.compile(
    r"\b[A-Z]{2,}\b|…|\*|\bmodel\.onnx|\bmodels/|\b[ab]\.onnx|faster|step\.onnx|topology|patch|own\b"
)
NOT_RUN = {  # the beginning of a command → why the test leaves it out
    "superopt serve": "does not end",
    "superopt worker": "does not end",
    "superopt discover": "minutes",
    "superopt rules derive": "ten seconds; tests/discovery/test_untyped.py does the same",
    "superopt rules floats": "writes into the repository, or minutes",
    "superopt rules prove": "minutes; writes into the repository",
    "superopt rules gains": "seconds; tests/discovery/test_gain.py",
    "superopt algorithms": "seconds each; tests/discovery/test_bilinear.py",
    "superopt optimize corpus": "half a minute and a quiet machine: make demo",
    "superopt optimize docs/example.json --target profile:h200": "ten seconds: another profile is prepared",
    "superopt optimize docs/example.json --float strict": "ten seconds: other rules are prepared",
    "superopt corpus": "minutes: make corpus-gate",
    "superopt profile": "minutes",
    "superopt train-step": "seconds; tests/cli/test_gradients.py",
}
PYTHON_NOT_RUN = {"service.md": "needs a running service; tests/server/test_client.py"}
DEFINED = re.compile(r"^ *class (\w+)|^ *([A-Z_]\w+)(?:: [^=\n]+)? = ", re.MULTILINE)  # classes and constants
HEADERS = ("Accept", "Host", "Location")  # of HTTP
GENERATED = re.compile(r"<!-- table: .*?<!-- end of table -->", re.DOTALL)


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in BLOCK.findall(page.read_text("utf-8")) if language in languages]


def shown(page: Path) -> list[str]:
    """The lines of a page's shell blocks, without prompts and comments."""
    lines = [line for text in blocks(page, "sh", "") for line in text.replace("\\\n", " ").splitlines()]
    return [re.split(r"\s#", line.strip().removeprefix("$ "))[0].strip() for line in lines]


def commands(page: Path) -> Iterator[str]:
    """Every command of this project that a page shows or names."""
    inline = re.findall(r"`(superopt [^`]+|make [\w-]+|python -m superopt[^`]*)`", page.read_text("utf-8"))
    for line in (*shown(page), *inline):
        if line.startswith(("superopt ", "make ", "python ")):
            yield re.split(r"\s>\s|\s\|\s", line)[0]


@cache
def superopt() -> Any:
    """The command line; Typer has a copy of Click of its own."""
    return typer.main.get_command(app)


def of(line: str) -> tuple[Any, list[str]]:
    """The command that a line names, and its arguments."""
    command = superopt()
    words = shlex.split(line)[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    return command, words


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_commands_and_their_options_exist(page: Path) -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for line in commands(page):
        words = shlex.split(line)
        if words[0] == "make":
            assert words[1] in targets, line
        elif words[0] == "python":
            assert (ROOT / words[1]).exists() if words[1] != "-m" else find_spec(words[2]), line
        else:
            _options_exist(line)


def _options_exist(line: str) -> None:
    command, words = of(line)
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)} | {"--help", "--version"}
    if hasattr(command, "commands"):
        named = [w for w in words if w not in ("…", "...") and not w.startswith("-")]
        assert not named or re.fullmatch(r"[A-Z|,]+|\w+[|,].*", named[0]), f"{line}: {command.name} has no {named[0]!r}"
    for word in words:
        if re.fullmatch(r"--?[a-zA-Z][\w-]*(=.*)?", word):
            assert word.partition("=")[0] in known, f"{line}: {word} is no option of {command.name}"


RUN = [
    line
    for page in PAGES
    for line in shown(page)
    if line.startswith("superopt ") and not PLACEHOLDER.search(line) and not line.startswith(tuple(NOT_RUN))
]  # fmt: skip


def test_the_cheap_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, as the pages show them: later ones read what earlier ones wrote."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    assert len(RUN) > 12
    for line in dict.fromkeys(RUN):
        command, _, file = line.partition(" > ")
        done = CliRunner().invoke(app, shlex.split(command)[1:])
        assert done.exit_code == 0, f"{line}: {done.output}"
        if file:
            Path(file).write_text(done.stdout)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if blocks(p, "python") and p.name != "gradients.md"], ids=lambda p: p.name
)
def test_python_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the tutorial, which tests/frontend/test_tutorial.py runs."""
    parsed = [
        compile(ast.parse(text), f"{page.name}, block {n}", "exec") for n, text in enumerate(blocks(page, "python"))
    ]
    if page.name in PYTHON_NOT_RUN:
        return
    monkeypatch.chdir(tmp_path)
    (tmp_path / "build").mkdir()
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    scope: dict[str, object] = {"__name__": "page"}
    for block in parsed:
        exec(block, scope)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_data_parses(page: Path) -> None:
    for text in blocks(page, "json"):
        json.loads(text)
    for text in blocks(page, "toml"):
        tomllib.loads(text)


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    tops = {p.name for p in ROOT.iterdir() if p.is_dir()} - {"build"}
    packages = {p.name for p in (ROOT / "superopt").iterdir() if p.is_dir()}
    for name in re.findall(r"`([\w.-]+/[\w./-]+)`", page.read_text("utf-8")):
        top = name.split("/")[0]
        if top in tops | packages and not re.search(r"DATE|NNNN|NAME|DIR", name):
            bases = [ROOT, ROOT / "superopt"]
            assert any((b / name).exists() or (b / f"{name}.py").exists() for b in bases), name


@cache
def texts() -> Mapping[Path, str]:
    return {p: p.read_text("utf-8") for p in sources()}


@cache
def defined() -> frozenset[str]:
    """Classes and constants of the repository, by the text: to parse all of it takes seconds."""
    return frozenset(name for text in texts().values() for pair in DEFINED.findall(text) for name in pair if name)


def members(name: str) -> set[str]:
    """Methods and fields of the classes of a name."""
    found = set[str]()
    for text in texts().values():
        if f"class {name}" not in text:
            continue
        for node in (n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.ClassDef) and n.name == name):
            found |= {n.name for n in node.body if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
            found |= {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
    return found


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS, ROOT / "rules" / "README.md"], ids=lambda p: p.name)
def test_classes_and_modules_that_are_named_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    operators = {schema.name for schema in onnx.defs.get_all_schemas()}
    words = {*operators, *HEADERS, *(p.name for p in ROOT.iterdir())}
    assert [n for n in re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]*)*)`", text) if n not in {*defined(), *words}] == []
    modules = {p.name for p in (*texts(), *(ROOT / "tests").rglob("*.py"))}
    assert [n for n in re.findall(r"`(\w+\.py)`", text) if n not in modules] == []
    for name, member in re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]*)*)\.([a-z_]\w*)`", text):
        assert member in members(name), f"{name}.{member}"


def test_the_path_of_one_model_is_that_of_the_code() -> None:
    """Every function that the architecture names is defined in one of the files that it names beside it."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    rows = re.findall(r"^\| \d+ \| (.+?) \| (.+?) \|", text, re.MULTILINE)
    assert len(rows) > 20
    for calls, files in rows:
        named = re.findall(r"`([^`]+)`", files)
        folder = Path(named[0]).parent
        paths = [ROOT / "superopt" / (n if "/" in n else folder / n) for n in named]
        source = "\n".join(p.read_text("utf-8") for p in paths)
        for call in re.findall(r"`([^`]+)`", calls):
            name = call.split(".")[-1]
            assert re.search(rf"^\s*(def|class) {name}\b", source, re.MULTILINE) or f"import {name}" in source, call


def test_the_order_of_work_is_the_drivers_list_of_passes() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    section = text[text.index("## Order of work") : text.index("The candidate loop proposes")]
    assert re.findall(r"^\d+\. \*\*([a-z ]+)\.?\*\*", section, re.MULTILINE) == [each.name for each in PASSES]


def test_the_passes_of_the_search_are_those_of_the_code() -> None:
    """The architecture lists the passes by their names, in the order in which the search runs them."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    listed = re.split(r"The search itself\s+is a sequence of passes", text)[1].split("\n## ")[0]
    names = [name.lower() for name in re.findall(r"^\d+\. \*\*(.+?)\*\*", listed, re.MULTILINE)]
    assert names == [p.name for p in (*PREPARATION, *SEARCH_PASSES)]


def test_the_picture_of_the_readme_is_that_of_the_architecture() -> None:
    [picture] = [t for t in blocks(ROOT / "README.md", "") if "─►" in t]
    assert picture in blocks(ROOT / "docs" / "architecture.md", "text")


def test_the_number_of_rules_is_that_of_the_library() -> None:
    rules = len(load_library())
    rows = sum(
        len(re.findall(r"^\[\[rule", p.read_text("utf-8"), re.MULTILINE)) for p in (ROOT / "rules").glob("*.toml")
    )
    for page in (ROOT / "README.md", ROOT / "docs" / "discovery.md"):
        for said, of_rows in re.findall(r"([\d,]+) rules(?:\s+in\s+(\d+)\s+rows)?", page.read_text("utf-8")):
            assert int(said.replace(",", "")) == rules, page.name
            assert not of_rows or int(of_rows) == rows, page.name


def test_pages_keep_to_their_size() -> None:
    assert sum(len(p.read_bytes()) for p in DOCS) <= 160_000
    assert len((ROOT / "README.md").read_bytes()) <= 9_000
    assert len((ROOT / "CHANGELOG.md").read_bytes()) <= 8_000
    assert not [p.name for p in DECISIONS if len(p.read_bytes()) > 1_200]


@pytest.mark.parametrize("page", [*PAGES, *DECISIONS], ids=lambda p: p.name)
def test_documents_are_no_logs(page: Path) -> None:
    """Dates and revisions belong into lab/notes."""
    text = GENERATED.sub("", page.read_text("utf-8"))
    assert not re.findall(r"\b20\d\d-\d\d-\d\d\b", text)
    assert not re.findall(r"\brevision [0-9a-f]{7}\b", text)


def test_every_decision_is_listed_and_has_its_parts() -> None:
    index = (ROOT / "docs" / "decisions" / "index.md").read_text("utf-8")
    for page in DECISIONS:
        text = page.read_text("utf-8")
        assert f"]({page.name})" in index
        assert all(f"**{part}.**" in text for part in ("Context", "Choice", "Consequence")), page.name


def test_every_page_is_in_the_navigation() -> None:
    settings = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert not [p.name for p in DOCS if f": {p.name}\n" not in settings]


def test_tables_are_made_from_their_data() -> None:
    done = subprocess.run(
        [sys.executable, "lab/tables.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
