/** The client: node-redis's, with Headwater's commands and watches. */

import { createClient, RESP_TYPES, type RedisClientOptions } from "redis";
import type { ConnectionOptions } from "./connection.js";
import { typed } from "./errors.js";
import { prefixEnd } from "./keys.js";
import * as requests from "./requests.js";
import type { Difference, Fields, FlowOptions, JoinAdded, Key, MappingOptions, ReadOptions, Reply, TableOptions, Throttled, Word } from "./requests.js";
import { Watch, type WatchOptions } from "./watch.js";

const BYTES = {
  [RESP_TYPES.BLOB_STRING]: Buffer,
  [RESP_TYPES.SIMPLE_STRING]: Buffer,
  [RESP_TYPES.VERBATIM_STRING]: Buffer,
  [RESP_TYPES.MAP]: Array,
} as const;

/** node-redis's options, and how keys and values come. */
export type HeadwaterOptions = RedisClientOptions & {
  /** Keys and values come as `Buffer`s, not as texts. */
  bytes?: boolean;
};

type Redis = ReturnType<typeof createClient>;

export interface IterOptions {
  rev?: boolean;
  limit?: number;
  /** Pairs that are asked for at once. */
  page?: number;
}

/**
 * A client of Headwater. `redis` is a client of node-redis with all of Redis's commands; Headwater's own are here. Both share a connection;
 * each watch has one of its own. `Item` is what keys and values come as: texts, or `Buffer`s with the option `bytes`.
 */
export class Headwater<Item extends string | Buffer = string> {
  /** All of Redis's commands. Its errors become typed ones with `typed(error)`. */
  readonly redis: Redis;
  readonly #bytes: boolean;

  constructor(options: HeadwaterOptions = {}) {
    const { bytes = false, ...theirs } = options;
    if (theirs.url === undefined) theirs.socket = { host: "localhost", port: 7379, ...theirs.socket } as typeof theirs.socket;
    this.#bytes = bytes;
    this.redis = createClient(theirs) as unknown as Redis;
    // Without a listener, Node ends a process whose connection is lost; node-redis makes it again.
    this.redis.on("error", () => undefined);
  }

  /** A client that is connected. */
  static async connect(options: HeadwaterOptions & { bytes: true }): Promise<Headwater<Buffer>>;
  static async connect(options?: HeadwaterOptions): Promise<Headwater>;
  static async connect(options: HeadwaterOptions = {}): Promise<Headwater<string | Buffer>> {
    const client = new Headwater<string | Buffer>(options);
    await client.redis.connect();
    return client;
  }

  /** Ends the connection when all answers are there. */
  async close(): Promise<void> {
    await this.redis.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /** Any command, with typed errors: bytes come as `Buffer`s, and maps as flat arrays. */
  async call(...words: Word[]): Promise<Reply> {
    const args = words.map((word) => (typeof word === "number" ? String(word) : typeof word === "string" ? word : Buffer.from(word)));
    try {
      return (await this.redis.sendCommand(args, { typeMapping: BYTES })) as Reply;
    } catch (error) {
      throw typed(error);
    }
  }

  #item = (bytes: Buffer): Item => (this.#bytes ? bytes : bytes.toString()) as Item;

  #maybe(reply: Reply): Item | null {
    return Buffer.isBuffer(reply) ? this.#item(reply) : null;
  }

  #pairs(reply: Reply): [Item, Item][] {
    return requests.pairs(reply).map(([key, value]) => [this.#item(key), this.#item(value)]);
  }

  #items(reply: Reply): Item[] {
    return (reply as Buffer[]).map(this.#item);
  }

  async #fields(...words: Word[]): Promise<Fields> {
    return requests.fields(await this.call(...words));
  }

  // Single keys, with typed errors.

  async get(key: Key): Promise<Item | null> {
    return this.#maybe(await this.call("GET", key));
  }
  /** Gives a key a value; `seconds`: for so long. */
  async set(key: Key, value: Word, seconds?: number): Promise<void> {
    await this.call("SET", key, value, ...requests.option("EX", seconds));
  }
  /** Removes keys; how many there were. */
  async del(...keys: Key[]): Promise<number> {
    return Number(await this.call("DEL", ...keys));
  }

  // Ranges.

  /** The pairs with `first` ≤ key < `last`, in order; an empty `last` means to the end. */
  async range(first: Key, last: Key, options: ReadOptions = {}): Promise<[Item, Item][]> {
    return this.#pairs(await this.call(...requests.read(["RANGE", first, last], options)));
  }
  async rangeKeys(first: Key, last: Key, options: ReadOptions = {}): Promise<Item[]> {
    return this.#items(await this.call(...requests.read(["RANGE", first, last], options, "KEYS")));
  }
  async rangeValues(first: Key, last: Key, options: ReadOptions = {}): Promise<Item[]> {
    return this.#items(await this.call(...requests.read(["RANGE", first, last], options, "VALUES")));
  }
  async rangeCount(first: Key, last: Key, options: Pick<ReadOptions, "at"> = {}): Promise<number> {
    return Number(await this.call(...requests.read(["RANGE", first, last], options, "COUNT")));
  }
  /** Removes the base keys of a range; how many they were. */
  async rangeDelete(first: Key, last: Key): Promise<number> {
    return Number(await this.call("RANGE.DEL", first, last));
  }
  /** The pairs whose keys start with `prefix`, in order. */
  async prefix(prefix: Key, options: ReadOptions = {}): Promise<[Item, Item][]> {
    return this.#pairs(await this.call(...requests.read(["PREFIX", prefix], options)));
  }
  async prefixKeys(prefix: Key, options: ReadOptions = {}): Promise<Item[]> {
    return this.#items(await this.call(...requests.read(["PREFIX", prefix], options, "KEYS")));
  }
  async prefixValues(prefix: Key, options: ReadOptions = {}): Promise<Item[]> {
    return this.#items(await this.call(...requests.read(["PREFIX", prefix], options, "VALUES")));
  }
  async prefixCount(prefix: Key, options: Pick<ReadOptions, "at"> = {}): Promise<number> {
    return Number(await this.call(...requests.read(["PREFIX", prefix], options, "COUNT")));
  }

  /** The pairs of a range, asked for page by page: each page shows the moment at which it is asked for. */
  async *rangeIter(first: Key, last: Key, options: IterOptions = {}): AsyncGenerator<[Item, Item], void> {
    const { rev = false, page = 1000 } = options;
    if (!(page >= 1)) throw new RangeError("a page has at least one pair");
    let left = options.limit ?? Infinity;
    while (left > 0) {
      const limit = Math.min(page, left);
      const found = requests.pairs(await this.call(...requests.read(["RANGE", first, last], { rev, limit })));
      for (const [key, value] of found) yield [this.#item(key), this.#item(value)];
      if (found.length < limit) return;
      left -= found.length;
      const end = found[found.length - 1]![0];
      if (rev) last = end;
      else first = Buffer.concat([end, Buffer.from([0])]);
    }
  }
  /** As `rangeIter`, for the keys that start with `prefix`. */
  prefixIter(prefix: Key, options: IterOptions = {}): AsyncGenerator<[Item, Item], void> {
    return this.rangeIter(prefix, prefixEnd(prefix), options);
  }

  /**
   * Watches the keys with `first` ≤ key < `last`: an asynchronous iterable of changes, of base keys and of what joins give. What is there comes
   * first. A lost connection is made again, and no change is missed or given twice. The watch keeps a copy of the range.
   */
  watchRange(first: Key, last: Key, options: WatchOptions = {}): Watch<Item> {
    const host = {
      connection: () => this.redis.options as unknown as ConnectionOptions,
      page: async (from: Buffer, to: Buffer, limit: number) => requests.pairs(await this.call("RANGE", from, to, "LIMIT", limit)),
      decode: this.#item,
    };
    return new Watch(host, Buffer.from(first as string), Buffer.from(last as string), options);
  }
  /** As `watchRange`, for the keys that start with `prefix`. */
  watchPrefix(prefix: Key, options: WatchOptions = {}): Watch<Item> {
    return this.watchRange(prefix, prefixEnd(prefix), options);
  }

  // Joins.

  /** Installs a cache join; with `replace`, in the place of one of the same name. */
  async joinAdd(name: string, spec: string, options: { replace?: boolean } = {}): Promise<JoinAdded> {
    return (await this.#fields("JOIN.ADD", name, spec, ...(options.replace ? ["REPLACE"] : []))) as unknown as JoinAdded;
  }
  async joinDrop(name: string): Promise<void> {
    await this.call("JOIN.DROP", name);
  }
  /** The text of each join, by name, in the order of installation. */
  async joinList(): Promise<Map<string, string>> {
    return new Map(requests.rows(await this.call("JOIN.LIST")).map((row) => [String(row.name), String(row.spec)]));
  }
  async joinInfo(name: string): Promise<Fields> {
    return this.#fields("JOIN.INFO", name);
  }
  /** What the join's output keys begin with that have these values of its slots, as the server says. */
  async joinKey(name: string, values: Record<string, Word>): Promise<Item> {
    return this.#item((await this.call("JOIN.KEY", name, ...Object.entries(values).flat())) as Buffer);
  }
  /** The table and the components of an output key, with the values that they stand for; null for other keys. */
  async joinDecode(key: Key): Promise<Item[] | null> {
    const reply = await this.call("JOIN.DECODE", key);
    return reply === null ? null : this.#items(reply);
  }
  /** Why a key has its value: joins, sources, freshness. */
  async explain(key: Key): Promise<string> {
    return ((await this.call("EXPLAIN", key)) as Buffer[]).join("\n");
  }
  async explainRange(first: Key, last: Key): Promise<string> {
    return ((await this.call("EXPLAIN.RANGE", first, last)) as Buffer[]).join("\n");
  }
  /** Recomputes a range and compares: the differences, of which there should be none. */
  async verify(first: Key, last: Key): Promise<Difference<Item>[]> {
    return ((await this.call("VERIFY", first, last)) as Reply[]).map((one) => {
      const named = new Map(requests.pairs(one).map(([name, value]) => [name.toString(), this.#maybe(value)]));
      return { key: named.get("key")!, stored: named.get("stored") ?? null, recomputed: named.get("recomputed") ?? null };
    });
  }

  // Tables and sources.

  /** Says what holds for a table; the warnings. */
  async tableSet(name: string, options: TableOptions): Promise<string[]> {
    return warnings(await this.call(...requests.table(name, options)));
  }
  async tableList(): Promise<Fields[]> {
    return requests.rows(await this.call("TABLE.LIST"));
  }
  async tableInfo(name: string): Promise<Fields> {
    return this.#fields("TABLE.INFO", name);
  }
  async sourceAdd(name: string, kind: string, url: string): Promise<void> {
    await this.call("SOURCE.ADD", name, kind, url);
  }
  async sourceDrop(name: string): Promise<void> {
    await this.call("SOURCE.DROP", name);
  }
  async sourceList(): Promise<Fields[]> {
    return requests.rows(await this.call("SOURCE.LIST"));
  }
  async sourceInfo(name: string): Promise<Fields> {
    return this.#fields("SOURCE.INFO", name);
  }
  /** What `tableSet` with these options would need at a source, each with the SQL that mends it; nothing is changed. */
  async sourceCheck(name: string, options: MappingOptions): Promise<string[]> {
    return ((await this.call("SOURCE.CHECK", name, ...requests.mapping(options))) as Buffer[]).map(String);
  }
  /** A position for `at`: all that was committed at the source before is at or below it. */
  async sourcePosition(name: string): Promise<string> {
    return String(await this.call("SOURCE.POSITION", name));
  }
  /** A position for `at`: what this client has written. */
  async shardPosition(): Promise<string> {
    return String(await this.call("SHARD.POSITION"));
  }

  // Streams.

  /** Puts bytes behind a stream; its new end. `length`: how many more will probably follow. */
  async streamAppend(key: Key, data: Key, options: { length?: number } = {}): Promise<number> {
    return Number(await this.call("STREAM.APPEND", key, data, ...requests.option("LEN", options.length)));
  }
  /** Up to `count` bytes from `offset` on. At the end nothing, or with `block` what comes within so many milliseconds. */
  async streamRead(key: Key, offset: number, count: number, options: { block?: number } = {}): Promise<Item | null> {
    return this.#maybe(await this.call("STREAM.READ", key, offset, count, ...requests.option("BLOCK", options.block)));
  }
  async streamTrim(key: Key, offset: number): Promise<number> {
    return Number(await this.call("STREAM.TRIM", key, offset));
  }
  async streamLen(key: Key): Promise<number> {
    return Number(await this.call("STREAM.LEN", key));
  }
  async streamInfo(key: Key): Promise<Fields> {
    return this.#fields("STREAM.INFO", key);
  }

  // Functions.

  /** Loads a WebAssembly module: its bytes, or with `file` the name of a file below the server's `--functions`. */
  async fnLoad(name: string, module: Key, options: { file?: boolean; export?: string; replace?: boolean } = {}): Promise<void> {
    const words = [...(options.file ? ["FILE"] : []), ...requests.option("EXPORT", options.export), ...(options.replace ? ["REPLACE"] : [])];
    await this.call("FN.LOAD", name, module, ...words);
  }
  async fnDrop(name: string): Promise<void> {
    await this.call("FN.DROP", name);
  }
  async fnList(): Promise<unknown[]> {
    return requests.plain(await this.call("FN.LIST")) as unknown[];
  }
  async fnInfo(name: string): Promise<Fields> {
    return this.#fields("FN.INFO", name);
  }
  /** Calls a function next to a key's value; what it replied. */
  async fnCall(
    name: string,
    key: Key,
    param: Word = "",
    options: { update?: boolean; atomic?: boolean; noreply?: boolean } = {},
  ): Promise<Item | null> {
    const words = (["update", "atomic", "noreply"] as const).filter((word) => options[word]).map((word) => word.toUpperCase());
    const reply = await this.call("FN.CALL", name, key, ...words, param);
    return options.noreply ? null : this.#maybe(reply);
  }
  /** Calls a function for each pair of a range: its replies by key, or the one answer of a fold. */
  async fnRange(name: string, first: Key, last: Key, param: Word = "", options: ReadOptions = {}): Promise<[Item, Item][] | Item | null> {
    const reply = await this.call(...requests.read(["FN.RANGE", name, first, last], options), param);
    return Array.isArray(reply) ? this.#pairs(reply) : this.#maybe(reply);
  }

  // Flows.

  /** Adds what is to be done after each write of a key that matches `on`; the warnings. */
  async flowAdd(name: string, on: string, options: FlowOptions): Promise<string[]> {
    return warnings(await this.call(...requests.flow(name, on, options)));
  }
  async flowDrop(name: string): Promise<void> {
    await this.call("FLOW.DROP", name);
  }
  /** The flows, by name: their texts and backlogs. */
  async flowList(): Promise<Map<string, Fields>> {
    return new Map(requests.rows(await this.call("FLOW.LIST")).map((row) => [String(row.name), row]));
  }
  async flowInfo(name: string): Promise<Fields> {
    return this.#fields("FLOW.INFO", name);
  }
  async flowPause(name: string): Promise<void> {
    await this.call("FLOW.PAUSE", name);
  }
  async flowResume(name: string): Promise<void> {
    await this.call("FLOW.RESUME", name);
  }
  /** The tasks that failed too often. */
  async flowDead(name: string): Promise<Fields[]> {
    return requests.rows(await this.call("FLOW.DEAD", name));
  }
  async flowRetry(name: string, position: number | "ALL" = "ALL", options: { force?: boolean } = {}): Promise<unknown> {
    return requests.plain(await this.call("FLOW.RETRY", name, position, ...(options.force ? ["FORCE"] : [])));
  }
  async flowDiscard(name: string, position: number | "ALL" = "ALL"): Promise<unknown> {
    return requests.plain(await this.call("FLOW.DISCARD", name, position));
  }
  async flowReplay(name: string, position: number): Promise<unknown> {
    return requests.plain(await this.call("FLOW.REPLAY", name, position));
  }

  /** Counts a use against a limit of `count` in `seconds`, with `burst` more at once than one. */
  async throttle(key: Key, burst: number, count: number, seconds: number, quantity = 1): Promise<Throttled> {
    const [refused, limit, remaining, retryAfter, resetAfter] = (await this.call("CL.THROTTLE", key, burst, count, seconds, quantity)) as [
      number, number, number, number, number,
    ];
    return { refused: refused === 1, limit, remaining, retryAfter, resetAfter };
  }
}

function warnings(reply: Reply): string[] {
  return Array.isArray(reply) ? ((requests.fields(reply).warnings as string[] | undefined) ?? []) : [];
}
