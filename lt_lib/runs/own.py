"""The configuration of runs on a reader's own data, with settings that need no thought."""

from collections.abc import Mapping
from typing import Any

from lt_lib._checks import check_choice
from lt_lib.data import check_data_name
from lt_lib.runs.config import DATA_DEFAULTS, RunConfig
from lt_lib.training import TrainConfig
from lt_lib.training.config import check_number

_WIDE = 48  # pixels from which the network is twice as wide


def own_config(
    source: str,
    size: int | None = None,
    net: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
    **data: Any,
) -> RunConfig:
    """Return the configuration of cross-entropy on your own images: the base of every method's run.

    Images that cannot be decoded are left out, copies stay in one part, a fifth of each class is set aside
    to test and a tenth to calibrate (see `lt_lib.data.partition.partition`; a part of the source's own is
    taken whole). Where nothing else is said: a ResNet of depth 8, of width 8 (16 from 48 pixels on), SGD with
    a cosine schedule from 0.1, batches of 64, one CPU thread a run or the GPU; images are shifted by up to a
    pixel and not mirrored, since letters and digits must not be (for photographs pass
    `training={"augment": "crop_flip"}`). Conventions, the same for every method, and tuned for none.

    Args:
        source: "npz:FILE", "folder:DIR", "csv:FILE", or any name that `lt_lib.data.load` takes.
        size: height and width to which image files are brought; None is 64.
        net: fields of `lt_lib.nets.NetConfig` that differ.
        training: fields of TrainConfig that differ.
        **data: entries of a run's `data` that differ, such as `test` or `calibration`.

    Raises:
        ValueError: an unknown source, field or entry, or a value out of range.
    """
    check_data_name(source)
    if size is not None:
        check_number(size, "size", 1, 8192, whole=True)
    for name in data:
        check_choice(name, DATA_DEFAULTS, "an entry of data")
    files = source.partition(":")[0] in ("folder", "csv")
    pixels = (size or 64) if files else 0
    return RunConfig(
        data={
            "name": source,
            "size": size,
            "test": 0.2,
            "calibration": 0.1,
            "parts": "partition",
            "damaged": "leave out",
            **data,
        },
        net={"depth": 8, "width": 16 if pixels >= _WIDE else 8, **(net or {})},
        training=TrainConfig.from_dict(
            {"batch": 64, "warmup": 2, "augment": "shift", "threads": 1, **(training or {})}
        ),
        measure_every=100_000,  # after the last epoch only
    )
