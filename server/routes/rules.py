"""``/v1/rules``, ``/v1/operators``, ``/v1/profiles``: what the service knows."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from superopt.report.algorithm_names import algorithm_data, search_algorithms
from superopt.server.http import openapi as doc
from superopt.server.http.body import pieces
from superopt.server.http.conditional_requests import check_range, not_modified
from superopt.server.http.problems import HttpProblem
from superopt.server.optimization_service import of

__all__ = ["MOST_SEED", "read_seed", "router", "sent"]

router = APIRouter(prefix="/v1", tags=["library"])
MOST_SEED = 999_999
_MOST_RULE = 1 << 14  # bytes of one that is typed
Word = Annotated[str, Query(max_length=200)]


def sent(request: Request, body: bytes, headers: dict[str, str] | None = None) -> Response:
    """JSON that is the same for everybody, with its digest as ETag."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    common = {"ETag": tag, "Cache-Control": "public, max-age=60", **(headers or {})}
    if (unchanged := not_modified(request, common)) is not None:
        return unchanged
    return Response(body, headers=common, media_type="application/json")


@router.get("/rules", responses=doc.RULES, summary="Browse the rule library")
async def get_rules(
    request: Request, operator: Word = "", family: Word = "", verdict: Word = "", q: Word = "", after: Word = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
) -> Response:  # fmt: skip
    """A page of rules; all filters must fit. ``next`` (and the Link header) lead to the next page.

    Sorted by id; with ``q`` (names of operators or their beginnings, what is done to them, well-known rewrites such as
    ``qkv``, or text of the rule) the likeliest first, and beside the first page's rules the fast ``algorithms``
    (Winograd's, Strassen's) that the words mean.
    """
    catalogue = of(request).catalogue
    body = catalogue.page(operator, family, verdict, q, after, limit)
    rest = [e["id"] for e in catalogue.rest(operator, family, verdict, q, after)]
    headers = {}
    if len(rest) > limit:
        filters = {"operator": operator, "family": family, "verdict": verdict, "q": q}
        query = urlencode({**{k: v for k, v in filters.items() if v}, "after": rest[limit - 1], "limit": limit})
        headers["Link"] = f'</v1/rules?{query}>; rel="next"'
    return sent(request, body, headers)


@router.get("/rules/{rule_id}", responses=doc.RULE, summary="One rule")
async def get_rule(rule_id: str, request: Request) -> Response:
    """Both sides, types, preconditions, verdict and proof."""
    found = of(request).catalogue.rule(rule_id)
    if found is None:
        raise HttpProblem(404, "not-found", "there is no such rule; GET /v1/rules lists them")
    return JSONResponse(found, headers={"Cache-Control": "public, max-age=60"})


@router.get("/rules/{rule_id}/certificate", responses=doc.CERTIFICATE, summary="A rule's certificate")
async def get_certificate(rule_id: str, request: Request) -> Response:
    """The file that ``superopt rules check-certificate`` checks again without trusting the prover.

    It is made when it is first asked for, which takes seconds, and kept.
    """
    service = of(request)
    if rule_id not in service.catalogue.entries:
        raise HttpProblem(404, "not-found", "there is no such rule; GET /v1/rules lists them")
    if not service.catalogue.proved(rule_id):
        raise HttpProblem(404, "not-found", "only rules that are proved for all sizes have a certificate")
    digest = service.catalogue.library.digests[rule_id]
    headers = {"ETag": service.certificates.tag(digest), "Cache-Control": "public, max-age=3600"}
    if (unchanged := not_modified(request, headers)) is not None:
        return unchanged
    path = await service.slowly(service.certificates.path, rule_id, digest)
    check_range(request, path.stat().st_size)
    return FileResponse(path, media_type="application/json", filename=f"{rule_id}.json", headers=headers)


@router.get("/rules/{rule_id}/trial", responses=doc.TRIAL, summary="Try a rule")
async def get_trial(rule_id: str, request: Request, seed: Annotated[int, Query(ge=0, le=MOST_SEED)] = 1) -> Response:
    """Both sides at small random sizes and elements, in float64 and float32; the same for the same seed."""
    found = await of(request).slowly(of(request).trial, rule_id, seed)
    return JSONResponse(found, headers={"Cache-Control": "public, max-age=3600"})


@router.post("/rules/judge", responses=doc.JUDGEMENT, openapi_extra=doc.typed_rule(), summary="Judge a rule")
async def post_judge(request: Request) -> Response:
    """Is it true? Proved for all sizes (with its certificate and what floating point makes of it), refuted by numbers,
    or not known. The grammar is that of the library, whose rules are examples of it. With ``corpus=true``, of a rule
    that is proved also what it would gain by itself on the models of the corpus that fifteen seconds suffice for."""
    service = of(request)
    await service.caller(request)
    corpus = request.query_params.get("corpus", "false")
    if corpus not in ("true", "false"):
        raise HttpProblem(400, "invalid-parameter", "corpus: is neither true nor false",
                      errors=[{"parameter": "corpus", "detail": "is neither true nor false"}])  # fmt: skip
    body = b""
    async for chunk in pieces(request, service.settings.limits, _MOST_RULE):
        body += chunk
    try:
        rule = json.loads(body)
        json.dumps(rule, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # also halves of characters, which no answer could repeat, and towers of lists
        raise HttpProblem(422, "invalid-rule", "the body is no JSON that can be read") from None
    if not isinstance(rule, dict):
        raise HttpProblem(422, "invalid-rule", "the body is not a JSON object with forall, lhs and rhs")
    return JSONResponse(await service.slowly(service.judged, rule, corpus == "true"))


@router.get("/algorithms", responses=doc.ALGORITHMS, summary="Fast algorithms")
async def get_algorithms(request: Request, q: Word = "") -> Response:
    """Algorithms with fewer multiplications for convolutions and matrix products; ``q``: words such as ``winograd``."""
    found = search_algorithms(q)
    return sent(request, json.dumps({"algorithms": found, "total": len(found)}).encode())


@router.get("/algorithms/{name}", responses=doc.ALGORITHM, summary="One fast algorithm")
async def get_algorithm(name: str, request: Request) -> Response:
    """Its matrices, its numbers of operations, and how much its rounding errors grow."""
    found = algorithm_data(name)
    if found is None:
        raise HttpProblem(404, "not-found", "there is no such algorithm; GET /v1/algorithms lists them")
    return sent(request, json.dumps(found).encode())


def read_seed(text: str) -> int:
    """A seed that came as text.

    Raises:
        HttpProblem: 400.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise HttpProblem(400, "invalid-parameter", f"seed: is not an integer from 0 to {MOST_SEED}",
                      errors=[{"parameter": "seed", "detail": "is out of range"}])  # fmt: skip
    return int(text)


@router.get("/operators", responses=doc.OPERATORS, summary="Operators that are understood")
async def get_operators(request: Request) -> Response:
    """Every operator with a meaning, and how many rules mention it; any other is carried through untouched."""
    return sent(request, of(request).catalogue.operators)


@router.get("/profiles", responses=doc.PROFILES, summary="Targets")
async def get_profiles(request: Request) -> Response:
    """The targets that results can be made for: the server's own CPU, and recorded profiles."""
    targets = [{"name": "cpu", "target": "cpu", "device": "the service's own processor: recorded prices, scaled to it"}]
    return JSONResponse({"profiles": [*targets, *of(request).catalogue.profiles()]})
