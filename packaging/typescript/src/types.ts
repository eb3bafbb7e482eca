/**
 * The data of the admin API. Written by hand and compared with the OpenAPI document by a test. Names are in camelCase where
 * those of the API have `-`; an optional field may also be null. A newer sidecar may send values that are not listed here.
 */

export type PlatformKind = "daytona" | "e2b";
export type PipeRoute = "dial-out" | "preview" | "ssh";
export type Harness = "claude" | "codex" | "gemini" | "opencode";
export type Lifetime = "configured" | "detached" | "followed";
export type AttachState = "attached" | "connecting" | "detached";
export type Confine = "off" | "on";
export type AttachmentState =
  | "finding"
  | "resuming"
  | "uploading"
  | "starting-hub"
  | "connecting"
  | "attached"
  | "waiting"
  | "suspended"
  | "refused"
  | "over";
export type OverCause =
  | "configuration"
  | "ended"
  | "taken"
  | "no-sandbox"
  | "not-saved"
  | "unauthorized"
  | "unavailable";
export type EnrolmentKind = "attached" | "key" | "socket" | "ticket";
export type Processes = "all-ended" | "still-dying";
export type ChangeKind =
  | "enrolment-created"
  | "enrolment-ended"
  | "link-ended"
  | "link-opened"
  | "session-began"
  | "session-ended"
  | "attached"
  | "detached";

/** One attachment and its state. */
export interface AttachmentStatus {
  readonly name: string;
  readonly platform: string;
  readonly kind: PlatformKind;
  readonly sandbox: string;
  readonly grant: string;
  readonly lifetime: Lifetime;
  readonly enrolment?: string | null;
  /** A warning although the attachment works: entries that could not be added to the harness's settings. */
  readonly warning?: string | null;
  readonly state: AttachmentState;
  readonly sent?: number | null;
  readonly total?: number | null;
  readonly key?: string | null;
  readonly why?: string | null;
  readonly retryInMs?: number | null;
  readonly cause?: OverCause | null;
}

/** A sandbox to which the host opens pipes, and which has no link now. */
export interface AttachedSandbox {
  readonly enrolment: string;
  readonly name: string;
  readonly grant: string;
  readonly state: AttachState;
  readonly reason?: string | null;
}

/** A new enrolment. Its `text` is a secret until the sandbox has used it. */
export interface Enrolled {
  readonly enrolment: string;
  readonly expiresInSeconds: number;
  readonly text: string;
}

/** One enrolment in a list. */
export interface EnrolmentEntry {
  readonly enrolment: string;
  readonly name?: string | null;
  readonly grant: string;
  readonly kind: EnrolmentKind;
  readonly expiresInSeconds: number;
  readonly session?: string | null;
  readonly links: number;
}

/** A session's view of one secret. */
export interface Credential {
  readonly secret: string;
  readonly origin: string;
  readonly renewals: number;
  readonly earlierValues?: number;
  readonly expiresInSeconds?: number | null;
  readonly kept?: boolean;
  readonly lastError?: string | null;
  readonly lease?: string | null;
  readonly nextInSeconds?: number | null;
  readonly unrevocable?: boolean;
}

/** A process that runs tools of a scope. */
export interface ScopeProcess {
  readonly tools: string;
  readonly pid: number;
}

/** A wall around a confined server: what it is around, and what it is made of. */
export interface Wall {
  readonly name: string;
  readonly madeOf: readonly string[];
}

/** A link with its session. */
export interface Description {
  readonly session: string;
  readonly link: string;
  readonly grant: string;
  readonly server: string;
  readonly connected: boolean;
  readonly inFlight: number;
  readonly calls: number;
  readonly refused: number;
  readonly redactions: number;
  readonly memoryBytes?: number;
  readonly began: string;
  readonly expiresInSeconds: number;
  readonly secrets: readonly string[];
  readonly credentials?: readonly Credential[];
  readonly enrolment?: string | null;
  readonly name?: string | null;
  readonly pid?: number | null;
  readonly confine?: Confine | null;
  readonly replacement?: string | null;
  readonly scopes?: readonly ScopeProcess[];
  readonly walls?: readonly Wall[];
}

/** Links with their sessions, and attached sandboxes. */
export interface Sessions {
  readonly sessions: readonly Description[];
  readonly attached?: readonly AttachedSandbox[];
  readonly attachments?: readonly AttachmentStatus[];
}

/** A credential that outlives its session because it cannot be revoked. */
export interface NotRevocable {
  readonly secret: string;
  readonly origin: string;
  readonly expires?: string | null;
  readonly values?: number;
}

/** A revocation that is not done yet. */
export interface Pending {
  readonly reason: string;
}

/** A revocation that is done. */
export interface RevokedAfter {
  readonly afterMs: number;
}

/** A revocation, done or pending. */
export interface Outcome {
  readonly pending?: Pending | null;
  readonly revoked?: RevokedAfter | null;
}

/** The end of one lease. */
export interface LeaseEnd {
  readonly secret: string;
  readonly lease: string;
  readonly outcome: Outcome;
}

/** The revocation of a session's credentials in Vault. */
export interface Revoked {
  readonly token: Outcome;
  readonly leases: readonly LeaseEnd[];
}

/** One link that was ended. */
export interface EndedLink {
  readonly session: string;
  readonly link: string;
  readonly callsUnanswered: number;
  readonly processes: Processes;
  readonly serverEndedMs: number;
  readonly notRevocable?: readonly NotRevocable[];
  readonly vault?: Revoked | null;
}

/** An attachment that has ended. An attachment of the configuration is started again at the next reload or restart. */
export interface EndedAttachment {
  readonly name: string;
  readonly lifetime: Lifetime;
}

/** The links, enrolment and attachment that have ended. */
export interface Killed {
  readonly links: readonly EndedLink[];
  readonly totalMs: number;
  readonly enrolment?: string | null;
  readonly attachment?: EndedAttachment | null;
}

/** One event of `watch`. */
export interface Change {
  readonly event: ChangeKind;
  readonly time: string;
  readonly grant: string;
  readonly enrolment?: string | null;
  readonly link?: string | null;
  readonly name?: string | null;
  readonly reason?: string | null;
  readonly session?: string | null;
}

/** The client of `watch` read too slowly and changes were lost: list the sessions again. */
export interface Lagged {
  readonly event: "lagged";
}
