"""Sizes of MAR, and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

from recap.core.bounds import COUNT, LAYERS, SCALE, TOKENS, WIDTH, bounded, check_bounds
from recap.core.cache import CacheLayout, StackLayout
from recap.core.costs import block_flops, block_values
from recap.core.schedule import Schedule
from recap.core.steps import Step
from recap.models.mar.diffusion import AHEAD
from recap.models.sizes import check_width


@dataclass(frozen=True, slots=True)
class MARConfig:
    """A MAR network; the defaults are MAR-B."""

    width: int = bounded(768, 1, WIDTH)
    encoder_depth: int = bounded(12, 0, LAYERS)
    decoder_depth: int = bounded(12, 0, LAYERS)
    heads: int = bounded(12, 1, WIDTH)
    head_depth: int = bounded(6, 1, LAYERS)
    head_width: int = bounded(1024, 1, WIDTH)
    num_tokens: int = bounded(256, 1, TOKENS)
    channels: int = bounded(16, 1, WIDTH)
    buffer: int = bounded(64, 1, TOKENS)
    classes: int = bounded(1000, 1, COUNT)
    # no predicted token lies farther from 0; the official models have no bound
    token_bound: float | None = bounded(None, 1 / SCALE, SCALE)

    def __post_init__(self) -> None:
        check_bounds(self)
        check_width(self.width, self.heads)

    draws_candidates = False

    def full_flops(self, decoded: int) -> int:
        seen, length = self.buffer + decoded, self.buffer + self.num_tokens
        return (
            self.encoder_depth * block_flops(self.width, seen, seen)
            + self.decoder_depth * block_flops(self.width, length, length)
            + 2 * self.width**2 * seen
            + 2 * self.channels * self.width * decoded
        )

    def local_flops(self, context: int, decoded: int, rows: int) -> int:
        new = decoded - context
        return (
            self.encoder_depth * block_flops(self.width, new, self.buffer + decoded)
            + self.decoder_depth * block_flops(self.width, rows, self.buffer + self.num_tokens)
            + (2 * self.width**2 + 2 * self.channels * self.width) * new
        )

    def draw_flops(self, tokens: int, head_steps: int) -> int:
        w = self.head_width
        per_step = 256 * w + w**2 + self.width * w + 3 * self.channels * w + (5 * self.head_depth + 2) * w**2
        return 2 * tokens * head_steps * per_step

    @property
    def full_values(self) -> int:
        # beside the blocks, where the positions of three parts lie
        return block_values(self.width, self.buffer + self.num_tokens) + 3 * self.width * self.num_tokens

    def draw_bytes(self, step: Step, drawn: int, rows: tuple[int, int], itemsize: int, cuda: bool) -> int:
        images, branches = rows
        noise = 4 * images * step.head_steps * drawn * self.channels
        vector = itemsize * branches * drawn * self.head_width
        at_once = 3 * (self.head_depth + 1) * vector  # the modulation of one step
        steps = min(step.head_steps, max(1, AHEAD[cuda] // at_once))
        return noise + steps * at_once + (2 * steps + 6) * vector

    def cache_layout(self, schedule: Schedule | None = None) -> CacheLayout:
        """Rows that the schedule's local evaluations need (without a schedule: the most there can be)."""
        arrived = self.num_tokens
        if schedule is not None:
            arrived = max((c + sum(g.sizes[:-1]) for c, g in schedule.contexts() if g.local), default=0)
        return CacheLayout(
            (
                StackLayout("encoder", self.encoder_depth, self.buffer + arrived, self.width),
                StackLayout("decoder", self.decoder_depth, self.buffer + self.num_tokens, self.width),
            )
        )
