"""A bidirectional language model in Llama's layout, which LLaDA and Dream share; parameters have Dream's names."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recap.core.attention import split_heads
from recap.models.described import Rotary
from recap.models.text.config import TextConfig


class RMSNorm(nn.Module):
    """A norm without a mean, in float32 whatever comes in, and rounded before the weight is applied."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        single = x.float()
        normed = single * torch.rsqrt(single.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class SelfAttention(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        width, kv_width, bias = config.width, config.kv_width, config.qkv_bias
        self.num_heads, self.kv_heads = config.heads, config.kv_heads
        self.q_proj = nn.Linear(width, width, bias=bias)
        self.k_proj = nn.Linear(width, kv_width, bias=bias)
        self.v_proj = nn.Linear(width, kv_width, bias=bias)
        self.o_proj = nn.Linear(width, width, bias=False)


class GatedMLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.eps)
        self.self_attn = SelfAttention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.eps)
        self.mlp = GatedMLP(config.width, config.hidden)


class Stack(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.codes, config.width)
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.depth))
        self.norm = RMSNorm(config.width, config.eps)


class TextModel(nn.Module):
    """LLaDA's and Dream's network. A head of its own is missing where the embedding is tied to it."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.config = config
        self.model = Stack(config)
        if not config.tied:
            self.lm_head = nn.Linear(config.width, config.codes, bias=False)

    def forward(self, ids: Tensor, seen: Tensor | None = None) -> Tensor:
        """Logits (B, N, V), as rows have them, of ids (B, N); keys False in `seen` (B, N) are passed over."""
        return self.logits(self.features(ids, seen))

    def features(self, ids: Tensor, seen: Tensor | None = None) -> Tensor:
        """What the head is given, the plain way (B, N, D)."""
        config = self.config
        rotary = Rotary(config.theta, precision=config.rotary)
        x = self.model.embed_tokens(ids)
        rotate = rotary.at(torch.arange(ids.shape[1], device=ids.device).unsqueeze(0), config.width // config.heads)
        unseen = None if seen is None else ~seen[:, None, None]
        for layer in self.model.layers:
            assert isinstance(layer, DecoderLayer)
            y, attn = layer.input_layernorm(x), layer.self_attn
            q, k = (
                rotate(part.unflatten(-1, (heads, -1))).flatten(2)
                for part, heads in ((attn.q_proj(y), config.heads), (attn.k_proj(y), config.kv_heads))
            )
            q, k, v = (
                split_heads(part, heads)
                for part, heads in ((q, config.heads), (k, config.kv_heads), (attn.v_proj(y), config.kv_heads))
            )
            k, v = (part.repeat_interleave(config.heads // config.kv_heads, dim=1) for part in (k, v))
            scores = (
                q @ k.mT * q.shape[-1] ** -0.5
            )  # (B, H, N, N); torch's own attention has a slow gradient on a CPU
            mixed = (scores if unseen is None else scores.masked_fill(unseen, -torch.inf)).softmax(-1) @ v
            x = x + attn.o_proj(mixed.transpose(1, 2).flatten(2))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
        return self.model.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        if self.config.tied:
            return F.linear(features, self.model.embed_tokens.weight)
        return self.lm_head(features)
