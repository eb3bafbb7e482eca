/**
 * The sidecar's address, and the token for it.
 *
 * What must stay true: a token is sent only over TLS with a verified certificate, or to a Unix socket; a token of the
 * environment is sent only to the address of the environment; a token is never printed.
 */

import { readFileSync } from "node:fs";
import { homedir } from "node:os";

import { SettingsError } from "./errors.js";

export interface ConnectOptions {
  /** The path of the admin socket. */
  readonly socket?: string;
  /** `https://HOST:PORT` */
  readonly url?: string;
  /** A token of `cofferdam token create`. */
  readonly token?: string;
  /** A file with the authority of the sidecar's certificate. */
  readonly caFile?: string;
}

type Environment = Readonly<Record<string, string | undefined>>;

/** The admin socket, or an address with TLS. */
export class Endpoint {
  readonly #token: string | undefined;

  private constructor(
    /** The address, for messages. */
    readonly name: string,
    /** The options for `http.request` or `https.request`. */
    readonly target: { socketPath: string } | { host: string; port: number; ca?: Buffer },
    token: string | undefined,
  ) {
    this.#token = token;
  }

  get headers(): Record<string, string> {
    return this.#token === undefined ? {} : { authorization: `Bearer ${this.#token}` };
  }

  /** Uses the options first, then the environment, then the sidecar's default socket. */
  static find(options: ConnectOptions = {}, environment: Environment = process.env): Endpoint {
    let { url, token, caFile } = options;
    if (options.socket !== undefined && url !== undefined) {
      throw new SettingsError("`socket` and `url` exclude each other: give only one of them");
    }
    if (options.socket === undefined && url === undefined && environment.COFFERDAM_URL) {
      url = environment.COFFERDAM_URL;
      token ??= environment.COFFERDAM_TOKEN || undefined;
      caFile ??= environment.COFFERDAM_CA_FILE || undefined;
    }
    token = token === undefined ? undefined : checkToken(token);
    if (url !== undefined) {
      const { host, port } = parseUrl(url);
      const ca = caFile === undefined ? {} : { ca: readAuthority(caFile) };
      const name = host.includes(":") ? `https://[${host}]:${port}` : `https://${host}:${port}`;
      return new Endpoint(name, { host, port, ...ca }, token);
    }
    if (caFile !== undefined) {
      throw new SettingsError("`caFile` is for a `url`: a socket has no certificate");
    }
    const socketPath = options.socket ?? (environment.COFFERDAM_ADMIN_SOCKET || defaultSocket(environment));
    return new Endpoint(socketPath, { socketPath }, token);
  }
}

function checkToken(token: string): string {
  const trimmed = token.trim();
  if (!/^[!-~]+$/.test(trimmed)) {
    throw new SettingsError("the token is empty or has characters that no token has; `cofferdam token create` prints one");
  }
  return trimmed;
}

function parseUrl(url: string): { host: string; port: number } {
  // The message does not repeat the address, which may contain a token.
  const wrong = "the sidecar's address must have the form https://HOST:PORT";
  if (!URL.canParse(url)) throw new SettingsError(wrong);
  const { protocol, hostname, port, pathname, search, hash, username, password } = new URL(url);
  const hasMore = pathname !== "/" || search || hash || username || password;
  if (protocol !== "https:" || !hostname || hasMore || port === "0") throw new SettingsError(wrong);
  return { host: hostname.replace(/^\[|\]$/g, ""), port: port === "" ? 443 : Number(port) };
}

function readAuthority(file: string): Buffer {
  let text: Buffer;
  try {
    text = readFileSync(file);
  } catch (error) {
    throw new SettingsError(`cannot read the authority's certificate: ${String(error)}`);
  }
  if (!text.includes("-----BEGIN CERTIFICATE-----")) {
    throw new SettingsError(`cannot read the authority's certificate from ${file}: there is no certificate in PEM format`);
  }
  return text;
}

/** The same path as the default of the sidecar's `admin.socket`. */
function defaultSocket(environment: Environment): string {
  if (process.getuid?.() === 0) return "/run/cofferdam/admin/admin.sock";
  const absolute = (path: string | undefined) => (path?.startsWith("/") ? path : undefined);
  const runtime = absolute(environment.XDG_RUNTIME_DIR);
  if (runtime !== undefined) return `${runtime}/cofferdam/admin/admin.sock`;
  const state = absolute(environment.XDG_STATE_HOME) ?? `${environment.HOME ?? homedir()}/.local/state`;
  return `${state}/cofferdam/admin/admin.sock`;
}
