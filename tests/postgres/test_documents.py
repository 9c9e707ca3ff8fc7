"""What docs/sources.md and docs/postgres.md show, against a real database.

    HEADWATER=target/release/headwater python3 -m pytest -q tests/postgres/test_documents.py
"""

import pathlib
import re
import shlex
import subprocess
import time

import pytest
import redis
from test_live import PROGRAM, Postgres, pairs, pytestmark  # noqa: F401

DOCS = pathlib.Path(__file__).parents[2] / "docs"
SCHEMA = [
    "CREATE TABLE posts (poster text, time int, tweet text, PRIMARY KEY (poster, time))",
    "CREATE TABLE subscriptions (who text, poster text, PRIMARY KEY (who, poster))",
    "CREATE TABLE orders (customer text, id int, status text, hidden bool NOT NULL, total int, PRIMARY KEY (customer, id))",
    "INSERT INTO posts VALUES ('bob', 100, 'Hi')",
    "INSERT INTO subscriptions VALUES ('ann', 'bob')",
    "INSERT INTO orders VALUES ('ann', 1, 'paid', false, 30), ('ann', 2, 'new', false, 40)",
]


def requests(page):
    """The requests of the page's blocks of text, one a line."""
    blocks = re.findall(r"^```text\n(.*?)^```", (DOCS / page).read_text(), re.M | re.S)
    return [line for block in blocks for line in block.splitlines() if line]


def grants():
    """The statements that docs/postgres.md asks for."""
    indented = re.findall(r"^    ((?:CREATE ROLE|GRANT|CREATE PUBLICATION).*)$", (DOCS / "postgres.md").read_text(), re.M)
    assert len(indented) == 3
    return indented


@pytest.fixture
def cache(tmp_path):
    postgres = Postgres("logical")
    with postgres.connect() as database:
        for statement in [*SCHEMA, *grants()]:
            database.execute(statement.replace("posts, subscriptions TO", "posts, subscriptions, orders TO"))
        database.execute("ALTER PUBLICATION headwater_shop ADD TABLE orders")
    config = tmp_path / "headwater.toml"
    config.write_text(f'[connect]\nconnect-allow = ["{postgres.folder}:*"]\n')
    process = subprocess.Popen([PROGRAM, "serve", "--port", "0", "--config", config], stdout=subprocess.PIPE, text=True)
    port = int(process.stdout.readline().rsplit(":", 1)[1])
    client = redis.Redis(port=port, decode_responses=True, socket_timeout=30)
    client.postgres = postgres
    yield client
    process.kill()
    process.wait()
    postgres.remove()


def run(cache, line):
    words = shlex.split(line.replace("postgres://reader@db.example/shop", f"postgres://reader@/postgres?host={cache.postgres.folder}"))
    told = cache.execute_command(*words)
    if words[0] == "SOURCE.ADD":
        end = time.monotonic() + 30
        while pairs(cache.execute_command("SOURCE.INFO", words[1]))["state"] != "up":
            assert time.monotonic() < end, cache.execute_command("SOURCE.INFO", words[1])
            time.sleep(0.02)
    return words, told


@pytest.mark.parametrize("page, shown", [("sources.md", 2), ("postgres.md", 5)])
def test_page(cache, page, shown):
    seen = 0
    for line in requests(page):
        words, told = run(cache, line)
        seen += 1
        if words[0] == "PREFIX":
            expected = {"p|bob|": {"p|bob|0000000100": "Hi"}, "t|ann|": {"t|ann|0000000100|bob": "Hi"}}
            assert pairs(told) == expected[words[1]]
            with cache.postgres.connect() as database:
                database.execute("UPDATE posts SET tweet = 'Hi there'")
            at = cache.execute_command("SOURCE.POSITION", "shop")
            assert list(pairs(cache.execute_command(*words, "AT", at)).values()) == ["Hi there"]
            with cache.postgres.connect() as database:
                database.execute("UPDATE posts SET tweet = 'Hi'")
    assert seen >= shown
    if page == "postgres.md":
        assert pairs(cache.execute_command("PREFIX", "o|")) == {"o|ann|0000000001": "30"}


def test_a_column_that_the_database_computes(cache):
    (statement,) = re.findall(r"^    (ALTER TABLE posts ADD .*)$", (DOCS / "postgres.md").read_text(), re.M)
    with cache.postgres.connect() as database:
        database.execute(statement)
        assert database.execute("SELECT derived FROM posts").fetchone() == ("Hi",)
