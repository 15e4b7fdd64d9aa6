"""Every trainer learns, resumes exactly, and says what is wrong with its data."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from recap.models.mage import MAGEConfig
from recap.models.mar import MARConfig
from recap.models.maskgit import MaskGITConfig
from recap.models.registry import build
from recap.tokenizers import KLVAE, VQGAN, KLVAEConfig, VQGANConfig
from recap.training.critic import FeatureCritic
from recap.training.data import Photos, read_photos
from recap.training.families import IdsObjective, LatentsObjective, Tokens, initialise, tokenized
from recap.training.loop import Objective, Recipe, Trainer
from recap.training.muon import Muon, orthogonal
from recap.training.perceptual import DEPTHS, WIDTHS, PerceptualDistance
from recap.training.tokenizers import TokenizerObjective, measured_scale

KL = KLVAEConfig(channels=8, multipliers=(1, 2, 2), latent_channels=4, groups=4)
VQ = VQGANConfig(channels=8, multipliers=(1, 2, 2), latent_channels=4, codes=16, groups=4)
MAR = MARConfig(32, 1, 1, heads=2, head_depth=1, head_width=32, num_tokens=16, channels=4, buffer=2, classes=3)
MASKGIT = MaskGITConfig(32, 2, 2, num_tokens=16, codes=16, classes=3)
MAGE = MAGEConfig(32, 1, 1, 2, 2, num_tokens=16, codes=16, class_slots=1, fake_class=16, patch=0, vqgan=None)
KINDS = ("kl", "vq", "vq-critic", "kl-features", "maskgit", "mage", "mar")


@pytest.fixture(scope="module")
def photos() -> Photos:
    """Stripes and patches whose colour tells their class."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(12) % 3
    pixels = torch.randint(0, 60, (12, 3, 16, 16), generator=generator, dtype=torch.uint8)
    for i, label in enumerate(labels.tolist()):
        pixels[i, label, 4 + i % 4 : 12] += 150
    return Photos(pixels, labels)


def objective(kind: str, photos: Photos, seed: int = 0) -> Objective:
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "kl":
            return TokenizerObjective(KLVAE(KL), photos, 4)
        if kind == "kl-features":
            tokenizer, judges = KLVAE(KL), FeatureCritic(channels=16)
            torch.manual_seed(0)  # trained nowhere, so the same for every run
            distance = PerceptualDistance()
            return TokenizerObjective(tokenizer, photos, 4, distance, judges, critic_from=0.3, noise=0.1)
        if kind.startswith("vq"):
            critic = FeatureCritic((), channels=16) if kind == "vq-critic" else None
            return TokenizerObjective(VQGAN(VQ), photos, 4, critic=critic, critic_from=0.3, critic_weight=0.05)
    labels = photos.labels.reshape(-1, 1, 1)
    if kind == "mar":
        noise = torch.randn(12, 2, 16, 8, generator=torch.Generator().manual_seed(0)).half()
        values = 0.1 * noise + labels.unsqueeze(-1)
        mar: Any = initialise(build(MAR), generator)
        return LatentsObjective(mar, Tokens(values, photos.labels), 8)
    ids = (labels * 5 + torch.arange(16) % 2).expand(-1, 2, -1).to(torch.int32)
    net: Any = initialise(build(MASKGIT if kind == "maskgit" else MAGE), generator)
    return IdsObjective(net, Tokens(ids, photos.labels), 8)


def recipe(steps: int, **changes: Any) -> Recipe:
    return Recipe(steps=steps, batch=8, lr=3e-3, warmup=5, ema=0.9, **changes)


def weights(trainer: Trainer) -> list[Tensor]:
    nets = [value for net in trainer.objective.nets.values() for value in net.state_dict().values()]
    return [*nets, *trainer.average.values(), *trainer.objective.state().values()]


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls(kind: str, photos: Photos) -> None:
    steps = 60 if kind in ("maskgit", "mage", "mar") else 160  # pictures take longer
    trainer = Trainer(objective(kind, photos), recipe(steps, muon=kind == "mage"))
    trainer.run(progress=False, every=10)
    first, last = trainer.log[0]["loss"], trainer.log[-1]["loss"]
    assert last < 0.8 * first, trainer.log
    assert [row["step"] for row in trainer.log] == list(range(10, steps + 1, 10))


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_same_run(kind: str, photos: Photos, tmp_path: Path) -> None:
    plan = recipe(8, muon=kind == "mage")
    whole = Trainer(objective(kind, photos), plan)
    whole.run(progress=False, every=2)
    half = Trainer(objective(kind, photos), plan)
    half.run(4, progress=False, every=2)
    half.save(tmp_path / "state.pt")
    other = Trainer(objective(kind, photos, seed=9), plan)
    other.resume(tmp_path / "state.pt")
    assert other.step == 4
    other.run(progress=False, every=2)
    assert all(torch.equal(a, b) for a, b in zip(weights(whole), weights(other), strict=True))
    assert [{k: v for k, v in row.items() if k != "images_per_second"} for row in whole.log] == [
        {k: v for k, v in row.items() if k != "images_per_second"} for row in other.log
    ]


def test_another_recipe_is_not_resumed(photos: Photos, tmp_path: Path) -> None:
    trainer = Trainer(objective("maskgit", photos), recipe(8))
    trainer.save(tmp_path / "state.pt")
    with pytest.raises(ValueError, match="another recipe"):
        Trainer(objective("maskgit", photos), recipe(9)).resume(tmp_path / "state.pt")


def test_nan_stops_the_run(photos: Photos) -> None:
    trainer = Trainer(objective("maskgit", photos), recipe(8))
    with torch.no_grad():
        trainer.net.get_parameter("norm.weight").fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="step 2"):
        trainer.run(progress=False, every=2)


def test_rates_warm_up_and_decay() -> None:
    plan = Recipe(steps=1000, lr=1.0, warmup=100)
    assert plan.rate(0) == pytest.approx(0.01, rel=1e-3)
    assert plan.rate(99) > 0.95
    assert plan.rate(500) == pytest.approx(0.51, abs=0.01)
    assert plan.rate(999) == pytest.approx(0.02, abs=1e-4)
    with pytest.raises(ValueError, match="impossible recipe"):
        Recipe(steps=0)


def test_a_perfect_denoiser_has_no_loss_but_the_variance(photos: Photos) -> None:
    """The noise is predicted exactly by reading it off: only the bound is left, and it is small."""
    target = objective("mar", photos)
    assert isinstance(target, LatentsObjective)
    clean = torch.randn(500, 4, generator=torch.Generator().manual_seed(3))
    table, repeats = target.table, target.repeats

    class Oracle(torch.nn.Module):
        def forward(self, noisy: Tensor, t: Tensor, features: Tensor) -> Tensor:
            signal, sigma = table[t, 0:1], table[t, 1:2]
            eps = (noisy - signal * clean.repeat(repeats, 1)) / sigma
            return torch.cat([eps, -torch.ones_like(eps)], dim=-1)  # the smallest variance: the posterior's own

    target.net.diffloss.net = Oracle()  # type: ignore[assignment]
    _, figures = target.denoising(torch.zeros(500, 32), clean, torch.Generator().manual_seed(0))
    assert figures["noise"] < 1e-4
    assert figures["bound"] < 0.05


def test_noising_keeps_the_variance(photos: Photos) -> None:
    target = objective("mar", photos)
    assert isinstance(target, LatentsObjective)
    assert torch.allclose(target.table[:, 0] ** 2 + target.table[:, 1] ** 2, torch.ones(1000), atol=1e-5)
    assert target.table[0, 0] > 0.999
    assert target.table[-1, 0] < 0.01


def test_latents_are_scaled_to_unit_variance(photos: Photos) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = KLVAE(KL)
    scaled = measured_scale(net, photos)
    tokens = scaled.encode(photos.pixels.float() / 255)
    assert tokens.square().mean().item() == pytest.approx(1, abs=0.01)
    data = tokenized(scaled, photos)
    assert data.values.shape == (12, 2, 16, 8)
    assert torch.allclose(data.values[:, 0, :, :4].float(), tokens, atol=1e-2)


def package_file(path: Path, extra: object = None) -> Path:
    """A file like the package's: nested dictionaries of numpy arrays, channels last."""
    random, width, number = np.random.default_rng(0), 3, 0
    layers: dict[str, Any] = {}
    given: dict[str, Any] = {"VGG16_0": layers}
    for index, (count, out) in enumerate(zip(DEPTHS, WIDTHS, strict=True)):
        for _ in range(count):
            kernel = random.standard_normal((3, 3, width, out), dtype=np.float32) / width
            layers[f"Conv_{number}"] = {"kernel": kernel, "bias": np.zeros(out, np.float32)}
            width, number = out, number + 1
        given[f"NetLinLayer_{index}"] = {"Conv_0": {"kernel": np.full((1, 1, out, 1), 0.01, np.float32)}}
    if extra is not None:
        given["extra"] = extra
    path.write_bytes(pickle.dumps(given))
    return path


def test_the_perceptual_distance_sees_differences(tmp_path: Path) -> None:
    distance = PerceptualDistance.load(package_file(tmp_path / "vgg16.ckpt"))

    def between(ours: Tensor, theirs: Tensor) -> Tensor:
        return distance.between(distance.features(ours), distance.features(theirs))

    generator = torch.Generator().manual_seed(0)
    a = torch.rand(1, 3, 32, 32, generator=generator)
    b = (a + 0.1 * torch.rand(a.shape, generator=generator)).clamp(0, 1).requires_grad_()
    assert between(a, a).item() == pytest.approx(0, abs=1e-6)
    assert between(b, a) > 0
    (grad,) = torch.autograd.grad(between(b, a), b)
    assert grad.abs().sum() > 0


def test_the_perceptual_weights_are_arrays_and_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(pickle.UnpicklingError, match="only numpy arrays"):
        PerceptualDistance.load(package_file(tmp_path / "bad.ckpt", extra=Path("evil")))


def test_a_decoder_alone_leaves_the_tokens_as_they_are(photos: Photos) -> None:
    for build_net in (lambda: KLVAE(KL), lambda: VQGAN(VQ)):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            net: Any = build_net()
        images = photos.pixels.float() / 255
        tokens, drawn = net.encode(images), net.decode(net.encode(images))
        target = TokenizerObjective(net, photos, 4, decoder_only=True, fresh=False)
        Trainer(target, recipe(5)).run(progress=False)
        assert torch.equal(net.encode(images), tokens)
        assert not torch.equal(net.decode(tokens), drawn)
    with pytest.raises(ValueError, match="start from a trained tokenizer"):
        TokenizerObjective(VQGAN(VQ), photos, 4, decoder_only=True)


def test_muon_moves_every_direction_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    tall = torch.randn(3, 24, 8, generator=generator) * torch.logspace(0, -2, 8)  # directions of unequal strength
    for matrices in (tall, tall.mT):
        values = torch.linalg.svdvals(orthogonal(matrices))
        assert values.min() > 0.5
        assert values.max() < 1.5


def test_muon_sees_a_convolution_as_the_matrix_over_its_patch() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix, grad = (torch.randn(6, 27, generator=generator) for _ in range(2))
    flat = torch.nn.Parameter(matrix.clone())
    conv = torch.nn.Parameter(matrix.reshape(6, 3, 3, 3).clone())
    flat.grad, conv.grad = grad.clone(), grad.reshape(conv.shape).clone()
    for parameter in (flat, conv):
        Muon([parameter], lr=0.1).step()
    assert not torch.equal(flat, matrix)
    assert torch.equal(conv.flatten(1), flat)


def test_a_critic_without_hold_is_not_heard(photos: Photos) -> None:
    tokenizer: Any = objective("kl-features", photos)
    tokenizer.critic_weight = 1.0
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for judge in (tokenizer.critic.pixels, *tokenizer.critic.heads.children()):
            judge.score.weight.zero_()
            judge.score.bias.zero_()
    _, figures = tokenizer.losses(50, 0.5, generator)
    assert figures["push"] == 0  # every score is zero: the hinge stands at one, and nobody pushes
    trainer = Trainer(tokenizer, recipe(40))
    trainer.step = 20
    trainer.run(progress=False, every=1)
    assert trainer.log[-1]["critic"] < 0.9
    assert trainer.log[-1]["push"] > 0.05


def test_noise_on_latents_spares_the_deterministic_ones(photos: Photos) -> None:
    """The latents' own deviation and the noise add up as variances; without noise nothing changes."""
    drawn = {}
    for noise in (0.0, 0.5):
        tokenizer: Any = objective("kl", photos)
        tokenizer.noise = noise
        images = photos.pixels[:4].float() / 255
        drawn[noise] = tokenizer._kl(images, torch.Generator().manual_seed(0))[0]
        again = tokenizer._kl(images, torch.Generator().manual_seed(0))[0]
        assert torch.equal(drawn[noise], again)
    assert not torch.equal(drawn[0.0], drawn[0.5])


def test_muon_treats_queries_keys_and_values_apart() -> None:
    generator = torch.Generator().manual_seed(0)
    grad = torch.randn(24, 8, generator=generator)
    fused = torch.nn.Parameter(torch.zeros(24, 8))
    parts = [torch.nn.Parameter(torch.zeros(8, 8)) for _ in range(3)]
    fused.grad = grad
    for part, piece in zip(parts, grad.chunk(3), strict=True):
        part.grad = piece
    Muon([fused], lr=0.1).step()
    Muon(parts, lr=0.1).step()
    assert torch.allclose(fused, torch.cat([*parts]), atol=1e-6)


def pictures(folder: Path, side: int = 16) -> Path:
    generator = np.random.default_rng(0)
    for name in ("rose", "tulip"):
        (folder / name).mkdir(parents=True)
        for i in range(3):
            pixels = generator.integers(0, 255, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos")
    photos = read_photos(folder)
    assert photos.labels.tolist() == [0, 0, 0, 1, 1, 1]
    for ours, file in zip(photos.pixels, sorted(folder.rglob("*.png")), strict=True):
        assert torch.equal(ours.permute(1, 2, 0), torch.from_numpy(np.asarray(Image.open(file)).copy()))
    assert read_photos(folder / "rose").labels.tolist() == [0, 0, 0]


def test_unreadable_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none is no folder; give one of pictures"):
        read_photos(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no pictures"):
        read_photos(tmp_path / "empty")
    folder = pictures(tmp_path / "photos")
    (folder / "rose" / "9.png").write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"9\.png is no readable picture"):
        read_photos(folder)
    Image.new("RGB", (8, 8)).save(folder / "rose" / "9.png")
    with pytest.raises(ValueError, match="squares of one size"):
        read_photos(folder)
