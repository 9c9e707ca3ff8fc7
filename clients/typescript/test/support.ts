/** Real servers for the tests: `HEADWATER=path/to/headwater npm test`. */

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { Headwater } from "../src/index.js";

export const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), "../../../..");
const PROGRAM = process.env.HEADWATER ?? path.join(ROOT, "target/debug/headwater");

/** A server that can be killed and started again at its port, with its data. */
export class Server {
  port = 0;
  readonly #flags: string[];
  readonly #folder: string | undefined;
  #process: ChildProcess | undefined;

  constructor(flags: string[], keeps = false) {
    this.#folder = keeps ? mkdtempSync(path.join(tmpdir(), "headwater-")) : undefined;
    this.#flags = this.#folder === undefined ? flags : [...flags, "--data", this.#folder];
  }

  static async start(flags: string[] = [], keeps = false): Promise<Server> {
    const server = new Server(flags, keeps);
    await server.start();
    return server;
  }

  async start(): Promise<void> {
    this.#process = spawn(PROGRAM, ["serve", "--port", String(this.port), ...this.#flags], { stdio: ["ignore", "pipe", "ignore"] });
    const lines = createInterface({ input: this.#process.stdout! });
    const [ready] = (await once(lines, "line")) as [string];
    this.port = Number(/:(\d+)$/.exec(ready)?.[1]);
    if (!(this.port > 0)) throw new Error(`the server has not started: ${ready}`);
  }

  async kill(): Promise<void> {
    const ended = once(this.#process!, "exit");
    this.#process!.kill("SIGKILL");
    await ended;
  }

  async stop(): Promise<void> {
    if (this.#process!.exitCode === null && this.#process!.signalCode === null) await this.kill();
    if (this.#folder !== undefined) rmSync(this.#folder, { recursive: true });
  }

  connect(protocol: 2 | 3 = 3): Promise<Headwater> {
    return Headwater.connect({ RESP: protocol, socket: { host: "127.0.0.1", port: this.port, reconnectStrategy: () => 20 } });
  }
}

/** Numbers from a seed. */
export class Draws {
  constructor(private state: number) {}
  below(most: number): number {
    // A generator of 32 bits (mulberry32).
    this.state = (this.state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(this.state ^ (this.state >>> 15), 1 | this.state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) % most;
  }
  of<One>(choices: readonly One[]): One {
    return choices[this.below(choices.length)]!;
  }
}

/** Asks until it holds. */
export async function until(holds: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const end = Date.now() + 120_000;
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`not in time: ${what}`);
    await sleep(5);
  }
}

/** Ends the connections that watch; how many they were. */
export async function killWatchers(client: Headwater): Promise<number> {
  const list = String(await client.call("CLIENT", "LIST"));
  const watching = [...list.matchAll(/^id=(\d+) .*range-watches=[1-9]/gm)].map((match) => match[1]!);
  for (const id of watching) await client.call("CLIENT", "KILL", "ID", id);
  return watching.length;
}
