// The terminal's model, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { LINES_MAX, Screen } from "../../crates/taskwire/src/dashboard/ansi.js";

function screen(...pieces) {
  const screen = new Screen();
  for (const piece of pieces) screen.write(piece);
  return screen;
}

const texts = (...pieces) => screen(...pieces).lines.map((line) => line.text);

/** A line as pieces of text with their styles. */
function parts(screen, row) {
  const { text, runs } = screen.lines[row];
  const found = [];
  for (let i = -2; i < runs.length; i += 2) {
    const [from, to] = [i < 0 ? 0 : runs[i], runs[i + 2] ?? text.length];
    if (to > from) found.push([text.slice(from, to), i < 0 ? {} : screen.styles[runs[i + 1]]]);
  }
  return found;
}

test("lines, tabs and backspaces are where a terminal has them", () => {
  assert.deepEqual(texts("a\nb\r\nc"), ["a", "b", "c"]);
  assert.deepEqual(texts("ab\tc"), ["ab      c"]);
  assert.deepEqual(texts("abc\b\bX"), ["aXc"]);
});

test("progress is written over itself", () => {
  assert.deepEqual(texts("10%\r50%\r100%\n"), ["100%", ""]);
  assert.deepEqual(texts("long text\rshort"), ["shorttext"]);
  assert.deepEqual(texts("long text\r\x1b[Kshort"), ["short"]);
  assert.deepEqual(texts("one\ntwo\n\x1b[2A1\x1b[K\n2\x1b[K\n"), ["1", "2", ""]);
});

test("colours are kept, and end", () => {
  const red = screen("a\x1b[31mred\x1b[0mb\x1b[1;38;5;208mx\x1b[39my\x1b[m");
  assert.deepEqual(parts(red, 0), [["a", {}], ["red", { fg: "c1" }], ["b", {}], ["x", { bold: true, fg: "rgb(255 135 0)" }], ["y", { bold: true }]]);
  assert.deepEqual(parts(screen("\x1b[48;2;1;2;3mx\x1b[0m"), 0), [["x", { bg: "rgb(1 2 3)" }]]);
  assert.deepEqual(parts(screen("\x1b[32mabcdef\x1b[0m\r\x1b[2CXX"), 0), [["ab", { fg: "c2" }], ["XX", {}], ["ef", { fg: "c2" }]]);
});

test("a sequence that comes in pieces is one, wherever it is cut", () => {
  const text = "a\x1b[1;31mred\x1b]8;;https://example.org\x07link\x1b]8;;\x07\x1b[0m\r\nb\x1b[2Kc\x1b(B";
  const whole = screen(text);
  for (let at = 0; at <= text.length; at += 1) {
    const cut = screen(text.slice(0, at), text.slice(at));
    assert.deepEqual([cut.lines, cut.styles], [whole.lines, whole.styles], `cut at ${at}`);
  }
  const single = screen(...text);
  assert.deepEqual(single.lines, whole.lines);
});

test("nonsense does no harm, and no memory is lost to it", () => {
  const noise = screen("\x1b[999999999A\x1b[9999999Bx\x1b[;;;mm\x1b[38;5mz\x1b[38;2;1my" + "\x1b");
  assert.ok(noise.lines.length <= 1002);
  const endless = screen("\x1b]0;" + "x".repeat(100_000));
  assert.ok(endless.rest.length < 10_000);
  assert.deepEqual(texts("a\x1b\nb"), ["a", "b"]);
  assert.ok(screen("x".repeat(1_000_000)).lines[0].text.length <= 65_536);
});

test("a short sequence makes no long text", () => {
  assert.equal(screen("a" + "\x1b[1000B\x1b[1000E".repeat(1000)).lines.length, 1, "no line is below the last one");
  assert.equal(screen("\x1b[1000C".repeat(1000) + "end").lines[0].text, "");
  assert.equal(screen("\x1b[1000C".repeat(65) + "end").lines[0].text.length, 65_003);
  const full = screen("x".repeat(65_536) + "\rover");
  assert.equal(full.lines[0].text.slice(0, 6), "overxx");
});

test("of very many lines the last ones are kept, and it is said", () => {
  const long = screen();
  const count = LINES_MAX + 60_000;
  for (let line = 0; line < count; line += 1) long.write(`${line}\n`);
  assert.ok(long.lines.length <= LINES_MAX && long.lines.length > LINES_MAX - 60_000, `${long.lines.length}`);
  assert.equal(long.lines[0].text, `(the first ${(long.dropped + 1).toLocaleString("en")} lines are no longer shown)`);
  assert.equal(long.lines[1].text, String(long.dropped + 1));
  assert.deepEqual(long.lines.slice(-2).map(({ text }) => text), [String(count - 1), ""]);
  assert.equal(long.row, long.lines.length - 1);
});
