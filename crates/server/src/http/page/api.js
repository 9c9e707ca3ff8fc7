// What the server answers: requests with the user's login, and live queries over fetch (which can send a login, as EventSource cannot).

const STORED = "headwater-login";
let login = sessionStorage.getItem(STORED) || "";
const listeners = new Set();

/** A refusal, with the server's words. */
export class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `status ${status}`);
    this.status = status;
    this.problem = problem;
  }
}

/** Calls `listener` when somebody must log in. */
export function onLoginNeeded(listener) {
  listeners.add(listener);
}

/** Logs in, or out where no user is given. */
export function setLogin(user, password) {
  if (user === null) {
    login = "";
    sessionStorage.removeItem(STORED);
    return;
  }
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  login = btoa(String.fromCharCode(...bytes));
  sessionStorage.setItem(STORED, login);
}

export const isLoggedIn = () => login !== "";

function headers(more = {}) {
  const all = { "Headwater-Request": "1", ...more };
  if (login) all.Authorization = `Basic ${login}`;
  return all;
}

async function refuse(answer) {
  const problem = await answer.json().catch(() => ({}));
  if (answer.status === 401) listeners.forEach((listener) => listener(problem));
  throw new Refused(answer.status, problem);
}

/** Asks, and gives the answer's JSON; `null` where there is none. */
export async function ask(path, { method = "GET", json, signal } = {}) {
  const options = { method, headers: headers(json ? { "Content-Type": "application/json" } : {}), signal };
  if (json) options.body = JSON.stringify(json);
  const answer = await fetch(path, options);
  if (!answer.ok) await refuse(answer);
  return answer.status === 204 ? null : answer.json();
}

/** The bytes of a key's value, and its time to live in milliseconds or `null`. */
export async function readKey(key) {
  const answer = await fetch(`/v1/keys?key=${encode(key)}`, { headers: headers() });
  if (!answer.ok) await refuse(answer);
  const ttl = answer.headers.get("headwater-ttl-ms");
  return { bytes: new Uint8Array(await answer.arrayBuffer()), ttl: ttl === null ? null : Number(ttl) };
}

/** A byte string of the server's JSON as bytes. */
export function bytesOf(value) {
  if (typeof value === "string") return new TextEncoder().encode(value);
  if (value && typeof value.base64 === "string") {
    return Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
  }
  return new Uint8Array();
}

/** Percent-encodes a byte string of the server's JSON. */
export function encode(value) {
  if (typeof value === "string") return encodeURIComponent(value);
  return Array.from(bytesOf(value), (byte) => "%" + byte.toString(16).padStart(2, "0")).join("");
}

/** A byte string as text for people: what is no text as \x… */
export function shown(value) {
  if (typeof value === "string") return value;
  if (value === null || value === undefined) return "";
  if (typeof value.base64 !== "string") return JSON.stringify(value);
  return Array.from(bytesOf(value), (byte) =>
    byte >= 32 && byte < 127 && byte !== 92 ? String.fromCharCode(byte) : "\\x" + byte.toString(16).padStart(2, "0"),
  ).join("");
}

/**
 * Watches a range (`first=…&last=…` or `prefix=…`) until the signal is given. `on(name, data)` is told each event, and `state`
 * with "live", "lost" or "ended". A lost connection is taken up again where it was.
 */
export async function watch(query, on, signal) {
  let lastId = "";
  let wait = 500;
  while (!signal.aborted) {
    try {
      const more = { Accept: "text/event-stream" };
      if (lastId) more["Last-Event-ID"] = lastId;
      const answer = await fetch(`/v1/watch?${query}`, { headers: headers(more), signal, cache: "no-store" });
      if (!answer.ok) await refuse(answer);
      wait = 500;
      for await (const event of events(answer.body)) {
        if (event.id !== undefined) lastId = event.id;
        if (event.name === "live") on("state", "live");
        on(event.name, event.data);
        if (event.name === "end") {
          on("state", "ended");
          return;
        }
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status !== 503) {
        on("state", "ended");
        on("end", { reason: error.message });
        return;
      }
    }
    if (signal.aborted) return;
    on("state", "lost");
    await new Promise((go) => setTimeout(go, wait));
    wait = Math.min(wait * 2, 8000);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    let end;
    let from = 0;
    while ((end = rest.indexOf("\n\n", from)) >= 0) {
      const event = { name: "", data: null };
      for (const line of rest.slice(from, end).split("\n")) {
        if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("id:")) event.id = line.slice(3).trim();
        else if (line.startsWith("data: ")) event.data = JSON.parse(line.slice(6));
      }
      from = end + 2;
      if (event.name) yield event;
    }
    rest = rest.slice(from);
  }
}
