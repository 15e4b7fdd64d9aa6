import torch

from recap.core.noise import Noise, image_generators, image_seed


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


def test_streams_look_like_what_they_claim() -> None:
    noise = Noise(image_generators(0, range(4)), "cpu")
    normal, uniform, gumbel = noise.normal(50_000), noise.uniform(50_000), noise.gumbel(50_000)
    assert normal.mean().abs() < 0.01
    assert (normal.std() - 1).abs() < 0.01
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert (gumbel.mean() - 0.5772).abs() < 0.02
    assert gumbel.isfinite().all()
    correlation = torch.corrcoef(normal)
    assert (correlation - torch.eye(4)).abs().max() < 0.03


def test_permutations_are_permutations() -> None:
    orders = Noise(image_generators(0, range(8)), "cpu").permutation(256)
    assert torch.equal(orders.sort(dim=1).values, torch.arange(256).expand(8, -1))
    assert len({tuple(order.tolist()) for order in orders}) == 8
