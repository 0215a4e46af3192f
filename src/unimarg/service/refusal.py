"""Saying no: a status and a sentence, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from unimarg.errors import UnimargError

LONGEST = 500  # characters of a sentence: what a client sent may be part of it
FAULTS = 5  # of a request that are told


class RefusalError(Exception):
    """A request that gets no answer; ``retry`` is after how many seconds to try again."""

    def __init__(self, status: int, sentence: str, retry: int | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {}) | ({} if retry is None else {"retry-after": str(retry)})

    def response(self) -> Response:
        return response(self.status, str(self), self.headers)


def response(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(trouble(sentence), status, dict(headers or {}), "application/json")


def trouble(sentence: object) -> bytes:
    """As JSON, in ASCII: half a surrogate pair that a client sent must not break the answer."""
    text = str(sentence)
    return json.dumps({"error": text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."}).encode()


async def refused(_: Request, e: Exception) -> Response:
    assert isinstance(e, RefusalError)
    return e.response()


async def mistaken(_: Request, e: Exception) -> Response:
    """The library's own sentence."""
    assert isinstance(e, UnimargError)
    return response(422, str(e))


async def malformed(_: Request, e: Exception) -> Response:
    """What pydantic found, each fault with where it is, and how many more there are."""
    assert isinstance(e, RequestValidationError)
    found = e.errors()
    more = f" (and {len(found) - FAULTS} more)" if len(found) > FAULTS else ""
    return response(422, "; ".join(map(_fault, found[:FAULTS])) + more)


def _fault(found: dict[str, Any]) -> str:
    where, text = ".".join(map(str, found["loc"][1:])), str(found["msg"])
    if found["type"] == "json_invalid":
        text = f"not JSON: {found.get('ctx', {}).get('error', text)}"
    return f"{where[:100] or 'the body'}: {text[:1].lower()}{text[1:]}"


async def http_error(_: Request, e: Exception) -> Response:
    assert isinstance(e, HTTPException)
    return response(e.status_code, str(e.detail), e.headers)


async def broken(_: Request, e: Exception) -> Response:
    """Our own mistake: the log has it, the client does not."""
    return response(500, "something went wrong in the service; its log has more")
