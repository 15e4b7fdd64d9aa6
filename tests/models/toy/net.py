"""Sizes, network and adapter of the toy family."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from recap.core.attention import evaluate_stack
from recap.core.cache import ContextCache
from recap.core.canvas import Canvas, Draw
from recap.core.noise import PositionNoise
from recap.core.steps import Step
from recap.models.adapter import StackAdapter, shifted
from recap.models.layers import Block
from recap.models.sizes import IdCosts


@dataclass(frozen=True, slots=True)
class ToyConfig(IdCosts):
    num_tokens: int = 16
    width: int = 16
    depth: int = 3
    heads: int = 2
    channels: int = 3

    draws_candidates = False
    prefix = 0

    @property
    def stacks(self) -> dict[str, int]:
        return {"blocks": self.depth}

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        return 2 * tokens * self.width * self.channels

    def draw_bytes(self, step: Step, drawn: int, rows: tuple[int, int], itemsize: int, cuda: bool) -> int:
        return 4 * drawn * rows[0] * self.channels


class Toy(nn.Module):
    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        self.hear, self.say = nn.Linear(config.channels, config.width), nn.Linear(config.width, config.channels)
        self.hidden = nn.Parameter(torch.zeros(1, config.width))
        self.places = nn.Parameter(torch.zeros(config.num_tokens, config.width))
        self.blocks = nn.ModuleList(Block(config.width, config.heads) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, tokens: Tensor, masked: Tensor) -> Tensor:
        x = torch.where(masked.unsqueeze(-1), self.hidden, self.hear(tokens)) + self.places
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class ToyHead:
    def __init__(self, say: Any) -> None:
        self.say = say

    def draw(self, features: Tensor, step: Step, branches: int, noise: PositionNoise) -> Draw:
        mean = self.say(features)
        return Draw(mean + step.temperature * noise.normal(mean.shape[-1]).to(mean.dtype))


class ToyAdapter(StackAdapter):
    def __init__(self, net: Any, *, refresh_prefix: bool = False) -> None:
        super().__init__(net, refresh_prefix=refresh_prefix)
        self.net, self.config, self.blocks, self.head = net, net.config, list(net.blocks), ToyHead(net.say)

    def start(self, labels: Tensor | None, order: Tensor, branches: int) -> Canvas:
        return Canvas(tokens=torch.zeros(*order.shape, self.config.channels, device=order.device), order=order)

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        return self.net(canvas.raster().to(self.dtype), canvas.masked)

    def evaluate(self, canvas: Canvas, cache: ContextCache | None, rows: slice, wanted: slice, whole: bool) -> Tensor:
        known = self.net.hear(canvas.tokens[:, rows.start : min(rows.stop, canvas.decoded)].to(self.dtype))
        hidden = self.net.hidden.expand(len(known), rows.stop - rows.start - known.shape[1], -1)
        x = torch.cat([known, hidden], dim=1) + self.net.places[canvas.order[:, rows]]
        renewed = self.renewed(canvas, rows, 0, canvas.size, whole)
        layers = self.layers(self.blocks, cache, "blocks", len(x))
        return evaluate_stack(layers, x, renewed, self.net.norm, only=shifted(wanted, -rows.start), ops=self.ops)
