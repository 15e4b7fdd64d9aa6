"""The VQGAN: agreement with the official network under both key layouts, and its public edge."""

import pytest
import torch
from torch import Tensor

from recap.tokenizers import VQGAN, VQGANConfig
from recap.tokenizers.vqgan import clean
from tests.golden import check_row, fill_, tensor_input

SMALL = VQGANConfig(channels=32, multipliers=(1, 2), latent_channels=16, codes=64, groups=8)

# prefix of the keys; decoder row; encoder row; codes
GOLDEN = {
    "bare": (
        "",
        (1.814531e-01, 4.839686e-01, [-0.049191, -0.067212, 0.115248, 0.032102]),
        (1.178225e-02, 2.763516e-01, [-0.305673, -0.592813, -0.059188, -0.066706]),
        [530, 748, 368, 639, 530, 748, 748, 933, 610, 769, 286, 933, 610, 841, 841, 841],
    ),
    "prefixed": (
        "vqgan.",
        (5.504400e-02, 3.554950e-01, [-0.053359, -0.076442, 0.064315, 0.104579]),
        (1.846643e-02, 2.676063e-01, [-0.052074, -0.220707, 0.151409, -0.247262]),
        [211, 723, 231, 443, 211, 815, 815, 543, 570, 428, 526, 643, 498, 428, 841, 444],
    ),
}


@pytest.fixture(scope="module")
def full_size() -> VQGAN:
    return VQGAN().eval()


@pytest.fixture(scope="module")
def small() -> VQGAN:
    return fill_(VQGAN(SMALL)).eval()


@pytest.mark.parametrize("layout", GOLDEN)
def test_agrees_with_the_official_network(full_size: VQGAN, layout: str) -> None:
    prefix, decoded, encoded, codes = GOLDEN[layout]
    vqgan = fill_(full_size, prefix)

    ids = 61 * torch.arange(16)[None] % 1024
    latent = vqgan.quantize.embedding(ids).transpose(1, 2).reshape(1, 256, 4, 4)
    pixels = vqgan.decode_latent(latent)
    check_row(pixels, 12288, *decoded, atol=1e-5)
    torch.testing.assert_close(vqgan.decode(ids), pixels.clamp(0, 1))

    image = tensor_input("img", (1, 3, 64, 64), scale=1.0) + 0.5
    check_row(vqgan.latent(image), 4096, *encoded, atol=1e-5)
    assert vqgan.encode(image).tolist() == [codes]


def test_renaming_leaves_other_keys_alone() -> None:
    value = torch.zeros(1)
    renamed = clean({"vqgan.encoder.mid.1.norm1.weight": value, "blocks.mid.0.weight": value})
    assert list(renamed) == ["vqgan.encoder.mid.block_2.norm1.weight", "blocks.mid.0.weight"]


def test_every_code_is_its_own_nearest(small: VQGAN) -> None:
    codes = small.quantize.embedding.weight
    noisy = codes + tensor_input("noise", codes.shape, scale=1e-4)
    assert small.quantize.nearest(noisy[None]).tolist() == [list(range(SMALL.codes))]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_every_integer_dtype_decodes_alike(small: VQGAN, dtype: torch.dtype) -> None:
    ids = torch.arange(64)[None]
    torch.testing.assert_close(small.decode(ids.to(dtype)), small.decode(ids))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(64, dtype=torch.int64), r"integers of shape \(B, N\)"),
        (torch.zeros(1, 8, 8, dtype=torch.int64), r"integers of shape \(B, N\)"),
        (torch.zeros(1, 64), "dtype torch.float32"),
        (torch.zeros(1, 64, dtype=torch.bool), "dtype torch.bool"),
        (torch.zeros(1, 65, dtype=torch.int64), "65 tokens but a square number"),
        (torch.full((1, 64), 64), "ids span 64 to 64 but 0 to 63"),
        (torch.full((1, 64), -1), "ids span -1 to -1 but 0 to 63"),
    ],
)
def test_bad_ids_are_refused(small: VQGAN, ids: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        small.decode(ids)
