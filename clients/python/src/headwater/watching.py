"""Following a range: what a watch does, without a connection.

:class:`Follower` says what is to be done next (connect, send, receive, read, rest), and is told what came of it. The synchronous and
the asyncio watch do these steps; everything that decides is here, once.

**How a copy is kept.** A watch keeps a copy of the range, and gives a change only where that changes the copy: nothing is given twice. To
read the range, it watches it, which gives a position, and reads it in pages over another connection, at whatever moments. Then it watches it a
second time, ``FROM`` that position: the server tells again all that has changed since then, right behind its answer, and the answer of
a ``PING`` comes behind that. The pages, with the last message of each key over them, are the range as it is at the last message's
position. Messages of the first watch do not count: when they pile up the server leaves some out.

**A lost connection** is made again, and the range watched ``FROM`` the position of the last message. Where the server cannot tell what was
missed it says so (``range-resync``), and the range is read anew; what differs from the copy is given.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Generator, Generic, NamedTuple, Optional, TypeVar, Union

from redis.exceptions import AuthenticationError, BusyLoadingError, ConnectionError, TimeoutError

from .errors import TryAgainError, WatchEndedError
from .requests import text

__all__ = ["Change"]

Item = TypeVar("Item")

#: What a connection may be lost with.
LOST = (ConnectionError, TimeoutError, BusyLoadingError, TryAgainError, OSError)


class Change(NamedTuple, Generic[Item]):
    """A change of a range: ``key`` has ``value`` now, or is gone where that is None."""

    key: Item
    value: Optional[Item]
    #: It was found by reading the range: at the beginning, or when single changes could not be told.
    is_read: bool
    #: The server's position that the change belongs to.
    position: str


class Connect(NamedTuple):
    """Make the connection anew."""


class Send(NamedTuple):
    """Send a command over the watch's connection."""

    words: tuple[Any, ...]


class Receive(NamedTuple):
    """Receive an answer or a message; None when the seconds are over."""

    seconds: float


class Read(NamedTuple):
    """Ask a command over another connection."""

    words: tuple[Any, ...]


class Rest(NamedTuple):
    """Do nothing for some seconds."""

    seconds: float


Step = Union[Connect, Send, Receive, Read, Rest]
Steps = Generator[Step, Any, None]


#: What a PING carries whose answer is waited for.
_BARRIER = b"headwater-watch"


def _is_barrier(message: Any) -> bool:
    # In RESP2 a connection that watches gets an array.
    return bool(message == _BARRIER or message == [b"pong", _BARRIER])


class Follower(Generic[Item]):
    """What one watch does, step by step."""

    def __init__(
        self,
        first: bytes,
        last: bytes,
        decode: Callable[[bytes], Item],
        *,
        snapshot: bool,
        page: int,
        heartbeat: float,
        rest_max: float,
        attempts_max: Optional[int],
    ) -> None:
        if page < 1 or heartbeat <= 0:
            raise ValueError("a page has at least one key, and a heartbeat takes more than no time")
        self.first, self.last = first, last
        self.decode = decode
        self.page, self.heartbeat, self.rest_max, self.attempts_max = page, heartbeat, rest_max, attempts_max
        #: The range as it is at ``position``, as far as changes have been given.
        self.copy: dict[bytes, bytes] = {}
        self.position: Optional[bytes] = None
        #: Changes that nobody has taken yet.
        self.given: Deque[Change[Item]] = deque()
        #: How often the connection was made, and the range read.
        self.connections = 0
        self.reads = 0
        self._gives_reads = snapshot
        self._id = 0
        #: The copy is not what it should be: the range has to be read.
        self._is_stale = True
        #: The range changed in untold ways while it was read.
        self._is_resynced = False
        #: The last message of each key since the position from which the range is read, and the position of the last one.
        self._collected: Optional[dict[bytes, Optional[bytes]]] = None
        self._told: Optional[bytes] = None

    def steps(self) -> Steps:
        """What is to be done, for ever."""
        failures = 0
        while True:
            try:
                yield Connect()
                self.connections += 1
                self._id, self._collected = 0, None
                if self._is_stale:
                    yield from self._read()
                else:
                    # The answer's position is no progress yet: what was missed comes behind it.
                    self._id, _ = yield from self._watch(self.position)
                failures = 0
                while True:
                    self._take((yield from self._next_message()))
                    if self._is_stale:
                        yield from self._read()
            except LOST as error:
                if isinstance(error, AuthenticationError):
                    raise
                failures += 1
                if self.attempts_max is not None and failures > self.attempts_max:
                    raise
                yield Rest(min(self.rest_max, 0.02 * 2 ** min(failures, 20)))

    def _next_message(self) -> Generator[Step, Any, Any]:
        """The next message; asks whether the server is there where it has not said anything for a while."""
        message = yield Receive(self.heartbeat)
        if message is None:
            yield Send(("PING",))
            message = yield Receive(self.heartbeat)
            if message is None:
                raise TimeoutError(f"the server has not answered within {self.heartbeat} s")
        return message

    def _watch(self, position: Optional[bytes]) -> Generator[Step, Any, tuple[int, bytes]]:
        """Begins a watch; messages that come before the answer are taken."""
        begin: tuple[Any, ...] = ("RANGE.WATCH", self.first, self.last)
        yield Send(begin if position is None else (*begin, "FROM", position))
        while True:
            answer = yield from self._next_message()
            if isinstance(answer, list) and len(answer) == 2 and isinstance(answer[0], int):
                return answer[0], answer[1]
            self._take(answer)

    def _read(self) -> Steps:
        """Makes the copy what the server has."""
        while self._is_stale:
            self.reads += 1
            begin, position = yield from self._watch_instead(None)
            # From here on no message counts, until the range is watched again from this position.
            self._id = 0
            found: dict[bytes, bytes] = {}
            first = self.first
            while True:
                page = yield Read(("RANGE", first, self.last, "LIMIT", self.page))
                found.update(page)
                if len(page) < self.page:
                    break
                first = max(page) + b"\0"
                # What is told meanwhile must not pile up.
                while (yield Receive(0)) is not None:
                    pass
            self._collected, self._is_resynced, self._told = {}, False, position
            self._id = begin
            yield from self._watch_instead(position)
            yield Send(("PING", _BARRIER))
            while not _is_barrier(message := (yield from self._next_message())):
                self._take(message)
            collected, self._collected = self._collected, None
            if self._is_resynced:
                continue
            self._is_stale, self.position = False, self._told
            for key, value in collected.items():
                if value is None:
                    found.pop(key, None)
                else:
                    found[key] = value
            for key in sorted(found.keys() | self.copy.keys()):
                self._change(key, found.get(key), is_read=True)
        self._gives_reads = True

    def _watch_instead(self, position: Optional[bytes]) -> Generator[Step, Any, tuple[int, bytes]]:
        """Begins a watch, and ends the one before, whose messages do not count any more."""
        old, self._id = self._id, 0
        begun = yield from self._watch(position)
        self._id = begun[0]
        if old:
            yield Send(("RANGE.UNWATCH", old))
        return begun

    def _take(self, message: Any) -> None:
        """A message of the watch. Anything else says that the server is there."""
        if not isinstance(message, list) or len(message) < 2 or message[1] != self._id:
            return
        kind = message[0]
        if kind == b"range-change" and len(message) >= 6:
            key, value = message[4], message[5] if message[3] == b"set" else None
            if self._collected is not None:
                self._collected[key] = value
                self._told = message[2]
            elif not self._is_stale:
                self.position = message[2]
                self._change(key, value, is_read=False)
        elif kind == b"range-resync":
            self._is_stale = self._is_resynced = True
        elif kind == b"range-end":
            raise WatchEndedError(text(message[2]) if len(message) > 2 else "the watch has ended")

    def _change(self, key: bytes, value: Optional[bytes], is_read: bool) -> None:
        if self.copy.get(key) == value:
            return
        if value is None:
            del self.copy[key]
        else:
            self.copy[key] = value
        if is_read and not self._gives_reads:
            return
        self.given.append(
            Change(
                self.decode(key),
                None if value is None else self.decode(value),
                is_read,
                text(self.position or b""),
            )
        )
