"""What LeakScope raises for a person: one whole sentence, and a hint with the next command to type."""

from __future__ import annotations


class LeakScopeError(Exception):
    """Something that a person can act on.

    Args:
        sentence: what is wrong, one whole sentence that holds the value at fault.
        hint: the next command to type or thing to change; may be empty.

    The exit code of the command line is `exit_code`: 2 for a mistake in the usage, 1 for everything else.
    """

    exit_code = 1

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.hint = hint


class UsageError(LeakScopeError):
    """The command cannot be carried out as it was typed."""

    exit_code = 2


class SessionError(LeakScopeError):
    """A session directory is missing, damaged, or of a format that this version does not read."""
