import math
from itertools import pairwise

import pytest
import torch

from recap.core.steps import Step
from recap.models.mar.diffusion import DiffusionHead, updates
from tests import tiny
from tests.models import plain


def head_of(bound: float | None = None) -> DiffusionHead:
    head = tiny.model("mar", token_bound=bound).head
    assert isinstance(head, DiffusionHead)
    return head


def test_respaced_timesteps() -> None:
    assert [u.timestep for u in reversed(updates(100))][:8] == [0, 10, 20, 30, 40, 50, 61, 71]
    assert [u.timestep for u in updates(100)][:2] == [999, 989]
    assert [u.timestep for u in reversed(updates(50))][:5] == [0, 20, 41, 61, 82]
    assert [u.timestep for u in updates(50)][:2] == [999, 979]


def test_tables_of_the_hundred_step_process() -> None:
    table = list(reversed(updates(100)))
    betas = [math.exp(u.log_high) for u in table]
    assert betas[0] == pytest.approx(4.12842e-5, rel=1e-5)
    assert betas[1] == pytest.approx(6.79840e-4, rel=1e-5)
    assert betas[99] == pytest.approx(0.99999, abs=5e-6)
    assert 1 / table[0].a ** 2 == pytest.approx(0.99995872, abs=1e-8)
    assert 1 / table[99].a ** 2 == pytest.approx(2.42877e-9, rel=1e-5)
    assert [u.log_low for u in table[:3]] == pytest.approx([-10.15395, -10.15395, -7.71591], abs=1e-5)


@pytest.mark.parametrize("steps", [2, 7, 50, 100, 1000])
def test_a_perfect_denoiser_is_a_fixed_point(steps: int) -> None:
    """With the true noise of a clean value, every step's mean lies on the path to it."""
    for now, following in pairwise(updates(steps)):
        signal, next_signal = 1 / now.a, 1 / following.a
        clean, eps = 0.7, 0.0  # on the noiseless path x = signal * clean
        mean = now.c * (now.a * signal * clean - now.b * eps) + now.d * signal * clean
        assert mean == pytest.approx(next_signal * clean, rel=1e-6)
    assert updates(steps)[-1].d == 0.0


def test_impossible_step_counts_are_named() -> None:
    for steps in (1, 1001):
        with pytest.raises(ValueError, match=f"asked for {steps} steps"):
            updates(steps)


@pytest.mark.parametrize("scale", [1.0, 2.5])
@torch.no_grad()
def test_the_head_is_the_textbook_sampler(scale: float) -> None:
    head = head_of()
    generator = torch.Generator().manual_seed(0)
    z, blank = torch.randn(2, 5, 32, generator=generator)
    random = torch.randn(1, 9, 5, 4, generator=generator)
    features = torch.stack([z, blank]) if scale != 1.0 else z.unsqueeze(0)
    ours = head.denoise(features, random, Step(5, 0.8, guidance=scale, head_steps=9), len(features))[0]
    theirs = plain.denoise(head.net, z, blank, random[0].double(), scale, 0.8)
    assert (ours - theirs).abs().max() / theirs.abs().max() < 1e-5


@torch.no_grad()
def test_temperature_scales_the_noise_of_the_steps_alone() -> None:
    head = head_of()
    features = torch.randn(1, 3, 32, generator=torch.Generator().manual_seed(0))
    still = Step(3, temperature=0, head_steps=6)
    cold = [head.draw(features, still, 1, tiny.numbers(1, 3, s)) for s in (0, 0, 1)]
    assert torch.equal(cold[0].values, cold[1].values)
    assert not torch.equal(cold[0].values, cold[2].values)  # the first noise still counts
    warm = head.draw(features, Step(3, head_steps=6), 1, tiny.numbers(1, 3, 0))
    assert not torch.equal(cold[0].values, warm.values)
    assert cold[0].confidence is None


@torch.no_grad()
def test_bounded_predictions_keep_an_untrained_head_in_range() -> None:
    """Without a bound the first step multiplies the network's error; a wide bound changes nothing."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(2, 3, 32, generator=generator)
    random = torch.randn(2, 20, 3, 4, generator=generator)
    step = Step(3, head_steps=20)
    free, wide, narrow = (head_of(bound).denoise(features, random, step) for bound in (None, 1e6, 0.5))
    assert torch.equal(free, wide)
    assert free.abs().max() > 1
    assert narrow.abs().max() <= 0.5
    with pytest.raises(ValueError, match=r"token_bound is 0\.0"):
        tiny.model("mar", token_bound=0.0)


class Bell:
    """The perfect denoiser of tokens that are normal with a known mean and spread."""

    def __init__(self, mean: float, spread: float) -> None:
        self.mean, self.spread = mean, spread

    def predict(self, x: torch.Tensor, left: float) -> torch.Tensor:
        variance = left * self.spread**2 + 1 - left
        return math.sqrt(1 - left) * (x - math.sqrt(left) * self.mean) / variance


def solved(steps: int, bell: Bell, x: torch.Tensor) -> torch.Tensor:
    for update in updates(steps, "ddim"):
        eps = bell.predict(x, 1 / update.a**2)
        x = update.c * (update.a * x - update.b * eps) + update.d * x
    return x


def test_the_solver_without_noise_arrives_where_it_should() -> None:
    bell = Bell(0.7, 0.3)
    x = torch.linspace(-2.5, 2.5, 11, dtype=torch.float64)
    expected = 0.7 + 0.3 * x  # the map that carries one bell to the other and keeps the order
    errors = [float((solved(steps, bell, x) - expected).abs().max()) for steps in (10, 20, 50, 400)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.05


def test_the_solver_without_noise_draws_once_and_forgets_the_temperature() -> None:
    head = head_of(2.0)
    features = torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))
    steps = [Step(3, head_steps=6, solver="ddim", temperature=t) for t in (0.5, 1.0)]
    first, second = (head.draw(features, step, 1, tiny.numbers(2, 3)).values for step in steps)
    assert torch.equal(first, second)
    assert head.noise(steps[0], tiny.numbers(2, 3)).shape == (2, 1, 3, 4)


def test_modulation_ahead_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    head = head_of(2.0)
    features = torch.randn(4, 3, 32, generator=torch.Generator().manual_seed(0))
    random = tiny.noise(2).normal(9, 3, 4)
    ends = []
    for ahead in (1 << 25, 20_000, 1):
        monkeypatch.setattr("recap.models.mar.diffusion.AHEAD", (ahead, ahead))
        ends.append(head.denoise(features, random, Step(3, guidance=1.5, head_steps=9), 2))
    assert torch.allclose(ends[0], ends[1], atol=1e-5)
    assert torch.allclose(ends[0], ends[2], atol=1e-5)
