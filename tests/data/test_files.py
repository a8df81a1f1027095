"""Images that stay on disk: the pixels that come out, what a part does with them, what is refused."""

import pickle
import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import CenterCrop, Resize

from lt_lib.data import ImageFiles, Part, normalisation
from lt_lib.data import sampling as data_sampling


def noise(height, width, channels=3, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def files(folder, sizes=((6, 9), (8, 8), (12, 7), (5, 5)), **options):
    names = []
    for i, (height, width) in enumerate(sizes):
        names.append(f"{i % 2}/{i}.png")
        (folder / names[-1]).parent.mkdir(exist_ok=True)
        Image.fromarray(noise(height, width, seed=i)).save(folder / names[-1])
    return ImageFiles(folder, names, **{"size": 4, **options})


def part_of(images, labels=None):
    n = len(images)
    return Part(images, torch.arange(n) % 2 if labels is None else labels, torch.arange(n))


def expected(image, size, shorter):
    """torchvision's transforms, bilinear with antialiasing as they are for Pillow's images."""
    return torch.from_numpy(np.array(CenterCrop(size)(Resize(shorter)(image)))).permute(2, 0, 1)


# ---------------------------------------------------------------- the pixels


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 24), st.integers(0, 5), st.randoms())
def test_images_are_those_of_torchvisions_transforms(tmp_path_factory, height, width, size, extra, random):
    folder = tmp_path_factory.mktemp("images")
    image = Image.fromarray(noise(height, width, seed=random.randrange(2**32)))
    image.save(folder / "a.png")
    images = ImageFiles(folder, ["a.png"], size, shorter=size + extra)
    assert torch.equal(images[0], expected(image, size, size + extra))


def test_positions_slices_and_blocks_agree(tmp_path):
    images = files(tmp_path)
    whole = images.decode()
    assert (images.shape, images.dtype, len(images)) == ((4, 3, 4, 4), torch.uint8, 4)
    assert images.nbytes == whole.numel() == 4 * 3 * 4 * 4
    assert torch.equal(images[:], whole)
    assert torch.equal(images[1:3], whole[1:3])
    assert torch.equal(images[torch.tensor([3, 0, 3])], whole[[3, 0, 3]])
    assert torch.equal(images[-1], whole[3])
    assert torch.equal(torch.cat(list(images.split(3))), whole)
    assert torch.equal(images.take([2, -1])[:], whole[[2, 3]])
    assert torch.equal(pickle.loads(pickle.dumps(images))[:], whole)
    with pytest.raises(IndexError):
        images[4]


def test_an_opened_image_is_whole(tmp_path):
    images = files(tmp_path)
    assert (images.open(0).size, images.open(0).mode) == ((9, 6), "RGB")
    np.testing.assert_array_equal(images.open(0), noise(6, 9, seed=0))
    assert files(tmp_path, channels=1).open(0).mode == "L"


RAMP = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4  # 0..252
WHITE_TO_BLACK = np.stack([255 - RAMP] * 3, axis=-1)


@pytest.mark.parametrize(
    ("name", "image", "grey"),
    [
        ("a.png", Image.fromarray(RAMP), RAMP),
        ("a.png", Image.fromarray(np.dstack([RAMP] * 3)), RAMP),
        ("a.png", Image.fromarray(np.dstack([RAMP, RAMP, RAMP, 255 - RAMP])), RAMP),  # transparency dropped
        ("a.png", Image.fromarray(np.dstack([RAMP, 255 - RAMP])), RAMP),
        ("a.png", Image.fromarray(RAMP).convert("P"), RAMP),
        ("a.png", Image.fromarray(RAMP > 100), np.where(RAMP > 100, 255, 0)),
        ("a.png", Image.fromarray(RAMP.astype(np.uint16) * 257), RAMP),  # 16 bits
        ("a.tif", Image.fromarray(RAMP.astype(np.uint16) * 257 + 128), RAMP),  # below the half: rounded down
        ("a.tif", Image.fromarray(RAMP.astype(np.int32) * 257), RAMP),
        ("a.tif", Image.fromarray(np.dstack([RAMP] * 3)).convert("CMYK"), RAMP),
        ("a.jpg", Image.fromarray(np.full((8, 8, 3), 60, np.uint8)).convert("CMYK"), np.full((8, 8), 60)),
        ("a.gif", Image.fromarray(RAMP), RAMP),
        ("a.webp", Image.fromarray(np.full((8, 8, 3), 200, np.uint8)), np.full((8, 8), 200)),
    ],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_image_becomes_bytes(tmp_path, name, image, grey, channels):
    image.save(tmp_path / name)
    seen = ImageFiles(tmp_path, [name], 8, channels)[0]
    assert seen.shape == (channels, 8, 8)
    lossy = 2 if name.endswith(("jpg", "webp")) else 0
    np.testing.assert_allclose(seen.numpy(), np.broadcast_to(grey, (channels, 8, 8)), atol=lossy)


def test_a_palette_with_transparent_entries_keeps_its_colours(tmp_path):
    image = Image.fromarray(np.dstack([RAMP, RAMP, RAMP])).quantize(8)
    image.save(tmp_path / "a.png", transparency=bytes([0, 128, 255, 255, 255, 255, 255, 255]))
    seen = ImageFiles(tmp_path, ["a.png"], 8)[0].permute(1, 2, 0)
    np.testing.assert_array_equal(seen, np.array(image.convert("RGB")))


# ---------------------------------------------------------------- within a part


def test_a_part_on_disk_is_taken_counted_and_shown(tmp_path):
    part = part_of(files(tmp_path))
    assert repr(part) == "Part(4 images 3 x 4 x 4 on disk)"
    assert repr(part.images) == f"ImageFiles(4 files in '{tmp_path}' as 3 x 4 x 4)"
    assert part.channels == 3
    assert part.counts(3).tolist() == [2, 2, 0]
    taken = part.take([3, 1])
    assert taken.images.names == ("1/3.png", "1/1.png")
    assert (taken.index.tolist(), taken.labels.tolist()) == ([3, 1], [1, 1])
    assert torch.equal(taken.in_memory(), part.in_memory()[[3, 1]])


def test_groups_stay_with_their_images(tmp_path):
    images, labels, index = files(tmp_path), torch.arange(4) % 2, torch.arange(4)
    part = Part(images, labels, index, torch.tensor([5, 5, 7, 9]))
    assert part.take([2, 0]).groups.tolist() == [7, 5]
    with pytest.raises(ValueError, match="`groups` must be int64, one entry for each of the 4 images"):
        Part(images, labels, index, torch.tensor([1, 2]))


def test_a_fingerprint_sees_paths_sizes_labels_and_decoding(tmp_path):
    images = files(tmp_path)
    base = part_of(images).fingerprint()
    assert base == part_of(files(tmp_path)).fingerprint()
    other = [
        part_of(images, torch.tensor([0, 0, 1, 1])),
        part_of(files(tmp_path, size=5)),
        part_of(files(tmp_path, shorter=6)),
        part_of(files(tmp_path, channels=1)),
        part_of(images).take([1, 0, 2, 3]),
        part_of(images).take([0, 1, 2]),
    ]
    (tmp_path / "0/0.png").write_bytes((tmp_path / "0/0.png").read_bytes() + b" ")
    other.append(part_of(ImageFiles(tmp_path, images.names, 4)))
    assert len({base, *(part.fingerprint() for part in other)}) == 8


@pytest.mark.parametrize(
    ("kind", "side"), [("bmp", 8), ("bmp", 200), ("tif", 200), ("png", 200), ("jpg", 300)]
)
def test_a_fingerprint_sees_other_content_of_equal_size(tmp_path, kind, side):
    path = tmp_path / f"a.{kind}"
    Image.fromarray(noise(side, side)).save(path)
    size = path.stat().st_size
    base = ImageFiles(tmp_path, [path.name], 4)
    assert base.fingerprint() == ImageFiles(tmp_path, [path.name], 4).fingerprint()
    assert base.take([0]).fingerprint() == base.fingerprint()
    pixels = noise(side, side)
    pixels[side // 2, side // 2] ^= 7
    Image.fromarray(pixels).save(path)
    if kind in ("png", "jpg"):  # sizes of compressed files move as well: pad them to one size
        path.write_bytes(path.read_bytes()[:size].ljust(size, b"\0"))
    else:
        assert path.stat().st_size == size
    assert ImageFiles(tmp_path, [path.name], 4).fingerprint() != base.fingerprint()


def test_a_copy_has_the_fingerprint_of_its_original(tmp_path):
    (tmp_path / "a").mkdir()
    images = files(tmp_path / "a", sizes=((6, 9), (300, 300)))
    shutil.copytree(tmp_path / "a", tmp_path / "b", copy_function=shutil.copyfile)
    copy = ImageFiles(tmp_path / "b", images.names, 4)
    assert copy.fingerprint() == images.fingerprint()
    gone = ImageFiles(tmp_path / "b", images.names, 4)
    (tmp_path / "b" / "0/0.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"`0/0\.png` must lie in .* is gone"):
        gone.fingerprint()


def test_normalisation_of_files_is_that_of_their_pixels(tmp_path, monkeypatch):
    part = part_of(files(tmp_path))
    in_memory = Part(part.in_memory(), part.labels, part.index)
    for ours, exact in zip(normalisation(part), normalisation(in_memory), strict=True):
        assert torch.equal(ours, exact)
    monkeypatch.setattr(data_sampling, "_SAMPLED_FILES", 2)
    pairs = [in_memory.take([i, j]) for i in range(4) for j in range(i)]
    mean = normalisation(part)[0]
    assert torch.equal(mean, normalisation(part)[0])
    assert sum(torch.equal(mean, normalisation(pair)[0]) for pair in pairs) == 1


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize("name", ["", "/etc/a.png", "../a.png", "a/../../b.png", "C:/a.png", r"..\a.png"])
def test_a_path_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"within the image folder, without `\.\.`"):
        ImageFiles(tmp_path, [name], 4)


def test_an_absent_image_is_named_at_once(tmp_path):
    files(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"the image `a/9.png`; it is absent \(2 of 3 are\)"):
        ImageFiles(tmp_path, ["a/9.png", "0/0.png", "b.png"], 4)


@pytest.mark.parametrize("options", [{"size": 0}, {"size": 4.0}, {"size": 8, "shorter": 7}, {"size": True}])
def test_sizes_out_of_range_are_refused(tmp_path, options):
    with pytest.raises(ValueError, match="must be a whole number of pixels"):
        files(tmp_path, **options)
    with pytest.raises(ValueError, match="`channels` must be 1"):
        files(tmp_path, channels=2)


def damaged(folder, kind):
    path = folder / f"a.{kind}"
    Image.fromarray(noise(40, 40)).save(path)
    return path, path.read_bytes()


# Pillow warns of a truncated TIFF before it refuses it
@pytest.mark.filterwarnings("ignore:.*(Truncated File Read|Possibly corrupt EXIF|Tag data larger)")
@settings(max_examples=40, deadline=None)
@given(kind=st.sampled_from(["png", "jpg", "tif", "bmp", "gif", "webp"]), share=st.floats(0, 0.9))
def test_a_truncated_image_is_named_when_it_is_read(tmp_path_factory, kind, share):
    path, content = damaged(tmp_path_factory.mktemp("images"), kind)
    path.write_bytes(content[: int(share * len(content))])
    images = ImageFiles(path.parent, [path.name], 8)  # lazily: no error yet
    with pytest.raises(ValueError, match=rf"`a\.{kind}` in .* must be a whole image file.*Fetch the file"):
        images[:]


def test_what_is_no_image_is_named(tmp_path):
    (tmp_path / "a.jpg").write_text("<html>404 Not Found</html>")
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "b.tif")
    Image.fromarray(np.full((4, 4), 70_000, np.int32)).save(tmp_path / "c.tif")
    Image.fromarray(RAMP.astype(np.uint16)).save(tmp_path / "d.png")
    Image.fromarray(RAMP.astype(np.int32)).save(tmp_path / "e.tif")
    images = ImageFiles(tmp_path, ["a.jpg", "b.tif", "c.tif", "d.png", "e.tif"], 4)
    reasons = ["cannot identify image file", "floating-point", "70000..70000 leave 16 bits"]
    for i, reason in enumerate([*reasons, "reach 252 of 65535", "bytes in a wide type"]):
        with pytest.raises(ValueError, match=reason):
            images[i]
    with pytest.raises(ValueError, match=r"`a\.jpg`"):
        images.decode()


def test_sides_beyond_100_to_1_are_refused_and_black_is_black(tmp_path):
    Image.fromarray(np.zeros((1, 60_000), np.uint8)).save(tmp_path / "line.png")
    Image.fromarray(np.zeros((2, 200), np.uint16)).save(tmp_path / "strip.png")
    images = ImageFiles(tmp_path, ["line.png", "strip.png"], 4)
    with pytest.raises(ValueError, match=r"`line\.png` in .*its sides 60000 x 1 are beyond 100 to 1"):
        images[0]
    assert int(images[1].max()) == 0


def test_a_file_that_vanished_is_named(tmp_path):
    images = files(tmp_path)
    (tmp_path / "1/3.png").unlink()
    with pytest.raises(FileNotFoundError, match=r"`1/3.png` must lie in .* is gone"):
        images[3]
