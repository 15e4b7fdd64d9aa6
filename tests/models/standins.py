"""Networks of the attribute shapes that other people's repositories have; the code is ours, and small."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, TOKENS, CODES, CLASSES, CHANNELS, BUFFER = 32, 4, 16, 20, 5, 4, 3


class Scale(nn.Module):
    """What others call layer scale."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class VitAttention(nn.Module):
    """Fused projection, optional norms of queries and keys, dropout that must not act."""

    def __init__(self, heads: int, bias: bool, normed: bool, scale: float | None, pair: bool) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.pair = heads, WIDTH // heads, pair
        self.scale = scale or self.head_dim**-0.5
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=bias)
        self.q_norm: nn.Module = nn.LayerNorm(self.head_dim) if normed else nn.Identity()
        self.k_norm: nn.Module = nn.LayerNorm(self.head_dim) if normed else nn.Identity()
        self.attn_drop, self.proj_drop = nn.Dropout(0.5), nn.Dropout(0.5)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Any:
        parts = self.qkv(x).view(*x.shape[:2], 3, self.num_heads, self.head_dim)
        q, k, v = self.q_norm(parts[:, :, 0]), self.k_norm(parts[:, :, 1]), parts[:, :, 2]
        weights = self.attn_drop((torch.einsum("bihd,bjhd->bhij", q, k) * self.scale).softmax(-1))
        out = self.proj_drop(self.proj(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2)))
        return (out, weights) if self.pair else out  # one of the repositories returns both


class VitMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.drop = nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Dropout(0.5)
        self.fc2 = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


class VitBlock(nn.Module):
    """A pre-norm block, with what such blocks may have beside it."""

    def __init__(
        self,
        heads: int = HEADS,
        bias: bool = True,
        normed: bool = False,
        scaled: bool = False,
        scale: float | None = None,
        pair: bool = False,
        skip: bool = False,
    ) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp = VitAttention(heads, bias, normed, scale, pair), VitMlp()
        self.ls1: nn.Module = Scale(WIDTH) if scaled else nn.Identity()
        self.ls2: nn.Module = Scale(WIDTH) if scaled else nn.Identity()
        self.drop_path1, self.drop_path2 = nn.Dropout(0.5), nn.Dropout(0.5)
        self.skip_linear = nn.Linear(2 * WIDTH, WIDTH) if skip else None

    def forward(self, x: Tensor, skip: Tensor | None = None) -> Tensor:
        if self.skip_linear is not None:
            assert skip is not None
            x = self.skip_linear(torch.cat([x, skip], dim=-1))
        mixed = self.attn(self.norm1(x))
        x = x + self.drop_path1(self.ls1(mixed[0] if self.attn.pair else mixed))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class Words(nn.Module):
    """Ids and places, summed and normalised; the places are counted from 0."""

    def __init__(self, words: int, places: int) -> None:
        super().__init__()
        self.word_embeddings, self.position_embeddings = nn.Embedding(words, WIDTH), nn.Embedding(places, WIDTH)
        self.LayerNorm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.5)

    def forward(self, input_ids: Tensor) -> Tensor:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        return self.dropout(self.LayerNorm(self.word_embeddings(input_ids) + self.position_embeddings(places)))


class WordLogits(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.fc, self.gelu, self.ln = nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)
        self.bias = nn.Parameter(torch.zeros(1, 1, words))

    def forward(self, x: Tensor, word_embeddings: Tensor) -> Tensor:
        return self.ln(self.gelu(self.fc(x))) @ word_embeddings.T + self.bias


class UVit(nn.Module):
    """The attributes of AutoNAT's network."""

    def __init__(self, **block: Any) -> None:
        super().__init__()
        self.codebook_size, self.num_vis_tokens = CODES, TOKENS
        self.token_emb, self.context_embed = Words(CODES + 1, TOKENS), Words(CLASSES + 1, 1)
        self.in_blocks = nn.ModuleList(VitBlock(bias=False, **block) for _ in range(2))
        self.mid_block = VitBlock(bias=False, **block)
        self.out_blocks = nn.ModuleList(VitBlock(bias=False, skip=True, **block) for _ in range(2))
        self.norm, self.mlm_layer = nn.LayerNorm(WIDTH), WordLogits(CODES + 1)

    def forward(self, masked_ids: Tensor, timesteps: None = None, context: Tensor | None = None) -> Tensor:
        x = torch.cat([self.context_embed(context), self.token_emb(masked_ids)], dim=1)
        kept = []
        for block in self.in_blocks:
            kept.append(x := block(x))
        x = self.mid_block(x)
        for block in self.out_blocks:
            x = block(x, kept.pop())
        return self.mlm_layer(self.norm(x), self.token_emb.word_embeddings.weight.data)[:, 1:, :CODES]


class MaskedEncoder(nn.Module):
    """The attributes of MAGE's network."""

    def __init__(self, **block: Any) -> None:
        super().__init__()
        slots = 4
        self.codebook_size, self.fake_class_label, self.mask_token_label = CODES, CODES + 2, CODES + slots
        self.pad_with_cls_token = True
        self.vqgan = nn.Linear(3, 3)  # a tokenizer of a kind that we do not know
        self.token_emb = Words(CODES + slots + 1, TOKENS + 1)
        self.blocks = nn.ModuleList(VitBlock(pair=True, **block) for _ in range(3))
        self.norm, self.decoder_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.decoder_embed = nn.Linear(WIDTH, WIDTH)
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, TOKENS + 1, WIDTH))
        self.decoder_blocks = nn.ModuleList(VitBlock(heads=2, pair=True, **block) for _ in range(2))
        self.mlm_layer = WordLogits(CODES + slots + 1)

    def forward_decoder(self, x: Tensor, token_drop_mask: Tensor, token_all_mask: Tensor) -> Tensor:
        assert not token_drop_mask.any()
        y = self.decoder_embed(x)
        y = torch.where(token_all_mask.bool()[..., None], y[:, :1], y) + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            y = block(y)
        return self.mlm_layer(self.decoder_norm(y), self.token_emb.word_embeddings.weight.data)

    def forward(self, imgs: Tensor) -> Tensor:
        raise NotImplementedError("this forward takes images")


class Times(nn.Module):
    """Waves in float32, whatever the precision of the layers; cosines first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frequency_embedding_size = 16
        self.mlp = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))

    @staticmethod
    def timestep_embedding(t: Tensor, dim: int) -> Tensor:
        angles = t[:, None].float() * 10000 ** (-torch.arange(dim // 2) / (dim // 2))
        return torch.cat([angles.cos(), angles.sin()], dim=-1)

    def forward(self, t: Tensor) -> Tensor:
        return self.mlp(self.timestep_embedding(t, self.frequency_embedding_size))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 3 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale, gate = self.adaLN_modulation(y).chunk(3, dim=-1)
        return x + gate * self.mlp(self.in_ln(x) * (1 + scale) + shift)


class Last(nn.Module):
    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.norm_final = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.linear = nn.Linear(width, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        shift, scale = self.adaLN_modulation(y).chunk(2, dim=-1)
        return self.linear(self.norm_final(x) * (1 + scale) + shift)


class TokenDenoiser(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.model_channels = width
        self.time_embed, self.cond_embed = Times(width), nn.Linear(WIDTH, width)
        self.input_proj = nn.Linear(CHANNELS, width)
        self.res_blocks = nn.ModuleList(Residual(width) for _ in range(2))
        self.final_layer = Last(width, 2 * CHANNELS)

    def forward(self, x: Tensor, t: Tensor, c: Tensor) -> Tensor:
        y = self.time_embed(t) + self.cond_embed(c)
        h = self.input_proj(x)
        for block in self.res_blocks:
            h = block(h, y)
        return self.final_layer(h, y)


class Diffusion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = TokenDenoiser(48)


class MaskedAutoregressor(nn.Module):
    """The attributes of MAR's network."""

    def __init__(self, **block: Any) -> None:
        super().__init__()
        length = BUFFER + TOKENS
        self.token_embed_dim, self.num_classes, self.buffer_size = CHANNELS, CLASSES, BUFFER
        self.class_emb, self.fake_latent = nn.Embedding(CLASSES, WIDTH), nn.Parameter(torch.zeros(1, WIDTH))
        self.z_proj, self.z_proj_ln = nn.Linear(CHANNELS, WIDTH), nn.LayerNorm(WIDTH)
        self.encoder_pos_embed_learned = nn.Parameter(torch.zeros(1, length, WIDTH))
        self.decoder_pos_embed_learned = nn.Parameter(torch.zeros(1, length, WIDTH))
        self.diffusion_pos_embed_learned = nn.Parameter(torch.zeros(1, TOKENS, WIDTH))
        self.encoder_blocks = nn.ModuleList(VitBlock(**block) for _ in range(2))
        self.decoder_blocks = nn.ModuleList(VitBlock(**block) for _ in range(3))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.decoder_embed, self.mask_token = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.diffloss = Diffusion()

    def visible(self, mask: Tensor) -> Tensor:
        return torch.cat([torch.ones(len(mask), BUFFER, dtype=torch.bool), mask == 0], dim=1)  # (B, P + N)

    def forward_mae_encoder(self, x: Tensor, mask: Tensor, class_embedding: Tensor) -> Tensor:
        rows = torch.cat([class_embedding[:, None].expand(-1, BUFFER, -1), self.z_proj(x)], dim=1)
        rows = self.z_proj_ln(rows + self.encoder_pos_embed_learned)
        x = rows[self.visible(mask)].view(len(x), -1, WIDTH)
        for block in self.encoder_blocks:
            x = block(x)
        return self.encoder_norm(x)

    def forward_mae_decoder(self, x: Tensor, mask: Tensor) -> Tensor:
        visible = self.visible(mask)
        rows = self.mask_token.expand(*visible.shape, -1).clone()
        rows[visible] = self.decoder_embed(x).flatten(0, 1)
        rows = rows + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            rows = block(rows)
        return self.decoder_norm(rows)[:, BUFFER:] + self.diffusion_pos_embed_learned

    def forward(self, imgs: Tensor, labels: Tensor) -> Tensor:
        raise NotImplementedError("this forward is for training")


class LoRA(nn.Module):
    """A linear layer with a low-rank change beside it, as fine-tuning leaves them; it has no `weight`."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(base.in_features, rank, bias=False), nn.Linear(rank, base.out_features)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Int8Linear(nn.Module):
    """A linear layer whose weights are eight-bit integers with a scale for each row; it has no `weight`."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        scale = base.weight.detach().abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("codes", (base.weight.detach() / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("shift", None if base.bias is None else base.bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        codes, scale = self.get_buffer("codes"), self.get_buffer("scale")
        y = x @ (codes.to(x.dtype) * scale.to(x.dtype)).T
        return y if self._buffers["shift"] is None else y + self.get_buffer("shift")


def swap(net: nn.Module, wrap: Any, names: Iterable[str]) -> nn.Module:
    """The network with the linear layers of these names wrapped, in place."""
    names = tuple(names)
    for parent in list(net.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and name in names:
                parent.add_module(name, wrap(child))
    return net


def random(net: nn.Module, seed: int = 0) -> nn.Module:
    """Random parameters under which no part is idle; evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(0.1 * noise + float(name.endswith(("weight", "gamma"))))
            else:
                # embeddings as training leaves them; a denoiser that was never trained must not blow tokens up
                small = 0.1 if "final_layer" in name else 0.5
                parameter.copy_(noise * (0.3 if "emb" in name else small * parameter[0].numel() ** -0.5))
    return net.eval()


STANDINS: dict[str, Any] = {"mar": MaskedAutoregressor, "mage": MaskedEncoder, "maskgit": UVit}
