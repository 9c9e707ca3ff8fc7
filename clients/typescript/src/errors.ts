/** What the server refuses, as exceptions with its text. */

/** The server has refused a command. `code` is the word that the error begins with, `message` what follows it. */
export class HeadwaterError extends Error {
  constructor(
    message: string,
    readonly code = "ERR",
  ) {
    super(message);
    this.name = new.target.name;
  }
}

/** A key that a join maintains cannot be written by clients. */
export class JoinedError extends HeadwaterError {
  /** The name of the join. */
  get join(): string {
    return /join '(.*)'/.exec(this.message)?.[1] ?? "";
  }
}
/** A mistake in the text of a join. */
export class JoinSyntaxError extends HeadwaterError {
  /** Where the mistake is, from 1 on. */
  get column(): number {
    return Number(/^(?:join '.*?': )?column ([0-9]+):/.exec(this.message)?.[1] ?? 0);
  }
}
/** The user lacks a right. */
export class NoPermissionError extends HeadwaterError {}
/** There is no user of the name with this password, or one is needed. */
export class AuthenticationError extends HeadwaterError {}
/** There is no room for a write, or for what a read asks for at one moment. */
export class OutOfMemoryError extends HeadwaterError {}
/** Several shards could not agree in time; nothing of the command was executed. */
export class TryAgainError extends HeadwaterError {}
/** A flow's backlog is full, or a partition cannot move now. */
export class BusyError extends HeadwaterError {}
/** A source of base data has failed, or did not answer in time. */
export class SourceError extends HeadwaterError {}
/** The command took longer than `command-milliseconds-max`. */
export class SlowCommandError extends HeadwaterError {}
/** Writes are refused, since the store on disk cannot take them. */
export class StorageError extends HeadwaterError {}
/** A stream where a value is wanted, or the other way round. */
export class WrongTypeError extends HeadwaterError {}
/** A function has failed, or reached a limit; nothing of what it did happened. */
export class FunctionError extends HeadwaterError {}
/** No such function is loaded. */
export class NoFunctionError extends HeadwaterError {}
/** The server has ended a watch: its user may not read the range any more. */
export class WatchEndedError extends HeadwaterError {}

class OffsetGone extends HeadwaterError {
  /** The first offset of the stream that can be read. */
  get first(): number {
    return Number(/([0-9]+)$/.exec(this.message)?.[1] ?? 0);
  }
}
/** This part of a stream was trimmed, or was that of an earlier stream of the name. */
export class TrimmedError extends OffsetGone {}
/** This part of a stream went for want of memory. */
export class EvictedError extends OffsetGone {}

const TYPES: Record<string, typeof HeadwaterError> = {
  JOINED: JoinedError,
  NOPERM: NoPermissionError,
  WRONGPASS: AuthenticationError,
  NOAUTH: AuthenticationError,
  OOM: OutOfMemoryError,
  TRYAGAIN: TryAgainError,
  BUSY: BusyError,
  SOURCE: SourceError,
  TIMEOUT: SlowCommandError,
  MISCONF: StorageError,
  WRONGTYPE: WrongTypeError,
  FUNCTION: FunctionError,
  NOFUNCTION: NoFunctionError,
  TRIMMED: TrimmedError,
  EVICTED: EvictedError,
};

/** The error that an error reply of the server says. */
export function errorOf(reply: string): HeadwaterError {
  const match = /^([A-Z][A-Z0-9]+) ([^]*)$/.exec(reply);
  const [code, text] = match === null ? ["ERR", reply] : [match[1]!, match[2]!];
  if (code === "ERR" && /^(?:join '.*?': )?column [0-9]/.test(text)) return new JoinSyntaxError(text);
  return new (TYPES[code] ?? HeadwaterError)(text, code);
}

/** An error of node-redis as one of those above, where it is an answer of the server. */
export function typed(error: unknown): unknown {
  const isReply = error instanceof Error && ["SimpleError", "BlobError", "ErrorReply"].includes(error.constructor.name);
  return isReply ? errorOf(error.message) : error;
}
