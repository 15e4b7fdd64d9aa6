import torch
from torch import Tensor, nn

from recap.models.layers import Block
from tests.models.toy.config import ToyConfig


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
