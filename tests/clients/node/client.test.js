// node-redis, unchanged, against the server at $HEADWATER_ADDRESS.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createClient } from "redis";

const TIMELINE = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

test("node-redis", async () => {
  const client = createClient({ url: `redis://${process.env.HEADWATER_ADDRESS}` });
  await client.connect();
  await client.flushAll();
  assert.equal(await client.set("a", "1", { EX: 60 }), "OK");
  assert.equal(await client.incr("a"), 2);
  assert.equal(await client.get("nothing"), null);
  assert.deepEqual(await client.multi().incrBy("n", 5).get("n").exec(), [5, "5"]);
  await client.sendCommand(["JOIN.ADD", "timeline", TIMELINE, "REPLACE"]);
  await client.mSet({ "s|ann|bob": "1", "p|bob|0100": "Hi" });
  assert.equal(await client.get("t|ann|0100|bob"), "Hi");
  assert.deepEqual(await client.sendCommand(["PREFIX", "t|ann|", "VALUES"]), ["Hi"]);
  await assert.rejects(client.set("t|ann|0200|bob", "mine"), /^[A-Za-z]*:? ?JOINED /);
  const listener = client.duplicate();
  await listener.connect();
  const message = new Promise((resolve) => listener.subscribe("news", resolve).then(() =>
    client.publish("news", "hello")));
  assert.equal(await message, "hello");
  await listener.quit();
  await client.quit();
});
