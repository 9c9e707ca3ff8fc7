"""What can be asked of the server: the words of each command, and what its answer means.

The synchronous and the asyncio client share these. Both versions of the protocol give the same results.
"""

from __future__ import annotations

from typing import Any, Callable, Generic, Iterable, Mapping, NamedTuple, Optional, Sequence, TypeVar, Union

__all__ = ["Dead", "Difference", "JoinAdded", "Request", "Throttled"]

#: A key or a value.
Bytes = Union[bytes, str]
Word = Union[bytes, str, int, float]
Given = TypeVar("Given")


class Request(Generic[Given]):
    """A command, and what makes its result of the server's answer."""

    __slots__ = ("parse", "words")

    def __init__(self, words: Sequence[Word], parse: Callable[[Any], Given]) -> None:
        self.words = words
        self.parse = parse


class JoinAdded(NamedTuple):
    """A join as the server understands it, and what it warns of."""

    spec: str
    warnings: list[str]


class Difference(NamedTuple):
    """A key whose value is another one than its recomputation: a fault of the server."""

    key: Any
    stored: Any
    recomputed: Any


class Dead(NamedTuple):
    """A task of a flow that has failed too often."""

    position: int
    #: All that ``FLOW.DEAD`` tells of it.
    fields: dict[str, Any]


class Throttled(NamedTuple):
    """Whether a use was refused, and what is left."""

    refused: bool
    limit: int
    remaining: int
    #: Seconds after which to try again; -1: no need, or no use.
    retry_after: int
    reset_after: int


# What answers are made into.


def same(answer: Any) -> Any:
    """The answer as it is."""
    return answer


def nothing(answer: Any) -> None:
    """No result: the answer says that it was done."""


def text(answer: Any) -> str:
    """Bytes or text as text."""
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)


def plain(answer: Any) -> Any:
    """An answer whose bytes are all texts."""
    if isinstance(answer, (bytes, str)):
        return text(answer)
    if isinstance(answer, list):
        return [plain(one) for one in answer]
    if isinstance(answer, dict):
        return {text(name): plain(value) for name, value in answer.items()}
    return answer


def pairs(answer: Any) -> dict[Any, Any]:
    """Keys and values: a map, or a flat array in RESP2."""
    if isinstance(answer, dict):
        return answer
    return dict(zip(answer[::2], answer[1::2]))


def fields(answer: Any) -> dict[str, Any]:
    """Fields with names, all of text."""
    return {text(name): plain(value) for name, value in pairs(answer).items()}


def rows(answer: Any) -> list[dict[str, Any]]:
    """A list of fields."""
    return [fields(one) for one in answer]


def added(answer: Any) -> JoinAdded:
    """What ``JOIN.ADD`` answers."""
    given = fields(answer)
    return JoinAdded(given["spec"], given["warnings"])


def warnings(answer: Any) -> list[str]:
    """Warnings, where the answer has any."""
    return [] if isinstance(answer, (bytes, str)) else list(fields(answer).get("warnings", []))


def texts(answer: Any) -> list[str]:
    """A list of texts."""
    return [text(one) for one in answer]


def lines(answer: Any) -> str:
    """Lines as one text."""
    return "\n".join(text(line) for line in answer)


def differences(answer: Any) -> list[Difference]:
    """What ``VERIFY`` has found."""
    found = []
    for one in answer:
        named = {text(name): value for name, value in pairs(one).items()}
        found.append(Difference(named.get("key"), named.get("stored"), named.get("recomputed")))
    return found


def _option(word: str, given: Optional[Word]) -> list[Word]:
    return [] if given is None else [word, given]


# Ranges.


def _read(
    words: list[Word], rev: bool, limit: Optional[int], at: Optional[Bytes], answer: str = ""
) -> list[Word]:
    if rev:
        words.append("REV")
    if limit is not None:
        words += ["LIMIT", limit]
    if at is not None:
        words += ["AT", at]
    if answer:
        words.append(answer)
    return words


_ANSWERS: dict[str, Callable[[Any], Any]] = {"": pairs, "KEYS": list, "VALUES": list, "COUNT": int}


def range_(
    first: Bytes, last: Bytes, rev: bool, limit: Optional[int], at: Optional[Bytes], answer: str = ""
) -> Request[Any]:
    """``RANGE``."""
    return Request(_read(["RANGE", first, last], rev, limit, at, answer), _ANSWERS[answer])


def prefix(
    prefix: Bytes, rev: bool, limit: Optional[int], at: Optional[Bytes], answer: str = ""
) -> Request[Any]:
    """``PREFIX``."""
    return Request(_read(["PREFIX", prefix], rev, limit, at, answer), _ANSWERS[answer])


# Joins and tables.


def join_add(name: str, spec: str, replace: bool) -> Request[JoinAdded]:
    """``JOIN.ADD``."""
    return Request(["JOIN.ADD", name, spec, *(["REPLACE"] if replace else [])], added)


def join_list() -> Request[dict[str, str]]:
    """``JOIN.LIST``."""
    return Request(["JOIN.LIST"], lambda answer: {one["name"]: one["spec"] for one in rows(answer)})


def join_key(name: str, values: Mapping[str, Word]) -> Request[Any]:
    """``JOIN.KEY``."""
    return Request(["JOIN.KEY", name, *(word for pair in values.items() for word in pair)], same)


def mapping(table: Optional[str], key: Sequence[str], value: Optional[str], where: Optional[str]) -> list[Word]:
    """Which rows of a source are which keys."""
    words: list[Word] = []
    if table is not None:
        words += ["TABLE", table]
    if key:
        words.append("KEY")
        words += f"({', '.join(key)})".split(" ")
    if value is not None:
        words.append("VALUE")
        words += value.split(" ")
    if where is not None:
        words += ["WHERE", where]
    return words


def table_set(
    name: str,
    boundary: Optional[int],
    evict: Optional[bool],
    keep: Optional[bool],
    source: Optional[str],
    mapping: list[Word],
    write: Optional[str],
) -> Request[list[str]]:
    """``TABLE.SET``."""
    words: list[Word] = ["TABLE.SET", name]
    if boundary is not None:
        words += ["BOUNDARY", boundary]
    for option, given in (("EVICT", evict), ("KEEP", keep)):
        if given is not None:
            words += [option, "YES" if given else "NO"]
    if source is not None:
        words += ["SOURCE", source]
    words += mapping
    if write is not None:
        words += ["WRITE", write.upper()]
    return Request(words, warnings)


# Flows.


def flow_add(
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
    backoff: Optional[tuple[int, int]] = None,
    backlog: Optional[int] = None,
    overflow: Optional[str] = None,
    backfill: bool = False,
) -> Request[list[str]]:
    """``FLOW.ADD``."""
    actions: list[list[Word]] = []
    if call is not None:
        actions.append(["CALL", call])
        if key is not None:
            actions[-1] += ["KEY", key]
        if writes is not None:
            actions[-1] += ["WRITES", writes if isinstance(writes, str) else " ".join(writes)]
    if fanout is not None:
        actions.append(["FANOUT", fanout])
    if copy is not None:
        actions.append(["COPY", copy])
    if publish is not None:
        actions.append(["PUBLISH", publish])
    if post is not None:
        actions.append(["HTTP", "POST", post, *_option("TIMEOUT", timeout_ms)])
    if len(actions) != 1:
        raise ValueError("a flow has one action: call, fanout, copy, publish or post")
    words: list[Word] = ["FLOW.ADD", name, "ON", on, *actions[0]]
    if operations is not None:
        words += ["OPERATIONS", operations if isinstance(operations, str) else "|".join(operations)]
    if workers is not None:
        words += ["WORKERS", workers]
    if max_attempts is not None:
        words += ["MAX-ATTEMPTS", max_attempts]
    if backoff is not None:
        words += ["BACKOFF", *backoff]
    if overflow is not None and backlog is None:
        backlog = 1_000_000
    if backlog is not None:
        words += ["BACKLOG", backlog, *([overflow.upper()] if overflow is not None else [])]
    if backfill:
        words.append("BACKFILL")
    return Request(words, warnings)


def flow_list() -> Request[dict[str, dict[str, Any]]]:
    """``FLOW.LIST``."""
    return Request(["FLOW.LIST"], lambda answer: {one["name"]: one for one in rows(answer)})


def flow_dead(name: str) -> Request[list[Dead]]:
    """``FLOW.DEAD``."""
    return Request(
        ["FLOW.DEAD", name], lambda answer: [Dead(int(one["position"]), one) for one in rows(answer)]
    )


# Functions.


def fn_load(
    name: str, module: Union[bytes, str], file: bool, export: Optional[str], replace: bool
) -> Request[None]:
    """``FN.LOAD``."""
    words: list[Word] = ["FN.LOAD", name, module]
    words += ["FILE"] if file else []
    words += ["EXPORT", export] if export is not None else []
    words += ["REPLACE"] if replace else []
    return Request(words, nothing)


def fn_call(
    function: str, key: Bytes, param: Word, update: bool, atomic: bool, noreply: bool
) -> Request[Any]:
    """``FN.CALL``."""
    options = [
        word for word, given in (("UPDATE", update), ("ATOMIC", atomic), ("NOREPLY", noreply)) if given
    ]
    return Request(["FN.CALL", function, key, *options, param], nothing if noreply else same)


def fn_range(
    function: str, first: Bytes, last: Bytes, param: Word, rev: bool, limit: Optional[int]
) -> Request[Any]:
    """``FN.RANGE``: a map of replies, or the one answer of a fold."""
    words = _read(["FN.RANGE", function, first, last], rev, limit, None)
    return Request([*words, param], lambda answer: pairs(answer) if isinstance(answer, list) else answer)


# The rest.


def stream_append(key: Bytes, data: Bytes, length: Optional[int]) -> Request[int]:
    """``STREAM.APPEND``."""
    return Request(["STREAM.APPEND", key, data, *_option("LEN", length)], int)


def stream_read(key: Bytes, offset: int, count: int, block_ms: Optional[int]) -> Request[Any]:
    """``STREAM.READ``."""
    return Request(
        ["STREAM.READ", key, offset, count, *_option("BLOCK", block_ms)], same
    )


def throttle(key: Bytes, burst: int, count: int, seconds: int, quantity: int) -> Request[Throttled]:
    """``CL.THROTTLE``."""
    return Request(
        ["CL.THROTTLE", key, burst, count, seconds, quantity],
        lambda answer: Throttled(bool(answer[0]), *answer[1:]),
    )


#: Commands whose answers the requests above understand.
COMMANDS = (
    "RANGE PREFIX RANGE.DEL JOIN.ADD JOIN.DROP JOIN.LIST JOIN.INFO JOIN.KEY JOIN.DECODE EXPLAIN EXPLAIN.RANGE VERIFY TABLE.SET "
    "TABLE.LIST TABLE.INFO SOURCE.ADD SOURCE.DROP SOURCE.LIST SOURCE.INFO SOURCE.POSITION STREAM.APPEND STREAM.READ STREAM.TRIM "
    "STREAM.LEN STREAM.INFO FN.LOAD FN.DROP FN.LIST FN.INFO FN.CALL FN.RANGE FLOW.ADD FLOW.DROP FLOW.LIST FLOW.INFO FLOW.PAUSE "
    "FLOW.RESUME FLOW.DEAD FLOW.RETRY FLOW.DISCARD FLOW.REPLAY CL.THROTTLE SHARD.POSITION"
).split()


def callback(answer: Any, parse: Callable[[Any], Any] = same, **_: Any) -> Any:
    """What redis-py is to do with the answer of one of :data:`COMMANDS`."""
    return parse(answer)
