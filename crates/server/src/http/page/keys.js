// The browser of keys: by table and prefix, a page at a time; values as text, JSON or bytes; live where that is wanted.

import { Refused, ask, bytesOf, encode, readKey, shown, watch } from "./api.js";
import { make, notice, number, size, table } from "./dom.js";

const PAGE = 50;
/** Rows at most of what is followed: keys may come between those of a page. */
const SHOWN = 200;
const LONG = 200;

function hex(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, 4096); at += 16) {
    const row = bytes.slice(at, at + 16);
    const digits = Array.from(row, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
    const text = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${digits.padEnd(47)}  ${text}`);
  }
  if (bytes.length > 4096) lines.push(`… ${number(bytes.length - 4096)} further bytes`);
  return lines.join("\n");
}

function json(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return null;
  }
}

export async function keys(main, query, signal) {
  const prefix = query.get("prefix") || "";
  const box = make("input", { id: "prefix", name: "prefix", value: prefix, spellcheck: "false", autocapitalize: "off", class: "mono" });
  const select = make("select", { id: "table" }, make("option", { value: "" }, "any"));
  const live = make("input", { type: "checkbox", id: "live" });
  const rev = make("input", { type: "checkbox", id: "rev" });
  const form = make("form", { class: "row", role: "search" },
    make("label", {}, "Table", select),
    make("label", { class: "wide" }, "Prefix", box),
    make("label", { class: "inline" }, rev, "Last first"),
    make("label", { class: "inline" }, live, "Live"),
    make("button", { type: "submit" }, "Show"));
  const list = make("section", { "aria-label": "Keys", "aria-busy": "true" });
  const detail = make("section", { id: "value", tabindex: "0", "aria-label": "Value", "aria-live": "polite" }, make("p", { class: "faint" }, "Choose a key to see its value."));
  main.append(make("section", {}, make("h2", {}, "Keys"), form), make("div", { class: "grid" }, list, detail));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const to = `#keys?prefix=${encodeURIComponent(box.value)}`;
    if (location.hash === to) location.replace(to), open();
    else location.hash = to;
  });
  select.addEventListener("change", () => {
    box.value = select.value ? `${select.value}|` : "";
    location.hash = `#keys?prefix=${encodeURIComponent(box.value)}`;
  });
  let watching = new AbortController();
  signal.addEventListener("abort", () => watching.abort());

  /** Shows the first page, or begins to watch. */
  async function open() {
    watching.abort();
    watching = new AbortController();
    try {
      if (live.checked) await follow(watching.signal);
      else await page(`/v1/range?prefix=${encodeURIComponent(prefix)}&limit=${PAGE}${rev.checked ? "&rev=1" : ""}`, 0, []);
    } catch (error) {
      if (error.name === "AbortError") return;
      list.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
    } finally {
      list.removeAttribute("aria-busy");
    }
  }
  live.addEventListener("change", open);
  rev.addEventListener("change", open);

  function row(entry, changed) {
    const name = shown(entry.key);
    const value = entry.omitted !== undefined ? `(${size(entry.omitted)})` : shown(entry.value);
    const button = make("button", { type: "button", class: "link", onclick: () => show(entry.key) }, name === "" ? "(the empty key)" : name);
    return make("tr", { class: changed ? "changed" : null },
      make("td", { class: "key" }, button),
      make("td", { class: "value" }, value.length > LONG ? `${value.slice(0, LONG)}…` : value));
  }

  function rows(body) {
    return make("div", { class: "scroll" },
      make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "Key"), make("th", { scope: "col" }, "Value"))), body));
  }

  async function page(link, from, before) {
    const told = await ask(link, { signal });
    const body = make("tbody", {}, told.entries.map((entry) => row(entry)));
    const count = told.entries.length;
    const back = before.length > 0;
    list.replaceChildren(
      make("p", { class: "faint", id: "count" }, count ? `Keys ${number(from + 1)} to ${number(from + count)}` : "No keys begin with this."),
      rows(body),
      make("p", { class: "buttons" },
        make("button", { type: "button", class: "quiet", disabled: !back, onclick: () => page(before.at(-1)[0], before.at(-1)[1], before.slice(0, -1)).catch(tell) }, "Back"),
        make("button", { type: "button", class: "quiet", id: "next", disabled: !told.next, onclick: () => page(told.next, from + count, [...before, [link, from]]).catch(tell) }, "Next")));
  }

  function tell(error) {
    if (error.name !== "AbortError") notice(error.message);
  }

  /** What is followed: the keys of one page, and what lies between them. All of a prefix may be too much for a browser. */
  async function spanOf(stop) {
    const whole = `prefix=${encodeURIComponent(prefix)}`;
    const told = await ask(`/v1/range?${whole}&limit=${PAGE}&keys=1${rev.checked ? "&rev=1" : ""}`, { signal: stop });
    if (!told.next) return { span: whole, isAll: true };
    const last = encode(told.keys.at(-1));
    const end = encodeEnd(bytesOf(prefix));
    return { span: rev.checked ? `first=${last}&last=${end}` : `first=${encodeURIComponent(prefix)}&last=${last}%00`, isAll: false };
  }

  /** Keeps the first keys of the range on the page as they change. */
  async function follow(stop) {
    const all = new Map();
    const state = make("span", { class: "badge", id: "live-state" }, "…");
    const count = make("span", {}, "");
    const body = make("tbody", {});
    list.replaceChildren(make("p", {}, state, " ", count), rows(body));
    let told = null;
    for (let wait = 500; told === null; wait = Math.min(wait * 2, 8000)) {
      try {
        told = await spanOf(stop);
      } catch (error) {
        if (stop.aborted || error instanceof Refused) throw error;
        state.textContent = "lost";
        state.className = "badge bad";
        await new Promise((go) => setTimeout(go, wait));
      }
    }
    const { span, isAll } = told;
    const changed = new Set();
    let due = false;
    const draw = () => {
      due = false;
      let names = [...all.keys()].sort(compare);
      if (rev.checked) names.reverse();
      const more = isAll ? "" : `, the ${rev.checked ? "last" : "first"} of the prefix`;
      count.textContent = `${number(names.length)} keys${more}${names.length > SHOWN ? `; ${SHOWN} are shown` : ""}`;
      body.replaceChildren(...names.slice(0, SHOWN).map((name) => row(all.get(name), changed.has(name))));
      changed.clear();
    };
    const soon = () => {
      if (!due) {
        due = true;
        setTimeout(draw, 100);
      }
    };
    const put = (entry) => all.set(shown(entry.key), entry);
    await watch(span, (name, data) => {
      if (name === "state") {
        state.textContent = data;
        state.className = `badge ${data === "live" ? "good" : "bad"}`;
      } else if (name === "snapshot") data.entries.forEach(put);
      else if (name === "resync") all.clear();
      else if (name === "end") notice(`No longer live: ${data.reason}`);
      else if (name === "change") {
        const key = shown(data.key);
        changed.add(key);
        if (data.op === "set") put(data);
        else all.delete(key);
      }
      soon();
    }, stop);
  }

  async function show(key) {
    try {
      const { bytes, ttl } = await readKey(key);
      const text = new TextDecoder("utf-8", { fatal: true });
      let plain = null;
      try {
        plain = text.decode(bytes);
      } catch {
        // It is no text.
      }
      const formatted = plain === null ? null : json(plain);
      const forms = [["Text", plain], ["JSON", formatted], ["Hex", hex(bytes)]].filter(([, it]) => it !== null);
      const out = make("pre", { class: "keep", tabindex: "0", role: "group", "aria-label": "Value" });
      const buttons = forms.map(([name, it]) => make("button", {
        type: "button", class: "quiet", "aria-pressed": "false",
        onclick: (event) => choose(event.currentTarget, it),
      }, name));
      const choose = (button, it) => {
        buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        out.textContent = it;
      };
      const lives = ttl === null ? "never expires" : `expires in ${number(ttl / 1000)} s`;
      detail.replaceChildren(
        make("h2", { class: "mono" }, shown(key) || "(the empty key)"),
        make("p", { class: "faint" }, `${number(bytes.length)} bytes, ${lives}. `, make("a", { href: `#explain?key=${encode(key)}` }, "Why does it have this value?")),
        make("p", { class: "buttons" }, buttons), out,
        make("p", { class: "buttons" }, make("button", { type: "button", class: "bad", onclick: () => remove(key) }, "Remove the key")));
      choose(buttons[formatted === null ? 0 : 1], forms[formatted === null ? 0 : 1][1]);
      // Where it stands below the list, as on a telephone, it would not be seen.
      detail.scrollIntoView({ block: "nearest" });
    } catch (error) {
      detail.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
    }
  }

  async function remove(key) {
    if (!confirm(`Remove ${shown(key)}?`)) return;
    try {
      await ask(`/v1/keys?key=${encode(key)}`, { method: "DELETE" });
      notice("The key is removed.");
      detail.replaceChildren();
      if (!live.checked) open();
    } catch (error) {
      notice(error.message);
    }
  }
  /** Offers the tables, where they may be known. */
  async function offerTables() {
    const tables = await ask("/v1/tables", { signal }).catch(() => []);
    for (const it of tables) {
      const name = shown(it.name);
      if (name) select.append(make("option", { value: name, selected: prefix.startsWith(`${name}|`) }, `${name} (${number(it.keys)})`));
    }
  }
  await Promise.all([open(), offerTables()]);
}

/** The end of all that begins so, percent-encoded; nothing where that is the end of all keys. */
function encodeEnd(bytes) {
  let length = bytes.length;
  while (length > 0 && bytes[length - 1] === 255) length -= 1;
  if (length === 0) return "";
  const end = bytes.slice(0, length);
  end[length - 1] += 1;
  return Array.from(end, (byte) => "%" + byte.toString(16).padStart(2, "0")).join("");
}

/** Bytewise, as the server orders keys. */
function compare(a, b) {
  const [left, right] = [bytesOf(a), bytesOf(b)];
  const until = Math.min(left.length, right.length);
  for (let at = 0; at < until; at += 1) if (left[at] !== right[at]) return left[at] - right[at];
  return left.length - right.length;
}
