/** Builders and parsers of keys: the patterns of joins, filled in. */

import * as ordered from "./ordered.js";

/** What a slot takes: a text or an integer; a slot of numbers any number, one of times a `Date` as well. */
export type SlotValue = string | Uint8Array | number | bigint | Date;
export type SlotValues = Readonly<Record<string, SlotValue>>;

interface Slot {
  name: string;
  /** Nothing: the bytes as they are. */
  kind: "text" | "number" | "time" | undefined;
  descending: boolean;
  width: number | undefined;
}

const SLOT = /^<([^<>|:]+)(?::([0-9]+|text|number|time)(?::(asc|desc))?)?>$/;
const KEY_BYTES_MAX = 1024;

/**
 * A pattern of keys, as in the text of a join: `board|<game>|<score:number:desc>|<player>`.
 *
 * A slot is `<name>` (the bytes as they are), `<name:4>` (exactly four of them), or has a kind: `text` (any text), `number` or `time`,
 * perhaps with `:desc`. A component of a kind sorts as its values do.
 */
export class Pattern {
  readonly text: string;
  readonly table: string;
  /** The names of its slots, in their order. */
  readonly slots: string[] = [];
  readonly #components: (Slot | string)[] = [];

  constructor(text: string) {
    this.text = text.trim();
    const [table = "", ...components] = this.text.split("|");
    if (components.length === 0 || table.includes("<")) {
      throw new RangeError(`${JSON.stringify(text)} is no pattern of a table's keys: table|<slot>|literal|<slot:number:desc>`);
    }
    this.table = table;
    for (const component of components) {
      const match = SLOT.exec(component);
      if (match === null) {
        if (component === "" || /[<>]/.test(component)) {
          const allowed = "<name>, <name:width>, <name:text>, <name:number>, <name:time>, with :asc or :desc";
          throw new RangeError(`'${component}' of '${text}' is neither a literal nor a slot: ${allowed}`);
        }
        this.#components.push(component);
        continue;
      }
      const [, name, kind, direction] = match;
      const width = kind !== undefined && /^[0-9]/.test(kind) ? Number(kind) : undefined;
      if (width !== undefined && direction !== undefined) throw new RangeError(`'${component}' of '${text}': a width has no direction`);
      if (this.slots.includes(name!)) throw new RangeError(`slot <${name}> occurs twice in '${text}'`);
      this.slots.push(name!);
      const known = width === undefined ? (kind as Slot["kind"]) : undefined;
      this.#components.push({ name: name!, kind: known, descending: direction === "desc", width });
    }
  }

  /** The key with these values of the slots, all of which are needed. */
  key(values: SlotValues): string {
    return utf8(this.keyBytes(values));
  }

  /** As `key`; a descending text makes keys that are no UTF-8. */
  keyBytes(values: SlotValues): Buffer {
    const missing = this.slots.filter((name) => values[name] === undefined);
    if (missing.length > 0) throw new RangeError(`'${this.text}' needs a value of <${missing.join(">, <")}>; prefix() does without`);
    return this.#fill(values);
  }

  /** What keys with these values begin with, up to the first slot without one. */
  prefix(values: SlotValues = {}): string {
    return utf8(this.#fill(values));
  }

  /** As `prefix`, as bytes. */
  prefixBytes(values: SlotValues = {}): Buffer {
    return this.#fill(values);
  }

  /**
   * The values of a key, as texts: numbers in their plainest form, times as in RFC 3339. `Number(…)`, `BigInt(…)` and
   * `new Date(…)` take them.
   */
  parse(key: string | Uint8Array): Record<string, string> {
    const parts = Buffer.from(key as string).toString("latin1").split("|").map((part) => Buffer.from(part, "latin1"));
    const wrong = `'${String(key)}' is no key of '${this.text}'`;
    if (parts.length !== this.#components.length + 1 || parts[0]!.toString() !== this.table) throw new RangeError(wrong);
    const values: Record<string, string> = {};
    this.#components.forEach((component, at) => {
      const part = parts[at + 1]!;
      if (typeof component !== "string") values[component.name] = decoded(component, part, wrong);
      else if (part.toString() !== component) throw new RangeError(wrong);
    });
    return values;
  }

  /** As `parse`, and undefined for a key that does not fit. */
  match(key: string | Uint8Array): Record<string, string> | undefined {
    try {
      return this.parse(key);
    } catch (error) {
      if (error instanceof RangeError) return undefined;
      throw error;
    }
  }

  #fill(values: SlotValues): Buffer {
    const given = Object.keys(values).filter((name) => values[name] !== undefined);
    const unknown = given.find((name) => !this.slots.includes(name));
    if (unknown !== undefined) throw new RangeError(`'${this.text}' has no slot <${unknown}>; it has <${this.slots.join(">, <")}>`);
    const parts: Buffer[] = [Buffer.from(this.table)];
    let filled = 0;
    let isWhole = true;
    for (const component of this.#components) {
      if (typeof component === "string") {
        parts.push(Buffer.from(component));
      } else if (values[component.name] !== undefined) {
        parts.push(encoded(component, values[component.name]!));
        filled++;
      } else {
        isWhole = false;
        break;
      }
    }
    if (filled < given.length) throw new RangeError(`a prefix of '${this.text}' with <${given[filled]}> needs all slots before it`);
    const bar = Buffer.from("|");
    const key = Buffer.concat([...parts.flatMap((part, at) => (at === 0 ? [part] : [bar, part])), ...(isWhole ? [] : [bar])]);
    if (key.length > KEY_BYTES_MAX) throw new RangeError(`the key has ${key.length} bytes; a key has at most ${KEY_BYTES_MAX}`);
    return key;
  }
}

function utf8(bytes: Buffer): string {
  const text = bytes.toString();
  if (!Buffer.from(text).equals(bytes)) throw new RangeError("the key is no UTF-8: keyBytes() and prefixBytes() give its bytes");
  return text;
}

function encoded(slot: Slot, value: SlotValue): Buffer {
  try {
    if (slot.kind === "number") return Buffer.from(ordered.encodeNumber(value as ordered.NumberValue, slot.descending));
    if (slot.kind === "time") return Buffer.from(ordered.encodeTime(value as ordered.TimeValue, slot.descending));
    if (typeof value === "bigint" || (typeof value === "number" && Number.isSafeInteger(value))) value = String(value);
    if (typeof value !== "string" && !(value instanceof Uint8Array)) {
      throw new TypeError(`${String(value)} is neither a text nor an integer`);
    }
    if (slot.kind === "text") return ordered.encodeText(value, slot.descending);
    const data = Buffer.from(value as string);
    if (data.length === 0 || data.includes("|")) {
      const more = `<${slot.name}:text> takes any text`;
      throw new RangeError(`'${String(value)}' is no component of a key, which has at least one byte and no '|'; ${more}`);
    }
    if (slot.width !== undefined && data.length !== slot.width) {
      throw new RangeError(`'${String(value)}' has ${data.length} bytes, not ${slot.width}`);
    }
    return data;
  } catch (error) {
    if (error instanceof Error) error.message = `slot <${slot.name}>: ${error.message}`;
    throw error;
  }
}

function decoded(slot: Slot, part: Buffer, wrong: string): string {
  try {
    if (slot.kind === "number") return ordered.decodeNumber(part, slot.descending);
    if (slot.kind === "time") return ordered.decodeTime(part, slot.descending);
    if (slot.kind === "text") return ordered.decodeText(part, slot.descending).toString();
  } catch (error) {
    throw new RangeError(`${wrong}: slot <${slot.name}>: ${(error as Error).message}`);
  }
  if (part.length === 0 || (slot.width !== undefined && part.length !== slot.width)) throw new RangeError(wrong);
  return part.toString();
}

/** The end of the range of all keys that start with `prefix`; nothing, which means to the end, where there is none. */
export function prefixEnd(prefix: string | Uint8Array): Buffer {
  const data = Buffer.from(prefix as string);
  let length = data.length;
  while (length > 0 && data[length - 1] === 0xff) length--;
  const end = Buffer.from(data.subarray(0, length));
  if (length > 0) end[length - 1]!++;
  return end;
}
