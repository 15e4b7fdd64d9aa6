"""What writing texts costs, against figures worked out by hand and against runs that are watched."""

import json
from typing import Any

import pytest
import torch

from recap.cli import main
from recap.core.canvas import Known
from recap.core.costs import run_cost
from recap.core.decode import grouped_decode
from recap.core.options import SamplingOptions
from recap.core.orders import order_named
from recap.core.steps import Step
from recap.models.registry import SIZES, build, count_parameters, randomize, tiny
from recap.models.text import TextAdapter, TextConfig
from recap.planning.memory import predict
from recap.planning.plan import plan
from tests import tiny as small

Capture = pytest.CaptureFixture[str]


def sized(name: str, tokens: int) -> TextConfig:
    return TextAdapter(build(SIZES[name], meta=True)).at(tokens).config


@pytest.mark.parametrize(
    ("name", "linear", "head", "kibibytes", "full", "local", "gigabytes"),
    [
        ("llada-8b", 13.96, 1.04, 512, 14.8, 0.46, 16.0),
        ("illada-8b", 13.96, 1.27, 128, 14.8, 0.46, 15.2),
        ("dream-7b", 13.05, 1.09, 56, 13.8, None, 15.2),
    ],
)
def test_published_sizes_cost_what_was_worked_out(
    name: str, linear: float, head: float, kibibytes: int, full: float, local: float | None, gigabytes: float
) -> None:
    config = sized(name, 1024)
    attention = 4 * 1024 * config.width * config.depth  # of a row, for scores and sums
    assert (config.block_flops(1) - attention) / 1e9 == pytest.approx(linear, abs=0.006)
    assert config.draw_flops(1, 0) / 1e9 == pytest.approx(head, abs=0.006)
    assert config.cache_layout().nbytes(1, 1, torch.bfloat16) == kibibytes * 1024 * 1024
    assert config.full_flops(0) / 1e12 == pytest.approx(full, abs=0.06)
    if local is not None:
        assert config.local_flops(0, 1, 32) / 1e12 == pytest.approx(local, abs=0.006)
    else:  # the rows before those that are left are computed too
        assert config.local_flops(8, 16, 32) == config.block_flops(32 + 24)
    assert 2 * count_parameters(config) / 1e9 == pytest.approx(gigabytes, abs=0.06)


RUNS = [
    *("16", "4+12:order=confidence", "4+12", "16:preset=llada", "16:preset=llada,block=8", "8:preset=dream"),
    *("4+12:preset=fast-dllm-dual", "2+6:preset=fast-dllm-prefix", "4+12:preset=fast-dream-dual"),
    *("4+4:preset=informed", "4+12:block=8", "4+12:guidance=1.5", "4+12:order=informed,target=1.0"),
]


class Counting:
    """A head that notes how many rows it draws each time."""

    def __init__(self, head: Any) -> None:
        self.head, self.rows = head, list[int]()

    def draw(self, features: Any, step: Step, branches: int, noise: Any) -> Any:
        self.rows.append(features.shape[1])
        return self.head.draw(features, step, branches, noise)


@pytest.mark.parametrize("known", [0, 5])
@pytest.mark.parametrize("text", RUNS)
@pytest.mark.parametrize("name", ["illada-8b", "dream-7b"])
def test_what_is_planned_is_what_is_drawn(name: str, text: str, known: int) -> None:
    """Rows that the head draws, those from which a step may choose included, and rows that are evaluated."""
    model = TextAdapter(randomize(build(tiny(SIZES[name])))).at(16 + known)
    options = SamplingOptions("text").override(SamplingOptions.from_text(text))
    schedule = options.schedule(16, known)
    selector = order_named(options.selector_name or "random", options.block)
    head = Counting(model.head)
    watched = small.Spied(model, lambda *_: None)
    watched.head = head
    ids = torch.zeros(1, 16 + known, dtype=torch.long)
    given = known_of(ids, known) if known else None
    list(grouped_decode(watched, None, schedule, selector, small.noise(1), given))
    order = None if options.selector_name == "random" and options.block else options.selector_name
    cost, one = run_cost(model.config, schedule, order), model.config.draw_flops(1, 0)
    branches = 2 if schedule.guided else 1
    assert cost.head == branches * one * sum(head.rows)
    most = predict(model.config, schedule, 1, weights=0, order=order)
    values = model.config.full_values * 4 * branches
    draws = model.config.draw_bytes(schedule.steps[0], max(head.rows), (1, branches), 4, False)
    assert most.activations == draws + max(values, draws)


def known_of(ids: torch.Tensor, known: int) -> Any:
    return Known(ids, (torch.arange(ids.shape[1]) >= known).unsqueeze(0))


def planned(capsys: Capture, *argv: object) -> dict[str, Any]:
    assert main(["plan", "--json", *map(str, argv)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    return dict(found)


def test_the_command_plans_texts(capsys: Capture) -> None:
    asked = ("--model", "llada-8b", "--schedule", "32+992:preset=fast-dllm-dual", "--dtype", "bfloat16")
    found = planned(capsys, *asked, "--length", 1024)
    assert found["flops_full"] / found["full"] == pytest.approx(14.84e12, rel=0.001)
    assert found["flops_local"] / found["local"] == pytest.approx(0.4639e12, rel=0.001)
    assert found["cache_bytes"] == 2**29
    assert found["memory"]["weights"] == 16_031_162_368
    prompted = planned(
        capsys, *asked[:3], "8+248:preset=fast-dllm-dual", *asked[4:], "--length", 1024, "--prompt", 768
    )
    assert prompted["tokens"] == [1] * 256
    assert prompted["flops_full"] / prompted["full"] == pytest.approx(14.84e12, rel=0.001)
    usual = planned(capsys, "--model", "dream-7b", "--schedule", ":preset=dream")
    assert sum(usual["tokens"]) == 256
    assert main(["plan", *asked, "--length", "1024", "--memory", "80GB"]) == 0
    shown = capsys.readouterr().out
    assert "One text." in shown
    assert "cache/text" in shown
    assert "texts in 80 GB" in shown


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--model", "llada-8b", "--length", "5000"], "places for 1 to 4096"),
        (["--model", "llada-8b", "--length", "64", "--prompt", "64"], "leave some of them to write"),
        (["--model", "mage-base", "--schedule", "8", "--prompt", "3"], "--prompt is for texts"),
        (["--model", "mage-base", "--schedule", "8", "--length", "3"], "--length is for texts"),
        (["--length", "64"], "add --model"),
    ],
)
def test_lengths_that_cannot_be_are_refused(argv: list[str], words: str, capsys: Capture) -> None:
    assert main(["plan", *argv]) == 2
    assert words in capsys.readouterr().err


def test_a_plan_knows_what_is_known() -> None:
    config, options = sized("llada-8b", 96), SamplingOptions("llada", full=8)
    assert plan("llada-8b", config, options.schedule(64, 32)).cost.full == 8 * config.full_flops(0)
    with pytest.raises(ValueError, match="decodes 64 tokens"):
        plan("llada-8b", config, options.schedule(64))
