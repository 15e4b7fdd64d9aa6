"""Other people's networks by a description of where their parts are; nothing is copied or changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.core.attention import Ops, evaluate_post_norm_stack, evaluate_stack
from recap.core.cache import ContextCache, Rows
from recap.core.canvas import Canvas
from recap.core.heads import CategoricalHead
from recap.models.adapter import StackAdapter, shifted
from recap.models.family import find
from recap.models.sizes import Sizes

Apply = Callable[[Tensor], Tensor]
Path = str | tuple[str, ...]  # a dotted path, or several whose modules are called one after another


@dataclass(frozen=True, slots=True)
class Rotary:
    """Rotary positions: pairs of a head's numbers turn by an angle that grows with the position.

    A pair is a number and its fellow half a head on ("halves"), or two neighbours ("neighbours"). `share` is the
    part of a head that turns. Heads turn in the model's own precision, or in float32 whatever that is.
    """

    base: float = 10000.0
    pairs: Literal["halves", "neighbours"] = "halves"
    share: float = 1.0
    precision: Literal["model", "float32"] = "model"

    def at(self, positions: Tensor, head: int) -> Apply:
        """What turns heads (B, M, H, `head`) that sit at `positions` (B, M); the angles are computed once."""
        width = int(head * self.share)
        rates = 1.0 / self.base ** (torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
        angles = positions[..., None, None] * rates  # (B, M, 1, width / 2)
        cos, sin = angles.cos(), angles.sin()
        if self.pairs == "halves":
            turned = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        else:
            turned = cos.repeat_interleave(2, dim=-1), torch.stack([-sin, sin], dim=-1).flatten(-2)

        def apply_rotary(x: Tensor) -> Tensor:
            whole = x.float() if self.precision == "float32" else x
            cos, sin = (part.to(whole.dtype) for part in turned)  # (B, M, 1, width)
            part = whole[..., :width]
            if self.pairs == "halves":
                fellows = part.roll(width // 2, dims=-1)
            else:
                fellows = part.reshape(*part.shape[:-1], -1, 2).flip(-1).flatten(-2)
            mixed = torch.addcmul(part * cos, fellows, sin)
            return (mixed if width == head else torch.cat([mixed, whole[..., width:]], dim=-1)).to(x.dtype)

        return apply_rotary


@dataclass(frozen=True, slots=True)
class Gated:
    """Where the parts of a gated MLP are: `down(silu(gate(x)) * up(x))`."""

    gate: str
    up: str
    down: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """Where the parts of a bidirectional transformer over ids are; paths are dotted, as in "encoder.layers".

    Those of norms, projections, heads and MLP begin at a block, the others at the model. Queries, keys and values
    come from one layer, `qkv`, side by side, or from three, where neighbouring heads may share one of `kv_heads`.
    With `norms="after"` a block normalises its sums (BERT), else the inputs of its parts. Positions are a table
    (`positions`) or `rotary`. Where embedding or logits are more than modules one after another, `embed` (ids and
    positions, both (B, n), to rows) or a callable `logits` says so; `logits` that name an embedding are tied to it.
    """

    num_tokens: int
    mask_id: int
    blocks: str
    heads: int | str
    out: Path
    mlp: Path | Gated
    logits: Path | Callable[[Tensor], Tensor]
    codes: int | None = None  # ids from 0 on that may be drawn
    allowed_ids: tuple[int, ...] | None = None  # or exactly these
    pad_id: int | None = None  # fills up short sequences and is not attended to
    words: str | None = None
    positions: str | None = None
    first_position: int = 0  # of the table, where the first token sits
    embed_norm: str | None = None
    embed: Callable[[Tensor, Tensor], Tensor] | None = None
    norm1: str = "norm1"
    norm2: str = "norm2"
    norms: Literal["before", "after"] = "before"
    qkv: str | None = None
    q: str | None = None
    k: str | None = None
    v: str | None = None
    kv_heads: int | None = None
    q_norm: str | None = None
    k_norm: str | None = None
    rotary: Rotary | None = None
    norm: str | None = None  # after the last block

    def __post_init__(self) -> None:
        separate = [name for name in ("q", "k", "v") if getattr(self, name) is not None]
        if len(separate) != (3 if self.qkv is None else 0):
            raise ValueError(f"qkv is {self.qkv!r} beside {separate or 'no others'}; give either qkv, or q, k and v")
        if (self.codes is None) == (self.allowed_ids is None):
            raise ValueError("give either codes=, how many ids may be drawn, or allowed_ids=, which ones")
        if (self.words is None) == (self.embed is None):
            raise ValueError("give either words=, where the embedding of ids is, or a function embed=")
        if self.norms not in ("before", "after"):
            raise ValueError(f'norms is {self.norms!r}; it must be "before" or "after"')


class DescribedAdapter(StackAdapter):
    """Full and local evaluations of a network that a `Description` fits; the network is never changed."""

    def __init__(self, net: nn.Module, description: Description, *, refresh_prefix: bool = False) -> None:
        super().__init__(net, refresh_prefix=refresh_prefix)
        self.check_mode()
        self.description = d = description
        blocks = self._find(d.blocks)
        self.blocks = [self._view(block, i) for i, block in enumerate(blocks)]
        self.norm: Apply = nn.Identity() if d.norm is None else self._find(d.norm)
        self._embed = d.embed or self._embedding(d)
        self._vocab_ids = None if d.allowed_ids is None else torch.tensor(d.allowed_ids, device=self.device)
        last = (d.logits,) if callable(d.logits) else tuple(map(self._last, as_tuple(d.logits)))
        self.head = CategoricalHead(Logits(last, d.codes, self._vocab_ids), self._vocab_ids)
        with torch.no_grad():
            first = torch.zeros(1, 1, dtype=torch.long, device=self.device)
            width = self._embed(first, first).shape[-1]
        codes = d.codes if d.allowed_ids is None else len(d.allowed_ids)
        assert codes is not None
        heads = self.blocks[0].attn.num_heads if self.blocks else 1
        kv_width = 0 if d.kv_heads is None else width // heads * d.kv_heads
        self.config: Any = Sizes(d.num_tokens, codes, d.mask_id, width, len(self.blocks), kv_width=kv_width)

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        logits = self.forward(canvas.raster())
        return logits[..., : self.description.codes] if self._vocab_ids is None else logits[..., self._vocab_ids]

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B, N, ...) of the network's own forward over `ids` (B, N)."""
        if self.description.pad_id is not None and bool((ids == self.description.pad_id).any()):
            raise ValueError("how this network's forward is told of padding is not described; override forward()")
        out = self.module(ids)
        return out if isinstance(out, Tensor) else out.logits

    def evaluate(self, canvas: Canvas, cache: ContextCache | None, rows: slice, wanted: slice, whole: bool) -> Tensor:
        positions = canvas.order[:, rows]
        x = self._embed(canvas.tokens[:, rows], positions)  # (B, M, D)
        renewed = self.renewed(canvas, rows, 0, canvas.size, whole)
        return self.through(x, positions, cache, renewed, shifted(wanted, -rows.start), self._seeing(canvas))

    def through(
        self, x: Tensor, positions: Tensor, cache: ContextCache | None, renewed: Rows, only: slice | None, ops: Ops
    ) -> Tensor:
        """Rows `x` (B, M, D) at `positions` through all blocks; with `only`, the features of these alone."""
        blocks, rotary = self.blocks, self.description.rotary
        if rotary is not None and blocks:
            rotate = rotary.at(positions, x.shape[-1] // blocks[0].attn.num_heads)
            blocks = [replace(block, attn=replace(block.attn, rotate=rotate)) for block in blocks]
        layers = self.layers(blocks, cache, "blocks", len(x))
        if self.description.norms == "after":
            return self.norm(evaluate_post_norm_stack(layers, x, renewed, only=only, ops=ops))
        return evaluate_stack(layers, x, renewed, self.norm, only=only, ops=ops)

    def _seeing(self, canvas: Canvas) -> Ops:
        """Attention that passes over padding, which is known from the start, so that its rows never move."""
        pad = self.description.pad_id
        return self.ops if pad is None else self.ops.seeing(canvas.tokens != pad)

    def _view(self, block: Any, index: int) -> BlockView:
        d, place = self.description, f"{self.description.blocks}.{index}"
        heads = d.heads if isinstance(d.heads, int) else self._find(f"{place}.{d.heads}")
        project = self._each(place, (d.qkv,) if d.qkv is not None else (str(d.q), str(d.k), str(d.v)))
        q_norm, k_norm = (None if path is None else self._find(f"{place}.{path}") for path in (d.q_norm, d.k_norm))
        attn = AttentionView(heads, project, self._each(place, d.out), q_norm, k_norm)
        norm1, norm2 = self._find(f"{place}.{d.norm1}"), self._find(f"{place}.{d.norm2}")
        if isinstance(d.mlp, Gated):
            gated = (self._find(f"{place}.{path}") for path in (d.mlp.gate, d.mlp.up, d.mlp.down))
            return BlockView(norm1, attn, norm2, (GatedView(*gated),))
        return BlockView(norm1, attn, norm2, self._each(place, d.mlp))

    def _last(self, path: str) -> Any:
        """A layer of the head; an embedding counts as the linear layer with its weight."""
        found = self._find(path)
        if not isinstance(found, nn.Embedding):
            return found
        layer = nn.Linear(found.embedding_dim, found.num_embeddings, bias=False, device="meta")
        layer.weight = found.weight
        return layer

    def _embedding(self, d: Description) -> Callable[[Tensor, Tensor], Tensor]:
        assert d.words is not None
        words = self._find(d.words)
        table = None if d.positions is None else self._find(d.positions)
        norm = nn.Identity() if d.embed_norm is None else self._find(d.embed_norm)

        def embed(ids: Tensor, positions: Tensor) -> Tensor:
            x = words(ids)
            if isinstance(table, Tensor):
                x = x + table.reshape(-1, table.shape[-1])[positions + d.first_position]
            elif table is not None:
                x = x + table(positions + d.first_position)
            return norm(x)

        return embed

    def _each(self, place: str, paths: Path) -> tuple[Apply, ...]:
        return tuple(self._find(f"{place}.{path}") for path in as_tuple(paths))

    def _find(self, path: str) -> Any:
        return find(self.module, path, "the description")


def as_tuple(paths: Path) -> tuple[str, ...]:
    return (paths,) if isinstance(paths, str) else paths


@dataclass(frozen=True, slots=True, eq=False)
class Logits:
    """The last layers, and which of their numbers belong to ids that may be drawn."""

    layers: tuple[Apply, ...]
    codes: int | None
    ids: Tensor | None

    def __call__(self, features: Tensor) -> Tensor:
        logits = chain(self.layers, features)
        return logits[..., : self.codes] if self.ids is None else logits[..., self.ids.to(logits.device)]


@dataclass(frozen=True, slots=True, eq=False)
class GatedView:
    """A gated MLP by its parts."""

    gate: Apply
    up: Apply
    down: Apply

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


@dataclass(frozen=True, slots=True, eq=False)
class AttentionView:
    """An attention module by its parts, with what other modules do beside the matrix products."""

    num_heads: int
    project: tuple[Apply, ...]  # queries, keys and values side by side, or each
    out: tuple[Apply, ...]
    q_norm: Apply | None = None  # over the width of a head
    k_norm: Apply | None = None
    gain: float = 1.0  # the module's scale of the scores, relative to the usual 1 / sqrt(Dh)
    rotate: Apply | None = None  # rotary positions of the rows that are being evaluated

    def qkv(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = [layer(x) for layer in self.project]
        q, k, v = made if len(made) == 3 else parted(made[0])  # (B, M, D) each
        head = q.shape[-1] // self.num_heads
        for change in (self.q_norm, self.rotate):
            q = q if change is None else by_head(change, q, head)
        for change in (self.k_norm, self.rotate):
            k = k if change is None else by_head(change, k, head)
        return q if self.gain == 1.0 else q * self.gain, k, v

    def proj(self, x: Tensor) -> Tensor:
        return chain(self.out, x)


def parted(made: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Queries, keys and values, from one layer for all of them."""
    return made.chunk(3, dim=-1) if isinstance(made, Tensor) else made


def by_head(change: Apply, x: Tensor, head: int) -> Tensor:
    return change(x.view(*x.shape[:-1], -1, head)).flatten(2)  # (B, M, H, Dh) inside


@dataclass(frozen=True, slots=True, eq=False)
class BlockView:
    """A block by its parts."""

    norm1: Apply
    attn: Any
    norm2: Apply
    parts: tuple[Apply, ...]  # of the MLP, one after another

    def mlp(self, x: Tensor) -> Tensor:
        return chain(self.parts, x)


def chain(calls: Iterable[Apply], x: Tensor) -> Tensor:
    for call in calls:
        x = call(x)
    return x


def view_blocks(blocks: Iterable[Any], name: str, width: int, purpose: str) -> list[Any]:
    """The blocks of a ViT, timm's kind included: as they are where they are plain, else through a view.

    Layer scale (`ls1`, `ls2`), norms of queries and keys, a scale of the scores and a norm before the output
    projection are honoured. Dropout and drop-path have no part in an evaluation and are passed over.
    """
    return [view_block(block, width, f"{purpose}, for block {i} of {name},") for i, block in enumerate(blocks)]


def view_block(block: Any, width: int, purpose: str) -> Any:
    for path in ("norm1", "norm2", "mlp", "attn.qkv", "attn.proj", "attn.num_heads"):
        find(block, path, purpose)
    attn = block.attn
    inside = attn.num_heads * getattr(attn, "head_dim", width // attn.num_heads)
    if inside != width:
        raise ValueError(f"{purpose} needs heads of {width} numbers together; attn.head_dim makes them {inside}")
    if active(attn, "gate") is not None:
        raise ValueError(f"{purpose} knows no gates, but attn.gate is a {type(attn.gate).__name__}; write an adapter")
    q_norm, k_norm, norm = (active(attn, name) for name in ("q_norm", "k_norm", "norm"))
    first, second = active(block, "ls1"), active(block, "ls2")
    scale = None if getattr(attn, "fused_attn", False) else getattr(attn, "scale", None)  # torch's has its own
    gain = scale * (width / attn.num_heads) ** 0.5 if isinstance(scale, float) else 1.0
    gain = 1.0 if abs(gain - 1.0) < 1e-6 else gain
    if q_norm is k_norm is norm is first is second is None and gain == 1.0:
        return block
    out = tuple(part for part in (norm, attn.proj, first) if part is not None)
    view = AttentionView(attn.num_heads, (attn.qkv,), out, q_norm, k_norm, gain)
    return BlockView(block.norm1, view, block.norm2, (block.mlp,) if second is None else (block.mlp, second))


def active(owner: Any, name: str) -> Apply | None:
    """A part that may be missing, and is as good as missing where it changes nothing."""
    part = getattr(owner, name, None)
    return None if isinstance(part, nn.Identity) else part
