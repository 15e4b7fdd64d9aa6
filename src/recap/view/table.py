"""Tables of texts: rows by column, some of which may lack a cell; columns without any are left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TextRow = Mapping[str, str]


def aligned(rows: Sequence[TextRow]) -> str:
    """Lines of one length with a rule below the first: cells end where their column does, but for the first ones."""
    first, *others = _columns(rows)
    lines = [
        "  ".join([left, *cells])
        for left, *cells in zip(_padded(first, "<"), *(_padded(column, ">") for column in others), strict=True)
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])


def markdown(rows: Sequence[TextRow]) -> str:
    """A table for a page."""
    columns = _columns(rows)
    head, *body = [f"| {' | '.join(cells)} |" for cells in zip(*columns, strict=True)]
    return "\n".join([head, "|" + "---|" * len(columns), *body])


def _columns(rows: Sequence[TextRow]) -> list[list[str]]:
    """The columns that have cells, each with its name at the top."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [[name, *(row.get(name, "") for row in rows)] for name in names]
    return [column for column in columns if any(column[1:])]


def _padded(column: Sequence[str], side: str) -> list[str]:
    width = max(map(len, column))
    return [f"{cell:{side}{width}}" for cell in column]
