/** What answers mean. Bytes come as `Buffer`s, and maps as flat arrays, in both versions of the protocol. */

export type Reply = Buffer | string | number | boolean | null | Reply[];
export type Key = string | Uint8Array;
export type Word = Key | number;
/** Fields with names, all of text. */
export type Fields = Record<string, unknown>;

/** A join as the server understands it, and what it warns of. */
export interface JoinAdded {
  spec: string;
  warnings: string[];
}

/** A key whose value is another one than its recomputation: a fault of the server. */
export interface Difference<Item> {
  key: Item;
  stored: Item | null;
  recomputed: Item | null;
}

/** Whether a use was refused, and what is left. */
export interface Throttled {
  refused: boolean;
  limit: number;
  remaining: number;
  /** Seconds after which to try again; -1: no need, or no use. */
  retryAfter: number;
  resetAfter: number;
}

export interface ReadOptions {
  /** The greatest key first. */
  rev?: boolean;
  limit?: number;
  /** The answer shows at least what this position says. */
  at?: string;
}

/** Which rows of a source are which keys. */
export interface MappingOptions {
  table?: string;
  key?: string[];
  /** A column, `JSON (one, another)` or `EMPTY`. */
  value?: string;
  /** A condition that rows meet. */
  where?: string;
}

export interface TableOptions extends MappingOptions {
  boundary?: number;
  evict?: boolean;
  keep?: boolean;
  source?: string;
  write?: "around" | "through";
}

export interface FlowOptions {
  /** A function; `key` and `writes` go with it. */
  call?: string;
  key?: string;
  writes?: string | string[];
  /** The text of a join. */
  fanout?: string;
  copy?: string;
  /** A channel. */
  publish?: string;
  /** A URL; `timeout` in milliseconds goes with it. */
  post?: string;
  timeout?: number;
  operations?: ("set" | "del" | "expire")[];
  workers?: number;
  maxAttempts?: number;
  backoff?: [number, number];
  backlog?: number;
  overflow?: "REJECT" | "BLOCK" | "DROP-OLDEST";
  backfill?: boolean;
}

export function plain(reply: Reply): unknown {
  if (Buffer.isBuffer(reply)) return reply.toString();
  return Array.isArray(reply) ? reply.map(plain) : reply;
}

export function pairs(reply: Reply): [Buffer, Buffer][] {
  const flat = reply as Buffer[];
  const found: [Buffer, Buffer][] = [];
  for (let at = 0; at + 1 < flat.length; at += 2) found.push([flat[at]!, flat[at + 1]!]);
  return found;
}

export function fields(reply: Reply): Fields {
  return Object.fromEntries(pairs(reply).map(([name, value]) => [name.toString(), plain(value)]));
}

export function rows(reply: Reply): Fields[] {
  return (reply as Reply[]).map(fields);
}

export function read(words: Word[], options: ReadOptions, answer?: "KEYS" | "VALUES" | "COUNT"): Word[] {
  if (options.rev) words.push("REV");
  if (options.limit !== undefined) words.push("LIMIT", options.limit);
  if (options.at !== undefined) words.push("AT", options.at);
  if (answer !== undefined) words.push(answer);
  return words;
}

export function option(word: string, given: Word | undefined): Word[] {
  return given === undefined ? [] : [word, given];
}

export function flow(name: string, on: string, options: FlowOptions): Word[] {
  const many = (given: string | string[] | undefined) => (Array.isArray(given) ? given.join(" ") : given);
  const actions: Word[][] = [];
  if (options.call !== undefined) {
    actions.push(["CALL", options.call, ...option("KEY", options.key), ...option("WRITES", many(options.writes))]);
  }
  if (options.fanout !== undefined) actions.push(["FANOUT", options.fanout]);
  if (options.copy !== undefined) actions.push(["COPY", options.copy]);
  if (options.publish !== undefined) actions.push(["PUBLISH", options.publish]);
  if (options.post !== undefined) actions.push(["HTTP", "POST", options.post, ...option("TIMEOUT", options.timeout)]);
  if (actions.length !== 1) throw new RangeError("a flow has one action: call, fanout, copy, publish or post");
  const backlog = options.backlog ?? (options.overflow === undefined ? undefined : 1_000_000);
  return [
    "FLOW.ADD", name, "ON", on, ...actions[0]!,
    ...option("OPERATIONS", options.operations?.join("|")),
    ...option("WORKERS", options.workers),
    ...option("MAX-ATTEMPTS", options.maxAttempts),
    ...(options.backoff === undefined ? [] : ["BACKOFF", ...options.backoff]),
    ...option("BACKLOG", backlog),
    ...(options.overflow === undefined ? [] : [options.overflow]),
    ...(options.backfill ? ["BACKFILL"] : []),
  ];
}

/** Which rows of a source are which keys. */
export function mapping(options: MappingOptions): Word[] {
  return [
    ...option("TABLE", options.table),
    ...(options.key === undefined ? [] : ["KEY", ...`(${options.key.join(", ")})`.split(" ")]),
    ...(options.value === undefined ? [] : ["VALUE", ...options.value.split(" ")]),
    ...option("WHERE", options.where),
  ];
}

export function table(name: string, options: TableOptions): Word[] {
  const flag = (given: boolean | undefined) => (given === undefined ? undefined : given ? "YES" : "NO");
  return [
    "TABLE.SET", name,
    ...option("BOUNDARY", options.boundary),
    ...option("EVICT", flag(options.evict)),
    ...option("KEEP", flag(options.keep)),
    ...option("SOURCE", options.source),
    ...mapping(options),
    ...option("WRITE", options.write?.toUpperCase()),
  ];
}
