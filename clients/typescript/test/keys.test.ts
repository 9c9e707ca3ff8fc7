/** Encodings are the server's, byte for byte, and sort as values do. */

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import {
  decodeNumber, decodeText, decodeTime, encodeNumber, encodeText, encodeTime, Headwater, HeadwaterError, Pattern, prefixEnd,
} from "../src/index.js";
import { Draws, Server } from "./support.js";

const DRAWS = 400;
let server: Server;
let raw: Headwater<Buffer>;

before(async () => {
  server = await Server.start(["--shards=1"]);
  raw = await Headwater.connect({ bytes: true, RESP: 3, socket: { host: "127.0.0.1", port: server.port } });
  for (const kind of ["number", "text", "time"]) {
    for (const way of ["asc", "desc"]) {
      await raw.joinAdd(`${kind}-${way}`, `${kind}-${way}|<v:${kind}:${way}>|<k> = index of-${kind}-${way}|<k> as <v>`);
    }
  }
});
after(async () => {
  await raw.close();
  await server.stop();
});

function number(draw: Draws): string {
  const digits = (most: number) => Array.from({ length: 1 + draw.below(most) }, () => draw.of([..."00159"])).join("");
  const forms = [digits(3), digits(60), `${digits(3)}.${digits(4)}`, `0.${digits(40)}`, `${digits(30)}.${digits(30)}`];
  return draw.of(["", "-", "+"]) + draw.of(forms);
}

function words(draw: Draws): Buffer {
  const bytes = Buffer.from("\x00\x01 !\"#|{}~\x7f\x80\xfd\xfe\xffAaz", "latin1");
  return Buffer.from(Array.from({ length: draw.below(6) }, () => bytes[draw.below(bytes.length)]!));
}

function moment(draw: Draws): string {
  const two = (least: number, most: number) => String(least + draw.below(most - least + 1)).padStart(2, "0");
  const day = `${String(draw.below(10_000)).padStart(4, "0")}-${two(1, 12)}-${two(1, 28)}`;
  const seconds = draw.of(["", `:${two(0, 60)}`, `:${two(0, 59)}.${draw.below(100_000)}`]);
  const zone = draw.of(["", "Z", "z", "+01", "-0530", "+05:45", "-23:59"]);
  return draw.of([day, `${day}${draw.of([..."Tt "])}${two(0, 23)}:${two(0, 59)}${seconds}${zone}`, number(draw)]);
}

for (const [kind, draws] of [["number", number], ["text", words], ["time", moment]] as const) {
  for (const way of ["asc", "desc"]) {
    test(`components are the server's: ${kind} ${way}`, async () => {
      const draw = new Draws(kind.length * 2 + way.length);
      const pattern = new Pattern(`${kind}-${way}|<v:${kind}:${way}>|<k>`);
      for (let at = 0; at < DRAWS; at++) {
        const value = draws(draw);
        const prefix = pattern.prefixBytes({ v: value });
        assert.deepEqual(await raw.joinKey(`${kind}-${way}`, { v: value }), prefix, String(value));
        const key = Buffer.concat([prefix, Buffer.from("k")]);
        const decoded = (await raw.joinDecode(key))![1]!;
        assert.equal(pattern.parse(key).v, decoded.toString(), String(value));
        if (kind === "text") assert.deepEqual(decodeText(key.subarray(prefix.indexOf("|") + 1, prefix.length - 1), way === "desc"), value);
      }
    });
  }
}

for (const [kind, draws, encode] of [["number", number, encodeNumber], ["time", moment, encodeTime]] as const) {
  test(`what the server refuses is refused: ${kind}`, async () => {
    const draw = new Draws(7);
    let refused = 0;
    for (let at = 0; at < DRAWS; at++) {
      const letters = [...draws(draw)];
      for (let more = 0; more <= draw.below(2); more++) letters[draw.below(letters.length)] = draw.of([..."0123456789-+.:TZ ex"]);
      const value = letters.join("");
      const expected = await raw.joinKey(`${kind}-asc`, { v: value }).catch((error: unknown) => {
        assert.ok(error instanceof HeadwaterError);
        return undefined;
      });
      if (expected === undefined) {
        refused++;
        assert.throws(() => encode(value), RangeError, value);
      } else {
        assert.equal(`${kind}-asc|${encode(value)}|`, expected.toString(), value);
      }
    }
    assert.ok(refused > 20);
  });
}

test("components sort as values", () => {
  const draw = new Draws(4);
  for (const descending of [false, true]) {
    const sign = descending ? -1 : 1;
    const integers = Array.from({ length: 1000 }, () => BigInt(number(draw).split(".")[0]!.replace("+", "")));
    const codes = integers.map((one) => [Buffer.from(encodeNumber(one, descending) + "|"), one] as const);
    codes.sort(([one], [other]) => Buffer.compare(one, other));
    const sorted = [...integers].sort((one, other) => sign * (one < other ? -1 : one > other ? 1 : 0));
    assert.deepEqual(codes.map(([, one]) => one), sorted);
    for (let at = 0; at < 1000; at++) {
      const [one, other] = [words(draw), words(draw)];
      const coded = [one, other].map((text) => Buffer.concat([encodeText(text, descending), Buffer.from("|")]));
      assert.equal(Buffer.compare(coded[0]!, coded[1]!), sign * Buffer.compare(one, other) + 0);
    }
  }
});

test("values of JavaScript", () => {
  for (const value of [0, 42, -42, 0.5, 1e21, 1.5e-7, 123456.789, Number.MAX_VALUE, Number.MIN_VALUE, -1e300, 2n ** 100n]) {
    assert.equal(Number(decodeNumber(encodeNumber(value))), Number(value));
    assert.equal(Number(decodeNumber(encodeNumber(value, true), true)), Number(value));
  }
  assert.equal(encodeNumber(42), "C42.");
  assert.equal(encodeNumber(42, true), "-T57~");
  const at = new Date("2026-11-23T09:00:00.250Z");
  assert.equal(encodeTime(at), encodeTime("2026-11-23T10:00:00.25+01:00"));
  assert.equal(decodeTime(encodeTime(at)), "2026-11-23T09:00:00.25Z");
  assert.equal(new Date(decodeTime(encodeTime(new Date(-250)))).getTime(), -250);
  for (const wrong of ["", "x", "1e3", " 1", "1\n", NaN, Infinity, "9".repeat(1025)]) assert.throws(() => encodeNumber(wrong), RangeError);
  for (const wrong of ["", "x", "2026-02-29", "2026-13-01", new Date(NaN)]) assert.throws(() => encodeTime(wrong), RangeError);
  for (const wrong of ["", "C42", "C420.", "-C42.", "K", "A9999."]) assert.throws(() => decodeNumber(wrong), RangeError);
});

test("patterns", () => {
  const board = new Pattern("board|<game>|<score:number:desc>|<player>");
  assert.equal(board.key({ game: "chess", score: 1200, player: "ann" }), "board|chess|-R87~|ann");
  assert.equal(board.prefix({ game: "chess", score: 1200 }), "board|chess|-R87~|");
  assert.equal(board.prefix(), "board|");
  assert.deepEqual(board.parse("board|chess|-R87~|ann"), { game: "chess", score: "1200", player: "ann" });
  assert.equal(board.match("board|chess"), undefined);
  const page = new Pattern("page|<author>|<id:3>|c|<note:text>");
  const key = page.key({ author: 7, id: "001", note: "a|b" });
  assert.equal(key, "page|7|001|c|a{Bb!");
  assert.equal(page.parse(key).note, "a|b");
  assert.equal(prefixEnd("t|").toString(), "t}");
  assert.equal(prefixEnd(Buffer.from([255])).length, 0);
  for (const [values, text] of [
    [{ game: "a|b" }, /no '\|'/], [{ game: "" }, /at least one byte/], [{ game: 1.5 }, /neither a text nor an integer/],
    [{ score: 1 }, /all slots before/], [{ gmae: "x" }, /no slot <gmae>/], [{ game: "x", score: "y" }, /slot <score>/],
    [{ game: "x".repeat(1100) }, /at most 1024/],
  ] as const) {
    assert.throws(() => board.prefix(values as never), text);
  }
  assert.throws(() => board.key({ game: "chess" }), /needs a value of <score>, <player>/);
  for (const wrong of ["t", "t|<a", "t||x", "t|<a>|<a>", "t|<a:4:desc>", "<t>|<a>", "t|<a:real>"]) {
    assert.throws(() => new Pattern(wrong), RangeError);
  }
});
