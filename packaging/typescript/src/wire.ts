/**
 * Requests with `node:http` and `node:https`: one connection each, every wait with a deadline. A redirect is an error, and
 * the size of a response is limited.
 */

import * as http from "node:http";
import * as https from "node:https";
import type { Duplex } from "node:stream";

import type { Endpoint } from "./endpoint.js";
import { ApiError, CofferdamError, DeadlineError, NotFoundError, ProtocolError, UnauthorizedError, UnreachableError } from "./errors.js";

/** The maximum bytes of a response, or characters of one line of a stream. */
const MAX_BODY = 16 * 1024 * 1024;

export interface Call {
  readonly method: "GET" | "POST" | "DELETE";
  readonly path: string;
  readonly body?: object;
  /** The protocol to which the connection is upgraded. */
  readonly upgrade?: string;
}

/** The response after its head has arrived, or the connection after an upgrade with its first bytes. */
export type Opened = { readonly response: http.IncomingMessage } | { readonly stream: Duplex; readonly first: Buffer };

/** Sends a request and waits for the head of its response. The signal also ends the connection afterwards. */
export function open(endpoint: Endpoint, call: Call, signal: AbortSignal): Promise<Opened> {
  return new Promise((resolve, reject) => {
    const body = call.body === undefined ? undefined : JSON.stringify(call.body);
    const headers: http.OutgoingHttpHeaders = { "user-agent": "cofferdam-sdk-typescript", ...endpoint.headers };
    if (body !== undefined) {
      headers["content-type"] = "application/json";
      headers["content-length"] = Buffer.byteLength(body);
    }
    if (call.upgrade !== undefined) {
      headers.connection = "upgrade";
      headers.upgrade = call.upgrade;
    }
    const options = { ...endpoint.target, method: call.method, path: call.path, headers, agent: false, signal };
    const request = "socketPath" in endpoint.target ? http.request(options) : https.request(options);
    request.on("error", (error) => reject(connectionError(endpoint, error, signal)));
    request.on("response", (response) => resolve({ response }));
    request.on("upgrade", (_, stream, first) => resolve({ stream, first }));
    request.on("socket", (socket) => socket.setKeepAlive(true, 30_000));
    request.end(body);
  });
}

/** Sends a request and decodes the JSON of its response. */
export async function perform<T>(endpoint: Endpoint, call: Call, timeoutMs: number): Promise<T> {
  const signal = AbortSignal.timeout(timeoutMs);
  const opened = await open(endpoint, call, signal);
  if (!("response" in opened)) {
    opened.stream.destroy();
    throw new ProtocolError("the sidecar upgraded a connection without a request to do so");
  }
  const text = await readAll(endpoint, opened.response, signal);
  if (opened.response.statusCode !== 200) throw refusal(opened.response.statusCode ?? 0, text);
  return decode(text) as T;
}

export async function readAll(endpoint: Endpoint, response: http.IncomingMessage, signal: AbortSignal): Promise<string> {
  const pieces: Buffer[] = [];
  let size = 0;
  try {
    for await (const piece of response as AsyncIterable<Buffer>) {
      size += piece.length;
      if (size > MAX_BODY) throw new ProtocolError(`the sidecar's response has more than ${MAX_BODY} bytes`);
      pieces.push(piece);
    }
  } catch (error) {
    throw connectionError(endpoint, error, signal);
  }
  return Buffer.concat(pieces).toString("utf8");
}

/** Splits bytes into lines as they arrive. */
export class Lines {
  #rest = "";
  readonly #decoder = new TextDecoder();

  feed(data: Uint8Array): string[] {
    const lines = (this.#rest + this.#decoder.decode(data, { stream: true })).split("\n");
    this.#rest = lines.pop() ?? "";
    if (this.#rest.length > MAX_BODY) throw new ProtocolError(`a line of the sidecar's stream has more than ${MAX_BODY} characters`);
    return lines;
  }
}

/** Decodes JSON and converts the names of the API to camelCase. */
export function decode(text: string): unknown {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new ProtocolError("the sidecar's response is not JSON; is this Cofferdam's admin API?");
  }
  if (typeof value !== "object" || value === null) throw new ProtocolError("the sidecar's response is not an object");
  return withCamelCaseNames(value);
}

function withCamelCaseNames(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withCamelCaseNames);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [camelCase(name), withCamelCaseNames(inner)]));
}

export function camelCase(name: string): string {
  return name.replace(/[-_]([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

export function refusal(status: number, text: string): CofferdamError {
  if (status >= 300 && status < 400) {
    return new ProtocolError(`the response is a redirect (${status}), which is not followed; check the address`);
  }
  let error: unknown;
  try {
    error = (JSON.parse(text) as { error?: unknown } | null)?.error;
  } catch {
    error = undefined;
  }
  const { code, message, hint } = (typeof error === "object" && error !== null ? error : {}) as Record<string, unknown>;
  if (typeof code !== "string" || typeof message !== "string") {
    return new ProtocolError(`the response has status ${status} without an error body; is this Cofferdam's admin API?`);
  }
  const kind = status === 401 || status === 403 ? UnauthorizedError : status === 404 ? NotFoundError : ApiError;
  return new kind(status, code, message, typeof hint === "string" ? hint : undefined);
}

/** Converts a failure of the connection to an error of this package. */
export function connectionError(endpoint: Endpoint, error: unknown, signal: AbortSignal): unknown {
  if (error instanceof CofferdamError) return error;
  if (signal.aborted) {
    const hasTimedOut = signal.reason instanceof DOMException && signal.reason.name === "TimeoutError";
    return hasTimedOut ? new DeadlineError(`the sidecar at ${endpoint.name} did not respond in time`) : signal.reason;
  }
  const why = error instanceof Error ? error.message || (error as NodeJS.ErrnoException).code : String(error);
  return new UnreachableError(`the sidecar at ${endpoint.name} cannot be reached: ${why}; does \`cofferdam serve\` run there?`);
}
