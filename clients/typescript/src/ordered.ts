/**
 * Values as components of keys whose bytes sort as the values do: what the server makes of values in keys, byte for byte
 * (docs/joins.md, "Values in keys"). Nothing of it holds a `|`.
 */

/** What can be encoded as a number. A text is `[+-]digits[.digits]`, exact to any number of digits. */
export type NumberValue = number | bigint | string;
/** What can be encoded as a time: a `Date`, or a text as in RFC 3339, or one of seconds since 1970. */
export type TimeValue = Date | string;

const NUMBER = /^([+-]?)([0-9]+)(?:\.([0-9]+))?$/;
const NUMBER_BYTES_MAX = 1024;
const EXPONENT_MAX = 9999;
const LETTERED = 20;
const CODE = /^(?:A([0-9]{4})|V([0-9]{4})|([B-U]))([0-9]+)\.$/;
const MOMENT =
  /^([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2}))?(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):?([0-9]{2})?)?)?$/;

/** The component that stands for a number, exactly: 42 is `C42.`, and `-T57~` descending. */
export function encodeNumber(value: NumberValue, descending = false): string {
  return encode(plain(value), descending);
}

/** The number that a component stands for, in the plainest text. */
export function decodeNumber(component: string | Uint8Array, descending = false): string {
  return decode(ascii(component), descending);
}

/** The component that stands for a moment. */
export function encodeTime(value: TimeValue, descending = false): string {
  return encode(seconds(value), descending);
}

/** The moment that a component stands for, as in RFC 3339; seconds since 1970 outside of the years 0 to 9999. */
export function decodeTime(component: string | Uint8Array, descending = false): string {
  return written(decodeNumber(component, descending));
}

/** The component that stands for a text of any bytes. Descending, it is no UTF-8. */
export function encodeText(value: string | Uint8Array, descending = false): Buffer {
  const out: number[] = [];
  for (let byte of Buffer.from(value as string)) {
    if (descending) byte = 255 - byte;
    if (byte <= 0x22) out.push(0x22, byte + 35);
    else if (byte === 0x7b || byte === 0x7c) out.push(0x7b, 0x41 + byte - 0x7b);
    else if (descending && byte >= 0xfe) out.push(0xfe, 0x41 + byte - 0xfe);
    else out.push(byte);
  }
  out.push(descending ? 0xff : 0x21);
  return Buffer.from(out);
}

/** The bytes of the text that a component stands for. */
export function decodeText(component: string | Uint8Array, descending = false): Buffer {
  const data = Buffer.from(component as string);
  const wrong = () => new RangeError(`${JSON.stringify(data.toString())} stands for no text`);
  if (data.length === 0 || data[data.length - 1] !== (descending ? 0xff : 0x21)) throw wrong();
  const out: number[] = [];
  for (let at = 0; at < data.length - 1; at++) {
    let byte = data[at]!;
    const next = () => (++at < data.length - 1 ? data[at]! : 0);
    if (byte === 0x22) {
      byte = next() - 35;
      if (byte < 0 || byte > 0x22) throw wrong();
    } else if (byte === 0x7b || (descending && byte === 0xfe)) {
      const more = next() - 0x41;
      if (more !== 0 && more !== 1) throw wrong();
      byte += more;
    } else if (byte < 0x22 || byte === 0x7c || (descending && byte === 0xff)) throw wrong();
    out.push(descending ? 255 - byte : byte);
  }
  return Buffer.from(out);
}

function ascii(component: string | Uint8Array): string {
  return typeof component === "string" ? component : Buffer.from(component).toString("latin1");
}

/** A number in digits. */
function plain(value: NumberValue): string {
  if (typeof value === "string") return value;
  if (typeof value === "bigint") return value.toString();
  if (typeof value !== "number" || !Number.isFinite(value)) throw new RangeError(`${String(value)} is no number of a key`);
  const text = String(value);
  const match = /^(-?)([0-9])(?:\.([0-9]+))?e([+-][0-9]+)$/.exec(text);
  if (match === null) return text;
  const digits = match[2]! + (match[3] ?? "");
  const places = 1 + Number(match[4]);
  if (places > 0) return match[1]! + digits.padEnd(places, "0");
  return `${match[1]}0.${"0".repeat(-places)}${digits}`;
}

/** The whole digits of a number without leading zeros, and its fraction's without trailing ones. */
function parts(text: string): { negative: boolean; whole: string; fraction: string } {
  const match = NUMBER.exec(text);
  if (match === null || text.length > NUMBER_BYTES_MAX || text.includes("\n")) {
    const most = `${NUMBER_BYTES_MAX} at most`;
    throw new RangeError(`${JSON.stringify(text.slice(0, 80))} is no number: digits, perhaps with a sign and a fraction, ${most}`);
  }
  const whole = match[2]!.replace(/^0+/, "");
  const fraction = (match[3] ?? "").replace(/0+$/, "");
  return { negative: match[1] === "-" && whole + fraction !== "", whole, fraction };
}

function turned(text: string): string {
  return text.replace(/[0-9A-V.~]/g, (one) => {
    if (one === ".") return "~";
    if (one === "~") return ".";
    const code = one.charCodeAt(0);
    return String.fromCharCode(code < 0x41 ? 0x30 + 0x39 - code : 0x41 + 0x56 - code);
  });
}

function encode(text: string, descending: boolean): string {
  const { negative, whole, fraction } = parts(text);
  if (whole === "" && fraction === "") return "0";
  let head: string;
  let digits: string;
  if (whole === "") {
    digits = fraction.replace(/^0+/, "");
    head = "A" + String(EXPONENT_MAX - (fraction.length - digits.length)).padStart(4, "0");
  } else {
    digits = (whole + fraction).replace(/0+$/, "");
    head = whole.length <= LETTERED ? String.fromCharCode(0x41 + whole.length) : "V" + String(whole.length).padStart(4, "0");
  }
  const code = `${head}${digits}.`;
  return negative !== descending ? "-" + turned(code) : code;
}

function decode(component: string, descending: boolean): string {
  if (component === "0") return "0";
  const isTurned = component.startsWith("-");
  const match = CODE.exec(isTurned ? turned(component.slice(1)) : component);
  if (match !== null) {
    const [, small, many, letter, digits] = match;
    let text: string;
    if (small !== undefined) {
      text = "0." + "0".repeat(EXPONENT_MAX - Number(small)) + digits;
    } else {
      const places = many !== undefined ? Number(many) : letter!.charCodeAt(0) - 0x41;
      text = digits!.slice(0, places).padEnd(places, "0");
      if (digits!.length > places) text += "." + digits!.slice(places);
    }
    if (isTurned !== descending) text = "-" + text;
    // Only what the encoder gives is taken.
    if (text.length <= NUMBER_BYTES_MAX && NUMBER.test(text) && encode(text, descending) === component) return text;
  }
  throw new RangeError(`${JSON.stringify(component)} stands for no number`);
}

/** Days from 1970 to a date; years begin in March here, so that the day of leap years is their last. */
function daysBefore(year: number, month: number, day: number): number {
  const from = month <= 2 ? year - 1 : year;
  const leaps = Math.floor(from / 4) - Math.floor(from / 100) + Math.floor(from / 400);
  return 365 * from + leaps + Math.floor((153 * ((month + 9) % 12) + 2) / 5) + day - 719_469;
}

function daysIn(year: number, month: number): number {
  if (month === 2) return year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0) ? 29 : 28;
  return [4, 6, 9, 11].includes(month) ? 30 : 31;
}

/** Seconds since 1970, in digits. */
function seconds(value: TimeValue): string {
  let text = value as string;
  if (value instanceof Date) {
    if (Number.isNaN(value.getTime())) throw new RangeError("an invalid Date is no time");
    return thousandths(BigInt(value.getTime()), 3);
  }
  if (typeof value !== "string") throw new TypeError("a time is a Date, or a text as in RFC 3339 or of seconds since 1970");
  if (NUMBER.test(text)) return text;
  const match = MOMENT.exec(text);
  const wrong = `${JSON.stringify(text)} is no time: RFC 3339 (2026-11-23T10:00:00.5+01:00), or seconds since 1970`;
  if (match === null || text.includes("\n")) throw new RangeError(wrong);
  const [year, month, day, hour, minute, second] = [1, 2, 3, 4, 5, 6].map((at) => Number(match[at] ?? 0)) as [
    number, number, number, number, number, number,
  ];
  const [hours, minutes] = [Number(match[9] ?? 0), Number(match[10] ?? 0)];
  const isDate = month >= 1 && month <= 12 && day >= 1 && day <= daysIn(year, month);
  if (!isDate || hour > 23 || minute > 59 || second > 60 || hours > 23 || minutes > 59) throw new RangeError(wrong);
  const offset = (hours * 3600 + minutes * 60) * (match[8] === "-" ? -1 : 1);
  const total = daysBefore(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - offset;
  const fraction = match[7] ?? "";
  text = (BigInt(total) * 10n ** BigInt(fraction.length) + BigInt(fraction || "0")).toString();
  return thousandths(BigInt(text), fraction.length);
}

/** A number of which the last `places` digits are behind the point. */
function thousandths(value: bigint, places: number): string {
  if (places === 0) return value.toString();
  const digits = (value < 0n ? -value : value).toString().padStart(places + 1, "0");
  return `${value < 0n ? "-" : ""}${digits.slice(0, -places)}.${digits.slice(-places)}`;
}

/** Seconds since 1970 as a moment in UTC. */
function written(number: string): string {
  const [whole = "0", rest = ""] = number.split(".");
  let total = BigInt(whole);
  let fraction = rest;
  if (number.startsWith("-") && rest !== "") {
    total -= 1n;
    fraction = (10n ** BigInt(rest.length) - BigInt(rest)).toString().padStart(rest.length, "0");
  }
  const days = total >= 0n ? total / 86_400n : -((-total + 86_399n) / 86_400n);
  const clock = Number(total - days * 86_400n);
  if (days < -800_000n || days > 3_000_000n) return number;
  const at = Number(days);
  let year = Math.floor((at * 400) / 146_097) + 1970;
  while (daysBefore(year, 1, 1) > at) year--;
  while (daysBefore(year + 1, 1, 1) <= at) year++;
  if (year < 0 || year > 9999) return number;
  let day = at - daysBefore(year, 1, 1);
  let month = 1;
  while (day >= daysIn(year, month)) day -= daysIn(year, month++);
  const two = (value: number) => String(Math.floor(value)).padStart(2, "0");
  const date = `${String(year).padStart(4, "0")}-${two(month)}-${two(day + 1)}`;
  return `${date}T${two(clock / 3600)}:${two((clock / 60) % 60)}:${two(clock % 60)}${fraction && "." + fraction}Z`;
}
