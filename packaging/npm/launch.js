#!/usr/bin/env node
// Starts the program, which the package for this platform carries, and ends as it ends.
"use strict";

const { spawn } = require("node:child_process");

const carrier = `@cofferdam/${process.platform}-${process.arch}`;

function programPath() {
  try {
    return require.resolve(`${carrier}/bin/cofferdam`);
  } catch {
    console.error(
      `cofferdam-mcp: the package ${carrier} is not installed. There is one for Linux on x64; install again there, ` +
        "without --omit=optional",
    );
    process.exit(69);
  }
}

const program = spawn(programPath(), process.argv.slice(2), { stdio: "inherit" });
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
