"""What each family learns: to predict masked tokens, as ids or by denoising."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.models.layers import Block
from recap.models.mage import MAGE
from recap.models.mar import MAR
from recap.models.mar.denoiser import Denoiser
from recap.models.mar.diffusion import TRAINED_STEPS, updates
from recap.models.maskgit import MaskGIT
from recap.tokenizers import KLVAE, VQGAN
from recap.tokenizers.images import to_sequence
from recap.training.data import Photos
from recap.training.loop import Figures, Objective
from recap.training.masking import MAGE_RATIO, MAR_RATIO, cosine_ratio, first_masked, normal_ratio, random_order
from recap.training.tokenizers import posterior

SMOOTHING = 0.05  # of labels, where ids are predicted
LABEL_DROP = 0.1  # share of images whose label is hidden


@dataclass(frozen=True, slots=True)
class Tokens:
    """A data set behind a tokenizer, every photo and its mirror image."""

    values: Tensor  # (n, 2, N) ids, or (n, 2, N, 2C) means and deviations
    labels: Tensor  # (n)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        device = self.values.device
        rows = torch.randint(len(self.values), (size,), generator=generator, device=device)
        side = torch.randint(2, (size,), generator=generator, device=device)
        return self.values[rows, side], self.labels[rows]


@torch.no_grad()
def tokenized(tokenizer: KLVAE | VQGAN, photos: Photos, batch: int = 128) -> Tokens:
    """All photos and their mirror images as tokens."""
    parts = []
    for start in range(0, len(photos), batch):
        images = photos.pixels[start : start + batch].float() / 255
        sides = []
        for view in (images, images.flip(-1)):
            if isinstance(tokenizer, VQGAN):
                sides.append(tokenizer.encode(view).to(torch.int32))
            else:
                mean, logvar = posterior(tokenizer, view)
                both = torch.cat([mean, (0.5 * logvar).exp()], dim=1)
                sides.append(to_sequence(both).mul(tokenizer.config.latent_scale).half())
        parts.append(torch.stack(sides, dim=1))
    return Tokens(torch.cat(parts), photos.labels)


def initialise(net: nn.Module, generator: torch.Generator) -> nn.Module:
    """Starting weights: small normals, silent residual branches in the denoiser."""
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0 if name.endswith(".weight") else 0.0)
            elif ("adaLN_modulation" in name or "final_layer.linear" in name) or name.endswith("mlm_layer.bias"):
                parameter.zero_()
            elif "emb" in name or "token" in name or "latent" in name:
                parameter.normal_(std=0.02, generator=generator)
            else:
                fan_out, fan_in = parameter.shape[0], parameter[0].numel()
                parameter.normal_(std=(2 / (fan_in + fan_out)) ** 0.5, generator=generator)
    return net


def compile_parts(net: nn.Module) -> None:
    """Compile the modules that repeat, each for the few shapes that it meets."""
    for name, module in net.named_modules():
        if name.startswith("encoder_blocks"):
            continue  # MAR's encoder sees another length in every batch
        if isinstance(module, Block | Denoiser):
            module.compile(dynamic=False)


def dropped(*shape: int, generator: torch.Generator) -> Tensor:
    """Which images go without their label, for guidance."""
    return torch.rand(*shape, generator=generator, device=generator.device) < LABEL_DROP


class IdsObjective(Objective):
    """Masked-token cross-entropy with label smoothing, for MaskGIT and MAGE."""

    def __init__(self, net: MaskGIT | MAGE, data: Tokens, batch: int) -> None:
        self.net, self.data, self.batch = net, data, batch
        self.nets = {"loss": net}

    def losses(self, step: int, share: float, generator: torch.Generator) -> tuple[Figures, Figures]:
        ids, labels = self.data.batch(self.batch, generator)
        ids, of_maskgit = ids.long(), isinstance(self.net, MaskGIT)
        ratios = cosine_ratio(len(ids), generator) if of_maskgit else normal_ratio(len(ids), generator, *MAGE_RATIO)
        masked = first_masked(random_order(len(ids), ids.shape[1], generator), ratios)
        seen = ids.masked_fill(masked, self.net.config.mask_id)
        if isinstance(self.net, MaskGIT):
            hidden = dropped(len(ids), generator=generator)
            logits = self.net(seen, torch.where(hidden, self.net.config.null_class, labels))
        else:
            logits = self.net(seen)
        flat = logits.float().flatten(0, 1)
        loss = F.cross_entropy(flat, ids.flatten(), label_smoothing=SMOOTHING, reduction="none")
        weight = masked.flatten().float()
        right = (logits.argmax(-1) == ids).flatten().float()
        return {"loss": (loss * weight).sum() / weight.sum()}, {"accuracy": (right * weight).sum() / weight.sum()}


class LatentsObjective(Objective):
    """MAR's diffusion loss: predicted noise, and the learned variance by its bound."""

    repeats = 2  # of every token, with noise of its own

    def __init__(self, net: MAR, data: Tokens, batch: int) -> None:
        self.net, self.data, self.batch = net, data, batch
        self.nets = {"loss": net}
        table = list(reversed(updates(TRAINED_STEPS)))
        columns = [[1 / u.a, u.b / u.a, u.a, u.b, u.c, u.d, u.log_high, u.log_low] for u in table]
        self.table = torch.tensor(columns, device=data.values.device)  # (1000, 8)

    def losses(self, step: int, share: float, generator: torch.Generator) -> tuple[Figures, Figures]:
        values, labels = self.data.batch(self.batch, generator)
        device, places = values.device, self.net.config.num_tokens
        mean, deviation = values.float().chunk(2, dim=-1)
        tokens = mean + deviation * torch.randn(mean.shape, generator=generator, device=device)  # (B, N, C)
        # one share for the whole batch, as in the paper: every image then has as many visible tokens
        host = torch.Generator().manual_seed(generator.initial_seed())  # read where shapes are decided
        rate = float(normal_ratio(1, host, *MAR_RATIO))
        order = random_order(len(tokens), places, generator)
        masked = first_masked(order, torch.full((len(tokens),), rate, device=device))
        hidden = dropped(len(tokens), 1, generator=generator)
        condition = torch.where(hidden, self.net.fake_latent, self.net.class_emb(labels))
        features = self.net(tokens, masked, condition, min(places, max(1, math.ceil(rate * places))))
        # as many rows whatever the share: those that the smallest one masks, a random choice of all masked ones
        rows = order[:, : max(1, math.ceil(MAR_RATIO[2] * places)), None]  # (B, r, 1)
        features = features.gather(1, rows.expand(-1, -1, features.shape[-1])).flatten(0, 1)
        clean = tokens.gather(1, rows.expand(-1, -1, tokens.shape[-1])).flatten(0, 1)
        loss, figures = self.denoising(features, clean, generator)
        return {"loss": loss}, figures

    def denoising(self, features: Tensor, clean: Tensor, generator: torch.Generator) -> tuple[Tensor, Figures]:
        """The loss of rows (n, D) and their tokens (n, C), each noised `repeats` times."""
        features, clean = features.repeat(self.repeats, 1), clean.repeat(self.repeats, 1)
        device = clean.device
        t = torch.randint(TRAINED_STEPS, (len(clean),), generator=generator, device=device)
        eps = torch.randn(clean.shape, generator=generator, device=device)
        signal, sigma, a, b, c, d, high, low = self.table[t].unsqueeze(-1).unbind(1)  # (n, 1) each
        noisy = signal * clean + sigma * eps
        guess, v = self.net.diffloss.net(noisy, t, features).float().chunk(2, dim=-1)
        noise_loss = F.mse_loss(guess, eps)
        truth = c * clean + d * noisy  # mean of the true posterior
        ours = c * (a * noisy - b * guess.detach()) + d * noisy  # the variance must not steer the mean
        log_variance = (v + 1) / 2 * high + (1 - v) / 2 * low
        divergence = 0.5 * (log_variance - low + (low - log_variance).exp() - 1)
        divergence = divergence + 0.5 * (truth - ours).square() * (-log_variance).exp()
        spread = (0.5 * log_variance).exp()
        last = 0.5 * ((clean - ours) / spread).square() + 0.5 * log_variance + 0.9189
        bound = torch.where(t.unsqueeze(-1) == 0, last, divergence).mean() / 0.6931
        return noise_loss + bound, {"noise": noise_loss.detach(), "bound": bound.detach()}
