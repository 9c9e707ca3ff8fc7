"""What the server refuses, as exceptions with its text.

All are :class:`redis.exceptions.ResponseError`, so code that catches those goes on to work. Lost connections stay redis-py's
``ConnectionError`` and ``TimeoutError``, wrong passwords its ``AuthenticationError``.
"""

from __future__ import annotations

import re
from typing import Optional

import redis.exceptions as theirs

__all__ = [
    "BusyError",
    "EvictedError",
    "FunctionError",
    "HeadwaterError",
    "JoinedError",
    "JoinSyntaxError",
    "NoFunctionError",
    "NoPermissionError",
    "OutOfMemoryError",
    "SlowCommandError",
    "SourceError",
    "StorageError",
    "TrimmedError",
    "TryAgainError",
    "WatchEndedError",
    "WrongTypeError",
]


class HeadwaterError(theirs.ResponseError):
    """The server has refused a command. ``code`` is the word that the error begins with, ``text`` what follows it."""

    code = "ERR"

    def __init__(self, text: str, code: Optional[str] = None) -> None:
        super().__init__(text)
        self.text = text
        if code is not None:
            self.code = code


class JoinedError(HeadwaterError):
    """A key that a join maintains cannot be written by clients."""

    code = "JOINED"

    @property
    def join(self) -> str:
        """The name of the join."""
        return self.text.rpartition("join '")[2].rstrip("'")


class JoinSyntaxError(HeadwaterError):
    """A mistake in the text of a join."""

    @property
    def column(self) -> int:
        """Where the mistake is, from 1 on."""
        return int(self.text.partition("column ")[2].partition(":")[0])


class NoPermissionError(HeadwaterError, theirs.NoPermissionError):
    """The user lacks a right."""

    code = "NOPERM"


_OutOfMemory = getattr(theirs, "OutOfMemoryError", theirs.ResponseError)
_TryAgain = getattr(theirs, "TryAgainError", theirs.ResponseError)


class OutOfMemoryError(HeadwaterError, _OutOfMemory):  # type: ignore[misc, valid-type]
    """There is no room for a write, or for what a read asks for at one moment."""

    code = "OOM"


class TryAgainError(HeadwaterError, _TryAgain):  # type: ignore[misc, valid-type]
    """Several shards could not agree in time; nothing of the command was executed."""

    code = "TRYAGAIN"


class BusyError(HeadwaterError):
    """A flow's backlog is full, or a partition cannot move now."""

    code = "BUSY"


class SourceError(HeadwaterError):
    """A source of base data has failed, or did not answer in time."""

    code = "SOURCE"


class SlowCommandError(HeadwaterError):
    """The command took longer than ``command-milliseconds-max``. What it computed is there for the next attempt."""

    code = "TIMEOUT"


class StorageError(HeadwaterError):
    """Writes are refused, since the store on disk cannot take them."""

    code = "MISCONF"


class WrongTypeError(HeadwaterError):
    """A stream where a value is wanted, or the other way round."""

    code = "WRONGTYPE"


class _OffsetGone(HeadwaterError):
    @property
    def first(self) -> int:
        """The first offset of the stream that can be read."""
        found = re.search(r"([0-9]+)$", self.text)
        return int(found[1]) if found else 0


class TrimmedError(_OffsetGone):
    """This part of a stream was trimmed, or was that of an earlier stream of the name."""

    code = "TRIMMED"


class EvictedError(_OffsetGone):
    """This part of a stream went for want of memory."""

    code = "EVICTED"


class FunctionError(HeadwaterError):
    """A function has failed, or reached a limit; nothing of what it did happened."""

    code = "FUNCTION"


class NoFunctionError(HeadwaterError):
    """No such function is loaded."""

    code = "NOFUNCTION"


class WatchEndedError(HeadwaterError):
    """The server has ended a watch: its user may not read the range any more."""

    code = "NOPERM"


_TYPES: dict[str, type[HeadwaterError]] = {
    one.code: one
    for one in (
        JoinedError, NoPermissionError, OutOfMemoryError, TryAgainError, BusyError, SourceError, SlowCommandError,
        StorageError, WrongTypeError, TrimmedError, EvictedError, FunctionError, NoFunctionError,
    )
}  # fmt: skip
#: What redis-py has given a type of its own: it has taken the word off the text.
_THEIRS: tuple[tuple[type[Exception], type[HeadwaterError]], ...] = tuple(
    (there, here)
    for there, here in (
        (theirs.NoPermissionError, NoPermissionError),
        (_OutOfMemory, OutOfMemoryError),
        (_TryAgain, TryAgainError),
    )
    if there is not theirs.ResponseError
)
_CODED = re.compile(r"([A-Z][A-Z0-9]+) (.*)", re.DOTALL)


def typed(error: theirs.ResponseError) -> theirs.ResponseError:
    """An error of redis-py as one of those above, where it is an answer of the server."""
    if isinstance(error, HeadwaterError):
        return error
    for there, here in _THEIRS:
        if isinstance(error, there):
            return here(str(error))
    if type(error) is not theirs.ResponseError:
        return error
    text = str(error)
    coded = _CODED.fullmatch(text)
    if coded and coded[1] in _TYPES:
        return _TYPES[coded[1]](coded[2])
    if coded and coded[1] not in _WORDS:
        return HeadwaterError(coded[2], coded[1])
    if _MISTAKE.match(text):
        return JoinSyntaxError(text)
    return HeadwaterError(text)


#: How the server tells of a mistake in the text of a join.
_MISTAKE = re.compile(r"(?:join '.*?': )?column [0-9]")

#: Words of commands in capitals that errors begin with: no codes.
_WORDS = frozenset(
    "AT AUTH BACKLOG BACKOFF BLOCK BOUNDARY CLIENT CONFIG DEBUG DISCARD EVICT EXEC EXPORT FLOW HELLO KEEP KEY LIMIT MONITOR "
    "MULTI OPERATIONS OPTIN PREFIX SCRIPT TABLE VALUE WATCH WORKERS WRITE".split()
)
