// Unit tests that need no sidecar: types compared with the OpenAPI document, settings, and recognising sandboxes.
//
// The environment names the modules (COFFERDAM_SDK_DIRECTORY, TYPESCRIPT) and the document (COFFERDAM_OPENAPI).

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";

const ts = createRequire(import.meta.url)(process.env.TYPESCRIPT);
const module = (name) => import(`${process.env.COFFERDAM_SDK_DIRECTORY}/${name}.js`);
const { Endpoint } = await module("endpoint");
const { recognise } = await module("sandboxes");
const { camelCase, decode, Lines, refusal } = await module("wire");
const { ApiError, ProtocolError, SettingsError, UnauthorizedError } = await module("errors");
const openapi = JSON.parse(readFileSync(process.env.COFFERDAM_OPENAPI, "utf8"));
const schemas = openapi.components.schemas;
const TOKEN = "cfd_0123456789abcdef";

const response = (path, method) => openapi.paths[path][method].responses["200"].content["application/json"].schema;
const merged = (schema) => {
  if (schema.oneOf === undefined) return schema;
  const properties = { ...schema.properties };
  const inAll = schema.oneOf.map((one) => new Set(one.required)).reduce((all, one) => new Set([...all].filter((name) => one.has(name))));
  for (const one of schema.oneOf) {
    for (const [name, value] of Object.entries(one.properties)) {
      properties[name] = value.const && properties[name] ? { enum: [...words(properties[name]), value.const] } : value;
    }
  }
  return { properties, required: [...(schema.required ?? []), ...inAll] };
};
const words = (schema) => schema.oneOf?.flatMap(words) ?? schema.enum ?? (schema.const === undefined ? [] : [schema.const]);
const schemaOf = (name) =>
  ({
    Enrolled: response("/v1/enrolments", "post"),
    Killed: response("/v1/kill", "post"),
    Sessions: response("/v1/sessions", "get"),
    Pending: merged(schemas.Outcome).properties.pending,
    RevokedAfter: merged(schemas.Outcome).properties.revoked,
  })[name] ?? schemas[name];

/** A schema in TypeScript's words. */
function described(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return `${described(schema.anyOf.find((one) => one.type !== "null"))} | null`;
  if (Array.isArray(schema.type)) return `${described({ ...schema, type: schema.type.find((one) => one !== "null") })} | null`;
  if (words(schema).length) return words(schema).map((word) => JSON.stringify(word)).sort().join(" | ");
  if (schema.type === "array") return `readonly ${described(schema.items)}[]`;
  return schema.type === "integer" ? "number" : schema.type;
}

test("every interface has the fields of the document", () => {
  const text = readFileSync(new URL("../src/types.ts", import.meta.url), "utf8");
  const source = ts.createSourceFile("types.ts", text, ts.ScriptTarget.ES2022, true);
  const literals = new Map();
  let compared = 0;
  for (const statement of source.statements) {
    const name = statement.name?.text;
    if (ts.isTypeAliasDeclaration(statement)) {
      const found = statement.type.types.map((type) => type.literal.text).sort();
      literals.set(name, found);
      if (schemas[name]) assert.deepEqual(found, words(schemas[name]).sort(), name);
    }
    if (!ts.isInterfaceDeclaration(statement) || name === "Lagged") continue;
    const schema = merged(schemaOf(name));
    const names = Object.keys(schema.properties);
    assert.deepEqual(statement.members.map((one) => one.name.text).sort(), names.map(camelCase).sort(), name);
    for (const member of statement.members) {
      const key = names.find((one) => camelCase(one) === member.name.text);
      const where = `${name}.${key}`;
      assert.equal(member.questionToken === undefined, schema.required?.includes(key) ?? false, where);
      let shown = member.type.getText(source);
      let wanted = described(schema.properties[key]);
      if (member.questionToken) [shown, wanted] = [shown.replace(/ \| null$/, ""), wanted.replace(/ \| null$/, "")];
      const isInline = ["AttachmentState", "Pending", "RevokedAfter"].includes(shown);
      if (shown === "AttachmentState") wanted = wanted.split(" | ").map((word) => JSON.parse(word)).sort().join();
      if (isInline && literals.has(shown)) assert.equal(literals.get(shown).join(), wanted, where);
      else if (!isInline) assert.equal(shown, wanted, where);
    }
    compared += 1;
  }
  assert(compared > 15);
});

test("options take precedence over the environment, whose token is sent only to its address", () => {
  const environment = { COFFERDAM_URL: "https://one.example:7481", COFFERDAM_TOKEN: TOKEN };
  const headers = (options) => Endpoint.find(options, environment).headers;
  assert.deepEqual(headers({}), { authorization: `Bearer ${TOKEN}` });
  assert.deepEqual(headers({ token: "other" }), { authorization: "Bearer other" });
  assert.deepEqual(headers({ url: "https://two.example" }), {});
  assert.deepEqual(headers({ socket: "/s" }), {});
  assert.equal(Endpoint.find({}, { COFFERDAM_ADMIN_SOCKET: "/a.sock" }).name, "/a.sock");
  assert.equal(Endpoint.find({ url: "https://[::1]" }, {}).name, "https://[::1]:443");
});

test("bad settings are refused, and messages contain no token", () => {
  for (const options of [
    { url: "http://one.example:7481" },
    { url: `https://${TOKEN}@one.example` },
    { url: `https://one.example/?token=${TOKEN}` },
    { url: "https://one.example/admin" },
    { url: "https://one.example:port" },
    { url: "https://one.example", socket: "/s" },
    { url: "https://one.example", token: `${TOKEN}\r\nX-More: 1` },
    { url: "https://one.example", token: " " },
    { url: "https://one.example", caFile: "/missing" },
    { url: "https://one.example", caFile: new URL(import.meta.url).pathname.replace("pure.mjs", "../package.json") },
    { socket: "/s", caFile: "/missing" },
  ]) {
    assert.throws(
      () => Endpoint.find(options, {}),
      (error) => error instanceof SettingsError && !error.message.includes(TOKEN),
      JSON.stringify(options),
    );
  }
});

test("sandboxes are recognised, and other objects are refused", () => {
  assert.deepEqual(recognise({ sandboxId: "i1", commands: {} }), ["e2b", "i1"]);
  assert.deepEqual(recognise({ id: "d1", process: {}, getPreviewLink() {} }, "daytona"), ["daytona", "d1"]);
  assert.deepEqual(recognise("i1", "e2b"), ["e2b", "i1"]);
  for (const [sandbox, platform] of [["i1"], [{}], [null], [{ id: "x" }], [{ sandboxId: "i1", commands: {} }, "daytona"]]) {
    assert.throws(() => recognise(sandbox, platform), SettingsError);
  }
});

test("refusals become specific errors, and other responses become protocol errors", () => {
  const body = JSON.stringify({ error: { code: "taken", message: "it is attached", hint: "end it" } });
  assert.equal(refusal(409, body).constructor, ApiError);
  assert.equal(refusal(409, body).message, "it is attached; end it");
  assert(refusal(401, body) instanceof UnauthorizedError);
  for (const [status, text] of [[502, ""], [502, "<html>"], [502, "null"], [500, '{"error": "no"}'], [307, body]]) {
    assert(refusal(status, text) instanceof ProtocolError, text);
  }
  assert.throws(() => decode("5"), ProtocolError);
  assert.deepEqual(decode('{"a-b": [{"after_ms": 1}]}'), { aB: [{ afterMs: 1 }] });
  assert.throws(() => new Lines().feed(Buffer.alloc(17 << 20, "x")), ProtocolError);
});
