import pytest
import torch

from recap.core.canvas import Canvas, Draw, take
from recap.core.heads import CategoricalHead, guided
from recap.core.steps import Step
from tests import tiny

LOGITS = torch.tensor([0.0, 1.0, -2.0, 0.5, 3.0])


def frequencies(
    temperature: float, logits: torch.Tensor = LOGITS, guidance: float = 1.0, branches: int = 1
) -> torch.Tensor:
    draws, size = 40_000, logits.shape[-1]
    features = logits.reshape(branches, 1, -1).expand(branches, draws, -1)
    head = CategoricalHead(lambda x: x)
    step = Step(1, temperature=temperature, guidance=guidance)
    drawn = head.draw(features, step, branches, tiny.numbers(1, draws))
    return torch.bincount(drawn.values[0], minlength=size) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_ids_follow_the_tempered_softmax(temperature: float) -> None:
    expected = (LOGITS / temperature).softmax(-1)
    assert (frequencies(temperature) - expected).abs().max() < 0.01


def test_guided_ids_follow_the_extrapolated_logits() -> None:
    unconditional = torch.tensor([1.0, 0.0, 0.0, -1.0, 2.0])
    both = torch.stack([LOGITS, unconditional])
    expected = (unconditional + 2.5 * (LOGITS - unconditional)).softmax(-1)
    assert (frequencies(1.0, both, 2.5, 2) - expected).abs().max() < 0.01


def test_confidence_is_the_untempered_log_probability() -> None:
    features = LOGITS.expand(1, 50, -1)
    drawn = CategoricalHead(lambda x: x).draw(features, Step(1, temperature=3.0), 1, tiny.numbers(1, 50))
    assert drawn.confidence is not None
    torch.testing.assert_close(drawn.confidence[0], LOGITS.log_softmax(-1)[drawn.values[0]])
    assert len(set(drawn.values[0].tolist())) > 2


def test_impossible_codes_are_never_drawn() -> None:
    logits = torch.full((8,), -torch.inf)
    logits[[2, 5]] = 0.0
    assert set(frequencies(1.0, logits).nonzero().flatten().tolist()) == {2, 5}


def test_half_precision_features_are_drawn_in_float32() -> None:
    drawn = CategoricalHead(lambda x: x).draw(LOGITS.bfloat16().expand(1, 4, -1), Step(1), 1, tiny.numbers(1, 4))
    assert drawn.confidence is not None
    assert drawn.confidence.dtype == torch.float32


def test_scale_one_is_the_conditional_branch() -> None:
    x = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(guided(x, 2, 1.0), x[:2])
    torch.testing.assert_close(guided(x, 2, 0.0), x[2:])
    assert guided(x, 1, 7.0) is x


def test_a_canvas_keeps_what_was_committed_through_reordering() -> None:
    order = torch.stack([torch.tensor([2, 0, 3, 1, 4]), torch.tensor([4, 3, 2, 1, 0])])
    canvas = Canvas(tokens=torch.full((2, 5), -1), order=order)
    canvas.commit(Draw(torch.tensor([[10, 11], [20, 21]])))
    canvas.promote(torch.tensor([[2, 0, 1], [1, 2, 0]]))
    assert canvas.order.tolist() == [[2, 0, 4, 3, 1], [4, 3, 1, 0, 2]]
    assert canvas.cache_rows is not None
    assert canvas.cache_rows.tolist() == [[0, 1, 4, 2, 3], [0, 1, 3, 4, 2]]
    canvas.commit(Draw(torch.tensor([[12], [22]])))
    assert canvas.raster().tolist() == [[11, -1, 10, -1, 12], [-1, 22, -1, 21, 20]]
    assert canvas.masked.tolist() == [[False, True, False, True, False], [True, False, True, False, False]]


def test_a_canvas_remembers_which_image_went_wrong() -> None:
    canvas = Canvas(tokens=torch.zeros(3, 4, 2), order=torch.arange(4).repeat(3, 1))
    canvas.commit(Draw(torch.zeros(3, 1, 2)))
    bad = torch.zeros(3, 1, 2)
    bad[1, 0, 1] = torch.nan
    canvas.commit(Draw(bad))
    canvas.commit(Draw(torch.zeros(3, 1, 2)))
    assert canvas.finite.tolist() == [True, False, True]


def test_take_repeats_rows_over_branches() -> None:
    values, index = torch.arange(12).reshape(4, 3), torch.tensor([[0, 2], [1, 1]])
    assert take(values, index).tolist() == [[0, 2], [4, 4], [6, 8], [10, 10]]
