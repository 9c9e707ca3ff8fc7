"""Builders and parsers of keys: the patterns of joins, filled in.

    >>> posts = Pattern("p|<poster>|<time:time>")
    >>> posts.key(poster="bob", time="2026-11-23T10:00:00Z")
    'p|bob|K17954280.'
    >>> posts.prefix(poster="bob")
    'p|bob|'
    >>> posts.parse("p|bob|K17954280.")["time"].isoformat()
    '2026-11-23T10:00:00+00:00'
"""

from __future__ import annotations

import re
from typing import Any, Mapping, NamedTuple, Optional

from . import ordered

__all__ = ["Pattern", "prefix_end"]

_SLOT = re.compile(r"<([^<>|:]+)(?::([0-9]+|text|number|time)(?::(asc|desc))?)?>")
_KEY_BYTES_MAX = 1024


class _Slot(NamedTuple):
    name: str
    #: ``text``, ``number``, ``time``, or nothing: the bytes as they are.
    kind: Optional[str]
    descending: bool
    width: Optional[int]

    def encode(self, value: Any) -> bytes:
        try:
            if self.kind == "number":
                return ordered.encode_number(value, self.descending).encode()
            if self.kind == "time":
                return ordered.encode_time(value, self.descending).encode()
            if isinstance(value, int) and not isinstance(value, bool):
                value = str(value)
            if not isinstance(value, (str, bytes)):
                raise TypeError(f"{type(value).__name__} is neither a text nor an integer")
            if self.kind == "text":
                return ordered.encode_text(value, self.descending)
        except (TypeError, ValueError) as error:
            raise type(error)(f"slot <{self.name}>: {error}") from None
        data = value.encode() if isinstance(value, str) else bytes(value)
        if not data or b"|" in data:
            raise ValueError(
                f"slot <{self.name}>: {value!r} is no component of a key, which has at least one byte and no '|'; "
                f"<{self.name}:text> takes any text"
            )
        if self.width is not None and len(data) != self.width:
            raise ValueError(f"slot <{self.name}>: {value!r} has {len(data)} bytes, not {self.width}")
        return data

    def decode(self, component: bytes) -> Any:
        if self.kind == "number":
            return ordered.decode_number(component, self.descending)
        if self.kind == "time":
            return ordered.decode_time(component, self.descending)
        if self.kind == "text":
            component = ordered.decode_text(component, self.descending)
        elif not component or self.width not in (None, len(component)):
            raise ValueError(f"{component!r} has {len(component)} bytes")
        try:
            return component.decode()
        except UnicodeDecodeError:
            return component


class Pattern:
    """A pattern of keys, as in the text of a join: ``board|<game>|<score:number:desc>|<player>``.

    A slot is ``<name>`` (the bytes as they are), ``<name:4>`` (exactly four of them), or has a kind: ``text`` (any text),
    ``number`` or ``time``, perhaps with ``:desc``. A component of a kind sorts as its values do.
    """

    def __init__(self, text: str) -> None:
        self.text = text.strip()
        table, *components = self.text.split("|")
        if not components or "<" in table:
            raise ValueError(f"{text!r} is no pattern of a table's keys: table|<slot>|literal|<slot:number:desc>")
        self.table = table
        self._components: list[_Slot | bytes] = []
        for component in components:
            match = _SLOT.fullmatch(component)
            if match is None:
                if not component or "<" in component or ">" in component:
                    raise ValueError(
                        f"{component!r} of {text!r} is neither a literal nor a slot: "
                        "<name>, <name:width>, <name:text>, <name:number>, <name:time>, with :asc or :desc"
                    )
                self._components.append(component.encode())
                continue
            name, kind, direction = match.groups()
            width = int(kind) if kind is not None and kind.isdigit() else None
            if width is not None and direction:
                raise ValueError(f"{component!r} of {text!r}: a width has no direction")
            slot = _Slot(name, None if width is not None else kind, direction == "desc", width)
            if slot.name in self.slots:
                raise ValueError(f"slot <{slot.name}> occurs twice in {text!r}")
            self._components.append(slot)

    @property
    def slots(self) -> list[str]:
        """The names of its slots, in their order."""
        return [one.name for one in self._components if isinstance(one, _Slot)]

    def key(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> str:
        """The key with these values of the slots, all of which are needed."""
        return self.key_bytes(values, **more).decode()

    def key_bytes(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> bytes:
        """As :meth:`key`; a descending text makes keys that are no UTF-8."""
        given = {**(values or {}), **more}
        missing = [name for name in self.slots if name not in given]
        if missing:
            raise ValueError(f"{self.text!r} needs a value of <{'>, <'.join(missing)}>; prefix() does without")
        return self._fill(given)

    def prefix(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> str:
        """What keys with these values begin with, up to the first slot without one."""
        return self.prefix_bytes(values, **more).decode()

    def prefix_bytes(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> bytes:
        """As :meth:`prefix`, as bytes."""
        return self._fill({**(values or {}), **more})

    def parse(self, key: str | bytes) -> dict[str, Any]:
        """The values of a key: texts (bytes where they are no UTF-8), ``Decimal`` and ``datetime``."""
        parts = (key.encode() if isinstance(key, str) else bytes(key)).split(b"|")
        wrong = ValueError(f"{key!r} is no key of {self.text!r}")
        if parts[0] != self.table.encode() or len(parts) != len(self._components) + 1:
            raise wrong
        values = {}
        for component, part in zip(self._components, parts[1:]):
            if isinstance(component, _Slot):
                try:
                    values[component.name] = component.decode(part)
                except ValueError as error:
                    raise ValueError(f"{wrong}: slot <{component.name}>: {error}") from None
            elif component != part:
                raise wrong
        return values

    def match(self, key: str | bytes) -> dict[str, Any] | None:
        """As :meth:`parse`, and None for a key that does not fit."""
        try:
            return self.parse(key)
        except ValueError:
            return None

    def _fill(self, given: Mapping[str, Any]) -> bytes:
        unknown = [name for name in given if name not in self.slots]
        if unknown:
            raise ValueError(f"{self.text!r} has no slot <{unknown[0]}>; it has <{'>, <'.join(self.slots)}>")
        parts, whole = [self.table.encode()], True
        filled = set()
        for component in self._components:
            if isinstance(component, bytes):
                parts.append(component)
            elif component.name in given:
                parts.append(component.encode(given[component.name]))
                filled.add(component.name)
            else:
                whole = False
                break
        skipped = [name for name in given if name not in filled]
        if skipped:
            raise ValueError(f"a prefix of {self.text!r} with <{skipped[0]}> needs all slots before it")
        key = b"|".join(parts) if whole else b"|".join(parts) + b"|"
        if len(key) > _KEY_BYTES_MAX:
            raise ValueError(f"the key has {len(key)} bytes; a key has at most {_KEY_BYTES_MAX}")
        return key

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


def prefix_end(prefix: str | bytes) -> bytes:
    """The end of the range of all keys that start with ``prefix``; nothing, which means to the end, where there is none."""
    data = prefix.encode() if isinstance(prefix, str) else bytes(prefix)
    data = data.rstrip(b"\xff")
    return data[:-1] + bytes((data[-1] + 1,)) if data else b""
