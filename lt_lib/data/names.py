"""Names that file systems hold, made fit for a sentence."""

import re
import unicodedata

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_BYTES = range(0xDC80, 0xDD00)  # how Python holds bytes of a name that are not UTF-8


def readable(name: str) -> str:
    r"""Return `name` in Unicode's form NFC, with controls and bytes that are no UTF-8 written out.

    A line break becomes `\n`, a stray byte `\xe9`: the result can be printed, stands on one line and can be
    stored as UTF-8. Letters of any script stay as they are, their joiners and directions too.
    """
    return _UNPRINTABLE.sub(_written_out, unicodedata.normalize("NFC", name))


def _written_out(found: re.Match[str]) -> str:
    code = ord(found[0])
    byte = code in _BYTES
    return f"\\x{code - 0xDC00:02x}" if byte else found[0].encode("unicode_escape").decode()
