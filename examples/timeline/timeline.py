"""Timelines in forty lines: `python3 timeline.py HOST:PORT`. Needs `pip install headwater`."""

import sys
import threading
from datetime import datetime, timedelta, timezone
from itertools import islice

from headwater import Headwater, Pattern

POSTS = Pattern("p|<poster>|<time:time>")
TIMELINE = Pattern("t|<user>|<time:time>|<poster>")

host, port = (sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7379").rsplit(":", 1)
client = Headwater(host=host, port=int(port), decode_responses=True)
client.join_add("timeline", "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>", replace=True)


def follow(user, poster):
    client.set(f"s|{user}|{poster}", 1)


def post(poster, text, at):
    client.set(POSTS.key(poster=poster, time=at), text)


def show(what, key, text):
    slots = TIMELINE.parse(key)
    print(f"{what} {slots['time']:%H:%M} {slots['poster']}: {text}")


now = datetime(2026, 1, 1, 9, tzinfo=timezone.utc)
follow("ann", "bob")
post("bob", "Good morning", now)
post("liz", "Ann does not read this yet", now + timedelta(minutes=1))
for key, text in client.prefix(TIMELINE.prefix(user="ann"), rev=True, limit=20).items():
    show("page", key, text)

writes = threading.Thread(target=lambda: (follow("ann", "liz"), post("liz", "Hello, Ann", now + timedelta(minutes=2))))
with client.watch_prefix(TIMELINE.prefix(user="ann")) as timeline:
    for change in islice(timeline, 3):
        show("live", change.key, change.value)
        if not writes.ident:
            writes.start()
