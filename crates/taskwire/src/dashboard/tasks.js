// The list of tasks. It is read again each second while somebody looks, and only what has changed is painted.

import { announce, badge, confirmed, doing, fill, h, isWriting, moment, reason, span, STATES, write } from "./dom.js";
import { Page, place, session, setQuery, taskAddress } from "./page.js";
import { api, repeat } from "./server.js";

/** @typedef {import("./server.js").Task} Task */
/** @typedef {{ element: HTMLElement, box: HTMLInputElement, link: HTMLAnchorElement, state: HTMLElement, message: HTMLElement, bar: HTMLProgressElement, caller: HTMLElement, time: HTMLElement, status: string }} Row */

const REFRESH_MS = 1000;
/** Tasks of one page. */
const PAGE = 100;
/** Requests for one page at most: the server looks at so many tasks each time, and none of them may fit. */
const READS_MAX = 5;
/** Requests at one time, when many tasks are cancelled. */
const AT_ONCE = 4;

export class Tasks extends Page {
  /** @type {Map<string, Task>} */
  tasks = new Map();
  /** @type {Map<string, Row>} */
  rows = new Map();
  /** @type {Set<string>} */
  chosen = new Set();
  /** Where the page after the last one begins. @type {string | undefined} */
  next = undefined;
  /** Where each of the pages after the first one begins: where the one before it ended. @type {string[]} */
  cursors = [];
  turn = 0;
  generation = 0;

  /** @param {AbortSignal} signal */
  start(signal) {
    if (!session.caller?.may.list) return this.append(h("h1", {}, "Tasks"), h("p", { class: "notice" }, "You may not list tasks."));
    const { query } = place();
    const changed = () => this.filter();
    this.status = h("select", { "aria-label": "State", onchange: changed },
      h("option", { value: "" }, "any state"), h("option", { value: "open" }, "not ended"),
      ...Object.entries(STATES).map(([value, text]) => h("option", { value }, text)));
    this.tool = h("input", { type: "search", placeholder: "tool", "aria-label": "Tool", size: 14, spellcheck: false, oninput: changed });
    this.caller = h("input", { type: "search", placeholder: "caller", "aria-label": "Caller", size: 14, spellcheck: false, oninput: changed });
    this.text = h("input", { type: "search", placeholder: "Text in the tasks below", "aria-label": "Text in the tasks below", spellcheck: false, oninput: changed });
    this.status.value = query.get("status") ?? "";
    this.tool.value = query.get("tool") ?? "";
    this.caller.value = query.get("caller") ?? "";
    this.text.value = query.get("q") ?? "";
    this.counts = h("p", { class: "counts", "aria-live": "off" });
    this.all = h("input", { type: "checkbox", "aria-label": "Choose all below that have not ended", onchange: () => this.chooseAll() });
    this.cancelButton = h("button", { type: "button", class: "danger", disabled: true, onclick: () => this.cancel(signal) }, "Cancel");
    this.progress = h("div", { class: "bulk", role: "status" });
    this.list = h("ul", { class: "tasks", "aria-label": "Tasks" });
    this.more = h("button", { type: "button", hidden: true, onclick: () => this.readMore(signal) }, "Show more");
    this.empty = h("div", { class: "empty", hidden: true });
    const mayCancel = session.caller?.may.cancel;
    this.append(
      h("h1", {}, "Tasks"),
      h("div", { class: "bar filters", role: "search" }, this.text, this.status, this.tool, session.caller?.admin ? this.caller : null),
      h("div", { class: "bar" }, mayCancel ? h("label", { class: "choice" }, this.all, " all") : null, mayCancel ? this.cancelButton : null, this.counts),
      this.progress, this.list, this.empty, this.more,
    );
    document.addEventListener("keydown", (event) => this.key(event), { signal });
    repeat(REFRESH_MS, signal, () => this.refresh(signal));
    // How long things take goes on between two readings.
    repeat(REFRESH_MS, signal, async () => this.paintTimes());
  }

  filter() {
    const query = new URLSearchParams();
    for (const [name, field] of /** @type {const} */ ([["q", this.text], ["status", this.status], ["tool", this.tool], ["caller", this.caller]])) {
      if (field?.value) query.set(name, field.value);
    }
    setQuery(query);
    if (this.asked() === this.lastAsked) return this.paint();
    this.generation += 1;
    this.tasks.clear();
    this.cursors = [];
    this.next = undefined;
    if (this.controller) this.refresh(this.controller.signal).catch(() => {});
  }

  lastAsked = "";

  /** What the server filters by. */
  asked() {
    const query = new URLSearchParams({ limit: String(PAGE) });
    if (this.status?.value) query.set("status", this.status.value);
    if (this.tool?.value) query.set("tool", this.tool.value);
    if (this.caller?.value) query.set("caller", this.caller.value);
    return query.toString();
  }

  /** @param {AbortSignal} signal */
  async refresh(signal) {
    const { generation } = this;
    this.lastAsked = this.asked();
    const known = this.tasks.size > 0;
    const page = await this.read(undefined, signal);
    if (generation !== this.generation || signal.aborted) return;
    if (known && page.nextCursor && !page.tasks.some((/** @type {Task} */ task) => this.tasks.has(task.id))) {
      // More came at once than a page has: there would be a gap.
      this.tasks.clear();
      this.cursors = [];
    }
    this.take(undefined, page);
    this.endsAt(0, page.nextCursor);
    if (this.cursors.length > 0) {
      // One of the further pages each time.
      const turn = this.turn++ % this.cursors.length;
      const cursor = this.cursors[turn];
      const further = await this.read(cursor, signal);
      if (generation !== this.generation || signal.aborted) return;
      this.take(cursor, further);
      this.endsAt(turn + 1, further.nextCursor);
    }
    this.paint();
  }

  /**
   * Says where a page has ended: there the next one begins. What is below the last one is not read again, so it is not kept.
   * @param {number} number
   * @param {string | undefined} cursor
   */
  endsAt(number, cursor) {
    // Another reading may have found fewer pages meanwhile.
    if (number > this.cursors.length) return;
    if (cursor === undefined) this.cursors.length = number;
    if (cursor !== undefined && number < this.cursors.length) this.cursors[number] = cursor;
    else this.next = cursor;
    for (const id of this.tasks.keys()) if (this.next !== undefined && id < this.next) this.tasks.delete(id);
  }

  /**
   * @param {string | undefined} cursor
   * @param {AbortSignal} signal
   * @returns {Promise<import("./server.js").TaskPage>}
   */
  async read(cursor, signal) {
    let page;
    for (let reads = 0; reads < READS_MAX && (!page || (page.tasks.length === 0 && cursor)); reads += 1) {
      page = await api(`tasks?${this.asked()}${cursor ? `&cursor=${cursor}` : ""}`, { signal });
      cursor = page.nextCursor;
    }
    return page;
  }

  /**
   * Takes over a page: what is known between its ends and not in it is gone, or fits no longer. Ids are in the order of time.
   * @param {string | undefined} before
   * @param {import("./server.js").TaskPage} page
   */
  take(before, page) {
    const last = page.nextCursor ?? "";
    const ids = new Set(page.tasks.map((task) => task.id));
    for (const id of this.tasks.keys()) {
      if ((before === undefined || id < before) && id >= last && !ids.has(id)) this.tasks.delete(id);
    }
    for (const task of page.tasks) this.tasks.set(task.id, task);
  }

  /** @param {AbortSignal} signal */
  async readMore(signal) {
    const cursor = this.next;
    if (!cursor) return;
    const { generation } = this;
    const page = await this.read(cursor, signal);
    // The list may have become another one meanwhile, or shorter; if its end has moved, the next readings fill the gap.
    if (generation !== this.generation || !this.next) return;
    this.cursors.push(this.next);
    this.take(cursor, page);
    this.endsAt(this.cursors.length, page.nextCursor);
    this.paint();
  }

  /** The tasks that are shown, the latest first. */
  shown() {
    const text = this.text?.value.toLowerCase() ?? "";
    const fits = (/** @type {Task} */ task) => !text || `${task.id} ${task.tool} ${task.caller} ${task.message ?? ""}`.toLowerCase().includes(text);
    return [...this.tasks.values()].filter(fits).sort((a, b) => (a.id < b.id ? 1 : -1));
  }

  paint() {
    const { list, counts, empty, more, all, cancelButton } = this;
    if (!list || !counts || !empty || !more || !all || !cancelButton) return;
    const shown = this.shown();
    const ids = new Set(shown.map((task) => task.id));
    for (const [id, row] of this.rows) {
      if (ids.has(id)) continue;
      row.element.remove();
      this.rows.delete(id);
      this.chosen.delete(id);
    }
    let place = list.firstElementChild;
    for (const task of shown) {
      let row = this.rows.get(task.id);
      if (!row) {
        row = this.row(task);
        this.rows.set(task.id, row);
      }
      if (row.element === place) place = place.nextElementSibling;
      else list.insertBefore(row.element, place);
      this.paintRow(row, task);
    }
    this.paintTimes();
    this.paintCounts(shown);
    const open = shown.filter((task) => !task.endedAt).length;
    all.disabled = open === 0;
    all.checked = open > 0 && this.chosen.size >= open;
    all.indeterminate = this.chosen.size > 0 && !all.checked;
    cancelButton.disabled = this.chosen.size === 0;
    write(cancelButton, this.chosen.size ? `Cancel ${this.chosen.size}` : "Cancel");
    more.hidden = !this.next;
    empty.hidden = shown.length > 0;
    if (shown.length === 0) this.paintEmpty(empty);
  }

  /** @param {HTMLElement} empty */
  paintEmpty(empty) {
    const isFiltered = this.asked() !== `limit=${PAGE}` || this.text?.value;
    const key = isFiltered ? "filtered" : "none";
    if (empty.dataset.key === key) return;
    empty.dataset.key = key;
    if (isFiltered) fill(empty, h("p", {}, "No task fits the filter."));
    else fill(empty, h("p", {}, "No tasks yet."), h("p", { class: "muted" }, "A call that takes longer than a moment becomes a task and is shown here. ", h("a", { href: "#/tools" }, "Run a tool"), "."));
  }

  /** @param {Task[]} shown */
  paintCounts(shown) {
    const of = (/** @type {string} */ status) => shown.filter((task) => task.status === status).length;
    const parts = Object.entries(STATES).map(([status, name]) => ({ status, name, count: of(status) })).filter(({ count }) => count > 0);
    const total = `${shown.length.toLocaleString()}${this.next ? "+" : ""} ${shown.length === 1 ? "task" : "tasks"}`;
    const key = JSON.stringify([total, parts]);
    if (!this.counts || this.counts.dataset.key === key) return;
    this.counts.dataset.key = key;
    fill(this.counts, h("strong", {}, total), ...parts.map(({ status, name, count }) => h("span", { class: `count-of ${status}` }, `${count} ${name}`)));
  }

  /**
   * @param {Task} task
   * @returns {Row}
   */
  row(task) {
    const box = h("input", { type: "checkbox", "aria-label": `Choose ${task.tool} ${task.id.slice(-6)}`, onchange: () => this.choose(task.id, box.checked) });
    const link = h("a", { href: taskAddress(task.id), class: "open" }, task.tool);
    const state = h("span", { class: "state" });
    const message = h("span", { class: "message" });
    const bar = h("progress", { "aria-label": `Progress of ${task.tool}`, hidden: true });
    const caller = h("span", { class: "caller" }, session.caller?.admin ? task.caller : "");
    const time = h("span", { class: "time" });
    const id = h("span", { class: "id", title: task.id }, task.id.slice(-6));
    const element = h("li", {}, session.caller?.may.cancel ? box : null, state, h("span", { class: "name" }, link, id), h("span", { class: "doing" }, message, bar), caller, time);
    return { element, box, link, state, message, bar, caller, time, status: "" };
  }

  /**
   * @param {Row} row
   * @param {Task} task
   */
  paintRow(row, task) {
    const status = doing(task);
    if (row.status !== status) {
      row.status = status;
      row.element.className = status;
      fill(row.state, badge(status));
      row.box.disabled = Boolean(task.endedAt);
      if (task.endedAt) this.choose(task.id, false);
    }
    row.box.checked = this.chosen.has(task.id);
    const otherwise = task.openQuestions ? "asks a question" : task.hidden ? "a call of a client without tasks" : "";
    write(row.message, task.message ?? otherwise);
    const total = task.progress?.total;
    row.bar.hidden = !total || Boolean(task.endedAt);
    if (total) {
      row.bar.max = total;
      row.bar.value = task.progress?.done ?? 0;
    }
  }

  paintTimes() {
    const now = Date.now();
    for (const [id, row] of this.rows) {
      const task = this.tasks.get(id);
      if (!task) continue;
      const end = task.endedAt ? Date.parse(task.endedAt) : now;
      write(row.time, `${moment(task.createdAt)} · ${span(end - Date.parse(task.createdAt))}`);
    }
  }

  /**
   * @param {string} id
   * @param {boolean} on
   */
  choose(id, on) {
    const before = this.chosen.size;
    if (on) this.chosen.add(id);
    else this.chosen.delete(id);
    if (this.chosen.size !== before) queueMicrotask(() => this.paint());
  }

  chooseAll() {
    for (const task of this.shown()) if (!task.endedAt) this.choose(task.id, this.all?.checked ?? false);
    this.paint();
  }

  /** @param {AbortSignal} signal */
  async cancel(signal) {
    const ids = [...this.chosen];
    const what = ids.length === 1 ? "this task" : `these ${ids.length} tasks`;
    if (!(await confirmed(`Cancel ${what}? Work that runs is stopped.`, `Cancel ${what}`)) || !this.progress) return;
    const bar = h("progress", { max: ids.length, value: 0, "aria-label": "Cancelling" });
    const text = h("span");
    fill(this.progress, bar, text);
    let done = 0;
    /** @type {string[]} */
    const failed = [];
    const rest = ids.slice();
    const work = async () => {
      for (let id = rest.shift(); id && !signal.aborted; id = rest.shift()) {
        try {
          const { task } = await api(`tasks/${id}/cancel`, { method: "POST", signal });
          this.chosen.delete(id);
          if (this.tasks.has(id)) this.tasks.set(id, task);
        } catch (error) {
          failed.push(reason(error));
        }
        done += 1;
        bar.value = done;
        write(text, `${done} of ${ids.length}${failed.length ? `, ${failed.length} failed: ${failed[0]}` : ""}`);
        this.paint();
      }
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    write(text, failed.length ? `${done - failed.length} of ${ids.length} cancelled, ${failed.length} failed: ${failed[0]}` : `${done} cancelled`);
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "/" && !isWriting(event)) {
      event.preventDefault();
      this.text?.focus();
    }
    // Within the list alone, so that no letter does anything by chance.
    const row = document.activeElement?.closest("ul.tasks > li");
    if (!row) return;
    const to = { j: row.nextElementSibling, ArrowDown: row.nextElementSibling, k: row.previousElementSibling, ArrowUp: row.previousElementSibling }[event.key];
    const link = to?.querySelector("a.open");
    if (link instanceof HTMLElement) {
      event.preventDefault();
      link.focus();
    } else if (event.key === "x") {
      const box = row.querySelector("input");
      box?.click();
      announce(box?.checked ? "chosen" : "not chosen");
    }
  }
}

customElements.define("tw-tasks", Tasks);
