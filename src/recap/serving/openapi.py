"""The description of the service that programs read: examples, and what every refusal looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from recap.serving.schema import PIXEL, Failure, refusal

RETRY = {"Retry-After": {"description": "Seconds until it is worth coming again.", "schema": {"type": "integer"}}}
REFUSALS: dict[int, tuple[str, str, str]] = {
    400: ("No JSON.", "json", "the body is no JSON (Expecting value); send an object"),
    401: ("No token.", "token", "no valid token came; send the header Authorization: Bearer TOKEN"),
    406: ("No such form.", "format", "Accept is 'text/html'; this server gives application/json, image/png, ..."),
    408: ("Too slow.", "slow", "only 12 bytes came within 60 s; send faster"),
    413: ("Too large.", "body", "the body has more than 8388608 bytes; send a smaller picture, or fewer at a time"),
    415: ("No JSON by its type.", "type", "the body is 'text/plain'; send JSON, with Content-Type: application/json"),
    422: ("Not possible.", "limit", "99 images were asked for, but 16 are allowed at a time; ask for fewer"),
    429: ("The queue is full.", "full", "64 of 64 places are taken and 1 were asked for; come again in 2 s"),
    500: ("A fault of the server.", "failed", "the images could not be drawn; the server's log says why"),
    503: ("Shutting down.", "closing", "the server is shutting down; ask another one, or come again later"),
    504: ("Out of time.", "timeout", "4 image(s) were not drawn in time; ask for fewer images or evaluations"),
}
DRAWN: dict[str, Any] = {
    "description": "The images: JSON with base64 PNGs, one PNG, or a zip of PNGs.",
    "content": {
        "application/json": {
            "example": {
                "model": "flowers-maskgit",
                "seed": 7,
                "schedule": {"full": 6, "local": 4, "plain": 2, "guided": True},
                "images": [{"index": 0, "label": 3, "name": None, "png": PIXEL}],
            }
        },
        "image/png": {"schema": {"type": "string", "format": "binary"}, "example": "the bytes of one PNG file"},
        "application/zip": {"schema": {"type": "string", "format": "binary"}, "example": "a zip of 000000.png, ..."},
    },
}
METRICS: dict[str, Any] = {
    "description": "Counts.",
    "content": {"text/plain": {"schema": {"type": "string"}, "example": "recap_images_total 12\n"}},
}


def about(name: str) -> str:
    return (
        f"Images drawn by {name}, with grouped decoding. Image i of a seed is the same whoever else asks, and the "
        f"same as `recap sample` draws."
    )


def examples(content: Any, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """An answer in JSON by example."""
    return {status: {"content": {"application/json": {"example": content}}}}


def failures(locked: bool) -> Callable[..., dict[int | str, dict[str, Any]]]:
    """Refusals by status; with a token, the one for strangers is among them."""

    def of(*statuses: int) -> dict[int | str, dict[str, Any]]:
        return {status: failure(status) for status in (*([401] if locked else []), *statuses)}

    return of


def failure(status: int) -> dict[str, Any]:
    description, code, message = REFUSALS[status]
    answer: dict[str, Any] = {
        "model": Failure,
        "description": description,
        "content": {"application/json": {"example": refusal(code, message)}},
    }
    return {**answer, "headers": RETRY} if status in (429, 503, 504) else answer


def tightened(document: dict[str, Any], most: Mapping[str, int]) -> dict[str, Any]:
    """The description with the greatest values that this server and its model take, by the names of fields."""
    for schema in document["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            if name in most and "description" in field:  # of a request
                _lower(field, most[name])
    return document


def _lower(field: Any, most: int) -> None:
    if isinstance(field, list):
        for part in field:
            _lower(part, most)
    elif isinstance(field, dict):
        if "maximum" in field:
            field["maximum"] = min(field["maximum"], most)
        for part in field.values():
            _lower(part, most)
