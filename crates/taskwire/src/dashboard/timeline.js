// What happened to a task, drawn as a waterfall: when it waited, each attempt and where it ran, each question, and what was interrupted.

import { h, moment, span } from "./dom.js";

/** @typedef {import("./server.js").LogEvent} LogEvent */
/** @typedef {{ name: string, kind: string, from: number, to?: number, note: string }} Bar */

/** Checkpoints that are drawn: the last ones. A tool may make one with each line. */
export const MARKS_MAX = 200;
const ENDS = new Set(["completed", "tool_error", "failed", "cancelled"]);

/**
 * A log without the checkpoints that are not drawn.
 * @param {LogEvent[]} log
 */
export function thin(log) {
  let excess = log.filter(({ kind }) => kind === "saved").length - MARKS_MAX;
  return excess <= 0 ? log : log.filter(({ kind }) => kind !== "saved" || excess-- <= 0);
}

/**
 * What a log amounts to.
 * @param {LogEvent[]} log
 * @param {(epoch: number | undefined) => string} node The name of the node of an epoch, if there is one.
 * @returns {{ bars: Bar[], marks: { at: number, name: string }[], end?: LogEvent }}
 */
export function bars(log, node) {
  /** @type {Bar[]} */
  const all = [];
  const marks = [];
  /** @type {Bar | undefined} */
  let attempt;
  /** @type {Bar | undefined} */
  let waiting;
  /** @type {Map<string, Bar>} */
  const questions = new Map();
  /** @type {LogEvent | undefined} */
  let end;
  const close = (/** @type {Bar | undefined} */ bar, /** @type {number} */ at) => { if (bar && bar.to === undefined) bar.to = at; };
  for (const event of log) {
    const at = Date.parse(event.at);
    switch (event.kind) {
      case "created":
      case "started": {
        if (attempt && attempt.to === undefined) {
          attempt.to = at;
          attempt.kind = "interrupted";
          attempt.note = `interrupted: ${attempt.note}`;
        }
        close(waiting, at);
        waiting = undefined;
        const place = node(event.epoch);
        attempt = { name: `Attempt ${event.attempt}`, kind: "attempt", from: at - (event.spentMs ?? 0), note: place };
        all.push(attempt);
        break;
      }
      case "queued":
        if (waiting) break;
        waiting = { name: "Waiting", kind: "waiting", from: attempt?.from ?? at, note: "for its turn" };
        // Nothing of the attempt has begun.
        if (all[all.length - 1] === attempt) all.pop();
        all.push(waiting);
        break;
      case "dequeued":
        if (!waiting) break;
        close(waiting, at);
        waiting = undefined;
        if (attempt) {
          attempt.from = at;
          all.push(attempt);
        }
        break;
      case "asked": {
        const bar = { name: `Question ${event.key}`, kind: "question", from: at, note: "waits for an answer" };
        questions.set(event.key ?? "", bar);
        all.push(bar);
        break;
      }
      case "answered": {
        const bar = questions.get(event.key ?? "");
        close(bar, at);
        if (bar) bar.note = "answered";
        break;
      }
      case "saved":
        marks.push({ at, name: "checkpoint" });
        break;
      default:
        if (ENDS.has(event.kind)) {
          end = event;
          for (const bar of all) {
            if (bar.to === undefined && bar.kind === "question") bar.note = "not answered";
            close(bar, at);
          }
          if (attempt) attempt.kind = event.kind;
        }
    }
  }
  return { bars: all, marks, end };
}

/**
 * @param {LogEvent[]} log
 * @param {(epoch: number | undefined) => string} node
 * @param {number} now
 * @returns {HTMLElement}
 */
export function timeline(log, node, now) {
  const { bars: all, marks } = bars(log, node);
  if (all.length === 0) return h("p", { class: "muted" }, "Nothing yet.");
  const from = Math.min(...all.map((bar) => bar.from));
  const to = Math.max(from + 1, ...all.map((bar) => bar.to ?? now));
  const place = (/** @type {number} */ at) => `${(((at - from) / (to - from)) * 100).toFixed(3)}%`;
  const list = h("ol", { class: "timeline", "aria-label": `Timeline of ${span(to - from)}` });
  for (const bar of all) {
    const end = bar.to ?? now;
    const fill = h("span", { class: `fill ${bar.kind}${bar.to === undefined ? " open" : ""}` });
    fill.style.left = place(bar.from);
    fill.style.width = `max(3px, ${place(from + (end - bar.from))})`;
    const track = h("span", { class: "track", "aria-hidden": "true" }, fill);
    if (bar.kind !== "question" && bar.kind !== "waiting") {
      for (const mark of marks.filter(({ at }) => at >= bar.from && at <= end)) {
        const dot = h("span", { class: "mark", title: `${mark.name}, ${moment(mark.at)}` });
        dot.style.left = place(mark.at);
        track.append(dot);
      }
    }
    const length = `${span(end - bar.from)}${bar.to === undefined ? " so far" : ""}`;
    list.append(
      h("li", { title: `${bar.name}, ${bar.note}: ${moment(bar.from)}, ${length}` },
        h("span", { class: "what" }, bar.name, h("span", { class: "muted" }, bar.note ? ` ${bar.note}` : "")), h("span", { class: "length" }, length), track),
    );
  }
  return list;
}
