"""Headwater's commands as methods of the asyncio client: those of ``commands.py``, to be awaited.

A test compares both.
"""

from __future__ import annotations

from typing import Any, AsyncIterator, Awaitable, Dict, Generic, Iterable, List, Mapping, Optional, Sequence, TypeVar, Union

from . import requests
from .commands import Pages
from .keys import prefix_end
from .requests import Bytes, Dead, Difference, Given, JoinAdded, Request, Throttled, Word

Item = TypeVar("Item")


class AsyncCommands(Generic[Item]):
    """Headwater's commands, each to be awaited. In a pipeline they give the pipeline, and ``execute()`` their results."""

    def _do(self, request: Request[Given]) -> Awaitable[Given]:
        result: Awaitable[Given] = self.execute_command(*request.words, parse=request.parse)  # type: ignore[attr-defined]
        return result

    # Ranges.

    def range(
        self, first: Bytes, last: Bytes, *, rev: bool = False, limit: Optional[int] = None, at: Optional[Bytes] = None
    ) -> Awaitable[Dict[Item, Item]]:
        """The pairs with ``first`` ≤ key < ``last``, in order; an empty ``last`` means to the end.

        ``at``: the answer shows at least what this position says (``shard_position``, ``source_position``).
        """
        return self._do(requests.range_(first, last, rev, limit, at))

    def range_keys(
        self, first: Bytes, last: Bytes, *, rev: bool = False, limit: Optional[int] = None, at: Optional[Bytes] = None
    ) -> Awaitable[List[Item]]:
        """The keys of a range."""
        return self._do(requests.range_(first, last, rev, limit, at, "KEYS"))

    def range_values(
        self, first: Bytes, last: Bytes, *, rev: bool = False, limit: Optional[int] = None, at: Optional[Bytes] = None
    ) -> Awaitable[List[Item]]:
        """The values of a range."""
        return self._do(requests.range_(first, last, rev, limit, at, "VALUES"))

    def range_count(self, first: Bytes, last: Bytes, *, at: Optional[Bytes] = None) -> Awaitable[int]:
        """How many pairs a range has."""
        return self._do(requests.range_(first, last, False, None, at, "COUNT"))

    def range_delete(self, first: Bytes, last: Bytes) -> Awaitable[int]:
        """Removes the base keys of a range; how many they were."""
        return self._do(Request(["RANGE.DEL", first, last], int))

    def prefix(
        self, prefix: Bytes, *, rev: bool = False, limit: Optional[int] = None, at: Optional[Bytes] = None
    ) -> Awaitable[Dict[Item, Item]]:
        """The pairs whose keys start with ``prefix``, in order."""
        return self._do(requests.prefix(prefix, rev, limit, at))

    def prefix_keys(
        self, prefix: Bytes, *, rev: bool = False, limit: Optional[int] = None, at: Optional[Bytes] = None
    ) -> Awaitable[List[Item]]:
        """The keys that start with ``prefix``."""
        return self._do(requests.prefix(prefix, rev, limit, at, "KEYS"))

    def prefix_values(
        self, prefix: Bytes, *, rev: bool = False, limit: Optional[int] = None, at: Optional[Bytes] = None
    ) -> Awaitable[List[Item]]:
        """The values of the keys that start with ``prefix``."""
        return self._do(requests.prefix(prefix, rev, limit, at, "VALUES"))

    def prefix_count(self, prefix: Bytes, *, at: Optional[Bytes] = None) -> Awaitable[int]:
        """How many keys start with ``prefix``."""
        return self._do(requests.prefix(prefix, False, None, at, "COUNT"))

    async def range_iter(
        self, first: Bytes, last: Bytes, *, rev: bool = False, limit: Optional[int] = None, page: int = 1000
    ) -> "AsyncIterator[tuple[Item, Item]]":
        """The pairs of a range, asked for page by page: each page shows the moment at which it is asked for."""
        pages = Pages(first, last, rev, limit, page)
        while pages.size:
            found: Dict[Item, Item] = await self.range(pages.first, pages.last, rev=rev, limit=pages.size)
            pages.advance(list(found))
            for pair in found.items():
                yield pair

    def prefix_iter(
        self, prefix: Bytes, *, rev: bool = False, limit: Optional[int] = None, page: int = 1000
    ) -> "AsyncIterator[tuple[Item, Item]]":
        """As :meth:`range_iter`, for the keys that start with ``prefix``."""
        return self.range_iter(prefix, prefix_end(prefix), rev=rev, limit=limit, page=page)

    # Joins.

    def join_add(self, name: str, spec: str, *, replace: bool = False) -> Awaitable[JoinAdded]:
        """Installs a cache join; with ``replace``, in the place of one of the same name."""
        return self._do(requests.join_add(name, spec, replace))

    def join_drop(self, name: str) -> Awaitable[None]:
        """Drops a join, and what it materialized."""
        return self._do(Request(["JOIN.DROP", name], requests.nothing))

    def join_list(self) -> Awaitable[Dict[str, str]]:
        """The text of each join, by name, in the order of installation."""
        return self._do(requests.join_list())

    def join_info(self, name: str) -> Awaitable[Dict[str, Any]]:
        """A join with its counters."""
        return self._do(Request(["JOIN.INFO", name], requests.fields))

    def join_key(self, name: str, values: Mapping[str, Word]) -> Awaitable[Item]:
        """What the join's output keys begin with that have these values of its slots, as the server says."""
        return self._do(requests.join_key(name, values))

    def join_decode(self, key: Bytes) -> Awaitable[Optional[List[Item]]]:
        """The table and the components of an output key, with the values that they stand for; None for other keys."""
        return self._do(Request(["JOIN.DECODE", key], requests.same))

    def explain(self, key: Bytes) -> Awaitable[str]:
        """Why a key has its value: joins, sources, freshness."""
        return self._do(Request(["EXPLAIN", key], requests.lines))

    def explain_range(self, first: Bytes, last: Bytes) -> Awaitable[str]:
        """As :meth:`explain`, for a range."""
        return self._do(Request(["EXPLAIN.RANGE", first, last], requests.lines))

    def verify(self, first: Bytes, last: Bytes) -> Awaitable[List[Difference]]:
        """Recomputes a range and compares: the differences, of which there should be none."""
        return self._do(Request(["VERIFY", first, last], requests.differences))

    # Tables and sources.

    def table_set(
        self,
        name: str,
        *,
        boundary: Optional[int] = None,
        evict: Optional[bool] = None,
        keep: Optional[bool] = None,
        source: Optional[str] = None,
        table: Optional[str] = None,
        key: Sequence[str] = (),
        value: Optional[str] = None,
        where: Optional[str] = None,
        write: Optional[str] = None,
    ) -> Awaitable[List[str]]:
        """Says what holds for a table; the warnings. ``value``: a column, ``JSON (one, another)`` or ``EMPTY``; ``where``: a condition."""
        mapping = requests.mapping(table, key, value, where)
        return self._do(requests.table_set(name, boundary, evict, keep, source, mapping, write))

    def table_list(self) -> Awaitable[List[Dict[str, Any]]]:
        """The tables, with their boundaries and numbers of keys."""
        return self._do(Request(["TABLE.LIST"], requests.rows))

    def table_info(self, name: str) -> Awaitable[Dict[str, Any]]:
        """A table with its sizes."""
        return self._do(Request(["TABLE.INFO", name], requests.fields))

    def source_add(self, name: str, kind: str, url: str) -> Awaitable[None]:
        """Adds a source of base data, such as ``postgres``."""
        return self._do(Request(["SOURCE.ADD", name, kind, url], requests.nothing))

    def source_drop(self, name: str) -> Awaitable[None]:
        """Drops a source that no table has."""
        return self._do(Request(["SOURCE.DROP", name], requests.nothing))

    def source_list(self) -> Awaitable[List[Dict[str, Any]]]:
        """The sources, with their states."""
        return self._do(Request(["SOURCE.LIST"], requests.rows))

    def source_info(self, name: str) -> Awaitable[Dict[str, Any]]:
        """How a source does."""
        return self._do(Request(["SOURCE.INFO", name], requests.fields))

    def source_check(
        self,
        name: str,
        *,
        table: Optional[str] = None,
        key: Sequence[str] = (),
        value: Optional[str] = None,
        where: Optional[str] = None,
    ) -> Awaitable[List[str]]:
        """What ``table_set`` with these words would need at a source, each with the SQL that mends it; nothing is changed."""
        return self._do(Request(["SOURCE.CHECK", name, *requests.mapping(table, key, value, where)], requests.texts))

    def source_position(self, name: str) -> Awaitable[str]:
        """A position for ``at=``: all that was committed at the source before is at or below it."""
        return self._do(Request(["SOURCE.POSITION", name], requests.text))

    def shard_position(self) -> Awaitable[str]:
        """A position for ``at=``: what this connection has written. With a pool of several it is that of any of them."""
        return self._do(Request(["SHARD.POSITION"], requests.text))

    # Streams.

    def stream_append(self, key: Bytes, data: Bytes, *, length: Optional[int] = None) -> Awaitable[int]:
        """Puts bytes behind a stream; its new end. ``length``: how many more will probably follow."""
        return self._do(requests.stream_append(key, data, length))

    def stream_read(self, key: Bytes, offset: int, count: int, *, block_ms: Optional[int] = None) -> Awaitable[Optional[Item]]:
        """Up to ``count`` bytes from ``offset`` on. At the end nothing, or with ``block_ms`` what comes within that time."""
        return self._do(requests.stream_read(key, offset, count, block_ms))

    def stream_trim(self, key: Bytes, offset: int) -> Awaitable[int]:
        """Lets go of what lies before ``offset``; the stream's start."""
        return self._do(Request(["STREAM.TRIM", key, offset], int))

    def stream_len(self, key: Bytes) -> Awaitable[int]:
        """The end of a stream: the offset behind its last byte."""
        return self._do(Request(["STREAM.LEN", key], int))

    def stream_info(self, key: Bytes) -> Awaitable[Dict[str, Any]]:
        """Offsets and sizes of a stream."""
        return self._do(Request(["STREAM.INFO", key], requests.fields))

    # Functions.

    def fn_load(
        self,
        name: str,
        module: Union[bytes, str],
        *,
        file: bool = False,
        export: Optional[str] = None,
        replace: bool = False,
    ) -> Awaitable[None]:
        """Loads a WebAssembly module: its bytes, or with ``file`` the name of a file below the server's ``--functions``."""
        return self._do(requests.fn_load(name, module, file, export, replace))

    def fn_drop(self, name: str) -> Awaitable[None]:
        """Drops a module."""
        return self._do(Request(["FN.DROP", name], requests.nothing))

    def fn_list(self) -> Awaitable[List[Any]]:
        """The modules that are loaded."""
        return self._do(Request(["FN.LIST"], requests.plain))

    def fn_info(self, name: str) -> Awaitable[Dict[str, Any]]:
        """A module with its counters."""
        return self._do(Request(["FN.INFO", name], requests.fields))

    def fn_call(
        self,
        function: str,
        key: Bytes,
        param: Word = b"",
        *,
        update: bool = False,
        atomic: bool = False,
        noreply: bool = False,
    ) -> Awaitable[Any]:
        """Calls a function next to a key's value; what it replied."""
        return self._do(requests.fn_call(function, key, param, update, atomic, noreply))

    def fn_range(
        self,
        function: str,
        first: Bytes,
        last: Bytes,
        param: Word = b"",
        *,
        rev: bool = False,
        limit: Optional[int] = None,
    ) -> Awaitable[Any]:
        """Calls a function for each pair of a range: its replies by key, or the one answer of a fold."""
        return self._do(requests.fn_range(function, first, last, param, rev, limit))

    # Flows.

    def flow_add(
        self,
        name: str,
        on: str,
        *,
        call: Optional[str] = None,
        key: Optional[str] = None,
        writes: Union[str, Iterable[str], None] = None,
        fanout: Optional[str] = None,
        copy: Optional[str] = None,
        publish: Optional[Bytes] = None,
        post: Optional[str] = None,
        timeout_ms: Optional[int] = None,
        operations: Union[str, Iterable[str], None] = None,
        workers: Optional[int] = None,
        max_attempts: Optional[int] = None,
        backoff: "Optional[tuple[int, int]]" = None,
        backlog: Optional[int] = None,
        overflow: Optional[str] = None,
        backfill: bool = False,
    ) -> Awaitable[List[str]]:
        """Adds what is to be done after each write of a key that matches ``on``; the warnings.

        One of ``call`` (a function; ``key`` and ``writes`` go with it), ``fanout`` or ``copy`` (the text of a join), ``publish`` (a
        channel) and ``post`` (a URL) says what. ``overflow`` is ``REJECT``, ``BLOCK`` or ``DROP-OLDEST``.
        """
        return self._do(
            requests.flow_add(
                name, on, call=call, key=key, writes=writes, fanout=fanout, copy=copy, publish=publish, post=post,
                timeout_ms=timeout_ms, operations=operations, workers=workers, max_attempts=max_attempts, backoff=backoff,
                backlog=backlog, overflow=overflow, backfill=backfill,
            )
        )  # fmt: skip

    def flow_drop(self, name: str) -> Awaitable[None]:
        """Drops a flow with its tasks."""
        return self._do(Request(["FLOW.DROP", name], requests.nothing))

    def flow_list(self) -> Awaitable[Dict[str, Dict[str, Any]]]:
        """The flows, by name: their texts and backlogs."""
        return self._do(requests.flow_list())

    def flow_info(self, name: str) -> Awaitable[Dict[str, Any]]:
        """A flow's counts."""
        return self._do(Request(["FLOW.INFO", name], requests.fields))

    def flow_pause(self, name: str) -> Awaitable[None]:
        """Has a flow start no more tasks."""
        return self._do(Request(["FLOW.PAUSE", name], requests.nothing))

    def flow_resume(self, name: str) -> Awaitable[None]:
        """Ends a pause."""
        return self._do(Request(["FLOW.RESUME", name], requests.nothing))

    def flow_dead(self, name: str) -> Awaitable[List[Dead]]:
        """The tasks of a flow that failed too often."""
        return self._do(requests.flow_dead(name))

    def flow_retry(self, name: str, position: Union[int, str] = "ALL", *, force: bool = False) -> Awaitable[Any]:
        """Has dead tasks tried again; with ``force`` also those that a newer write has overtaken."""
        words = ["FLOW.RETRY", name, position, *(["FORCE"] if force else [])]
        return self._do(Request(words, requests.plain))

    def flow_discard(self, name: str, position: Union[int, str] = "ALL") -> Awaitable[Any]:
        """Forgets dead tasks."""
        return self._do(Request(["FLOW.DISCARD", name, position], requests.plain))

    def flow_replay(self, name: str, position: int) -> Awaitable[Any]:
        """Runs the writes from a position on again."""
        return self._do(Request(["FLOW.REPLAY", name, position], requests.plain))

    def throttle(self, key: Bytes, burst: int, count: int, seconds: int, quantity: int = 1) -> Awaitable[Throttled]:
        """Counts a use against a limit of ``count`` in ``seconds``, with ``burst`` more at once than one."""
        return self._do(requests.throttle(key, burst, count, seconds, quantity))
