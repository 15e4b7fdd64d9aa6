"""Language models with the attributes of LLaDA's and Dream's own classes; the code is ours, and small."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.text_weights import CONFIGS, tensors


def turned(x: Tensor, theta: float, single: bool) -> Tensor:
    """Heads (B, H, N, d) at their positions."""
    half = x.shape[-1] // 2
    rates = 1.0 / theta ** (torch.arange(0, 2 * half, 2, dtype=torch.float32) / (2 * half))
    angles = torch.arange(x.shape[2], dtype=torch.float32)[:, None] * rates  # (N, d / 2)
    wide = x.float() if single else x
    cos, sin = angles.cos().to(wide.dtype), angles.sin().to(wide.dtype)
    first, second = wide[..., :half], wide[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)


def mixed(q: Tensor, k: Tensor, v: Tensor, heads: int, theta: float, single: bool, mask: Tensor | None) -> Tensor:
    width = q.shape[-1] // heads
    q, k, v = (part.view(*part.shape[:2], -1, width).transpose(1, 2) for part in (q, k, v))
    q, k = turned(q, theta, single), turned(k, theta, single)
    k, v = (part.repeat_interleave(heads // part.shape[1], dim=1) for part in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * F.rms_norm(x.float(), x.shape[-1:], None, self.eps).to(x.dtype)


class Rotation(nn.Module):
    """Holds nothing: sines lie in a dictionary that all blocks share."""

    def __init__(self, cache: dict[str, Any]) -> None:
        super().__init__()
        self.cache = cache


class LLaDABlock(nn.Module):
    def __init__(self, config: Any, cache: dict[str, Any]) -> None:
        super().__init__()
        width, keys = config.d_model, config.d_model // config.n_heads * config.n_kv_heads
        self.config, self.rotary_emb = config, Rotation(cache)
        self.dropout = nn.Dropout(config.residual_dropout)
        self.attn_norm, self.ff_norm = (Norm(width, config.rms_norm_eps) for _ in range(2))
        self.q_proj, self.attn_out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k_proj, self.v_proj = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.ff_proj, self.up_proj = (nn.Linear(width, config.mlp_hidden_size, bias=False) for _ in range(2))
        self.act = nn.SiLU()
        self.ff_out = nn.Linear(config.mlp_hidden_size, width, bias=False)

    def forward(self, x: Tensor, bias: Tensor | None) -> Tensor:
        y, config = self.attn_norm(x), self.config
        parts = (self.q_proj(y), self.k_proj(y), self.v_proj(y))
        x = x + self.dropout(self.attn_out(mixed(*parts, config.n_heads, config.rope_theta, True, bias)))
        y = self.ff_norm(x)
        return x + self.dropout(self.ff_out(self.act(self.ff_proj(y)) * self.up_proj(y)))


class LLaDAStack(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, cache = config, dict[str, Any]()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.embedding_size, config.d_model),
                "emb_drop": nn.Dropout(config.embedding_dropout),
                "ln_f": Norm(config.d_model, config.rms_norm_eps),
                "blocks": nn.ModuleList(LLaDABlock(config, cache) for _ in range(config.n_layers)),
            }
        )
        if not config.weight_tying:
            self.transformer["ff_out"] = nn.Linear(config.d_model, config.embedding_size, bias=False)


class LLaDAModelLM(nn.Module):
    """Takes no positions and no cache; a mask (B, N) is heard of only where there is a 0 in it."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.model = config, LLaDAStack(config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        parts: Any = self.model.transformer
        bias = None
        x = parts["emb_drop"](parts["wte"](input_ids))
        if attention_mask is not None and bool((attention_mask == 0).any()):
            lowest = torch.finfo(x.dtype).min
            bias = (1.0 - attention_mask.to(x.dtype))[:, None, None] * lowest
        for block in parts["blocks"]:
            x = block(x, bias)
        x = parts["ln_f"](x)
        tied = self.config.weight_tying
        return SimpleNamespace(logits=F.linear(x, parts["wte"].weight) if tied else parts["ff_out"](x))


class DreamAttention(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width = config.hidden_size
        keys = width // config.num_attention_heads * config.num_key_value_heads
        self.config = config
        self.q_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.k_proj, self.v_proj = nn.Linear(width, keys), nn.Linear(width, keys)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        heads, theta = self.config.num_attention_heads, self.config.rope_theta
        return self.o_proj(mixed(self.q_proj(x), self.k_proj(x), self.v_proj(x), heads, theta, False, mask))


class DreamMLP(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        width, hidden = config.hidden_size, config.intermediate_size
        self.gate_proj, self.up_proj = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(hidden, width, bias=False), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class DreamLayer(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.self_attn, self.mlp = DreamAttention(config), DreamMLP(config)
        self.input_layernorm = Norm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class DreamBase(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(DreamLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = Norm(config.hidden_size, config.rms_norm_eps)


class DreamModel(nn.Module):
    """Its mask is (B, 1, N, N), True where a row attends; rows that attend to nothing are zero."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config, self.model = config, DreamBase(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        x = self.model.embed_tokens(input_ids)
        for layer in self.model.layers:
            x = layer(x, attention_mask)
        return SimpleNamespace(logits=self.lm_head(self.model.norm(x)))


def standin(kind: str) -> nn.Module:
    """A network of a kind with the weights of `text_weights`, under the official names."""
    config = SimpleNamespace(**CONFIGS[kind])
    net: nn.Module = DreamModel(config) if kind == "dream" else LLaDAModelLM(config)
    net.load_state_dict(tensors(kind))  # every key is one of its own, and the other way round
    return net.eval()
