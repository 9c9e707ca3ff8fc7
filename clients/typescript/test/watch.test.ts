/** What a watch gives is each change once, whatever becomes of connections and of the server. */

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import type { Change, Headwater, Watch } from "../src/index.js";
import { Draws, killWatchers, Server, until } from "./support.js";

const TIMELINE = "t|<user>|<time>|<poster> = check s|<user>|<poster> copy p|<poster>|<time>";
const KARMA = "karma|<author> = count vote|<author>|<voter>";

/** A copy that is kept by what a watch gives. */
class Mirror {
  readonly pairs = new Map<string, string>();
  readonly seen: Change<string>[] = [];
  apply(change: Change<string>): void {
    assert.notEqual(this.pairs.get(change.key) ?? null, change.value, `${change.key} ${change.value} is no change`);
    if (change.value === null) this.pairs.delete(change.key);
    else this.pairs.set(change.key, change.value);
    this.seen.push(change);
  }
  get sorted(): [string, string][] {
    return [...this.pairs].sort(([one], [other]) => (one < other ? -1 : 1));
  }
}

/** Does it again until the server has answered. */
async function attempt<Result>(ask: () => Promise<Result>): Promise<Result> {
  const end = Date.now() + 120_000;
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (Date.now() > end) throw error;
      await sleep(20);
    }
  }
}

async function write(client: Headwater, seed: number, count: number): Promise<void> {
  const draw = new Draws(seed);
  for (let at = 0; at < count; at++) {
    const [poster, user] = [draw.of(["bob", "liz", "tim"]), draw.of(["ann", "eve"])];
    const key = `p|${poster}|${String(draw.below(40)).padStart(4, "0")}`;
    const kind = draw.below(10);
    if (kind < 6) await attempt(() => client.set(key, `${seed}.${at}`));
    else if (kind < 8) await attempt(() => client.del(key));
    else if (kind === 8) await attempt(() => client.set(`s|${user}|${poster}`, 1));
    else await attempt(() => client.del(`s|${user}|${poster}`));
    if (at % 20 === 0) await sleep(10);
  }
}

for (const protocol of [2, 3] as const) {
  for (const shards of [1, 3]) {
    for (const how of ["killed clients", "restarts"]) {
      test(`each change once: RESP${protocol}, ${shards} shards, ${how}`, async () => {
        const server = await Server.start([`--shards=${shards}`], true);
        const client = await server.connect(protocol);
        const writers = await Promise.all([server.connect(), server.connect()]);
        try {
          await client.joinAdd("timeline", TIMELINE);
          const expected = new Map<Watch<string>, [string, string][]>();
          const ranges = [["t|ann|", "t|ann}"], ["t|", "t}"], ["p|", "p}"]] as const;
          const watches = ranges.map(([first, last]) => client.watchRange(first, last, { page: 7, restMax: 200 }));
          const mirrors = watches.map(() => new Mirror());
          const end = Date.now() + 120_000;
          const following = watches.map(async (watch, at) => {
            const isDone = () => JSON.stringify(expected.get(watch)) === JSON.stringify(mirrors[at]!.sorted);
            while (!isDone()) {
              assert.ok(Date.now() < end, "the copy is not what the server has");
              const change = await watch.get(50);
              if (change !== undefined) mirrors[at]!.apply(change);
            }
            assert.deepEqual(watch.pairs, mirrors[at]!.sorted);
          });
          const watched = /range-watches=[1-9]/g;
          await until(async () => [...String(await client.call("CLIENT", "LIST")).matchAll(watched)].length >= 3, "three watch");
          let isWriting = true;
          const writing = Promise.all(writers.map((writer, at) => write(writer, at + 1, 400))).then(() => (isWriting = false));
          const draw = new Draws(shards);
          let times = 0;
          while (isWriting || times < 3) {
            if (how === "restarts") {
              await server.kill();
              await sleep(draw.below(50));
              await server.start();
              times++;
              await sleep(300 + draw.below(300));
            } else {
              times += await attempt(() => killWatchers(client));
              await sleep(50 + draw.below(100));
            }
          }
          await writing;
          for (const [at, [first, last]] of ranges.entries()) {
            expected.set(watches[at]!, await attempt(() => client.range(first, last)));
          }
          await Promise.all(following);
          assert.ok(mirrors[2]!.seen.length > 40 && watches.every((watch) => watch.connections > 1));
          assert.deepEqual(await attempt(() => client.verify("t|", "t}")), []);
          for (const watch of watches) await watch.close();
        } finally {
          for (const one of [client, ...writers]) one.redis.destroy();
          await server.stop();
        }
      });
    }
  }

  test(`no change is missed while connections end: RESP${protocol}`, async () => {
    const server = await Server.start(["--shards=2"]);
    const client = await server.connect(protocol);
    try {
      const watch = client.watchPrefix("n|", { restMax: 200 });
      const mirror = new Mirror();
      const following = (async () => {
        for await (const change of watch) {
          mirror.apply(change);
          if (mirror.pairs.size === 5 && [...mirror.pairs.values()].every((value) => value === "200")) return;
        }
      })();
      for (let at = 1; at <= 200; at++) {
        for (let key = 0; key < 5; key++) await client.set(`n|${key}`, at);
        if (at % 10 === 1) {
          // It has come so far, and misses what is written from here on until it is back.
          await until(() => mirror.pairs.get("n|4") === String(at), "the watch is told");
          assert.ok((await killWatchers(client)) > 0);
        }
      }
      await following;
      assert.ok(watch.connections > 10);
      assert.equal(watch.reads, 1);
      for (let key = 0; key < 5; key++) {
        const numbers = mirror.seen.filter((change) => change.key === `n|${key}`).map((change) => Number(change.value));
        assert.deepEqual(numbers, Array.from({ length: 201 - numbers[0]! }, (_, at) => numbers[0]! + at));
        assert.ok(numbers.length > 190);
      }
    } finally {
      client.redis.destroy();
      await server.stop();
    }
  });

  test(`snapshots, flushes, slow readers, ends: RESP${protocol}`, async () => {
    const server = await Server.start(["--shards=2"]);
    const client = await server.connect(protocol);
    const told = async (watch: Watch<string>, count: number) => {
      const changes = [];
      for (let at = 0; at < count; at++) changes.push(await watch.get(30_000));
      return changes.map((change) => [change!.key, change!.value, change!.isRead] as const).sort();
    };
    try {
      await client.joinAdd("karma", KARMA);
      for (const key of ["vote|bob|ann", "vote|bob|eve", "vote|liz|ann"]) await client.set(key, 1);
      const [silent, loud] = [client.watchPrefix("karma|", { snapshot: false }), client.watchPrefix("karma|")];
      assert.deepEqual(await told(loud, 2), [["karma|bob", "2", true], ["karma|liz", "1", true]]);
      assert.equal(await silent.get(200), undefined);
      assert.deepEqual(silent.pairs, loud.pairs);
      await client.del("vote|liz|ann");
      await client.set("vote|bob|tim", 1);
      for (const watch of [silent, loud]) assert.deepEqual(await told(watch, 2), [["karma|bob", "3", false], ["karma|liz", null, false]]);
      await client.call("FLUSHALL");
      assert.deepEqual((await told(loud, 1))[0]!.slice(0, 2), ["karma|bob", null]);
      await client.set("vote|tim|ann", 5);
      assert.deepEqual((await told(loud, 1))[0]!.slice(0, 2), ["karma|tim", "1"]);
      await client.joinAdd("karma", KARMA.replace("count", "sum"), { replace: true });
      assert.deepEqual(await told(loud, 1), [["karma|tim", "5", true]]);
      await client.joinDrop("karma");
      assert.deepEqual(await told(loud, 1), [["karma|tim", null, true]]);
      await silent.close();
      assert.equal(await silent.get(), undefined);
      setTimeout(() => void loud.close(), 100);
      for await (const change of loud) assert.fail(change.key);

      await client.call("CONFIG", "SET", "watch-output-bytes-max", 100_000);
      const slow = client.watchPrefix("p|");
      assert.equal(await slow.get(100), undefined);
      for (let at = 0; at < 300; at++) await client.set(`p|bob|${at % 30}`, `${at} ${"x".repeat(60_000)}`);
      const [mirror, expected] = [new Mirror(), JSON.stringify(await client.prefix("p|"))];
      while (JSON.stringify(mirror.sorted) !== expected) mirror.apply((await slow.get(60_000))!);
      assert.ok(slow.reads > 1);
      await slow.close();

      await client.joinAdd("posts", "posts|<poster> = pull count p|<poster>|<time>");
      await assert.rejects(client.watchPrefix("posts|").get(30_000), /pull/);
      assert.throws(() => client.watchPrefix("p|", { page: 0 }), RangeError);
      const asked = client.watchPrefix("q|", { heartbeat: 50 });
      assert.equal(await asked.get(500), undefined);
      await client.set("q|1", "Hi");
      assert.equal((await asked.get(30_000))?.value, "Hi");
      await asked.close();
      const given = client.watchPrefix("p|", { snapshot: false, attemptsMax: 2, restMax: 10 });
      assert.equal(await given.get(100), undefined);
      await server.kill();
      await assert.rejects(given.get(60_000));
    } finally {
      client.redis.destroy();
      await server.stop();
    }
  });
}
