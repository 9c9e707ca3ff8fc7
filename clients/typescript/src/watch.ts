/**
 * Following a range.
 *
 * **How a copy is kept.** A watch keeps a copy of the range, and gives a change only where that changes the copy: nothing is given twice. To
 * read the range, it watches it, which gives a position, and reads it in pages over another connection, at whatever moments. Then it watches it a
 * second time, `FROM` that position: the server tells again all that has changed since then, right behind its answer, and the answer of
 * a `PING` comes behind that. The pages, with the last message of each key over them, are the range as it is at the last message's
 * position. Messages of the first watch do not count: when they pile up the server leaves some out.
 *
 * **A lost connection** is made again, and the range watched `FROM` the position of the last message. Where the server cannot tell what was
 * missed it says so (`range-resync`), and the range is read anew; what differs from the copy is given.
 */

import { Connection, ConnectionLostError, type ConnectionOptions, type Frame } from "./connection.js";
import { TryAgainError, WatchEndedError } from "./errors.js";

/** A change of a range: `key` has `value` now, or is gone where that is null. */
export interface Change<Item> {
  readonly key: Item;
  readonly value: Item | null;
  /** It was found by reading the range: at the beginning, or when single changes could not be told. */
  readonly isRead: boolean;
  /** The server's position that the change belongs to. */
  readonly position: string;
}

export interface WatchOptions {
  /** Whether what is there at the beginning is given; it is, if nothing is said. */
  snapshot?: boolean;
  /** Pairs that are read at once. */
  page?: number;
  /** After so many milliseconds of silence the server is asked whether it is there. */
  heartbeat?: number;
  /** The longest rest between attempts to connect, in milliseconds. */
  restMax?: number;
  /** How many attempts in a row may fail; as many as it takes, if nothing is said. */
  attemptsMax?: number;
}

/** What a watch needs of its client. */
export interface Host<Item> {
  connection(): ConnectionOptions;
  page(first: Buffer, last: Buffer, limit: number): Promise<[Buffer, Buffer][]>;
  decode(bytes: Buffer): Item;
}

/** The changes of a range, one after the other: `for await`, or `get`; `close` it in the end. */
export class Watch<Item> implements AsyncIterable<Change<Item>> {
  /** How often a connection was made, and the range was read. */
  connections = 0;
  reads = 0;
  readonly #host: Host<Item>;
  readonly #first: Buffer;
  readonly #last: Buffer;
  readonly #options: Required<Omit<WatchOptions, "attemptsMax">> & { attemptsMax: number };
  readonly #changes: AsyncGenerator<Change<Item>, void>;
  #pending: Promise<IteratorResult<Change<Item>, void>> | undefined;
  #connection: Connection | undefined;
  #isClosed = false;
  #endRest: (() => void) | undefined;
  /** The range as it is at `position`, by keys whose bytes are characters. */
  readonly #copy = new Map<string, Buffer>();
  #position: Buffer | undefined;
  #id = 0;
  #givesReads: boolean;
  #isStale = true;
  #isResynced = false;
  /** The last message of each key since the position from which the range is read, and the position of the last one. */
  #collected: Map<string, Buffer | null> | undefined;
  #told: Buffer | undefined;
  #given: Change<Item>[] = [];

  constructor(host: Host<Item>, first: Buffer, last: Buffer, options: WatchOptions) {
    this.#host = host;
    this.#first = first;
    this.#last = last;
    this.#options = { snapshot: true, page: 1000, heartbeat: 30_000, restMax: 5000, attemptsMax: Infinity, ...options };
    if (!(this.#options.page >= 1) || !(this.#options.heartbeat > 0)) {
      throw new RangeError("a page has at least one pair, and a heartbeat takes more than no time");
    }
    this.#givesReads = this.#options.snapshot;
    this.#changes = this.#follow();
  }

  [Symbol.asyncIterator](): AsyncIterator<Change<Item>> {
    return {
      next: async () => {
        const change = await this.get();
        return change === undefined ? { done: true, value: undefined } : { done: false, value: change };
      },
      return: async () => {
        await this.close();
        return { done: true, value: undefined };
      },
    };
  }

  /** The next change; undefined when so many milliseconds are over, or the watch is closed. */
  async get(timeout?: number): Promise<Change<Item> | undefined> {
    if (this.#isClosed) return undefined;
    this.#pending ??= this.#changes.next();
    const pending = this.#pending;
    let timer: NodeJS.Timeout | undefined;
    const late = timeout === undefined ? [] : [new Promise<undefined>((resolve) => (timer = setTimeout(resolve, timeout, undefined)))];
    try {
      const result = await Promise.race([pending, ...late]);
      if (result === undefined) return undefined;
      this.#pending = undefined;
      return result.done ? undefined : result.value;
    } catch (error) {
      this.#pending = undefined;
      if (this.#isClosed) return undefined;
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  /** A copy of the range in order, with the changes that were received until now. */
  get pairs(): [Item, Item][] {
    const keys = [...this.#copy.keys()].sort();
    return keys.map((key) => [this.#host.decode(Buffer.from(key, "latin1")), this.#host.decode(this.#copy.get(key)!)]);
  }

  /** The server's position up to which changes were received. */
  get position(): string {
    return this.#position?.toString() ?? "";
  }

  /** Ends the watch. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#connection?.close();
    this.#endRest?.();
    await this.#pending?.catch(() => undefined);
  }

  async *#follow(): AsyncGenerator<Change<Item>, void> {
    let failures = 0;
    while (!this.#isClosed) {
      try {
        this.#connection?.close();
        this.#connection = await Connection.open(this.#host.connection(), this.#options.heartbeat);
        if (this.#isClosed) break;
        this.connections++;
        this.#id = 0;
        this.#collected = undefined;
        // The answer's position is no progress yet: what was missed comes behind it.
        if (this.#isStale) await this.#read();
        else [this.#id] = await this.#watch(this.#position);
        failures = 0;
        while (!this.#isClosed) {
          yield* this.#given.splice(0);
          this.#take(await this.#next());
          if (this.#isStale) await this.#read();
        }
      } catch (error) {
        if (this.#isClosed) break;
        if (!isLost(error)) throw error;
        yield* this.#given.splice(0);
        if (++failures > this.#options.attemptsMax) throw error;
        await this.#rest(Math.min(this.#options.restMax, 20 * 2 ** Math.min(failures, 20)));
      }
    }
    this.#connection?.close();
  }

  async #rest(milliseconds: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, milliseconds);
      this.#endRest = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.#endRest = undefined;
  }

  /** The next message; asks whether the server is there where it has not said anything for a while. */
  async #next(): Promise<Frame> {
    const connection = this.#connection!;
    const message = await connection.receive(this.#options.heartbeat);
    if (message !== undefined) return message;
    connection.send(["PING"]);
    const answer = await connection.receive(this.#options.heartbeat);
    if (answer === undefined) throw new ConnectionLostError(`the server has not answered within ${this.#options.heartbeat} ms`);
    return answer;
  }

  /** Begins a watch; messages that come before the answer are taken. */
  async #watch(position: Buffer | undefined): Promise<[number, Buffer]> {
    this.#connection!.send(["RANGE.WATCH", this.#first, this.#last, ...(position === undefined ? [] : ["FROM", position])]);
    for (;;) {
      const answer = await this.#next();
      if (Array.isArray(answer) && answer.length === 2 && typeof answer[0] === "number") return [answer[0], answer[1] as Buffer];
      this.#take(answer);
    }
  }

  /** Makes the copy what the server has. */
  async #read(): Promise<void> {
    while (this.#isStale) {
      this.reads++;
      const [begin, position] = await this.#watchInstead(undefined);
      // From here on no message counts, until the range is watched again from this position.
      this.#id = 0;
      const found = new Map<string, Buffer>();
      let first = this.#first;
      for (;;) {
        const page = await this.#host.page(first, this.#last, this.#options.page);
        for (const [key, value] of page) found.set(key.toString("latin1"), value);
        if (page.length < this.#options.page) break;
        first = Buffer.concat([page[page.length - 1]![0], Buffer.from([0])]);
        // What is told meanwhile must not pile up.
        while ((await this.#connection!.receive(0)) !== undefined);
      }
      const collected = new Map<string, Buffer | null>();
      this.#collected = collected;
      this.#isResynced = false;
      this.#told = position;
      this.#id = begin;
      await this.#watchInstead(position);
      this.#connection!.send(["PING", BARRIER]);
      for (let message; !isBarrier((message = await this.#next())); ) this.#take(message);
      this.#collected = undefined;
      if (this.#isResynced) continue;
      this.#isStale = false;
      this.#position = this.#told;
      for (const [key, value] of collected) {
        if (value === null) found.delete(key);
        else found.set(key, value);
      }
      const keys = new Set([...found.keys(), ...this.#copy.keys()]);
      for (const key of [...keys].sort()) this.#change(key, found.get(key) ?? null, true);
    }
    this.#givesReads = true;
  }

  /** Begins a watch, and ends the one before, whose messages do not count any more. */
  async #watchInstead(position: Buffer | undefined): Promise<[number, Buffer]> {
    const old = this.#id;
    this.#id = 0;
    const begun = await this.#watch(position);
    this.#id = begun[0];
    if (old !== 0) this.#connection!.send(["RANGE.UNWATCH", String(old)]);
    return begun;
  }

  /** A message of the watch. Anything else says that the server is there. */
  #take(message: Frame): void {
    if (!Array.isArray(message) || message.length < 2 || message[1] !== this.#id) return;
    const kind = String(message[0]);
    if (kind === "range-change" && message.length >= 6) {
      const key = (message[4] as Buffer).toString("latin1");
      const value = String(message[3]) === "set" ? (message[5] as Buffer) : null;
      if (this.#collected !== undefined) {
        this.#collected.set(key, value);
        this.#told = message[2] as Buffer;
      } else if (!this.#isStale) {
        this.#position = message[2] as Buffer;
        this.#change(key, value, false);
      }
    } else if (kind === "range-resync") {
      this.#isStale = this.#isResynced = true;
    } else if (kind === "range-end") {
      throw new WatchEndedError(String(message[2] ?? "the watch has ended"), "NOPERM");
    }
  }

  #change(key: string, value: Buffer | null, isRead: boolean): void {
    const before = this.#copy.get(key);
    if (value === null ? before === undefined : before?.equals(value)) return;
    if (value === null) this.#copy.delete(key);
    else this.#copy.set(key, value);
    if (isRead && !this.#givesReads) return;
    const decode = this.#host.decode;
    this.#given.push({
      key: decode(Buffer.from(key, "latin1")),
      value: value === null ? null : decode(value),
      isRead,
      position: this.position,
    });
  }
}

/** What a PING carries whose answer is waited for. */
const BARRIER = "headwater-watch";

function isBarrier(message: Frame): boolean {
  // In RESP2 a connection that watches gets an array.
  const answer = Array.isArray(message) && String(message[0]) === "pong" ? message[1] : message;
  return Buffer.isBuffer(answer) && answer.toString() === BARRIER;
}

/** Whether it is worth another attempt: connections end, servers start. What the server refuses is final. */
function isLost(error: unknown): boolean {
  if (error instanceof ConnectionLostError || error instanceof TryAgainError) return true;
  if (error instanceof Error && (error as { code?: string }).code === "LOADING") return true;
  const names = ["SocketClosedUnexpectedlyError", "ClientClosedError", "ConnectionTimeoutError", "DisconnectsClientError",
    "ReconnectStrategyError", "SocketTimeoutError", "CommandTimeoutError", "ClientOfflineError", "AggregateError"];
  if (error instanceof Error && names.includes(error.constructor.name)) return true;
  return ["ECONNREFUSED", "ECONNRESET", "EPIPE", "ETIMEDOUT", "ENOTFOUND", "EAI_AGAIN"].includes(
    (error as { code?: string } | null)?.code ?? "",
  );
}
