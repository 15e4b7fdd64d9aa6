"""Labels from text: by number, name, or an unambiguous part of a name."""

import pytest

from recap.pipelines.inputs import find_class, find_classes

NAMES = ["pink primrose", "Sunflower", "water lily", "lotus", "tiger lily"]
LABELS = [("sunflower", 1), (" WATER LILY ", 2), ("3", 3), ("pink", 0), ("lot", 3), ("prim", 0)]


@pytest.mark.parametrize(("text", "label"), LABELS)
def test_classes_by_name(text: str, label: int) -> None:
    assert find_class(text, NAMES, 5) == label


def test_exact_names_win_and_lists_are_split() -> None:
    assert find_class("lily", ["tiger lily", "lily", "lily of the valley"], 3) == 1
    assert find_class("2", ["a", "2", "b"], 3) == 1
    assert find_classes("lotus, 1,tiger", NAMES, 5) == [3, 1, 4]
    assert find_classes("rose, wild", ["tulip", "Rose, wild"], 2) == [1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lily", "fits 2 classes: water lily, tiger lily"),
        ("sunflwer", "did you mean 'Sunflower'"),
        ("qqq", "did you mean"),
        ("", "did you mean"),
        ("5", "out of range; this model has classes 0 to 4"),
        ("-1", "out of range"),
    ],
)
def test_unclear_classes_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_class(text, NAMES, 5)
