"""The asyncio client: redis-py's, with Headwater's commands and watches."""

from __future__ import annotations

import asyncio
from typing import Any, AsyncIterator, Generic, List, Literal, Mapping, Optional, overload

import redis.asyncio
from redis.client import NEVER_DECODE
from redis.exceptions import ResponseError

from . import requests
from .async_commands import AsyncCommands, Item
from .errors import typed
from .keys import prefix_end
from .requests import Bytes
from .watching import Change, Connect, Follower, Read, Receive, Rest, Send, Step

__all__ = ["Headwater", "Pipeline", "Watch"]


class Headwater(AsyncCommands[Item], redis.asyncio.Redis):  # type: ignore[misc]
    """As :class:`headwater.Headwater`, for asyncio: all of ``redis.asyncio.Redis``, and Headwater's own commands."""

    @overload
    def __init__(self: "Headwater[str]", *args: Any, decode_responses: Literal[True], **options: Any) -> None: ...

    @overload
    def __init__(self: "Headwater[bytes]", *args: Any, **options: Any) -> None: ...

    def __init__(self, *args: Any, **options: Any) -> None:
        if len(args) < 2 and "connection_pool" not in options:
            options.setdefault("port", 7379)
        super().__init__(*args, **options)
        for command in requests.COMMANDS:
            self.set_response_callback(command, requests.callback)  # type: ignore[arg-type]

    async def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """As redis-py's; errors of the server have types of their own (``headwater.errors``)."""
        try:
            return await super().parse_response(connection, command_name, **options)
        except ResponseError as error:
            raise typed(error) from None

    def pipeline(self, transaction: bool = True, shard_hint: Optional[str] = None) -> "Pipeline[Item]":
        """As redis-py's, with Headwater's commands: ``execute()`` is to be awaited, they are not."""
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
        """As :meth:`headwater.Headwater.watch_range`: an asynchronous iterator."""
        encoder = self.connection_pool.get_encoder()
        follower: Follower[Item] = Follower(
            encoder.encode(first), encoder.encode(last), encoder.decode, snapshot=snapshot, page=page, heartbeat=heartbeat,
            rest_max=rest_max, attempts_max=attempts_max,
        )  # fmt: skip
        return Watch(self, follower)

    def watch_prefix(self, prefix: Bytes, **options: Any) -> "Watch[Item]":
        """As :meth:`watch_range`, for the keys that start with ``prefix``."""
        return self.watch_range(prefix, prefix_end(prefix), **options)


class Pipeline(AsyncCommands[Item], redis.asyncio.client.Pipeline):  # type: ignore[misc]
    """A pipeline, or a transaction, with Headwater's commands."""

    def annotate_exception(self, exception: Exception, number: int, command: Any) -> None:
        """Leaves the server's text as it is."""

    async def execute(self, raise_on_error: bool = True) -> List[Any]:
        """As redis-py's; errors of the server have types of their own (``headwater.errors``)."""
        try:
            answers: List[Any] = await super().execute(raise_on_error)
        except ResponseError as error:
            raise typed(error) from None
        return [typed(one) if isinstance(one, ResponseError) else one for one in answers]

    async def parse_response(self, connection: Any, command_name: Any, **options: Any) -> Any:
        """As redis-py's, with typed errors."""
        try:
            return await super().parse_response(connection, command_name, **options)
        except ResponseError as error:
            raise typed(error) from None


class Watch(Generic[Item]):
    """The changes of a range, for one task: ``async for``, or await :meth:`get`; :meth:`aclose` it, or use ``async with``."""

    def __init__(self, client: Headwater[Item], follower: Follower[Item]) -> None:
        self._client, self._follower = client, follower
        self._steps = follower.steps()
        self._step: Optional[Step] = None
        self._connection: Any = None
        #: The step that is under way; it goes on where a time is over, or a task is cancelled.
        self._doing: Optional["asyncio.Task[Any]"] = None
        self._closed = False

    async def get(self, timeout: Optional[float] = None) -> Optional[Change[Item]]:
        """The next change; None when ``timeout`` seconds are over, or the watch is closed."""
        loop = asyncio.get_running_loop()
        end = None if timeout is None else loop.time() + timeout
        given = self._follower.given
        while not given:
            if self._closed:
                return None
            if self._step is None:
                self._step = next(self._steps)
            if self._doing is None:
                self._doing = asyncio.ensure_future(self._do(self._step))
            rest = None if end is None else max(0.0, end - loop.time())
            await asyncio.wait((self._doing,), timeout=rest)
            if self._closed or not self._doing.done():
                return None
            done, self._doing = self._doing, None
            error = done.exception()
            if error is None:
                self._step = self._steps.send(done.result())
            else:
                self._step = self._steps.throw(typed(error) if isinstance(error, ResponseError) else error)
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

    async def aclose(self) -> None:
        """Ends the watch."""
        self._closed = True
        if self._doing is not None:
            self._doing.cancel()
            await asyncio.wait((self._doing,))
        if self._connection is not None:
            await self._connection.disconnect(nowait=True)

    def __aiter__(self) -> AsyncIterator[Change[Item]]:
        return self

    async def __anext__(self) -> Change[Item]:
        change = await self.get()
        if change is None:
            raise StopAsyncIteration
        return change

    async def __aenter__(self) -> "Watch[Item]":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _do(self, step: Step) -> Any:
        if isinstance(step, Connect):
            if self._connection is not None:
                await self._connection.disconnect(nowait=True)
            pool = self._client.connection_pool
            options = {**pool.connection_kwargs, "socket_timeout": self._follower.heartbeat, "decode_responses": False}
            self._connection = pool.connection_class(**options)
            await self._connection.connect()
        elif isinstance(step, Send):
            await self._connection.send_command(*step.words, check_health=False)
        elif isinstance(step, Receive):
            # Python's loop looks at the socket only if it may run: even no time is a little.
            kind = {"push_request": True} if self._connection.protocol in (3, "3") else {}
            return await self._connection.read_response(
                disable_decoding=True, timeout=max(step.seconds, 0.001), disconnect_on_error=False, **kind
            )
        elif isinstance(step, Read):
            read: dict[str, Any] = {"parse": requests.pairs, NEVER_DECODE: []}
            return await self._client.execute_command(*step.words, **read)
        elif isinstance(step, Rest):
            await asyncio.sleep(step.seconds)
        return None
