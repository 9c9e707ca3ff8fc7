"""What the documentation shows in Python is what happens.

The blocks of one page are one program. A line that ends with a comment shows what its expression gives. A block that follows
a watch for ever runs beside the rest, which goes on when it has printed something.
"""

import contextlib
import re
import threading
import time

import pytest
from conftest import ROOT, Server

PAGES = [
    "clients/python/README.md", "docs/start.md", "docs/how-to/timeline.md", "docs/how-to/leaderboard.md", "docs/how-to/shop.md",
    "docs/how-to/sessions.md", "docs/how-to/front-page.md",
]  # fmt: skip
SHOWS = re.compile(r"(\S[^#]*\))\s+# (.+)")


def blocks(page):
    """The blocks in Python, each with the number of its first line."""
    found, block = [], None
    for number, line in enumerate((ROOT / page).read_text().splitlines(), 1):
        if line == "```python":
            block = (number + 1, [])
        elif line == "```" and block:
            found.append(block)
            block = None
        elif block:
            block[1].append(line)
    return found


def execute(page, first, lines, names):
    """Runs a block; lines that show what they give are looked at."""
    program = []
    for number, line in enumerate(lines, first):
        shows = SHOWS.fullmatch(line)
        program.append(f"shown({number}, {shows[1]}, {shows[2]!r})" if shows else line)
    exec(compile("\n" * (first - 1) + "\n".join(program), page, "exec"), names)


def django(caches):
    from django.conf import settings
    from django.core.cache import caches as theirs

    if not settings.configured:
        settings.configure()
    theirs.settings = caches
    with contextlib.suppress(AttributeError):
        del theirs._connections.default


@pytest.mark.parametrize("page", PAGES)
def test_page(page):
    if not (ROOT / page).exists() or not blocks(page):
        pytest.skip("it shows nothing in Python")
    server = Server()
    printed = []

    def shown(number, value, expected):
        if expected != "the client itself":
            assert repr(value) == expected, f"{page}:{number}"

    names = {"print": lambda *words: printed.append(words), "shown": shown}
    try:
        for first, lines in blocks(page):
            lines = [line.replace("7379", str(server.port)) for line in lines]
            lines = [line.replace("Headwater(decode", f"Headwater(port={server.port}, decode") for line in lines]
            text = "\n".join(lines)
            if re.search(r"^(CACHES|from django)", text, re.M):
                pytest.importorskip("django")
            if "flask" in text:
                flask, caching = pytest.importorskip("flask"), pytest.importorskip("flask_caching")
                names.update(Cache=caching.Cache, app=flask.Flask("app"))
                names["app"].app_context().push()
            if re.search(r"^\s*for .* in (watch|.*watch_prefix)", text, re.M) and "async " not in text:
                before, failed = len(printed), []

                def follow():
                    try:
                        execute(page, first, lines, names)
                    except BaseException as error:
                        failed.append(error)

                threading.Thread(target=follow, daemon=True).start()
                end = time.monotonic() + 60
                while len(printed) == before and not failed:
                    assert time.monotonic() < end, f"{page}:{first} prints nothing"
                    time.sleep(0.005)
                assert not failed, failed
            else:
                execute(page, first, lines, names)
            if text.startswith("CACHES"):
                django(names["CACHES"])
    finally:
        server.stop()
