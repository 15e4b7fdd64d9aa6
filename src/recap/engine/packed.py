"""The same models on a CPU with weights packed once for oneDNN, whose products are faster than those of MKL."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from recap.core.attention import Ops
from recap.core.canvas import Canvas
from recap.core.protocols import Head
from recap.models.adapter import Adapter, ModelWrapper
from recap.models.layers import MLP, TokenLogits

MANY = 96  # rows from which attention by grouped products is quicker than torch's own
LANES = 16  # float32 numbers of a register: products of other widths end in a slow remainder
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

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None, then: nn.Module | None = None) -> Tensor:
        """`x` (..., D) by `weight` (V, D), and the activation that follows."""
        if x.dtype != weight.dtype or not packs(x.dtype) or torch.is_grad_enabled():
            x = nn.functional.linear(x, weight, bias)
            return x if then is None else then(x)
        source = (weight.data_ptr(), 0 if weight.is_inference() else weight._version, weight.dtype)
        if source != self._source:
            with torch.inference_mode(False), torch.no_grad():
                self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().clone(), None)
            self._source = source
        name, kind = activation(then)
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, bias, name, [], kind)


def activation(layer: object) -> tuple[str, str]:
    """What oneDNN calls an activation, and which form of it."""
    if isinstance(layer, nn.GELU):
        return "gelu", layer.approximate
    return ("none" if layer is None else "swish"), "none"


class PackedLinear(nn.Linear):
    """A linear layer over the parameters of another one, which stays as it is."""

    packed: PackedWeight

    def forward(self, x: Tensor, then: nn.Module | None = None) -> Tensor:
        return self.packed.product(x, self.weight, self.bias, then)


class PackedLogits(TokenLogits):
    """Logits by a packed table of embeddings."""

    packed: PackedWeight

    def forward(self, features: Tensor, table: Tensor, codes: int | None = None) -> Tensor:
        x = self.ln(nn.functional.gelu(self.fc(features)))
        return self.packed.product(x, table[:codes], self.bias[0, 0, :codes])


class PackedSequential(nn.Sequential):
    """Layers one after another, activations inside the product before them."""

    def forward(self, x: Tensor) -> Tensor:
        layers = list(self)
        while layers:
            layer = layers.pop(0)
            if type(layer) is PackedLinear and layers and type(layers[0]) in (nn.GELU, nn.SiLU):
                x = layer(x, layers.pop(0))
            else:
                x = layer(x)
        return x


class PackedMLP(MLP):
    """The MLP of a block, its GELU inside the first product."""

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x, GELU)) if type(self.fc1) is PackedLinear else super().forward(x)


GELU = nn.GELU()
WITH_WEIGHTS: dict[type, type] = {nn.Linear: PackedLinear, TokenLogits: PackedLogits}
AROUND: dict[type, type] = {nn.Sequential: PackedSequential, MLP: PackedMLP}  # layers that are packed themselves


class PackedOps(Ops):
    """Attention of many rows by products of oneDNN."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.shape[2] < MANY or q.dtype != torch.float32 or torch.is_grad_enabled():
            return super().attention(q, k, v)
        return torch.cat([attend_in_groups(*heads) for heads in zip(q, k, v, strict=True)])


def attend_in_groups(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one image (1, H, M, Dh), from heads (H, M, Dh) and (H, L, Dh).

    A convolution of one pixel in groups is a product for each head, and rows with heads side by side are pixels with
    the channels last, so that nothing but keys and values is copied. These are filled up to whole registers, and a
    bias of -inf keeps the filling from being seen.
    """
    heads, rows, width = q.shape
    length = k.shape[1]
    filled = -(-length // LANES) * LANES
    keys, values = k.new_zeros(heads, filled, width), v.new_zeros(heads, width, filled)
    keys[:, :length], values[..., :length] = k, v.transpose(1, 2)
    unseen = k.new_zeros(heads, filled)
    unseen[:, length:] = -torch.inf
    asked = (q * width**-0.5).transpose(0, 1).reshape(1, 1, rows, heads * width)
    scores = by_group(asked, keys, unseen.flatten())  # (1, 1, M, H * L')
    shares = scores.view(rows, heads, filled)
    torch.softmax(shares, -1, out=shares)
    return by_group(scores, values, None).view(1, rows, heads, width).transpose(1, 2)


def by_group(x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """Rows (1, 1, M, G * i) by a matrix for each group (G, o, i): rows (1, 1, M, G * o)."""
    groups, outputs, inputs = weights.shape
    pixels, kernel = x.permute(0, 3, 1, 2), weights.view(groups * outputs, inputs, 1, 1)
    ones = [1, 1]
    made = torch.ops.mkldnn._convolution_pointwise(pixels, kernel, bias, [0, 0], ones, ones, groups, "none", [], "")
    return made.permute(0, 2, 3, 1)


class PackedModel(ModelWrapper):
    """A model over a twin of its network, whose linear layers are packed; the network itself stays as it is.

    The twin has the same parameters, and the same objects wherever there is no linear layer inside. Layers that are
    not torch's plain ones (LoRA, quantized) are called as modules.
    """

    def __init__(self, model: Adapter) -> None:
        self._original = model
        super().__init__(twin(model, {}).replace(ops=PackedOps()))

    def _adopt(self, model: Adapter) -> None:
        super()._adopt(model)
        self.module = self._original.module

    def plain(self, canvas: Canvas, labels: Tensor | None) -> Tensor:
        return self._original.plain(canvas, labels)


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
        copied = replace(part, **changed) if changed else part
    elif isinstance(part, nn.Module | Adapter | Head):
        changed = changes(vars(part), made)
        hooked = bool(getattr(part, "_forward_hooks", None) or getattr(part, "_forward_pre_hooks", None))
        kind = None if hooked else WITH_WEIGHTS.get(type(part))
        if kind is not None:
            changed["packed"] = PackedWeight()
        if changed:
            copied = object.__new__(kind or AROUND.get(type(part), type(part)))
            copied.__dict__.update(vars(part) | changed)
    made[id(part)] = copied
    return copied


def changes(attributes: dict[str, Any], made: dict[int, Any]) -> dict[str, Any]:
    """Those attributes that have packed layers inside, with these."""
    copies = {name: twin(value, made) for name, value in attributes.items()}
    return {name: value for name, value in copies.items() if value is not attributes[name]}
