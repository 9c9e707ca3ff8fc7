"""The page at `/`: that it loads, shows what there is, is live, tries joins, and can be used by everybody."""

import json
import os
import pathlib
import re
import sys

import pytest
import redis

from browser import Browser, Server, until

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from nodes import free_ports  # noqa: E402

TIMELINE = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>"

# A WebAssembly module whose function replies the value that it is called for:
# (module
#   (import "headwater" "value_len" (func $value_len (result i32)))
#   (import "headwater" "reply_value" (func $reply_value (param i32 i32) (result i32)))
#   (func (export "call") (result i32)
#     (drop (call $reply_value (i32.const 0) (call $value_len))) (i32.const 0)))
REPLIES_THE_VALUE = bytes.fromhex(
    "00 61 73 6d 01 00 00 00 01 0b 02 60 00 01 7f 60 02 7f 7f 01 7f 02 2f 02 09 68 65 61 64 77 61 74"
    "65 72 09 76 61 6c 75 65 5f 6c 65 6e 00 00 09 68 65 61 64 77 61 74 65 72 0b 72 65 70 6c 79 5f 76"
    "61 6c 75 65 00 01 03 02 01 00 07 08 01 04 63 61 6c 6c 00 02 0a 0d 01 0b 00 41 00 10 00 10 01 1a"
    "41 00 0b"
)


@pytest.fixture(scope="module")
def browser():
    browser = Browser()
    yield browser
    browser.stop()


@pytest.fixture
def server(request):
    server = Server(*getattr(request, "param", ["--shards", "1"]))
    yield server
    server.stop()


@pytest.fixture
def client(server):
    return redis.Redis(port=server.port, protocol=3)


def fill(client):
    client.execute_command("JOIN.ADD", "timeline", TIMELINE)
    client.execute_command("JOIN.ADD", "karma", "karma|<author> = count vote|<author>|<id>|<voter>")
    client.execute_command("JOIN.ADD", "page", "page|<author>|<id>|k = copy karma|<author> check article|<author>|<id>")
    for user in ("ann", "bob", "eve"):
        client.set(f"s|{user}|bob", 1)
        client.set(f"vote|ann|1|{user}", 1)
    for number in range(120):
        client.set(f"p|bob|{number:04}", f"Post number {number}")
    client.set("article|ann|1", json.dumps({"title": "On caches", "words": 1200}))
    client.set(b"bytes|\xff\x00", bytes(range(256)))
    client.execute_command("PREFIX", "t|ann|")
    client.execute_command("PREFIX", "page|")
    client.execute_command("FLOW.ADD", "news", "ON", "p|<poster>|<time>", "PUBLISH", "channel")


@pytest.mark.parametrize("server", [["--shards", "1", "--memory", "200mb"], ["--shards", "3", "--memory", "200mb"]], indirect=True)
def test_overview(browser, server, client):
    fill(client)
    tab = browser.open(f"http://{server.http}/")
    for text in ("Commands per second", "Hit rate", "of 200 MiB", "news", "running", "default"):
        tab.sees(text)
    until("there are no figures", lambda: tab.eval("document.querySelector('.tile .figure').textContent") not in ("", "–"))
    tab.sees("clients are accepted")
    before = client.info("stats")["total_commands_processed"]
    for number in range(300):
        client.get(f"p|bob|{number % 120:04}")
    until("the commands are not counted", lambda: client.info("stats")["total_commands_processed"] > before
          and "get" in tab.text())
    shards = int(client.info("shards")["shards"])
    told = "[...document.querySelectorAll('section[aria-label=Shards] tbody tr')].map(it => it.cells[0].textContent).join()"
    until("the shards are not told", lambda: tab.eval(told) == ",".join(map(str, range(shards))))
    tab.is_accessible("overview")
    tab.is_clean(server.http)
    tab.picture(f"overview-light-{client.info('shards')['shards']}")
    tab.close()


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_view_is_accessible_and_fits(browser, server, client, dark, width):
    fill(client)
    name = f"{'dark' if dark else 'light'}-{width}"
    views = {
        "overview": "news", "keys": "Keys 1 to", "keys?prefix=t%7Cann%7C": "t|ann|0000|bob", "joins": "Installed",
        "explain?key=t%7Cann%7C0001%7Cbob": "status",
    }
    tab = browser.open(f"http://{server.http}/", width=width, dark=dark)
    for view, text in views.items():
        tab.go(view)
        tab.sees(text)
        tab.is_accessible(f"{view} {name}")
        wide = tab.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{view} is {wide} pixels wider than {width}"
        tab.picture(f"{view.split('?')[0]}{'-prefix' if 'prefix' in view else ''}-{name}")
    tab.is_clean(server.http)
    tab.close()


def test_a_value_is_seen_on_a_telephone(browser, server, client):
    fill(client)
    tab = browser.open(f"http://{server.http}/#keys?prefix=p%7C", width=390, height=700)
    tab.sees("p|bob|0049")
    tab.click("td.key button")
    tab.sees("never expires")
    inside = "(() => { const it = document.querySelector('#value h2').getBoundingClientRect(); return it.top >= 0 && it.bottom <= innerHeight; })()"
    until("the value is out of sight", lambda: tab.eval(inside))
    tab.picture("value-390")
    tab.is_clean(server.http)
    tab.close()


def test_sources_and_what_failed(browser, tmp_path):
    """A source that is down says so, and a flow's dead tasks are counted."""
    config = tmp_path / "headwater.toml"
    config.write_text(
        f'[[source]]\nname = "shop"\nkind = "postgres"\nurl = "postgres://reader@/shop?host={tmp_path}"\n'
        '[[flow]]\nname = "hook"\non = "n|<id>"\npost ="http://127.0.0.1:9/"\nmax-attempts = 1\n'
    )
    server = Server("--shards", "1", "--config", str(config))
    try:
        client = redis.Redis(port=server.port, protocol=3)
        client.set("n|1", "nobody listens")
        tab = browser.open(f"http://{server.http}/")
        row = "[...document.querySelectorAll('section[aria-label=%s] tbody td')].map(it => it.textContent).join('; ')"
        until(lambda: tab.text(), lambda: (tab.eval(row % "Sources") or "").startswith("shop; postgres; down; 0 B; "))
        until(lambda: tab.text(), lambda: (tab.eval(row % "Flows") or "").endswith("; 1; running"))
        tab.is_accessible("sources")
        tab.picture("sources")
        tab.is_clean(server.http)
        tab.close()
    finally:
        server.stop()


def test_every_operator_is_an_edge(browser, server, client):
    joins = {
        "kinds": "kinds|<user> = distinct~ 16 seen|<user>|<page> on <page>", "top": "top|<user> = topk 3 seen|<user>|<page> on <page>",
        "slow": "slow|<page> = percentile 95 took|<page>|<id>", "board": "board|<score:number>|<user> = index kinds|<user> as <score>",
    }
    for name, spec in joins.items():
        client.execute_command("JOIN.ADD", name, spec)
    client.set("took|a|1", 10)
    for _ in range(3):
        client.get("slow|a")
    client.set("took|a|2", 20)
    tab = browser.open(f"http://{server.http}/#joins")
    tab.sees("Installed")
    tab.sees("2 hits")
    assert tab.eval("document.querySelectorAll('svg.graph .edge').length") == len(joins)
    row = "[...document.querySelectorAll('section[aria-label=\"Installed joins\"] tbody tr')].map(it => [...it.cells].map(it => it.textContent))"
    (slow,) = [cells for cells in tab.eval(row) if cells[0].startswith("slow")]
    # Outputs, hits, computed, updates; then the time that these took.
    assert slow[1:5] == ["1", "2", "1", "1"]
    assert re.fullmatch(r"[1-9][0-9]* µs|[0-9.]+ ms", slow[5]), slow
    assert client.execute_command("JOIN.INFO", "slow")[b"maintenance_usec"] > 0
    tab.sees("of maintenance")
    tab.is_accessible("joins of all kinds")
    tab.picture("joins-kinds")
    tab.is_clean(server.http)
    tab.close()


def test_edges_pass_beside_tables(browser, server, client):
    fill(client)
    client.execute_command("JOIN.ADD", "far", "far|<author>|<id> = copy page|<author>|<id>|k check vote|<author>|<id>|<voter> check p|<author>|<id>")
    tab = browser.open(f"http://{server.http}/#joins")
    tab.sees("far")
    crossed = """[...document.querySelectorAll('svg.graph .edge path')].flatMap((path) => {
        const boxes = [...document.querySelectorAll('svg.graph .node')].map((it) => [it.textContent, it.querySelector('rect').getBBox()]);
        const points = Array.from({ length: 200 }, (_, at) => path.getPointAtLength((path.getTotalLength() * at) / 199));
        const inside = ({ x, y }, box) => x > box.x + 1 && x < box.x + box.width - 1 && y > box.y && y < box.y + box.height;
        return boxes.filter(([, box]) => points.some((it) => inside(it, box))).map(([name]) => name);
    })"""
    assert tab.eval(crossed) == []
    assert tab.eval("document.querySelectorAll('svg.graph .edge').length") == 8
    tab.picture("joins-far")
    tab.is_clean(server.http)
    tab.close()


def test_keys_page_by_page(browser, server, client):
    """A browser of very many keys shows the first ones at once, and goes on from there."""
    count = int(os.environ.get("PAGE_KEYS", "1000000"))
    for first in range(0, count, 20_000):
        client.mset({f"k|{number:07}": number for number in range(first, min(count, first + 20_000))})
    tab = browser.open(f"http://{server.http}/#keys?prefix=k%7C")
    tab.sees("Keys 1 to 50")
    tab.sees("k|0000049")
    tab.click("#next")
    tab.sees("Keys 51 to 100")
    tab.sees("k|0000099")
    tab.click(".buttons button")
    tab.sees("Keys 1 to 50")
    tab.click("#rev")
    tab.sees(f"k|{count - 1:07}")
    assert tab.eval("document.querySelectorAll('tbody tr').length") == 50
    # What is live is the page, not the million behind it.
    tab.click("#live")
    tab.sees("50 keys, the last of the prefix")
    client.set(f"k|{count - 1:07}x", "behind all others")
    tab.sees("behind all others")
    tab.click("#rev")
    tab.sees("50 keys, the first of the prefix")
    client.set("k|0000007", "changed while it is looked at")
    tab.sees("changed while it is looked at")
    client.set("k|0000007a", "between two of them")
    tab.sees("51 keys, the first of the prefix")
    client.set("k|0000077", "not on this page")
    client.delete("k|0000007")
    tab.sees("50 keys, the first of the prefix")
    assert "not on this page" not in tab.text()
    tab.click("#live")
    tab.type("#prefix", f"k|{count // 2:07}")
    tab.press("Enter")
    tab.sees("Keys 1 to 1")
    tab.is_clean(server.http)
    tab.close()


@pytest.mark.parametrize("server", [["--shards", "1"], ["--shards", "3"]], indirect=True)
def test_values_and_live_changes(browser, server, client):
    fill(client)
    client.set("x|<script>", "<img src=x onerror=alert(1)>")
    tab = browser.open(f"http://{server.http}/#keys?prefix=x")
    tab.sees("<img src=x onerror=alert(1)>")
    tab.go("keys?prefix=article")
    tab.sees("article|ann|1")
    tab.click("td.key button")
    tab.sees('"title": "On caches"')
    tab.go("keys?prefix=bytes")
    tab.sees("bytes|\\xff\\x00")
    tab.click("td.key button")
    tab.sees("000010  10 11 12")
    tab.go("keys?prefix=t%7Cann%7C01")
    tab.sees("t|ann|0119|bob")
    tab.click("#live")
    tab.sees("20 keys")
    tab.sees("live")
    client.set("p|bob|0100", "changed while it is looked at")
    tab.sees("changed while it is looked at")
    client.delete("p|bob|0101")
    tab.sees("19 keys")
    client.set("p|bob|01", "new")
    tab.sees("t|ann|01|bob")
    client.flushall()
    tab.sees("0 keys")
    tab.is_clean(server.http)
    tab.close()


def test_a_lost_connection_is_taken_up_again(browser):
    # Ports that nothing else is given between the two servers.
    port, http = map(str, free_ports(2))
    server = Server("--shards", "1", port=port, http=http)
    redis.Redis(port=server.port).set("k|1", "before")
    tab = browser.open(f"http://{server.http}/#keys?prefix=k%7C")
    tab.click("#live")
    tab.sees("before")
    server.stop()
    tab.sees("lost")
    again = Server("--shards", "1", port=port, http=http)
    redis.Redis(port=again.port).set("k|1", "after")
    tab.sees("after")
    until("it is not live", lambda: tab.eval("document.getElementById('live-state').textContent") == "live")
    redis.Redis(port=again.port).set("k|2", "later")
    tab.sees("later")
    # The browser itself tells of connections that it cannot make, and of a server that does not answer yet.
    tab.expected = ["ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_CONNECTION_CLOSED",
                    "ERR_EMPTY_RESPONSE", "status of 503"]
    tab.is_clean(again.http)
    tab.close()
    again.stop()


@pytest.mark.parametrize("server", [["--shards", "1"], ["--shards", "3"]], indirect=True)
def test_a_browser_that_is_busy_costs_a_buffer(browser, server, client):
    """A page whose script hangs reads nothing: what it costs is bounded, nobody else notices, and afterwards it shows what is there."""
    for number in range(10):
        client.set(f"k|{number}", "before")
    tab = browser.open(f"http://{server.http}/#keys?prefix=k%7C")
    tab.sees("before")
    tab.click("#live")
    tab.sees("10 keys")
    tab.sees("live")
    idle = client.info("memory")["used_memory_clients"]
    # Its script does not come back to its page before there is this key.
    tab.eval(
        """void setTimeout(() => {
            for (let there = false; !there;) {
                const ask = new XMLHttpRequest();
                ask.open("GET", "/v1/range?prefix=awake%7C", false);
                ask.send();
                there = ask.responseText.includes("awake|");
            }
            window.awake = true;
        })"""
    )
    most = 0
    for number in range(600):
        client.set(f"k|{number % 10}", f"value {number} " + "x" * 150_000)
        most = max(most, client.info("memory")["used_memory_clients"])
        if number % 50 == 0:
            assert client.ping()
    # 90 MB were written; a client may have 8 MiB of changes waiting, and as much again in what it is sent.
    assert most - idle < 24 << 20, most - idle
    client.set("awake|", "now")
    until("the page is still busy", lambda: tab.eval("window.awake"))
    for number in range(590, 600):
        tab.sees(f"value {number} x")
    until("it is not live", lambda: tab.eval("document.getElementById('live-state').textContent") == "live")
    client.set("k|3", "after")
    tab.sees("after")
    assert client.info("stats")["range_resyncs_sent"] >= 1
    # A connection that was cut is told by the browser.
    tab.expected = ["ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET"]
    tab.is_clean(server.http)
    tab.close()


@pytest.mark.parametrize("server", [["--shards", "1"], ["--shards", "3"]], indirect=True)
def test_a_join_is_tried_and_installed(browser, server, client):
    for user in ("ann", "eve"):
        client.set(f"s|{user}|bob", 1)
    for number in range(6):
        client.set(f"p|bob|000{number}", f"Post {number}")
    tab = browser.open(f"http://{server.http}/#joins")
    tab.sees("No join is installed")
    tab.type("#spec", "t|<user>|<time> = chek s|<user>|<poster> copy p|<poster>|<time>")
    tab.click("#try")
    tab.sees("`chek` is neither a mode nor an operator")
    caret = tab.eval("document.getElementById('caret').textContent").split("\n")
    assert caret[0][caret[1].index("^"):].startswith("chek"), caret
    tab.is_accessible("a join with an error")
    tab.picture("join-error")
    # To install it is refused as it is to try it.
    tab.type("#join-name", "wrong")
    tab.click("#install")
    until("the mistake is not shown", lambda: tab.eval("document.getElementById('caret')?.textContent") == "\n".join(caret))
    assert "^" not in tab.eval("document.querySelector('#tried .bad').textContent")
    tab.type("#join-name", "")
    tab.type("#spec", TIMELINE)
    tab.click("#try")
    tab.sees("It would give")
    tab.sees("t|ann|0000|bob")
    tab.sees("The first 10 outputs")
    assert client.execute_command("JOIN.LIST") == []
    tab.is_accessible("a join that was tried")
    tab.picture("join-tried")
    tab.click("#install")
    tab.sees("Give the join a name.")
    tab.type("#join-name", "tl")
    tab.click("#install")
    tab.sees("The join tl is installed.")
    assert [it[b"name"] for it in client.execute_command("JOIN.LIST")] == [b"tl"]
    tab.sees("Drop")
    assert tab.eval("document.querySelectorAll('svg.graph .edge').length") == 2
    tab.expected = ["status of 400"]
    tab.is_clean(server.http)
    tab.close()


def test_a_derived_key_is_explained_and_verified(browser, server, client):
    fill(client)
    tab = browser.open(f"http://{server.http}/#explain")
    tab.type("#key", "t|ann|0007|bob")
    tab.press("Enter")
    for text in ("Post number 7", "check s|<user>|<poster> reads [s|ann|bob", "copy p|<poster>|<time> reads", "valid and maintained"):
        tab.sees(text)
    assert tab.eval("document.querySelectorAll('.step').length") >= 5
    tab.type("#verify-prefix", "t|")
    tab.press("Enter")
    tab.sees("No differences.")
    tab.is_clean(server.http)
    tab.close()


@pytest.mark.parametrize("server", [["--shards", "1"], ["--shards", "3"]], indirect=True)
@pytest.mark.parametrize("width", [1280, 390])
def test_what_differs_is_shown(browser, server, client, width):
    """A function may no longer reply as much as it did: what is stored is not what would be computed now."""
    client.execute_command("FN.LOAD", "same", REPLIES_THE_VALUE)
    client.execute_command("JOIN.ADD", "shown", "shown|<id> = map:same text|<id>")
    client.mset({"text|1": "short", "text|2": "too long a text", "text|<b>": "<img src=x> is text as well"})
    assert len(client.execute_command("PREFIX", "shown|")) == 3
    client.config_set("function-reply-bytes-max", 10)
    tab = browser.open(f"http://{server.http}/#explain", width=width)
    tab.type("#verify-prefix", "shown|")
    tab.press("Enter")
    tab.sees("2 differences")
    rows = "[...document.querySelectorAll('#verified tbody tr')].map(it => [...it.cells].map(it => it.textContent))"
    assert tab.eval(rows) == [
        ["shown|2", "too long a text", "(no such key)"],
        ["shown|<b>", "<img src=x> is text as well", "(no such key)"],
    ]
    tab.is_accessible("differences")
    tab.picture(f"differences-{width}-{client.info('shards')['shards']}")
    # What is stored is not changed by the comparison; and computed anew it is what VERIFY has told.
    assert client.get("shown|2") == b"too long a text"
    client.config_set("function-reply-bytes-max", 100)
    tab.click("form:has(#verify-prefix) button")
    tab.sees("No differences.")
    tab.is_clean(server.http)
    tab.close()


@pytest.mark.parametrize("server", [["--shards", "1", "--requirepass", "master"]], indirect=True)
def test_rights_and_logging_in(browser, server):
    admin = redis.Redis(port=server.port, password="master", protocol=3)
    admin.execute_command("ACL", "SETUSER", "ann", "on", ">secret", "~p|*", "+@read", "+@connection")
    admin.set("p|1", "may be read")
    tab = browser.open(f"http://{server.http}/#keys?prefix=p%7C")
    until("no login is asked for", lambda: tab.eval("document.getElementById('login-dialog').open"))
    tab.is_accessible("login")
    tab.picture("login")
    tab.type("#login-user", "ann")
    tab.type("#login-password", "wrong")
    tab.press("Enter")
    tab.sees("invalid username-password pair")
    tab.type("#login-password", "secret")
    tab.press("Enter")
    tab.sees("may be read")
    tab.type("#prefix", "q|")
    tab.press("Enter")
    tab.sees("No permissions to access all keys of a range")
    tab.go("joins")
    tab.type("#spec", "x|<a> = copy p|<a>")
    tab.type("#join-name", "x")
    tab.click("#install")
    tab.sees("no permissions to run the 'join.add' command")
    # Every answer that was a refusal is told by the browser.
    tab.expected = ["status of 401", "status of 403"]
    tab.is_clean(server.http)
    tab.close()


def test_it_is_used_by_keyboard(browser, server, client):
    fill(client)
    tab = browser.open(f"http://{server.http}/")
    tab.sees("Commands per second")
    focused = []
    for _ in range(6):
        tab.press("Tab")
        focused.append(tab.eval("document.activeElement.textContent.trim()"))
    assert focused == ["Skip to content", "Overview", "Keys", "Joins", "Explain", "Log in"]
    tab.press("Enter")
    until("no dialog", lambda: tab.eval("document.getElementById('login-dialog').open"))
    tab.press("Escape")
    until("it stays", lambda: not tab.eval("document.getElementById('login-dialog').open"))
    outline = tab.eval("getComputedStyle(document.activeElement).outlineStyle")
    assert outline != "none"
    tab.is_clean(server.http)
    tab.close()
