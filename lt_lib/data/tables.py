"""Tables of comma-separated text with a header, read in full and checked row by row."""

import contextlib
import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from lt_lib.data.roots import read_text

SPREADSHEET = ",;\t"  # delimiters that spreadsheets write, by language


def read_table(
    path: Path,
    columns: Sequence[str],
    advice: str,
    optional: Sequence[str] = (),
    other_names: Mapping[str, str] | None = None,
    delimiters: str = ",",
) -> list[tuple[int, dict[str, str]]]:
    """Return each row's last line number and its cells by column, blanks around them stripped.

    Args:
        path: the file, in UTF-8 with or without a mark at its beginning.
        columns: names that the header must hold; it may hold more.
        advice: what to do about a table that is not as it should be.
        optional: names that it may hold, once.
        other_names: what people call a column, in small letters, and how it is called here.
        delimiters: the first one that gives the header its columns is taken; the first of all if none does.

    Raises:
        ValueError: a column is missing or doubled, or a row has too many cells; the line is named.
    """
    text = read_text(path)
    rows, header = _parsed(text, _delimiter(text, columns, delimiters), path, advice)
    _check_header(path, header, columns, advice, other_names or {})
    doubled = [column for column in (*columns, *optional) if header.count(column) > 1]
    if doubled:
        raise ValueError(f"`{path}` must have one column `{doubled[0]}`; found two. {advice}")
    table = []
    for line, cells in rows:
        if len(cells) > len(header):
            raise ValueError(
                f"Line {line} of `{path}` must have {len(header)} cells, as the header has; found "
                f"{len(cells)}. {advice.removesuffix('.')}, or mend the row."
            )
        full = [*cells, *[""] * (len(header) - len(cells))]
        table.append((line, dict(zip(header, full, strict=True))))
    return table


def _delimiter(text: str, columns: Sequence[str], delimiters: str) -> str:
    for delimiter in delimiters:
        with contextlib.suppress(csv.Error):  # told when the whole is read
            header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
            if {cell.strip() for cell in header}.issuperset(columns):
                return delimiter
    return delimiters[0]


def _parsed(
    text: str, delimiter: str, path: Path, advice: str
) -> tuple[list[tuple[int, list[str]]], list[str]]:
    # strict: a quotation mark that is never closed would swallow the rows after it
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        stripped = ((reader.line_num, [cell.strip() for cell in cells]) for cells in reader)
        # blank lines are no rows, nor are those of empty cells that spreadsheets write
        rows = [(line, cells) for line, cells in stripped if any(cells)]
    except csv.Error as error:
        raise ValueError(
            f"Line {reader.line_num} of `{path}` cannot be read ({error}). {advice.removesuffix('.')}, or "
            "mend the row."
        ) from error
    return rows[1:], rows[0][1] if rows else []


def _check_header(
    path: Path, header: Sequence[str], columns: Sequence[str], advice: str, other_names: Mapping[str, str]
) -> None:
    lacking = [column for column in columns if column not in header]
    if lacking:
        near = [name for name in header if other_names.get(name.lower()) == lacking[0]]
        hint = f"Rename the column `{near[0]}` to `{lacking[0]}`." if near else advice
        found = f" (found {', '.join(header)[:200] or 'nothing'})" if other_names else ""
        raise ValueError(
            f"`{path}` must be a table with the columns {', '.join(columns)}; `{lacking[0]}` is missing"
            f"{found}. {hint}"
        )
