// Scenarios with a real sidecar and sandboxes of the platforms' real SDKs on doubles of the platforms.
//
//   node scenarios.mjs SCENARIO
//
// The environment names the sidecar, the platform, and the modules: COFFERDAM_SDK, E2B_MODULE and DAYTONA_MODULE. Prints `done` at the end.

import assert from "node:assert/strict";
import { rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const sdk = await import(process.env.COFFERDAM_SDK);
const { Sandbox } = createRequire(import.meta.url)(process.env.E2B_MODULE);
const { attach, Client, ApiError, AttachmentError, DeadlineError, NotFoundError, UnauthorizedError, UnreachableError } = sdk;

const ECHO = `~/.local/bin/cofferdam-shim call tools echo '{"text": "hello"}'`;

async function until(condition) {
  const deadline = Date.now() + 30_000;
  while (!(await condition())) {
    assert(Date.now() < deadline, "the condition did not come true");
    await sleep(50);
  }
}

async function raised(kind, action) {
  try {
    await action();
  } catch (error) {
    assert(error instanceof kind, `${kind.name} was expected: ${error?.stack ?? error}`);
    return error;
  }
  assert.fail(`${kind.name} was expected`);
}

const scenarios = {
  async e2b() {
    const client = new Client();
    const sandbox = await Sandbox.create();
    const attached = await attach(sandbox, { grant: "dev", name: "box 1" });
    assert(attached.isAttached);
    assert.equal(attached.name, "box 1");
    assert.equal((await sandbox.commands.run(ECHO)).stdout, "hello\n");
    const taken = await raised(ApiError, () => attach(sandbox, { grant: "dev" }));
    assert.deepEqual([taken.status, taken.code], [409, "taken"]);
    await attached[Symbol.asyncDispose]();
    assert.deepEqual(await client.attachments(), []);
    assert.deepEqual((await client.sessions()).sessions, []);
    assert.deepEqual(await client.enrolments(), []);

    // The signal is aborted before the sandbox is attached: until then the control API of E2B does not respond.
    await writeFile(process.env.HOLD_FILE, "");
    const controller = new AbortController();
    const attaching = attach(sandbox.sandboxId, { platform: "e2b", grant: "dev", signal: controller.signal });
    await until(async () => (await client.attachments()).length === 1);
    controller.abort(new TypeError("of the orchestrator"));
    await raised(TypeError, () => attaching);
    await until(async () => (await client.attachments()).length === 0);
    const late = await raised(DeadlineError, () => attach(sandbox, { grant: "dev", timeoutMs: 1 }));
    assert(late.message.includes("0.001 s"), late.message);
    await rm(process.env.HOLD_FILE);
  },

  async daytona() {
    const { Daytona } = createRequire(import.meta.url)(process.env.DAYTONA_MODULE);
    const client = new Client();
    const sandbox = await new Daytona().get(process.env.SANDBOX);
    const attached = await attach(sandbox, { grant: "dev" });
    assert.equal(attached.status.kind, "daytona");
    const echo = `~/.local/bin/cofferdam-shim call tools echo '{"text": "hello"}'`;
    assert.equal((await sandbox.process.executeCommand(echo)).result.trim(), "hello");
    await attached.end();
    assert.deepEqual(await client.attachments(), []);
    assert.deepEqual((await client.sessions()).sessions, []);
    assert.deepEqual(await client.enrolments(), []);
  },

  async refusals() {
    const client = new Client();
    const unknown = await raised(AttachmentError, () => attach("i0unknown", { platform: "e2b", grant: "dev" }));
    assert.equal(unknown.reason, "no-sandbox");
    await raised(NotFoundError, () => client.kill("unknown"));
    await raised(NotFoundError, () => client.endAttachment("a/../b"));
    const sandbox = await Sandbox.create();
    await sandbox.pause();
    const paused = await raised(AttachmentError, () => attach(sandbox, { grant: "dev" }));
    assert.equal(paused.reason, "suspended");
    const attached = await attach(sandbox, { grant: "dev", resume: true });
    assert(attached.isAttached);
    await attached.end();
  },

  async enrol_and_watch() {
    const client = new Client();
    const changes = client.watch();
    let ready;
    const isReady = new Promise((resolve) => (ready = resolve));
    const watching = (async () => {
      const events = [];
      for await (const change of client.watch({ ready })) {
        events.push([change.event, change.name]);
        if (events.length === 2) return events;
      }
      return events;
    })();
    await isReady;
    const made = await client.enroll("dev", { name: "box", ttlMs: 3_600_000, ticketTtlMs: 60_000 });
    assert(made.text.startsWith("cofferdam:1:"));
    const [entry] = await client.enrolments();
    assert.deepEqual([entry.enrolment, entry.kind, entry.links], [made.enrolment, "ticket", 0]);
    assert(entry.expiresInSeconds > 3000);
    assert.equal((await client.kill("box")).enrolment, made.enrolment);
    assert.deepEqual(await watching, [["enrolment-created", "box"], ["enrolment-ended", "box"]]);
    await changes.return();
  },

  async over_tls() {
    const sandbox = await Sandbox.create();
    const attached = await attach(sandbox, { grant: "dev" });
    assert.equal((await sandbox.commands.run(ECHO)).stdout, "hello\n");
    await attached.end();
    const other = await raised(UnauthorizedError, () => attach(sandbox, { grant: "other" }));
    assert.equal(other.status, 403);
    const token = process.env.COFFERDAM_TOKEN.trim();
    const wrong = new Client({ token: token.slice(0, -1) + (token.endsWith("0") ? "1" : "0") });
    const refused = await raised(UnauthorizedError, () => wrong.sessions());
    assert.deepEqual([refused.status, refused.code], [401, "unauthorized"]);
    const { inspect } = await import("node:util");
    assert(!inspect(new Client(), { depth: 9, showHidden: true }).includes(token));
    // Without the authority, the certificate is not accepted and no token is sent.
    const untrusted = await raised(UnreachableError, () => new Client({ url: process.env.COFFERDAM_URL, token }).sessions());
    assert(untrusted.message.includes("certificate"), untrusted.message);
  },

  async sidecar_gone() {
    const sandbox = await Sandbox.create();
    const attached = await attach(sandbox, { grant: "dev" });
    process.kill(Number(process.env.SIDECAR), "SIGKILL");
    await until(() => attached.failure !== undefined);
    assert(attached.failure instanceof UnreachableError && !attached.isAttached);
    await attached.end();
    const gone = await raised(UnreachableError, () => new Client().sessions());
    assert(gone.message.includes("cofferdam serve"), gone.message);
    await raised(UnreachableError, () => attach(sandbox, { grant: "dev" }));
  },
};

await scenarios[process.argv[2]]();
console.log("done");
process.exit(0);
