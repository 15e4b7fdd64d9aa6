"""What stands before the endpoints: strangers, other names, crowds, large bodies, and what is no JSON."""

import asyncio
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

import httpx
from starlette.responses import Response

from recap.server.guard import HEADERS, TEXT, Guard
from recap.server.limits import Limits
from tests.server.served import asked, post, served

JSON = {"Content-Type": "application/json"}
MALFORMED = (
    *(b"", b"{", b'{"num": 1,}', b"\xff\xfe", b"[" * 100_000, b'{"num": NaN', b"\x00"),
    *(b'{"labels": 1, "guidance": %s}' % value for value in (b"NaN", b"Infinity", b"-Infinity", b"1e400")),
    b'{"num": ' + b"9" * 5000 + b"}",
)


def test_malformed_json_is_no_fault_of_the_server() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return [await client.post("/v1/sample", content=body, headers=JSON) for body in MALFORMED]

    for answer in asked(ask):
        assert answer.status_code in (400, 422)
        assert answer.json()["error"]["message"]


def test_other_paths_methods_and_types_are_answered_in_json() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return [
            await client.get("/v1/nothing"),
            await client.get("/v1/sample"),
            await client.post("/v1/sample", content=b"labels=1", headers={"Content-Type": "text/plain"}),
            await client.post("/v1/sample", content=b"{}"),
            await client.get("/docs"),
            await client.post("/v1/models"),
            await client.get("/v1/models"),
        ]

    answers = asked(ask)
    assert [answer.status_code for answer in answers] == [404, 405, 415, 415, 404, 405, 200]
    assert all(answer.json()["error"]["message"] for answer in answers[:-1])
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert answers[1].headers["allow"] == "POST"


def test_large_bodies_are_refused_with_and_without_their_length() -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b" " * 100

    async def ask(client: httpx.AsyncClient) -> Any:
        fits = await client.post("/v1/sample", content=b'{"labels": 1}'.ljust(1000), headers=JSON)
        whole = await client.post("/v1/sample", content=b" " * 1001, headers=JSON)
        parts = await client.post("/v1/sample", content=pieces(), headers=JSON)
        return fits, whole, parts

    fits, whole, parts = asked(ask, served("maskgit", max_body=1000))
    assert fits.status_code == 200
    for answer in (whole, parts):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body")


def test_tokens_are_asked_for() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        assert (await client.get("/healthz")).status_code == 200
        statuses = []
        for given in (None, "Bearer", "Bearer ", "Bearer wrong", "Basic s3cret", "s3cret", "Bearer s3cret"):
            headers = {} if given is None else {"Authorization": given}
            answer = await client.post("/v1/sample", json={"labels": 1}, headers=headers)
            statuses.append(answer.status_code)
            if answer.status_code == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
                assert "s3cret" not in answer.text
        closed = [(await client.get(path)).status_code for path in ("/v1/models", "/metrics", "/openapi.json", "/x")]
        assert closed == [401] * 4
        return statuses

    assert asked(ask, token="s3cret") == [401] * 6 + [200]


def test_pictures_of_many_requests_have_one_limit() -> None:
    """Bodies that come slowly take memory too; what is short is let in even then, and a place is free again after."""
    part = b'{"labels": 1, "image": "' + b"A" * (2**20 + TEXT - 100)

    async def ask(client: httpx.AsyncClient) -> Any:
        go, begun = asyncio.Event(), asyncio.Semaphore(0)

        async def slowly() -> Any:
            yield part
            begun.release()  # asked for more, so the first part was read
            await go.wait()
            yield b'"}'

        coming = [asyncio.create_task(client.post("/v1/edit", content=slowly(), headers=JSON)) for _ in range(3)]
        for _ in coming:
            await begun.acquire()
        refused = await client.post("/v1/edit", content=part + b'"}', headers=JSON)
        short = await client.post("/v1/plan", json={})
        go.set()
        answers = await asyncio.gather(*coming)
        return refused, short, *answers, await client.post("/v1/edit", content=part + b'"}', headers=JSON)

    refused, short, *others = asked(ask, served("maskgit", max_held=3 * 2**20))
    assert (refused.status_code, refused.headers["retry-after"], short.status_code) == (429, "1", 200)
    assert {answer.json()["error"]["code"] for answer in others} == {"refused"}  # say what to draw anew


def test_nothing_leads_elsewhere() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return [
            await client.get(path) for path in ("/v1/models/", "/static", f"/static/{'x' * 300}", "/static/a%00b")
        ]

    assert [answer.status_code for answer in asked(ask)] == [404] * 4


def test_faults_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = served("maskgit")

    def broken(*_: Any) -> Any:
        raise KeyError("a secret of the machine")

    monkeypatch.setattr(worker, "checked", broken)
    answer = asked(post("/v1/sample", {"labels": 1}), worker)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "failed")
    assert "secret" not in answer.text


@pytest.mark.parametrize(
    ("hosts", "host", "fine"),
    [
        ((), "localhost:7860", True),
        ((), "LOCALHOST", True),
        ((), "127.0.0.1", True),
        ((), "[::1]:7860", True),
        ((), "evil.example", False),
        ((), "evil.example:7860", False),
        ((), "localhost.evil.example", False),
        ((), "10.0.0.7", False),
        (("10.0.0.7",), "10.0.0.7:7860", True),
        (("0.0.0.0",), "10.0.0.7:7860", True),
        (("0.0.0.0",), "[fe80::1]:7860", True),
        (("0.0.0.0",), "evil.example", False),
        (("0.0.0.0", "box.example"), "box.example:80", True),
        (("*",), "box.example", True),
    ],
)
@pytest.mark.parametrize("token", [None, "s3cret"])
def test_other_names_are_not_answered(hosts: tuple[str, ...], host: str, fine: bool, token: str | None) -> None:
    """A page that lets its own name point here must not get at the answers, token or not."""
    safe = Guard(Response("ok"), limits=Limits(), hosts=hosts, token=token)
    headers = {"Host": host, "Authorization": "Bearer s3cret"}

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(safe), base_url="http://127.0.0.1") as client:
            return await client.get("/v1/models", headers=headers)

    answer = asyncio.run(run())
    assert answer.status_code == (200 if fine else 421)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
