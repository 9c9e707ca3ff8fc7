// Joins: what is installed, as a graph and a table, and a box to try a new one before it is installed.

import { ask, shown } from "./api.js";
import { duration, make, notice, number, size, table } from "./dom.js";
import { graph } from "./graph.js";

const EXAMPLE = "timeline|<user>|<time>|<poster> = check sub|<user>|<poster> copy post|<poster>|<time>";

export async function joins(main, _query, signal) {
  const picture = make("section", { "aria-label": "Graph of joins" });
  const list = make("section", { "aria-label": "Installed joins" });
  main.append(picture, list, tryBox(main, signal, () => refresh()));

  async function refresh() {
    const [all, tables] = await Promise.all([
      ask("/v1/joins", { signal }),
      ask("/v1/tables", { signal }).catch(() => []),
    ]);
    const counts = new Map(tables.map((it) => [shown(it.name), it.keys]));
    picture.replaceChildren(
      make("h2", {}, "Joins"),
      ...(all.length
        ? [
          make("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Graph of joins" }, graph(all, counts)),
          make("p", { class: "faint small" }, "Blue tables are derived. A solid line gives the value, a dashed one is checked. Hits are reads of what was materialized; updates are changes applied to it, and maintenance is the time that this took."),
        ]
        : [make("p", { class: "faint" }, "No join is installed. Try one below.")]));
    const rows = all.map((join) => [
      [make("strong", {}, join.name), make("br"), make("code", {}, join.spec), join.refused ? make("p", { class: "bad" }, `refused: ${join.refused}`) : null].filter(Boolean),
      number(join.outputs), number(join.hits), number(join.fills), number(join.updates), duration(join.maintenance_usec), number(join.rebuilds), number(join.status_ranges), size(join.status_range_bytes),
      make("button", { type: "button", class: "bad", onclick: () => drop(join.name), "aria-label": `Drop ${join.name}` }, "Drop"),
    ]);
    list.replaceChildren(
      make("h2", {}, "Installed"),
      make("p", { class: "faint small" }, "Hits: reads of what was there. Computed: gaps that a read had to fill. Updates: changes applied to what was there. Maintenance: the time that this took, estimated from samples. Ranges: spans of outputs that are materialized now."),
      table("Installed joins", [["Join", "wide"], ["Outputs", "number"], ["Hits", "number"], ["Computed", "number"], ["Updates", "number"], ["Maintenance", "number"], ["Rebuilt", "number"], ["Ranges", "number"], ["Memory", "number"], ["Change", ""]], rows, "None."));
  }

  async function drop(name) {
    if (!confirm(`Drop the join ${name} and what it has materialized?`)) return;
    try {
      await ask(`/v1/joins/${encodeURIComponent(name)}`, { method: "DELETE" });
      notice(`The join ${name} is dropped.`);
      await refresh();
    } catch (error) {
      notice(error.message);
    }
  }
  await refresh();
}

function tryBox(_main, signal, installed) {
  const spec = make("textarea", { id: "spec", spellcheck: "false", autocapitalize: "off", placeholder: EXAMPLE, "aria-describedby": "tried" });
  const name = make("input", { id: "join-name", autocapitalize: "off", spellcheck: "false", maxlength: "128" });
  const out = make("div", { id: "tried", "aria-live": "polite" });
  const add = make("button", { type: "button", id: "install", class: "quiet" }, "Install");
  const form = make("form", {},
    make("label", { for: "spec" }, "Text of the join"), spec,
    make("p", { class: "buttons" },
      make("button", { type: "submit", id: "try" }, "Try"),
      make("label", { class: "inline" }, "Name", name), add));
  const trySpec = async () => {
    out.replaceChildren(make("p", { class: "faint" }, "…"));
    try {
      const told = await ask("/v1/joins/try", { method: "POST", json: { spec: spec.value }, signal });
      const warnings = told.warnings.map((it) => make("p", { class: "warn" }, it));
      const rows = told.entries.map((entry) => [shown(entry.key), entry.omitted ? `(${size(entry.omitted)})` : shown(entry.value)]);
      out.replaceChildren(
        make("h3", {}, "It would give"),
        make("p", {}, make("code", {}, told.spec)), ...warnings,
        table("First outputs", [["Key", "key"], ["Value", "value"]], rows, "Nothing of what is stored now."),
        make("p", { class: "faint small" }, told.complete
          ? `The first ${rows.length} outputs, from ${number(told.looked_at)} source keys.`
          : `Only a part of the source keys was looked at (${number(told.looked_at)}): values that add up many keys may be more.`));
    } catch (error) {
      tellError(error);
    }
  };
  const tellError = (error) => {
    const at = error.problem?.at;
    const first = error.message.split("\n")[0];
    const marks = [];
    if (at !== undefined) {
      const before = [...spec.value].slice(0, at).join("");
      const line = before.split("\n").length - 1;
      const lines = spec.value.split("\n");
      const column = [...before.split("\n").at(-1)].length;
      marks.push(make("pre", { class: "keep", id: "caret", tabindex: "0", role: "group", "aria-label": "Where it is wrong" },
        `${lines.slice(0, line + 1).join("\n")}\n${" ".repeat(column)}^\n${lines.slice(line + 1).join("\n")}`.trimEnd()));
    }
    out.replaceChildren(make("p", { class: "bad", role: "alert" }, first), ...marks);
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    trySpec();
  });
  add.addEventListener("click", async () => {
    if (!name.value) {
      name.focus();
      out.replaceChildren(make("p", { class: "bad", role: "alert" }, "Give the join a name."));
      return;
    }
    try {
      await ask("/v1/joins", { method: "POST", json: { name: name.value, spec: spec.value }, signal });
      notice(`The join ${name.value} is installed.`);
      await trySpec();
      await installed();
    } catch (error) {
      tellError(error);
    }
  });
  return make("section", { "aria-label": "Try a join" },
    make("h2", {}, "Try a join"),
    make("p", { class: "faint" }, "Trying a join changes nothing. Its outputs are computed from the keys that you may read."),
    form, out);
}
