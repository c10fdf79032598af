// What a form makes of a schema and of a time, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { anywhere, localTime } from "../../crates/taskwire/src/dashboard/form.js";

process.env.TZ = "Asia/Kolkata";

test("a pattern of a schema may fit anywhere in the text", () => {
  const fits = (pattern, text) => new RegExp(`^(?:${anywhere(pattern)})$`, "v").test(text);
  assert.ok(fits("b+", "a\nbbc"));
  assert.ok(!fits("b+", "ac"));
  assert.ok(fits("^a|c$", "xc") && fits("^a|c$", "ax") && !fits("^a|c$", "xax"));
  assert.ok(fits("^[a-z]+$", "abc") && !fits("^[a-z]+$", "ab1"));
});

test("a time is shown as it is on this machine", () => {
  assert.equal(localTime("2026-03-01T22:15:30Z"), "2026-03-02T03:45:30");
  assert.equal(localTime("2026-03-01T22:15:30.25+05:30"), "2026-03-01T22:15:30");
  assert.equal(new Date(localTime("2026-03-01T22:15:30Z")).toISOString(), "2026-03-01T22:15:30.000Z");
  assert.equal(localTime(""), "");
  assert.equal(localTime("soon"), "");
});
