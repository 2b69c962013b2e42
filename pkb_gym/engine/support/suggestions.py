"""Near names, for errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


def did_you_mean(name: object, known: Iterable[str], synonyms: Mapping[str, str] | None = None) -> str:
    """The end of an error about a name that is not known: a question with the nearest known one, or nothing.

    Args:
        name: Unknown name; anything but a text is near nothing.
        known: Known names.
        synonyms: Synonyms of some known names, in lower case.

    Example:
        >>> did_you_mean("tinny", ["tiny", "large"])
        " Did you mean 'tiny'?"
        >>> did_you_mean("GPU", ["cpu", "cuda"], {"gpu": "cuda"})
        " Did you mean 'cuda'?"
        >>> did_you_mean(5, ["tiny"])
        ''
    """
    if not isinstance(name, str):
        return ""
    by_lower = {word.lower(): word for word in known}
    meant = {word: of for word, of in (synonyms or {}).items() if of in by_lower.values()} | by_lower
    near = difflib.get_close_matches(name.lower(), meant, n=1)
    return f" Did you mean {meant[near[0]]!r}?" if near else ""
