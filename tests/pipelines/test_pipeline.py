"""The pipeline: labels in, images out, and nothing else touched."""

import json
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from recap import CheckpointError, Pipeline, Ramp, RandomOrder, SamplingOptions, cosine, load
from recap.checkpoints import load_pretrained, save_pretrained
from recap.core.canvas import Canvas
from recap.core.noise import image_generators
from recap.models.registry import build, randomize
from recap.tokenizers import KLVAEConfig, VQGANConfig
from tests import tiny

FAMILIES = tiny.FAMILIES
LABELLED = ("mar", "maskgit")
KL = KLVAEConfig(channels=8, multipliers=(1, 2), latent_channels=4, groups=4)
VQ = VQGANConfig(channels=8, multipliers=(1, 2), latent_channels=4, codes=20, groups=4)
SCHEDULE = cosine(16, full=4, local=3, choice_temperature=2.0, head_steps=(4, 3))
BAD_LABELS: dict[str, list[Any]] = {
    "label 7 is out of range": [7, [0, 7, 1]],
    "label -1 is out of range": [[-1]],
    "an integer": [2.0, [1, 2.5], torch.tensor([1.0]), True, [1, True], torch.tensor([True])],
    "flat sequence of integers": ["3", ["3"], [None], {"a": 1}],
    "flat": [[[1, 2]], [[1], [2, 3]], np.zeros((2, 2), dtype=int), [2**70]],
    "empty": [[], torch.tensor([], dtype=torch.long)],
    "give labels, one from 0 to 4": [None],
}
BAD_SEEDING: list[dict[str, Any]] = [
    {},
    {"seed": 0, "generator": torch.Generator()},
    {"generator": [torch.Generator()]},
    {"generator": [torch.Generator() for _ in range(3)]},
    {"generator": []},
    {"generator": 5},
    {"generator": [1, 2]},
    {"seed": 1.5},
    {"seed": "7"},
]


def pipeline(family: str) -> Pipeline:
    """A new small pipeline with random weights; MAGE carries its tokenizer inside."""
    config = tiny.CONFIGS[family]
    if family == "mage":
        pipe = Pipeline(randomize(build(replace(config, vqgan=VQ))))
    else:
        pipe = Pipeline(randomize(build(config)), randomize(build(KL if family == "mar" else VQ)))
    pipe.progress = False
    return pipe


@cache
def shared(family: str) -> Pipeline:
    return pipeline(family)


def request(family: str, batch: int = 2) -> dict[str, Any]:
    return {"num_images": batch} if family == "mage" else {"labels": [(3 * i + 1) % 5 for i in range(batch)]}


def draw(pipe: Pipeline, family: str, **options: Any) -> Any:
    return pipe(**{**request(family), "seed": 0, "schedule": SCHEDULE, **options})


def state(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        value.dtype == theirs[key].dtype and torch.equal(value, theirs[key]) for key, value in ours.items()
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_output_types_are_the_same_images(family: str) -> None:
    pipe = shared(family)
    pt = draw(pipe, family, output_type="pt")
    assert pt.schedule == SCHEDULE
    assert (pt.images.shape, pt.images.dtype) == ((2, 3, 8, 8), torch.float32)
    assert pt.images.min() >= 0
    assert pt.images.max() <= 1
    assert pt.images.std() > 0.01
    arrays = draw(pipe, family, output_type="np").images
    assert isinstance(arrays, np.ndarray)
    assert np.array_equal(arrays, pt.images.permute(0, 2, 3, 1).numpy())
    pictures = draw(pipe, family).images
    assert all(isinstance(picture, Image.Image) and picture.mode == "RGB" for picture in pictures)
    for picture, array in zip(pictures, arrays, strict=True):
        assert np.abs(np.asarray(picture) / 255 - array).max() <= 0.5 / 255 + 1e-6
    latent = draw(pipe, family, output_type="latent")
    assert latent.images is latent.tokens
    assert torch.equal(latent.tokens, pt.tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_finished(family: str) -> None:
    tokens = draw(shared(family), family, output_type="latent").tokens
    if family == "mar":
        assert tokens.shape == (2, 16, 4)
        assert tokens.isfinite().all()
        assert (tokens != 0).all()
    else:
        assert tokens.shape == (2, 16)
        assert tokens.min() >= 0
        assert tokens.max() < 20


@pytest.mark.parametrize("family", FAMILIES)
def test_seed_decides(family: str) -> None:
    pipe = shared(family)
    first, again, other = (draw(pipe, family, seed=s, output_type="latent").tokens for s in (3, np.int64(3), 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_images_do_not_depend_on_their_neighbours(family: str) -> None:
    pipe, labels = shared(family), [3, 1, 4]
    many: dict[str, Any] = {"num_images": 3} if family == "mage" else {"labels": labels}
    options: dict[str, Any] = {"schedule": SCHEDULE, "output_type": "latent"}
    together = pipe(**many, seed=7, **options).tokens
    for picked in ([1], [2, 0]):
        some: dict[str, Any] = (
            {"num_images": len(picked)} if family == "mage" else {"labels": [labels[i] for i in picked]}
        )
        alone = pipe(**some, generator=image_generators(7, picked), **options).tokens
        assert torch.equal(alone, together[picked])


@pytest.mark.parametrize("family", FAMILIES)
def test_images_are_decoded_alone(family: str) -> None:
    pipe = shared(family)
    tokens = draw(pipe, family, output_type="latent").tokens.repeat_interleave(4, dim=0)
    together = pipe.decode(tokens, "pt")
    assert all(torch.equal(pipe.decode(tokens[i : i + 1], "pt"), together[i : i + 1]) for i in range(len(tokens)))


def test_one_generator_serves_all_images() -> None:
    pipe, generator = shared("maskgit"), torch.Generator().manual_seed(1)

    def tokens(batch: int, generator: torch.Generator) -> Tensor:
        return pipe([2] * batch, schedule=SCHEDULE, generator=generator, output_type="latent").tokens

    first, second = tokens(3, generator), tokens(3, generator)
    assert not torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(tokens(3, torch.Generator().manual_seed(1)), first)
    assert torch.equal(tokens(1, torch.Generator().manual_seed(1)), first[:1])


@pytest.mark.parametrize("seeding", BAD_SEEDING, ids=range(len(BAD_SEEDING)))
def test_unclear_seeding_is_refused(seeding: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"seed|generator"):
        shared("maskgit")([0, 1], schedule=SCHEDULE, **seeding)


@pytest.mark.parametrize(
    "labels", [2, [2], (2,), torch.tensor([2]), torch.tensor(2), np.array([2]), np.int64(2), range(2, 3)]
)
def test_labels_come_in_many_forms(labels: Any) -> None:
    pipe = shared("maskgit")
    options: dict[str, Any] = {"schedule": SCHEDULE, "seed": 7, "output_type": "latent"}
    assert torch.equal(pipe(labels, **options).tokens, pipe([2], **options).tokens)
    assert not torch.equal(pipe(labels, **options).tokens, pipe([3], **options).tokens)


@pytest.mark.parametrize(("message", "labels"), [(key, value) for key in BAD_LABELS for value in BAD_LABELS[key]])
@pytest.mark.parametrize("family", LABELLED)
def test_bad_labels_are_refused(family: str, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shared(family)(labels, schedule=SCHEDULE, seed=0)


def test_number_of_images_must_agree_with_labels() -> None:
    pipe = shared("maskgit")
    assert len(pipe([1, 2], num_images=2, schedule=SCHEDULE, seed=0).images) == 2
    assert torch.equal(
        pipe(1, num_images=2, schedule=SCHEDULE, seed=0).tokens, pipe([1, 1], schedule=SCHEDULE, seed=0).tokens
    )
    for number in (1, 3):
        with pytest.raises(ValueError, match=f"2 labels and num_images={number} do not go together"):
            pipe([1, 2], num_images=number, schedule=SCHEDULE, seed=0)


@pytest.mark.parametrize("number", [None, 0, -1, 2.0, "2", True])
def test_unconditional_models_take_a_number_of_images_alone(number: Any) -> None:
    with pytest.raises(ValueError, match=r"num_images is .* at least 1"):
        shared("mage")(num_images=number, schedule=SCHEDULE, seed=0)
    with pytest.raises(ValueError, match="unconditional and takes no labels"):
        shared("mage")([1], num_images=number, schedule=SCHEDULE, seed=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_schedule_must_fit(family: str) -> None:
    with pytest.raises(ValueError, match="decodes 25 tokens but the model has 16"):
        draw(shared(family), family, schedule=cosine(25, full=4))


def test_default_schedule_is_the_published_one() -> None:
    schedule = pipeline("mage").schedule("8+8")
    assert (schedule.full, schedule.local, schedule.tokens, schedule.warmup) == (8, 8, 16, 0)
    assert pipeline("mar").schedule("6+2").guided
    own = Pipeline(pipeline("maskgit").model, build(VQ), options="5+3:temperature=0.9")
    own.progress = False
    drawn = own([0], seed=0, output_type="latent").schedule
    assert (str(drawn), drawn.steps[0].temperature) == ("5+3", 0.9)
    for asked in ("4+2:warmup=1", SamplingOptions(full=4, local=2, warmup=1)):
        assert own([0], seed=0, schedule=asked, output_type="latent").schedule == own.schedule(asked)
    assert own([0], seed=0, schedule=SCHEDULE, output_type="latent").schedule is SCHEDULE


@pytest.mark.parametrize("family", FAMILIES)
def test_order_is_part_of_the_request(family: str) -> None:
    pipe, other = shared(family), "confidence" if family == "mar" else "random"
    if family == "mar":
        with pytest.raises(ValueError, match="no confidence to rank by"):
            draw(pipe, family, schedule=f"4+3:order={other}", output_type="latent")
        return
    usual, asked = (
        draw(pipe, family, schedule=f"4+3{order}", output_type="latent").tokens for order in ("", f":order={other}")
    )
    assert not torch.equal(usual, asked)
    selected = pipeline(family)
    selected.selector = RandomOrder()
    assert torch.equal(draw(selected, family, schedule="4+3", output_type="latent").tokens, asked)


def test_guidance_is_refused_without_a_null_class() -> None:
    for options in ({"guidance": 2.0}, {"schedule": SCHEDULE.with_guidance(1.5)}):
        with pytest.raises(ValueError, match="no null class"):
            draw(shared("mage"), "mage", **options)
    assert len(draw(shared("mage"), "mage", guidance=1.0).images) == 2


@pytest.mark.parametrize("family", LABELLED)
def test_guidance_scale_overrides_the_schedule(family: str) -> None:
    pipe, guided = shared(family), SCHEDULE.with_guidance(4.0)
    options: dict[str, Any] = {"output_type": "latent"}
    plain = draw(pipe, family, **options).tokens
    strong = draw(pipe, family, schedule=guided, **options).tokens
    off = draw(pipe, family, schedule=guided, guidance=1.0, **options)
    assert torch.equal(off.tokens, plain)
    assert not off.schedule.guided
    assert not torch.equal(strong, plain)
    ramp = Ramp(2.0, 4.0)
    ramped = draw(pipe, family, guidance=ramp, **options)
    assert torch.equal(ramped.tokens, draw(pipe, family, schedule=SCHEDULE.with_guidance(ramp), **options).tokens)


def test_guidance_scale_has_the_shape_of_the_family() -> None:
    constant = draw(shared("maskgit"), "maskgit", guidance=3.0, output_type="latent").schedule
    assert {step.guidance for step in constant.steps} == {3.0}
    ramp = [s.guidance for s in draw(shared("mar"), "mar", guidance=3.0, output_type="latent").schedule.steps]
    assert ramp == sorted(ramp)
    assert 1.0 < ramp[0] < ramp[-1] == 3.0


@pytest.mark.parametrize("scale", [float("nan"), float("inf")])
def test_guidance_must_be_a_number(scale: float) -> None:
    with pytest.raises(ValueError, match="guidance"):
        draw(shared("maskgit"), "maskgit", guidance=scale)


@pytest.mark.parametrize("family", FAMILIES)
def test_callback_follows_every_sub_step(family: str) -> None:
    pipe, calls = shared(family), []

    def note(caller: Pipeline, step: int, decoded: int, values: dict[str, Any]) -> None:
        assert caller is pipe
        assert set(values) == {"canvas", "images"}
        assert isinstance(values["canvas"], Canvas)
        assert values["canvas"].decoded == decoded
        calls.append((step, decoded))

    draw(pipe, family, callback_on_step_end=note)
    lots = 1 if pipe.model.exact_batches else 2  # on the CPU mostly one image after another
    assert calls == lots * list(enumerate(accumulate(SCHEDULE.sizes)))
    assert calls[-1][1] == 16


def test_callback_errors_reach_the_caller() -> None:
    def stop(pipe: Pipeline, step: int, decoded: int, values: dict[str, Any]) -> None:
        if step == 2:
            raise RuntimeError("enough")

    pipe = shared("maskgit")
    with pytest.raises(RuntimeError, match="enough"):
        draw(pipe, "maskgit", callback_on_step_end=stop)
    assert torch.equal(draw(pipe, "maskgit").tokens, draw(pipeline("maskgit"), "maskgit").tokens)


def test_progress_can_be_seen_and_silenced(capsys: pytest.CaptureFixture[str]) -> None:
    pipe = pipeline("maskgit")
    draw(pipe, "maskgit")
    assert capsys.readouterr() == ("", "")
    pipe.progress = True
    draw(pipe, "maskgit")
    out, err = capsys.readouterr()
    assert out == ""
    assert "14/14" in err
    assert "4+3" in err


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
def test_model_changes_precision_and_tokenizer_does_not(family: str, dtype: torch.dtype) -> None:
    pipe = pipeline(family)
    assert pipe.tokenizer is not None
    before = state(pipe.tokenizer)
    assert pipe.to(dtype) is pipe
    assert pipe.model.dtype == dtype
    assert equal(state(pipe.tokenizer), before)
    own = {p.dtype for name, p in pipe.model.module.named_parameters() if not name.startswith("vqgan.")}
    assert own == {dtype}
    scale = {} if family == "mage" else {"guidance": 2.0}
    result = draw(pipe, family, output_type="pt", **scale)
    assert result.images.dtype == torch.float32
    assert result.images.isfinite().all()
    assert result.tokens.isfinite().all()


def test_images_need_a_tokenizer() -> None:
    pipe = Pipeline(build(tiny.CONFIGS["mage"]))
    pipe.progress = False
    for kind in ("pil", "np", "pt"):
        with pytest.raises(ValueError, match=r'no tokenizer.*output_type="latent"'):
            draw(pipe, "mage", output_type=kind)
    assert draw(pipe, "mage", output_type="latent").tokens.shape == (2, 16)


def test_tokenizer_must_be_able_to_decode() -> None:
    for family, tokenizer in (("mage", nn.Linear(2, 2)), ("mage", build(KL)), ("mar", build(VQ))):
        with pytest.raises(ValueError, match=f"{type(tokenizer).__name__} reads"):
            Pipeline(build(tiny.CONFIGS[family]), tokenizer)
    with pytest.raises(ValueError, match="20 codes, but VQGAN reads 21 codes"):
        Pipeline(build(tiny.CONFIGS["maskgit"]), build(replace(VQ, codes=21)))
    with pytest.raises(ValueError, match="fits none of"):
        Pipeline(build(VQ))


@pytest.mark.parametrize("kind", ["jpg", "PIL", "", None])
def test_unknown_output_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="pil, np, pt, latent"):
        draw(shared("maskgit"), "maskgit", output_type=kind)


@pytest.mark.parametrize(
    ("family", "table"), [("mar", "class_emb.weight"), ("maskgit", "context_embed.word_embeddings.weight")]
)
def test_images_with_nan_are_named(family: str, table: str) -> None:
    pipe = pipeline(family)
    with torch.no_grad():
        pipe.model.module.get_parameter(table)[2] = float("nan")
    options: dict[str, Any] = {"schedule": SCHEDULE, "seed": 0}
    assert len(pipe([0, 1, 3], **options).images) == 3
    with pytest.raises(FloatingPointError, match=r"image\(s\) \[1, 3\] of the batch"):
        pipe([0, 2, 1, 2], **options)


def test_broken_unconditional_weights_are_noticed() -> None:
    pipe = pipeline("mage")
    with torch.no_grad():
        pipe.model.module.get_parameter("decoder_norm.weight")[0] = float("inf")
    with pytest.raises(FloatingPointError, match=r"\[0, 1\]"):
        draw(pipe, "mage")


@pytest.mark.parametrize("family", FAMILIES)
def test_model_is_left_as_it_was(family: str) -> None:
    net = randomize(build(tiny.CONFIGS[family]))

    def attributes() -> dict[str, set[str]]:
        return {name: set(vars(module)) for name, module in net.named_modules()}

    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in net.modules())

    before, names, forwards = state(net), attributes(), [type(m).forward for m in net.modules()]
    pipe = Pipeline(net, build(KL if family == "mar" else VQ))
    pipe.progress = False
    scale = {} if family == "mage" else {"guidance": 2.0}
    draw(pipe, family, **scale)
    assert equal(state(net), before)
    assert attributes() == names
    assert [type(m).forward for m in net.modules()] == forwards
    assert hooks() == 0
    assert not net.training
    assert all(p.grad is None and p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_global_randomness_is_neither_used_nor_moved(family: str) -> None:
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        before, numpy_before = torch.get_rng_state(), str(np.random.get_state())  # noqa: NPY002
        results.append(draw(shared(family), family, output_type="latent").tokens)
        assert torch.equal(torch.get_rng_state(), before)
        assert str(np.random.get_state()) == numpy_before  # noqa: NPY002
    assert torch.equal(*results)


@pytest.mark.parametrize("family", FAMILIES)
def test_saved_pipeline_draws_the_same_images(family: str, tmp_path: Path) -> None:
    pipe = pipeline(family)
    assert pipe.save_pretrained(tmp_path / "m") == tmp_path / "m"
    assert (tmp_path / "m" / "tokenizer" / "config.json").is_file() == (family != "mage")
    for loaded in (Pipeline.from_pretrained(tmp_path / "m"), load(str(tmp_path / "m"))):
        loaded.progress = False
        assert loaded.options == pipe.options
        ours, theirs = draw(loaded, family, output_type="pt"), draw(pipe, family, output_type="pt")
        assert torch.equal(ours.tokens, theirs.tokens)
        assert torch.equal(ours.images, theirs.images)


def test_options_survive_saving(tmp_path: Path) -> None:
    pipe = Pipeline(build(tiny.CONFIGS["mar"]), options=":preset=mar-huge,temperature=0.9")
    loaded = Pipeline.from_pretrained(pipe.save_pretrained(tmp_path / "m"))
    assert loaded.options == pipe.options
    assert loaded.tokenizer is None
    assert loaded.schedule("6+2").steps[-1].guidance == pytest.approx(3.2)


def test_folders_of_version_0_1_are_read(tmp_path: Path) -> None:
    folder = Pipeline(build(tiny.CONFIGS["mar"])).save_pretrained(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config |= {"setting": "mar-huge", "sampling": {"preset": "mar", "full": 6, "local": 2, "plain": 3}}
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).options == SamplingOptions("mar", 6, 2, warmup=3)
    del config["sampling"]
    (folder / "config.json").write_text(json.dumps(config))
    assert load(folder).options == SamplingOptions("mar-huge")


@pytest.mark.parametrize("family", FAMILIES)
def test_loading_in_bfloat16_leaves_the_tokenizer_exact(family: str, tmp_path: Path) -> None:
    pipe = pipeline(family)
    assert pipe.tokenizer is not None
    pipe.save_pretrained(tmp_path / "m")
    loaded = Pipeline.from_pretrained(tmp_path / "m", torch_dtype=torch.bfloat16)
    assert loaded.tokenizer is not None
    assert equal(state(loaded.tokenizer), state(pipe.tokenizer))
    assert loaded.model.dtype == torch.bfloat16
    loaded.progress = False
    ours = draw(loaded, family, output_type="latent").tokens
    assert torch.equal(ours, draw(pipe.to(torch.bfloat16), family, output_type="latent").tokens)


def test_tokenizer_may_be_given_apart(tmp_path: Path) -> None:
    pipe = pipeline("maskgit")
    model = save_pretrained(pipe.model.module, tmp_path / "m")
    assert pipe.tokenizer is not None
    vqgan = save_pretrained(pipe.tokenizer, tmp_path / "t")
    expected = draw(pipe, "maskgit", output_type="pt").images
    for given in (vqgan, str(vqgan), load_pretrained(vqgan)):
        loaded = Pipeline.from_pretrained(model, tokenizer=given)
        loaded.progress = False
        assert torch.equal(draw(loaded, "maskgit", output_type="pt").images, expected)


def test_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds a vqgan, which is a tokenizer; give a model's folder"):
        Pipeline.from_pretrained(save_pretrained(build(VQ), tmp_path / "t"))
    model = save_pretrained(build(tiny.CONFIGS["maskgit"]), tmp_path / "m")
    with pytest.raises(CheckpointError, match="no folder"):
        Pipeline.from_pretrained(model, tokenizer=tmp_path / "none")
