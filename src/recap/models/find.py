"""Parts of a foreign object, by name; what is missing is named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def find(root: object, path: str, purpose: str) -> Any:
    """The part of `root` at a dotted path such as "encoder.layer.0.attn"; `purpose` says who needs it."""
    part, seen = root, type(root).__name__
    for name in path.split("."):
        if not hasattr(part, name):
            raise ValueError(
                f"{purpose} needs the attribute {path!r} of {type(root).__name__}, but {seen} "
                f"({type(part).__name__}) has no {name!r}; it has {listed(part)}. If it is called otherwise there, "
                f"write a Description or an adapter of your own (docs/plug-in.md)"
            )
        part, seen = getattr(part, name), f"{seen}.{name}"
    return part


def missing(root: object, paths: Iterable[str]) -> list[str]:
    """The dotted paths that lead nowhere."""
    return [path for path in paths if not leads(root, path)]


def leads(root: object, path: str) -> bool:
    for name in path.split("."):
        if not hasattr(root, name):
            return False
        root = getattr(root, name)
    return True


def listed(part: object, most: int = 12) -> str:
    """What a module has, as far as it fits on a line."""
    if not isinstance(part, nn.Module):
        return "nothing of a module"
    names = [*part._modules, *part._parameters]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "no parts"


def check_quiet(net: nn.Module) -> None:
    """Refuse a network in training mode, where dropout would act: the mode is its owner's to change."""
    busy = [name or type(net).__name__ for name, module in net.named_modules() if module.training]
    if busy:
        more = f" (and {len(busy) - 1} more)" if len(busy) > 1 else ""
        raise ValueError(
            f"{type(net).__name__} is in training mode: `training` is True on {busy[0]}{more}, so dropout would act; "
            f"call .eval() on it first. It is left as it is"
        )
