"""A cache backend for Django: its own for Redis, with cache joins.

    CACHES = {
        "default": {
            "BACKEND": "headwater.django.HeadwaterCache",
            "LOCATION": "redis://127.0.0.1:7379",
            "JOINS": {"unread": "unread|<user> = count inbox|<user>|<id> where json(.read) = false"},
            "OPTIONS": {"serializer": "headwater.django.JSONSerializer"},
        }
    }

Keys with a ``|`` are keys of tables: they are used as they are, without ``KEY_PREFIX`` and version, so that joins see them.
All other keys are as in Django's backend.
"""

from __future__ import annotations

import threading
from typing import Any, Callable, Mapping

from django.core.cache.backends.redis import RedisCache, RedisCacheClient  # type: ignore[import-untyped]

from .backends import Joins, JSONSerializer, PickleSerializer, install
from .client import Headwater

__all__ = ["HeadwaterCache", "JSONSerializer", "PickleSerializer"]


class HeadwaterCacheClient(RedisCacheClient):  # type: ignore[misc]
    """Django's client, on Headwater's."""

    def __init__(self, servers: Any, serializer: Any = None, **options: Any) -> None:
        super().__init__(servers, serializer or PickleSerializer, **options)
        self._client = Headwater


class HeadwaterCache(Joins, RedisCache):  # type: ignore[misc]
    """Django's cache on Headwater. ``JOINS`` are installed when the cache is first used."""

    def __init__(self, server: Any, params: Mapping[str, Any]) -> None:
        params = dict(params)
        self._joins = dict(params.pop("JOINS", {}))
        self._lock = threading.Lock()
        super().__init__(server, params)
        self._class = HeadwaterCacheClient
        theirs = self.key_func
        self.key_func: Callable[[str, str, int], str] = lambda key, prefix, version: key if "|" in str(key) else theirs(key, prefix, version)

    @property
    def _cache(self) -> Any:
        # Django asks each time: a property of the base class is cached under this name.
        with self._lock:
            if "_client_once" not in self.__dict__:
                self._client_once = self._class(self._servers, **self._options)
                joins, self._joins = self._joins, {}
                try:
                    install(self._client_once.get_client(write=True), joins)
                except BaseException:
                    self._joins = joins
                    del self._client_once
                    raise
        return self._client_once

    @property
    def headwater(self) -> Headwater[bytes]:
        """The client: all of Headwater's commands, without the cache's keys and serializer."""
        client: Headwater[bytes] = self._cache.get_client(write=True)
        return client

    def _loads(self, data: bytes) -> Any:
        return self._cache._serializer.loads(data)
