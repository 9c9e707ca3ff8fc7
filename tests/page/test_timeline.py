"""The example of a live timeline, served from another origin than the data."""

import functools
import http.server
import pathlib
import threading

import pytest
import redis

from browser import Browser, Server, until

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "timeline-live"
JOIN = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def pages():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=FOLDER))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.mark.parametrize("shards", ["1", "3"])
def test_a_timeline_updates_itself(pages, tmp_path, shards):
    settings = tmp_path / "headwater.toml"
    settings.write_text(f'[http]\nhttp-origins = ["http://{pages}"]\n')
    server = Server("--shards", shards, "--config", str(settings))
    port, http_port = str(server.port), server.http.split(":")[1]
    client = redis.Redis(port=server.port)
    client.execute_command("JOIN.ADD", "timeline", JOIN)
    browser = Browser()
    try:
        tab = browser.open(f"http://{pages}/?user=ann&server=http://{server.http}")
        tab.sees("live")
        tab.type("#whom", "bob")
        tab.press("Enter")
        tab.type("#text", "Hello from the page")
        tab.press("Enter")
        tab.sees("Hello from the page")
        client.set("p|bob|000000000000001", "An old one")
        tab.sees("An old one")
        tab.is_accessible("timeline")
        tab.click("#unfollow")
        until("it is still there", lambda: "An old one" not in tab.text())
        # The server goes and comes back empty: the page is told to read again.
        server.stop()
        tab.sees("reconnecting")
        server = Server("--shards", shards, "--config", str(settings), port=port, http=http_port)
        client = redis.Redis(port=server.port)
        client.execute_command("JOIN.ADD", "timeline", JOIN)
        client.set("s|ann|eve", 1)
        client.set("p|eve|000000000000002", "From a new life")
        tab.sees("From a new life")
        tab.sees("live")
        elsewhere = [url for url in tab.requests if not url.startswith((f"http://{pages}/", f"http://{server.http}/", "data:"))]
        assert elsewhere == []
        tab.expected = ["ERR_"]
        assert [it for it in tab.complaints if "ERR_" not in it] == []
        tab.picture("timeline")
    finally:
        browser.stop()
        server.stop()
