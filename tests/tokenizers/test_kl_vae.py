"""The KL autoencoder: agreement with the official network, and its public edge."""

import pytest
import torch
from torch import Tensor

from recap.tokenizers import KLVAE, KLVAEConfig
from tests.golden import check_row, fill_, tensor_input

SMALL = KLVAEConfig(channels=32, multipliers=(1, 2), latent_channels=4, groups=8)


@pytest.fixture(scope="module")
def kl16() -> KLVAE:
    return fill_(KLVAE()).eval()


@pytest.fixture(scope="module")
def small() -> KLVAE:
    return fill_(KLVAE(SMALL)).eval()


def test_decode_agrees_with_the_official_network(kl16: KLVAE) -> None:
    pixels = kl16.decode_latent(tensor_input("latent", (1, 16, 4, 4)))
    assert pixels.shape == (1, 3, 64, 64)
    picks = [0.009171, 0.029992, -0.023817, 0.145327]
    check_row(pixels, 12288, 1.118858e-01, 4.549322e-01, picks, atol=1e-5)


def test_moments_agree_with_the_official_network(kl16: KLVAE) -> None:
    pixels = tensor_input("img", (1, 3, 64, 64))  # the official network takes pixels in [-1, 1]
    moments = kl16.moments((pixels + 1) / 2)
    assert moments.shape == (1, 32, 4, 4)
    picks = [0.108511, 0.100745, -0.060224, 0.067491]
    check_row(moments, 512, 1.921790e-02, 9.075455e-02, picks, atol=1e-5)


def test_encode_is_the_scaled_mean_row_by_row(small: KLVAE, images: Tensor) -> None:
    mean = small.moments(images)[:, :4]
    tokens = small.encode(images)
    torch.testing.assert_close(tokens[1, 8 * 3 + 5], mean[1, :, 3, 5] * 0.2325)


def test_decode_undoes_the_scale_and_the_pixel_range(small: KLVAE) -> None:
    latent = tensor_input("latent", (2, 4, 8, 8))
    tokens = latent.flatten(2).transpose(1, 2) * SMALL.latent_scale
    expected = ((small.decode_latent(latent) + 1) / 2).clamp(0, 1)
    torch.testing.assert_close(small.decode(tokens), expected)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((1, 4, 8, 8), torch.float32, r"\(B, N, 4\)"),
        ((1, 64, 5), torch.float32, r"\(B, N, 4\)"),
        ((1, 64, 4), torch.int64, "floats of shape"),
        ((1, 63, 4), torch.float32, "63 tokens but a square number"),
        ((1, 0, 4), torch.float32, "0 tokens but a square number"),
    ],
)
def test_bad_tokens_are_refused(small: KLVAE, shape: tuple[int, ...], dtype: torch.dtype, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.decode(torch.zeros(shape, dtype=dtype))
