"""Texts over HTTP: the same as anywhere else, beside images, and refused where there is nothing to do."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import shlex
import time
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi", reason="fastapi is not installed; the extra serve brings it")

from recap.cli import main
from recap.pipelines import TextPipeline
from recap.view.frames import TokenState
from recap.view.pieces import HOLE
from tests.server.served import asked, few, metric, post, served, told
from tests.writing import Chatty, text_pipeline, write_model

SCHEDULE = "5+11:temperature=1.5"
BODY: dict[str, Any] = {"prompt": ["he said", "the banana"], "num": 2, "gen_length": 16, "seed": 7}
CALL: Any = {"num_texts": 2, "gen_length": 16, "seed": 7}


def both(**options: Any) -> dict[str, Any]:
    return {"pictures": few("maskgit"), "words": text_pipeline(**options)}


def texts(answer: httpx.Response) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [text["text"] for text in answer.json()["texts"]]


def finished(events: list[Any], variant: str) -> list[str]:
    return [event["words"] for event in events if event["event"] == "text" and event["variant"] == variant]


@pytest.mark.parametrize("together", [False, True])
def test_texts_are_the_same_by_every_way(
    together: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """Bytes of files, of what is printed, of calls, of answers and of the studio, one by one and as on a GPU."""
    if together:
        monkeypatch.setattr("recap.runs.draw.ALONE", ())
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "words")
    pipe = TextPipeline.from_pretrained("words")
    pipe.progress = False
    said = pipe(BODY["prompt"], schedule=SCHEDULE, **CALL).texts
    assert said is not None
    assert len(set(said)) == 4
    line = ["write", *BODY["prompt"], "--model", "words", "--num", "2", "--length", "16", "--seed", "7"]
    assert main([*line, "--schedule", SCHEDULE, "--out", "out"]) == 0
    assert [path.read_bytes() for path in sorted(Path("out").glob("0*.txt"))] == [text.encode() for text in said]
    capfdbinary.readouterr()
    assert main([*line, "--schedule", SCHEDULE]) == 0
    assert capfdbinary.readouterr().out == "".join(f"{text}\n" for text in said).encode()
    assert main([*line, "--schedule", SCHEDULE, "--json"]) == 0
    assert [json.loads(each)["text"] for each in capfdbinary.readouterr().out.splitlines()] == said

    async def ask(client: httpx.AsyncClient) -> Any:
        body = {**BODY, "schedule": SCHEDULE}
        one = {**body, "num": 1, "prompt": BODY["prompt"][1], "first": 2}
        ids = {**body, "input_ids": [pipe.tokenizer.encode(prompt) for prompt in BODY["prompt"]]}
        del ids["prompt"]
        bodies = ({**body, "num": 2}, one, ids, {"gen_length": 16, "seed": 1})
        return await asyncio.gather(*(client.post("/v1/write", json=body) for body in bodies))

    whole, one, by_ids, other = asked(ask, served(pipes=both(), queue=64))
    assert texts(whole) == texts(by_ids) == said
    assert texts(one) == said[2:3]
    assert texts(other)[0] not in said
    told_of = whole.json()
    assert [(text["index"], text["prompt"]) for text in told_of["texts"]] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert (told_of["model"], told_of["seed"], told_of["schedule"]["full"]) == ("words", 7, 5)
    events = told(asked(post("/api/write", {**BODY, "schedule": SCHEDULE}), served(pipes=both())))
    assert finished(events, "reused") == said
    assert finished(events, "plain") == pipe(BODY["prompt"], schedule="16:temperature=1.5", **CALL).texts


def test_a_comparison_tells_of_every_sub_step_and_can_be_taken_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"prompt": "he said", "num": 2, "gen_length": 16, "seed": 3, "schedule": SCHEDULE}
    started, *frames, done = told(asked(post("/api/write", body), served(pipes=both())))
    assert (started["texts"], started["prompts"], started["schedule"]["tokens"]) == (2, ["he said"] * 2, 16)
    assert [variant["variant"] for variant in started["variants"]] == ["plain", "reused"]
    for frame in frames:
        if frame["event"] != "frame" or frame["step"] == frame["steps"]:
            continue
        given, *rest = frame["pieces"]
        assert given == ["he said", TokenState.KNOWN]
        holes = [words for words, state in rest if state <= TokenState.TARGET]
        assert all(set(words) == {HOLE} for words in holes)
        assert sum(map(len, holes)) == 16 - frame["decoded"]
        assert [state for _, state in rest].count(TokenState.DRAWN) <= 1
    last = [frame for frame in frames if frame["event"] == "text"]
    assert all("".join(words for words, _ in each["pieces"]) == "he said" + each["words"] for each in last)
    assert all(0 <= share <= 1 for share in done["difference"])
    assert len(done["speedup"]["pairs"]) == 2
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "words")
    with zipfile.ZipFile(io.BytesIO(base64.b64decode(done["archive"]))) as archive:
        archive.extractall("home")
    for variant, line in done["commands"].items():
        recap, *argv = shlex.split(line)
        assert recap == "recap"
        assert main(argv) == 0
        home = [path.read_bytes() for path in sorted(Path("home", variant).glob("*.txt"))]
        assert len(home) == 2
        assert home == [path.read_bytes() for path in sorted(Path(variant).glob("0*.txt"))]
    assert json.loads(Path("home/run.json").read_text())["seed"] == 3


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": "-x"}, ["--", "-x"]),
        ({"messages": [{"role": "user", "content": "he"}]}, ["--chat"]),
        ({"prompt": "he", "eos_early_stop": False}, ["--past-end"]),
        ({"prompt": "-"}, None),
        ({"input_ids": [5, 6]}, None),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, None),
    ],
)
def test_commands_say_what_commands_can(body: dict[str, Any], said: list[str] | None) -> None:
    asking = post("/api/write", {**body, "gen_length": 4, "schedule": "2+2"})
    *_, done = told(asked(asking, served(pipes=both(tokenizer=Chatty()))))
    if said is None:
        assert done["commands"] == {}
    else:
        assert all(set(said) <= set(shlex.split(line)) for line in done["commands"].values())


def test_chats_and_masks_in_prompts() -> None:
    pipe = text_pipeline(tokenizer=Chatty())
    messages = [{"role": "user", "content": "he said"}]

    async def ask(client: httpx.AsyncClient) -> Any:
        bodies = (
            {"messages": messages, "gen_length": 8, "seed": 2},
            {"messages": [messages, messages], "gen_length": 8, "seed": 2},
            {"prompt": "he <|mask|> the", "seed": 2, "full": 1, "local": 0},
        )
        return [await client.post("/v1/write", json=body) for body in bodies]

    one, two, filled = asked(ask, served(pipes={"words": pipe}))
    call = pipe(messages=messages, gen_length=8, seed=2)
    assert texts(one) == texts(two)[:1] == call.texts
    assert texts(filled)[0].startswith("he ")
    assert texts(filled)[0].endswith(" the")


def test_images_and_texts_side_by_side() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        about = (await client.get("/v1/models")).json()
        answers = await asyncio.gather(
            *(client.post("/v1/sample", json={"num": 1, "labels": 1, "seed": seed}) for seed in range(3)),
            *(client.post("/v1/write", json={"gen_length": 8, "seed": seed, "num": 2}) for seed in range(3)),
        )
        plans = [
            await client.post("/v1/plan", json={"model": model, **more})
            for model, more in (("words", {"gen_length": 32}), ("words", {}), ("pictures", {}))
        ]
        return about, answers, plans, (await client.get("/metrics")).text

    about, answers, plans, metrics = asked(ask, served(pipes=both(), queue=32))
    assert [(model["name"], model["modality"]) for model in about["models"]] == [
        ("pictures", "images"),
        ("words", "text"),
    ]
    words = about["models"][1]
    assert (words["tokens"], words["gen_length"], words["image_size"], words["chat"]) == (64, 64, None, False)
    assert all(answer.status_code == 200 for answer in answers)
    assert [answer.json()["model"] for answer in answers] == ["pictures"] * 3 + ["words"] * 3
    assert metric(metrics, "recap_images_total") == 3
    assert metric(metrics, "recap_texts_total") == 6
    assert [sum(map(sum, plan.json()["groups"])) for plan in plans] == [32, 64, 16]
    assert all(plan.json()["flops"] < plan.json()["flops_plain"] for plan in plans)


BAD: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/sample", {"model": "words"}, "model", "words writes text; ask /v1/write for it, or one of pictures"),
    ("/v1/write", {"model": "pictures"}, "model", "pictures draws images; ask /v1/sample for it, or one of words"),
    ("/api/compare", {"model": "words"}, "model", "ask /v1/write"),
    ("/api/write", {"model": "pictures"}, "model", "ask /v1/sample"),
    ("/v1/write", {"model": "nobody"}, "model", "no model is called 'nobody'; there are pictures, words"),
    ("/v1/plan", {"model": "pictures", "gen_length": 8}, "refused", "gen_length is for models of text"),
    ("/v1/sample", {"gen_length": 8}, "form", "gen_length"),
    ("/v1/sample", {"block": 8}, "refused", "is for images, and block for text"),
    ("/v1/write", {"gen_length": 300}, "refused", "300 to write make 300, but the model has places for 64"),
    ("/v1/write", {"prompt": "a", "input_ids": [1]}, "refused", "give one of them"),
    ("/v1/write", {"prompt": "\ud800"}, "form", "prompt"),
    ("/v1/write", {"prompt": ""}, "form", "at least 1 character"),
    ("/v1/write", {"prompt": []}, "form", "prompt"),
    ("/v1/write", {"input_ids": [10**6]}, "refused", "id 1000000 in prompt 0 is none"),
    ("/v1/write", {"messages": [{"role": "user", "content": "a"}]}, "refused", "has no chat template"),
    ("/v1/write", {"messages": [{"role": "user"}]}, "form", "content"),
    ("/v1/write", {"full": 4000}, "limit", "4000 evaluations a text were asked for, but 32 are allowed"),
    ("/v1/write", {"gen_length": 60}, "limit", "60 evaluations a text were asked for, but 32 are allowed"),
    ("/v1/write", {"prompt": ["a"] * 3, "num": 3}, "limit", "9 images were asked for, but 8 are allowed"),
    ("/v1/write", {"gen_length": 8, "schedule": "3:block=3"}, "refused", "do not divide into blocks of 3"),
    ("/v1/write", {"gen_length": 8, "block": 4, "block_length": 4}, "form", "block_length"),
    ("/v1/write", {"labels": [1]}, "form", "labels"),
    ("/v1/write", {"preset": "mar"}, "refused", "preset 'mar' is for images; use one of text: text, llada"),
]


def test_what_cannot_be_is_refused_in_a_sentence() -> None:
    async def ask(client: httpx.AsyncClient) -> Any:
        headers = {"Content-Type": "application/json"}
        return [await client.post(path, content=json.dumps(body), headers=headers) for path, body, _, _ in BAD]

    for answer, (path, body, code, message) in zip(asked(ask, served(pipes=both(), max_steps=32)), BAD, strict=True):
        assert answer.status_code == 422, (path, body, answer.text[:200])
        error = answer.json()["error"]
        assert error["code"] == code, (body, error)
        assert message in error["message"], (body, error)


def test_a_server_without_texts_says_so() -> None:
    answer = asked(post("/v1/write", {"prompt": "a"}), served(pipes={"pictures": few("maskgit")}))
    assert answer.status_code == 422
    assert "every model here draws images; ask /v1/sample" in answer.json()["error"]["message"]


def test_names_of_calls_are_taken_too() -> None:
    """`block_length` is what `WriteRequest` has for `block`."""
    same: list[dict[str, Any]] = [{"block": 4}, {"block_length": 4}, {"schedule": "4+4:block=4"}]

    async def ask(client: httpx.AsyncClient) -> Any:
        bodies = [{"gen_length": 8, "seed": 4, "temperature": 1.5, **one} for one in same]
        for body in bodies[:2]:
            body |= {"full": 4, "local": 4}
        return [texts(await client.post("/v1/write", json=body)) for body in bodies]

    first, *others = asked(ask, served(pipes=both()))
    assert others == [first] * 2


class Slow(Chatty):
    """A tokenizer that takes its time."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        time.sleep(0.5)
        return super().encode(text, add_special_tokens)


@pytest.mark.parametrize("path", ["/v1/write", "/api/write"])
def test_reading_a_prompt_counts_as_time(path: str) -> None:
    worker = served(pipes={"words": text_pipeline(Slow())}, timeout=0.1)

    async def ask(client: httpx.AsyncClient) -> tuple[httpx.Response, int]:
        return await client.post(path, json={"prompt": "he said", "gen_length": 8}), worker.images_waiting()

    answer, waiting = asked(ask, worker)
    assert (answer.status_code, answer.json()["error"]["code"], waiting) == (504, "timeout", 0)


@pytest.mark.parametrize("path", ["/v1/write", "/api/write"])
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"prompt": "he', 400, "json"),
        (b'{"input_ids": ' + b"[" * 10**5, 400, "json"),
        (b'{"seed": ' + b"9" * 10**5 + b"}", 400, "json"),
        (b'{"prompt": "' + b"he " * 10**5 + b'"}', 413, "body"),
        (b'{"num": 1000000, "prompt": "he"}', 422, "form"),
        (b'{"num": 9, "prompt": "he"}', 422, "limit"),
    ],
)
def test_bodies_of_nonsense(path: str, body: bytes, status: int, code: str) -> None:
    async def ask(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(path, content=body, headers={"Content-Type": "application/json"})

    answer = asked(ask, served(pipes={"words": text_pipeline()}))
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
