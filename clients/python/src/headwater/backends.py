"""What the backends of Django and Flask-Caching share: joins that they install, and reads of what joins give."""

from __future__ import annotations

import json
import pickle
from typing import Any, Iterator, Mapping, Optional

from .client import Headwater
from .keys import prefix_end
from .watching import Change

__all__ = ["JSONSerializer", "PickleSerializer"]


class PickleSerializer:
    """Values as Django's own backend for Redis writes them: integers in digits, anything else pickled.

    What a join computes (a sum, an average) is neither: it is read as a text.
    """

    def dumps(self, value: Any) -> Any:
        """A value as bytes, or an integer."""
        return value if type(value) is int else pickle.dumps(value, pickle.HIGHEST_PROTOCOL)

    def loads(self, data: Optional[bytes]) -> Any:
        """The value that bytes stand for."""
        if data is None:
            return None
        try:
            return int(data)
        except ValueError:
            # Every pickle since protocol 2 begins with this byte, which no text does.
            return pickle.loads(data) if data[:1] == b"\x80" else data.decode("utf-8", "replace")


class JSONSerializer:
    """Values as JSON, so that joins can look into them (``as json(.city) <city>``, ``where json(.read) = false``)."""

    def dumps(self, value: Any) -> Any:
        """A value as JSON."""
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()

    def loads(self, data: Optional[bytes]) -> Any:
        """The value that JSON stands for; the text itself, where it is none."""
        if data is None:
            return None
        try:
            return json.loads(data)
        except ValueError:
            return data.decode("utf-8", "replace")


class Joins:
    """Reads of what joins give, with the cache's serializer. A cache provides the two first members."""

    @property
    def headwater(self) -> Headwater[bytes]:
        """The client: all of Headwater's commands, without the cache's keys and serializer."""
        raise NotImplementedError

    def _loads(self, data: bytes) -> Any:
        raise NotImplementedError

    def join_add(self, name: str, spec: str) -> None:
        """Installs a join, or puts it in the place of one of the name. One that is there already is left alone."""
        install(self.headwater, {name: spec})

    def prefix(self, prefix: str, *, rev: bool = False, limit: Optional[int] = None) -> dict[str, Any]:
        """The values of all keys of tables that start with ``prefix``, in order."""
        return self.range(prefix, prefix_end(prefix).decode(), rev=rev, limit=limit)

    def range(self, first: str, last: str, *, rev: bool = False, limit: Optional[int] = None) -> dict[str, Any]:
        """The values of the keys of tables with ``first`` ≤ key < ``last``, in order."""
        found = self.headwater.range(first, last, rev=rev, limit=limit)
        return {key.decode(): self._loads(value) for key, value in found.items()}

    def prefix_count(self, prefix: str) -> int:
        """How many keys of tables start with ``prefix``."""
        return self.headwater.prefix_count(prefix)

    def watch_prefix(self, prefix: str, **options: Any) -> Iterator[Change[Any]]:
        """Changes of the keys of tables that start with ``prefix``, as ``Headwater.watch_prefix`` gives them."""
        with self.headwater.watch_prefix(prefix, **options) as watch:
            for change in watch:
                value = None if change.value is None else self._loads(change.value)
                yield change._replace(key=change.key.decode(), value=value)  # type: ignore[arg-type]


def install(client: Headwater[bytes], joins: Mapping[str, str]) -> None:
    """Installs joins that are not there with the same text, those of the same names in their places."""
    there = client.join_list() if joins else {}
    for name, spec in joins.items():
        if there.get(name) != " ".join(spec.split()):
            client.join_add(name, spec, replace=True)
