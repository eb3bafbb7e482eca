/** An attached sandbox: a connection on which the sidecar sends the attachment's status, and whose end ends the attachment. */

import type { Duplex } from "node:stream";

import type { Endpoint } from "./endpoint.js";
import { AttachmentError, type CofferdamError, DeadlineError, NotFoundError, ProtocolError, UnreachableError } from "./errors.js";
import type { AttachmentStatus, Killed } from "./types.js";
import { connectionError, decode, Lines, open, perform, readAll, refusal } from "./wire.js";

/** How many milliseconds one request may take. */
export const REQUEST_TIMEOUT_MS = 30_000;
const FOLLOW = "cofferdam-attachment";

/** An attached sandbox, ended by `await using` or `end`. Its status changes when the sandbox is paused or its pipe is lost. */
export class Attached implements AsyncDisposable {
  readonly #endpoint: Endpoint;
  readonly #stream: Duplex;
  readonly #lines = new Lines();
  #status: AttachmentStatus | undefined;
  #failure: CofferdamError | undefined;
  #changed: () => void = () => {};

  private constructor(endpoint: Endpoint, stream: Duplex, first: Buffer) {
    this.#endpoint = endpoint;
    this.#stream = stream;
    stream.on("error", (error) => this.#fail(new UnreachableError(`the attachment's connection was lost: ${error.message}`)));
    stream.on("close", () => this.#fail(new UnreachableError("the sidecar ended the attachment's connection; did it stop?")));
    stream.on("end", () => stream.destroy());
    stream.on("data", (data: Buffer) => this.#take(data));
    this.#take(first);
  }

  /** Resolves when the sandbox is attached. Until then, an abort of the signal ends the attachment. */
  static async start(endpoint: Endpoint, attachment: object, timeoutMs: number, signal?: AbortSignal): Promise<Attached> {
    const deadline = AbortSignal.timeout(timeoutMs);
    const stop = signal === undefined ? deadline : AbortSignal.any([deadline, signal]);
    const call = { method: "POST", path: "/v1/attachments", body: { attachment }, upgrade: FOLLOW } as const;
    // Its own controller, because these signals must not end the connection after the sandbox is attached.
    const connection = new AbortController();
    const abort = () => connection.abort(stop.reason);
    stop.addEventListener("abort", abort, { once: true });
    if (stop.aborted) abort();
    let attached: Attached | undefined;
    try {
      const opened = await open(endpoint, call, connection.signal);
      if ("response" in opened) {
        const text = await readAll(endpoint, opened.response, connection.signal);
        if (opened.response.statusCode === 200) throw new ProtocolError("the sidecar did not upgrade the connection");
        throw refusal(opened.response.statusCode ?? 0, text);
      }
      attached = new Attached(endpoint, opened.stream, opened.first);
      await attached.#begin(connection.signal);
      return attached;
    } catch (error) {
      // The sidecar ends the attachment when the connection ends.
      if (attached !== undefined) attached.#stream.destroy();
      if (deadline.aborted && !signal?.aborted) {
        const state = attached === undefined ? "" : attached.#lastState();
        throw new DeadlineError(`the sandbox was not attached within ${timeoutMs / 1000} s${state}`);
      }
      throw connectionError(endpoint, error, connection.signal);
    } finally {
      stop.removeEventListener("abort", abort);
    }
  }

  /** The newest status. */
  get status(): AttachmentStatus {
    if (this.#status === undefined) throw new ProtocolError("the sidecar sent no status");
    return this.#status;
  }

  /** The sandbox's name in `sessions`, the audit and `kill`. */
  get name(): string {
    return this.status.name;
  }

  /** Whether the pipe is open now. */
  get isAttached(): boolean {
    return this.#failure === undefined && this.status.state === "attached";
  }

  /** Why the attachment has ended before `end` was called; undefined while it lasts. */
  get failure(): CofferdamError | undefined {
    return this.#failure;
  }

  /** Resolves when the session, its processes and the attachment have ended. */
  async end(): Promise<void> {
    const enrolment = this.#status?.enrolment;
    try {
      if (this.#failure === undefined && typeof enrolment === "string") {
        const path = `/v1/enrolments/${encodeURIComponent(enrolment)}`;
        await perform<Killed>(this.#endpoint, { method: "DELETE", path }, REQUEST_TIMEOUT_MS);
      }
    } catch (error) {
      // The attachment has ended, or ends with the connection.
      if (!(error instanceof NotFoundError || error instanceof UnreachableError)) throw error;
    } finally {
      this.#stream.destroy();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.end();
  }

  async #begin(signal: AbortSignal): Promise<void> {
    const abort = () => this.#changed();
    signal.addEventListener("abort", abort, { once: true });
    try {
      while (true) {
        const changed = new Promise<void>((resolve) => (this.#changed = resolve));
        signal.throwIfAborted();
        if (this.#status !== undefined && isAttached(this.#status)) return;
        if (this.#failure !== undefined) throw this.#failure;
        await changed;
      }
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }

  #take(data: Buffer): void {
    try {
      for (const line of this.#lines.feed(data)) {
        this.#status = decode(line) as AttachmentStatus;
        if (this.#status.state === "over") this.#fail(over("the attachment is over", this.#status));
      }
    } catch (error) {
      this.#fail(error as CofferdamError);
      this.#stream.destroy();
    }
    this.#changed();
  }

  #fail(error: CofferdamError): void {
    this.#failure ??= error;
    this.#changed();
  }

  #lastState(): string {
    if (this.#status === undefined) return "";
    return `; it was ${this.#status.state}${this.#status.why ? `: ${this.#status.why}` : ""}`;
  }
}

/** Throws if waiting longer would not help. */
function isAttached(status: AttachmentStatus): boolean {
  const failed = `cannot attach the sandbox ${status.sandbox}`;
  switch (status.state) {
    case "attached":
      return true;
    case "over":
      throw over(failed, status);
    case "refused":
      throw new AttachmentError(`${failed}: ${status.why}`, "refused");
    case "suspended":
      throw new AttachmentError(`${failed}: ${status.why ?? "it is suspended"}; start it, or attach with resume: true`, "suspended");
    default:
      return false;
  }
}

function over(failed: string, status: AttachmentStatus): AttachmentError {
  return new AttachmentError(`${failed}: ${status.why}`, status.cause ?? "ended");
}
