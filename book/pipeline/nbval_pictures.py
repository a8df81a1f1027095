"""Plug-in for nbval: pictures are never compared, glued ones and vector formats included.

nbval itself skips `image/png` and `image/jpeg` alone; a picture glued without display has a type with
MyST-NB's prefix. The numbers behind a picture are compared instead, as printed text and published data.
"""

GLUE = "application/papermill.record/"
PICTURES = ("image/png", "image/jpeg", "image/svg+xml", "application/pdf")
NOT_COMPARED = tuple(prefix + picture for prefix in ("", GLUE) for picture in PICTURES)


def pytest_collectstart(collector: object) -> None:
    """Add to the types that nbval skips, as soon as it opens a notebook."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += NOT_COMPARED
