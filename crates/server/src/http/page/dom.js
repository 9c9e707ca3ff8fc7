// Elements, and figures as people read them.

/** An element with attributes (`on…`: listeners) and children. Text is never read as HTML. */
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export function number(value) {
  const figure = Number(value) || 0;
  if (Math.abs(figure) >= 10_000) return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(figure);
  return new Intl.NumberFormat("en", { maximumFractionDigits: figure < 10 ? 2 : 0 }).format(figure);
}

export function size(bytes) {
  let figure = Number(bytes) || 0;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (figure < 1024 || unit === "GiB") return `${figure < 10 && unit !== "B" ? figure.toFixed(1) : Math.round(figure)} ${unit}`;
    figure /= 1024;
  }
  return "";
}

/** A time in microseconds. */
export function duration(micros) {
  let figure = Number(micros) || 0;
  for (const unit of ["µs", "ms"]) {
    if (figure < 1000) return `${figure < 10 && unit === "ms" ? figure.toFixed(1) : Math.round(figure)} ${unit}`;
    figure /= 1000;
  }
  return `${figure < 10 ? figure.toFixed(1) : number(Math.round(figure))} s`;
}

/** A table; columns are [title, class]. */
export function table(caption, columns, rows, empty) {
  if (rows.length === 0) return make("p", { class: "faint" }, empty);
  const head = columns.map(([title, kind]) => make("th", { scope: "col", class: kind }, title));
  const body = rows.map((row) => make("tr", {}, row.map((cell, at) => make("td", { class: columns[at][1] }, cell))));
  return make(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    make("table", {}, make("thead", {}, make("tr", {}, head)), make("tbody", {}, body)),
  );
}

/** Tells something for a moment. */
export function notice(text) {
  const notices = document.getElementById("notices");
  const line = make("p", {}, text);
  notices.append(line);
  if (notices.children.length > 3) notices.firstChild.remove();
  setTimeout(() => line.remove(), 8000);
}
