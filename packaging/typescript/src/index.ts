/** Cofferdam's SDK: attach sandboxes and control a sidecar from an orchestrator. Only Node's own modules are needed. */

export { Attached } from "./attached.js";
export { attach, Client, type AttachOptions, type EnrollOptions } from "./client.js";
export type { ConnectOptions } from "./endpoint.js";
export * from "./errors.js";
export type { DaytonaSandbox, E2bSandbox, SandboxLike } from "./sandboxes.js";
export type * from "./types.js";
