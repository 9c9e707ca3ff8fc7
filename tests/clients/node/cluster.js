// node-redis's createCluster, unchanged, against the cluster at $HEADWATER_CLUSTER, also while the node of process $HEADWATER_CLUSTER_VICTIM is killed.
import assert from "node:assert/strict";
import { setTimeout } from "node:timers/promises";
import { createCluster } from "redis";

// What does not come within this does not come.
const PATIENCE = 180_000;
const nodes = process.env.HEADWATER_CLUSTER;

// Plain keys, and keys of a table with a tag, which this client takes to the owner of their slot.
const key = (number) => (number % 2 === 0 ? `key${number}` : `p|{b${number}}|1`);

async function connected() {
  const client = createCluster({
    rootNodes: nodes.split(",").map((node) => ({ url: `redis://${node}` })),
    defaults: { socket: { connectTimeout: 1000, reconnectStrategy: false } },
  });
  client.on("error", () => {});
  await client.connect();
  return client;
}

// Of a cluster client some connections may be closed already.
function close(client) {
  try {
    client.destroy();
  } catch {}
}

const inTime = (answer) =>
  Promise.race([answer, setTimeout(3000).then(() => Promise.reject(new Error("no answer")))]);

async function goesOn() {
  let client = await connected();
  // Does it again where it fails: a shard may have no owner for some seconds. This client does not look for another owner of a slot whose node
  // is gone: who uses it connects anew.
  const eventually = async (act) => {
    for (const end = Date.now() + PATIENCE; ; await setTimeout(50)) {
      try {
        client ??= await inTime(connected());
        return await inTime(act());
      } catch (why) {
        if (Date.now() > end) throw why;
        if (client) close(client);
        client = undefined;
      }
    }
  };
  const write = async (from, to) => {
    for (let number = from; number < to; number++) await eventually(() => client.set(key(number), `${number}`));
  };
  const read = async (to) => {
    for (let number = 0; number < to; number++) assert.equal(await eventually(() => client.get(key(number))), `${number}`);
  };
  await write(0, 100);
  await read(100);
  process.kill(Number(process.env.HEADWATER_CLUSTER_VICTIM), "SIGKILL");
  await write(100, 200);
  await read(200);
}

await goesOn();
// Some of this client's sockets stay open whatever is done, and would keep the process from ending.
process.exit(0);
