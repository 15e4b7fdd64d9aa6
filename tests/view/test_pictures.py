"""Picture files: 16 bits, odd EXIF, and sizes that are told before pixels are decoded."""

import io
import struct
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from recap.view.images import batch_of, fit, masks_of, open_pair
from recap.view.pictures import UnreadablePicture, eight_bits, open_picture

ORIENTATION = 0x0112


def file_of(image: Image.Image, form: str = "PNG", **options: Any) -> io.BytesIO:
    image.save(file := io.BytesIO(), form, **options)
    file.seek(0)
    return file


def deep(share: float, side: int = 8) -> Image.Image:
    """Grey of 16 bits, of this share of white."""
    return Image.fromarray(np.full((side, side), round(share * 65535), np.uint16))


def test_sixteen_bits_are_scaled_and_not_cut_off() -> None:
    for share in (0.0, 0.015, 0.4, 0.6, 1.0):
        picture = open_picture(file_of(deep(share)), "a")
        assert picture.mode == "RGB"
        assert set(picture.tobytes()) == {round(share * 255)}
        assert masks_of(deep(share), 8).all() == (share > 0.5) == masks_of(deep(share), 8).any()
        assert float(batch_of(deep(share), 8).max()) == pytest.approx(share, abs=1 / 255)
        assert (np.asarray(fit(deep(share, 16), 8, mask=True)) > 0).all() == (share > 0.5)


def test_eight_bits_are_left_alone() -> None:
    shades = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    assert eight_bits(shades) is shades
    assert open_picture(file_of(shades), "a").convert("L").tobytes() == shades.tobytes()
    assert open_picture(file_of(shades, "BMP"), "a").convert("L").tobytes() == shades.tobytes()


@pytest.mark.parametrize("mode", ["I", "F"])
def test_values_of_no_known_range_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match="no known white; convert it to L or RGB"):
        masks_of(Image.new(mode, (8, 8), 200), 8)


@pytest.mark.parametrize(("turned", "form"), [*product(range(10), ("JPEG", "PNG", "WEBP"))])
def test_pictures_are_turned_as_pillow_turns_them(turned: int, form: str) -> None:
    exif = Image.Exif()
    exif[ORIENTATION] = turned
    pixels = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 12, 3), dtype=np.uint8))
    file = file_of(pixels, form, exif=exif)
    with Image.open(file) as image:
        expected = ImageOps.exif_transpose(image)
    told: list[tuple[int, int]] = []
    found = open_picture(file, "a", upright=True, check=lambda size, _: told.append(size))
    assert found.tobytes() == expected.tobytes()
    assert told == [found.size]


@pytest.mark.parametrize(
    "turned", [struct.pack("<HHII", 0x0112, 3, 1, 6), struct.pack("<HHI4s", 0x0112, 2, 4, b"six")]
)
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_odd_exif_is_no_error(turned: bytes, form: str) -> None:
    """A width in words: Pillow reads it, but fails to write it anew."""
    width = struct.pack("<HHI4s", 0x0100, 2, 4, b"odd")
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + width + turned + bytes(4)
    file = file_of(Image.new("RGB", (8, 12)), form, exif=exif)
    right = (12, 8) if b"six" not in turned else (8, 12)
    assert open_picture(file, "a", upright=True).size == right


def test_sizes_are_refused_before_pixels_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    picture, mask, other = (file_of(Image.new("L", size)) for size in ((20, 10), (20, 10), (10, 20)))

    def never(*_: Any) -> Any:
        raise AssertionError("it was decoded")

    def opener(file: io.BytesIO) -> Any:
        return lambda check: open_picture(file, "a", check=check)

    assert open_pair(opener(picture), opener(mask), 8, True)[0].size == (8, 8)
    with pytest.raises(ValueError, match=r"the mask is 10 x 20 pixels but the image 20 x 10"):
        open_pair(opener(picture), opener(other), 8, True)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", never)
    with pytest.raises(ValueError, match="the image is 20 x 10 pixels but this model draws 8 x 8"):
        open_pair(opener(picture), None, 8, False)


def test_what_is_no_picture_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnreadablePicture, match="x is no readable picture"):
        open_picture(io.BytesIO(b"nothing"), "x")
    with pytest.raises(FileNotFoundError):
        open_picture(tmp_path / "none.png", "none.png")
