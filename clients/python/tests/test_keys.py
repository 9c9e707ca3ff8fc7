"""Encodings are the server's, byte for byte, and sort as values do."""

import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal

import headwater
import pytest
import redis
from headwater import Headwater, Pattern, decode_time, encode_number, encode_time, ordered, prefix_end

DRAWS = 400


def number(draw):
    digits = lambda most: "".join(draw.choice("00159") for _ in range(draw.randint(1, most)))  # noqa: E731
    sign = draw.choice(["", "-", "+"])
    return sign + draw.choice([digits(3), digits(60), f"{digits(3)}.{digits(4)}", f"0.{digits(40)}", f"{digits(30)}.{digits(30)}"])


def words(draw):
    return bytes(draw.choice(b"\x00\x01 !\"#|{}~\x7f\x80\xfd\xfe\xffAaz") for _ in range(draw.randint(0, 5)))


def moment(draw):
    day = date(draw.randint(1, 9999), draw.randint(1, 12), draw.randint(1, 28)).isoformat()
    clock = f"{draw.randint(0, 23):02}:{draw.randint(0, 59):02}"
    seconds = draw.choice(["", f":{draw.randint(0, 60):02}", f":{draw.randint(0, 59):02}.{draw.randint(0, 99999)}"])
    zone = draw.choice(["", "Z", "z", "+01", "-0530", "+05:45", "-23:59"])
    return draw.choice([day, f"{day}{draw.choice('Tt ')}{clock}{seconds}{zone}", number(draw)])


@pytest.fixture(scope="module")
def raw(server):
    """Joins whose outputs have a slot of each form."""
    with Headwater(port=server.port, protocol=3) as client:
        for kind in ("number", "text", "time"):
            for way in ("asc", "desc"):
                name = f"{kind}-{way}"
                client.join_add(name, f"{name}|<v:{kind}:{way}>|<k> = index of-{name}|<k> as <v>", replace=True)
        yield client


@pytest.mark.parametrize("way", ["asc", "desc"])
@pytest.mark.parametrize("kind, draws", [("number", number), ("text", words), ("time", moment)])
def test_components_are_the_servers(raw, kind, draws, way):
    draw = random.Random(f"{kind} {way}")
    pattern = Pattern(f"{kind}-{way}|<v:{kind}:{way}>|<k>")
    for _ in range(DRAWS):
        value = draws(draw)
        prefix = pattern.prefix_bytes(v=value)
        assert raw.join_key(f"{kind}-{way}", {"v": value}) == prefix, value
        key = prefix + b"k"
        decoded = raw.join_decode(key)[1]
        if kind == "time":
            seconds = ordered.decode_seconds(key.split(b"|")[1], way == "desc")
            if decoded[4:5] != b"-" or not -62135596800 <= seconds:
                assert decoded.startswith(b"0000-") or Decimal(decoded.decode()) == seconds
                continue
        parsed = pattern.parse(key)["v"]
        if kind == "number":
            assert Decimal(decoded.decode()) == parsed == Decimal(value)
        elif kind == "text":
            assert decoded == value == (parsed.encode() if isinstance(parsed, str) else parsed)
        else:
            whole, _, fraction = decoded.decode().rstrip("Z").partition(".")
            micros = timedelta(microseconds=int(fraction[:6].ljust(6, "0")))
            assert parsed == datetime.fromisoformat(whole).replace(tzinfo=timezone.utc) + micros


@pytest.mark.parametrize("kind, draws", [("number", number), ("time", moment)])
def test_what_the_server_refuses_is_refused(raw, kind, draws):
    draw = random.Random(kind)
    encode = {"number": encode_number, "time": encode_time}[kind]
    refused = 0
    for _ in range(DRAWS):
        value = list(draws(draw))
        for _ in range(draw.randint(1, 2)):
            value[draw.randrange(len(value))] = draw.choice("0123456789-+.:TZ ex")
        value = "".join(value)
        try:
            expected = raw.join_key(f"{kind}-asc", {"v": value})
        except headwater.HeadwaterError:
            refused += 1
            with pytest.raises(ValueError):
                encode(value)
        else:
            assert f"{kind}-asc|{encode(value)}|".encode() == expected, value
    assert refused > 20


def test_components_sort_as_values():
    draw = random.Random(4)
    numbers = [Decimal(number(draw)) for _ in range(1000)]
    for descending in (False, True):
        order = sorted(numbers, key=lambda one: encode_number(one, descending) + "|")
        assert order == sorted(numbers, reverse=descending)
        texts = [words(draw) for _ in range(1000)]
        assert sorted(texts, key=lambda one: ordered.encode_text(one, descending) + b"|") == sorted(texts, reverse=descending)
        for text in texts:
            assert ordered.decode_text(ordered.encode_text(text, descending), descending) == text


def test_python_values():
    assert encode_number(42) == "C42." and encode_number(-42) == "-T57~" and encode_number(0.5) == "A99995."
    assert encode_number(Decimal("1E+3")) == encode_number(1000) and encode_number(42, descending=True) == "-T57~"
    at = datetime(2026, 11, 23, 10, 0, 0, 250_000, tzinfo=timezone(timedelta(hours=1)))
    assert encode_time(at) == encode_time("2026-11-23T10:00:00.25+01:00") and decode_time(encode_time(at)) == at
    assert encode_time(date(2026, 11, 23)) == encode_time("2026-11-23")
    early = datetime(1969, 12, 31, 23, 59, 59, 750_000, tzinfo=timezone.utc)
    assert encode_time(early) == encode_number("-0.25") and decode_time(encode_time(early)) == early
    with pytest.raises(ValueError, match="time zone"):
        encode_time(datetime(2026, 1, 1))
    for wrong in ("", "x", "1e3", " 1", float("nan"), float("inf"), "9" * 1025):
        with pytest.raises(ValueError):
            encode_number(wrong)
    with pytest.raises(TypeError):
        encode_number(True)
    for wrong in ("", "C42", "C420.", "-C42.", "K", "A9999.", "B42"):
        if wrong != "B42":
            with pytest.raises(ValueError):
                ordered.decode_number(wrong)


def test_patterns():
    board = Pattern("board|<game>|<score:number:desc>|<player>")
    key = board.key(game="chess", score=1200, player="ann")
    assert key == "board|chess|-R87~|ann"
    assert board.prefix(game="chess", score=1200) == "board|chess|-R87~|" and board.prefix() == "board|"
    assert board.parse(key) == {"game": "chess", "score": 1200, "player": "ann"}
    assert board.match("board|chess") is None and board.slots == ["game", "score", "player"]
    page = Pattern("page|<author>|<id:3>|c|<note:text>")
    key = page.key(author=7, id="001", note="a|b")
    assert key == "page|7|001|c|a{Bb!" and page.parse(key)["note"] == "a|b"
    assert prefix_end("t|") == b"t}" and prefix_end(b"\xff") == b""
    for values, text in [
        ({"game": "a|b"}, "no '|'"), ({"game": ""}, "at least one byte"), ({"game": 1.5}, "float"),
        ({"score": 1}, "all slots before"), ({"gmae": "x"}, "no slot <gmae>"), ({"game": "x", "score": "y"}, "<score>"),
        ({"game": "x" * 1100}, "at most 1024"),
    ]:  # fmt: skip
        with pytest.raises((ValueError, TypeError), match=text):
            board.prefix(values)
    with pytest.raises(ValueError, match="needs a value of <score>, <player>"):
        board.key(game="chess")
    with pytest.raises(ValueError, match="not 3"):
        page.prefix(author="bob", id="1")
    for wrong in ("t", "t|<a", "t||x", "t|<a>|<a>", "t|<a:4:desc>", "<t>|<a>", "t|<a:real>"):
        with pytest.raises(ValueError):
            Pattern(wrong)
