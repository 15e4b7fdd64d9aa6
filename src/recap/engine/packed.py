"""The same models on a CPU with weights packed once for oneDNN, whose products are faster than those of MKL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import MethodType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.core.attention import TORCH
from recap.core.canvas import Canvas
from recap.core.protocols import Head
from recap.engine import cpu_attention
from recap.engine.cpu_attention import CPUOps
from recap.models.adapter import Adapter, ModelWrapper
from recap.models.described import AttentionView
from recap.models.layers import MLP, Attention, Block, TokenLogits
from recap.models.mar.denoiser import Denoiser, DiffusionLoss, FinalLayer, ResidualBlock, TimeEmbedding
from recap.models.mar.net import MAR

CAPABLE = ("AVX2", "AVX512")  # what torch calls processors on which oneDNN has kernels of its own


def available() -> bool:
    """Whether this torch and this processor have the products; a clock must not decide what images look like."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.cpu.get_cpu_capability() in CAPABLE


@cache
def packs(dtype: torch.dtype) -> bool:
    """Whether there are packed products of a precision on this processor."""
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class PackedWeight:
    """A matrix in the layout that oneDNN computes with; made anew when the weight was changed or replaced."""

    def __init__(self) -> None:
        self._source: tuple[int, int, torch.dtype] | None = None
        self._packed: Tensor | None = None

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, then: str = "none") -> Tensor:
        """`x` (..., D) by `weight` (V, D), then GELU or SiLU ("swish"); a row's bits do not depend on the others."""
        if x.dtype != weight.dtype or not packs(x.dtype) or torch.is_grad_enabled():
            return AFTERWARDS[then](F.linear(x, weight, bias))
        source = version(weight)
        if source != self._source:
            with torch.inference_mode(False), torch.no_grad():
                self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().clone(), None)
            self._source, self._held = source, weight.detach()
        if x.numel() == x.shape[-1]:  # one row is summed in another way than several
            return self._product(x.reshape(1, -1).repeat(2, 1), bias, then)[:1].view(*x.shape[:-1], -1)
        return self._product(x, bias, then)

    def _product(self, x: Tensor, bias: Tensor | None, then: str) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, then, [], "none")


def silu(x: Tensor) -> Tensor:
    """SiLU of operations that give a number the same bits wherever it stands, which torch's own does not."""
    return x / torch.exp(-x).add_(1.0) if x.dtype == torch.float32 else F.silu(x)


AFTERWARDS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda x: x, "gelu": F.gelu, "swish": F.silu}


class PackedLinear(nn.Linear):
    """A linear layer over the parameters of another one, which stays as it is."""

    packed: PackedWeight

    def forward(self, x: Tensor, then: str = "none") -> Tensor:
        return self.packed.product(x, self.weight, self.bias, then)


class JoinedLinear:
    """Several linear layers over the same input as one product, whose packed weight is theirs side by side."""

    def __init__(self, layers: tuple[PackedLinear, ...]) -> None:
        self.layers = layers
        self._source: tuple[Any, ...] | None = None

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        weights = [layer.weight for layer in self.layers]
        alike = packs(x.dtype) and all(weight.dtype == x.dtype for weight in weights)
        if not alike or torch.is_grad_enabled() or any(map(hooked, self.layers)):
            return tuple(layer(x) for layer in self.layers)
        tensors = [*weights, *(layer.bias for layer in self.layers if layer.bias is not None)]
        source = tuple(map(version, tensors))
        if source != self._source:
            with torch.inference_mode(False), torch.no_grad():
                joined = torch.cat([weight.detach() for weight in weights])
                self._packed = torch.ops.mkldnn._reorder_linear_weight(joined, None)
                biases = [layer.bias for layer in self.layers]
                self._bias = None if biases[0] is None else torch.cat([bias.detach() for bias in biases])
            self._source, self._held = source, [tensor.detach() for tensor in tensors]
        rows = x.expand(-1, 2, -1) if x.numel() == x.shape[-1] else x  # one row is summed in another way than several
        made = torch.ops.mkldnn._linear_pointwise(rows.contiguous(), self._packed, self._bias, "none", [], "none")
        return made[..., : x.shape[-2], :].split([len(weight) for weight in weights], dim=-1)


def version(tensor: Tensor) -> tuple[int, int, torch.dtype]:
    """What changes when a tensor's values do; while it is held, no other has its address."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version, tensor.dtype


class PackedLogits(TokenLogits):
    packed: PackedWeight  # of the table of embeddings

    def forward(self, features: Tensor, table: Tensor, codes: int | None = None) -> Tensor:
        x = self.ln(F.gelu(self.fc(features)))
        return self.packed.product(x, table[:codes], self.bias[0, 0, :codes])


class PackedMLP(MLP):
    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.fc1, PackedLinear):
            return super().forward(x)
        return self.fc2(self.fc1(x, "gelu"))


class PackedSequential(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        layers: list[Any] = list(self)
        while layers:
            layer = layers.pop(0)
            follows = layers[0] if layers else None
            if type(layer) is PackedLinear and is_silu(follows):
                x = layer(x, "swish")
                layers.pop(0)
            else:
                x = silu(x) if is_silu(layer) else layer(x)
        return x


def is_silu(layer: Any) -> bool:
    return type(layer) is nn.SiLU and not hooked(layer)


def hooked(layer: Any) -> bool:
    return bool(getattr(layer, "_forward_hooks", None) or getattr(layer, "_forward_pre_hooks", None))


PACKED: dict[type, type] = {nn.Linear: PackedLinear, TokenLogits: PackedLogits}  # have a packed weight
AROUND: dict[type, type] = {MLP: PackedMLP, nn.Sequential: PackedSequential}  # have such layers inside
# the parts of MAR, where batches gain; all give a row the same bits whatever the others are
EXACT = {MAR, DiffusionLoss, Denoiser, TimeEmbedding, ResidualBlock, FinalLayer, Block, Attention, PackedMLP}
EXACT |= {PackedSequential, PackedLinear, nn.SiLU, nn.LayerNorm, nn.Embedding, nn.ModuleList}


class PackedModel(ModelWrapper):
    """A model over a twin of its network, whose linear layers are packed; the network itself stays as it is.

    The twin has the same parameters, and the same objects wherever there is no linear layer inside. Layers that are
    not torch's plain ones (LoRA, quantized) are called as modules.
    """

    def __init__(self, model: Adapter) -> None:
        self._original = model
        packed = twin(model, {})
        if packed.ops is TORCH and cpu_attention.available():
            packed = packed.replace(ops=CPUOps(model.num_tokens))
        super().__init__(packed)

    def _adopt(self, model: Adapter) -> None:
        super()._adopt(model)
        self._exact = isinstance(self.ops, CPUOps) and {type(part) for part in model.module.modules()} <= EXACT
        self.module = self._original.module

    @property
    def exact_batches(self) -> bool:  # type: ignore[override]
        return self._exact and self.dtype == torch.float32

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        return self._original.plain(canvas, labels)

    def at(self, num_tokens: int) -> Self:
        model = self.model.at(num_tokens)
        return self.around(model.replace(ops=CPUOps(num_tokens)) if isinstance(model.ops, CPUOps) else model)


def twin(part: Any, made: dict[int, Any]) -> Any:
    """A copy of a model's part with packed layers inside; the part itself where there are none.

    Dictionaries of parameters are shared, so that weights which are moved or changed are so for both.
    """
    if id(part) in made:
        return made[id(part)]
    made[id(part)] = copied = part  # the first is for rings: what comes round again is taken as it is
    if isinstance(part, MethodType):
        owner = twin(part.__self__, made)
        copied = part if owner is part.__self__ else MethodType(part.__func__, owner)
    elif type(part) in (list, tuple, dict):
        items = list(part.values()) if type(part) is dict else part
        copies = [twin(item, made) for item in items]
        if any(one is not other for one, other in zip(items, copies, strict=True)):
            copied = dict(zip(part, copies, strict=True)) if type(part) is dict else type(part)(copies)
    elif is_dataclass(part) and not isinstance(part, type):
        changed = changes({field.name: getattr(part, field.name) for field in fields(part)}, made)
        copied = joined(replace(part, **changed)) if changed else part
    elif isinstance(part, nn.Module | Adapter | Head):
        changed = changes(vars(part), made)
        kind = None if hooked(part) else PACKED.get(type(part))
        if kind is not None:
            changed["packed"] = PackedWeight()
        if changed:
            copied = object.__new__(kind or AROUND.get(type(part), type(part)))
            copied.__dict__.update(vars(part) | changed)
    made[id(part)] = copied
    return copied


def joined(view: Any) -> Any:
    """An attention whose queries, keys and values come from one product, if they came from three alike."""
    parts = view.project if isinstance(view, AttentionView) else ()
    layers = tuple(part for part in parts if type(part) is PackedLinear)
    if len(layers) != 3 or len({layer.bias is None for layer in layers}) > 1:
        return view
    return replace(view, project=(JoinedLinear(layers),))


def changes(attributes: dict[str, Any], made: dict[int, Any]) -> dict[str, Any]:
    """Those attributes that have packed layers inside, with these."""
    copies = {name: twin(value, made) for name, value in attributes.items()}
    return {name: value for name, value in copies.items() if value is not attributes[name]}
