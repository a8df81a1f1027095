"""Files that are no images, or far too large ones: refused by their header, or told apart from the rest."""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from trees import picture

from lt_lib.data import ImageFiles

NAMES = ("a/0.png", "a/1.png", "b/2.png", "b/3.png")


def pictures(folder):
    for i, name in enumerate(NAMES):
        picture(folder / name, i, height=6 + i, width=9)
    return ImageFiles(folder, NAMES, 4)


def claiming(path, width, height):
    """A PNG whose header claims a size that its data do not have: decoding it would be seen by its error."""
    picture = io.BytesIO()
    Image.fromarray(np.zeros((1, 1), np.uint8)).save(picture, "PNG")
    content = picture.getvalue()
    header = struct.pack(">II", width, height) + content[24:29]
    checksum = struct.pack(">I", zlib.crc32(b"IHDR" + header))
    path.write_bytes(content[:16] + header + checksum + content[33:])


@pytest.mark.parametrize(
    ("sides", "sentence"),
    [
        ((30_000, 30_000), "it has more than 67108864 pixels"),  # Pillow's own refusal
        ((10_000, 10_000), "more than 67108864 pixels, 8192 x 8192: scale it down first"),  # its warning
        ((9_000, 8_000), "its 9000 x 8000 pixels are more than 67108864, 8192 x 8192: scale it down first"),
    ],
)
def test_a_huge_image_is_refused_by_its_header(tmp_path, sides, sentence):
    claiming(tmp_path / "huge.png", *sides)
    with pytest.raises(ValueError, match=rf"`huge\.png` in .*{sentence}"):
        ImageFiles(tmp_path, ["huge.png"], 4)[0]
    claiming(tmp_path / "fits.png", 8192, 8191)
    with pytest.raises(ValueError, match=r"truncated|broken|unrecognized|incomplete"):  # it was decoded
        ImageFiles(tmp_path, ["fits.png"], 4)[0]


def test_damaged_files_are_told_apart_and_the_rest_is_kept(tmp_path):
    pictures(tmp_path)
    (tmp_path / "b/2.png").write_bytes(b"")
    (tmp_path / "a/1.png").write_text("no image")
    images = ImageFiles(tmp_path, NAMES, 4)
    kept = torch.zeros(tuple(images.shape), dtype=torch.uint8)
    damaged = images.damaged(kept)
    assert sorted(damaged) == [1, 2] == sorted(images.damaged())
    assert "cannot identify" in damaged[1]
    assert "it is empty, 0 bytes" in damaged[2]
    assert torch.equal(kept[[0, 3]], images[[0, 3]])
    assert not kept[[1, 2]].any()
    (tmp_path / "b/3.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"`b/3\.png` must lie in .* is gone"):
        images.damaged()


def test_a_look_tells_mode_and_sides(tmp_path):
    images = pictures(tmp_path)
    pixels, mode, sides = images.look(1)
    assert (mode, sides) == ("RGB", (9, 7))
    assert torch.equal(pixels, images[1])
