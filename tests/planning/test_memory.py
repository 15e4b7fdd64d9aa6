"""Predicted memory against measured peaks, and batches that fit."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recap.cli import main
from recap.core.options import SamplingOptions
from recap.core.schedule import cosine
from recap.models.registry import SIZES, TOKENIZER_SIZES, family_of
from recap.planning import memory
from recap.planning.memory import Memory, choose_batch, largest_batch, predict, size_of
from recap.planning.plan import plan
from tests.pipelines.test_pipeline import pipeline

Capture = pytest.CaptureFixture[str]
RECORDS = sorted((Path(__file__).parents[2] / "docs" / "performance").glob("h200-*.json"))
ROWS = [row for path in RECORDS for row in json.loads(path.read_text())["rows"] if row.get("peak_bytes")]
OTHERS = (("mar", 0, "latent"), ("mage", 2, "latent"), ("maskgit", 0, "latent"), ("maskgit", 2, "latent"))
LEAST, MOST = 0.85, 1.4  # predicted over measured

MEASURE = """
import ctypes, json, re, sys
from dataclasses import replace
from pathlib import Path
import torch
from recap import Pipeline, cosine, grouped_decode
from recap.core.noise import Noise, image_generators
from recap.models.mage import MAGEConfig
from recap.models.mar import MARConfig
from recap.models.maskgit import MaskGITConfig
from recap.tokenizers import KLVAEConfig, VQGANConfig
from recap.planning.memory import predict
from recap.models.registry import build, randomize
torch.set_num_threads(1)
kind, local, output = sys.argv[1], int(sys.argv[2]), sys.argv[3]
small = replace(VQGANConfig(), channels=32, codes=256)
config = {
    "mar": MARConfig(256, 4, 4, 4, 3, 256),
    "mage": MAGEConfig(256, 4, 4, 4, 4, codes=256, fake_class=300, vqgan=small, patch=0),
    "maskgit": MaskGITConfig(256, 8, 4, codes=256),
}[kind]
tokenizer = {"mar": replace(KLVAEConfig(), channels=32), "mage": None, "maskgit": small}[kind]
pipe = Pipeline(randomize(build(config)), tokenizer and randomize(build(tokenizer)))
guidance = 1.0 if kind == "mage" else 2.0
schedule = cosine(256, full=3, local=local, warmup=0 if local else None, guidance=guidance, head_steps=(4, 4))
def draw(images):
    labels = torch.arange(images) if pipe.model.classes else None
    noise = Noise(image_generators(0, range(images)), "cpu")
    *_, canvas = grouped_decode(pipe.model, labels, schedule, pipe.selector, noise)
    if output == "pt":
        pipe.decode(canvas.raster(), output)
draw(1)
ctypes.CDLL(None).malloc_trim(0)
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
def status(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = status("VmRSS")
draw(16)
decoder = pipe.tokenizer.config if output == "pt" else None
predicted = predict(config, schedule, 16, weights=0, tokenizer=decoder)
print(json.dumps({"measured": status("VmHWM") - before, "predicted": predicted.total}))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("kind", "local", "output"),
    [
        ("mar", 2, "latent"),
        ("maskgit", 2, "pt"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS),
    ],
)
def test_prediction_against_a_peak_on_the_cpu(kind: str, local: int, output: str) -> None:
    environment = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "OMP_NUM_THREADS": "1"}  # freed is given back
    command = [sys.executable, "-c", MEASURE, kind, str(local), output]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    result = json.loads(done.stdout)
    assert LEAST <= result["predicted"] / result["measured"] <= MOST


@pytest.mark.parametrize(
    "row", ROWS, ids=lambda row: f"{row['model']} {row['schedule']} {row['batch']} {row['engine']}"
)
def test_prediction_against_recorded_peaks(row: dict[str, Any]) -> None:
    config = SIZES[row["model"]]
    preset = row["model"] if row["model"].startswith("mar") else family_of(config).preset
    options = SamplingOptions(preset).override(SamplingOptions.from_text(row["schedule"]))
    schedule = options.schedule(config.num_tokens)
    dtype = getattr(torch, row["dtype"])
    tokenizer = family_of(config).tokenizer_config(config)
    whole = plan(row["model"], config, schedule, tokenizer, batch=row["batch"], dtype=dtype, cuda=True).memory
    sampled = replace(whole, tokenizer=0)  # these runs ended with tokens
    assert LEAST <= sampled.total / row["peak_bytes"] <= MOST


def test_there_are_records() -> None:
    assert len(ROWS) >= 12
    assert {family_of(SIZES[row["model"]]).name for row in ROWS} == {"mar", "mage", "maskgit"}


@pytest.mark.parametrize("limit", [0, 1, 5 * 10**8, 10**9, 10**10, 10**14])
def test_the_largest_batch_fits_and_one_more_does_not(limit: int) -> None:
    config, schedule = SIZES["mar-base"], cosine(256, full=8, local=4, guidance=2.0)

    def predicted(batch: int) -> Memory:
        return predict(config, schedule, batch, weights=10**8, tokenizer=TOKENIZER_SIZES["kl16"])

    found = largest_batch(predicted, limit)
    assert found == 0 or predicted(found).total <= limit
    assert found == memory.MAX_BATCH or predicted(found + 1).total > limit
    bounded = largest_batch(predicted, limit, cache_limit=10**9)
    assert bounded <= found
    assert not bounded or predicted(bounded).cache <= 10**9


def test_sizes_in_words() -> None:
    sizes = {"80GB": 80 * 10**9, "1.5GiB": 3 * 2**29, "512M": 512 * 10**6, "7": 7, "2 kb": 2000, "1TiB": 2**40}
    assert {text: size_of(text) for text in sizes} == sizes
    for text in ("", "GB", "-1GB", "0", "1e9", "nan", "1 PB", "9" * 40):
        with pytest.raises(ValueError, match="is no size"):
            size_of(text)


def test_auto_takes_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = pipeline("maskgit")
    schedule = pipe.schedule("4+2")
    monkeypatch.setattr(memory, "free_bytes", lambda device: 10**12)
    assert choose_batch(pipe, schedule, "auto", 7) == 7
    assert choose_batch(pipe, schedule, 3, 7) == 3
    one = predict(pipe.model.config, schedule, 1, weights=0, tokenizer=pipe.tokenizer.config)  # type: ignore[union-attr, arg-type]
    monkeypatch.setattr(memory, "free_bytes", lambda device: int(5.5 * one.total / memory.SHARE))
    assert choose_batch(pipe, schedule, "auto", 100) == 5
    monkeypatch.setattr(memory, "free_bytes", lambda device: 0)
    assert choose_batch(pipe, schedule, "auto", 100) == 1
    assert choose_batch(pipe, schedule, 8, 8, cache_limit=3 * one.cache) == 3
    with pytest.raises(ValueError, match=r"--cache-limit is .* but the cache of one image"):
        choose_batch(pipe, schedule, 8, 8, cache_limit=one.cache - 1)


def test_free_memory_is_what_the_machine_says() -> None:
    free = memory.free_bytes("cpu")
    assert 10**6 < free < 2**50


def test_plan_says_what_memory_it_takes(capsys: Capture) -> None:
    argv = ["plan", "--model=mar-large", "--full=72", "--local=24", "--dtype=bfloat16", "--device=cuda"]
    assert main([*argv, "--batch", "128", "--memory", "80GB", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    taken = row["memory"]
    assert taken["batch"] == 128
    assert taken["cache"] == 128 * row["cache_bytes"]
    assert taken["total"] == taken["weights"] + max(taken["cache"] + taken["activations"], taken["tokenizer"])
    assert main([*argv, "--batch", str(row["largest_batch"] + 1), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["memory"]["total"] > 80e9
    assert main([*argv, "--batch", "128", "--memory", "80GB"]) == 0
    assert f"{taken['total'] / 1e6:.1f} MB" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--batch=0", "--batch=-3", "--batch=x", "--cache-limit=big", "--cache-limit=0"])
def test_sizes_that_are_none_are_refused(option: str, capsys: Capture) -> None:
    try:
        assert main(["sample", option]) == 2
    except SystemExit as left:
        assert left.code == 2  # noqa: PT017
    assert option.partition("=")[0] in capsys.readouterr().err
