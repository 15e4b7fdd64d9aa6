from dataclasses import dataclass

from recap.core.cache import CacheLayout, StackLayout
from recap.core.costs import block_flops, block_values
from recap.core.schedule import Schedule, Step


@dataclass(frozen=True, slots=True)
class ToyConfig:
    num_tokens: int = 16
    width: int = 16
    depth: int = 3
    heads: int = 2
    channels: int = 3

    draws_candidates = False

    def full_flops(self, decoded: int) -> int:
        return self.depth * block_flops(self.width, self.num_tokens, self.num_tokens)

    def local_flops(self, context: int, decoded: int, rows: int) -> int:
        return self.depth * block_flops(self.width, rows, self.num_tokens)

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        return 2 * tokens * self.width * self.channels

    @property
    def full_values(self) -> int:
        return block_values(self.width, self.num_tokens)

    def draw_bytes(self, step: Step, drawn: int, rows: tuple[int, int], itemsize: int, cuda: bool) -> int:
        return 4 * drawn * rows[0] * self.channels

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        return CacheLayout((StackLayout("blocks", self.depth, self.num_tokens, self.width),))
