"""The KL autoencoder: agreement with the official network, and its public edge."""

import pytest
import torch
from torch import Tensor, nn

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


def test_sizes_are_the_official_ones(kl16: KLVAE) -> None:
    assert len(kl16.state_dict()) == 312
    assert round(_parameters(kl16) / 1e6, 3) == 66.456
    assert round(_parameters(kl16.decoder) / 1e6, 3) == 38.189
    assert kl16.config.stride == 16


@pytest.mark.parametrize(
    ("key", "shape"),
    [
        ("encoder.conv_in.weight", (128, 3, 3, 3)),
        ("encoder.down.2.block.0.nin_shortcut.weight", (256, 128, 1, 1)),
        ("encoder.down.4.block.0.nin_shortcut.weight", (512, 256, 1, 1)),
        ("encoder.down.4.attn.0.q.weight", (512, 512, 1, 1)),
        ("encoder.down.4.attn.1.proj_out.bias", (512,)),
        ("encoder.down.3.downsample.conv.weight", (256, 256, 3, 3)),
        ("encoder.mid.attn_1.norm.weight", (512,)),
        ("encoder.conv_out.weight", (32, 512, 3, 3)),
        ("quant_conv.weight", (32, 32, 1, 1)),
        ("post_quant_conv.weight", (16, 16, 1, 1)),
        ("decoder.conv_in.weight", (512, 16, 3, 3)),
        ("decoder.mid.block_2.conv2.weight", (512, 512, 3, 3)),
        ("decoder.up.1.block.0.nin_shortcut.weight", (128, 256, 1, 1)),
        ("decoder.up.3.block.0.nin_shortcut.weight", (256, 512, 1, 1)),
        ("decoder.up.0.block.2.conv2.bias", (128,)),
        ("decoder.up.4.upsample.conv.weight", (512, 512, 3, 3)),
        ("decoder.conv_out.weight", (3, 128, 3, 3)),
    ],
)
def test_keys_are_the_official_ones(kl16: KLVAE, key: str, shape: tuple[int, ...]) -> None:
    assert kl16.state_dict()[key].shape == shape


def test_encode_is_the_scaled_mean_row_by_row(small: KLVAE, images: Tensor) -> None:
    mean = small.moments(images)[:, :4]
    tokens = small.encode(images)
    torch.testing.assert_close(tokens[1, 8 * 3 + 5], mean[1, :, 3, 5] * 0.2325)


def test_encode_with_noise_samples_the_posterior(small: KLVAE, images: Tensor) -> None:
    noise = tensor_input("noise", (2, 4, 8, 8))
    mean, logvar = small.moments(images).chunk(2, dim=1)
    expected = (mean + (logvar / 2).exp() * noise) * SMALL.latent_scale
    torch.testing.assert_close(small.encode(images, noise), expected.flatten(2).transpose(1, 2))
    torch.testing.assert_close(small.encode(images, torch.zeros_like(noise)), small.encode(images))


def test_encode_clamps_the_log_variance(images: Tensor) -> None:
    vae = KLVAE(SMALL).eval()
    vae.quant_conv.weight.zero_()
    vae.quant_conv.bias = nn.Parameter(torch.tensor([0.0] * 4 + [1000.0] * 2 + [-1000.0] * 2))
    tokens = vae.encode(images, torch.ones(2, 4, 8, 8)) / SMALL.latent_scale
    expected = torch.tensor([10.0, 10.0, -15.0, -15.0]).exp()
    torch.testing.assert_close(tokens, expected.expand_as(tokens))


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


def test_noise_of_another_shape_is_refused(small: KLVAE, images: Tensor) -> None:
    with pytest.raises(ValueError, match="draw it in the shape of the latent"):
        small.encode(images, torch.zeros(2, 64, 4))


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
