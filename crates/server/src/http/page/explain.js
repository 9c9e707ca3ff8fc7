// Why a key has its value, drawn; and a recomputation of a range, compared with what is stored.

import { ask, shown } from "./api.js";
import { make, table } from "./dom.js";

/** VERIFY tells no more of them. */
const MOST_DIFFERENCES = 100;

export async function explain(main, query, signal) {
  const key = make("input", { id: "key", value: query.get("key") || "", class: "mono", spellcheck: "false", autocapitalize: "off" });
  const form = make("form", { class: "row" }, make("label", { class: "wide" }, "Key", key), make("button", { type: "submit" }, "Explain"));
  const out = make("section", { "aria-label": "Explanation", "aria-live": "polite" }, make("p", { class: "faint" }, "Enter a key to see which joins and source keys give its value."));
  const prefix = make("input", { id: "verify-prefix", class: "mono", spellcheck: "false", autocapitalize: "off" });
  const verifyForm = make("form", { class: "row" }, make("label", { class: "wide" }, "Prefix", prefix), make("button", { type: "submit" }, "Verify"));
  const verified = make("div", { id: "verified", "aria-live": "polite" });
  main.append(
    make("section", {}, make("h2", {}, "Why does this key have its value?"), form), out,
    make("section", {}, make("h2", {}, "Verify a range"),
      make("p", { class: "faint" }, "Computes from scratch what joins give in a range, and compares it with what is stored. Nothing is changed."), verifyForm, verified));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const to = `#explain?key=${encodeURIComponent(key.value)}`;
    if (location.hash === to) tell();
    else location.hash = to;
  });
  verifyForm.addEventListener("submit", async (event) => {
    event.preventDefault();
    verified.replaceChildren(make("p", { class: "faint" }, "…"));
    try {
      const { differences } = await ask(`/v1/verify?prefix=${encodeURIComponent(prefix.value)}`, { signal });
      const value = (it) => (it === null ? make("span", { class: "faint" }, "(no such key)") : shown(it));
      const rows = differences.map((it) => [shown(it.key), value(it.stored), value(it.recomputed)]);
      const many = rows.length === 1 ? "1 difference." : `${rows.length}${rows.length < MOST_DIFFERENCES ? "" : " or more"} differences.`;
      verified.replaceChildren(...(rows.length
        ? [make("p", { class: "bad", role: "alert" }, many), table("Differences", [["Key", "key"], ["Stored", "value"], ["Computed now", "value"]], rows, "")]
        : [make("p", { class: "good" }, "No differences.")]));
    } catch (error) {
      verified.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
    }
  });

  async function tell() {
    try {
      const name = key.value;
      const value = await ask(`/v1/range?first=${encodeURIComponent(name)}&last=${encodeURIComponent(name)}%00`, { signal }).catch(() => null);
      const told = await ask(`/v1/explain?key=${encodeURIComponent(name)}`, { signal });
      const text = Array.isArray(told) ? told.map(shown).join("\n") : shown(told);
      const entry = value?.entries[0];
      out.replaceChildren(
        make("h2", { class: "mono" }, name || "(the empty key)"),
        entry ? make("pre", {}, shown(entry.value)) : make("p", { class: "faint" }, value ? "There is no such key now." : "Its value may not be read."),
        draw(text),
        make("details", {}, make("summary", {}, "As text"), make("pre", { class: "keep", tabindex: "0", role: "group", "aria-label": "As text" }, text)));
    } catch (error) {
      if (error.name === "AbortError") return;
      out.replaceChildren(make("p", { class: "bad", role: "alert" }, error.message));
    }
  }
  if (query.has("key")) await tell();
}

/** The lines of EXPLAIN as nested steps. */
function draw(text) {
  const root = make("ol", { class: "why" });
  const open = [[-1, root]];
  for (const line of text.split("\n").filter((it) => it.trim())) {
    const depth = line.length - line.trimStart().length;
    while (open.length > 1 && open.at(-1)[0] >= depth) open.pop();
    const [, title, rest] = /^([^:]*):?\s*(.*)$/.exec(line.trim());
    const kind = title.startsWith("source") ? (rest.startsWith("check") ? "check" : "value") : title.startsWith("status") ? "status" : "";
    const inner = make("ol", {});
    const step = make("li", {}, make("div", { class: `step ${kind}` }, make("b", {}, title), make("span", { class: kind || title === "join" ? "mono" : null }, rest)), inner);
    open.at(-1)[1].append(step);
    open.push([depth, inner]);
  }
  for (const list of root.querySelectorAll("ol:empty")) list.remove();
  return root;
}
