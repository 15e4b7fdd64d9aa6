"""The endpoints: a clear answer for everything, and nothing that breaks the server."""

import asyncio
import base64
import io
import json
import re
import time
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

import httpx

import recap
from recap.server.app import PAGE
from recap.server.guard import HEADERS
from recap.server.record import encoded
from recap.view.images import box_mask
from tests.server.served import asked, few, metric, pngs, post, served, small

JSON = {"Content-Type": "application/json"}


def test_clients_share_batches() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        bodies = [{"labels": 1, "seed": seed, "full": 3 + seed % 2} for seed in range(8)]
        answers = await asyncio.gather(*(client.post("/v1/sample", json=body) for body in bodies))
        alone = [await client.post("/v1/sample", json=body) for body in bodies]
        return [pngs(answer) for answer in answers], [pngs(answer) for answer in alone], await client.get("/metrics")

    together, alone, metrics = asked(ask)
    assert together == alone
    batches = metric(metrics.text, "recap_batch_images_count")
    assert 10 <= batches < 16  # eight alone, and at least some of the others together
    assert metric(metrics.text, "recap_images_total") == metric(metrics.text, "recap_batch_images_sum") == 16


def test_forms_of_an_answer() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        async def get(labels: list[int], form: str) -> httpx.Response:
            return await client.post("/v1/sample", json={"labels": labels, "seed": 2, "format": form})

        one = await get([1], "png")
        assert one.headers["content-type"] == "image/png"
        assert [one.content] == pngs(await get([1], "json"))
        two = await get([1, 3], "zip")
        assert two.headers["content-type"] == "application/zip"
        with zipfile.ZipFile(io.BytesIO(two.content)) as archive:
            assert archive.namelist() == ["000000.png", "000001.png"]
            assert [archive.read(name) for name in archive.namelist()] == pngs(await get([1, 3], "json"))
        assert (await get([1, 3], "png")).status_code == 422

    asked(ask)


def test_models_say_what_is_served() -> None:
    worker = served()
    worker.models["maskgit"].class_names = ("rose", "tulip", "daisy", "lily", "aster")

    async def ask(client: httpx.AsyncClient) -> Any:
        named = await client.post("/v1/sample", json={"labels": ["Tul", "lily"], "num": 3})
        return (await client.get("/v1/models")).json(), named.json()

    told, named = asked(ask, worker)
    assert (told["default"], told["version"]) == ("maskgit", recap.__version__)
    assert told["limits"] == asdict(small())
    for model, name in zip(told["models"], ("maskgit", "mar", "mage"), strict=True):
        assert (model["name"], model["family"], model["image_size"], model["tokens"]) == (name, name, 8, 16)
        schedule, own = model["schedule"], few(name).schedule()
        assert (schedule["full"], schedule["local"], schedule["chain"]) == (6, 4, 1)
        assert (schedule["warmup"], schedule["guided"]) == (own.warmup, own.guided)
        assert recap.SamplingOptions.from_json(model["sampling"]).text == schedule["options"]
    assert told["models"][0]["class_names"] == ["rose", "tulip", "daisy", "lily", "aster"]
    assert [(image["label"], image["name"]) for image in named["images"]] == [(1, "tulip"), (3, "lily"), (1, "tulip")]


def test_models_are_chosen_by_name() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        body = {"seed": 3, "num": 2}
        several = [client.post("/v1/sample", json={**body, "model": name}) for name in ("mage", "maskgit", "mage")]
        return [(answer.json()["model"], pngs(answer)) for answer in await asyncio.gather(*several)]

    one, two, three = asked(ask, served())
    assert (one[0], two[0]) == ("mage", "maskgit")
    assert one == three != two


def test_plans_cost_nothing() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        bodies: list[Any] = [{"full": 5, "local": 4, "chain": 2}, {"schedule": "5+4:chain=2"}, {}]
        answers = [(await client.post("/v1/plan", json=body)).json() for body in bodies]
        return answers, (await client.get("/metrics")).text

    (cost, same, own), metrics = asked(ask)
    assert cost == same
    assert (cost["schedule"]["full"], cost["schedule"]["local"], cost["schedule"]["warmup"]) == (5, 4, 3)
    assert sum(map(sum, cost["groups"])) == 16
    assert [len(group) for group in cost["groups"]] == [1, 1, 1, 3, 3]
    assert cost["speedup"] == pytest.approx(cost["flops_plain"] / cost["flops"])
    assert cost["speedup"] > 1
    assert cost["cache_bytes"] > 0
    assert (own["schedule"]["full"], own["schedule"]["local"]) == (6, 4)
    assert metric(metrics, "recap_images_total") == 0


PIXEL = base64.b64encode(encoded(Image.new("RGB", (8, 8)))).decode()
WHITE = base64.b64encode(encoded(Image.new("L", (8, 8), 255))).decode()
BLACK = base64.b64encode(encoded(Image.new("L", (8, 8), 0))).decode()
WIDE = base64.b64encode(encoded(Image.new("L", (9, 8), 255))).decode()
LARGE = base64.b64encode(encoded(Image.new("1", (400, 400)))).decode()
PAINTED: Any = {"labels": [1], "image": PIXEL, "mask": WHITE, "fit": True}
BAD: list[tuple[str, Any, int, str]] = [
    ("/v1/sample", {"num": 9}, 422, "9 images were asked for, but 8 are allowed"),
    ("/v1/sample", {"num": 0}, 422, "greater than or equal to 1"),
    ("/v1/sample", {"labels": 5}, 422, "label 5 is out of range"),
    ("/v1/sample", {"labels": "rose"}, 422, "no class names"),
    ("/v1/sample", {"seed": 2**63}, 422, "seed"),
    ("/v1/sample", {"seeds": 1}, 422, "seeds"),
    ("/v1/sample", {"se\ud800ed": 1}, 422, "ud800"),
    ("/v1/sample", {"full": 4000}, 422, "4000 evaluations an image were asked for, but 64 are allowed"),
    ("/v1/sample", {"full": 17}, 422, "no room in 16 tokens"),
    ("/v1/sample", {"full": 2, "local": 3}, 422, "have no room in 2 groups"),
    ("/v1/sample", {"full": 10**400}, 422, "full"),
    ("/v1/sample", {"schedule": f"{10**12}+5"}, 422, "an integer from 1 to"),
    ("/v1/sample", {"schedule": "9+9", "local": 1}, 422, "says local already"),
    ("/v1/sample", {"schedule": "9:warm=1"}, 422, "warm=1"),
    ("/v1/sample", {"preset": "dalle"}, 422, "preset is 'dalle'"),
    ("/v1/sample", {"head_steps": [4, 3]}, 422, "no diffusion head"),
    ("/v1/sample", {"order": "raster"}, 422, "order is 'raster'"),
    ("/v1/sample", {"model": "maskgid"}, 422, "no model is called 'maskgid'; there are maskgit, mage"),
    ("/v1/sample", {"model": "mage", "labels": 1}, 422, "unconditional"),
    ("/v1/sample", {"model": "mage", "guidance": 2.0}, 422, "no null class"),
    ("/v1/sample", {"guidance": 1e9}, 422, "guidance"),
    ("/v1/sample", {"temperature": -1}, 422, "temperature"),
    ("/v1/sample", [], 422, "body"),
    ("/v1/edit", {"image": PIXEL, "redraw": [0, 0, 2, 2]}, 422, "say with labels what is to be drawn"),
    ("/v1/edit", {"image": PIXEL, "labels": 1}, 422, "either"),
    ("/v1/edit", {"image": "?", "labels": 1, "redraw": [0, 0, 2, 2]}, 422, "the image is no base64"),
    ("/v1/edit", {"image": "", "labels": 1, "redraw": [0, 0, 2, 2]}, 422, r"\(0 bytes\) is damaged or no picture"),
    ("/v1/edit", {"image": PIXEL[:60], "labels": 1, "redraw": [0, 0, 2, 2]}, 422, "the image .*; send a whole PNG"),
    ("/v1/edit", {"image": PIXEL, "labels": 1, "redraw": [0, 0, 99, 2]}, 422, "no part of 8 x 8"),
    ("/v1/plan", {"labels": 1}, 422, "labels"),
    ("/api/compare", {"compare": "yes"}, 422, "compare"),
    ("/api/compare", {"mask": WHITE, "labels": 1}, 422, "image"),
    ("/api/compare", {"image": PIXEL, "mask": WHITE}, 422, "say with labels what is to be drawn"),
    ("/api/compare", PAINTED | {"image": "AAAA"}, 422, "the image .* no picture"),
    ("/api/compare", PAINTED | {"mask": BLACK}, 422, "empty"),
    ("/api/compare", PAINTED | {"mask": WIDE}, 422, "9 x 8 pixels but the image 8 x 8"),
    ("/api/compare", PAINTED | {"image": LARGE}, 422, "400 x 400 pixels, more than the 100000 allowed"),
    ("/api/compare", PAINTED | {"mask": LARGE}, 422, "the mask has 400 x 400 pixels"),
]


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return [await client.post(path, content=json.dumps(body), headers=JSON) for path, body, _, _ in BAD]

    answers = asked(ask, served("maskgit", "mage", max_steps=64, max_pixels=100_000))
    for answer, (_, body, status, message) in zip(answers, BAD, strict=True):
        assert answer.status_code == status, (body, answer.text[:200])
        error = answer.json()["error"]
        assert set(error) == {"code", "message"}
        assert re.search(message, error["message"]), (body, error)
        assert "Traceback" not in answer.text


def test_names_with_a_slip_get_suggestions() -> None:
    worker = served("maskgit")
    worker.models["maskgit"].class_names = ("rose", "tulip", "daisy", "lily", "aster")
    answer = asked(post("/api/compare", {"labels": ["tulpi"]}), worker)
    assert answer.status_code == 422
    assert "did you mean 'tulip'" in answer.json()["error"]["message"]


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
    assert "no picture; send a whole PNG, JPEG, WEBP" in gif.json()["error"]["message"]


def test_time_is_up() -> None:
    def held(pipe: Any, works: Any, *, cancelled: Any) -> Any:
        while not all(map(cancelled, works)):
            time.sleep(0.005)
        yield from ()

    worker = served("maskgit", draws={"draw": held}, timeout=0.2)

    async def ask(client: httpx.AsyncClient) -> Any:
        late = await client.post("/v1/sample", json={"labels": 1, "num": 8})
        return late, (await client.get("/metrics")).text, (await client.get("/healthz")).status_code

    late, metrics, ready = asked(ask, worker)
    assert late.status_code == 504
    assert "were not drawn in 0.2 s" in late.json()["error"]["message"]
    assert int(late.headers["retry-after"]) >= 1
    assert ready == 200
    assert metric(metrics, "recap_queue_images") == 0
    assert metric(metrics, 'recap_requests_total{endpoint="/v1/sample",status="504"}') == 1


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
    assert metric(metrics, 'recap_requests_total{endpoint="/v1/sample",status="429"}') == statuses.count(429)


def test_limits_must_make_sense() -> None:
    for bad in ({"batch": 0}, {"timeout": float("inf")}, {"queue": 4, "max_images": 5}, {"max_body": -1}):
        with pytest.raises(ValueError, match="--"):
            small(**bad)


def test_the_page_and_nothing_else_is_given_out() -> None:
    names = [path.name for path in sorted(PAGE.iterdir())]
    others = ("../app.py", "..%2fapp.py", "%2e%2e/schema.py", "nothing.js")

    async def ask(client: httpx.AsyncClient) -> Any:
        page = await client.get("/")
        return page, [await client.get(f"/static/{name}") for name in (*names, *others)]

    page, parts = asked(ask)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == (PAGE / "index.html").read_bytes()
    kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
    for name, part in zip(names, parts, strict=False):
        assert part.content == (PAGE / name).read_bytes()
        assert part.headers["content-type"].startswith(kinds.get(Path(name).suffix, ""))
        assert {header: part.headers[header] for header in HEADERS} == HEADERS
    assert {part.status_code for part in parts[len(names) :]} == {404}
