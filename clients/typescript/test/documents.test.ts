/**
 * The example, and what the documentation shows in TypeScript, compiled and run.
 *
 * The blocks of one page are one module. A line that ends with a comment shows what its expression gives. A loop that
 * follows a watch for ever runs beside the rest, which goes on when it has printed something.
 */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { ROOT, Server } from "./support.js";

const run = promisify(execFile);
const HERE = path.join(ROOT, "clients/typescript");
const PLACE = path.join(HERE, "dist/documents");
const PAGES = [
  "clients/typescript/README.md", "docs/start.md", "docs/how-to/timeline.md", "docs/how-to/leaderboard.md", "docs/how-to/shop.md",
  "docs/how-to/sessions.md", "docs/how-to/front-page.md",
].filter((page) => existsSync(path.join(ROOT, page)));
const PRELUDE = `
import { inspect as __inspect } from "node:util";
let __printed = 0;
const __log = console.log;
console.log = (...words: unknown[]) => (__printed++, __log(...words));
function __shown(line: number, value: unknown, expected: string) {
  const shown = __inspect(value, { depth: null, breakLength: Infinity });
  if (shown !== expected) throw new Error("line " + line + " shows " + shown + ", not " + expected);
}
async function __printedMore(before: number) {
  while (__printed === before) await new Promise((resolve) => setTimeout(resolve, 5));
}
`;

/** The page's blocks as a module. */
function program(page: string): string {
  const out: string[] = [];
  let block: string[] | undefined;
  let endless: number | undefined;
  readFileSync(path.join(ROOT, page), "utf8").split("\n").forEach((line, at) => {
    if (line === "```ts") {
      block = [];
    } else if (line === "```" && block !== undefined) {
      out.push(...block);
      block = undefined;
    } else if (block !== undefined) {
      if (/^for await .*watch/i.test(line)) {
        block.push(`const __before${at} = __printed;`, "void (async () => {");
        endless = at;
      }
      const shows = /^((?:await )?[a-zA-Z][\w.]*\(.*\)(?:\.\w+)?); \/\/ (.+)$/.exec(line);
      block.push(shows === null ? line : `__shown(${at + 1}, ${shows[1]}, ${JSON.stringify(shows[2])});`);
      if (line === "}" && endless !== undefined) {
        block.push("})();", `await __printedMore(__before${endless});`);
        endless = undefined;
      }
    }
  });
  return `${PRELUDE}${out.join("\n")}\nprocess.exit(0);\n`;
}

test("documents and the example", async (t) => {
  rmSync(PLACE, { recursive: true, force: true });
  mkdirSync(PLACE, { recursive: true });
  const modules = PAGES.map((page) => page.replace(/\W/g, "-"));
  PAGES.forEach((page, at) => writeFileSync(path.join(PLACE, `${modules[at]}.ts`), program(page)));
  writeFileSync(path.join(PLACE, "timeline.ts"), readFileSync(path.join(ROOT, "examples/timeline/timeline.ts"), "utf8"));
  const config = { extends: "../../tsconfig.json", compilerOptions: { rootDir: ".", outDir: "out", declaration: false }, include: ["*.ts"] };
  writeFileSync(path.join(PLACE, "tsconfig.json"), JSON.stringify(config));
  await run(path.join(HERE, "node_modules/.bin/tsc"), ["-p", PLACE]).catch((error: { stdout: string }) => assert.fail(error.stdout));

  for (const [at, page] of PAGES.entries()) {
    await t.test(page, async () => {
      const server = await Server.start();
      try {
        const file = path.join(PLACE, `out/${modules[at]}.js`);
        writeFileSync(file, readFileSync(file, "utf8").replaceAll("localhost:7379", `127.0.0.1:${server.port}`));
        await run("node", [file], { timeout: 60_000 });
      } finally {
        await server.stop();
      }
    });
  }

  await t.test("examples/timeline/timeline.ts", async () => {
    const server = await Server.start();
    try {
      const { stdout } = await run("node", [path.join(PLACE, "out/timeline.js"), `127.0.0.1:${server.port}`], { timeout: 60_000 });
      assert.deepEqual(stdout.trim().split("\n"), [
        "page 09:00 bob: Good morning",
        "live 09:00 bob: Good morning",
        "live 09:01 liz: Ann does not read this yet",
        "live 09:02 liz: Hello, Ann",
      ]);
    } finally {
      await server.stop();
    }
  });
});
