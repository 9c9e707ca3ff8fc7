// A timeline that updates itself: the page keeps a copy of the range t|USER| as /v1/watch tells it, and writes posts and
// subscriptions as plain keys. The join does the rest.

const parameters = new URLSearchParams(location.search);
const user = parameters.get("user") || "ann";
const server = parameters.get("server") || "http://127.0.0.1:7380";
const posts = new Map();
const list = document.getElementById("posts");
document.getElementById("user").textContent = user;

const key = (...components) => encodeURIComponent(components.join("|"));

function draw() {
  const newest = [...posts].sort(([a], [b]) => (a < b ? 1 : -1)).slice(0, 50);
  list.replaceChildren(...newest.map(([name, text]) => {
    const item = document.createElement("li");
    const poster = document.createElement("b");
    poster.textContent = name.split("|")[3];
    item.append(poster, text);
    return item;
  }));
}

// EventSource comes back by itself, with the id of the last event: what was missed is told then.
const events = new EventSource(`${server}/v1/watch?prefix=${key("t", user, "")}`);
const state = (text) => { document.getElementById("state").textContent = text; };
events.addEventListener("snapshot", ({ data }) => {
  JSON.parse(data).entries.forEach((entry) => posts.set(entry.key, entry.value));
  draw();
});
events.addEventListener("change", ({ data }) => {
  const change = JSON.parse(data);
  if (change.op === "set") posts.set(change.key, change.value);
  else posts.delete(change.key);
  draw();
});
events.addEventListener("resync", () => posts.clear());
events.addEventListener("live", () => { state("live"); draw(); });
events.addEventListener("end", ({ data }) => { state(JSON.parse(data).reason); events.close(); });
events.onerror = () => state("reconnecting");

const put = (name, value) => fetch(`${server}/v1/keys/${name}`, { method: "PUT", body: value });
document.getElementById("post").addEventListener("submit", async (event) => {
  event.preventDefault();
  const text = document.getElementById("text");
  // Times of one width sort as text.
  const time = String(Date.now()).padStart(15, "0");
  await put(key("p", document.getElementById("poster").value, time), text.value);
  text.value = "";
});
const whom = () => key("s", user, document.getElementById("whom").value);
document.getElementById("follow").addEventListener("submit", (event) => {
  event.preventDefault();
  put(whom(), "1");
});
document.getElementById("unfollow").addEventListener("click", () => fetch(`${server}/v1/keys/${whom()}`, { method: "DELETE" }));
