/** Headwater's commands through the client, in both versions of the protocol: results, pages, typed errors. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync } from "node:fs";
import path from "node:path";
import { after, before, beforeEach, test } from "node:test";
import { promisify } from "node:util";
import * as headwater from "../src/index.js";
import type { Headwater } from "../src/index.js";
import { ROOT, Server } from "./support.js";

const TIMELINE = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";

/** (module (func (export "call") (result i32) i32.const STATUS)) */
const module = (status: number) =>
  Buffer.from([...Buffer.from("0061736d010000000105016000017f030201000708010463616c6c00000a060104", "hex"), 0, 0x41, status, 0x0b]);

async function collect<One>(items: AsyncIterable<One>): Promise<One[]> {
  const found: One[] = [];
  for await (const item of items) found.push(item);
  return found;
}

for (const protocol of [2, 3] as const) {
  test(`RESP${protocol}`, async (t) => {
    const server = await Server.start(["--shards=2"]);
    const client: Headwater = await server.connect(protocol);
    t.after(async () => {
      await client.close();
      await server.stop();
    });
    const fresh = async () => {
      for (const name of (await client.flowList()).keys()) await client.flowDrop(name);
      for (const name of [...(await client.joinList()).keys()].reverse()) await client.joinDrop(name);
      await client.call("FLUSHALL");
    };
    const timeline = async () => {
      await fresh();
      assert.deepEqual(await client.joinAdd("timeline", TIMELINE), { spec: TIMELINE, warnings: [] });
      await client.set("s|ann|bob", 1);
      for (let at = 0; at < 25; at++) await client.set(`p|bob|${String(at).padStart(4, "0")}`, `post ${at}`);
    };

    await t.test("ranges and pages", async () => {
      await timeline();
      assert.deepEqual(await client.prefixKeys("t|ann|", { rev: true, limit: 2 }), ["t|ann|0024|bob", "t|ann|0023|bob"]);
      assert.deepEqual(await client.range("t|ann|0003", "t|ann|0004"), [["t|ann|0003|bob", "post 3"]]);
      assert.deepEqual(await client.rangeKeys("t|ann|0003", "t|ann|0004"), ["t|ann|0003|bob"]);
      assert.deepEqual(await client.rangeValues("p|bob|", "p|bob|0001"), ["post 0"]);
      assert.deepEqual(await client.prefixValues("t|ann|", { limit: 1, at: await client.shardPosition() }), ["post 0"]);
      assert.equal(await client.prefixCount("t|ann|"), 25);
      assert.equal(await client.rangeCount("t|ann|0003", "t|ann|0005"), 2);
      const everything = await client.prefix("t|ann|");
      for (const page of [1, 7, 25, 1000]) {
        assert.deepEqual(await collect(client.prefixIter("t|ann|", { page })), everything);
        assert.deepEqual(await collect(client.prefixIter("t|ann|", { page, rev: true })), [...everything].reverse());
        assert.deepEqual(await collect(client.prefixIter("t|ann|", { page, limit: 9 })), everything.slice(0, 9));
        assert.deepEqual(await collect(client.rangeIter("t|ann|0005", "", { page, rev: true, limit: 9 })), everything.slice(-9).reverse());
      }
      assert.deepEqual(await collect(client.prefixIter("nothing|")), []);
      await assert.rejects(collect(client.prefixIter("t|", { page: 0 })), RangeError);
      assert.equal(await client.rangeDelete("p|bob|0020", "p|bob}"), 5);
      assert.equal(await client.prefixCount("t|ann|"), 20);
    });

    await t.test("joins", async () => {
      await timeline();
      assert.deepEqual([...(await client.joinList())], [["timeline", TIMELINE]]);
      assert.equal((await client.joinInfo("timeline")).spec, TIMELINE);
      assert.equal((await client.joinAdd("bare", "w|user|time = check s|user|poster copy p|poster|time")).warnings.length, 1);
      assert.equal(await client.joinKey("timeline", { user: "ann" }), "t|ann|");
      assert.deepEqual(await client.joinDecode("t|ann|0001|bob"), ["t", "ann", "0001", "bob"]);
      assert.equal(await client.joinDecode("x"), null);
      assert.match(await client.explain("t|ann|0001|bob"), /timeline/);
      assert.match(await client.explainRange("t|", "t}"), /timeline/);
      assert.deepEqual(await client.verify("t|", "t}"), []);
    });

    await t.test("tables, sources, streams, limits", async () => {
      await fresh();
      assert.deepEqual(await client.tableSet("q", { boundary: 2, evict: false }), []);
      assert.equal((await client.tableInfo("q")).boundary, 2);
      assert.ok((await client.tableList()).some((row) => row.name === "q"));
      assert.deepEqual(await client.sourceList(), []);
      await assert.rejects(client.sourceAdd("shop", "postgres", "postgres://ann@nowhere.invalid/shop"), /connect-allow/);
      const mapped = { source: "shop", table: "posts", key: ["poster", "time"], value: "JSON (title, cents)", write: "through" } as const;
      await assert.rejects(client.tableSet("q", { ...mapped, key: [...mapped.key] }), /no source is named 'shop'/);
      await assert.rejects(client.sourceInfo("shop"), /'shop'/);
      await assert.rejects(client.sourceDrop("shop"), /'shop'/);
      await assert.rejects(client.sourcePosition("shop"), /'shop'/);
      await assert.rejects(client.sourceCheck("shop", { table: "posts", key: ["poster"], value: "title", where: "cents > 0" }), /'shop'/);
      const end = await client.streamAppend("story", "It was a dark night", { length: 100 });
      assert.equal(await client.streamLen("story"), end);
      assert.equal(await client.streamRead("story", end - 10, 4), "dark");
      assert.equal(await client.streamRead("none", 0, 4, { block: 1 }), null);
      assert.equal(await client.streamTrim("story", end - 10), end - 10);
      assert.equal((await client.streamInfo("story")).end, end);
      await assert.rejects(client.streamRead("story", end - 19, 4), (error) => {
        assert.ok(error instanceof headwater.TrimmedError);
        assert.equal(error.first, end - 10);
        return true;
      });
      await assert.rejects(client.get("story"), headwater.WrongTypeError);
      const uses = [];
      for (let use = 0; use < 3; use++) uses.push((await client.throttle("limit|ann", 1, 1, 3600)).refused);
      assert.deepEqual(uses, [false, false, true]);
    });

    await t.test("functions and flows", async () => {
      await fresh();
      await client.fnLoad("fine", module(0));
      await client.fnLoad("fails", module(3), { export: "call", replace: true });
      assert.equal(await client.fnCall("fine", "k", "parameter", { update: true, atomic: true }), null);
      assert.match(JSON.stringify(await client.fnList()), /fine/);
      assert.ok(await client.fnInfo("fine"));
      await assert.rejects(client.fnCall("fails", "k"), headwater.FunctionError);
      await assert.rejects(client.fnCall("none", "k"), headwater.NoFunctionError);
      assert.ok((await client.flowAdd("keep", "item|<id>", { copy: "archive|<id> = copy item|<id>", workers: 2, overflow: "BLOCK" })).length);
      await client.set("item|7", "tea");
      const watch = client.watchPrefix("archive|");
      assert.equal((await watch.get(30_000))?.value, "tea");
      await watch.close();
      await client.flowPause("keep");
      await client.flowResume("keep");
      assert.equal((await client.flowInfo("keep")).dead, 0);
      await client.flowAdd("hook", "n|<id>", { call: "fails", maxAttempts: 1, backoff: [1, 1], operations: ["set"] });
      await client.set("n|1", "x");
      let dead = await client.flowDead("hook");
      while (dead.length === 0) dead = await client.flowDead("hook");
      await client.flowDiscard("hook", Number(dead[0]!.position));
      assert.deepEqual(await client.flowDead("hook"), []);
      await client.flowRetry("hook");
      await assert.rejects(client.flowReplay("hook", 1_000_000), /positions/);
      await assert.rejects(client.flowAdd("two", "n|<id>", { publish: "news", copy: "a|<id> = copy n|<id>" }), /one action/);
      for (const name of ["keep", "hook"]) await client.flowDrop(name);
      for (const name of ["fine", "fails"]) await client.fnDrop(name);
    });

    await t.test("errors", async () => {
      await timeline();
      await assert.rejects(client.set("t|ann|1|bob", 1), (error) => {
        assert.ok(error instanceof headwater.JoinedError);
        assert.deepEqual([error.code, error.message, error.join], ["JOINED", "key is maintained by join 'timeline'", "timeline"]);
        return true;
      });
      await assert.rejects(client.joinAdd("x", "x|<u> = coppy p|<u>"), (error) => {
        assert.ok(error instanceof headwater.JoinSyntaxError);
        assert.equal(error.column, 9);
        return true;
      });
      await assert.rejects(client.joinAdd("x", "p|<a>|<b> = copy t|<a>|<b>|<c>"), /would read its own output/);
      const theirs = await client.redis.set("t|ann|1|bob", "1").catch((error: unknown) => headwater.typed(error));
      assert.ok(theirs instanceof headwater.JoinedError);
      await client.call("ACL", "SETUSER", "ann", "on", ">pw", "+@all", "-join.add", "~p|*");
      const options = { RESP: protocol, socket: { host: "127.0.0.1", port: server.port } };
      const ann = await headwater.Headwater.connect({ ...options, username: "ann", password: "pw" });
      await assert.rejects(ann.joinAdd("t", TIMELINE), headwater.NoPermissionError);
      const denied = ann.watchPrefix("t|");
      await assert.rejects(denied.get(30_000), headwater.NoPermissionError);
      const allowed = ann.watchPrefix("p|");
      assert.equal((await allowed.get(30_000))?.key, "p|bob|0000");
      await allowed.close();
      await ann.close();
      const wrong = new headwater.Headwater({ ...options, username: "ann", password: "wrong" });
      await assert.rejects(wrong.watchPrefix("p|").get(30_000), headwater.AuthenticationError);
    });
  });
}

test("bytes", async () => {
  const server = await Server.start();
  const client = await headwater.Headwater.connect({ bytes: true, socket: { host: "127.0.0.1", port: server.port } });
  try {
    const value = Buffer.from([0, 255, 254]);
    await client.set("b|1", value);
    assert.deepEqual(await client.prefix("b|"), [[Buffer.from("b|1"), value]]);
    const watch = client.watchPrefix("b|");
    assert.deepEqual((await watch.get(30_000))?.value, value);
    await watch.close();
  } finally {
    await client.close();
    await server.stop();
  }
});

test("the version is the program's", () => {
  const program = /^version = "(.+)"$/m.exec(readFileSync(path.join(ROOT, "Cargo.toml"), "utf8"))![1];
  assert.equal(JSON.parse(readFileSync(path.join(ROOT, "clients/typescript/package.json"), "utf8")).version, program);
});
