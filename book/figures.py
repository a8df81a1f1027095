"""One look for every figure of the book.

A notebook calls `style()` once, after its imports. Drawings live in the notebooks; only what three of them
share may move here. The folder `book/` is on the path of every kernel that the build starts.
"""

import matplotlib as mpl
from cycler import cycler

# Okabe and Ito's palette, which stays apart under the common forms of colour blindness, without its yellow:
# that is too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
HEAD, MIDDLE, TAIL = "#0072B2", "#009E73", "#D55E00"  # a class's colour by its frequency, in every chapter
INK, QUIET, FAINT = "#222222", "#777777", "#DDDDDD"  # text and axes, reference lines, grids


def style() -> None:
    """Set matplotlib's defaults: sizes for a column of text, quiet axes, a colour-blind safe cycle.

    `svg.hashsalt` makes the identifiers inside an SVG file, and so the file, the same at every run.
    """
    mpl.rcParams.update(
        {
            "axes.prop_cycle": cycler(color=PALETTE),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": QUIET,
            "axes.labelcolor": INK,
            "axes.titlesize": 10,
            "axes.titlelocation": "left",
            "axes.labelsize": 9.5,
            "axes.linewidth": 0.8,
            "axes.axisbelow": True,
            "axes.grid": False,
            "grid.color": FAINT,
            "grid.linewidth": 0.6,
            "xtick.labelsize": 8.5,
            "ytick.labelsize": 8.5,
            "xtick.color": QUIET,
            "ytick.color": QUIET,
            "xtick.labelcolor": INK,
            "ytick.labelcolor": INK,
            "xtick.major.width": 0.8,
            "ytick.major.width": 0.8,
            "legend.frameon": False,
            "legend.fontsize": 8.5,
            "legend.handlelength": 1.6,
            "lines.linewidth": 1.7,
            "lines.markersize": 5,
            "font.size": 9.5,
            "text.color": INK,
            "figure.figsize": (6.5, 3.0),
            "figure.dpi": 140,
            "figure.constrained_layout.use": True,
            "savefig.dpi": 160,
            "savefig.bbox": "tight",
            "image.cmap": "viridis",
            "svg.hashsalt": "lt_lib",
            "svg.fonttype": "none",
        }
    )


def class_colours(classes: int) -> list[tuple[float, float, float, float]]:
    """One colour a class, from the head (dark) to the tail (bright): viridis short of its pale end."""
    shades = mpl.colormaps["viridis"]
    return [shades(0.92 * c / max(classes - 1, 1)) for c in range(classes)]
