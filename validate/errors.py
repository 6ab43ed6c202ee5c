"""The one exception that a user is meant to see."""

from __future__ import annotations


class UserError(ValueError):
    """Something the user gave cannot be used; exit code 2.

    The message is one line: what was wrong, what was expected, what to do.
    """
