"""What is fuzzed: every reader of something that comes from outside, with files to begin from.

A target takes bytes, hands them to its reader as a user's file or text would come, and returns. The errors that it
may raise are those that the command line turns into one line and exit status 2.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save as to_safetensors

from recap.checkpoints import load_official, load_pretrained, save_pretrained
from recap.checkpoints.shards import INDEX
from recap.cli import main
from recap.core.options import SamplingOptions
from recap.evaluation.images import open_images
from recap.evaluation.metrics import FeatureStatistics
from recap.evaluation.report import read_sweep
from recap.evaluation.texts import read_texts_of, text_figures
from recap.models.maskgit import MaskGITConfig
from recap.models.registry import architectures, build
from recap.models.text.official import published_config as published_sizes
from recap.pipelines.inputs import find_classes
from recap.pipelines.loading import blank_net
from recap.pipelines.pipeline import Pipeline
from recap.tokenizers import BPE, VQGANConfig
from recap.tokenizers.bpe import byte_letters, split_rule
from recap.view.pictures import open_picture

SMALL = MaskGITConfig(width=8, depth=2, heads=2, num_tokens=4, codes=4, classes=2)
DREAM: dict[str, Any] = {
    "model_type": "Dream", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 8, "vocab_size": 6, "max_position_embeddings": 16,
    "mask_token_id": 5, "eos_token_id": 4, "rope_theta": 1e6, "rms_norm_eps": 1e-6, "hidden_act": "silu",
}  # fmt: skip
LLADA: dict[str, Any] = {
    "model_type": "llada", "d_model": 8, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "mlp_hidden_size": 8,
    "vocab_size": 6, "max_sequence_length": 16, "mask_token_id": 5, "eos_token_id": 4, "rope_theta": 5e5,
    "rms_norm_eps": 1e-5, "weight_tying": False, "include_qkv_bias": True, "rope_full_precision": False,
}  # fmt: skip
SMALL_TOKENIZER = VQGANConfig(channels=4, multipliers=(1, 1), blocks=1, latent_channels=4, codes=4, groups=2)
MARK = "mark"  # a folder that only code inside a file would make
NAMES = ("rose", "water lily", "sunflower")
POINT = {"schedule": "8", "seed": 0, "num": 4, "figures": {"fid": 9.5}, "seconds": {"total": 0.5}, "warmup": 0}


@dataclass(frozen=True, slots=True)
class Target:
    """A reader, inputs that it takes, words that its inputs are made of, and the errors it may answer with."""

    run: Callable[[bytes, Path], None]
    seeds: Callable[[Path], list[bytes]]
    words: tuple[bytes, ...] = ()
    errors: tuple[type[BaseException], ...] = (ValueError,)


class Attack:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.place),)


def saved(content: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, **options)
    return file.getvalue()


@cache
def state() -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build(SMALL).state_dict()


def archive(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as writer:
        for name, content in members.items():
            writer.writestr(name, content)
    return file.getvalue()


def arrays(**values: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **values)
    return file.getvalue()


def picture(kind: str = "PNG", mode: str = "RGB", side: int = 4, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (side, side), 1).save(file, kind, **options)
    return file.getvalue()


def tar(content: bytes) -> bytes:
    """The oldest form of torch.save."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as writer:
        for name in ("pickle", "storages", "tensors"):
            about = tarfile.TarInfo(name)
            about.size = len(content)
            writer.addfile(about, io.BytesIO(content))
    return file.getvalue()


def script() -> bytes:
    """A TorchScript archive's members; its code must not be compiled, let alone run."""
    code = b"class M(Module):\n  def forward(self, x):\n    return x\n"
    return archive({"m/constants.pkl": pickle.dumps(()), "m/code/__torch__.py": code, "m/version": b"3\n"})


def unmarked(folder: Path) -> None:
    assert not (folder / MARK).exists(), "code of a file was run"


def tensors_file(data: bytes, folder: Path) -> None:
    (folder / "a.safetensors").write_bytes(data)
    load_official(folder / "a.safetensors", heads=2)


def published_config(data: bytes, folder: Path) -> None:
    """The configuration of a model of text as its authors publish it, beside weights in two files."""
    place = published(folder)
    (place / "config.json").write_bytes(data)
    load_pretrained(place)


def index_file(data: bytes, folder: Path) -> None:
    place = published(folder)
    (place / INDEX).write_bytes(data)
    load_pretrained(place)


def published(folder: Path) -> Path:
    """A folder of Dream's kind, as the hub has it."""
    place = folder / "published"
    place.mkdir(exist_ok=True)
    keys = list(text_state())
    (place / "config.json").write_text(json.dumps(DREAM))
    for number, part in enumerate((keys[::2], keys[1::2]), start=1):
        (place / shard(number)).write_bytes(to_safetensors({key: text_state()[key] for key in part}))
    (place / INDEX).write_text(json.dumps(index()))
    return place


def shard(number: int) -> str:
    return f"model-{number:05}-of-00002.safetensors"


def index() -> dict[str, Any]:
    return {"weight_map": {key: shard(1 + place % 2) for place, key in enumerate(text_state())}}


@cache
def text_state() -> dict[str, torch.Tensor]:
    read = published_sizes(DREAM)
    assert read is not None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build(read).state_dict()


def pickle_file(data: bytes, folder: Path) -> None:
    (folder / "a.pth").write_bytes(data)
    try:
        load_official(folder / "a.pth", heads=2)
    finally:
        unmarked(folder)


def config_file(data: bytes, folder: Path) -> None:
    model = folder / "model"
    if not model.is_dir():
        save_pretrained(build(SMALL), model)
    (model / "config.json").write_bytes(data)
    try:
        blank_net(model)
    finally:
        Pipeline.from_pretrained(model)


def tokenizer_file(data: bytes, folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes(data)
    tokenizer = BPE.load(folder)
    text = "It\u2019s <|mask|>, 1234 \n\t\U0001f33b"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def statistics_file(data: bytes, folder: Path) -> None:
    (folder / "s.npz").write_bytes(data)
    FeatureStatistics.load(folder / "s.npz")


def image_file(data: bytes, folder: Path) -> None:
    place = folder / "pictures"
    place.mkdir(exist_ok=True)
    (place / "a.png").write_bytes(data)
    try:
        open_picture(place / "a.png", "a.png", upright=True)
    finally:
        list(open_images(place).batches(2))


def image_archive(data: bytes, folder: Path) -> None:
    before = {path.name for path in folder.parent.iterdir()}
    (folder / "a.npz").write_bytes(data)
    try:
        list(open_images(folder / "a.npz").batches(2))
    finally:
        unmarked(folder)
        assert {path.name for path in folder.parent.iterdir()} == before, "an archive wrote outside of its folder"


def sweep_file(data: bytes, folder: Path) -> None:
    (folder / "sweep.json").write_bytes(data)
    read_sweep(folder)


def schedule_text(data: bytes, folder: Path) -> None:
    options = SamplingOptions.from_text(data.decode(errors="replace"))
    assert SamplingOptions.from_text(options.text) == options or "nan" in options.text
    SamplingOptions("mar-large").override(options).schedule(64)


def label_text(data: bytes, folder: Path) -> None:
    for label in find_classes(data.decode(errors="replace"), NAMES, len(NAMES)):
        assert 0 <= label < len(NAMES)


def command_line(data: bytes, folder: Path) -> None:
    """Arguments with line ends between them; what would draw says so and draws nothing."""
    argv = data.decode(errors="replace").replace("{}", str(folder)).splitlines()[:24]
    if "--debug" in argv or (argv and argv[0].startswith("--d")):
        return
    out, err = io.StringIO(), io.StringIO()
    drawing = mock.patch.object(Pipeline, "stream", side_effect=ValueError("nothing is drawn here"))
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), drawing:
            status: Any = main(argv)
    except SystemExit as left:  # argparse: help, or a usage error in its own words
        status, err = left.code, io.StringIO("usage")
    finally:
        os.chdir(before)
    assert status in (0, 2), f"{argv} ended with {status}: {err.getvalue()}"
    said = [line for line in err.getvalue().split("\n") if line and "it/s" not in line and "\r" not in line]
    assert status == 0 or len(said) == 1, f"{argv} said {said}"


@cache
def service() -> tuple[asyncio.AbstractEventLoop, Any]:
    """A server of a small model, without a network."""
    from recap.server.app import create_app
    from recap.server.limits import Limits
    from recap.server.worker import Worker

    loop = asyncio.new_event_loop()
    pipe = Pipeline(build(SMALL), build(SMALL_TOKENIZER))
    pipe.options = SamplingOptions("maskgit-r", full=2, local=1)
    app = create_app(Worker({"m": pipe}, Limits(timeout=5.0)), page=True)
    loop.run_until_complete(app.router.lifespan_context(app).__aenter__())
    return loop, app


def http_request(data: bytes, folder: Path) -> None:
    """A method, a path and a body with line ends between them; nothing is the server's fault."""
    method, path, body = [*data.split(b"\n", 2), b"", b""][:3]
    path, _, query = path.partition(b"?")
    scope: dict[str, Any] = {
        "type": "http",
        "method": method.decode("latin-1")[:20],
        "path": path.decode("latin-1"),
        "root_path": "",
    }
    scope |= {"query_string": query, "http_version": "1.1", "scheme": "http", "asgi": {"version": "3.0"}}
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope |= {"headers": headers, "raw_path": path, "server": ("localhost", 80), "client": ("localhost", 1)}
    loop, app = service()
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    statuses: list[int] = []

    async def receive() -> Any:
        if parts:
            return parts.pop()
        return await asyncio.Future()

    async def send(message: Any) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    loop.run_until_complete(asyncio.wait_for(app(scope, receive, send), 30))
    assert statuses != [500], "the server failed"
    assert len(statuses) == 1
    if statuses[0] >= 400:
        raise ValueError("refused")


def seeds_of_requests(folder: Path) -> list[bytes]:
    image = base64.b64encode(picture(side=4)).decode()
    drawn = {"labels": [0, 1], "num": 2, "seed": 3, "schedule": "2+1", "format": "zip", "guidance": [1, 2.5]}
    asked = {
        "POST /v1/sample": drawn | {"first": 1},
        "POST /v1/plan": {"full": 3, "local": 1, "chain": 2, "model": "m"},
        "POST /v1/edit": {"labels": 1, "image": image, "redraw": [0, 0, 2, 2], "fit": True, "paste": True},
        "POST /api/compare": {"labels": ["0"], "image": image, "mask": image, "compare": False, "order": "random"},
        "GET /v1/models": {},
        "GET /static/app.js": {},
        "GET /metrics?x=1": {},
    }
    return [f"{what.replace(' ', chr(10))}\n{json.dumps(body)}".encode() for what, body in asked.items()]


def seeds_of_pickles(folder: Path) -> list[bytes]:
    evil = Attack(folder / MARK)
    return [
        saved({"model": state()}),
        saved(state(), _use_new_zipfile_serialization=False),
        pickle.dumps({"model": {"a": [1, 2.0]}}, protocol=2),
        saved({"model": state(), "args": evil}),
        pickle.dumps(evil, protocol=2),
        saved(evil, _use_new_zipfile_serialization=False),
        tar(pickle.dumps(evil, protocol=2)),
        archive({"a/data.pkl": pickle.dumps(evil, protocol=2), "a/version": b"3\n"}),
        archive({"a/data.pkl": pickle.dumps({}, protocol=2), "a/version": b"3\n"}, zipfile.ZIP_DEFLATED),
        pickle.dumps({"model": {"a": bytearray(9)}}, protocol=2),
        script(),
    ]


def seeds_of_configs(folder: Path) -> list[bytes]:
    whole = {"format": "recap", "family": "maskgit", "config": asdict(SMALL), "class_names": ["a", "b"]}
    about = {"sampling": {"preset": "maskgit-r", "full": 2, "local": 1}, "tokenizer": "../t", "setting": "maskgit-r"}
    tokenizer = {"family": "vqgan", "config": asdict(SMALL_TOKENIZER)}
    odd = replace(SMALL, classes=3)
    others = [{"family": kind.name, "config": asdict(kind.config())} for kind in architectures().values()]
    given = (whole, whole | about, tokenizer, whole | {"config": asdict(odd)}, *others)
    return [json.dumps(config).encode() for config in given]


def tokenizer_json() -> dict[str, Any]:
    """A tokenizer of the bytes, two merges, an end and a mask."""
    names = ["<|endoftext|>", *byte_letters(), "it", "it1", "<|mask|>"]
    ids = {name: i for i, name in enumerate(names)}
    model = {"type": "BPE", "vocab": ids, "merges": [["i", "t"], "it 1"]}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    specials = [{"id": ids[name], "content": name, **plain} for name in (names[0], names[-1])]
    rule = split_rule()
    rule["pretokenizers"][1]["trim_offsets"] = True
    return {"added_tokens": specials, "pre_tokenizer": rule, "decoder": rule["pretokenizers"][1], "model": model}


def seeds_of_statistics(folder: Path) -> list[bytes]:
    mu, sigma = np.zeros(3), np.eye(3)
    packed = {"deviation": np.ones(3, np.float32), "low": np.zeros(3, np.uint8), "high": np.zeros(3, np.uint8)}
    return [
        arrays(mu=mu, sigma=sigma, n=np.asarray(9), classes=np.asarray([4, 5])),
        arrays(mu=mu, **packed),
        arrays(mu=np.asarray([Attack(folder / MARK)], dtype=object), sigma=sigma),
    ]


def seeds_of_images(folder: Path) -> list[bytes]:
    exif = Image.Exif()
    exif[0x0112] = 6
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    animated = io.BytesIO()
    frames[0].save(animated, "PNG", save_all=True, append_images=frames[1:])
    modes = [picture(mode=mode) for mode in ("RGB", "L", "1", "P", "RGBA", "LA", "I;16")]
    return [*modes, picture("JPEG", exif=exif), picture("WEBP"), picture("BMP"), animated.getvalue()]


def seeds_of_archives(folder: Path) -> list[bytes]:
    return [
        arrays(arr_0=np.zeros((2, 4, 4, 3), np.uint8)),
        arrays(images=np.asarray([Attack(folder / MARK)], dtype=object)),
    ]


def seeds_of_sweeps(folder: Path) -> list[bytes]:
    about = {"model": "m", "family": "mar", "machine": {"device": "d", "torch": "t", "date": "now"}, "num": 4}
    more = {"reference": "r", "batch": 8, "dtype": "float32", "sampling": {}}
    text = {"modality": "text", "length": 16, "prompts": None, "judge": "j"}
    figures = {name: 2.0 for key in ("perplexity", "entropy", "distinct_1") for name in (key, f"{key}_error")}
    runs = {"wall": [1.0, 2.0], "processor": [1.0, 2.0]}
    point = {**POINT, "figures": figures, "evaluations": [4, 4], "alike": "temperature 1", "runs": runs}
    points = [point, {**point, "schedule": "8", "evaluations": [8, 0]}]
    return [
        json.dumps({**about, **more, "points": [POINT, POINT]}).encode(),
        json.dumps({**about, **more, **text, "points": points}).encode(),
    ]


def texts_file(data: bytes, folder: Path) -> None:
    (folder / "texts.jsonl").write_bytes(data)
    text_figures(read_texts_of(folder / "texts.jsonl"))


def seeds_of_texts(_: Path) -> list[bytes]:
    row = {"index": 0, "text": "one two three", "ids": [1, 2, 3, 3], "judged": [9.5, 4.0]}
    return ["\n".join(map(json.dumps, rows)).encode() for rows in ([row, row], [row, {"text": "a b c"}])]


def seeds_of_commands(folder: Path) -> list[bytes]:
    (folder / "noise").write_bytes(bytes(range(256)))
    (folder / "lines.txt").write_text("1 2 3\n")
    (folder / "a.png").write_bytes(picture(side=8))
    if not (folder / "m").is_dir():
        Pipeline(build(SMALL), build(SMALL_TOKENIZER)).save_pretrained(folder / "m")
    lines = (
        "plan --model mar-large --full 8 --local 4 --memory 80GB --batch 4",
        "plan --json --dtype bfloat16",
        "sample --model {}/m --num 2 --full 2 --local 1 --batch auto --out {}/out --labels 0,1",
        "sample --model {}/m --cache-limit 1kB --order random --guidance 1/2 --out {}/out",
        "evaluate --images {} --stats {}/noise --inception {}/noise --out {}/out",
        "sweep --model {}/m --schedule 2 2+1:warmup=0,chain=2 --stats none --out {}/out --inception {}/noise",
        "edit --model {}/m --image {}/a.png --keep left:0.5 --labels 0 --out {}/out",
        "edit --model {}/m --image {}/noise --redraw 0,0,1,1 --fit --out {}/out",
        "bench --model {}/m --schedule 2 --batch 1 2 --repeat 1 --json {}/out/b.json",
        "convert {}/noise {}/out/c --model mar-base --heads 4",
        "drift --model {}/m --labels @{}/lines.txt --out {}/out",
        "report {} --out {}/out/page.md --findings {}/noise",
        "train maskgit --data {}/noise --out {}/out --steps 1",
        "verify {}/nothing --tiny",
        "verify recap.nothing:nobody",
        "models",
    )
    return ["\n".join(line.split()).encode() for line in lines]


NUMBERS = (b"0", b"-1", b"1e999", b"nan", b"1.5", b"18446744073709551616", b"9" * 30)
TARGETS: dict[str, Target] = {
    "safetensors": Target(tensors_file, lambda _: [to_safetensors(state())], (b'"F8_E4M3"', b'"shape":[]', *NUMBERS)),
    "pickles": Target(pickle_file, seeds_of_pickles, (b"ctorch._utils\n_rebuild_", b"R")),
    "configs": Target(config_file, seeds_of_configs, (b"[[[[", b"NaN", b"null", b'"\\u0000"', b"{}", *NUMBERS)),
    "published": Target(
        published_config,
        lambda _: [json.dumps(c).encode() for c in (DREAM, DREAM | {"rope_scaling": {"type": "default"}}, LLADA)],
        (b"[[[[", b"null", b'"llada"', b'"rope_scaling":', b'"use_sliding_window":true,', b"{}", *NUMBERS),
    ),
    "indexes": Target(
        index_file,
        lambda _: [json.dumps(index()).encode()],
        (b"../", b"/etc/passwd", b"model-00001-of-00002.safetensors", b"[[[[", b"{}", b"null", *NUMBERS),
    ),
    "tokenizers": Target(
        tokenizer_file,
        lambda _: [json.dumps(tokenizer_json()).encode()],
        (b'"<|mask|>"', b'"it"', b'"dropout": 1,', b'"id"', b"[]", b"{}", b"null", *NUMBERS),
    ),
    "statistics": Target(statistics_file, seeds_of_statistics, (b"'|O'", b"'<f8'", b"(3, 3)", *NUMBERS)),
    "images": Target(image_file, seeds_of_images, (b"IHDR", b"acTL", b"Exif\x00\x00", b"\xff\xd8")),
    "archives": Target(image_archive, seeds_of_archives, (b"../", b"/etc/passwd", b"'|O'", b"PK\x01\x02", *NUMBERS)),
    "sweeps": Target(sweep_file, seeds_of_sweeps, (b"[[[", b"NaN", b"{}", b"null", *NUMBERS)),
    "texts": Target(texts_file, seeds_of_texts, (b"[[[", b"NaN", b"{}", b"null", b"1e999", *NUMBERS)),
    "schedules": Target(
        schedule_text,
        lambda _: [b"48+16:warmup=8,chain=2", b"8:head_steps=4/2,guidance=1/3,choice_temperature=2", b":preset=mage"],
        (b"order=random", b"solver=ddim", b"warmup=", b"/", b",", b":", *NUMBERS),
    ),
    "labels": Target(
        label_text, lambda _: [b"rose,1", b"water", b"0,2", b"sun flower"], (b",", b" ", b"-", *NUMBERS)
    ),
    "requests": Target(
        http_request, seeds_of_requests, (b"null", b"[]", b"{}", b"[[[[", b"NaN", b"\\ud800", b"../", *NUMBERS)
    ),
    "commands": Target(
        command_line,
        seeds_of_commands,
        (b"\n--num\n", b"\n--batch\nauto", b"\n--full\n", b"\n--device\ncuda", b"\n--seed\n", b"{}/noise", *NUMBERS),
    ),
}
