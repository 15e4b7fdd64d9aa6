"""The training loop: optimizers, warm-up and decay, averaged weights, checkpoints that resume exactly."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping
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


@dataclass(frozen=True, slots=True)
class Recipe:
    """The numbers of a training run; with the data and the seed they repeat it."""

    steps: int
    batch: int = 256
    lr: float = 1e-3
    warmup: int = 200
    floor: float = 0.02  # share of the learning rate that is left at the end
    weight_decay: float = 0.03
    betas: tuple[float, float] = (0.9, 0.95)
    ema: float = 0.999
    clip: float = 1.0
    seed: int = 0
    bf16: bool = False
    muon: bool = False  # the inner matrices by Muon instead of AdamW

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or self.lr <= 0 or not 0 <= self.ema < 1:
            raise ValueError(f"impossible recipe: {self}; steps, batch and lr are positive, ema is in [0, 1)")

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear warm-up, then a cosine down to the floor."""
        wave = 0.5 * (1 + math.cos(math.pi * min(1.0, step / self.steps)))
        return self.lr * min(1.0, (step + 1) / max(1, self.warmup)) * (self.floor + (1 - self.floor) * wave)


class Objective(Protocol):
    """What is trained: networks by name, and a loss for each of them."""

    @property
    def nets(self) -> Mapping[str, nn.Module]:
        """The first is the product; its average is kept."""
        ...

    def begin(self, step: int, share: float) -> Hashable | None:
        """Set what changes from step to step. Returns what decides the shapes and branches of this step.

        Steps for which it is the same can be replayed as one CUDA graph; None is for steps that never can.
        """
        ...

    def losses(
        self, step: int, share: float, generator: torch.Generator
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The loss of every network for this step, and figures worth showing."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Tensors beyond parameters that training changes."""
        ...


StepResult = tuple[dict[str, Tensor], dict[str, Tensor], dict[str, list[Tensor | None]]]  # losses, figures, gradients

WARM_UP = 3  # steps that compile, plan and allocate before a graph is captured


class Trainer:
    """Runs an objective. All randomness of a step comes from the seed and the step's number.

    With `graphs`, losses and gradients of a step are replayed as one CUDA graph: small networks launch thousands of
    kernels, and the device waits for them.
    """

    def __init__(
        self, objective: Objective, recipe: Recipe, device: torch.device | str = "cpu", *, graphs: bool = False
    ) -> None:
        self.objective, self.recipe, self.device = objective, recipe, torch.device(device)
        if graphs and self.device.type != "cuda":
            raise ValueError(f"graphs replay CUDA kernels but the device is {self.device}; leave graphs off")
        self.graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, StepResult]] | None = {} if graphs else None
        self.visits: dict[Hashable, int] = {}
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

    def one_step(self) -> dict[str, Tensor]:
        recipe = self.recipe
        branch = self.objective.begin(self.step, self.step / recipe.steps)
        self.generator.manual_seed(image_seed(recipe.seed, self.step))
        losses, figures, grads = self._result() if self.graphs is None or branch is None else self._replayed(branch)
        parameters = self._parameters()
        for name in grads:
            for parameter, grad in zip(parameters[name], grads[name], strict=True):
                parameter.grad = grad
        for name in grads:
            nn.utils.clip_grad_norm_(parameters[name], recipe.clip)
            for optimizer in self.optimizers[name]:
                for group in optimizer.param_groups:
                    group["lr"] = recipe.rate(self.step)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        self._average()
        self.step += 1
        return {**losses, **figures}

    def _parameters(self) -> dict[str, list[nn.Parameter]]:
        nets = self.objective.nets.items()
        return {name: [p for p in net.parameters() if p.requires_grad] for name, net in nets}

    def _result(self) -> StepResult:
        """Losses, figures and gradients of this step."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.recipe.bf16):
            losses, figures = self.objective.losses(self.step, self.step / self.recipe.steps, self.generator)
        parameters = self._parameters()
        found: dict[str, list[Tensor | None]] = {}
        for name in [name for name in losses if losses[name].requires_grad]:
            # each network by its own loss alone; the losses share no graph
            grads = torch.autograd.grad(losses[name], parameters[name], allow_unused=True)
            found[name] = [
                # convolutions may choose another layout
                grad if grad is None or grad.stride() == p.stride() else torch.empty_like(p).copy_(grad)
                for p, grad in zip(parameters[name], grads, strict=True)
            ]
        return {name: loss.detach() for name, loss in losses.items()}, figures, found

    def _replayed(self, branch: Hashable) -> StepResult:
        """The same from a graph, which is captured after a few plain steps of this kind."""
        assert self.graphs is not None
        self.visits[branch] = self.visits.get(branch, 0) + 1
        if self.visits[branch] <= WARM_UP:
            # captured work runs on a stream of its own; so does the work before it
            side = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                work = self._result()
            torch.cuda.current_stream(self.device).wait_stream(side)
            return work
        if branch not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self.generator)
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                work = self._result()
            self.graphs[branch] = graph, work
        graph, work = self.graphs[branch]
        graph.replay()
        return work

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
        saved = {**content["recipe"], "betas": tuple(content["recipe"]["betas"])}
        if saved != asdict(self.recipe):
            different = {
                key: (saved.get(key), value) for key, value in asdict(self.recipe).items() if saved.get(key) != value
            }
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
    named = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    matrices = [(name, p) for name, p in named if p.ndim >= 2 and "emb" not in name and "token" not in name]
    inner = [p for name, p in matrices if recipe.muon and p.ndim in (2, 4) and "block" in name]
    chosen = {id(p) for p in inner}
    decayed = [p for _, p in matrices if id(p) not in chosen]
    chosen |= {id(p) for p in decayed}
    groups = [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": [p for _, p in named if id(p) not in chosen], "weight_decay": 0.0},
    ]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, fused=device.type == "cuda")
    ]
    if inner:
        optimizers.append(Muon(inner, lr=recipe.lr, weight_decay=recipe.weight_decay))
    return optimizers


def steps_in(minutes: float, trial: Trainer, sample: int = 20) -> int:
    """How many steps fit, by the speed of a few that are thrown away; the first are warm-up."""
    if minutes <= 0:
        raise ValueError(f"--minutes is {minutes}; it must be positive")
    for _ in range(sample // 2):
        trial.one_step()
    float(next(iter(trial.average.values())).sum())  # waits for the device
    began = time.perf_counter()
    for _ in range(sample):
        trial.one_step()
    float(next(iter(trial.average.values())).sum())
    return max(1, int(60 * minutes * sample / (time.perf_counter() - began)))


def saved_steps(path: Path) -> int:
    """The length of a run that was begun."""
    try:
        return int(read_pickle(path)["recipe"]["steps"])
    except Exception as error:  # whatever a damaged file makes of it
        raise ValueError(f"{path} holds no state of a training ({error}); remove it to start anew") from error
