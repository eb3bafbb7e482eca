/** Recognises the sandbox objects of the platforms' SDKs, without importing them. */

import { SettingsError } from "./errors.js";
import type { PlatformKind } from "./types.js";

/** A `Sandbox` of the package `e2b`, or of a package that builds on it. */
export interface E2bSandbox {
  readonly sandboxId: string;
  readonly commands: object;
}

/** A `Sandbox` of the package `@daytona/sdk`. */
export interface DaytonaSandbox {
  readonly id: string;
  readonly process: object;
  getPreviewLink(port: number): Promise<unknown>;
}

/** A sandbox object, or an id with its platform. */
export type SandboxLike = E2bSandbox | DaytonaSandbox | string;

export function recognise(sandbox: SandboxLike, platform: PlatformKind | undefined): [PlatformKind, string] {
  if (typeof sandbox === "string") {
    if (platform === undefined) {
      throw new SettingsError('the sandbox is given as an id: name its platform with platform: "e2b" or platform: "daytona"');
    }
    return [platform, sandbox];
  }
  const found = recogniseObject(sandbox);
  if (found === undefined) {
    throw new SettingsError("this is not a sandbox of E2B or Daytona: give the sandbox's id as a string, and `platform`");
  }
  if (platform !== undefined && platform !== found[0]) {
    throw new SettingsError(`the sandbox object is of ${found[0]}, not of the platform ${platform}`);
  }
  return found;
}

function recogniseObject(sandbox: unknown): [PlatformKind, string] | undefined {
  if (typeof sandbox !== "object" || sandbox === null) return undefined;
  const fields = sandbox as Partial<Record<string, unknown>>;
  if (typeof fields.sandboxId === "string" && typeof fields.commands === "object") return ["e2b", fields.sandboxId];
  if (typeof fields.id === "string" && typeof fields.getPreviewLink === "function") return ["daytona", fields.id];
  return undefined;
}
