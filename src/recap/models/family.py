"""What belongs to a family, in one record; the engine, checkpoints, the planner and the tests read nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field
from operator import attrgetter
from typing import Any, ClassVar, Literal, Protocol

from torch import Tensor, nn

from recap.core.costs import CostModel
from recap.core.protocols import Head
from recap.models.adapter import Adapter

Tensors = Mapping[str, Tensor]


class Config(CostModel, Protocol):
    """The sizes of a network that draws tokens: a frozen dataclass of numbers."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def num_tokens(self) -> int: ...
    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A kind of network, and how its official files are recognised."""

    name: str  # in model folders
    config: type[Any]
    network: type[nn.Module]
    sizes: Mapping[str, Any]  # the published ones by name
    tiny: Callable[[Any], Any]  # the same architecture, small enough for a laptop to run in a second
    key: str  # of a state dict, that only this kind has
    infer: Callable[[Tensors, int | None], Any]  # its sizes from a state dict, and the number of heads if given
    official_key: str | None = None  # the same in official files that have other names
    clean: Callable[[Tensors], dict[str, Tensor]] = dict  # an official state dict under the library's names


@dataclass(frozen=True, slots=True, kw_only=True)
class Family(Architecture):
    """A family of models that draw tokens."""

    title: str  # as people write it
    adapter: Callable[..., Adapter]
    draws: Literal["ids", "latents"]
    conditional: bool  # on classes, or on what was written before
    preset: str  # the published schedule that suits it
    modality: Literal["images", "text"] = "images"
    # the configuration of the tokenizer that belongs to a network; that of text is no network
    tokenizer_config: Callable[[Any], Any] = lambda config: None
    tokenizer_inside: bool = False  # whether networks carry their tokenizer
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of published sizes
    # attributes by which `wrap` knows a network of the authors' own classes, with blanks between; one text for each
    needs: tuple[str, ...] = ()
    published: Callable[[Mapping[str, Any]], Any] = lambda entries: None  # its sizes from a config.json not of ours
    published_preset: Callable[[Any], str | None] = lambda config: None  # how such a model was meant to be run
    fused_head: Callable[[Head], Head | None] | None = None  # a faster head like this one, if it is the family's


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


def missing(root: object, paths: str) -> list[str]:
    """Which of the dotted paths, with blanks between, lead nowhere."""
    lost = []
    for path in paths.split():
        try:
            attrgetter(path)(root)
        except AttributeError:
            lost.append(path)
    return lost


def listed(part: object, most: int = 12) -> str:
    """What a module has, as far as it fits on a line."""
    if not isinstance(part, nn.Module):
        return "nothing of a module"
    names = [*part._modules, *part._parameters]
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else "no parts"


def known_heads(sizes: Mapping[str, Any], width: int, heads: int | None) -> int:
    """How many heads a network of this width has: a state dict does not say, the published sizes do."""
    known = {size.width: size.heads for size in sizes.values()}
    if heads is None and width not in known:
        raise ValueError(
            f"width {width} is no published size of this family ({', '.join(map(str, known))}), and a file "
            f"does not say how many heads it has; pass heads"
        )
    return known[width] if heads is None else heads
