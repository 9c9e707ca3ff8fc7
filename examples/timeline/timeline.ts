// Timelines in forty lines: `node timeline.js HOST:PORT`, when tsc has compiled it. Needs `npm install ./clients/typescript`.

import { Headwater, Pattern } from "headwater";

const POSTS = new Pattern("p|<poster>|<time:time>");
const TIMELINE = new Pattern("t|<user>|<time:time>|<poster>");

const client = await Headwater.connect({ url: `redis://${process.argv[2] ?? "127.0.0.1:7379"}` });
const join = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
await client.joinAdd("timeline", join, { replace: true });

async function follow(user: string, poster: string) {
  await client.set(`s|${user}|${poster}`, 1);
}

async function post(poster: string, text: string, time: string) {
  await client.set(POSTS.key({ poster, time }), text);
}

function show(what: string, key: string, text: string | null) {
  const { time, poster } = TIMELINE.parse(key);
  console.log(`${what} ${time?.slice(11, 16)} ${poster}: ${text}`);
}

await follow("ann", "bob");
await post("bob", "Good morning", "2026-01-01T09:00:00Z");
await post("liz", "Ann does not read this yet", "2026-01-01T09:01:00Z");
for (const [key, text] of await client.prefix(TIMELINE.prefix({ user: "ann" }), { rev: true, limit: 20 })) {
  show("page", key, text);
}

let changes = 0;
for await (const change of client.watchPrefix(TIMELINE.prefix({ user: "ann" }))) {
  show("live", change.key, change.value);
  if (++changes === 1) void follow("ann", "liz").then(() => post("liz", "Hello, Ann", "2026-01-01T09:02:00Z"));
  if (changes === 3) break;
}
await client.close();
