/** A connection of its own for a watch: node-redis takes no messages but those of channels. */

import net from "node:net";
import tls from "node:tls";
import { errorOf } from "./errors.js";

/** What the server sends; bytes are not decoded, maps are flat arrays, errors are `Error`s. */
export type Frame = Buffer | number | null | boolean | Error | Frame[];

/** Where and as whom to connect: node-redis's options, as far as they matter here. */
export interface ConnectionOptions {
  RESP?: 2 | 3;
  username?: string;
  password?: string;
  credentialsProvider?: unknown;
  name?: string;
  socket?: { host?: string; port?: number; path?: string; tls?: boolean; connectTimeout?: number };
}

/** A connection was lost, or none could be made. */
export class ConnectionLostError extends Error {}

/** So many bytes of frames wait to be taken at most; then the server has to wait. */
const WAITING_BYTES_MAX = 1 << 20;

export class Connection {
  readonly #socket: net.Socket;
  /** Frames that nobody has taken, with their lengths in bytes. */
  readonly #frames: [Frame, number][] = [];
  #waitingBytes = 0;
  #unread: Buffer = Buffer.alloc(0);
  #failure: Error | undefined;
  #waiting: (() => void) | undefined;

  private constructor(socket: net.Socket) {
    this.#socket = socket;
    socket.on("data", (data: Buffer) => {
      this.#unread = this.#unread.length === 0 ? data : Buffer.concat([this.#unread, data]);
      try {
        this.#parse();
      } catch (error) {
        this.#failure ??= error as Error;
        socket.destroy();
      }
      this.#wake();
    });
    const lost = (error?: Error) => {
      this.#failure ??= new ConnectionLostError(error?.message ?? "the server has closed the connection");
      this.#wake();
    };
    socket.on("error", lost);
    socket.on("close", () => lost());
  }

  /** Connects and logs in. */
  static async open(options: ConnectionOptions, timeout: number): Promise<Connection> {
    const { tls: encrypted, path, connectTimeout, ...where } = options.socket ?? {};
    const target = path !== undefined ? { path } : { host: "localhost", port: 7379, ...where };
    const socket = encrypted ? tls.connect({ ...target } as tls.ConnectionOptions) : net.connect(target as net.NetConnectOpts);
    const connection = new Connection(socket);
    try {
      await new Promise<void>((resolve, reject) => {
        const timer = setTimeout(() => reject(new ConnectionLostError("no connection in time")), connectTimeout ?? timeout);
        const settle = (then: () => void) => {
          clearTimeout(timer);
          then();
        };
        socket.once(encrypted ? "secureConnect" : "connect", () => settle(resolve));
        socket.once("error", (error) => settle(() => reject(new ConnectionLostError(error.message))));
      });
      socket.setNoDelay(true);
      const user = await credentials(options);
      const login = user.password === undefined ? [] : ["AUTH", user.username ?? "default", user.password];
      await connection.#ask(["HELLO", String(options.RESP ?? 2), ...login, ...(options.name ? ["SETNAME", options.name] : [])], timeout);
      return connection;
    } catch (error) {
      connection.close();
      throw error;
    }
  }

  async #ask(words: string[], timeout: number): Promise<void> {
    this.send(words);
    const answer = await this.receive(timeout);
    if (answer === undefined) throw new ConnectionLostError("the server has not answered in time");
  }

  send(words: (string | Buffer)[]): void {
    const parts: Buffer[] = [Buffer.from(`*${words.length}\r\n`)];
    for (const word of words) {
      const bytes = Buffer.from(word as string);
      parts.push(Buffer.from(`$${bytes.length}\r\n`), bytes, Buffer.from("\r\n"));
    }
    this.#socket.write(Buffer.concat(parts));
  }

  /** The next frame; undefined when the time is over. Errors of the server are thrown, and that the connection was lost. */
  async receive(milliseconds: number): Promise<Frame | undefined> {
    if (this.#frames.length === 0 && this.#failure === undefined) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, milliseconds);
        this.#waiting = () => {
          clearTimeout(timer);
          resolve();
        };
      });
      this.#waiting = undefined;
    }
    const [frame, length] = this.#frames.shift() ?? [undefined, 0];
    this.#waitingBytes -= length;
    if (this.#waitingBytes < WAITING_BYTES_MAX / 2 && this.#socket.isPaused()) {
      this.#socket.resume();
      this.#parse();
    }
    if (frame === undefined && this.#failure !== undefined) throw this.#failure;
    if (frame instanceof Error) throw frame;
    return frame;
  }

  close(): void {
    this.#failure ??= new ConnectionLostError("the connection was closed");
    this.#socket.destroy();
    this.#wake();
  }

  #wake(): void {
    this.#waiting?.();
  }

  #parse(): void {
    let at = 0;
    while (this.#waitingBytes < WAITING_BYTES_MAX) {
      const found = parse(this.#unread, at);
      if (found === undefined) break;
      this.#frames.push([found[0], found[1] - at]);
      this.#waitingBytes += found[1] - at;
      at = found[1];
    }
    this.#unread = this.#unread.subarray(at);
    if (this.#waitingBytes >= WAITING_BYTES_MAX) this.#socket.pause();
  }
}

async function credentials(options: ConnectionOptions): Promise<{ username?: string; password?: string }> {
  const provider = options.credentialsProvider as
    | { type?: string; credentials?: () => Promise<{ username?: string; password?: string }> }
    | undefined;
  if (provider?.type === "async-credentials-provider" && provider.credentials !== undefined) return provider.credentials();
  return options;
}

/** A frame that begins at `at`, and where it ends; undefined where it is not all there. */
function parse(data: Buffer, at: number): [Frame, number] | undefined {
  const end = data.indexOf("\r\n", at);
  if (end < 0) return undefined;
  const kind = String.fromCharCode(data[at]!);
  const line = data.subarray(at + 1, end);
  const next = end + 2;
  switch (kind) {
    case "+":
      return [Buffer.from(line), next];
    case "-":
      return [errorOf(line.toString()), next];
    case ":":
      return [Number(line), next];
    case ",":
    case "(":
      return [Buffer.from(line), next];
    case "_":
      return [null, next];
    case "#":
      return [line.toString() === "t", next];
    case "$":
    case "!":
    case "=": {
      const length = Number(line);
      if (length < 0) return [null, next];
      if (data.length < next + length + 2) return undefined;
      const bytes = Buffer.from(data.subarray(next, next + length));
      return [kind === "!" ? errorOf(bytes.toString()) : bytes, next + length + 2];
    }
    case "*":
    case "~":
    case ">":
    case "%": {
      const count = Number(line) * (kind === "%" ? 2 : 1);
      if (count < 0) return [null, next];
      const items: Frame[] = [];
      let from = next;
      for (let item = 0; item < count; item++) {
        const found = parse(data, from);
        if (found === undefined) return undefined;
        items.push(found[0]);
        from = found[1];
      }
      return [items, from];
    }
    default:
      throw new ConnectionLostError(`the server has sent what is no RESP: ${kind}`);
  }
}
