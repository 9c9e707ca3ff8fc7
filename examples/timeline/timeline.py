"""Timelines in forty lines: `python3 timeline.py HOST:PORT`. Needs `pip install ./clients/python`."""

import sys
import threading
from datetime import datetime, timedelta, timezone

from headwater import Headwater, Pattern

POSTS = Pattern("p|<poster>|<time:time>")
TIMELINE = Pattern("t|<user>|<time:time>|<poster>")

client = Headwater.from_url(f"redis://{sys.argv[1] if len(sys.argv) > 1 else '127.0.0.1:7379'}", decode_responses=True)
client.join_add("timeline", "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>", replace=True)


def follow(user, poster):
    client.set(f"s|{user}|{poster}", 1)


def post(poster, text, at):
    client.set(POSTS.key(poster=poster, time=at), text)


def show(what, key, text):
    print("{0} {time:%H:%M} {poster}: {1}".format(what, text, **TIMELINE.parse(key)))


now = datetime(2026, 1, 1, 9, tzinfo=timezone.utc)
follow("ann", "bob")
post("bob", "Good morning", now)
post("liz", "Ann does not read this yet", now + timedelta(minutes=1))
for key, text in client.prefix(TIMELINE.prefix(user="ann"), rev=True, limit=20).items():
    show("page", key, text)

writes = threading.Thread(target=lambda: (follow("ann", "liz"), post("liz", "Hello, Ann", now + timedelta(minutes=2))))
with client.watch_prefix(TIMELINE.prefix(user="ann")) as timeline:
    for _, change in zip(range(3), timeline):
        show("live", change.key, change.value)
        if not writes.ident:
            writes.start()
