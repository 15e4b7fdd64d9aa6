"""What holds for both tokenizers: the public edge, precisions, batches, and sizes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recap.tokenizers import KLVAE, VQGAN, KLVAEConfig, VQGANConfig
from tests.golden import fill_

SMALL: dict[str, Any] = {
    "kl": KLVAE(KLVAEConfig(channels=32, multipliers=(1, 2), latent_channels=4, groups=8)),
    "vq": VQGAN(VQGANConfig(channels=32, multipliers=(1, 2), latent_channels=16, codes=64, groups=8)),
}


@pytest.fixture(params=SMALL)
def small(request: pytest.FixtureRequest) -> Any:
    return fill_(SMALL[request.param]).eval()


def test_norms_have_the_official_eps(small: Any) -> None:
    assert {m.eps for m in small.modules() if isinstance(m, nn.GroupNorm)} == {1e-6}


def test_tokens_and_images_have_the_public_shapes(small: Any, images: Tensor) -> None:
    tokens = small.encode(images)
    assert tokens.shape == ((2, 64, 4) if isinstance(small, KLVAE) else (2, 64))
    assert tokens.dtype == (torch.float32 if isinstance(small, KLVAE) else torch.int64)
    decoded = small.decode(tokens)
    assert decoded.shape == images.shape
    assert decoded.min() >= 0
    assert decoded.max() <= 1


def test_images_of_a_batch_do_not_mix(small: Any, images: Tensor) -> None:
    tokens = small.encode(images)
    torch.testing.assert_close(small.encode(images[1:]), tokens[1:])
    torch.testing.assert_close(small.decode(tokens[1:]), small.decode(tokens)[1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_stay_close(small: Any, images: Tensor, dtype: torch.dtype) -> None:
    other = fill_(type(small)(small.config).to(dtype)).eval()
    ours, theirs = (net.moments(images) if isinstance(net, KLVAE) else net.latent(images) for net in (other, small))
    assert ours.dtype == dtype
    assert ours.isfinite().all()
    torch.testing.assert_close(ours.float(), theirs, rtol=0.02, atol=0.02)
    tokens = other.encode(images)
    decoded = other.decode(tokens)
    assert decoded.dtype == torch.float32
    assert decoded.isfinite().all()
    torch.testing.assert_close(decoded, small.decode(tokens), rtol=0.02, atol=0.02)
    if isinstance(small, KLVAE):
        assert tokens.dtype == torch.float32


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((3, 16, 16), torch.float32, r"\(B, 3, h, w\)"),
        ((1, 16, 16, 3), torch.float32, r"\(B, 3, h, w\)"),
        ((1, 1, 16, 16), torch.float32, r"\(B, 3, h, w\)"),
        ((1, 3, 16, 16), torch.uint8, r"of torch\.uint8 but .* of floats in \[0, 1\]"),
        ((1, 3, 16, 32), torch.float32, "16 high and 32 wide but squares"),
        ((1, 3, 15, 15), torch.float32, "15 high and 15 wide .* multiple of 2 are"),
        ((1, 3, 0, 0), torch.float32, "0 high and 0 wide .* multiple of 2 are"),
    ],
)
def test_bad_images_are_refused(small: Any, shape: tuple[int, ...], dtype: torch.dtype, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.encode(torch.zeros(shape, dtype=dtype))


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        (KLVAEConfig, {"channels": 48}, "which 32 groups do not divide"),
        (KLVAEConfig, {"multipliers": ()}, "multipliers is"),
        (KLVAEConfig, {"multipliers": (1, 0)}, "multipliers is"),
        (KLVAEConfig, {"decoder_blocks": 0}, "decoder_blocks is 0"),
        (KLVAEConfig, {"latent_scale": 0.0}, "latent_scale is 0"),
        (VQGANConfig, {"channels": 48}, "which 32 groups do not divide"),
        (VQGANConfig, {"codes": 0}, "codes is 0"),
    ],
)
def test_bad_sizes_are_refused(kind: Any, sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**sizes)
