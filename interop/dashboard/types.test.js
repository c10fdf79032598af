// The types of the dashboard are right, as its comments say them.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";

const files = join(import.meta.dirname, "../../crates/taskwire/src/dashboard");

test("the compiler finds nothing", () => {
  const tsc = join(import.meta.dirname, "node_modules/typescript/bin/tsc");
  const { status, stdout, stderr } = spawnSync(process.execPath, [tsc, "-p", join(import.meta.dirname, "tsconfig.json")], { encoding: "utf8" });
  assert.equal(status, 0, stdout + stderr);
});

test("it is small, and begins by saying what each file is for", () => {
  let bytes = 0;
  for (const name of readdirSync(files)) {
    const text = readFileSync(join(files, name), "utf8");
    bytes += Buffer.byteLength(text);
    if (name.endsWith(".js")) assert.match(text, /^\/\/ /, name);
  }
  assert.ok(bytes < 400 * 1024, `${bytes} bytes`);
});
