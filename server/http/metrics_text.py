"""Everything that is counted, in Prometheus' text format."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Iterator

from superopt.server.http.histogram import JOB_SECONDS, Histogram, labelled
from superopt.server.jobs.job_list import STATES
from superopt.server.jobs.usage import QUEUE_WAIT, RUN_TIME, histogram_rows, usage_of
from superopt.server.service import Service

__all__ = ["exposition"]

Labels = tuple[tuple[str, str], ...]


def exposition(service: Service, owner: str | None) -> str:
    """The text.

    Args:
        service: whose counters are read.
        owner: whose usage is in it; everybody's where there is none.
    """
    return "\n".join([*_requests(service), *_jobs(service), *_usage(service, owner), *_process(service)]) + "\n"


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[Labels, float]]) -> Iterator[str]:
    yield from (f"# HELP {name} {text}", f"# TYPE {name} {kind}")
    for labels, value in samples:
        yield f"{name}{labelled(labels)} {value}"


def _requests(service: Service) -> Iterator[str]:
    counted = sorted(service.requests.items())
    yield from _family(
        "superopt_http_requests_total", "counter", "Answers by method, route and status.",
        (((("method", m), ("route", r), ("status", str(s))), n) for (m, r, s), n in counted),
    )  # fmt: skip
    name = "superopt_http_request_seconds"
    yield from (f"# HELP {name} From the head of a request to the last byte of its answer, by outcome.",
                f"# TYPE {name} histogram", *service.latency.lines(name))  # fmt: skip
    refused = sorted(service.connections.refused.items())
    yield from _family(
        "superopt_refused_total", "counter",
        "What the door refused, by problem (and status; 0 is a closed connection).",
        (((("problem", kind), ("status", str(status))), n) for (kind, status), n in refused),
    )  # fmt: skip


def _jobs(service: Service) -> Iterator[str]:
    states = service.store.counts()
    kept = (((("state", state),), states.get(state, 0)) for state in STATES)
    yield from _family("superopt_jobs", "gauge", "Jobs kept, by state.", kept)
    texts = {
        QUEUE_WAIT: ("superopt_job_queue_seconds", "From the submission of a job to its first attempt."),
        RUN_TIME: ("superopt_job_run_seconds", "Time of a job's last attempt, by how it ended."),
    }
    made = {metric: Histogram(JOB_SECONDS) for metric in texts}
    for metric, outcome, le, count, seconds in histogram_rows(service.database):
        if metric in made:
            made[metric].add(le, count, seconds, {"outcome": outcome})
    for metric, (name, text) in texts.items():
        yield from (f"# HELP {name} {text}", f"# TYPE {name} histogram", *made[metric].lines(name))


def _usage(service: Service, owner: str | None) -> Iterator[str]:
    rows = usage_of(service.database, owner)
    ends = ("submitted", "succeeded", "failed", "cancelled")
    counts = (((("key", row["key"]), ("outcome", end)), row[end]) for row in rows for end in ends)
    yield from _family("superopt_key_jobs_total", "counter", "Jobs by API key and end; submitted counts all.", counts)
    for column, text in (("seconds", "Seconds of workers by API key."), ("input_bytes", "Bytes of models by API key.")):
        sums = (((("key", row["key"]),), row[column]) for row in rows)
        yield from _family(f"superopt_key_{column}_total", "counter", text, sums)


def _process(service: Service) -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    gauges = (
        ("superopt_rules", "Rules in the library.", len(service.catalogue.entries)),
        ("superopt_connections", "Open connections.", len(service.connections)),
        ("superopt_event_streams", "Open event streams.", service.streams.total()),
        ("superopt_uptime_seconds", "Seconds since the start.", round(time.monotonic() - service.started, 1)),
        ("process_cpu_seconds_total", "Processor time.", round(usage.ru_utime + usage.ru_stime, 2)),
        ("process_resident_memory_bytes", "Resident memory.", _resident()),
    )
    for name, text, value in gauges:
        yield from _family(name, "counter" if name.endswith("_total") else "gauge", text, [((), value)])


def _resident() -> int:
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
