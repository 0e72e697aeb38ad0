"""The parts of the OpenAPI document that FastAPI cannot see: bodies that are streamed, problems, examples."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from superopt.server.http.body import GRAPH_JSON, MULTIPART, ONNX
from superopt.server.http.parameters import DESCRIPTIONS
from superopt.server.http.problems import MEDIA, TITLES
from superopt.server.jobs.job_list import MOST, STATES
from superopt.server.jobs.store import FINAL

__all__ = [
    "ALGORITHM", "ALGORITHMS", "INSPECTION", "model_body",
    "CERTIFICATE", "COMPARISON", "DELIVERED", "EVENTS", "FILE", "FRAME", "GALLERY", "GALLERY_ENTRY", "GRAPH", "HEALTH",
    "JOB", "JOBS", "JOB_ACCEPTED", "JUDGEMENT", "LIMITS", "METRICS", "OPERATORS", "OPTIMIZED", "PIN", "PROFILES",
    "REPORT", "RULE", "RULES", "TRIAL", "UNPIN", "UPLOADS", "UPLOAD_MADE", "USAGE", "continuation", "document",
    "guarded", "last_event_id", "listing", "submission", "tus", "typed_rule",
]  # fmt: skip

Responses = dict[int | str, dict[str, Any]]

TINY: dict[str, Any] = {
    "format": "superopt.graph", "version": 1, "name": "tiny", "opset": {"": 21},
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["N", 64]}],
    "weights": [
        {"name": "a", "dtype": "float32", "shape": [64, 32]}, {"name": "b", "dtype": "float32", "shape": [64, 32]},
    ],
    "nodes": [
        {"op": "MatMul", "inputs": ["x", "a"], "outputs": ["p"]},
        {"op": "MatMul", "inputs": ["x", "b"], "outputs": ["q"]},
        {"op": "Add", "inputs": ["p", "q"], "outputs": ["y"]},
    ],
    "outputs": [{"name": "y"}],
}  # fmt: skip
_NAME = {"type": "string"}
_TIME = {"type": ["string", "null"], "format": "date-time"}
_STRINGS = {"type": "array", "items": _NAME}
SCHEMAS: dict[str, Any] = {
    "Problem": {
        "type": "object", "required": ["type", "title", "status", "detail"], "description": "RFC 9457",
        "properties": {
            "type": {"type": "string", "enum": [f"urn:superopt:problem:{kind}" for kind in TITLES]},
            "title": _NAME, "status": {"type": "integer", "minimum": 400, "maximum": 599}, "detail": _NAME,
            "errors": {"type": "array", "items": {
                "type": "object", "required": ["detail"],
                "properties": {"detail": _NAME, "pointer": _NAME, "node": _NAME, "parameter": _NAME},
            }},
        },
        "example": {
            "type": "urn:superopt:problem:invalid-model", "title": TITLES["invalid-model"], "status": 422,
            "detail": "/nodes/0/inputs/1: reads 'ghost', which nothing defines",
            "errors": [{"detail": "reads 'ghost', which nothing defines", "pointer": "/nodes/0/inputs/1"}],
        },
    },
    "Job": {
        "type": "object", "required": ["id", "state", "options", "created", "attempt", "cached", "links"],
        "properties": {
            "id": {"type": "string", "format": "uuid"},
            "state": {"enum": ["queued", "running", "succeeded", "failed", "cancelled"]},
            "name": _NAME, "options": {"type": "object"}, "created": _TIME, "started": _TIME, "finished": _TIME,
            "attempt": {"type": "integer", "minimum": 0}, "cached": {"type": "boolean"},
            "cancelling": {"type": "boolean"}, "status": {"enum": ["improved", "unchanged", None]},
            "stopped": {
                "type": ["string", "null"],
                "description": "why the search ended: time and interrupted mean that it was cut short; such a result "
                "answers for no other job, and posting the model again searches on",
            },
            "unfinished": {"type": ["string", "null"], "description": "what is known where the search was cut short, "
                           "or the check failed or was not finished; such a result answers for no other job"},
            "webhook": {"type": ["object", "null"], "properties": {
                "state": {"enum": ["waiting", "delivered", "given-up"]}, "tries": {"type": "integer"},
                "answer": {"type": ["string", "null"], "description": "last status, or why there is none"},
            }},
            "ahead": {"type": ["integer", "null"], "description": "queued jobs that come first; owners take turns"},
            "problem": {"anyOf": [{"$ref": "#/components/schemas/Problem"}, {"type": "null"}]},
            "links": {"type": "object", "additionalProperties": {"anyOf": [_NAME, {
                "type": "object", "additionalProperties": _NAME,
                "description": "files: the result's, by the names under which they belong together"}]}},
            "representations": {"type": "object", "additionalProperties": {"type": "integer"},
                                "description": "media types of the result and their sizes in bytes"},
        },
    },
    "JobFinished": {
        "type": "object", "required": ["type", "timestamp", "data"], "description": "what a web-hook is sent",
        "properties": {
            "type": {"const": "job.finished"}, "timestamp": {"type": "string", "format": "date-time"},
            "data": {"type": "object", "required": ["id", "state", "name", "status", "links"], "properties": {
                "id": {"type": "string", "format": "uuid"}, "state": {"enum": sorted(FINAL)},
                "name": {"type": ["string", "null"]}, "status": {"enum": ["improved", "unchanged", None]},
                "links": {"type": "object", "additionalProperties": _NAME}}},
        },
    },
    "Report": {"type": "object", "required": ["format", "version", "status", "cost", "check", "rules_applied"],
               "properties": {"format": {"const": "superopt.report"}, "version": {"const": 1}}},
    "Comparison": {"type": "object", "required": ["format", "version"], "properties": {
        "format": {"const": "superopt.comparison"}, "version": {"const": 1},
        "nodes": {"type": "array", "items": {"type": "object", "required": ["op", "name", "side"]}},
        "edges": {"type": "array", "items": {"type": "array"}, "description": "[from, to, side]"},
        "regions": {"type": "array"},
        "timeline": {"type": "object", "description": "by side, for each node that runs in turn: its number, "
                     "microseconds (modelled), bytes of activations alive"},
        "omitted": {"type": "string", "description": "why there are no nodes"}}},
    "Graph": {"type": "object", "required": ["format", "version", "opset", "inputs", "nodes", "outputs"],
              "description": "`superopt schema` prints the whole schema", "properties": {
                  "format": {"const": "superopt.graph"}, "version": {"const": 1}, "opset": {"type": "object"},
                  "inputs": {"type": "array"}, "weights": {"type": "array"}, "nodes": {"type": "array"},
                  "outputs": {"type": "array"}}},
    "RuleEntry": {
        "type": "object", "required": ["id", "family", "verdict", "operators", "forall", "where", "lhs", "rhs"],
        "properties": {"id": _NAME, "name": _NAME, "differs": _NAME,
                       "known_as": _STRINGS, "family": _NAME, "verdict": _NAME,
                       "operators": _STRINGS, "where": _STRINGS,
                       "forall": {"type": "object", "additionalProperties": _NAME}, "lhs": _STRINGS, "rhs": _STRINGS,
                       "origin": _NAME, "directions": _STRINGS},
    },
    "Trial": {"type": "object", "required": ["format", "version", "rule", "seed", "outcome"], "properties": {
        "format": {"const": "superopt.trial"}, "version": {"const": 1}, "rule": _NAME, "seed": {"type": "integer"},
        "outcome": {"enum": ["equal", "different", "none"]}, "reason": _NAME, "sizes": {"type": "object"},
        "inputs": {"type": "object", "additionalProperties": _NAME}, "outputs": {"type": "array"}}},
    "Rules": {"type": "object", "required": ["rules", "total", "next", "digest"], "properties": {
        "rules": {"type": "array", "items": {"$ref": "#/components/schemas/RuleEntry"}},
        "total": {"type": "integer"}, "next": {"type": ["string", "null"]}, "digest": _NAME,
        "algorithms": {"type": "array", "description": "fast algorithms that the words of q mean"}}},
}  # fmt: skip


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _problems(*codes: int) -> Responses:
    return {code: {"description": "a problem", "content": {MEDIA: {"schema": _ref("Problem")}}} for code in codes}


def _json(
    schema: dict[str, Any], *codes: int, description: str = "found", media: str = "application/json"
) -> Responses:
    answer: Responses = {200: {"description": description, "content": {media: {"schema": schema}}}}
    return {**answer, **_problems(*codes)}


_MAKE = (400, 401, 403, 408, 409, 413, 415, 422, 429, 503)
_UNCHANGED: Responses = {304: {"description": "the ETag still stands"}}
_GRAPHS = {
    "description": "the rewritten graph",
    "content": {GRAPH_JSON: {"schema": _ref("Graph")}, ONNX: {"schema": {"type": "string", "format": "binary"}},
                MULTIPART: {"schema": {"type": "object", "description": "parts graph and weights.safetensors"}}},
    "headers": {"ETag": {"schema": _NAME}, "Superopt-Status": {"schema": {"enum": ["improved", "unchanged"]}},
                "Superopt-Unfinished": {"schema": _NAME, "description": "as unfinished of the job, where it is"},
                "Link": {"schema": _NAME}},
}  # fmt: skip
_ACCEPTED = {
    "description": "accepted; look at its Location", "headers": {"Location": {"schema": _NAME}},
    "content": {"application/json": {"schema": _ref("Job")}},
    "links": {
        name: {"operationId": operation, "parameters": {"job_id": "$response.body#/id"}}
        for name, operation in (("look", "get_job"), ("cancel", "delete_job"), ("result", "get_result"))
    },
}  # fmt: skip
OPTIMIZED: Responses = {200: _GRAPHS, 202: _ACCEPTED, 304: _UNCHANGED[304], **_problems(*_MAKE, 406, 410)}
JOB_ACCEPTED: Responses = {
    202: _ACCEPTED, **_json(_ref("Job"), *_MAKE, description="the job has ended already"),
}  # fmt: skip
JOB = _json(_ref("Job"), 401, 403, 404, 503)
GRAPH: Responses = {200: _GRAPHS, **_UNCHANGED, **_problems(404, 406, 409, 410, 422, 500, 503)}
REPORT = {**_json(_ref("Report"), 404, 409, 410, 422, 500, 503), **_UNCHANGED}
COMPARISON = {**_json(_ref("Comparison"), 400, 404, 409, 410, 422, 500, 503), **_UNCHANGED}
FRAME = {**_json(_ref("Graph"), 400, 404, 409, 410, 422, 500, 503, media=GRAPH_JSON), **_UNCHANGED}
FILE: Responses = {
    200: {"description": "the file", "content": {ONNX: {"schema": {"type": "string", "format": "binary"}}}},
    206: {"description": "the range of it that was asked for"}, 416: {"description": "there is no such range"},
    **_UNCHANGED, **_problems(404, 409, 410, 422, 500, 503),
}  # fmt: skip
JUDGEMENT = _json({"type": "object", "required": ["format", "verdict"]}, 400, 401, 408, 413, 422, 503)
_TUS = {"Tus-Resumable": {"schema": _NAME}, "Upload-Offset": {"schema": _NAME}}
_UPLOAD_ERRORS = _problems(400, 401, 404, 408, 409, 412, 413, 415, 422, 429, 503)
UPLOADS: Responses = {
    200: {"description": "found", "headers": _TUS}, 204: {"description": "done", "headers": _TUS}, **_UPLOAD_ERRORS,
}  # fmt: skip
UPLOAD_MADE: Responses = {
    201: {"description": "made", "headers": {"Location": {"schema": _NAME}, **_TUS}},
    **_UPLOAD_ERRORS,
}
EVENTS: Responses = {
    200: {"description": "a stream", "content": {"text/event-stream": {"example":
          'id: 3\nevent: progress\ndata: {"done": 2, "total": 9, "what": "region 2"}\n\n'}}},
    204: {"description": "nothing comes after that event"}, **_problems(400, 404, 429, 503),
}  # fmt: skip
RULES = {**_json(_ref("Rules"), 400), **_UNCHANGED}
RULE = _json(_ref("RuleEntry"), 404)
CERTIFICATE = {**_json({"type": "object", "required": ["format", "id", "rule", "smt2"]}, 404, 503), **_UNCHANGED}
INSPECTION = _json({"type": "object", "required": ["format", "nodes", "operators", "comparison"]}, *_MAKE)
ALGORITHM = {**_json({"type": "object", "required": ["id", "name", "operator", "matrices"]}, 404), **_UNCHANGED}
ALGORITHMS = {**_json({"type": "object", "required": ["algorithms", "total"]}, 400), **_UNCHANGED}
TRIAL = _json(_ref("Trial"), 400, 404, 503)
OPERATORS = {**_json({"type": "object", "required": ["operators", "total"]}), **_UNCHANGED}
PROFILES = _json({"type": "object", "required": ["profiles"]})
GALLERY = {**_json({"type": "object", "required": ["models", "total"]}, 400), **_UNCHANGED}
GALLERY_ENTRY = {**_json({"type": "object", "required": ["format", "model", "target", "device", "report"]}, 404),
                 **_UNCHANGED}  # fmt: skip
_KEEP = (400, 401, 403, 404, 409, 429, 503)
PIN = _json({"type": "object", "required": ["pin", "link", "job"]}, *_KEEP)
DELIVERED = _json(
    {"type": "object", "required": ["files"], "properties": {
        "files": {"type": "object", "additionalProperties": _NAME, "description": "references, by name"}}},
    *_KEEP, 410, 422, 500,
)  # fmt: skip
UNPIN: Responses = {204: {"description": "done"}, **_problems(*_KEEP)}
LIMITS = _json({"type": "object", "required": ["limits", "version", "api_key_needed"]})
HEALTH = _json({"type": "object", "required": ["status"]}, 503)
METRICS = _json({"type": "string"}, 401, 503, media="text/plain")
JOBS = _json(
    {"type": "object", "required": ["jobs", "next"], "properties": {
        "jobs": {"type": "array", "items": _ref("Job")},
        "next": {"type": ["string", "null"], "description": "where the next page is"}}},
    400, 401, 429, 503,
)  # fmt: skip
USAGE = _json(
    {"type": "object", "required": ["usage"], "properties": {"usage": {"type": "array", "items": {
        "type": "object", "required": ["key", "submitted", "succeeded", "failed", "cancelled", "seconds"],
        "properties": {"key": _NAME, "name": _NAME, "seconds": {"type": "number"}}}}}},
    401, 503,
)  # fmt: skip
_HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "Idempotency-Key": ({"type": "string", "pattern": "^[!-~]{1,200}$"},
                        "the same request again with the same key finds the first one's job"),
    "Prefer": ({"type": "string", "examples": ["wait=10"]},
               "wait=N: wait up to N seconds for the job's end; /v1/limits has the most"),
    "Webhook-Secret": ({"type": "string", "pattern": "^[!-~]{16,200}$"},
                       "signs what is sent to the webhook, as https://www.standardwebhooks.com has it; "
                       "whsec_ and base64 stands for bytes"),
}  # fmt: skip
_SIGNATURE = {"webhook-id": _NAME, "webhook-timestamp": {"type": "integer"}, "webhook-signature": _NAME}
_JOB_FINISHED: dict[str, Any] = {"{$request.query.webhook}": {"post": {
    "summary": "The job has ended.",
    "description": "Signed under Webhook-Secret as https://www.standardwebhooks.com has it. An answer but 2xx is "
    "tried again, for about two and a half hours.",
    "parameters": [{"name": n, "in": "header", "required": True, "schema": s} for n, s in _SIGNATURE.items()],
    "requestBody": {"required": True, "content": {"application/json": {"schema": _ref("JobFinished")}}},
    "responses": {"2XX": {"description": "received; nothing of the answer but its status is read"}},
}}}  # fmt: skip
_FILTERS: dict[str, tuple[dict[str, Any], str]] = {
    "state": ({"type": "array", "items": {"type": "string", "enum": [*STATES]}}, "in one of these states"),
    "id": ({"type": "array", "items": {"type": "string", "format": "uuid"}}, "one of these"),
    "name": (_NAME, "whose name holds this"),
    "limit": ({"type": "integer", "minimum": 1, "maximum": MOST, "default": 50}, "jobs of a page"),
    "after": (_NAME, "as next has it: the page after that job"),
}  # fmt: skip


def _parameter(name: str, where: str, schema: dict[str, Any], text: str) -> dict[str, Any]:
    return {"name": name, "in": where, "required": False, "schema": schema, "description": text}


def listing(*more: str) -> dict[str, Any]:
    """The filters of a list of jobs."""
    named = [_parameter(n, "query", *_FILTERS[n]) for n in ("state", "id", "name", *more)]
    return {"parameters": named, "security": [{}, {"key": []}]}


def submission(*headers: str) -> dict[str, Any]:
    """The operation's body and option parameters.

    Args:
        headers: of :data:`_HEADERS`, those that it reads.
    """
    uploads = {
        "name": "upload",
        "in": "query",
        "required": False,
        "schema": {"type": "array", "items": _NAME},
        "description": "ids of resumable uploads, in place of a body: the model, and the files of its weights",
    }
    sources = {
        "name": "source", "in": "query", "required": False, "schema": {"type": "array", "items": _NAME},
        "description": "s3://BUCKET/KEY in the operator's store, in place of a body: the model, and the files of its "
        "weights; with a slash at its end, the files directly in that folder. /v1/limits has the prefixes",
    }  # fmt: skip
    text = "where the end of the job is told by POST, tried for hours, where the operator allows it"
    webhook = _parameter("webhook", "query", {"type": "string", "format": "uri"}, text)
    parameters = [uploads, sources, webhook] + [
        _parameter(name, "query", schema, text) for name, (schema, text) in DESCRIPTIONS.items()
    ]
    parameters += [_parameter(name, "header", *_HEADERS[name]) for name in headers]
    told = {"callbacks": {"jobFinished": _JOB_FINISHED}} if "Webhook-Secret" in headers else {}
    return {"parameters": parameters, **model_body(), **told}


def model_body() -> dict[str, Any]:
    """The body of an operation that takes a model."""
    binary = {"type": "string", "format": "binary"}
    data = {"type": "array", "items": binary, "description": "files that an ONNX model points to, under their names"}
    properties = {"graph": binary, "weights.safetensors": binary, "data": data}
    form = {"type": "object", "required": ["graph"], "properties": properties}
    content = {
        GRAPH_JSON: {
            "schema": {"type": "object", "description": "`superopt schema` prints the schema"},
            "examples": {"shapes only": {"value": TINY}},
        },
        ONNX: {"schema": binary},
        MULTIPART: {"schema": form},
    }
    return {"requestBody": {"required": True, "content": content}, "security": [{}, {"key": []}]}


def typed_rule() -> dict[str, Any]:
    """The body of a rule to judge."""
    schema = {"type": "object", "required": ["forall", "lhs", "rhs"], "properties": {
        "forall": {"type": "object", "additionalProperties": _NAME}, "where": _STRINGS, "lhs": _STRINGS,
        "rhs": _STRINGS,
    }}  # fmt: skip
    example = {"forall": {"x": "f[m, k]", "a": "f[k, n]", "b": "f[k, n]"},
               "lhs": ["Add(MatMul(x, a), MatMul(x, b))"], "rhs": ["MatMul(x, Add(a, b))"]}  # fmt: skip
    corpus = {
        "name": "corpus",
        "in": "query",
        "required": False,
        "schema": {"type": "boolean"},
        "description": "whether to look at what it would gain on the corpus, which takes fifteen seconds more",
    }
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}},
            "parameters": [corpus], "security": [{}, {"key": []}]}  # fmt: skip


def guarded() -> dict[str, Any]:
    """An operation that needs a key where the service does."""
    return {"security": [{}, {"key": []}]}


def tus(*headers: str) -> dict[str, Any]:
    """The headers of a resumable upload's operation."""
    version = {"name": "Tus-Resumable", "in": "header", "required": True, "schema": {"const": "1.0.0"}}
    named = [version, *({"name": h, "in": "header", "required": False, "schema": _NAME} for h in headers)]
    return {"parameters": named, "security": [{}, {"key": []}]}


def continuation() -> dict[str, Any]:
    """The parameters of going on with a job."""
    return {"parameters": [p for p in submission()["parameters"] if p["name"] == "time_limit"],
            "security": [{}, {"key": []}]}  # fmt: skip


def last_event_id() -> dict[str, Any]:
    """By what a stream resumes: a header, or a parameter where a client cannot set headers."""
    schema = {"type": "string", "pattern": "^[0-9]{1,9}$"}
    places = (("Last-Event-ID", "header"), ("last_event_id", "query"))
    return {"parameters": [{"name": n, "in": where, "required": False, "schema": schema} for n, where in places]}


def document(app: FastAPI) -> dict[str, Any]:
    """The whole document; made once."""
    if app.openapi_schema:
        return app.openapi_schema
    found = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, openapi_version="3.1.0"
    )
    found["servers"] = [{"url": "/", "description": "this service"}]
    components = found.setdefault("components", {})
    generated = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        generated.pop(name, None)
    generated.update(SCHEMAS)
    components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    for path in found["paths"].values():
        for operation in path.values():
            operation["description"] = operation.get("description", "").replace("``", "`")  # Markdown's code
            if "HTTPValidationError" in str(operation["responses"].get("422")):  # the framework's own: ours is 400
                del operation["responses"]["422"]
    app.openapi_schema = found
    return found
