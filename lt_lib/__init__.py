"""Long-tailed learning: reweighting, collapse metrics, curvature and surgery, for the book that surrounds it.

Import from the floors (`lt_lib.data`, `lt_lib.reweighting`, ...): this package imports none of them, so that
a stored run depends only on the modules that it really uses.
"""

__version__ = "0.1.0"
