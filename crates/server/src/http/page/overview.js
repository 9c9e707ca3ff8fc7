// How the server does: figures once a second, with what they were in the last minutes.

import { ask } from "./api.js";
import { make, number, size, svg, table } from "./dom.js";

const KEPT = 120;
const EVERY = 1000;
const KINDS = [
  ["Values", ["used_memory_values", "used_memory_values_spare"]],
  ["Keys", ["used_memory_keys"]],
  ["Indexes", ["used_memory_index"]],
  ["Joins", ["used_memory_updaters", "used_memory_status_ranges"]],
  ["Streams", ["used_memory_streams"]],
  ["Clients", ["used_memory_clients", "used_memory_tracking", "used_memory_functions"]],
];

/** The figures of all sections, by name. */
function flat(info) {
  return Object.assign({}, ...Object.values(info));
}

function tile(title) {
  const figure = make("p", { class: "figure" }, "–");
  const note = make("p", { class: "faint small" });
  const spark = svg("svg", { class: "spark", viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" });
  const history = [];
  const element = make("div", { class: "tile" }, make("h2", { class: "small faint" }, title), figure, note, spark);
  return {
    element,
    tell(value, text, more = "") {
      figure.textContent = text;
      note.textContent = more;
      history.push(value);
      if (history.length > KEPT) history.shift();
      const most = Math.max(...history, 1e-9);
      const begin = 100 - (100 * (history.length - 1)) / (KEPT - 1);
      const points = history.map((it, at) => `${(begin + (100 * at) / (KEPT - 1)).toFixed(1)},${(28 - (26 * it) / most).toFixed(1)}`);
      spark.replaceChildren(
        svg("path", { class: "area", d: `M${begin.toFixed(1)},30L${points.join("L")}L100,30Z` }),
        svg("path", { class: "line", d: `M${points.join("L")}` }),
      );
    },
  };
}

function commands(stats) {
  const all = new Map();
  for (const [name, facts] of Object.entries(stats)) {
    if (name.startsWith("cmdstat_")) {
      all.set(name.slice(8), { calls: Number(facts.calls), micros: Number(facts.usec) });
    }
  }
  return all;
}

function memory(info) {
  const sum = (names) => names.reduce((all, name) => all + (Number(info[name]) || 0), 0);
  const parts = KINDS.map(([title, names]) => [title, sum(names)]);
  const used = Number(info.maxmemory_used) || Number(info.used_memory_rss) || 0;
  const known = parts.reduce((all, [, bytes]) => all + bytes, 0);
  parts.push(["Program and spare", Math.max(0, used - known)]);
  const bound = Number(info.maxmemory) || 0;
  const whole = Math.max(bound, used, 1);
  const bar = make("div", { class: "bar", role: "img", "aria-label": `Memory: ${size(used)} used${bound ? ` of ${size(bound)}` : ""}` });
  parts.forEach(([, bytes], at) => {
    const part = make("span", { class: `k${at}` });
    part.style.width = `${(100 * bytes) / whole}%`;
    bar.append(part);
  });
  const rows = parts.map(([title, bytes], at) => [[make("span", { class: `dot k${at}` }), title], size(bytes)]);
  return [
    make("p", {}, make("strong", {}, size(used)), bound ? ` of ${size(bound)} (${Math.round((100 * used) / bound)} %)` : " used; there is no bound (--memory)"),
    bar,
    table("Memory by kind", [["Kind", ""], ["Bytes", "number"]], rows, ""),
  ];
}

export async function overview(main, _query, signal) {
  const tiles = {
    throughput: tile("Commands per second"),
    latency: tile("Time per command"),
    hits: tile("Hit rate"),
    keys: tile("Keys"),
    clients: tile("Clients"),
    watches: tile("Changes sent per second"),
  };
  const places = {};
  const card = (name, title) => {
    places[name] = make("div", {});
    return make("section", { "aria-label": title }, make("h2", {}, title), places[name]);
  };
  main.append(
    make("div", { class: "tiles" }, Object.values(tiles).map((it) => it.element)),
    make("div", { class: "grid" }, card("memory", "Memory"), card("commands", "Commands"), card("server", "Server"), card("shards", "Shards"), card("sources", "Sources"), card("flows", "Flows")),
    card("log", "Log"),
  );
  let before = null;
  let round = 0;
  while (!signal.aborted) {
    const [info, at] = [flat(await ask("/v1/info?section=everything", { signal })), performance.now()];
    tellFigures(tiles, places, info, before, at);
    if (round % 3 === 0) await tellLists(places, signal);
    before = { info, at };
    round += 1;
    await new Promise((go) => {
      const timer = setTimeout(go, EVERY);
      signal.addEventListener("abort", () => { clearTimeout(timer); go(); }, { once: true });
    });
  }
}

function tellFigures(tiles, places, info, before, at) {
  const seconds = before ? (at - before.at) / 1000 : 0;
  const grown = (name) => (before ? Math.max(0, Number(info[name]) - Number(before.info[name])) : 0);
  const rate = (name) => (seconds ? grown(name) / seconds : 0);
  const throughput = before ? rate("total_commands_processed") : Number(info.instantaneous_ops_per_sec) || 0;
  tiles.throughput.tell(throughput, number(throughput), `${number(info.total_commands_processed)} in all`);
  const now = commands(info);
  const then = before ? commands(before.info) : new Map();
  const rows = [];
  let [calls, micros] = [0, 0];
  for (const [name, facts] of now) {
    const old = then.get(name) || { calls: 0, micros: 0 };
    calls += facts.calls - old.calls;
    micros += facts.micros - old.micros;
    const spread = info[`latency_percentiles_usec_${name}`];
    const p99 = spread && typeof spread === "object" ? `${number(Number(spread.p99))} µs` : "–";
    rows.push({ name, calls: facts.calls, row: [name, number(facts.calls), `${number(facts.micros / Math.max(1, facts.calls))} µs`, p99] });
  }
  const mean = calls > 0 ? micros / calls : 0;
  tiles.latency.tell(mean, `${number(mean)} µs`, "mean, within the server");
  const [hits, misses] = [Number(info.keyspace_hits) || 0, Number(info.keyspace_misses) || 0];
  const [newHits, newMisses] = [grown("keyspace_hits"), grown("keyspace_misses")];
  const all = newHits + newMisses > 0 ? [newHits, newMisses] : [hits, misses];
  const share = all[0] / Math.max(1, all[0] + all[1]);
  tiles.hits.tell(share, all[0] + all[1] ? `${(100 * share).toFixed(1)} %` : "–", `${number(hits)} hits, ${number(misses)} misses`);
  const keys = Number(info.db0?.keys) || 0;
  tiles.keys.tell(keys, number(keys), `${number(info.evicted_keys)} evicted, ${number(info.expired_keys)} expired`);
  tiles.clients.tell(Number(info.connected_clients), number(info.connected_clients), `of ${number(info.maxclients)}`);
  tiles.watches.tell(rate("range_changes_sent"), number(rate("range_changes_sent")), `${number(info.range_watches)} watches of ranges`);
  places.memory.replaceChildren(...memory(info));
  rows.sort((a, b) => b.calls - a.calls);
  places.commands.replaceChildren(
    table("Commands", [["Command", ""], ["Calls", "number"], ["Mean", "number"], ["p99", "number"]], rows.slice(0, 8).map((it) => it.row), "None yet."),
  );
  const facts = [
    ["Version", info.headwater_version],
    ["Up", duration(Number(info.uptime_in_seconds))],
    ["Shards", info.shards],
    ["Messages between shards", number(info.shards_messages_sent)],
    ["Joins", Object.keys(info).filter((name) => name.startsWith("join_")).length],
    ["Data on disk", info.data_enabled === "1" ? "yes" : "no"],
    ["Refused for rights", number(Number(info.acl_access_denied_cmd) + Number(info.acl_access_denied_key) + Number(info.acl_access_denied_auth))],
    ["Errors", number(info.total_error_replies)],
  ];
  places.server.replaceChildren(table("Server", [["Figure", ""], ["Value", "number"]], facts.map(([name, text]) => [name, String(text ?? "–")]), ""));
}

function duration(seconds) {
  if (seconds < 120) return `${seconds} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} days`;
}

/** Lists, of which each may be forbidden by itself. */
async function tellLists(places, signal) {
  const tell = async (name, path, show) => {
    try {
      places[name].replaceChildren(show(await ask(path, { signal })));
    } catch (error) {
      if (error.name === "AbortError") throw error;
      places[name].replaceChildren(make("p", { class: "faint" }, error.message));
    }
  };
  const health = (text) => make("span", { class: `badge ${text === "up" ? "good" : "bad"}` }, text);
  await tell("sources", "/v1/sources", (all) =>
    table("Sources", [["Name", ""], ["Kind", ""], ["State", ""], ["Lag", "number"], ["Last heard", "number"]],
      all.map((it) => [it.name, it.kind, health(String(it.state)),
        it.lag_bytes === undefined ? "–" : size(it.lag_bytes),
        !it.seconds_since_heard ? "–" : `${number(it.seconds_since_heard)} s`]), "None."));
  await tell("shards", "/v1/shards", (all) =>
    table("Shards", [["Shard", ""], ["Partitions", "number"], ["Keys", "number"], ["Clients", "number"], ["Forwarded", "number"]],
      all.map((it) => [String(it.shard), number(it.partitions), number(it.keys), number(it.clients), number(it["requests-forwarded"])]), "None."));
  await tell("flows", "/v1/flows", (all) =>
    table("Flows", [["Name", ""], ["Backlog", "number"], ["Oldest", "number"], ["Dead", "number"], ["State", ""]],
      all.map((it) => [it.name, number(it.backlog), it["oldest-pending-ms"] === undefined ? "–" : `${number(it["oldest-pending-ms"])} ms`, Number(it.dead) > 0 ? make("span", { class: "bad" }, number(it.dead)) : "0", it.refused ? "refused" : Number(it.paused) ? "paused" : "running"]), "None."));
  await tell("log", "/v1/log?lines=30", ({ lines }) =>
    lines.length ? make("pre", { class: "small", tabindex: "0", role: "group", "aria-label": "Lines of the log" }, lines.join("\n")) : make("p", { class: "faint" }, "Nothing was logged."));
}
