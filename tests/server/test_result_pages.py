"""What the pages of jobs say: a newcomer's questions first, one primary button, phases in words, what to expect."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from service_testing import GRAPH, TINY, Live, tiny, until
from starlette.testclient import TestClient

from superopt.server import examples
from superopt.server.app import create_app
from superopt.server.jobs.database import jobs
from superopt.server.routes.pages import expected_wait
from superopt.server.settings import ServiceLimits, ServiceSettings

TARGET = "profile:cpu-epyc-2core"  # recorded times, so that the result is the same on every machine


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """The application beside the recorded corpus, without workers."""
    settings = ServiceSettings(data=tmp_path_factory.mktemp("pages"), corpus=examples())
    with TestClient(create_app(settings), base_url="http://localhost") as made:
        yield made


class _Text(HTMLParser):
    """The words of a page in their order, without scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def text_of(page: str) -> str:
    parser = _Text()
    parser.feed(page)
    return " ".join(" ".join(parser.words).replace("\u00a0", " ").split())


@pytest.fixture(scope="module")
def result(live: Live) -> tuple[str, str]:
    """A finished job's id and page."""
    answer = live.post(tiny("answers"), time_limit=300, target=TARGET)
    until(lambda: live.succeeded(answer), 300)
    job = answer.json()["id"]
    return job, live.http.get(f"/jobs/{job}").text


def test_a_newcomers_questions_are_answered_before_anything_else(result: tuple[str, str]) -> None:
    _, page = result
    text = text_of(page[: page.index('<dl class="tiles">')])
    assert re.search(r"faster|slower|No measurable difference|Simpler", text)  # how much faster
    assert "Is it safe? Checked: the outputs agree with the original model" in text
    assert "What changed? 3 → 2 nodes: Relu 2 → 1." in text
    assert "What is this? superopt rewrites neural networks into equivalent ones that run faster." in text
    assert "Download ONNX" in text  # how to get it


def test_one_button_is_primary_and_it_downloads(live: Live, result: tuple[str, str]) -> None:
    job, page = result
    [primary] = re.findall(r'<a class="button primary" href="([^"]+)"', page)
    assert page.count("primary") == 1
    assert primary == f"/jobs/{job}/graph.onnx"
    assert live.http.get(primary).status_code == 200


def test_a_search_that_was_cut_short_is_continued_by_the_primary_button(live: Live) -> None:
    """The page says what ended the search, without options of the command line."""
    answer = live.post(tiny("cut short"), time_limit=0, target=TARGET)
    until(lambda: live.succeeded(answer), 300)
    page = live.http.get(f"/jobs/{answer.json()['id']}").text
    assert re.search(r"Unchanged The search stopped at its time limit of 0 s\. ", text_of(page))
    assert "--time-limit" not in page
    assert re.findall(r'class="(?:button )?primary"[^>]*>([^<]+)<', page) == ["Continue the search"]


def test_a_page_has_the_fields_words_and_no_others(result: tuple[str, str]) -> None:
    text = text_of(result[1])
    for word in ("shortening", "closing", "mutant", "at a time", "skipped 0", "% measured", "fired", "priced", "dirty"):
        assert word not in text, word
    assert "single changes of the result" in text
    assert "time by the cost model" in text


def test_numbers_do_not_break_from_their_units(result: tuple[str, str]) -> None:
    page = re.sub(r"<(script|style|code|svg)\b.*?</\1>|<[^>]+>", " ", result[1], flags=re.DOTALL)
    assert re.findall(r"\d (?:µs|ms|KiB|MiB|%|×)", page) == []


def test_a_short_link_shows_itself_whole(live: Live, result: tuple[str, str]) -> None:
    job, page = result
    assert "Keep under a short link" in page
    answer = live.http.post(f"/jobs/{job}/pin", files={"pin": (None, "yes")})
    assert answer.status_code == 303
    pinned = live.http.get(f"/jobs/{job}").text
    [link] = re.findall(r'<input readonly value="([^"]+)" id="short">', pinned)
    assert link == f"{live.url}{live.http.put(f'/v1/jobs/{job}/pin').json()['link']}"
    assert live.http.get(link).headers["location"] == f"/jobs/{job}"
    live.http.delete(f"/v1/jobs/{job}/pin")


def test_a_result_without_changes_says_so_without_a_check(live: Live) -> None:
    document = {**TINY, "name": "one", "nodes": [{"op": "Relu", "inputs": ["x"], "outputs": ["y"]}], "weights": []}
    answer = live.post(json.dumps(document).encode(), time_limit=300, target=TARGET)
    until(lambda: live.succeeded(answer), 300)
    text = text_of(live.http.get(f"/jobs/{answer.json()['id']}").text)
    assert "Unchanged" in text
    assert "so there was nothing to check" in text
    assert "0 trials" not in text


def test_what_the_engine_is_doing_is_said_in_words(live: Live, result: tuple[str, str]) -> None:
    seen = []
    with live.http.stream("GET", f"/v1/jobs/{result[0]}/events") as stream:
        for line in stream.iter_lines():
            if line.startswith("data: ") and (what := json.loads(line[6:]).get("what")):
                seen.append(what)
    assert seen
    assert not [what for what in seen if re.search("shortening|closing", what)]


def test_a_waiting_job_says_how_long_it_waits_and_what_comes(client: TestClient) -> None:
    page = ""
    for name in ("first", "second"):
        answer = client.post("/v1/jobs", content=tiny(name), headers={"Content-Type": GRAPH})
        page = client.get(f"/jobs/{answer.json()['id']}").text
    text = text_of(page)
    assert re.search(r"Waiting 0 s elapsed\. 1 job is before it\.", text), text
    assert '<meta http-equiv="refresh" content="2">' in page  # without script it looks again


def test_the_expected_wait_is_of_recent_jobs(client: TestClient) -> None:
    service = client.app.state.service  # type: ignore[attr-defined]
    ids = [
        client.post("/v1/jobs", content=tiny(f"wait {n}"), headers={"Content-Type": GRAPH}).json()["id"]
        for n in range(4)
    ]
    database, limits = service.database, ServiceLimits()
    with database.write() as connection:
        clock = connection.exec_driver_sql("SELECT (julianday('now') - 2440587.5) * 86400.0").scalar_one()
        for state, began, ended, job in (("succeeded", -90, -50, 0), ("running", -7, None, 1)):
            values = {"state": state, "started": clock + began, "finished": ended and clock + ended}
            connection.execute(jobs.update().where(jobs.c.id == ids[job]).values(**values))
    last = service.store.job(ids[3])
    waiting = expected_wait(database, limits, last, service.store.ahead(last))
    assert waiting.expects == "2 jobs are before it; recent jobs took about 40 s each."
    running = expected_wait(database, limits, service.store.job(ids[1]), 0)
    assert 6 < running.elapsed < 60
    assert running.expects.startswith("The search takes at most 300 s;")


def test_the_first_page_says_what_superopt_is_and_opens_a_finished_report(corpus: TestClient) -> None:
    page = corpus.get("/").text
    assert "superopt rewrites an ONNX model into an equivalent one that runs faster." in text_of(page)
    places = re.findall(r'href="(/corpus/[^"]+)"', page)
    assert places
    for place in places:
        report = corpus.get(place).text
        assert "Is it safe?" in report
        assert re.search(r'class="headline good">[\d.]+\u00a0× faster', report), place
    assert '<section id="seen"' in page
    assert page.count("primary") == 1


def test_models_are_compared_by_picking(corpus: TestClient) -> None:
    page = corpus.get("/compare").text
    assert page.count("<select") == 2
    assert "<option>resnet50</option>" in page
    assert '<option value="resnet50/result">resnet50, result</option>' in page
    chosen = corpus.get("/compare", params={"a": "lstm/result", "b": "gru"}).text
    assert '<option value="lstm/result" selected>' in chosen
    assert "lstm, result and gru, original" in chosen
    job = corpus.post("/v1/jobs", content=tiny("<b>named"), headers={"Content-Type": GRAPH}).json()["id"]
    named = corpus.get("/compare", params={"a": f"{job}/result"}).text
    assert f'<option value="{job}/result" selected>' in named
    assert "<b>" not in named
