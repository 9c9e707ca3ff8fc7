"""A backend for Flask-Caching: its own for Redis, with cache joins.

    cache = Cache(app, config={
        "CACHE_TYPE": "headwater.flask.HeadwaterCache",
        "CACHE_REDIS_URL": "redis://127.0.0.1:7379",
        "CACHE_JOINS": {"karma": "karma|<author> = count vote|<author>|<id>|<voter>"},
    })
    cache.cache.prefix("karma|")

Keys with a ``|`` are keys of tables: they are used as they are, without ``CACHE_KEY_PREFIX``, so that joins see them.
"""

from __future__ import annotations

from typing import Any, Mapping

from cachelib.serializers import BaseSerializer
from flask_caching.backends.rediscache import RedisCache

from . import backends
from .backends import Joins, install
from .client import Headwater
from .keys import prefix_end

__all__ = ["HeadwaterCache", "JSONSerializer", "PickleSerializer"]


class PickleSerializer(backends.PickleSerializer, BaseSerializer):  # type: ignore[misc]
    """As :class:`headwater.backends.PickleSerializer`."""


class JSONSerializer(backends.JSONSerializer, BaseSerializer):  # type: ignore[misc]
    """As :class:`headwater.backends.JSONSerializer`: ``CACHE_SERIALIZER`` may be this."""


class HeadwaterCache(Joins, RedisCache):  # type: ignore[misc]
    """Flask-Caching's cache on Headwater. ``CACHE_JOINS`` are installed when the cache is made."""

    serializer: Any = PickleSerializer()

    def __init__(self, *args: Any, joins: Mapping[str, str] | None = None, **options: Any) -> None:
        prefix = options.pop("key_prefix", None) or ""
        super().__init__(*args, **options)
        self._own_prefix = prefix
        install(self.headwater, joins or {})

    def _key(self, key: Any) -> str:
        return str(key) if "|" in str(key) else f"{self._own_prefix}{key}"

    def get(self, key: str) -> Any:
        """The value of a key."""
        return super().get(self._key(key))

    def get_many(self, *keys: str) -> list[Any]:
        """The values of keys."""
        found: list[Any] = super().get_many(*map(self._key, keys))
        return found

    def set(self, key: str, value: Any, timeout: Any = None) -> Any:
        """Gives a key a value."""
        return super().set(self._key(key), value, timeout)

    def add(self, key: str, value: Any, timeout: Any = None) -> Any:
        """Gives a key a value, if it has none."""
        return super().add(self._key(key), value, timeout)

    def set_many(self, mapping: Mapping[str, Any], timeout: Any = None) -> Any:
        """Gives keys values."""
        return super().set_many({self._key(key): value for key, value in mapping.items()}, timeout)

    def delete(self, key: str) -> bool:
        """Removes a key."""
        return bool(super().delete(self._key(key)))

    def delete_many(self, *keys: str) -> Any:
        """Removes keys."""
        return super().delete_many(*map(self._key, keys))

    def unlink(self, *keys: str) -> Any:
        """Removes keys."""
        return super().unlink(*map(self._key, keys))

    def has(self, key: str) -> bool:
        """Whether a key has a value."""
        return bool(super().has(self._key(key)))

    def inc(self, key: str, delta: int = 1) -> Any:
        """Adds to a number."""
        return super().inc(self._key(key), delta)

    def dec(self, key: str, delta: int = 1) -> Any:
        """Takes from a number."""
        return super().dec(self._key(key), delta)

    def clear(self) -> bool:
        """Removes the cache's keys: those with its prefix, or all keys where it has none. Joins stay."""
        if not self._own_prefix:
            return bool(self.headwater.flushdb())
        end = prefix_end(self._own_prefix)
        self.headwater.range_delete(self._own_prefix, end)
        return True

    @classmethod
    def factory(cls, app: Any, config: dict[str, Any], args: list[Any], kwargs: dict[str, Any]) -> "HeadwaterCache":
        """The cache that a configuration describes."""
        options = dict(config.get("CACHE_OPTIONS") or {})
        url = config.get("CACHE_REDIS_URL")
        if url:
            client = Headwater.from_url(url, **options)
        else:
            client = Headwater(
                host=config.get("CACHE_REDIS_HOST", "localhost"),
                port=config.get("CACHE_REDIS_PORT", 7379),
                password=config.get("CACHE_REDIS_PASSWORD"),
                **options,
            )
        kwargs["host"] = client
        kwargs["joins"] = config.get("CACHE_JOINS")
        if config.get("CACHE_KEY_PREFIX"):
            kwargs["key_prefix"] = config["CACHE_KEY_PREFIX"]
        cache = cls(*args, **kwargs)
        serializer = config.get("CACHE_SERIALIZER")
        if serializer is not None:
            cache.serializer = serializer() if isinstance(serializer, type) else serializer
        return cache

    @property
    def headwater(self) -> Headwater[bytes]:
        """The client: all of Headwater's commands, without the cache's keys and serializer."""
        client: Headwater[bytes] = self._write_client
        return client

    def _loads(self, data: bytes) -> Any:
        return self.serializer.loads(data)
