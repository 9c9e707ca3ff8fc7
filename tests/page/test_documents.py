"""What docs/http.md shows: its requests for a shell, and its script in a browser. The diagrams of all pages."""

import json
import os
import pathlib
import re
import subprocess

import pytest
import redis

from browser import Browser, Server, until

DOCS = pathlib.Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "http.md").read_text()
JOIN = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def server():
    server = Server("--shards", "1")
    client = redis.Redis(port=server.port)
    client.execute_command("JOIN.ADD", "timeline", JOIN)
    client.mset({"s|ann|bob": 1, "p|bob|0200": "Oh", "p|bob|0300": "Hi"})
    yield server
    server.stop()


def shell(command, server):
    # One that follows changes ends by itself here.
    command = command.replace("127.0.0.1:7380", server.http).replace("curl -N", "curl -N --max-time 2")
    return subprocess.run(["sh", "-c", command + " -sS"], capture_output=True, text=True, timeout=60)


def test_requests_of_a_shell(server):
    asked = 0
    for block in blocks("sh"):
        lines = [line for line in block.splitlines() if not line.startswith("headwater serve")]
        for at, line in enumerate(lines):
            if not line.startswith("curl"):
                continue
            told = shell(line, server)
            asked += 1
            expected = lines[at + 1] if at + 1 < len(lines) else ""
            if "curl -N" in line:
                assert "event: snapshot" in told.stdout and "event: live" in told.stdout, told
            elif expected and not expected.startswith("curl"):
                assert told.stdout.startswith(expected.split("…")[0]), told
            else:
                assert told.returncode == 0 and told.stderr == "", told
                if "PUT" not in line:
                    assert "Hello" in told.stdout, told
    assert asked >= 5


def test_a_refusal(server):
    shown = json.loads(blocks("json")[0])
    told = shell(f"curl 'http://{server.http}/v1/range?prefix=p%7C&limit=0'", server)
    assert json.loads(told.stdout) == shown


def test_the_script_of_a_browser(server):
    client = redis.Redis(port=server.port)
    browser = Browser()
    try:
        tab = browser.open(f"http://{server.http}/#joins")
        (script,) = blocks("js")
        tab.eval(f"(() => {{ {script}; window.posts = posts; }})()")
        until("there is no snapshot", lambda: tab.eval("posts.get('t|ann|0300|bob')") == "Hi")
        client.set("p|bob|0400", "From afar")
        until("a change is not told", lambda: tab.eval("posts.get('t|ann|0400|bob')") == "From afar")
        client.delete("p|bob|0400")
        until("a removal is not told", lambda: tab.eval("posts.size") == 2)
        client.flushall()
        until("a flush is not told", lambda: tab.eval("posts.size") == 0)
        tab.is_clean(server.http)
    finally:
        browser.stop()


@pytest.mark.skipif(not os.environ.get("MERMAID"), reason="there is no mermaid, which draws them")
def test_diagrams_are_drawn(server):
    """Each diagram is one that mermaid draws, with the texts that it names, and not too wide for a page."""
    diagrams = [(page, text) for page in sorted(DOCS.rglob("*.md")) for text in re.findall(r"^```mermaid\n(.*?)^```", page.read_text(), re.M | re.S)]
    assert len(diagrams) >= 8
    browser = Browser()
    try:
        tab = browser.open("about:blank", width=1012)
        with open(os.environ["MERMAID"]) as file:
            tab.eval(file.read() + "; mermaid.initialize({startOnLoad: false});")
        for number, (page, text) in enumerate(diagrams):
            svg = tab.eval(f"mermaid.render('it{number}', {json.dumps(text)}).then(it => it.svg)")
            tab.eval(f"document.body.innerHTML = {json.dumps('<h1></h1>' + svg)}, document.querySelector('h1').textContent = {json.dumps(page.name)}")
            shown = re.sub(r"\s", "", tab.eval("document.querySelector('svg').textContent"))
            for label in re.findall(r'[\[{(]"(.+?)"[\]})]', text):
                assert re.sub(r"\s|<br/?>|&[a-z]+;", "", label) in shown, f"{page.name}: {label}"
            assert tab.eval("document.querySelector('svg').viewBox.baseVal.width") < 1600, page.name
            tab.picture(f"diagram-{number}-{page.stem}")
        tab.close()
    finally:
        browser.stop()
