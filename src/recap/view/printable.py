"""Text from anywhere, made fit to be printed."""

from __future__ import annotations

import unicodedata


def printable(text: str, keep: str = "") -> str:
    """A text with escapes in the place of all that a terminal would obey, or that nobody would see.

    Characters that move the cursor, set its colours or turn the direction of writing are such; those of `keep` stay.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign in keep or _harmless(sign) else repr(sign)[1:-1] for sign in text)


def _harmless(sign: str) -> bool:
    return sign.isprintable() or unicodedata.category(sign) == "Zs"  # spaces of other widths
