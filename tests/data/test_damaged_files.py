"""Files that are no images, or far too large ones: refused by their header, or told apart from the rest."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from trees import picture

from lt_lib.data import ImageFiles
from lt_lib.data.decoding import why_damaged

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
    pixels, mode, sides, turned = images.look(1)
    assert (mode, sides, turned) == ("RGB", (9, 7), False)
    assert torch.equal(pixels, images[1])


def test_content_counts_not_suffixes_and_no_other_program_is_started(tmp_path, monkeypatch):
    pictures(tmp_path)
    (tmp_path / "a/0.png").rename(tmp_path / "a/0.jpg")
    assert ImageFiles(tmp_path, ["a/0.jpg"], 4)[0].shape == (3, 4, 4)
    Image.new("RGB", (9, 9)).save(tmp_path / "page.eps")  # Pillow would give it to Ghostscript
    (tmp_path / "page.eps").rename(tmp_path / "page.png")
    monkeypatch.setattr("subprocess.check_call", lambda *_, **__: pytest.fail("a program was started"))
    with pytest.raises(ValueError, match=r"`page\.png` in .* \(cannot identify image file\)"):
        ImageFiles(tmp_path, ["page.png"], 4)[0]


@pytest.mark.parametrize(
    "make", [os.mkdir, getattr(os, "mkfifo", os.mkdir), lambda path: path.symlink_to("x")]
)
def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path, make):
    make(tmp_path / "pipe.png")
    with pytest.raises(FileNotFoundError, match=r"the image `pipe\.png`; it is absent \(1 of 1 are\)"):
        ImageFiles(tmp_path, ["pipe.png"], 4)


@pytest.mark.parametrize(
    ("suffix", "heeded"), [("jpg", False), ("png", False), ("webp", False), ("tif", True)]
)
def test_exif_rotation_is_told_and_not_applied_but_by_pillow_to_tiff(tmp_path, suffix, heeded):
    exif = Image.Exif()
    exif[0x0112] = 6  # viewers turn it by a quarter
    halves = np.zeros((16, 16, 3), np.uint8)
    halves[8:] = 255
    Image.fromarray(halves).save(tmp_path / f"x.{suffix}", exif=exif)
    pixels, *_, turned = ImageFiles(tmp_path, [f"x.{suffix}"], 16).look(0)
    assert turned is not heeded
    bright = pixels[0] > 128
    assert bool(bright[12].all()) is not heeded
    assert bool(bright[:, 4].all()) is heeded


def test_damaged_exif_data_do_not_cost_the_image(tmp_path):
    Image.new("RGB", (9, 9)).save(tmp_path / "x.jpg", exif=b"Exif\0\0nonsense")
    assert ImageFiles(tmp_path, ["x.jpg"], 4).look(0)[3] is False


def test_reasons_of_the_system_come_without_its_path():
    assert why_damaged(PermissionError(13, "Permission denied", "/home/me/x.png"), 5) == "Permission denied"
