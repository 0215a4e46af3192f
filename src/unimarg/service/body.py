"""The body of a request: JSON, by its content type and by what it holds, with no name in it twice."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.exceptions import HTTPException
from fastapi.routing import APIRoute
from starlette.responses import Response

from unimarg.errors import EvidenceError
from unimarg.evidence import no_name_twice
from unimarg.service.refusal import RefusalError
from unimarg.service.schemas import named

JSON = re.compile(r"application/(?:[^/]*\+)?json")  # what FastAPI takes for JSON


class Strict(Request):
    """Says what is wrong with a body that cannot be read, where FastAPI only says that something is."""

    async def json(self) -> Any:
        try:
            return json.loads(await self.body(), object_pairs_hook=_object)
        except EvidenceError as e:
            raise HTTPException(422, str(e)) from None
        except json.JSONDecodeError:
            raise  # FastAPI makes a sentence of it
        except UnicodeDecodeError:
            raise HTTPException(400, "the body is not JSON in UTF-8") from None
        except RecursionError:
            raise HTTPException(400, "the body is nested too deeply") from None
        except ValueError:
            raise HTTPException(400, f"a number in the body is too long: at most {sys.get_int_max_str_digits():,} digits") from None


class StrictRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def strict(request: Request) -> Response:
            read, given = Strict(request.scope, request.receive), request.headers.get("content-type", "")
            if request.method == "POST" and not _is_json(given) and await read.body():
                other = f", not {given[:100]!r}" if given else ""
                raise RefusalError(415, f"the body must be JSON and be sent as that: send content-type: application/json{other}")
            return await handler(read)

        return strict


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else no_name_twice([(name, named(value)) for name, value in pairs])  # an error


def _is_json(content_type: str) -> bool:
    return JSON.fullmatch(content_type.partition(";")[0].strip().lower()) is not None
