"""The KL autoencoder: agreement with the official network, and its public edge."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from recap.tokenizers import KLVAE, KLVAEConfig
from tests.golden import check_row, fill_, tensor_input

SMALL = KLVAEConfig(channels=32, multipliers=(1, 2), latent_channels=4, groups=8)


@pytest.fixture(autouse=True)
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def kl16() -> KLVAE:
    return fill_(KLVAE()).eval()


@pytest.fixture(scope="module")
def small() -> KLVAE:
    return fill_(KLVAE(SMALL)).eval()


@pytest.fixture
def images() -> Tensor:
    return tensor_input("img", (2, 3, 16, 16), scale=1.0) + 0.5


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


def test_norms_have_the_official_eps(kl16: KLVAE) -> None:
    assert {m.eps for m in kl16.modules() if isinstance(m, nn.GroupNorm)} == {1e-6}


def test_tokens_and_images_have_the_public_shapes(small: KLVAE, images: Tensor) -> None:
    tokens = small.encode(images)
    assert tokens.shape == (2, 64, 4)
    decoded = small.decode(tokens)
    assert decoded.shape == images.shape
    assert decoded.min() >= 0
    assert decoded.max() <= 1


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


def test_images_of_a_batch_do_not_mix(small: KLVAE, images: Tensor) -> None:
    tokens = small.encode(images)
    torch.testing.assert_close(small.encode(images[1:]), tokens[1:])
    torch.testing.assert_close(small.decode(tokens[1:]), small.decode(tokens)[1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_stay_close(small: KLVAE, images: Tensor, dtype: torch.dtype) -> None:
    other = fill_(KLVAE(SMALL).to(dtype)).eval()
    tokens = other.encode(images)
    decoded = other.decode(tokens)
    assert tokens.dtype == decoded.dtype == torch.float32
    assert tokens.isfinite().all()
    assert decoded.isfinite().all()
    torch.testing.assert_close(tokens, small.encode(images), rtol=0.02, atol=0.02)
    torch.testing.assert_close(decoded, small.decode(tokens), rtol=0.02, atol=0.02)


def test_a_state_dict_loads_strictly_into_a_second_instance(small: KLVAE, images: Tensor) -> None:
    second = KLVAE(SMALL).eval()
    second.load_state_dict(small.state_dict(), strict=True)
    torch.testing.assert_close(second.encode(images), small.encode(images))


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((3, 16, 16), torch.float32, r"\(B, 3, h, w\)"),
        ((1, 16, 16, 3), torch.float32, r"\(B, 3, h, w\)"),
        ((1, 3, 16, 16), torch.uint8, r"floats in \[0, 1\]"),
        ((1, 3, 16, 32), torch.float32, "crop to a square first"),
        ((1, 3, 15, 15), torch.float32, "side 15 but a positive multiple of 2"),
        ((1, 3, 0, 0), torch.float32, "side 0 but a positive multiple of 2"),
    ],
)
def test_bad_images_are_refused(small: KLVAE, shape: tuple[int, ...], dtype: torch.dtype, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.encode(torch.zeros(shape, dtype=dtype))


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


def test_bad_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="which 32 groups do not divide"):
        KLVAEConfig(channels=48)
    with pytest.raises(ValueError, match="multipliers are"):
        KLVAEConfig(multipliers=())
    with pytest.raises(ValueError, match="multipliers are"):
        KLVAEConfig(multipliers=(1, 0))
    with pytest.raises(ValueError, match="decoder_blocks is 0"):
        KLVAEConfig(decoder_blocks=0)
    with pytest.raises(ValueError, match="latent_scale is 0"):
        KLVAEConfig(latent_scale=0.0)


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
