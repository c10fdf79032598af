// What a log amounts to, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { MARKS_MAX, bars, thin } from "../../crates/taskwire/src/dashboard/timeline.js";

const at = (second) => new Date(Date.UTC(2026, 0, 1, 0, 0, second)).toISOString();
const node = (epoch) => ({ 1: "left", 2: "right" })[epoch] ?? "";
const drawn = (log) => {
  const zero = Date.parse(at(0));
  return bars(log, node).bars.map((bar) => [bar.name, bar.kind, (bar.from - zero) / 1000, bar.to === undefined ? undefined : (bar.to - zero) / 1000, bar.note]);
};

test("an attempt that was interrupted goes on elsewhere", () => {
  assert.deepEqual(drawn([
    { version: 1, at: at(1), kind: "created", attempt: 1, epoch: 1, spentMs: 1000 },
    { version: 2, at: at(5), kind: "started", attempt: 2, epoch: 2 },
    { version: 3, at: at(9), kind: "completed" },
  ]), [
    ["Attempt 1", "interrupted", 0, 5, "interrupted: left"],
    ["Attempt 2", "completed", 5, 9, "right"],
  ]);
});

test("waiting comes before the work, however it is told", () => {
  const queued = { version: 2, at: at(0), kind: "queued" };
  const log = [{ version: 1, at: at(0), kind: "created", attempt: 1, epoch: 1 }, queued, { ...queued, version: 3 }];
  assert.deepEqual(drawn(log), [["Waiting", "waiting", 0, undefined, "for its turn"]]);
  const begun = { version: 4, at: at(3), kind: "dequeued" };
  assert.deepEqual(drawn([...log, begun, { ...begun, version: 5, at: at(4) }, { version: 6, at: at(7), kind: "cancelled" }]), [
    ["Waiting", "waiting", 0, 3, "for its turn"],
    ["Attempt 1", "cancelled", 3, 7, "left"],
  ]);
});

test("of very many checkpoints the last ones are drawn, and nothing else is left out", () => {
  const saved = Array.from({ length: 1000 }, (_, i) => ({ version: i + 2, at: at(i), kind: "saved" }));
  const log = thin([{ version: 1, at: at(0), kind: "created", attempt: 1, epoch: 1 }, ...saved, { version: 1002, at: at(1000), kind: "completed" }]);
  assert.deepEqual([log.length, log[0].kind, log[1].version, log.at(-1).kind], [MARKS_MAX + 2, "created", 802, "completed"]);
  assert.equal(bars(log, node).marks.length, MARKS_MAX);
  assert.equal(thin(log), log);
});

test("questions are answered, or not", () => {
  assert.deepEqual(drawn([
    { version: 1, at: at(0), kind: "created", attempt: 1, epoch: 1 },
    { version: 2, at: at(1), kind: "asked", key: "a" },
    { version: 3, at: at(2), kind: "asked", key: "b" },
    { version: 4, at: at(4), kind: "answered", key: "a" },
    { version: 5, at: at(6), kind: "failed" },
  ]), [
    ["Attempt 1", "failed", 0, 6, "left"],
    ["Question a", "question", 1, 4, "answered"],
    ["Question b", "question", 2, 6, "not answered"],
  ]);
});
