"""Views that applications ask for, beside the same in SQL: ranked, limited, filtered, counted. The same random stories are written to Headwater and to
PostgreSQL; after each batch every view is read at once, and equals the query.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres/test_views.py

HEADWATER_PG_SEED says which stories, HEADWATER_PG_ROUNDS how many batches (60).
"""

import contextlib
import decimal
import json
import os
import random
import signal
import subprocess

import pytest
import redis
from test_live import PROGRAM, SEED, Postgres, pytestmark  # noqa: F401

ROUNDS = int(os.environ.get("HEADWATER_PG_ROUNDS", "60"))
BOARDS = ["chess", "go", "x"]
AUTHORS = ["ann", "bob", "liz", "lou", "Zoë", "anna"]
SOURCE = "story|<board>|<id>"
JOINS = {
    "best": f"best|<board>|<score:number:desc>|<id> = index {SOURCE} as json(.score) <score>",
    "worst": f"worst|<board>|<score:number>|<id> = index {SOURCE} as json(.score) <score>",
    "podium": f"podium|<board>|<score:number:desc>|<id> = index {SOURCE} as json(.score) <score> keep 3",
    "hot": f"hot|<board>|<id> = index {SOURCE} where json(.score) >= 10 and json(.open) = true",
    "odd": f"odd|<board>|<id> = index {SOURCE} where not (json(.author) = 'ann' or json(.score) < 0)",
    "some": f"some|<board>|<id> = index {SOURCE} where json(.author) in ('ann', 'bob') or json(.author) prefix 'l'",
    "known": f"known|<board>|<id> = index {SOURCE} where json(.author) exists and json(.open) != true",
    "by": f"by|<author>|<board>|<id> = index {SOURCE} as json(.author) <author>",
    "open": f"open|<board> = count {SOURCE} where json(.open) = true",
    "authors": f"authors|<board> = distinct {SOURCE} as json(.author) <author> on <author>",
    "about": f"about|<board> = distinct~ 4 {SOURCE} as json(.author) <author> on <author>",
    "often": f"often|<board> = topk 3 {SOURCE} as json(.author) <author> on <author>",
    "scores": f"scores|<board> = pull distinct {SOURCE} as json(.score) <score> on <score> where json(.open) = true",
    **{
        f"p{percent}": f"p{percent}|<board> = percentile {percent} {SOURCE} as json(.score) <score> on <score>"
        for percent in [0, 25, 50, 75, 100]
    },
}
TABLE = """CREATE TABLE story (board text COLLATE "C", id text COLLATE "C", score numeric, author text COLLATE "C", open boolean,
    PRIMARY KEY (board, id))"""


@contextlib.contextmanager
def served(shards):
    words = [PROGRAM, "serve", "--port", "0", "--shards", str(shards)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        port = int(process.stdout.readline().rsplit(":", 1)[1])
        yield redis.Redis(port=port, decode_responses=True, socket_timeout=30)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def story_of(choose):
    """What of a story there is: anything may be missing, or null."""
    score = decimal.Decimal(choose.randrange(-400, 800)) / choose.choice([1, 4, 10, 100])
    story = {"score": score, "author": choose.choice(AUTHORS), "open": choose.random() < 0.5}
    return {name: None if choose.random() < 0.1 else value for name, value in story.items() if choose.random() < 0.9}


def document(story):
    # Numbers keep all their digits: the standard library writes no Decimal.
    shown = {name: str(value) if isinstance(value, decimal.Decimal) else json.dumps(value) for name, value in story.items()}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in shown.items()) + "}"


def write(choose, cache, database):
    for _ in range(choose.randrange(1, 25)):
        board, at = choose.choice(BOARDS), f"{choose.randrange(40):02}"
        if choose.random() < 0.25:
            cache.delete(f"story|{board}|{at}")
            database.execute("DELETE FROM story WHERE board = %s AND id = %s", (board, at))
            continue
        story = story_of(choose)
        cache.set(f"story|{board}|{at}", document(story))
        row = (board, at, story.get("score"), story.get("author"), story.get("open"))
        database.execute(
            """INSERT INTO story VALUES (%s, %s, %s, %s, %s) ON CONFLICT (board, id)
               DO UPDATE SET score = excluded.score, author = excluded.author, open = excluded.open""",
            row,
        )


def keys(cache, prefix, *words):
    answer = cache.execute_command("PREFIX", prefix, *words)
    return list(answer) if isinstance(answer, dict) else answer[::2]


def ids(cache, prefix, *words):
    return [key.rsplit("|", 1)[1] for key in keys(cache, prefix, *words)]


def compare(choose, cache, database):
    def column(query, *parameters):
        return [row[0] for row in database.execute(query, parameters)]

    def equal(view, found, expected):
        assert found == expected, (view, found, expected)

    for board in BOARDS:
        limit = choose.randrange(1, 12)
        ranked = "SELECT id FROM story WHERE board = %s AND score IS NOT NULL ORDER BY score {}, id {} LIMIT %s"
        equal("best", ids(cache, f"best|{board}|", "LIMIT", limit), column(ranked.format("DESC", "ASC"), board, limit))
        equal("best, back", ids(cache, f"best|{board}|", "REV", "LIMIT", limit), column(ranked.format("ASC", "DESC"), board, limit))
        equal("worst", ids(cache, f"worst|{board}|", "LIMIT", limit), column(ranked.format("ASC", "ASC"), board, limit))
        equal("podium", ids(cache, f"podium|{board}|"), column(ranked.format("DESC", "ASC"), board, 3))
        shown = [decimal.Decimal(cache.execute_command("JOIN.DECODE", key)[2]) for key in keys(cache, f"best|{board}|", "LIMIT", limit)]
        scores = "SELECT score FROM story WHERE board = %s AND score IS NOT NULL ORDER BY score DESC LIMIT %s"
        equal("scores of best", shown, column(scores, board, limit))
        for view, where in {
            "hot": "score >= 10 AND open = true",
            "odd": "NOT (author = 'ann' OR score < 0)",
            "some": "author IN ('ann', 'bob') OR author LIKE 'l%%'",
            "known": "author IS NOT NULL AND open != true",
        }.items():
            equal(view, ids(cache, f"{view}|{board}|"), column(f"SELECT id FROM story WHERE board = %s AND ({where}) ORDER BY id", board))
        for author in AUTHORS:
            of = "SELECT id FROM story WHERE board = %s AND author = %s ORDER BY id"
            equal("by", ids(cache, f"by|{author}|{board}|"), column(of, board, author))
        [counted] = database.execute(
            """SELECT count(*) FILTER (WHERE open), count(DISTINCT author), count(DISTINCT score) FILTER (WHERE open)
               FROM story WHERE board = %s""",
            (board,),
        )
        numbers = [int(number or 0) for number in cache.mget(f"open|{board}", f"authors|{board}", f"scores|{board}")]
        equal("counts", numbers, list(counted))
        # So few are told exactly by an estimate too: registers are many.
        equal("about", int(cache.get(f"about|{board}") or 0), counted[1])
        often = database.execute(
            """SELECT author, count(*) FROM story WHERE board = %s AND author IS NOT NULL
               GROUP BY author ORDER BY 2 DESC, 1 LIMIT 3""",
            (board,),
        )
        equal("often", json.loads(cache.get(f"often|{board}") or "[]"), [list(row) for row in often])
        for percent in [0, 25, 50, 75, 100]:
            [of] = column(
                "SELECT percentile_disc(%s) WITHIN GROUP (ORDER BY score) FROM story WHERE board = %s", percent / 100, board
            )
            found = cache.get(f"p{percent}|{board}")
            equal(f"p{percent}", found and decimal.Decimal(found), of)


@pytest.mark.parametrize("shards", [1, 2])
def test_views_equal_queries(shards):
    choose = random.Random(SEED * 8 + shards)
    postgres = Postgres("minimal", ["max_wal_senders=0"])
    try:
        with postgres.connect() as database, served(shards) as cache:
            database.execute(TABLE)
            for name, text in JOINS.items():
                cache.execute_command("JOIN.ADD", name, text)
            for _ in range(ROUNDS):
                write(choose, cache, database)
                compare(choose, cache, database)
            for name in JOINS:
                assert cache.execute_command("VERIFY", f"{name}|", f"{name}}}") == []
    finally:
        postgres.remove()
