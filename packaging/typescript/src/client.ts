/** The client, and `attach`. */

import { Attached, REQUEST_TIMEOUT_MS } from "./attached.js";
import { type ConnectOptions, Endpoint } from "./endpoint.js";
import { DeadlineError, ProtocolError, SettingsError } from "./errors.js";
import { recognise, type SandboxLike } from "./sandboxes.js";
import type {
  AttachmentStatus,
  Change,
  Enrolled,
  EnrolmentEntry,
  Harness,
  Killed,
  Lagged,
  PipeRoute,
  PlatformKind,
  Sessions,
} from "./types.js";
import { connectionError, decode, Lines, open, perform, readAll, refusal } from "./wire.js";

/** How many milliseconds attaching a sandbox may take, the upload of the shim included. */
const ATTACH_TIMEOUT_MS = 120_000;
/** How many milliseconds a stream of changes may be silent: the sidecar sends something at least every 15 seconds. */
const WATCH_TIMEOUT_MS = 45_000;

export interface AttachOptions {
  readonly grant: string;
  /** Required for a sandbox that is given by its id. */
  readonly platform?: PlatformKind;
  /** The `NAME` of `[platforms.NAME]`, if the sidecar's configuration has several platforms of one kind. */
  readonly platformName?: string;
  /** The sandbox's name; by default its id. */
  readonly name?: string;
  readonly ttlMs?: number;
  /** Whether a sandbox that is paused or stopped now is resumed. */
  readonly resume?: boolean;
  readonly keepAwake?: boolean;
  /**
   * How the sandbox is connected to the sidecar: with "preview" (the default) or "ssh" through the platform, with "dial-out" by a
   * connection from the sandbox to the sidecar's `relay.advertise`.
   */
  readonly via?: PipeRoute;
  /** The servers of the grant are added to the settings of this harness in the sandbox; see the status's `warning`. */
  readonly harness?: Harness;
  /** How long attaching may take. Default: 120 seconds. */
  readonly timeoutMs?: number;
  /** An abort before the sandbox is attached ends the attachment. */
  readonly signal?: AbortSignal;
}

export interface EnrollOptions {
  readonly name?: string;
  /** How long the sandbox stays enrolled. */
  readonly ttlMs?: number;
  /** How long the result's `text` can be used for the first connection of the sandbox. */
  readonly ticketTtlMs?: number;
  /** A directory on the sidecar's host, in which the sidecar creates a Unix socket for this sandbox: `text` is its address. */
  readonly socket?: string;
}

/** A client of the admin API. Without options, the sidecar is found by the environment, then at its default socket. */
export class Client {
  readonly #endpoint: Endpoint;
  readonly #timeoutMs: number;

  constructor(options: ConnectOptions & { readonly timeoutMs?: number } = {}) {
    this.#endpoint = Endpoint.find(options);
    this.#timeoutMs = options.timeoutMs ?? REQUEST_TIMEOUT_MS;
  }

  /** Attaches a sandbox object of E2B's or Daytona's SDK, or an id with its `platform`, until the result is disposed of. */
  async attach(sandbox: SandboxLike, options: AttachOptions): Promise<Attached> {
    const [kind, id] = recognise(sandbox, options.platform);
    const attachment = {
      kind,
      platform: options.platformName,
      sandbox: id,
      grant: options.grant,
      name: options.name,
      "ttl-ms": options.ttlMs,
      resume: options.resume ?? false,
      "keep-awake": options.keepAwake ?? false,
      via: options.via,
      harness: options.harness,
    };
    return Attached.start(this.#endpoint, attachment, options.timeoutMs ?? ATTACH_TIMEOUT_MS, options.signal);
  }

  /** Enrols one sandbox that connects to the sidecar itself. Pass the result's `text` to the sandbox: a secret until used. */
  enroll(grant: string, options: EnrollOptions = {}): Promise<Enrolled> {
    const { name, ttlMs, ticketTtlMs, socket } = options;
    const body = { grant, name, "ttl-ms": ttlMs, "ticket-ttl-ms": ticketTtlMs, socket };
    return this.#perform({ method: "POST", path: "/v1/enrolments", body });
  }

  async enrolments(): Promise<readonly EnrolmentEntry[]> {
    const listed = await this.#perform<{ enrolments: EnrolmentEntry[] }>({ method: "GET", path: "/v1/enrolments" });
    return listed.enrolments;
  }

  /** Ends the enrolment with this id or sandbox name, and its session. */
  async endEnrolment(enrolment: string): Promise<Killed> {
    return this.#perform({ method: "DELETE", path: `/v1/enrolments/${segment(enrolment)}` });
  }

  sessions(): Promise<Sessions> {
    return this.#perform({ method: "GET", path: "/v1/sessions" });
  }

  /** Ends the session with this id, enrolment id or sandbox name, and its enrolment. */
  kill(session: string): Promise<Killed> {
    return this.#perform({ method: "POST", path: "/v1/kill", body: { session } });
  }

  async attachments(): Promise<readonly AttachmentStatus[]> {
    const listed = await this.#perform<{ attachments: AttachmentStatus[] }>({ method: "GET", path: "/v1/attachments" });
    return listed.attachments;
  }

  async endAttachment(name: string): Promise<Killed> {
    return this.#perform({ method: "DELETE", path: `/v1/attachments/${segment(name)}` });
  }

  /**
   * Yields each change (of enrolments, sessions, links and attachments) after `ready` was called. Ends with the sidecar, or when
   * the loop ends.
   */
  async *watch(options: { readonly signal?: AbortSignal; readonly ready?: () => void } = {}): AsyncGenerator<Change | Lagged, void> {
    const connection = new AbortController();
    const abort = () => connection.abort(options.signal?.reason);
    options.signal?.addEventListener("abort", abort, { once: true });
    if (options.signal?.aborted) abort();
    let timer = setTimeout(() => connection.abort(new DeadlineError("the stream of changes is silent")), this.#timeoutMs);
    try {
      const opened = await open(this.#endpoint, { method: "GET", path: "/v1/events" }, connection.signal);
      if (!("response" in opened)) throw new ProtocolError("the sidecar upgraded a connection without a request to do so");
      if (opened.response.statusCode !== 200) {
        throw refusal(opened.response.statusCode ?? 0, await readAll(this.#endpoint, opened.response, connection.signal));
      }
      const lines = new Lines();
      let event = "";
      let data = "";
      for await (const piece of opened.response as AsyncIterable<Buffer>) {
        clearTimeout(timer);
        timer = setTimeout(() => connection.abort(new DeadlineError("the stream of changes is silent")), WATCH_TIMEOUT_MS);
        for (const line of lines.feed(piece)) {
          if (line.startsWith("event:")) event = line.slice(6).trim();
          else if (line.startsWith("data:")) data = line.slice(5).trim();
          else if (line.trim() === "" && event !== "") {
            if (event === "ready") options.ready?.();
            else yield event === "lagged" ? { event } : (decode(data) as Change);
            event = "";
          }
        }
      }
    } catch (error) {
      throw connectionError(this.#endpoint, error, connection.signal);
    } finally {
      clearTimeout(timer);
      options.signal?.removeEventListener("abort", abort);
      connection.abort();
    }
  }

  #perform<T>(call: Parameters<typeof perform>[1]): Promise<T> {
    return perform<T>(this.#endpoint, call, this.#timeoutMs);
  }
}

/** `new Client().attach` for the sidecar that the environment names. */
export async function attach(sandbox: SandboxLike, options: AttachOptions): Promise<Attached> {
  return new Client().attach(sandbox, options);
}

function segment(text: string): string {
  if (text === "") throw new SettingsError("a name must not be empty");
  return encodeURIComponent(text);
}
