from dataclasses import dataclass

from recap.core.schedule import Step
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
