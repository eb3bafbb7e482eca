#!/usr/bin/env node
// Starts the program, which the package for this platform carries, and ends as it ends.
"use strict";

const { spawn } = require("node:child_process");
const { optionalDependencies, version } = require("./package.json");

const carriers = Object.keys(optionalDependencies);
const carrier = `@cofferdam/${process.platform}-${process.arch}`;

function programOf(name) {
  try {
    return require.resolve(`${name}/bin/cofferdam`);
  } catch {
    return null;
  }
}

function whatIsMissing() {
  const names = carriers.join(" and ");
  if (!carriers.includes(carrier)) {
    return `there is no package for ${process.platform} on ${process.arch}; those that exist are ${names}`;
  }
  const foreign = carriers.find((name) => programOf(name) !== null);
  const found =
    foreign === undefined ? "" : ` ${foreign} is, so node_modules may have been copied from another machine:`;
  return `the package ${carrier} ${version} is not installed.${found} install cofferdam-mcp again here, without --omit=optional`;
}

const path = carriers.includes(carrier) ? programOf(carrier) : null;
if (path === null) {
  console.error(`cofferdam-mcp: ${whatIsMissing()}`);
  process.exit(69);
}
const program = spawn(path, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends SIGINT to both processes; it must end this one only after the program.
process.on("SIGINT", () => {});
for (const signal of ["SIGHUP", "SIGTERM"]) process.on(signal, () => program.kill(signal));
program.on("error", (error) => {
  console.error(`cofferdam-mcp: cannot start the program: ${error.message}`);
  process.exit(71);
});
program.on("exit", (code, signal) => {
  if (signal === null) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
