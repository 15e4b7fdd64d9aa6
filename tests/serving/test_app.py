"""The endpoints: the same images as the command line, and a clear word for everything else."""

import asyncio
import base64
import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

import httpx

from recap.cli import main
from recap.images import box_mask
from recap.serving.answers import png
from recap.serving.limits import Limits
from recap.serving.service import Service
from tests.serving.served import asked, few, metric, small
from tests.test_pipeline import FAMILIES


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for family in FAMILIES:
        few(family).save_pretrained(tmp_path / family)
    pixels = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.png")
    mask = np.zeros((12, 20), np.uint8)
    mask[:, 11:] = 255
    Image.fromarray(mask).save("mask.png")
    return tmp_path


def text(path: str) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode()


def pngs(answer: httpx.Response) -> list[bytes]:
    assert answer.status_code == 200, answer.text
    return [base64.b64decode(image["png"]) for image in answer.json()["images"]]


def by_command(*argv: str) -> list[bytes]:
    assert main([*argv, "--out", "out"]) == 0
    return [path.read_bytes() for path in sorted(Path("out").glob("0*.png"))]


def served(family: str, **limits: Any) -> Service:
    return Service(few(family), family, small(**limits))


def post(path: str, body: Any, **options: Any) -> Callable[[httpx.AsyncClient], Any]:
    return lambda client: client.post(path, json=body, **options)


def raw(body: bytes) -> Callable[[httpx.AsyncClient], Any]:
    return lambda client: client.post("/v1/sample", content=body, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_images_as_the_command_line(place: Path, family: str) -> None:
    """Asked for at once, one by one, and by several clients with others between."""
    labels: Any = {} if family == "mage" else {"labels": [3, 1]}
    argv = [] if family == "mage" else ["--labels", "3,1"]
    more = ["--full", "5", "--local", "3", "--chain", "3", "--plain", "4", "--temperature", "0.9"]
    wish: Any = {"full": 5, "local": 3, "chain": 3, "plain": 4, "temperature": 0.9, "seed": 7, **labels}
    if family != "mage":
        more, wish = [*more, "--guidance", "2"], {**wish, "guidance": 2.0}
    written = by_command("sample", "--model", family, "--num", "8", "--batch", "1", "--seed", "7", *argv, *more)

    async def ask(client: httpx.AsyncClient) -> Any:
        together = client.post("/v1/sample", json={**wish, "num": 8})
        single = [client.post("/v1/sample", json={**wish, "num": 1, "first": index}) for index in (5, 2, 7)]
        other = client.post("/v1/sample", json={**labels, "seed": 1, "num": 2})
        return await asyncio.gather(together, *single, other)

    together, *single, other = asked(ask, served(family, queue=64))
    assert pngs(together) == written
    assert [pngs(answer) for answer in single] == [[written[index]] for index in (5, 2, 7)]
    assert pngs(other) != written[:2]
    own = together.json()
    assert (own["schedule"]["full"], own["schedule"]["local"], own["seed"]) == (5, 3, 7)
    assert [image["index"] for image in own["images"]] == list(range(8))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("paste", [False, True])
def test_the_same_edits_as_the_command_line(place: Path, family: str, paste: bool) -> None:
    labels: Any = {} if family == "mage" else {"labels": [3, 1]}
    argv = ["edit", "--model", family, "--image", "photo.png", "--fit", "--num", "4", "--batch", "1", "--seed", "5"]
    argv += [] if family == "mage" else ["--labels", "3,1"]
    argv += ["--paste"] if paste else []
    masked = by_command(*argv, "--mask", "mask.png")
    boxed = by_command(*argv, "--redraw", "1,1,5,4", "--full", "2")
    body = {"image": text("photo.png"), "fit": True, "paste": paste, "num": 4, "seed": 5, **labels}

    async def ask(client: httpx.AsyncClient) -> Any:
        return await asyncio.gather(
            client.post("/v1/edit", json={**body, "mask": text("mask.png")}),
            client.post("/v1/edit", json={**body, "redraw": [1, 1, 5, 4], "full": 2}),
        )

    by_mask, by_box = asked(ask, served(family))
    assert pngs(by_mask) == masked
    assert pngs(by_box) == boxed
    assert masked != boxed


def test_clients_share_batches() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        bodies = [{"labels": 1, "seed": seed, "full": 3 + seed % 2} for seed in range(8)]
        answers = await asyncio.gather(*(client.post("/v1/sample", json=body) for body in bodies))
        alone = [await client.post("/v1/sample", json=body) for body in bodies]
        return [pngs(answer) for answer in answers], [pngs(answer) for answer in alone], await client.get("/metrics")

    together, alone, metrics = asked(ask, served("maskgit"))
    assert together == alone
    batches = metric(metrics.text, "recap_batch_images_count")
    assert 10 <= batches < 16  # eight alone, and at least some of the others together
    assert metric(metrics.text, "recap_images_total") == metric(metrics.text, "recap_batch_images_sum") == 16


def test_forms_of_an_answer() -> None:
    one, two = {"labels": 1, "seed": 2}, {"labels": [1, 3], "seed": 2, "first": 0}

    async def ask(client: httpx.AsyncClient) -> Any:
        async def get(body: Any, accept: str | None = None) -> httpx.Response:
            return await client.post("/v1/sample", json=body, headers={} if accept is None else {"Accept": accept})

        plain = await get(one)
        assert plain.headers["content-type"] == "application/json"
        for body, accept in (({**one, "format": "png"}, None), (one, "image/png"), (one, "image/*, */*;q=0.1")):
            answer = await get(body, accept)
            assert answer.headers["content-type"] == "image/png"
            assert [answer.content] == pngs(plain)
        for body, accept in (({**two, "format": "zip"}, "image/png"), (two, "text/html, application/zip;q=0.2")):
            answer = await get(body, accept)
            assert answer.headers["content-type"] == "application/zip"
            with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
                assert archive.namelist() == ["000000.png", "000001.png"]
                assert [archive.read(name) for name in archive.namelist()] == pngs(await get(two))
        assert (await get(two, "image/png")).status_code == 422
        assert (await get({**two, "format": "png"})).status_code == 422
        for accept in ("text/html", "image/png;q=0", "image/png;q=high"):
            answer = await get(one, accept)
            assert (answer.status_code, answer.json()["error"]["code"]) == (406, "format")

    asked(ask)


def test_models_say_what_is_served() -> None:
    service = served("maskgit")
    service.pipe.class_names = ("rose", "tulip", "daisy", "lily", "aster")

    async def ask(client: httpx.AsyncClient) -> Any:
        named = await client.post("/v1/sample", json={"labels": ["Tul", "lily"], "num": 3})
        return (await client.get("/v1/models")).json(), named.json()

    told, named = asked(ask, service)
    (model,) = told["models"]
    assert (model["name"], model["family"], model["classes"], model["image_size"]) == ("maskgit", "maskgit", 5, 8)
    assert model["class_names"] == ["rose", "tulip", "daisy", "lily", "aster"]
    assert model["schedule"] == {"full": 6, "local": 4, "plain": 2, "guided": False}
    assert set(model["limits"]) == {field.name for field in fields(Limits)}
    assert [(image["label"], image["name"]) for image in named["images"]] == [(1, "tulip"), (3, "lily"), (1, "tulip")]


def test_plans_cost_nothing() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        answer = await client.post("/v1/plan", json={"full": 6, "local": 4})
        return answer.json(), (await client.get("/metrics")).text

    cost, metrics = asked(ask)
    assert (cost["full"], cost["local"], sum(cost["tokens"])) == (6, 4, 16)
    assert cost["speedup"] == pytest.approx(cost["flops_plain"] / cost["flops"])
    assert cost["speedup"] > 1
    assert metric(metrics, "recap_images_total") == 0


PIXEL = base64.b64encode(png(Image.new("RGB", (8, 8)))).decode()
BAD: list[tuple[str, Any, int, str]] = [
    ("/v1/sample", {"num": 9}, 422, "9 images were asked for, but 8 are allowed"),
    ("/v1/sample", {"num": 0}, 422, "greater than or equal to 1"),
    ("/v1/sample", {"num": "3"}, 422, "valid integer"),
    ("/v1/sample", {"num": True}, 422, "valid integer"),
    ("/v1/sample", {"labels": [1, None]}, 422, "labels"),
    ("/v1/sample", {"labels": []}, 422, "labels"),
    ("/v1/sample", {"labels": 5}, 422, "label 5 is out of range"),
    ("/v1/sample", {"labels": "rose"}, 422, "no class names"),
    ("/v1/sample", {"seed": 2**63}, 422, "seed"),
    ("/v1/sample", {"seed": 1.5}, 422, "seed"),
    ("/v1/sample", {"seeds": 1}, 422, "seeds"),
    ("/v1/sample", {"se\ud800ed": 1}, 422, "ud800"),
    ("/v1/sample", {"labels": "\ud800"}, 422, "labels"),
    ("/v1/sample", {"full": 4000}, 422, "4000 evaluations an image were asked for, but 64 are allowed"),
    ("/v1/sample", {"full": 17}, 422, "no room in 16 tokens"),
    ("/v1/sample", {"full": 2, "local": 3}, 422, "have no room in 2 groups"),
    ("/v1/sample", {"total": 10**400}, 422, "total"),
    ("/v1/sample", {"guidance": 1e9}, 422, "guidance"),
    ("/v1/sample", {"guidance": [1, 2, 3]}, 422, "guidance"),
    ("/v1/sample", {"temperature": 0}, 422, "temperature"),
    ("/v1/sample", {"timeout": -1}, 422, "timeout"),
    ("/v1/sample", {"format": "gif"}, 422, "format"),
    ("/v1/sample", [], 422, "body"),
    ("/v1/sample", None, 422, "body"),
    ("/v1/edit", {"labels": 1}, 422, "image"),
    ("/v1/edit", {"image": PIXEL, "redraw": [0, 0, 2, 2]}, 422, "say with labels what is to be drawn"),
    ("/v1/edit", {"image": PIXEL, "labels": 1}, 422, "either"),
    ("/v1/edit", {"image": "?", "labels": 1, "redraw": [0, 0, 2, 2]}, 422, "the image is no base64"),
    ("/v1/edit", {"image": "", "labels": 1, "redraw": [0, 0, 2, 2]}, 422, r"\(0 bytes\) is no picture"),
    ("/v1/edit", {"image": PIXEL[:60], "labels": 1, "redraw": [0, 0, 2, 2]}, 422, "the image .*; send a whole PNG"),
    ("/v1/edit", {"image": PIXEL, "labels": 1, "mask": "AAAA"}, 422, "the mask"),
    ("/v1/edit", {"image": PIXEL, "labels": 1, "redraw": [0, 0, 99, 2]}, 422, "no part of 8 x 8"),
    ("/v1/plan", {"full": 2, "local": 3}, 422, "have no room in 2 groups"),
    ("/v1/plan", {"labels": 1}, 422, "labels"),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), BAD, ids=lambda value: str(value)[:40])
def test_what_cannot_be_is_refused_in_a_sentence(path: str, body: Any, status: int, message: str) -> None:
    sent: Any = {"content": json.dumps(body), "headers": {"Content-Type": "application/json"}}
    answer = asked(lambda client: client.post(path, **sent), served("maskgit", max_steps=64))
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"code", "message"}
    assert re.search(message, error["message"]), error
    assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"num": 1,}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"num": NaN',
        b'{"num": ' + b"9" * 5000 + b"}",
        b"\x00",
    ],
    ids=lambda body: repr(body[:12]),
)
def test_malformed_json_is_no_fault_of_the_server(body: bytes) -> None:
    answer = asked(raw(body))
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["message"]


def test_numbers_that_are_none_are_refused() -> None:
    for value in ("NaN", "Infinity", "-Infinity", "1e400"):
        body = f'{{"labels": 1, "guidance": {value}}}'.encode()
        assert asked(raw(body)).status_code == 422


def test_other_paths_methods_and_types_are_answered_in_json() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return [
            await client.get("/v1/nothing"),
            await client.get("/v1/sample"),
            await client.post("/v1/sample", content=b"labels=1", headers={"Content-Type": "text/plain"}),
            await client.post("/v1/sample", content=b"{}"),
            await client.get("/docs"),
            await client.post("/v1/models"),
        ]

    answers = asked(ask)
    assert [answer.status_code for answer in answers] == [404, 405, 415, 415, 404, 405]
    assert all(answer.json()["error"]["message"] for answer in answers)
    assert answers[1].headers["allow"] == "POST"


def test_large_bodies_are_refused_with_and_without_their_length() -> None:
    limits: Any = {"max_body": 1000}
    headers = {"Content-Type": "application/json"}

    async def pieces() -> Any:
        for _ in range(100):
            yield b" " * 100

    async def ask(client: httpx.AsyncClient) -> Any:
        fits = await client.post("/v1/sample", content=b'{"labels": 1}'.ljust(1000), headers=headers)
        whole = await client.post("/v1/sample", content=b" " * 1001, headers=headers)
        parts = await client.post("/v1/sample", content=pieces(), headers=headers)
        return fits, whole, parts

    fits, whole, parts = asked(ask, served("maskgit", **limits))
    assert fits.status_code == 200
    for answer in (whole, parts):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body")


def test_bombs_are_refused_before_they_are_unpacked() -> None:
    def boxed(image: str) -> Any:
        return {"image": image, "labels": 1, "redraw": [0, 0, 2, 2], "fit": True}

    answers = []
    for side in (300, 12_000, 20_000):  # over our limit, where Pillow warns, and where it refuses
        Image.new("1", (side, side)).save(file := io.BytesIO(), "PNG")
        image = base64.b64encode(file.getvalue()).decode()
        answers.append(asked(post("/v1/edit", boxed(image)), served("maskgit", max_pixels=200 * 200)))
    assert [answer.status_code for answer in answers] == [422, 422, 422]
    assert all("pixels" in answer.json()["error"]["message"] for answer in answers)
    box_mask(8, 0, 0, 8, 8).save(file := io.BytesIO(), "GIF")
    gif = asked(post("/v1/edit", boxed(base64.b64encode(file.getvalue()).decode())))
    assert gif.status_code == 422
    assert "is no picture; send a whole PNG, JPEG, WEBP" in gif.json()["error"]["message"]


def test_tokens_are_asked_for() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        health = [(await client.get(path)).status_code for path in ("/healthz", "/readyz")]
        assert health == [200, 200]
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


def test_time_is_up() -> None:
    service = served("mar", timeout=0.2)
    service.pipe.sampling = replace(service.pipe.sampling, head_steps=(500, 500))

    async def ask(client: httpx.AsyncClient) -> Any:
        late = await client.post("/v1/sample", json={"labels": 1, "num": 8, "full": 16})
        return late, (await client.get("/metrics")).text, (await client.get("/readyz")).status_code

    late, metrics, ready = asked(ask, service)
    assert late.status_code == 504
    assert "not drawn in time" in late.json()["error"]["message"]
    assert int(late.headers["retry-after"]) >= 1
    assert ready == 200
    assert metric(metrics, "recap_queue_images") == 0
    assert metric(metrics, 'recap_requests_total{endpoint="/v1/sample",outcome="timeout"}') == 1


def test_a_full_queue_is_answered_and_all_that_is_accepted_is_drawn() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        bodies = [{"labels": 1, "num": 4, "seed": seed} for seed in range(10)]
        answers = await asyncio.gather(*(client.post("/v1/sample", json=body) for body in bodies))
        return answers, (await client.get("/metrics")).text

    answers, metrics = asked(ask, served("maskgit"))
    statuses = [answer.status_code for answer in answers]
    assert set(statuses) == {200, 429}
    refused = [answer for answer in answers if answer.status_code == 429]
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert all(answer.json()["error"]["code"] == "full" for answer in refused)
    assert metric(metrics, "recap_images_total") == 4 * statuses.count(200)
    assert metric(metrics, 'recap_requests_total{endpoint="/v1/sample",outcome="full"}') == statuses.count(429)


def test_a_crowd_is_turned_away_before_it_is_read() -> None:
    """Bodies that come slowly take memory too: one place in the queue and one in the batch make eight of them."""

    async def ask(client: httpx.AsyncClient) -> Any:
        go = asyncio.Event()

        async def slowly() -> Any:
            yield b'{"labels": 1'
            await go.wait()
            yield b"}"

        headers = {"Content-Type": "application/json"}
        slow = [asyncio.create_task(client.post("/v1/plan", content=slowly(), headers=headers)) for _ in range(8)]
        await asyncio.sleep(0.2)
        refused = await client.post("/v1/plan", json={})
        health = await client.get("/healthz")
        go.set()
        await asyncio.gather(*slow)
        return refused, health, await client.post("/v1/plan", json={})

    refused, health, after = asked(ask, served("maskgit", queue=1, batch=1, max_images=1))
    assert (refused.status_code, health.status_code, after.status_code) == (429, 200, 200)


def test_faults_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    service = served("maskgit")

    def broken(*_: Any) -> Any:
        raise KeyError("a secret of the machine")

    monkeypatch.setattr(service, "aside", broken)
    answer = asked(post("/v1/sample", {"labels": 1}), service)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "failed")
    assert "secret" not in answer.text


def test_limits_must_make_sense() -> None:
    for bad in ({"batch": 0}, {"timeout": float("inf")}, {"queue": 4, "max_images": 5}, {"max_body": -1}):
        with pytest.raises(ValueError, match="--"):
            small(**bad)
    with pytest.raises(ValueError, match="--max-steps is 9 but the model's own schedule has 10"):
        served("maskgit", max_steps=9)
