"""The synchronous client: redis-py's, with Headwater's commands and watches."""

from __future__ import annotations

import threading
import time
from typing import Any, Generic, Iterator, List, Literal, Mapping, Optional, Union, overload

import redis
from redis.client import NEVER_DECODE
from redis.exceptions import ResponseError

from . import requests
from .commands import Commands, Item
from .errors import typed
from .keys import prefix_end
from .requests import Bytes
from .watching import Change, Connect, Follower, Read, Receive, Rest, Send, Step

#: How long a step may wait before it is looked whether the watch was closed, in seconds.
_SLICE = 0.5


class Headwater(Commands[Item], redis.Redis):
    """A client of Headwater: all of ``redis.Redis``, whose arguments it takes, and Headwater's own commands.

    Keys and values are bytes, or texts with ``decode_responses=True``. ``Headwater.from_url("redis://…")`` works as well.
    """

    @overload
    def __init__(self: "Headwater[str]", *args: Any, decode_responses: Literal[True], **options: Any) -> None: ...

    @overload
    def __init__(self: "Headwater[bytes]", *args: Any, **options: Any) -> None: ...

    def __init__(self, *args: Any, **options: Any) -> None:
        if len(args) < 2 and "connection_pool" not in options:
            options.setdefault("port", 7379)
        super().__init__(*args, **options)
        for command in requests.COMMANDS:
            self.set_response_callback(command, requests.callback)

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """As redis-py's; errors of the server have types of their own (``headwater.errors``)."""
        try:
            return super().parse_response(connection, command_name, **options)
        except ResponseError as error:
            raise typed(error) from None

    def pipeline(self, transaction: bool = True, shard_hint: Optional[str] = None) -> "Pipeline[Item]":
        """As redis-py's, with Headwater's commands."""
        return Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)

    def watch_range(
        self,
        first: Bytes,
        last: Bytes,
        *,
        snapshot: bool = True,
        page: int = 1000,
        heartbeat: float = 30.0,
        rest_max: float = 5.0,
        attempts_max: Optional[int] = None,
    ) -> "Watch[Item]":
        """Watches the keys with ``first`` ≤ key < ``last``: an iterator of :class:`Change`, of base keys and of what joins give.

        What is there comes first, unless ``snapshot`` is off. A lost connection is made again, after rests up to ``rest_max`` seconds (as
        often as it takes, or ``attempts_max`` times in a row), and no change is missed or given twice. The watch keeps a copy of the range.
        """
        encoder = self.connection_pool.get_encoder()
        follower: Follower[Item] = Follower(
            encoder.encode(first), encoder.encode(last), encoder.decode, snapshot=snapshot, page=page, heartbeat=heartbeat,
            rest_max=rest_max, attempts_max=attempts_max,
        )  # fmt: skip
        return Watch(self, follower)

    def watch_prefix(self, prefix: Bytes, **options: Any) -> "Watch[Item]":
        """As :meth:`watch_range`, for the keys that start with ``prefix``."""
        return self.watch_range(prefix, prefix_end(prefix), **options)


class Pipeline(Commands[Item], redis.client.Pipeline):
    """A pipeline, or a transaction, with Headwater's commands."""

    def annotate_exception(self, exception: Exception, number: int, command: Any) -> None:
        """Leaves the server's text as it is."""

    def execute(self, raise_on_error: bool = True) -> List[Any]:
        """As redis-py's; errors of the server have types of their own (``headwater.errors``)."""
        try:
            answers: List[Any] = super().execute(raise_on_error)
        except ResponseError as error:
            raise typed(error) from None
        return [typed(one) if isinstance(one, ResponseError) else one for one in answers]

    def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """As redis-py's, with typed errors."""
        try:
            return super().parse_response(connection, command_name, **options)
        except ResponseError as error:
            raise typed(error) from None


class Watch(Generic[Item]):
    """The changes of a range, one after the other. Iterate over it, or call :meth:`get`; :meth:`close` it, or use ``with``.

    One thread takes the changes; any may close it.
    """

    def __init__(self, client: Headwater[Item], follower: Follower[Item]) -> None:
        self._client, self._follower = client, follower
        self._steps = follower.steps()
        self._step: Optional[Step] = None
        #: When the step is over that waits, once it has begun.
        self._until: Optional[float] = None
        self._connection: Any = None
        self._closed = threading.Event()

    def get(self, timeout: Optional[float] = None) -> Optional[Change[Item]]:
        """The next change; None when ``timeout`` seconds are over, or the watch is closed."""
        end = None if timeout is None else time.monotonic() + timeout
        given = self._follower.given
        while not given:
            if self._closed.is_set() or not self._perform(end):
                return None
        return given.popleft()

    @property
    def pairs(self) -> Mapping[Item, Item]:
        """A copy of the range in order, with the changes that were received until now."""
        decode = self._follower.decode
        return {decode(key): decode(value) for key, value in sorted(self._follower.copy.items())}

    @property
    def position(self) -> str:
        """The server's position up to which changes were received."""
        return (self._follower.position or b"").decode()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        if self._connection is not None:
            self._connection.disconnect()

    def __iter__(self) -> Iterator[Change[Item]]:
        return self

    def __next__(self) -> Change[Item]:
        change = self.get()
        if change is None:
            raise StopIteration
        return change

    def __enter__(self) -> "Watch[Item]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _perform(self, end: Optional[float]) -> bool:
        """Does a step; ``False`` where the time is over before it is done."""
        try:
            if self._step is None:
                self._step = next(self._steps)
            result = self._do(self._step, end)
        except _Unfinished:
            return False
        except Exception as error:
            self._until = None
            if self._closed.is_set():
                return False
            self._step = self._steps.throw(typed(error) if isinstance(error, ResponseError) else error)
            return True
        self._step = self._steps.send(result)
        return True

    def _do(self, step: Step, end: Optional[float]) -> Any:
        if isinstance(step, Connect):
            if self._connection is not None:
                self._connection.disconnect()
            pool = self._client.connection_pool
            options = {**pool.connection_kwargs, "socket_timeout": self._follower.heartbeat, "decode_responses": False}
            self._connection = pool.connection_class(**options)
            self._connection.connect()
        elif isinstance(step, Send):
            self._connection.send_command(*step.words, check_health=False)
        elif isinstance(step, Receive):
            return self._wait(step.seconds, end, self._receive)
        elif isinstance(step, Read):
            read: dict[str, Any] = {"parse": requests.pairs, NEVER_DECODE: []}
            return self._client.execute_command(*step.words, **read)
        elif isinstance(step, Rest):
            self._wait(step.seconds, end, lambda seconds: time.sleep(min(seconds, 0.1)))
        return None

    def _receive(self, seconds: float) -> Any:
        """An answer or a message, if one comes within the time."""
        if not self._connection.can_read(timeout=seconds):
            return None
        options = {"push_request": True} if self._connection.protocol in (3, "3") else {}
        return self._connection.read_response(disable_decoding=True, **options)

    def _wait(self, seconds: float, end: Optional[float], attempt: Any) -> Any:
        """Tries until there is a result, or the seconds are over: then the step is done, with nothing."""
        if self._until is None:
            self._until = time.monotonic() + seconds
        until = self._until
        while True:
            now = time.monotonic()
            result = attempt(max(0.0, min(until - now, _SLICE, *([end - now] if end is not None else []))))
            now = time.monotonic()
            if result is not None or now >= until:
                self._until = None
                return result
            if self._closed.is_set() or (end is not None and now >= end):
                raise _Unfinished


class _Unfinished(Exception):
    """A step is not done yet, and goes on with the next call."""
