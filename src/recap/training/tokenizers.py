"""Training a tokenizer: reconstruction, perceptual and adversarial losses, and what the bottleneck needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.tokenizers import KLVAE, VQGAN
from recap.tokenizers.images import to_sequence
from recap.training.critic import FeatureCritic
from recap.training.data import Photos
from recap.training.loop import Figures, Objective
from recap.training.perceptual import PerceptualDistance

N = TypeVar("N", bound=nn.Module)
EDGES = 0.25  # weight of differences between neighbouring pixels


def photo_batch(photos: Photos, batch: int, generator: torch.Generator) -> Tensor:
    """Random photos, half of them mirrored, in [0, 1]."""
    device = photos.pixels.device
    rows = torch.randint(len(photos), (batch,), generator=generator, device=device)
    flips = torch.rand(batch, 1, 1, 1, generator=generator, device=device) < 0.5
    images = photos.pixels[rows].float() / 255
    return torch.where(flips, images.flip(-1), images)  # (B, 3, s, s)


@torch.no_grad()
def initialise_layers(net: N, generator: torch.Generator) -> N:
    """Starting weights of convolutions and codes as their layers would choose them, but from a generator."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_uniform_(module.weight, a=5**0.5, generator=generator)
            if module.bias is not None:
                bound = module.weight[0].numel() ** -0.5
                nn.init.uniform_(module.bias, -bound, bound, generator=generator)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, generator=generator)
    return net


def posterior(net: KLVAE, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-variance (B, C, h, w) of the latents of images."""
    mean, logvar = net.moments(images).float().chunk(2, dim=1)
    return mean, logvar.clamp(-30, 20)


class TokenizerObjective(Objective):
    """Losses of a tokenizer, and of the critic if one joins after `critic_from` of the run."""

    def __init__(
        self,
        net: KLVAE | VQGAN,
        photos: Photos,
        batch: int,
        perceptual: PerceptualDistance | None = None,
        critic: FeatureCritic | None = None,
        critic_from: float = 0.5,
        critic_weight: float = 0.5,
        decoder_only: bool = False,
        fresh: bool = True,
        noise: float = 0.0,
    ) -> None:
        """`critic_weight` is the strength of a critic that tells every photo from its reconstruction, over that of
        the other losses. `fresh` is False when training goes on from a trained tokenizer: its codes are kept.
        `noise`, over the deviation of the latents, is added to those of a KL tokenizer: a model's tokens are never
        exact, and its decoder should not mind.
        `decoder_only` leaves encoder and codes as they are, so models trained on the tokens stay valid.
        """
        if decoder_only and fresh:
            raise ValueError("a decoder alone is trained for codes that exist; start from a trained tokenizer")
        if decoder_only:
            net.requires_grad_(False)
            for part in (net.decoder, *([net.post_quant_conv] if isinstance(net, KLVAE) else [])):
                part.requires_grad_(True)
        self.net, self.photos, self.batch = net, photos, batch
        self.perceptual, self.critic = perceptual, critic
        self.critic_from, self.critic_weight = critic_from, critic_weight
        self.decoder_only, self.fresh, self.noise = decoder_only, fresh, noise
        self.nets = {"loss": net} if critic is None else {"loss": net, "critic": critic}
        codes = net.config.codes if isinstance(net, VQGAN) else 1
        self.usage = torch.full((codes,), 0.0 if fresh else 1.0, device=photos.pixels.device)

    def state(self) -> dict[str, Tensor]:
        return {"usage": self.usage}

    def losses(self, step: int, share: float, generator: torch.Generator) -> tuple[Figures, Figures]:
        images = photo_batch(self.photos, self.batch, generator)
        if images.is_cuda:
            images = images.contiguous(memory_format=torch.channels_last)
        kl = isinstance(self.net, KLVAE)
        drawn, penalty, figures = self._kl(images, generator) if kl else self._vq(images, step, share, generator)
        drawn = drawn.float()
        picture = drawn.detach().requires_grad_()  # the judges end here; their gradients go on together
        error = picture - images
        loss = error.abs().mean()
        figures["l1"] = loss.detach()
        # neighbours differ as they should: no grid where the photo is smooth
        loss = loss + EDGES * (error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean())
        ours: list[Tensor] = []
        theirs: list[Tensor] = []
        if self.perceptual is not None:
            with torch.no_grad():
                theirs = self.perceptual.features(images)
            ours = self.perceptual.features(picture)
            distance = self.perceptual.between(ours, theirs)
            figures["perceptual"] = distance.detach()
            loss = loss + distance
        critic = self.critic if share >= self.critic_from else None
        (pull,) = torch.autograd.grad(loss, picture, retain_graph=critic is not None)
        figures["loss"] = (loss + penalty).detach()
        losses = {}
        if critic is not None:
            real = critic(images, theirs)
            fake = critic(picture.detach(), [x.detach() for x in ours])
            hinges = [F.relu(1 - a).mean() + F.relu(1 + b).mean() for a, b in zip(real, fake, strict=True)]
            losses["critic"] = 0.5 * torch.stack(hinges).mean()
            # as strong, beside the photo's own pull, as the critic is sure: one that has lost its hold is not heard
            hold = (1 - losses["critic"].detach()).clamp(0, 1)
            flattery = torch.stack([-score.mean() for score in critic(picture, ours)]).mean()
            (push,) = torch.autograd.grad(flattery, picture)
            # it learns alone for a twentieth of the run, then joins over another one
            ramp = min(1.0, max(0.0, (share - self.critic_from) / 0.05 - 1))
            figures["push"] = strength = self.critic_weight * ramp * hold
            pull = pull + push * (strength * pull.norm() / (push.norm() + 1e-12))
        return {"loss": (pull * drawn).sum() + penalty, **losses}, figures

    def _kl(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Figures]:
        assert isinstance(self.net, KLVAE)
        with torch.set_grad_enabled(not self.decoder_only):
            mean, logvar = posterior(self.net, images)
        noise = torch.randn(mean.shape, generator=generator, device=mean.device)
        spread = torch.hypot((0.5 * logvar).exp(), self.noise * mean.detach().std())
        drawn = self.net.decode_latent(mean + spread * noise)
        divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        return drawn * 0.5 + 0.5, 1e-4 * divergence, {"kl": divergence.detach(), "latent_std": mean.detach().std()}

    def _vq(
        self, images: Tensor, step: int, share: float, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Figures]:
        assert isinstance(self.net, VQGAN)
        with torch.set_grad_enabled(not self.decoder_only):
            grid = self.net.latent(images).float()  # (B, C, h, w)
        latent = to_sequence(grid)  # (B, N, C)
        codebook = self.net.quantize.embedding.weight
        flat = latent.detach().reshape(-1, latent.shape[-1])
        if self.fresh and step == 0:  # begin among the encoder's own vectors
            with torch.no_grad():
                codebook.copy_(some(flat, len(codebook), generator))
        with torch.no_grad(), torch.autocast(flat.device.type, enabled=False):
            ids = (codebook.square().sum(1) - 2 * flat @ codebook.T).argmin(dim=1)  # (B * N)
        nearest = F.embedding(ids, codebook).reshape(latent.shape)
        commit = 0.25 * F.mse_loss(latent, nearest.detach()) + F.mse_loss(nearest, latent.detach())
        passed = latent + (nearest - latent).detach()  # the gradient goes straight through
        drawn = self.net.decode_latent(passed.transpose(1, 2).reshape(grid.shape))
        with torch.no_grad():
            shares = torch.full_like(ids, len(codebook) / len(ids), dtype=torch.float32)
            self.usage.lerp_(torch.zeros_like(self.usage).index_add_(0, ids, shares), 0.02)
            if not self.decoder_only and step % 25 == 24 and share < 0.6:
                # codes that nobody uses start again where the data is
                idle = (self.usage < 0.05).unsqueeze(1)
                codebook.copy_(torch.where(idle, some(flat, len(codebook), generator), codebook))
                self.usage.copy_(torch.where(idle.squeeze(1), torch.ones_like(self.usage), self.usage))
        used = (self.usage > 0.05).float().mean()
        return drawn, commit, {"commit": commit.detach(), "codes_used": used}


def some(flat: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Rows of `flat` by chance."""
    return flat[torch.randint(len(flat), (n,), generator=generator, device=flat.device)]


@torch.no_grad()
def measured_scale(net: KLVAE, photos: Photos, batch: int = 64, limit: int = 1024) -> KLVAE:
    """The tokenizer with the latent scale that gives tokens unit variance."""
    total, count = 0.0, 0
    for start in range(0, min(limit, len(photos)), batch):
        mean, _ = posterior(net, photos.pixels[start : start + batch].float() / 255)
        total += float(mean.double().square().sum())
        count += mean.numel()
    scaled = KLVAE(replace(net.config, latent_scale=round((total / count) ** -0.5, 4))).to(photos.pixels.device)
    scaled.load_state_dict(net.state_dict())
    return scaled.eval()
