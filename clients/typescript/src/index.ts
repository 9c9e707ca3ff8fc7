/** Headwater's client: node-redis with cache joins, ranges and live queries. */

export { Headwater, type HeadwaterOptions, type IterOptions } from "./client.js";
export { ConnectionLostError } from "./connection.js";
export * from "./errors.js";
export { Pattern, prefixEnd, type SlotValue, type SlotValues } from "./keys.js";
export * from "./ordered.js";
export type { Difference, Fields, FlowOptions, JoinAdded, Key, MappingOptions, ReadOptions, Reply, TableOptions, Throttled, Word } from "./requests.js";
export { Watch, type Change, type WatchOptions } from "./watch.js";
export { WatchError } from "redis";
