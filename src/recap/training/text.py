"""What a language model learns: to fill in masked tokens of a text, however many of them are masked."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from recap.models.text.config import TextConfig
from recap.models.text.net import TextModel
from recap.training.loop import Figures, Objective

BOOKS = TextConfig(  # the embedded model of text
    width=256, depth=6, heads=4, kv_heads=4, hidden=800, codes=4096, num_tokens=256, mask_id=4095, eos_id=0,
    theta=10000.0, tied=True,
)  # fmt: skip
SHORT = 64  # tokens of a window in the first half of a run
LEAST_MASKED = 0.05  # share of the tokens: fewer would weigh heavily in the bound, and be noise


class TextObjective(Objective):
    """The bound on the log-likelihood of LLaDA and MDLM: cross-entropy at masked tokens, over the share of them.

    Shares are spread evenly over the batch, which steadies the gradient. Texts are windows of one long row of ids.
    With `short`, they are this long in the first half of the run, which is quicker; `tokens` are seen in each step.
    """

    def __init__(self, net: TextModel, ids: Tensor, tokens: int, short: int | None = None) -> None:
        self.net, self.ids, self.tokens, self.short = net, ids, tokens, short
        self.nets = {"loss": net}
        if len(ids) <= net.config.num_tokens:
            raise ValueError(f"the texts have {len(ids)} tokens, too few for windows of {net.config.num_tokens}")

    def losses(self, step: int, share: float, generator: torch.Generator) -> tuple[Figures, Figures]:
        config = self.net.config
        length = self.short if self.short is not None and share < 0.5 else config.num_tokens
        batch = max(1, self.tokens // length)
        device = self.ids.device
        first = torch.randint(len(self.ids) - length, (batch, 1), generator=generator, device=device)
        ids = self.ids[first + torch.arange(length, device=device)].long()
        shift = torch.rand(1, generator=generator, device=device)
        ratios = LEAST_MASKED + (1 - LEAST_MASKED) * ((torch.arange(batch, device=device) + shift) / batch)  # (B)
        masked = torch.rand(batch, length, generator=generator, device=device) < ratios[:, None]
        features = self.net.features(ids.masked_fill(masked, config.mask_id))
        chosen = masked.flatten().nonzero().squeeze(1)
        logits = self.net.logits(features.flatten(0, 1)[chosen]).float()
        loss = F.cross_entropy(logits, ids.flatten()[chosen], reduction="none")
        weight = (1 / ratios)[:, None].expand_as(masked).flatten()[chosen]
        return {"loss": (loss * weight).sum() / ids.numel()}, {"masked": loss.detach().mean()}
