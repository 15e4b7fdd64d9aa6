"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recap.checkpoints.about import read_about
from recap.checkpoints.folder import CONFIG, config_from, load_pretrained, read_config
from recap.core.presets import PUBLISHED, Grouping, Sampling
from recap.core.protocols import Selector
from recap.core.schedule import Ramp, Schedule
from recap.core.selection import CentreOut, ConfidenceOrder, FixedOrder, RandomOrder, RasterOrder
from recap.engine import ENGINES
from recap.limits import read_text
from recap.memory import size_of
from recap.models.zoo import (
    FAMILIES,
    SIZES,
    Config,
    TokenizerConfig,
    build,
    family_of,
    randomize,
    size_name,
    tiny,
)
from recap.planning import usual_tokenizer
from recap.weights import locate

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}

ORDERS: dict[str, Callable[[], Selector]] = {
    "random": RandomOrder,
    "confidence": ConfidenceOrder,
    "raster": RasterOrder,
    "centre-out": CentreOut,
}


def add_schedule(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("schedule")
    group.add_argument("--full", type=int, metavar="T", help="full evaluations")
    group.add_argument("--local", type=int, metavar="T'", help="local evaluations (with --full, default 0: plain)")
    group.add_argument("--total", type=int, metavar="K", help="all sub-steps, instead of --full and --local")
    group.add_argument("--plain", type=int, metavar="u", help="groups at the start without local evaluations")
    group.add_argument("--chain", type=int, default=1, help="local evaluations that a group may have (default 1)")
    group.add_argument("--setting", choices=sorted(PUBLISHED), help="published setting to follow")


def add_order(parser: argparse._ActionsContainer) -> None:
    about = (
        f"decode in this order: {', '.join(ORDERS)}, or a file with all positions in turn (default the model's own)"
    )
    parser.add_argument("--order", metavar="ORDER", help=about)


def selector_of(order: str) -> Selector:
    """The selector that an argument names, or the order that a file holds."""
    if order in ORDERS:
        return ORDERS[order]()
    path = Path(order)
    if not path.is_file():
        raise ValueError(f"--order is {order!r}, which is neither a file nor one of {', '.join(ORDERS)}")
    try:
        return FixedOrder([int(word) for word in read_text(path).replace(",", " ").split()])
    except ValueError as error:
        raise ValueError(f"{order} holds no order: {error}") from error


def schedule_of(args: argparse.Namespace, sampling: str | Sampling, tokens: int, known: int = 0) -> Schedule:
    """The schedule that the arguments describe, on top of a model's own way or of a published setting."""
    if isinstance(sampling, str):
        sampling = Sampling(sampling)
    if args.setting:
        sampling = Sampling(args.setting, full=sampling.full, local=sampling.local, plain=sampling.plain)
    if known:
        sampling = sampling.scaled(tokens, known)
    given: Grouping = {
        "full": args.full,
        "plain": args.plain,
        "total": args.total,
        "chain": args.chain,
        "known": known,
    }
    if args.local is not None:
        given["local"] = args.local
    return sampling.schedule(tokens, **given)


def add_batch(parser: argparse._ActionsContainer, default: int, what: str = "images drawn") -> None:
    """How many at a time, and how much memory that may take."""
    about = f"{what} at a time, or auto: as many as free memory allows (default {default})"
    parser.add_argument("--batch", type=batch_size, default=default, metavar="N", help=about)
    add_cache_limit(parser)


def add_cache_limit(parser: argparse._ActionsContainer) -> None:
    about = "draw fewer at a time if their cache would take more, for example 2GB"
    parser.add_argument("--cache-limit", type=byte_size, metavar="SIZE", help=about)


def check_batch(batch: int | str) -> None:
    if batch != "auto" and int(batch) < 1:
        raise ValueError(f"--batch is {batch}; draw at least one image at a time, or say auto")


def batch_size(text: str) -> int | str:
    """A number of images, or the word auto."""
    return text if text == "auto" else int(text)


def byte_size(text: str) -> int:
    """Bytes; a text that means none is for argparse to refuse with its words."""
    try:
        return size_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def guidance_scale(text: str) -> float | Ramp:
    """A number, or two with a comma between them: from the first token to the last."""
    values = [float(part) for part in text.split(",")]
    if len(values) > 2:
        raise ValueError(text)
    return Ramp(*values) if len(values) == 2 else values[0]


def setting_of(name: str, config: object) -> str:
    """The published setting that belongs to a model."""
    return name if name in PUBLISHED else family_of(config).setting


def add_model(parser: argparse.ArgumentParser, name: str = "model", **more: Any) -> None:
    about = "a model folder, a model of `recap models`, or a published size to build with random weights"
    parser.add_argument(name, **{"help": about, **more})
    parser.add_argument("--tiny", action="store_true", help="shrink a published size")
    parser.add_argument("--device", default="cpu", help="where to run (default cpu)")


def add_engine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--engine", choices=ENGINES, default="eager", help="how the model is run (default eager)")


def check_device(name: str) -> None:
    """Refuse a device that is not there, before anything is loaded."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error


def named_config(name: str, shrink: bool) -> tuple[str, Config]:
    """A published size by name."""
    name = size_name(name)
    config = SIZES[name]
    return (f"{name} (tiny)", tiny(config)) if shrink else (name, config)


def described(name: str) -> tuple[str, Config, Sampling]:
    """Name, size and way of sampling of what a model argument means, without its weights.

    The way of sampling says how many evaluations (`full`) only where the model itself does.
    """
    folder = locate(name)
    if folder is None:
        shown, config = named_config(name, shrink=False)
        return shown, config, Sampling(setting_of(shown, config))
    about = read_config(folder)
    if about["family"] not in FAMILIES:
        raise ValueError(f"{name} holds a tokenizer; give a model")
    setting = about.get("setting") or FAMILIES[about["family"]].setting
    return name, config_from(about, name), read_about(folder, about).sampling or Sampling(setting)


def described_tokenizer(name: str, config: Config) -> TokenizerConfig | None:
    """The size of the tokenizer that goes with what a model argument means, without its weights."""
    folder = locate(name)
    if folder is None:
        return usual_tokenizer(config)
    place = read_about(folder, read_config(folder)).tokenizer or folder / "tokenizer"
    if (place / CONFIG).is_file():
        found: TokenizerConfig = config_from(read_config(place), place)
        return found
    return getattr(config, "vqgan", None)


def load_net(name: str, shrink: bool, seed: int, device: str) -> tuple[str, str, nn.Module]:
    """Name for people, published setting and network: from a folder, else of a published size at random."""
    check_device(device)
    folder = locate(name)
    if folder is not None:
        if shrink:
            raise ValueError(f"--tiny shrinks published sizes; {name} is a folder with a size of its own")
        about = read_config(folder)
        net = load_pretrained(folder, device=device)
        return name, about.get("setting") or family_of(net).setting, net
    shown, config = named_config(name, shrink)
    net = randomize(build(config), seed).to(device)
    return f"{shown}, random weights", setting_of(size_name(name), config), net
