// Joins as a graph: tables as nodes in layers, the join's sources as edges.

import { duration, number, svg } from "./dom.js";

const [WIDTH, HEIGHT, GAP_X, GAP_Y] = [190, 90, 100, 24];
const OPERATORS = new Set(["check", "copy", "index", "count", "sum", "min", "max", "avg", "first", "last", "distinct"]);
/** Operators with a number before their pattern. */
const COUNTED = new Set(["distinct~", "topk", "percentile"]);

/** The parts of a join's text in its canonical form. */
export function parse(spec) {
  const [output, rest] = spec.split(" = ", 2);
  const words = (rest || "").split(/\s+/);
  const sources = [];
  for (let at = 0; at < words.length; at += 1) {
    const operator = words[at];
    const pattern = words[at + (COUNTED.has(operator) ? 2 : 1)];
    const isSource = OPERATORS.has(operator) || COUNTED.has(operator) || operator.startsWith("map:");
    if (isSource && pattern !== undefined) sources.push({ operator, pattern, table: pattern.split("|")[0] });
  }
  const mode = ["auto", "pull", "snapshot"].find((it) => words[0] === it) || "push";
  return { output, table: output.split("|")[0], sources, mode };
}

/** The graph of all joins; `counts` has the keys of each table. */
export function graph(joins, counts) {
  const depth = new Map();
  const parsed = joins.map((join) => ({ ...join, ...parse(join.spec) }));
  for (const join of parsed) for (const source of join.sources) depth.set(source.table, depth.get(source.table) ?? 0);
  for (let round = 0; round <= parsed.length; round += 1) {
    for (const join of parsed) {
      const below = join.sources.filter((it) => it.table !== join.table).map((it) => depth.get(it.table) ?? 0);
      const own = Math.min(Math.max(0, ...below) + 1, 12);
      depth.set(join.table, Math.max(depth.get(join.table) ?? 0, own));
    }
  }
  const layers = [];
  for (const [table, at] of [...depth].sort(([a], [b]) => (a < b ? -1 : 1))) (layers[at] ||= []).push(table);
  const columns = layers.filter(Boolean);
  untangle(columns, parsed);
  const tallest = Math.max(1, ...columns.map((it) => it.length));
  const place = new Map();
  columns.forEach((tables, x) => tables.forEach((table, y) => {
    const shift = ((tallest - tables.length) * (HEIGHT + GAP_Y)) / 2;
    place.set(table, [10 + x * (WIDTH + GAP_X), GAP_Y + shift + y * (HEIGHT + GAP_Y)]);
  }));
  const width = 20 + columns.length * (WIDTH + GAP_X) - GAP_X;
  const height = tallest * (HEIGHT + GAP_Y) + GAP_Y;
  const derived = new Set(parsed.map((it) => it.table));
  const edges = parsed.flatMap((join) => join.sources.map((source) => {
    const [fromX, fromY] = place.get(source.table);
    const [toX, toY] = place.get(join.table);
    const ways = [[fromX + WIDTH, fromY + HEIGHT / 2], ...between(columns, place, fromX, toX, fromY, toY), [toX - 4, toY + HEIGHT / 2]];
    return svg("g", { class: `edge ${source.operator === "check" ? "check" : "value"}` },
      svg("title", {}, `${join.name}: ${source.operator} ${source.pattern}`),
      svg("path", { d: curve(ways), "marker-end": "url(#arrow)" }));
  }));
  const nodes = [...place].map(([table, [x, y]]) => {
    const makers = parsed.filter((it) => it.table === table).map((it) => it.name);
    const keys = counts.get(table);
    const ways = parsed.filter((it) => it.table === table);
    const sum = (name) => ways.reduce((all, it) => all + (Number(it[name]) || 0), 0);
    const note = `${keys === undefined ? "?" : number(keys)} ${Number(keys) === 1 ? "key" : "keys"}${makers.length ? ` · ${makers[0]}${makers.length > 1 ? "…" : ""}` : ""}`;
    const work = ways.length ? `${number(sum("hits"))} hits · ${number(sum("updates"))} updates` : "base keys";
    const cost = ways.length ? `${duration(sum("maintenance_usec"))} of maintenance` : "";
    return svg("g", { class: derived.has(table) ? "node derived" : "node" },
      svg("title", {}, makers.length ? `${table}: from ${makers.join(", ")}` : table),
      svg("rect", { x, y, width: WIDTH, height: HEIGHT, rx: 7 }),
      svg("text", { x: x + 12, y: y + 22 }, table.length > 20 ? `${table.slice(0, 19)}…` : table),
      svg("text", { x: x + 12, y: y + 41, class: "small" }, note.length > 25 ? `${note.slice(0, 24)}…` : note),
      svg("text", { x: x + 12, y: y + 59, class: "small" }, work.length > 25 ? `${work.slice(0, 24)}…` : work),
      svg("text", { x: x + 12, y: y + 77, class: "small" }, cost));
  });
  const summary = parsed.map((it) => `${it.table} from ${it.sources.map((source) => source.table).join(" and ")}`).join("; ");
  return svg("svg", { class: "graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Joins: ${summary}` },
    svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 6, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0,0L8,4L0,8Z" }))),
    edges, nodes);
}

/** Orders the tables of each column by where what they come of stands, so that fewer edges cross. */
function untangle(columns, joins) {
  const at = new Map();
  const note = (tables) => tables.forEach((table, y) => at.set(table, y / tables.length));
  const mean = (places, own) => (places.length ? places.reduce((all, it) => all + it, 0) / places.length : own);
  columns.forEach(note);
  for (let round = 0; round < 4; round += 1) {
    const forth = round % 2 === 0;
    const order = forth ? columns : [...columns].reverse();
    for (const tables of order.slice(1)) {
      const wanted = new Map(tables.map((table) => {
        const beside = forth
          ? joins.filter((it) => it.table === table).flatMap((it) => it.sources.map((source) => source.table))
          : joins.filter((it) => it.sources.some((source) => source.table === table)).map((it) => it.table);
        return [table, mean(beside.map((it) => at.get(it)), at.get(table))];
      }));
      tables.sort((a, b) => wanted.get(a) - wanted.get(b));
      note(tables);
    }
  }
}

/** Where an edge enters and leaves each column that it passes: beside its tables, not through them. */
function between(columns, place, fromX, toX, fromY, toY) {
  const ways = [];
  for (const tables of columns) {
    const [x, top] = place.get(tables[0]);
    if (x <= fromX || x >= toX) continue;
    const wanted = fromY + HEIGHT / 2 + ((toY - fromY) * (x - fromX)) / (toX - fromX);
    const gaps = [top - GAP_Y / 2, ...tables.map((table) => place.get(table)[1] + HEIGHT + GAP_Y / 2)];
    const y = gaps.reduce((best, gap) => (Math.abs(gap - wanted) < Math.abs(best - wanted) ? gap : best));
    ways.push([x - 6, y], [x + WIDTH + 6, y]);
  }
  return ways;
}

/** A curve through points, which it passes level. */
function curve(ways) {
  let path = `M${ways[0]}`;
  for (let at = 1; at < ways.length; at += 1) {
    const [[x1, y1], [x2, y2]] = [ways[at - 1], ways[at]];
    const bend = Math.abs(x2 - x1) / 2;
    path += `C${x1 + bend},${y1} ${x2 - bend},${y2} ${x2},${y2}`;
  }
  return path;
}
