// One task: its output while it is written, what it asks, what happened to it, and what came of it.

import { announce, badge, bytes, confirmed, copy, doing, fill, h, moment, reason, span, STATES, write } from "./dom.js";
import { tree } from "./json.js";
import { Page, place, session } from "./page.js";
import { answerForm } from "./question.js";
import { blockView, outcomeView } from "./result.js";
import { api, call, isFinal, pause, Refused, repeat, tools, watch } from "./server.js";
import { Terminal } from "./terminal.js";
import { thin, timeline } from "./timeline.js";
import { runner } from "./tools.js";

/** @typedef {import("./server.js").Task} Task */
/** @typedef {import("./server.js").Chunk} Chunk */
/** @typedef {import("./server.js").LogEvent} LogEvent */
/** @typedef {import("./server.js").Question} Question */

/** Images and sounds that are shown at most: there may be one with each line. */
const MEDIA_MAX = 50;
/** A task may change often: between two readings of it is at least this. */
const REFRESH_MS = 500;

class TaskPage extends Page {
  /** @type {Task | undefined} */
  task = undefined;
  /** @type {LogEvent[]} */
  log = [];
  logNext = 0;
  /** @type {Map<number, string>} */
  nodes = new Map();
  /** @type {Map<string, HTMLElement>} */
  forms = new Map();
  isReading = false;
  isStale = false;
  painted = "";

  /** @param {AbortSignal} signal */
  start(signal) {
    this.taskId = place().parts[1] ?? "";
    this.terminal = /** @type {Terminal} */ (document.createElement("tw-terminal"));
    this.terminal.name = this.taskId;
    this.heading = h("h1", {}, "Task");
    this.state = h("span");
    this.message = h("p");
    this.bar = h("progress", { "aria-label": "Progress", hidden: true });
    this.actions = h("div", { class: "actions" });
    this.questions = h("section", { class: "questions", "aria-label": "Questions", hidden: true });
    this.media = h("section", { class: "media", "aria-label": "Images, sounds and links", hidden: true });
    this.facts = h("dl", { class: "facts" });
    this.drawing = h("div");
    this.given = h("div");
    this.outcome = h("section", { class: "panel", hidden: true });
    this.append(
      h("div", { class: "title" }, h("a", { href: "#/tasks", class: "back" }, "Tasks"), this.heading, this.state, this.actions),
      h("div", { class: "said" }, this.message, this.bar), this.questions,
      h("div", { class: "columns" },
        h("div", { class: "wide" }, this.terminal, this.media),
        h("div", { class: "side" },
          this.outcome,
          h("section", { class: "panel" }, h("h2", {}, "Timeline"), this.drawing),
          h("section", { class: "panel" }, h("h2", {}, "Arguments"), this.given),
          h("section", { class: "panel" }, h("h2", {}, "Facts"), this.facts))),
    );
    this.run(signal).catch((error) => this.failed(error, signal));
  }

  /**
   * @param {unknown} error
   * @param {AbortSignal} signal
   */
  failed(error, signal) {
    if (signal.aborted) return;
    const text = error instanceof Refused && error.status === 404 ? "There is no such task. It may have been forgotten some time after its end." : reason(error);
    this.controller?.abort();
    // What it has written so far can still be read.
    const output = this.terminal && this.terminal.length > 0 ? this.terminal : null;
    fill(this, h("h1", {}, this.task?.tool ?? "Task"), h("p", { class: "notice bad", role: "alert" }, text), h("p", {}, h("a", { href: "#/tasks" }, "All tasks")), output);
  }

  /** @param {AbortSignal} signal */
  async run(signal) {
    // The server may be away just now: the page waits for it.
    let caller;
    await repeatUntil(signal, async () => {
      await this.read(signal);
      caller = this.task?.caller;
    });
    if (signal.aborted) return;
    if (session.caller?.admin) this.readNodes(signal).catch(() => {});
    repeat(1000, signal, async () => this.paintTimes());
    const isOwn = caller === session.caller?.caller;
    await watch(this.taskId ?? "", isOwn, {
      output: (chunks) => this.take(chunks),
      dropped: (from) => this.terminal?.remark(`what was before chunk ${from} is no longer kept`),
      changed: () => this.refresh(signal),
    }, signal);
    if (!signal.aborted) await repeatUntil(signal, () => this.read(signal));
  }

  /** @param {AbortSignal} signal */
  async readNodes(signal) {
    const server = await api("server", { signal });
    for (const node of server.nodes ?? []) this.nodes.set(node.epoch, node.name);
    this.paintTimes();
  }

  /** Reads the task, once for however many changes came meanwhile. @param {AbortSignal} signal */
  async refresh(signal) {
    this.isStale = true;
    if (this.isReading) return;
    this.isReading = true;
    while (this.isStale && !signal.aborted) {
      this.isStale = false;
      await this.read(signal).catch(() => {});
      await pause(REFRESH_MS, signal);
    }
    this.isReading = false;
  }

  /** @param {AbortSignal} signal */
  async read(signal) {
    const path = `tasks/${encodeURIComponent(this.taskId ?? "")}`;
    const task = /** @type {Task} */ (await api(path, { signal }));
    for (let more = true; more; ) {
      const page = await api(`${path}/log?after=${this.logNext}`, { signal });
      // Two readings may overlap.
      this.log.push(...page.events.filter((/** @type {LogEvent} */ event) => event.version > this.logNext));
      this.log = thin(this.log);
      this.logNext = Math.max(this.logNext, page.next);
      more = page.more;
    }
    if (signal.aborted) return;
    const before = this.task?.status;
    this.task = task;
    if (before && before !== task.status) announce(`${task.tool}: ${STATES[task.status] ?? task.status}`);
    this.paint(task, signal);
  }

  /** @param {Chunk[]} chunks */
  take(chunks) {
    let text = "";
    for (const { content } of chunks) {
      for (const block of content) {
        if (block.type === "text") text += block.text ?? "";
        else if (this.media) {
          text += `${text === "" || text.endsWith("\n") ? "" : "\n"}\x1b[2m[${block.type}${block.mimeType ? ` ${block.mimeType}` : ""}, shown below]\x1b[0m\n`;
          this.media.hidden = false;
          if (this.media.childElementCount < MEDIA_MAX) this.media.append(blockView(block));
        }
      }
    }
    if (text) this.terminal?.write(text);
  }

  /**
   * @param {Task} task
   * @param {AbortSignal} signal
   */
  paint(task, signal) {
    const { heading, state, message, bar, actions, given, outcome } = this;
    if (!heading || !state || !message || !bar || !actions || !given || !outcome) return;
    document.title = `${task.tool} · ${STATES[task.status] ?? task.status} · Taskwire`;
    write(heading, task.tool);
    write(message, task.message ?? "");
    const total = task.progress?.total;
    bar.hidden = !total || Boolean(task.endedAt);
    if (total) {
      bar.max = total;
      bar.value = task.progress?.done ?? 0;
    }
    this.paintQuestions(task, signal);
    this.paintTimes();
    const status = doing(task);
    if (this.painted === status) return;
    this.painted = status;
    fill(state, badge(status));
    const args = this.log.find((event) => event.kind === "created")?.arguments;
    if (args !== undefined && given.childElementCount === 0) fill(given, Object.keys(args).length ? tree(args) : h("p", { class: "muted" }, "None."));
    const mayCancel = session.caller?.may.cancel && !task.endedAt;
    fill(actions,
      mayCancel ? h("button", { type: "button", class: "danger", onclick: () => this.cancel(task) }, "Cancel") : null,
      session.caller?.may.call ? h("button", { type: "button", onclick: () => this.again(task, args ?? {}, signal) }, "Run again…") : null,
      h("button", { type: "button", title: task.id, onclick: () => copy(task.id) }, "Copy id"));
    outcome.hidden = !(task.result || task.error);
    if (!outcome.hidden) fill(outcome, h("h2", {}, task.error ? "Error" : "Result"), outcomeView(task));
  }

  paintTimes() {
    const { task, facts, drawing } = this;
    if (!task || !facts || !drawing) return;
    if (task.endedAt && drawing.dataset.done === String(this.logNext + this.nodes.size)) return;
    drawing.dataset.done = task.endedAt ? String(this.logNext + this.nodes.size) : "";
    const node = (/** @type {number | undefined} */ epoch) => (epoch === undefined ? "" : (this.nodes.get(epoch) ?? `start ${epoch}`));
    const now = Date.now();
    fill(drawing, timeline(this.log, node, now));
    const end = task.endedAt ? Date.parse(task.endedAt) : now;
    const rows = /** @type {[string, string][]} */ ([
      ["Id", task.id],
      ["Caller", task.caller],
      ["Began", moment(task.createdAt)],
      [task.endedAt ? "Took" : "Runs for", span(end - Date.parse(task.createdAt))],
      ["Attempt", `${task.attempt}${task.queuedAt && !task.endedAt ? ", waits for a slot" : ""}`],
      ["Ran on", node(task.epoch)],
      ["Output", `${bytes(task.output.bytes)} in ${task.output.chunks.toLocaleString()} ${task.output.chunks === 1 ? "chunk" : "chunks"}`],
      ...(task.hidden ? [["Client", "knows no tasks: it waits for the result"]] : []),
    ]);
    if (facts.childElementCount !== rows.length * 2) fill(facts, ...rows.flatMap(([name]) => [h("dt", {}, name), h("dd", {})]));
    facts.querySelectorAll("dd").forEach((place, i) => write(place, rows[i][1]));
    facts.querySelectorAll("dt").forEach((place, i) => write(place, rows[i][0]));
  }

  /**
   * A form that somebody fills in stays as it is while its question is open.
   * @param {Task} task
   * @param {AbortSignal} signal
   */
  paintQuestions(task, signal) {
    const section = this.questions;
    if (!section) return;
    const open = task.questions ?? {};
    for (const [key, form] of this.forms) {
      if (key in open) continue;
      form.remove();
      this.forms.delete(key);
    }
    for (const [key, question] of Object.entries(open)) {
      if (this.forms.has(key)) continue;
      const form = questionForm(task, key, question, signal);
      this.forms.set(key, form);
      section.append(form);
      announce(`${task.tool} asks: ${question.params?.message ?? key}`);
    }
    section.hidden = this.forms.size === 0;
  }

  /** @param {Task} task */
  async cancel(task) {
    if (!(await confirmed(`Cancel ${task.tool}? Its work is stopped.`, "Cancel the task"))) return;
    try {
      await api(`tasks/${task.id}/cancel`, { method: "POST" });
      if (this.controller) await this.refresh(this.controller.signal);
    } catch (error) {
      announce(reason(error));
      if (this.message) write(this.message, reason(error));
    }
  }

  /**
   * @param {Task} task
   * @param {any} args
   * @param {AbortSignal} signal
   */
  async again(task, args, signal) {
    const dialog = h("dialog", { class: "dialog wide", "aria-label": `Run ${task.tool} again`, onclose: () => dialog.remove() }, h("h2", {}, `Run ${task.tool} again`));
    document.body.append(dialog);
    signal.addEventListener("abort", () => dialog.remove(), { once: true });
    dialog.showModal();
    try {
      const tool = (await tools(signal)).find(({ name }) => name === task.tool);
      if (!tool) throw new Error(`The server no longer has the tool ${task.tool}.`);
      dialog.append(runner(tool, args, () => dialog.close()));
    } catch (error) {
      dialog.append(h("p", { class: "notice bad", role: "alert" }, reason(error)), h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
    }
  }
}

/**
 * Tries until it goes, or is refused.
 * @param {AbortSignal} signal
 * @param {() => Promise<void>} action
 */
async function repeatUntil(signal, action) {
  /** @type {unknown} */
  let refusal;
  const done = new AbortController();
  await repeat(500, AbortSignal.any([signal, done.signal]), async () => {
    try {
      await action();
      done.abort();
    } catch (error) {
      if (!isFinal(error)) return;
      refusal = error;
      done.abort();
    }
  });
  if (refusal) throw refusal;
}

/**
 * A question as a form. Answers go the way that those of every client go.
 * @param {Task} task
 * @param {string} key
 * @param {Question} question
 * @param {AbortSignal} signal
 */
function questionForm(task, key, question, signal) {
  const text = question.params?.message ?? `${question.method} (${key})`;
  const mayAnswer = session.caller?.may.answer && task.caller === session.caller?.caller;
  if (!mayAnswer) {
    return h("div", { class: "question" }, h("h2", {}, text), h("p", { class: "muted" }, "Only the caller of the task can answer this."));
  }
  return answerForm(text, question, async (answer) => {
    await call("tasks/update", { taskId: task.id, inputResponses: { [key]: answer } }, signal);
    announce("answered");
  });
}

customElements.define("tw-task", TaskPage);
