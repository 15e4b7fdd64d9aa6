"""Plain decoding of the three base models, written out image by image from their descriptions.

Written without the library's loop, selectors, heads, adapters or noise: only the networks' own forward, and a
stream of random numbers in plain Python.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from recap.core.noise import image_generators
from recap.core.schedule import Schedule


class Stream:
    """SplitMix64 from a key, in Python's own integers, and what is made of its numbers."""

    def __init__(self, seed: int, image: int) -> None:
        (generator,) = image_generators(seed, [image])
        self.key = self.state = int(torch.randint(-(2**63), 2**63 - 1, (1,), generator=generator)) % 2**64

    def at(self, step: int, purpose: int, position: int) -> "Stream":
        """The numbers of a position in sub-step `step`, from 1, for values (0), ranks (1), values again (2)."""
        other = copy.copy(self)
        first = ((1 + 3 * step + purpose) << 38) + (position << 20)
        other.state = (self.key + (first - 1) * 0x9E3779B97F4A7C15) % 2**64
        return other

    def bits(self) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = (self.state ^ self.state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    def uniform(self, count: int) -> list[float]:
        return [(self.bits() >> 40) / 2**24 for _ in range(count)]

    def gumbel(self, count: int) -> list[float]:
        return [-math.log(-math.log(((self.bits() >> 32) + 0.5) / 2**32)) for _ in range(count)]

    def normal(self, count: int) -> list[float]:
        pairs = [self.bits() for _ in range((count + 1) // 2)]
        radius = [math.sqrt(-2 * math.log(((z >> 32) + 0.5) / 2**32)) for z in pairs]
        angle = [2 * math.pi * (z % 2**32) / 2**32 for z in pairs]
        cos = [r * math.cos(a) for r, a in zip(radius, angle, strict=True)]
        return [*cos, *(r * math.sin(a) for r, a in zip(radius, angle, strict=True))][:count]

    def exponential(self, count: int) -> list[float]:
        numbers = [self.bits() for _ in range((count + 1) // 2)]
        halves = [*(z >> 32 for z in numbers), *(z % 2**32 for z in numbers)][:count]
        return [-math.log1p(-(half + 0.5) / 2**32) for half in halves]

    def permutation(self, count: int) -> list[int]:
        keys = [self.bits() for _ in range(count)]
        return sorted(range(count), key=lambda i: keys[i] - (2**64 if keys[i] >> 63 else 0))


def decode_ids(net: Any, label: int | None, schedule: Schedule, seed: int, image: int) -> list[int]:
    """One image of MaskGIT or MAGE."""
    stream = Stream(seed, image)
    size, mask = net.config.num_tokens, net.config.mask_id
    ids = [mask] * size
    waiting = list(range(size))  # masked positions, in the order in which the last ranking left them
    steps = [(step, group.coupled) for group in schedule for step in group.steps]
    for number, (step, coupled) in enumerate(steps, start=1):
        logits = net(torch.tensor([ids]), *() if label is None else (torch.tensor([label]),))[0].double()
        if step.guidance != 1.0:
            null = net(torch.tensor([ids]), torch.tensor([net.config.null_class]))[0].double()
            logits = null + step.guidance * (logits - null)

        def draw(
            position: int, temperature: float, purpose: int, logits: Tensor = logits, number: int = number
        ) -> int:
            clock = stream.at(number, purpose, position).exponential(logits.shape[1])
            weights = (logits[position] / temperature).softmax(-1)
            return int((weights / torch.tensor(clock, dtype=torch.float64)).argmax())

        chooses = len(waiting) > step.tokens  # where all that is masked is decoded, nothing is ranked
        apart = chooses and step.rank_temperature is not None
        drawn = {p: draw(p, (apart and step.rank_temperature) or step.temperature, 0) for p in waiting}
        if chooses:
            score = {
                position: float(logits[position].log_softmax(-1)[value])
                + step.choice_temperature * stream.at(number, 1, position).gumbel(1)[0]
                for position, value in drawn.items()
            }
            waiting.sort(key=lambda position: -score[position])
        now, waiting = waiting[: step.tokens], waiting[step.tokens :]
        for position in now:
            ids[position] = draw(position, step.temperature, 0 if coupled else 2) if apart else drawn[position]
    assert not waiting
    return ids


def decode_latents(net: Any, label: int, schedule: Schedule, seed: int, image: int) -> Tensor:
    """One image of MAR."""
    stream = Stream(seed, image)
    size, channels = net.config.num_tokens, net.config.channels
    order = stream.permutation(size)
    tokens, masked = torch.zeros(1, size, channels), torch.ones(1, size, dtype=torch.bool)
    done = 0
    for number, step in enumerate(schedule.steps, start=1):
        now = order[done : done + step.tokens]
        done += step.tokens
        shape = (step.head_steps, channels)
        draws = [stream.at(number, 0, position).normal(math.prod(shape)) for position in now]
        noise = torch.tensor(draws, dtype=torch.float64).reshape(len(now), *shape).transpose(0, 1)
        z = net(tokens, masked, net.class_emb(torch.tensor([label])))[0, now]
        blank = net(tokens, masked, net.fake_latent)[0, now]
        tokens[0, now] = denoise(net.diffloss.net, z, blank, noise, step.guidance, step.temperature).float()
        masked[0, now] = False
    return tokens[0]


def denoise(mlp: Any, z: Tensor, blank: Tensor, noise: Tensor, scale: float, temperature: float) -> Tensor:
    """The respaced ancestral sampler in float64, from its textbook form."""
    steps = len(noise)
    f = [math.cos((i / 1000 + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(1001)]
    alpha_bar, product = [], 1.0
    for i in range(1000):
        product *= 1 - min(1 - f[i + 1] / f[i], 0.999)
        alpha_bar.append(product)
    times = [round(i * 999 / (steps - 1)) for i in range(steps)]
    kept = [alpha_bar[t] for t in times]
    before = [1.0, *kept[:-1]]
    beta = [1 - now / prior for now, prior in zip(kept, before, strict=True)]
    posterior = [b * (1 - p) / (1 - k) for b, p, k in zip(beta, before, kept, strict=True)]
    posterior[0] = posterior[1]
    x, width = noise[0], noise.shape[-1]
    for q, i in enumerate(reversed(range(steps))):
        t = torch.full((len(x),), times[i])
        out = mlp(x.float(), t, z).double()
        eps = out[:, :width]
        if scale != 1.0:
            null = mlp(x.float(), t, blank).double()[:, :width]
            eps = null + scale * (eps - null)
        clean = x / math.sqrt(kept[i]) - math.sqrt(1 / kept[i] - 1) * eps
        mean = (
            beta[i] * math.sqrt(before[i]) / (1 - kept[i]) * clean
            + (1 - before[i]) * math.sqrt(1 - beta[i]) / (1 - kept[i]) * x
        )
        share = (out[:, width:] + 1) / 2
        spread = torch.exp((share * math.log(beta[i]) + (1 - share) * math.log(posterior[i])) / 2)
        x = mean + spread * temperature * noise[q + 1] if i else mean
    return x
