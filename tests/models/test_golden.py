"""Published architectures with deterministic weights, against numbers printed by the official modules."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from recap.core.cache import ContextCache
from recap.core.canvas import Canvas, Draw, take
from recap.core.steps import Step
from recap.models.adapter import Adapter
from recap.models.layers import TokenEmbedding
from recap.models.mage import MAGE, MAGEAdapter, MAGEConfig
from recap.models.mar import MAR, MARAdapter, MARConfig
from recap.models.mar.diffusion import DiffusionHead
from recap.models.maskgit import MaskGIT, MaskGITAdapter, MaskGITConfig
from recap.models.registry import SIZES, TOKENIZER_SIZES, build
from recap.verification.verifier import distance
from tests.golden import check_row, fill_, tensor_input

pytestmark = pytest.mark.slow

POSITIONS = torch.arange(256)
VISIBLE = torch.stack([(37 * POSITIONS) % 256 < 56, (91 * POSITIONS) % 256 < 56])
IDS = (31 * torch.arange(512).reshape(2, 256)) % 1024
MAGE_IDS = torch.where(VISIBLE, IDS, 2024)


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.inference_mode():
        yield


def known_first(masked: Tensor) -> Tensor:
    """An order in which the visible positions have arrived and the others are still to come."""
    return masked.long().argsort(dim=1, stable=True)


def in_canvas(adapter: Adapter, canvas: Canvas, raster: Tensor) -> Canvas:
    canvas.commit(Draw(take(raster, canvas.order[:, :56])))
    return canvas


def by_evaluations(adapter: Adapter, canvas: Canvas) -> tuple[Tensor, Tensor]:
    """Features in raster order, by a full evaluation, and by a local one of the masked rows after it."""
    cache = ContextCache(adapter.cache_layout(), canvas.batch * canvas.branches, "cpu")
    full = adapter.full(canvas, cache, slice(0, 256))
    masked = slice(56, 256)
    local = full.clone()
    local[:, masked] = adapter.local(canvas, cache, masked, masked)
    back = canvas.order.argsort(dim=1)
    return take(full, back), take(local, back)


@pytest.fixture(scope="module")
def mar() -> MAR:
    return fill_(MAR(MARConfig())).eval()


@pytest.fixture(scope="module")
def z(mar: MAR) -> Tensor:
    with torch.no_grad():
        condition = torch.stack([mar.class_emb.weight[207], mar.fake_latent[0]])
        return mar(tensor_input("tokens", (2, 256, 16)), ~VISIBLE, condition)


@pytest.fixture(scope="module")
def mage() -> MAGE:
    return fill_(MAGE(MAGEConfig())).eval()


@pytest.fixture(scope="module")
def maskgit() -> MaskGIT:
    return fill_(MaskGIT(MaskGITConfig())).eval()


@pytest.mark.xdist_group("mar")
class TestMAR:
    def test_encoder(self, mar: MAR) -> None:
        condition = torch.stack([mar.class_emb.weight[207], mar.fake_latent[0]])
        encoded = mar.encode(tensor_input("tokens", (2, 256, 16)), mar.visible(~VISIBLE), condition)
        check_row(encoded, 184320, -7.173456e-05, 1.002599, (0.855706, 0.467488, -0.716652, 1.062039))

    def test_decoder(self, z: Tensor) -> None:
        check_row(z, 393216, -1.718370e-03, 0.9989312, (-0.536668, -0.893537, -0.113772, 0.330217))

    def test_evaluations(self, mar: MAR, z: Tensor) -> None:
        adapter = MARAdapter(mar)
        tokens = tensor_input("tokens", (2, 256, 16))
        # image 1 of the table is the unconditional branch of its own tokens: one guided canvas for each image
        for image in range(2):
            canvas = adapter.start(torch.tensor([207]), known_first(~VISIBLE[image : image + 1]), 2)
            in_canvas(adapter, canvas, tokens[image : image + 1])
            for features in by_evaluations(adapter, canvas):
                assert distance(features[image], z[image]) < 1e-5

    def test_head(self, mar: MAR, z: Tensor) -> None:
        condition = torch.cat([z[0, :4], z[1, :4]])
        times = torch.tensor([999, 0, 10, 500] * 2)
        out = mar.diffloss.net(tensor_input("xt", (8, 16)), times, condition)
        check_row(out, 256, 6.908793e-02, 0.6632843, (0.620647, 0.260352, -1.428359, -0.070947))

    def test_guided_head(self, mar: MAR, z: Tensor) -> None:
        condition, times = torch.cat([z[0, :4], z[1, :4]]), torch.tensor([999, 0, 10, 500] * 2)
        noisy = tensor_input("xt", (8, 16))[:4].repeat(2, 1)  # the first half is fed to both branches
        eps, variance = mar.diffloss.net(noisy, times, condition).chunk(2, dim=-1)
        guided = eps[4:] + 2.5 * (eps[:4] - eps[4:])
        out = torch.cat([guided.repeat(2, 1), variance], dim=-1)
        check_row(out, 256, 2.217580e-03, 1.053690, (0.178048, 0.260352, 0.178048, 0.240183))

    def test_sampling(self, mar: MAR, z: Tensor) -> None:
        steps = [tensor_input(f"noise{q}", (8, 16))[:4] for q in range(1, 100)]
        random = torch.stack([tensor_input("noise0", (4, 16)), *steps]).unsqueeze(0)
        features = torch.stack([z[0, :4], z[1, :4]])
        out = DiffusionHead(mar.diffloss.net, 16).denoise(features, random, Step(4, 0.9, guidance=2.5), 2)
        picks = (23198.69, -27023.44, -21423.36, -64914.23)
        check_row(out, 64, 7.102731e02, 3.235173e04, picks, rtol=1e-3)

    def test_norms(self, mar: MAR) -> None:
        assert {m.eps for m in mar.modules() if isinstance(m, nn.LayerNorm)} == {1e-6}


@pytest.mark.xdist_group("mage")
class TestMAGE:
    def test_embedding(self, mage: MAGE) -> None:
        ids = torch.cat([torch.full((2, 1), 1100), MAGE_IDS], dim=1)
        embedded = mage.token_emb(ids, torch.arange(257))
        check_row(embedded, 394752, 3.461973e-05, 1.001479, (-0.491243, -0.941694, -0.491243, -1.761966))

    def test_encoder_and_logits(self, mage: MAGE) -> None:
        encoded = mage.encode(MAGE_IDS)
        check_row(encoded, 394752, 1.747823e-03, 0.9994138, (-0.349897, -0.222153, -0.336708, -2.349730))
        check_row(encoded[:, 0], 1536, 3.659957e-03, 1.002666, (-0.349897, -1.498594, -0.336708, -0.298924))
        logits = mage.logits(mage.decode(encoded, ~VISIBLE), 2025)
        check_row(logits, 1040850, 1.143177e-03, 0.5612278, (1.078381, 0.057964, 1.101513, -0.608198))
        assert distance(mage(MAGE_IDS), logits[:, 1:, :1024]) < 1e-6
        check_row(mage(MAGE_IDS), 524288, 1.038660e-04, 0.5667978, (-0.143297, -0.518079, -0.054539, -0.117707))

    def test_evaluations(self, mage: MAGE) -> None:
        adapter = MAGEAdapter(mage)
        canvas = in_canvas(adapter, adapter.start(None, known_first(~VISIBLE), 1), MAGE_IDS)
        for features in by_evaluations(adapter, canvas):
            assert distance(adapter.prediction(features), mage(MAGE_IDS)) < 1e-5

    def test_norms(self, mage: MAGE) -> None:
        norms = {name: m.eps for name, m in mage.named_modules() if isinstance(m, nn.LayerNorm)}
        assert norms.pop("mlm_layer.ln") == 1e-5
        assert set(norms.values()) == {1e-6}


@pytest.mark.xdist_group("maskgit")
class TestMaskGIT:
    def test_logits_and_evaluations(self, maskgit: MaskGIT) -> None:
        ids = torch.where(VISIBLE, IDS, 1024)
        logits = maskgit(ids, torch.tensor([207, 1000]))
        check_row(logits, 524288, -1.008866e-02, 0.5645347, (-1.274081, 0.114317, -0.060184, -0.727987))
        check_row(logits[0], 262144, -1.004815e-02, 0.5648858, (-1.274081, -0.690609, -0.335397, -0.732792))
        check_row(logits[1], 262144, -1.012917e-02, 0.5641834, (-0.060184, -0.473881, -0.330053, -0.727987))
        adapter = MaskGITAdapter(maskgit)
        for image in range(2):  # the second image of the table is the null class: the guided branch
            canvas = adapter.start(torch.tensor([207]), known_first(~VISIBLE[image : image + 1]), 2)
            in_canvas(adapter, canvas, ids[image : image + 1])
            for features in by_evaluations(adapter, canvas):
                assert distance(adapter.prediction(features)[image], logits[image]) < 1e-5

    def test_norms(self, maskgit: MaskGIT) -> None:
        embeddings = {id(m.LayerNorm) for m in maskgit.modules() if isinstance(m, TokenEmbedding)}
        for module in maskgit.modules():
            if isinstance(module, nn.LayerNorm):
                assert module.eps == (1e-6 if id(module) in embeddings else 1e-5)


@pytest.mark.parametrize(
    ("name", "tensors", "millions"),
    [
        ("mar-base", 364, 207.924768),
        ("mar-large", 476, 478.33),
        ("mar-huge", 604, 942.40),
        ("mage-base", 433, 200.99),
        ("mage-large", 577, 464.41),
        ("maskgit-large", 314, 193.655297),
        ("kl16", 312, 66.46),
        ("vqgan-f16", 168, 54.52),
    ],
)
def test_published_sizes(name: str, tensors: int, millions: float) -> None:
    net = build({**SIZES, **TOKENIZER_SIZES}[name], meta=True)
    assert len(net.state_dict()) == tensors
    parameters = sum(p.numel() for p in net.parameters())
    assert parameters / 1e6 == pytest.approx(millions, abs=0.01)
    if millions != round(millions, 2):  # printed in full
        assert parameters == round(millions * 1e6)
