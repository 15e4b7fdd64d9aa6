"""What an application answers when there is no other answer."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from recap.serving.guard import answer
from recap.serving.limits import Refused

SHOWN = 3  # mistakes of a request that are named at a time


def handle_errors(app: FastAPI) -> None:
    """Let an application say everything that goes wrong in the same form."""
    app.add_exception_handler(Refused, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, elsewhere)
    app.add_exception_handler(Exception, broken)


async def refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return answer(error)


async def invalid(_: Request, error: Exception) -> Response:
    """What is wrong with the form of a request: where, what came, what was expected."""
    assert isinstance(error, RequestValidationError)
    mistakes = error.errors()
    if any(mistake["type"] == "json_invalid" for mistake in mistakes):
        reason = mistakes[0].get("ctx", {}).get("error", "")
        return answer(Refused(400, "json", f"the body is no JSON ({reason}); send an object"))
    said = [
        f"{'.'.join(map(ascii_of, mistake['loc']))} is {ascii(mistake.get('input'))[:80]}: {mistake['msg']}"
        for mistake in mistakes[:SHOWN]
    ]
    return answer(Refused(422, "form", f"{'; '.join(said)}; /openapi.json describes every field"))


def ascii_of(part: object) -> str:
    return ascii(part).strip("'")[:80]


async def elsewhere(_: Request, error: Exception) -> Response:
    """Paths and methods that there are not, and bodies that could not be read."""
    assert isinstance(error, HTTPException)
    messages = {
        400: ("json", "the body could not be read as JSON; send an object, not too deep and without huge numbers"),
        404: ("path", "there is nothing here; /openapi.json lists all paths"),
        405: ("method", "this path does not take this method; /openapi.json lists what it takes"),
    }
    code, message = messages.get(error.status_code, ("refused", str(error.detail)))
    response = answer(Refused(error.status_code, code, message))
    response.headers.update(error.headers or {})
    return response


async def broken(_: Request, error: Exception) -> Response:
    return answer(Refused(500, "failed", "the server failed on this request; its log says why, try again later"))
