"""Headwater's client: redis-py with cache joins, ranges and live queries.

    >>> from headwater import Headwater
    >>> client = Headwater(decode_responses=True)                               # doctest: +SKIP
    >>> client.join_add("timeline", "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>")  # doctest: +SKIP
    >>> for change in client.watch_prefix("t|ann|"):                            # doctest: +SKIP
    ...     print(change.key, change.value)

``headwater.asyncio`` has the same for asyncio, ``headwater.django`` and ``headwater.flask`` backends for caches of these.
"""

from .client import Headwater, Pipeline, Watch
from .errors import (
    BusyError,
    EvictedError,
    FunctionError,
    HeadwaterError,
    JoinedError,
    JoinSyntaxError,
    NoFunctionError,
    NoPermissionError,
    OutOfMemoryError,
    SlowCommandError,
    SourceError,
    StorageError,
    TrimmedError,
    TryAgainError,
    WatchEndedError,
    WrongTypeError,
)
from .keys import Pattern, prefix_end
from .ordered import (
    decode_number,
    decode_seconds,
    decode_text,
    decode_time,
    encode_number,
    encode_text,
    encode_time,
)
from .requests import Dead, Difference, JoinAdded, Throttled
from .watching import Change

__all__ = [
    "BusyError",
    "Change",
    "Dead",
    "Difference",
    "EvictedError",
    "FunctionError",
    "Headwater",
    "HeadwaterError",
    "JoinAdded",
    "JoinSyntaxError",
    "JoinedError",
    "NoFunctionError",
    "NoPermissionError",
    "OutOfMemoryError",
    "Pattern",
    "Pipeline",
    "SlowCommandError",
    "SourceError",
    "StorageError",
    "Throttled",
    "TrimmedError",
    "TryAgainError",
    "Watch",
    "WatchEndedError",
    "WrongTypeError",
    "decode_number",
    "decode_seconds",
    "decode_text",
    "decode_time",
    "encode_number",
    "encode_text",
    "encode_time",
    "prefix_end",
]
__version__ = "0.1.0"
