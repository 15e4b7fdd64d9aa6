"""The endpoints: streams that tell the whole run, and a clear word for everything else."""

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra demo brings it")

import httpx

import recap
from recap.distributed.drawing import png
from recap.serving.guard import Escaped
from recap.studio.app import PAGE
from recap.studio.safety import HEADERS, Safety
from tests.studio.visits import asked, drawn, pngs, studio, told
from tests.test_pipeline import FAMILIES

Models = dict[str, Path]


@pytest.mark.parametrize("family", FAMILIES)
def test_events_tell_the_whole_run(models: Models, family: str) -> None:
    started, *middle, done = drawn(studio(models), model=family, num=2, full=4, local=3, drift=True)
    assert (started["event"], started["model"], started["images"], started["grid"]) == ("started", family, 2, 4)
    assert [pane["evaluations"] for pane in started["panes"]] == ["7", "4+3"]
    for pane in started["panes"]:
        name, tokens = pane["pane"], pane["tokens"]
        own = [event for event in middle if event["pane"] == name]
        frames = [event for event in own if event["event"] == "frame"]
        assert [(frame["image"], frame["step"]) for frame in frames] == [(i, s) for i in (0, 1) for s in range(1, 8)]
        assert [frame["evaluation"] for frame in frames] == pane["kinds"] * 2
        assert [frame["decoded"] for frame in frames] == [int(total) for total in np.cumsum(tokens)] * 2
        for frame in frames:
            assert len(frame["cells"]) == started["grid"] ** 2
            assert frame["cells"].count("2") == tokens[frame["step"] - 1]
            assert frame["cells"].count("2") + frame["cells"].count("3") == frame["decoded"]
            measured = name == "reused" and frame["evaluation"] == "local"
            assert frame["drift"] >= 0 if measured else frame["drift"] is None
        assert frames[0]["picture"] is not None
        assert frames[-1]["picture"] is not None
        clocks = [event["seconds"] for event in own]
        assert clocks == sorted(clocks)
        assert clocks[-1] == done["seconds"][name]
    assert done["event"] == "done"
    assert done["run"] == started["run"]
    assert done["speedup"] == pytest.approx(done["seconds"]["plain"] / done["seconds"]["reused"])
    images = [[picture_of(file) for file in pngs(middle, pane)] for pane in ("plain", "reused")]
    assert done["difference"] == pytest.approx([np.abs(one - two).mean() for one, two in zip(*images, strict=True)])


def picture_of(file: bytes) -> Any:
    Path("one.png").write_bytes(file)
    with Image.open("one.png") as picture:
        return np.asarray(picture, dtype=float)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_one_pane_where_there_is_nothing_to_compare(models: Models) -> None:
    plain = drawn(studio(models), full=4, local=0)
    assert [pane["pane"] for pane in plain[0]["panes"]] == ["plain"]
    reused = drawn(studio(models), full=4, local=2, compare=False)
    assert [pane["pane"] for pane in reused[0]["panes"]] == ["reused"]
    for events in (plain, reused):
        assert (events[-1]["speedup"], events[-1]["difference"]) == (None, None)


def test_models_are_told_from_their_configurations(models: Models) -> None:
    def never(folder: Path) -> Any:
        raise AssertionError(f"{folder} was loaded")

    answer = asked(studio(models, never, max_images=3, max_steps=99, queue=5), lambda c: c.get("/api/models")).json()
    assert (answer["default"], answer["version"]) == ("maskgit", recap.__version__)
    assert answer["limits"] == {"images": 3, "steps": 99, "queue": 5, "pixels": 2**24, "body": 2**23}
    by_name = {model["name"]: model for model in answer["models"]}
    assert list(by_name) == ["maskgit", "mar", "mage"]
    assert [by_name[name]["classes"] for name in by_name] == [5, 5, 0]
    for name, model in by_name.items():
        assert (model["family"], model["side"], model["grid"], model["tokens"]) == (name, 8, 4, 16)
        assert (model["own"]["full"], model["own"]["local"], model["own"]["chain"]) == (6, 4, 1)
    assert [model["own"]["guidance"] for model in answer["models"]] == [1.0, [1.0, 3.0], None]


def test_few_models_stay_in_memory(models: Models) -> None:
    loaded = []

    def load(folder: Path) -> Any:
        loaded.append(folder.name)
        return recap.load(folder)

    place = studio(models, load, max_models=2)
    for name in ("maskgit", "mar", "maskgit", "mage", "maskgit", "mar"):
        place.shelf.pipeline(name)
    assert loaded == ["maskgit", "mar", "mage", "mar"]


def test_plans_predict_what_was_measured(models: Models) -> None:
    place = studio(models)

    async def ask(client: httpx.AsyncClient) -> Any:
        async def cost(**body: Any) -> Any:
            return (await client.post("/api/plan", json=body)).json()

        before = await cost(full=5, local=4, chain=2)
        done = told(await client.post("/api/generate", json={"full": 5, "local": 4, "chain": 2, "num": 2}))[-1]
        return before, done, await cost(full=5, local=4, chain=2), await cost(full=9), await cost(model="mar", full=4)

    before, done, after, plain, other = asked(place, ask)
    assert before["seconds"] is None
    assert other["seconds"] is None
    assert after == {**before, "seconds": after["seconds"]}
    assert (before["full"], before["local"], before["chain"], before["plain"]) == (5, 4, 2, 3)
    assert sum(map(sum, before["groups"])) == 16
    assert [len(group) for group in before["groups"]] == [1, 1, 1, 3, 3]
    assert before["speedup"] == pytest.approx(before["flops_plain"] / before["flops"])
    assert before["cache_bytes"] > 0
    for pane in ("plain", "reused"):
        assert 0.1 < after["seconds"][pane] / (done["seconds"][pane] / 2) < 10  # whatever else the machine does
    assert plain["seconds"]["plain"] == plain["seconds"]["reused"]


PIXEL = base64.b64encode(png(Image.new("RGB", (8, 8)))).decode()
WHITE = base64.b64encode(png(Image.new("L", (8, 8), 255))).decode()
BLACK = base64.b64encode(png(Image.new("L", (8, 8), 0))).decode()
WIDE = base64.b64encode(png(Image.new("L", (9, 8), 255))).decode()
LARGE = base64.b64encode(png(Image.new("1", (400, 400)))).decode()
EDIT: Any = {"labels": [1], "image": PIXEL, "mask": WHITE}
BAD: list[tuple[str, Any, str]] = [
    ("/api/generate", {"num": 5}, "5 images were asked for, but 4 are allowed"),
    ("/api/generate", {"num": 0}, "greater than or equal to 1"),
    ("/api/generate", {"num": "2"}, "valid integer"),
    ("/api/generate", {"seed": 2**63}, "seed"),
    ("/api/generate", {"labels": []}, "labels"),
    ("/api/generate", {"labels": [5]}, "label 5 is out of range"),
    ("/api/generate", {"labels": ["rose"]}, "no class names"),
    ("/api/generate", {"labels": "rose"}, "labels"),
    ("/api/generate", {"model": "mage", "labels": [1]}, "unconditional"),
    ("/api/generate", {"model": "mage", "guidance": 2.0}, "no null class"),
    ("/api/generate", {"model": "maskgid"}, "no model is called 'maskgid'; did you mean 'maskgit'"),
    ("/api/generate", {"model": "../maskgit"}, "no model is called"),
    ("/api/generate", {"full": 65}, "65 evaluations an image were asked for, but 64 are allowed"),
    ("/api/generate", {"full": 12, "local": 5}, "no room in 16 tokens"),
    ("/api/generate", {"full": 2, "local": 3}, "have no room in 2 groups"),
    ("/api/generate", {"full": 2, "local": 2, "chain": 0}, "chain"),
    ("/api/generate", {"guidance": 1e9}, "guidance"),
    ("/api/generate", {"compare": "yes"}, "compare"),
    ("/api/generate", {"image": PIXEL}, "image"),
    ("/api/generate", [], "body"),
    ("/api/edit", {"labels": [1], "image": PIXEL}, "mask"),
    ("/api/edit", {"image": PIXEL, "mask": WHITE}, "say with labels what is to be drawn"),
    ("/api/edit", EDIT | {"image": "?"}, "the image is no base64"),
    ("/api/edit", EDIT | {"image": "AAAA"}, "the image .* is no picture"),
    ("/api/edit", EDIT | {"image": PIXEL[:60]}, "send a whole PNG, JPEG, WEBP"),
    ("/api/edit", EDIT | {"mask": BLACK}, "the mask is empty"),
    ("/api/edit", EDIT | {"mask": WIDE}, "9 x 8 pixels but the image 8 x 8"),
    ("/api/edit", EDIT | {"image": LARGE}, "400 x 400 pixels, more than the 100000 allowed"),
    ("/api/edit", EDIT | {"mask": LARGE}, "the mask has 400 x 400 pixels"),
    ("/api/edit", EDIT | {"full": 17}, "no room in 16 tokens"),
    ("/api/plan", {"full": 2, "local": 3}, "have no room in 2 groups"),
    ("/api/plan", {"model": "nothing"}, "no model is called 'nothing'"),
]


def test_what_cannot_be_is_refused_in_a_sentence(models: Models) -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        return [await client.post(path, json=body) for path, body, _ in BAD]

    answers = asked(studio(models, max_steps=64, max_pixels=100_000), ask)
    for answer, (_, body, message) in zip(answers, BAD, strict=True):
        assert answer.status_code == 422, (body, answer.text[:200])
        assert re.search(message, answer.json()["error"]["message"]), (body, answer.text)


def test_names_with_a_slip_get_suggestions(models: Models) -> None:
    place = studio(models)
    place.shelf.entries["maskgit"].blank.class_names = ("rose", "tulip", "daisy", "lily", "aster")
    answer = asked(place, lambda client: client.post("/api/generate", json={"labels": ["tulpi"]}))
    assert answer.status_code == 422
    assert "did you mean 'tulip'" in answer.json()["error"]["message"]


def test_other_answers(models: Models) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    async def ask(client: httpx.AsyncClient) -> Any:
        return [
            await client.post("/api/generate", content=b"{}", headers=form),
            await client.post("/api/generate", content=b"{", headers={"Content-Type": "application/json"}),
            await client.post("/api/generate", json={"model": "m" * 2000}),
            await client.get("/api/generate"),
            await client.get("/api/runs/none/run.json"),
            await client.get("/api/nothing"),
            await client.get("/healthz"),
        ]

    answers = asked(studio(models, max_body=1000), ask)
    assert [answer.status_code for answer in answers] == [415, 400, 413, 405, 404, 404, 200]
    for answer in answers[:-1]:
        assert answer.json()["error"]["message"]
    for answer in answers:
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_the_page_and_nothing_else_is_given_out(models: Models) -> None:
    names = [path.name for path in sorted(PAGE.iterdir())]
    others = ("app.py", "../app.py", "..%2fapp.py", "%2e%2e/results.json", "nothing.js", "", ".")

    async def ask(client: httpx.AsyncClient) -> Any:
        page = await client.get("/")
        return page, [await client.get(f"/static/{name}") for name in (*names, *others)]

    page, parts = asked(studio(models), ask)
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.content == (PAGE / "index.html").read_bytes()
    found, missing = parts[: len(names)], parts[len(names) :]
    kinds = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for name, part in zip(names, found, strict=True):
        assert part.content == (PAGE / name).read_bytes()
        assert part.headers["content-type"].startswith(kinds.get(Path(name).suffix, ""))
        assert {header: part.headers[header] for header in HEADERS} == HEADERS
    assert {part.status_code for part in missing} == {404}


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
    ],
)
def test_other_names_are_not_answered(hosts: tuple[str, ...], host: str, fine: bool) -> None:
    """A page that lets its own name point here must not get at the answers."""
    safe = Safety(Escaped({"status": "ok"}), hosts=hosts)

    async def run() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(safe), base_url="http://127.0.0.1") as client:
            return await client.get("/healthz", headers={"Host": host})

    answer = asyncio.run(run())
    assert answer.status_code == (200 if fine else 421)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS


def test_results_are_given_out(models: Models) -> None:
    answer = asked(studio(models), lambda client: client.get("/api/results"))
    assert [model["name"] for model in answer.json()["models"]] == recap.weights.embedded()


def test_the_description_is_json(models: Models) -> None:
    answer = asked(studio(models), lambda client: client.get("/openapi.json"))
    assert {"/api/generate", "/api/edit", "/api/plan"} <= set(json.loads(answer.text)["paths"])
