import pytest
import torch

from recap.core.noise import Noise, image_generators, image_seed
from tests.models.plain import Stream


def test_an_image_draws_the_same_whatever_stands_beside_it() -> None:
    together = Noise(image_generators(3, range(5)), "cpu")
    alone = Noise(image_generators(3, [4]), "cpu")
    for draw in ("uniform", "normal", "gumbel"):
        assert torch.equal(getattr(together, draw)(7, 2)[4], getattr(alone, draw)(7, 2)[0])
    assert torch.equal(together.permutation(9)[4], alone.permutation(9)[0])


def test_seeds_differ_between_images_and_runs() -> None:
    seeds = {image_seed(seed, index) for seed in range(100) for index in range(100)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_the_numbers_are_those_of_the_textbook_to_the_last_bit_of_float32() -> None:
    ours, theirs = Noise(image_generators(2, range(3)), "cpu"), [Stream(2, image) for image in range(3)]
    for draw, count in (
        ("uniform", 1001),
        ("normal", 5),
        ("normal", 10_001),
        ("gumbel", 10_001),
        ("exponential", 10_001),
    ):
        drawn = getattr(ours, draw)(count)
        expected = torch.tensor([getattr(stream, draw)(count) for stream in theirs], dtype=torch.float64)
        if draw == "exponential":  # made of one uniform number in float32, which is compared
            drawn, expected = torch.expm1(-drawn.double()), torch.expm1(-expected)
        assert torch.allclose(drawn.double(), expected, rtol=1e-7, atol=1e-7 if draw == "exponential" else 1e-9), draw
    assert ours.permutation(300).tolist() == [stream.permutation(300) for stream in theirs]


def test_tails_are_those_of_a_normal_distribution() -> None:
    normal = Noise(image_generators(1, range(2)), "cpu").normal(2_000_000)
    for bound, share in ((1.0, 0.31731), (2.0, 0.04550), (3.0, 0.0027), (4.0, 6.33e-5)):
        count = 4_000_000 * share
        assert abs(int((normal.abs() > bound).sum()) - count) < 5 * count**0.5
    assert torch.corrcoef(normal)[0, 1].abs() < 0.005  # one image and the other
    pairs = normal.reshape(2, 2, -1)  # cosines and sines
    assert abs(float((pairs[:, 0] * pairs[:, 1]).mean())) < 0.005


def test_later_draws_go_on_where_earlier_ones_ended() -> None:
    noise = Noise(image_generators(0, [0]), "cpu")
    at_once = noise.uniform(10)
    again = Noise(image_generators(0, [0]), "cpu")
    assert torch.equal(torch.cat([again.uniform(4), again.uniform(6)], dim=1), at_once)


def test_a_generator_that_is_used_twice_gives_other_numbers() -> None:
    generators = image_generators(0, range(2))
    assert not torch.equal(Noise(generators, "cpu").uniform(8), Noise(generators, "cpu").uniform(8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_draws_the_same_bits() -> None:
    here, there = Noise(image_generators(0, range(3)), "cpu"), Noise(image_generators(0, range(3)), "cuda")
    for draw in ("uniform", "normal", "gumbel"):
        assert torch.equal(getattr(here, draw)(100_003), getattr(there, draw)(100_003).cpu())
    assert torch.equal(here.permutation(1000), there.permutation(1000).cpu())


def test_permutations_are_permutations() -> None:
    orders = Noise(image_generators(0, range(8)), "cpu").permutation(256)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(256).expand(8, -1))
    assert len({tuple(order.tolist()) for order in orders}) == 8
