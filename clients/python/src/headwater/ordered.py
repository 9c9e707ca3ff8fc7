"""Values as components of keys whose bytes sort as the values do.

Keys sort by their bytes, so ``9`` sorts behind ``10``. What these functions give sorts as the values do, whatever follows it in
the key, and never holds a ``|``. It is what the server makes of values in keys (``<score:number:desc>`` in a join), byte for
byte; the server's documentation has the format (``docs/joins.md``, *Values in keys*).
"""

from __future__ import annotations

import re
from datetime import date, datetime, timedelta, timezone
from decimal import Context, Decimal
from math import floor
from typing import Union

__all__ = [
    "Number",
    "Time",
    "decode_number",
    "decode_seconds",
    "decode_text",
    "decode_time",
    "encode_number",
    "encode_text",
    "encode_time",
]

#: What can be encoded as a number. A text is ``[+-]digits[.digits]``.
Number = Union[int, float, Decimal, str]
#: What can be encoded as a time: a ``datetime`` with a time zone, a text as in RFC 3339, or seconds since 1970.
Time = Union[datetime, date, int, float, Decimal, str]

_NUMBER = re.compile(r"([+-]?)([0-9]+)(?:\.([0-9]+))?", re.ASCII)
_NUMBER_BYTES_MAX = 1024
_EXPONENT_MAX = 9999
_LETTERED = 20
_TURNED = str.maketrans(
    "0123456789ABCDEFGHIJKLMNOPQRSTUV.~", "9876543210VUTSRQPONMLKJIHGFEDCBA~."
)
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2}))?(?:\.([0-9]+))?"
    r"(?:[Zz]|([+-])([0-9]{2}):?([0-9]{2})?)?)?",
    re.ASCII,
)
_EXACT = Context(prec=2 * _NUMBER_BYTES_MAX)
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def encode_number(value: Number, descending: bool = False) -> str:
    """The component that stands for a number, exactly: ``42`` is ``C42.``, and ``-T57~`` descending."""
    return _encode(_parts(_plain(value)), descending)


def decode_number(component: str | bytes, descending: bool = False) -> Decimal:
    """The number that a component stands for."""
    return Decimal(_decode(_text(component), descending))


def encode_time(value: Time, descending: bool = False) -> str:
    """The component that stands for a moment. A ``datetime`` needs a time zone; a date is its midnight in UTC."""
    return _encode(_parts(_seconds(value)), descending)


def decode_time(component: str | bytes, descending: bool = False) -> datetime:
    """The moment that a component stands for, in UTC, without what is finer than a microsecond."""
    seconds = decode_seconds(component, descending)
    try:
        return _EPOCH + timedelta(microseconds=floor(seconds.scaleb(6, _EXACT)))
    except OverflowError:
        raise ValueError(
            f"{seconds} seconds since 1970 are no moment of Python's calendar; decode_seconds gives them"
        ) from None


def decode_seconds(component: str | bytes, descending: bool = False) -> Decimal:
    """The seconds since 1970 that the component of a time stands for, exactly."""
    return decode_number(component, descending)


def encode_text(value: str | bytes, descending: bool = False) -> bytes:
    """The component that stands for a text of any bytes: ``New York`` is ``New"CYork!``. Descending, it is no UTF-8."""
    data = value.encode() if isinstance(value, str) else bytes(value)
    out = bytearray()
    for byte in data:
        if descending:
            byte = 255 - byte
        if byte <= 0x22:
            out += bytes((0x22, byte + 35))
        elif byte in (0x7B, 0x7C):
            out += bytes((0x7B, 0x41 + byte - 0x7B))
        elif descending and byte >= 0xFE:
            out += bytes((0xFE, 0x41 + byte - 0xFE))
        else:
            out.append(byte)
    out.append(0xFF if descending else 0x21)
    return bytes(out)


def decode_text(component: str | bytes, descending: bool = False) -> bytes:
    """The bytes of the text that a component stands for."""
    data = component.encode() if isinstance(component, str) else bytes(component)
    wrong = ValueError(f"{component!r} stands for no text")
    end = 0xFF if descending else 0x21
    if not data or data[-1] != end:
        raise wrong
    out, rest = bytearray(), iter(data[:-1])
    for byte in rest:
        if byte == 0x22:
            byte = next(rest, 0) - 35
            if not 0 <= byte <= 0x22:
                raise wrong
        elif byte == 0x7B or (descending and byte == 0xFE):
            more = next(rest, 0) - 0x41
            if more not in (0, 1):
                raise wrong
            byte += more
        elif byte < 0x22 or byte == 0x7C or (descending and byte == 0xFF):
            raise wrong
        out.append(255 - byte if descending else byte)
    return bytes(out)


def _text(component: str | bytes) -> str:
    return component if isinstance(component, str) else component.decode("ascii", "replace")


def _plain(value: Number) -> str:
    """A number in digits."""
    if isinstance(value, bool):
        raise TypeError("a bool is no number of a key")
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return _digits(value)
    number = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
    if not number.is_finite():
        raise ValueError(f"{value} is no number of a key")
    return format(number, "f")


def _digits(value: int) -> str:
    """Digits of an integer of any length, which ``str`` refuses for long ones."""
    if abs(value) < 10**4000:
        return str(value)
    raise ValueError(f"a number of a key has at most {_NUMBER_BYTES_MAX} digits")


def _parts(text: str) -> tuple[bool, str, str]:
    """Whether a number is negative, its whole digits without leading zeros, and its fraction's without trailing ones."""
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > _NUMBER_BYTES_MAX:
        raise ValueError(
            f"{text[:80]!r} is no number: digits, perhaps with a sign and a fraction, {_NUMBER_BYTES_MAX} at most"
        )
    sign, whole, fraction = match[1], match[2].lstrip("0"), (match[3] or "").rstrip("0")
    return sign == "-" and bool(whole or fraction), whole, fraction


def _encode(parts: tuple[bool, str, str], descending: bool) -> str:
    negative, whole, fraction = parts
    if not whole and not fraction:
        return "0"
    if not whole:
        digits = fraction.lstrip("0")
        head = f"A{_EXPONENT_MAX - (len(fraction) - len(digits)):04}"
    else:
        digits = (whole + fraction).rstrip("0")
        head = chr(0x41 + len(whole)) if len(whole) <= _LETTERED else f"V{len(whole):04}"
    code = f"{head}{digits}."
    return "-" + code.translate(_TURNED) if negative != descending else code


_CODE = re.compile(r"(?:A([0-9]{4})|V([0-9]{4})|([B-U]))([0-9]+)\.", re.ASCII)


def _decode(component: str, descending: bool) -> str:
    if component == "0":
        return "0"
    turned = component.startswith("-")
    body = component[1:].translate(_TURNED) if turned else component
    match = _CODE.fullmatch(body)
    if match is not None:
        small, many, letter, digits = match.groups()
        if small is not None:
            text = "0." + "0" * (_EXPONENT_MAX - int(small)) + digits
        else:
            places = int(many) if many is not None else ord(letter) - 0x41
            whole = digits[:places].ljust(places, "0")
            text = f"{whole}.{digits[places:]}" if len(digits) > places else whole
        text = "-" + text if turned != descending else text
        # Only what the encoder gives is taken.
        if len(text) <= _NUMBER_BYTES_MAX and _NUMBER.fullmatch(text):
            if _encode(_parts(text), descending) == component:
                return text
    raise ValueError(f"{component!r} stands for no number")


def _seconds(value: Time) -> str:
    """Seconds since 1970, in digits."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(f"{value} needs a time zone, as datetime.now(timezone.utc) has it")
        micros = (value - _EPOCH) // timedelta(microseconds=1)
        return format(Decimal(micros).scaleb(-6), "f")
    if isinstance(value, date):
        return str((value - _EPOCH.date()).days * 86_400)
    if not isinstance(value, str):
        return _plain(value)
    if _NUMBER.fullmatch(value):
        return value
    return _moment(value)


def _moment(text: str) -> str:
    """Seconds since 1970 of a text as in RFC 3339."""
    wrong = ValueError(
        f"{text!r} is no time: RFC 3339 (2026-11-23T10:00:00.5+01:00), or seconds since 1970"
    )
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise wrong
    year, month, day = (int(match[at]) for at in (1, 2, 3))
    hour, minute, second = (int(match[at] or 0) for at in (4, 5, 6))
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12:
        raise wrong
    days = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[month - 1]
    hours, minutes = int(match[9] or 0), int(match[10] or 0)
    if not 1 <= day <= days or hour > 23 or minute > 59 or second > 60 or hours > 23 or minutes > 59:
        raise wrong
    # Python's calendar begins with the year 1; a cycle of 400 years has 146 097 days.
    cycle = 0 if year else 1
    whole = (date(year + 400 * cycle, month, day).toordinal() - _EPOCH.toordinal()) - 146_097 * cycle
    total = whole * 86_400 + hour * 3600 + minute * 60 + second
    total -= (hours * 3600 + minutes * 60) * (-1 if match[8] == "-" else 1)
    fraction = (match[7] or "").rstrip("0")
    if not fraction:
        return str(total)
    micro = int(str(abs(total)) + "0" * len(fraction)) * (-1 if total < 0 else 1) + int(fraction)
    digits = str(abs(micro)).rjust(len(fraction) + 1, "0")
    text = f"{digits[: -len(fraction)]}.{digits[-len(fraction) :]}"
    return "-" + text if micro < 0 else text
