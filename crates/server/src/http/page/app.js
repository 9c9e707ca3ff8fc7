// The frame: views by the address's fragment, and logging in.

import { ask, isLoggedIn, onLoginNeeded, setLogin } from "./api.js";
import { make, notice } from "./dom.js";
import { overview } from "./overview.js";
import { keys } from "./keys.js";
import { joins } from "./joins.js";
import { explain } from "./explain.js";

const views = { overview, keys, joins, explain };
const main = document.getElementById("main");
const dialog = document.getElementById("login-dialog");
let stop = new AbortController();

function show() {
  const [name, query] = location.hash.slice(1).split("?");
  const view = views[name] ? name : "overview";
  stop.abort();
  stop = new AbortController();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href") === `#${view}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${view[0].toUpperCase()}${view.slice(1)} · Headwater`;
  main.replaceChildren();
  Promise.resolve(views[view](main, new URLSearchParams(query || ""), stop.signal)).catch((error) => {
    if (error.name === "AbortError") return;
    main.append(make("section", { role: "alert" }, make("p", { class: "bad" }, error.message)));
  });
}

async function tellUser() {
  const place = document.getElementById("user");
  const button = document.getElementById("login");
  button.textContent = isLoggedIn() ? "Log out" : "Log in";
  try {
    place.textContent = (await ask("/v1/user")).user;
  } catch (error) {
    place.textContent = error.status === 401 ? "not logged in" : "a user";
  }
}

function openLogin(why) {
  if (dialog.open) return;
  if (why) document.getElementById("login-why").textContent = why;
  dialog.showModal();
}

onLoginNeeded((problem) => openLogin(problem.detail));
document.getElementById("login").addEventListener("click", () => {
  if (isLoggedIn()) {
    setLogin(null);
    tellUser();
    show();
  } else openLogin();
});
document.getElementById("login-cancel").addEventListener("click", () => dialog.close());
document.getElementById("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const user = document.getElementById("login-user").value;
  const password = document.getElementById("login-password");
  setLogin(user, password.value);
  try {
    await ask("/v1/user");
  } catch (error) {
    // A user who may not ask for its name is logged in nevertheless.
    if (error.status === 401) {
      setLogin(null);
      document.getElementById("login-why").textContent = error.message;
      return;
    }
  }
  password.value = "";
  dialog.close();
  notice(`Logged in as ${user}`);
  tellUser();
  show();
});
addEventListener("hashchange", () => {
  show();
  main.focus();
});
show();
tellUser();
