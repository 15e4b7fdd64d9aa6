"""The training loop: optimizers, warm-up and decay, averaged weights, checkpoints that resume exactly."""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from recap.checkpoints.safe_files import read_pickle
from recap.core.noise import image_seed
from recap.models.registry import build
from recap.runs.files import atomic_write
from recap.training.muon import Muon
from recap.view.progress import tqdm

FLOOR = 0.02  # share of the learning rate that is left at the end
BETAS = 0.9, 0.95  # of AdamW
CLIP = 1.0  # norm of a network's gradient
BLOCKS = re.compile("block|layers")  # in the names of what repeats
Figures = dict[str, Tensor]  # by name


@dataclass(frozen=True, slots=True)
class Recipe:
    """The numbers of a training run; with the data and the seed they repeat it."""

    steps: int
    batch: int = 256
    lr: float = 1e-3
    warmup: int = 200
    weight_decay: float = 0.03
    ema: float = 0.999
    seed: int = 0
    bf16: bool = False
    muon: bool = False  # the inner matrices by Muon instead of AdamW

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or self.lr <= 0 or not 0 <= self.ema < 1:
            raise ValueError(f"impossible recipe: {self}; steps, batch and lr are positive, ema is in [0, 1)")

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear warm-up, then a cosine down to the floor."""
        wave = 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))
        return self.lr * min(1.0, (step + 1) / max(1, self.warmup)) * (FLOOR + (1 - FLOOR) * wave)


class Objective(Protocol):
    """What is trained."""

    nets: dict[str, nn.Module]  # by the name of their loss; the first is the product, and its average is kept

    def losses(self, step: int, share: float, generator: torch.Generator) -> tuple[Figures, Figures]:
        """The loss of networks for this step, at this share of the run, and figures worth showing."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Tensors beyond parameters that training changes."""
        return {}


class Trainer:
    """Runs an objective. All randomness of a step comes from the seed and the step's number."""

    def __init__(self, objective: Objective, recipe: Recipe, device: torch.device | str = "cpu") -> None:
        self.objective, self.recipe, self.device = objective, recipe, torch.device(device)
        self.generator = torch.Generator(self.device)
        self.optimizers = {name: _optimizers(net, recipe, self.device) for name, net in objective.nets.items()}
        self.net = next(iter(objective.nets.values()))
        self.average = {key: value.detach().clone() for key, value in self.net.state_dict().items()}
        self.step = 0
        self.log: list[dict[str, float]] = []

    def run(self, until: int | None = None, *, progress: bool = True, every: int = 100) -> None:
        """Train up to step `until` (by default to the end)."""
        last = self.recipe.steps if until is None else min(until, self.recipe.steps)
        bar = tqdm(total=self.recipe.steps, initial=self.step, disable=not progress, unit="step", mininterval=2.0)
        seen, since = 0, time.perf_counter()
        while self.step < last:
            figures = self.one_step()
            seen += self.recipe.batch
            bar.update()
            if self.step % every == 0 or self.step == last:
                shown = {key: float(value) for key, value in figures.items()}
                speed = seen / (time.perf_counter() - since)
                if not all(map(math.isfinite, shown.values())):
                    raise FloatingPointError(f"step {self.step}: {shown} has NaN or inf; lower the learning rate")
                self.log.append({"step": self.step, "images_per_second": speed, **shown})
                bar.set_postfix({key: f"{value:.4g}" for key, value in shown.items()} | {"img/s": f"{speed:.0f}"})
                seen, since = 0, time.perf_counter()
        bar.close()

    def one_step(self) -> Figures:
        recipe = self.recipe
        self.generator.manual_seed(image_seed(recipe.seed, self.step))
        with torch.autocast(self.device.type, torch.bfloat16, enabled=recipe.bf16):
            losses, figures = self.objective.losses(self.step, self.step / recipe.steps, self.generator)
        for name, loss in losses.items():  # each network by its own loss alone; the losses share no graph
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.objective.nets[name].parameters(), CLIP)
            for optimizer in self.optimizers[name]:
                for group in optimizer.param_groups:
                    group["lr"] = recipe.rate(self.step)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        self._average()
        self.step += 1
        return {**{name: loss.detach() for name, loss in losses.items()}, **figures}

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(self.recipe.ema, (1 + self.step) / (10 + self.step))
        current = self.net.state_dict()
        keys = [key for key, value in current.items() if value.is_floating_point()]
        torch._foreach_lerp_([self.average[key] for key in keys], [current[key] for key in keys], 1 - decay)
        for key in current.keys() - set(keys):
            self.average[key].copy_(current[key])

    def product(self) -> nn.Module:
        """The network with its averaged weights."""
        net = build(self.net.config).to(self.device)  # type: ignore[arg-type]
        net.load_state_dict(self.average)
        return net.eval()

    def save(self, path: str | Path) -> None:
        """Everything that is needed to go on, written so that no half file is ever left."""
        content = {
            "step": self.step,
            "recipe": asdict(self.recipe),
            "nets": {name: net.state_dict() for name, net in self.objective.nets.items()},
            "optimizers": {name: [o.state_dict() for o in several] for name, several in self.optimizers.items()},
            "average": self.average,
            "extra": self.objective.state(),
            "log": self.log,
        }
        with atomic_write(path) as file:
            torch.save(content, file)

    def resume(self, path: str | Path) -> None:
        """Go on from a saved state, exactly as if training had not stopped."""
        try:
            self._restore(read_pickle(path, self.device), path)
        except (ValueError, OSError):
            raise
        except Exception as error:  # whatever a damaged file makes of it
            raise ValueError(
                f"{path} holds no state of this training ({type(error).__name__}: {error}); remove it to start anew"
            ) from error

    def _restore(self, content: dict[str, Any], path: str | Path) -> None:
        asked, saved = asdict(self.recipe), content["recipe"]
        if saved != asked:
            different = {key: (saved.get(key), value) for key, value in asked.items() if saved.get(key) != value}
            raise ValueError(f"{path} was trained by another recipe; (saved, asked): {different}. Give the same one")
        for name, net in self.objective.nets.items():
            net.load_state_dict(content["nets"][name])
            for optimizer, state in zip(self.optimizers[name], content["optimizers"][name], strict=True):
                optimizer.load_state_dict(state)
        for key, value in content["average"].items():
            self.average[key].copy_(value)
        for key, value in self.objective.state().items():
            value.copy_(content["extra"][key])
        self.step, self.log = content["step"], content["log"]


def _optimizers(net: nn.Module, recipe: Recipe, device: torch.device) -> list[torch.optim.Optimizer]:
    """Matrices decay, vectors and embeddings do not; with Muon, the matrices of the blocks are its."""
    inner: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    for name, p in net.named_parameters():
        if not p.requires_grad:
            continue
        if p.ndim < 2 or "emb" in name or "token" in name:
            rest.append(p)
        else:
            (inner if recipe.muon and p.ndim in (2, 4) and BLOCKS.search(name) else decayed).append(p)
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=recipe.lr, betas=BETAS, fused=device.type == "cuda")
    if not inner:
        return [adam]
    return [adam, Muon(inner, lr=recipe.lr, weight_decay=recipe.weight_decay, half=recipe.bf16)]
