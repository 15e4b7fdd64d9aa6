"""What results look like: in a line of text, and as a picture in a notebook."""

import io
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from recap import Output, Schedule, cosine, preset
from recap.core.steps import Step
from recap.pipelines.codec import OUTPUT_TYPES
from recap.pipelines.output import SHOWN
from recap.view.sheet import grid
from tests.pipelines.test_pipeline import FAMILIES, SCHEDULE, draw, request, shared


def shown(result: Output) -> np.ndarray:
    data = result._repr_png_()
    assert data is not None
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize("kind", OUTPUT_TYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_results_are_one_line_and_a_picture(family: str, kind: str) -> None:
    result = draw(shared(family), family, output_type=kind)
    line = repr(result)
    assert len(line) < 160
    assert "tensor(" not in line
    assert ("2 images" in line, str(SCHEDULE) in line) == (True, True)
    names = [f"class {label}" for label in request(family).get("labels", [])]
    assert result.names == (tuple(names) or None)
    if kind == "latent":
        assert result._repr_png_() is None
    else:
        assert np.array_equal(shown(result), np.asarray(grid(draw(shared(family), family).images)))


def test_large_results_are_cut_and_edits_say_what_was_redrawn() -> None:
    pictures = [Image.new("RGB", (8, 8), (index, 0, 0)) for index in range(40)]
    large = shown(Output(pictures, torch.zeros(40, 16, dtype=torch.long), (SCHEDULE,) * 40))
    assert large.size == SHOWN * 8 * 8 * 3
    pipe = shared("maskgit")
    masks = np.zeros((2, 8, 8), bool)
    masks[0, :, 4:] = masks[1, 2:, :] = True
    edited = pipe.edit(draw(pipe, "maskgit").images[0], masks, [1, 2], seed=0, schedule="3+2")
    assert "8 to 12" in repr(edited)


@pytest.mark.parametrize("schedule", [SCHEDULE, preset("mar-huge", full=96, local=32), cosine(8, full=1, known=3)])
def test_schedules_are_short_and_lose_nothing(schedule: Schedule) -> None:
    assert len(repr(schedule)) < 120
    assert repr(schedule).startswith(f"<Schedule {schedule}: {schedule.tokens} tokens")
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert hash(again) == hash(schedule)
    space = {"Schedule": Schedule, "Group": type(schedule.groups[0]), "Step": Step}
    assert eval(schedule.canonical_text(), space) == schedule


def test_schedules_whose_lines_are_equal_can_be_told_apart() -> None:
    (first, *rest) = SCHEDULE.groups
    warmer = replace(first, steps=(replace(first.steps[0], temperature=1.5), *first.steps[1:]))
    other = replace(SCHEDULE, groups=(warmer, *rest))
    assert repr(other) == repr(SCHEDULE)
    assert other.canonical_text() != SCHEDULE.canonical_text()
