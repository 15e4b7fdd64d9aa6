"""Editing: what is known stays, what is white is drawn, and everything else is said clearly."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from recap import Output, Pipeline, SamplingOptions, cosine, from_counts
from recap.core.noise import image_generators
from recap.models.registry import build
from recap.verification.verifier import distance
from recap.view.images import token_mask
from tests import tiny
from tests.core.test_decode import schedules
from tests.pipelines.test_pipeline import FAMILIES, SCHEDULE, draw, pipeline, shared

SIDE, STRIDE = 8, 2  # 16 tokens of 2 by 2 pixels


def picture(seed: int = 0, batch: int = 1) -> Tensor:
    return torch.rand(batch, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))


def half() -> Tensor:
    mask = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    mask[:, SIDE // 2 :] = True
    return mask


def label(family: str, value: int = 1) -> Any:
    return None if family == "mage" else value


def few(pipe: Pipeline) -> Pipeline:
    """With a default that fits 16 tokens."""
    pipe.options = pipe.options.override(SamplingOptions(full=6, local=4))
    return pipe


def edited(family: str, pipe: Pipeline | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"image": picture(), "mask": half(), "labels": label(family), "seed": 0}
    return (pipe or few(pipeline(family))).edit(**{**given, "output_type": "latent", **options})


masks = st.lists(st.booleans(), min_size=SIDE * SIDE, max_size=SIDE * SIDE).map(
    lambda bits: torch.tensor(bits).view(SIDE, SIDE)
)
sparse = st.sets(st.integers(0, SIDE * SIDE - 1), min_size=1, max_size=6).map(
    lambda spots: (
        torch.zeros(SIDE * SIDE, dtype=torch.bool).index_fill(0, torch.tensor(sorted(spots)), True).view(SIDE, SIDE)
    )
)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(data=st.data(), mask=st.one_of(masks.filter(lambda mask: bool(mask.any())), sparse), seed=st.integers(0, 9))
def test_known_tokens_are_bit_identical(family: str, data: st.DataObject, mask: Tensor, seed: int) -> None:
    pipe = shared(family)
    masked = token_mask(mask.unsqueeze(0), STRIDE)
    schedule = data.draw(schedules(int(masked.sum()), family != "mage"))
    result = edited(family, pipe, image=picture(seed), mask=mask, schedule=schedule, seed=seed)
    assert torch.equal(result.masked, masked)
    before = pipe.encode(picture(seed))
    assert torch.equal(result.tokens[~masked], before[~masked])
    if family == "mar":  # a latent that is drawn is another one
        assert (result.tokens[masked] != before[masked]).any(dim=-1).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ["fused", "graphs"])
def test_known_tokens_are_bit_identical_in_every_engine(family: str, engine: str) -> None:
    pytest.importorskip("triton")
    from recap.engine.fused import fused
    from recap.engine.graphs import GraphedModel
    from tests.engine.test_engines import Pretended

    pipe, plain = pipeline(family), shared(family)
    pipe.model = fused(pipe.model) if engine == "fused" else GraphedModel(pipe.model, Pretended())
    schedule = from_counts(8, [2, 3, 3], full=1, local=2, chain=2, warmup=0, head_steps=(2, 2))
    for seed in range(1 if engine == "fused" else 4):
        options: dict[str, Any] = {"image": picture(seed), "schedule": schedule, "seed": seed}
        ours, theirs = edited(family, pipe, **options), edited(family, plain, **options)
        before = plain.encode(picture(seed))
        assert torch.equal(ours.tokens[~ours.masked], before[~ours.masked])
        assert distance(ours.tokens, theirs.tokens) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_known_tokens_are_bit_identical_in_half_precision(family: str) -> None:
    pipe = few(pipeline(family)).to(torch.bfloat16)
    result = edited(family, pipe)
    before = shared(family).encode(picture())  # the tokenizer stays as it is
    assert torch.equal(result.tokens[~result.masked], before[~result.masked])
    assert result.tokens.dtype == before.dtype


@given(masks)
def test_a_token_is_redrawn_if_any_of_its_pixels_is(mask: Tensor) -> None:
    masked = token_mask(mask.unsqueeze(0), STRIDE)[0]
    for token in range(16):
        y, x = STRIDE * (token // 4), STRIDE * (token % 4)
        assert bool(masked[token]) == bool(mask[y : y + STRIDE, x : x + STRIDE].any())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_that_is_all_white_is_plain_sampling_draw_for_draw(family: str) -> None:
    pipe = few(pipeline(family))
    white = torch.ones(SIDE, SIDE, dtype=torch.bool)
    asked: dict[str, Any] = {"num_images": 2} if family == "mage" else {"labels": [1, 1]}
    expected = pipe(**asked, seed=3, output_type="pt")
    result = edited(family, pipe, mask=white, num_images=2, seed=3, output_type="pt")
    assert torch.equal(result.tokens, expected.tokens)
    assert torch.equal(result.images, expected.images)
    assert result.schedules == (expected.schedule,) * 2
    guided: dict[str, Any] = {} if family == "mage" else {"guidance": 2.0}
    expected = pipe(**asked, seed=3, schedule=SCHEDULE, output_type="latent", **guided)
    result = edited(family, pipe, mask=white, num_images=2, seed=3, schedule=SCHEDULE, **guided)
    assert torch.equal(result.tokens, expected.tokens)


def test_a_mask_without_white_is_refused() -> None:
    black = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"mask of image\(s\) \[0\] is empty.* make white"):
        edited("maskgit", mask=black)
    with pytest.raises(ValueError, match=r"\[1\] is empty"):
        edited("maskgit", mask=[half(), black])
    ones = half().numpy().astype(np.uint8)  # 0 and 1 of 255 is nearly black
    with pytest.raises(ValueError, match=r"255, True, or 1\.0 of floats"):
        edited("maskgit", mask=ones)


@pytest.mark.parametrize("family", FAMILIES)
def test_images_of_different_masks_do_not_know_each_other(family: str) -> None:
    pipe = few(pipeline(family))
    corner, most = torch.zeros(2, SIDE, SIDE, dtype=torch.bool)
    corner[:3, :3] = True
    most[1:, :] = True
    all_masks = [half(), corner, half().roll(1, 1), most]
    options: dict[str, Any] = {"seed": None, "output_type": "pt"}
    together = edited(
        family, pipe, image=picture(1, 4), mask=all_masks, generator=image_generators(7, range(4)), **options
    )
    assert len({plan.tokens for plan in together.schedules}) > 1
    for i in range(4):
        one = {"image": picture(1, 4)[i], "mask": all_masks[i], "generator": image_generators(7, [i])}
        alone = edited(family, pipe, **one, **options)
        assert distance(alone.tokens, together.tokens[i : i + 1]) < 1e-4
        assert torch.equal(alone.masked[0], together.masked[i])
        assert alone.schedules == together.schedules[i : i + 1]
        before = pipe.encode(picture(1, 4)[i])
        assert torch.equal(alone.tokens[~alone.masked], before[~alone.masked])


@pytest.mark.parametrize("family", FAMILIES)
def test_evaluations_shrink_with_what_is_drawn(family: str) -> None:
    pipe = few(pipeline(family))
    whole = pipe.schedule()
    last = 0
    for tokens in range(1, 17):
        schedule = pipe.schedule(known=16 - tokens)
        assert (schedule.tokens, schedule.known) == (tokens, 16 - tokens)
        assert last <= len(schedule.steps) <= min(tokens, 10)
        assert abs(len(schedule.steps) - 10 * tokens / 16) <= 1.5
        last = len(schedule.steps)
    assert (whole.full, whole.local) == (6, 4)
    given_numbers = pipe.schedule("3+2", known=8)
    assert (given_numbers.full, given_numbers.local, given_numbers.tokens) == (3, 2, 8)
    with pytest.raises(ValueError, match="no room in 3 tokens"):
        pipe.schedule("4", known=13)


def test_a_schedule_is_for_what_is_regenerated() -> None:
    pipe = shared("maskgit")
    assert edited("maskgit", pipe, schedule=cosine(8, full=3)).schedules[0].sizes == cosine(8, full=3).sizes
    with pytest.raises(
        ValueError, match="decodes 7 tokens but 8 of the model's 16 are known; build it with tokens=8"
    ):
        edited("maskgit", pipe, schedule=cosine(7, full=3))


def test_guidance_of_an_edit_goes_on_from_what_is_known() -> None:
    result = edited("mar", shared("mar"), schedule=cosine(8, full=4, head_steps=(4, 3)), guidance=3.0)
    scales = [step.guidance for step in result.schedules[0].steps]
    assert scales == sorted(scales)
    assert scales[0] > 2.0  # more than half of all tokens are known after the first sub-step
    assert scales[-1] == 3.0


def forms(image: Tensor) -> list[Any]:
    bytes_ = (image * 255).round().to(torch.uint8)
    array = bytes_[0].permute(1, 2, 0).numpy()
    return [
        bytes_,
        bytes_[0],
        bytes_.float() / 255,
        array,
        array[None],
        array.astype(np.float64) / 255,
        Image.fromarray(array),
        [Image.fromarray(array)],
        [array],
        (bytes_[0],),
        Image.fromarray(array).convert("RGBA"),
    ]


def test_images_come_in_many_forms() -> None:
    pipe = shared("mar")
    first, *others = [pipe.encode(form) for form in forms(picture())]
    assert first.shape == (1, 16, 4)
    assert all(torch.equal(first, other) for other in others)


def test_masks_come_in_many_forms() -> None:
    pipe, array = shared("maskgit"), half().numpy()
    white = array.astype(np.uint8) * 255
    soft = torch.where(half(), 0.7, 0.2)
    all_masks = [half(), half()[None], half()[None, None], array, white, white.astype(np.int32), array.astype(float)]
    all_masks += [Image.fromarray(white), Image.fromarray(white).convert("1"), Image.fromarray(white).convert("RGB")]
    all_masks += [soft, (soft * 255).to(torch.uint8), [half()]]
    for mask in all_masks:
        masked = edited("maskgit", pipe, mask=mask, schedule=cosine(8, full=2)).masked
        assert torch.equal(masked, token_mask(half()[None], STRIDE))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "large image": (
        {"image": torch.rand(3, 16, 16)},
        r"image is 16 x 16 pixels but this model draws 8 x 8.*recap\.fit\(image, 8\).*--fit",
    ),
    "large mask": ({"mask": torch.ones(16, 16) > 0}, r"mask is 16 x 16 pixels.*recap\.fit\(mask, 8, mask=True\)"),
    "mask shape": ({"mask": torch.ones(8) > 0}, r"mask has shape \(8,\)"),
    "mask values": ({"mask": torch.full((8, 8), 300)}, "not 0 to 255"),
    "mask floats": ({"mask": torch.full((8, 8), 255.0)}, "not 0 to 1"),
    "no mask": ({"mask": None}, "mask is None"),
    "channels": ({"image": torch.rand(1, 8, 8)}, r"\(1, 8, 8\) but \(3, h, w\)"),
    "array channels": ({"image": np.zeros((3, 8, 8))}, r"\(3, 8, 8\) but \(h, w, 3\)"),
    "values": ({"image": 2 * torch.ones(3, 8, 8)}, "not 0 to 1"),
    "not a number": ({"image": torch.full((3, 8, 8), torch.nan)}, "not 0 to 1"),
    "text": ({"image": "flower.png"}, "image is 'flower.png'"),
    "objects": ({"image": np.array([["a"]])}, "array of <U1"),
    "nothing": ({"image": []}, "give a PIL image"),
    "numbers": ({"image": picture(0, 3), "mask": [half()] * 2}, "3 images, 2 masks and num_images=None"),
    "number": ({"num_images": 0}, "num_images is 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_edited_is_refused_with_advice(case: str) -> None:
    options, message = WRONG[case]
    with pytest.raises(ValueError, match=message):
        edited("maskgit", **options)


def test_editing_needs_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="no tokenizer to read images with"):
        edited("maskgit", Pipeline(build(tiny.CONFIGS["maskgit"])))


def test_one_of_anything_serves_for_all() -> None:
    pipe = few(pipeline("maskgit"))
    assert edited("maskgit", pipe, labels=[1, 2, 3]).tokens.shape == (3, 16)
    assert edited("maskgit", pipe, mask=[half(), ~half()]).tokens.shape == (2, 16)
    several = edited("maskgit", pipe, num_images=3).tokens
    assert several.shape == (3, 16)
    assert not torch.equal(several[0], several[1])
    assert torch.equal(several[:1], edited("maskgit", pipe).tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_pixels_are_pasted_where_asked(family: str) -> None:
    pipe = few(pipeline(family))
    image = picture()
    plain = edited(family, pipe, image=image, output_type="pt").images
    pasted = edited(family, pipe, image=image, output_type="pt", paste=True).images
    assert torch.equal(pasted[..., half()], plain[..., half()])
    assert torch.equal(pasted[..., ~half()], image[..., ~half()])
    assert not torch.equal(plain[..., ~half()], image[..., ~half()])
    (picture_,) = edited(family, pipe, image=image, output_type="pil", paste=True).images
    assert isinstance(picture_, Image.Image)
    assert edited(family, pipe, output_type="np", paste=True).images.shape == (1, 8, 8, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_result_can_be_edited_region_after_region(family: str) -> None:
    """Its tokens are taken as they are, so nothing is lost by encoding them again."""
    pipe = few(pipeline(family))
    first = draw(pipe, family, output_type="pt")
    second = edited(family, pipe, image=first, labels=label(family, 2), num_images=2, seed=8)
    assert isinstance(second, Output)
    assert second.masked is not None
    assert torch.equal(second.tokens[~second.masked], first.tokens[~second.masked])
    third = edited(family, pipe, image=second, mask=~half(), labels=label(family, 3), seed=9)
    assert torch.equal(third.tokens[~third.masked], second.tokens[~third.masked])
    other = "mage" if family == "mar" else "mar"
    foreign = draw(shared(other), other)
    with pytest.raises(ValueError, match="but this model has"):
        edited(family, pipe, image=foreign)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("strength", [0.01, 0.3, 0.5, 0.99])
def test_a_start_keeps_its_share(family: str, strength: float) -> None:
    pipe = few(pipeline(family))
    start = draw(pipe, family, output_type="latent")
    drawn_masks: list[Tensor] = []

    def note(caller: Pipeline, step: int, decoded: int, values: dict[str, Any]) -> None:
        if not step:
            drawn_masks.extend(values["canvas"].masked.clone())

    asked: dict[str, Any] = {"strength": strength, "seed": 5, "schedule": None, "output_type": "latent"}
    result = draw(pipe, family, init=start, callback_on_step_end=note, **asked)
    count = max(1, round(16 * strength))
    assert result.schedule.tokens == count
    changed = result.tokens != start.tokens
    changed = changed.any(dim=-1) if family == "mar" else changed
    assert (changed.sum(dim=1) <= count).all()
    if family == "mar":
        assert (changed.sum(dim=1) == count).all()
    assert torch.equal(result.tokens, draw(pipe, family, init=start.tokens, **asked).tokens)
    if 1 < count < 15:
        assert not torch.equal(drawn_masks[0], drawn_masks[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_start_of_full_strength_is_plain_sampling(family: str) -> None:
    pipe = shared(family)
    start = draw(pipe, family, seed=4, output_type="latent")
    for strength in (1, 1.0):
        result = draw(pipe, family, init=start, strength=strength, output_type="latent")
        assert torch.equal(result.tokens, draw(pipe, family, output_type="latent").tokens)


def test_starts_that_make_no_sense_are_refused() -> None:
    pipe = shared("maskgit")
    tokens = draw(pipe, "maskgit", output_type="latent").tokens
    for strength in (0, -0.5, 1.5, float("nan")):
        with pytest.raises(ValueError, match="share of tokens"):
            draw(pipe, "maskgit", init=tokens, strength=strength)
    for wrong in (tokens[:, :9], tokens.float(), tokens + 20, tokens.unsqueeze(-1), tokens[:0]):
        with pytest.raises(ValueError, match="but this model has integers of 0 to 19"):
            draw(pipe, "maskgit", init=wrong)
    with pytest.raises(ValueError, match="2 labels, 3 starts and num_images=None do not go together"):
        draw(pipe, "maskgit", init=tokens[:1].repeat(3, 1))


def test_a_callback_knows_which_images_it_sees() -> None:
    corner = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    corner[:2, :4] = True
    seen: dict[int, list[tuple[int, int]]] = {}

    def note(pipe: Pipeline, step: int, decoded: int, values: dict[str, Any]) -> dict[str, Any]:
        (image,) = values["images"]  # the CPU computes one at a time
        seen.setdefault(image, []).append((step, decoded))
        return values

    asked = {"mask": [half(), corner, half()], "schedule": "2", "callback_on_step_end": note}
    result = edited("maskgit", few(pipeline("maskgit")), **asked)
    assert sorted(seen) == [0, 1, 2]
    for image, steps in seen.items():
        schedule = result.schedules[image]
        assert steps == [(0, schedule.known + schedule.sizes[0]), (1, 16)]


def test_images_with_nan_are_named() -> None:
    pipe = few(pipeline("maskgit"))
    with torch.no_grad():
        pipe.model.module.get_parameter("context_embed.word_embeddings.weight")[2] = float("nan")
    corner = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    corner[:2, :4] = True
    with pytest.raises(FloatingPointError, match=r"image\(s\) \[1\] of the batch"):
        edited("maskgit", pipe, mask=[half(), corner, half()], labels=[1, 2, 1])
