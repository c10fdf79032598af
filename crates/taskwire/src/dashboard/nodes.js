// How the server is, and the nodes that share its store. What is drawn began when the page was opened: the server keeps no history.

import { bytes, fill, h, moment, reason, span, write } from "./dom.js";
import { Page, session } from "./page.js";
import { api, metrics, Refused, repeat } from "./server.js";

const REFRESH_MS = 2000;
/** Readings that a plot has. */
const POINTS = 120;
const SVG = "http://www.w3.org/2000/svg";

/** A small plot with its latest value. */
class Plot {
  /**
   * @param {string} name
   * @param {(value: number) => string} text
   */
  constructor(name, text) {
    this.text = text;
    /** @type {number[]} */
    this.points = [];
    this.latest = h("strong");
    this.most = h("span", { class: "muted" });
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${POINTS} 40`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    this.area = svg.appendChild(document.createElementNS(SVG, "path"));
    this.area.setAttribute("class", "area");
    this.line = svg.appendChild(document.createElementNS(SVG, "path"));
    this.line.setAttribute("class", "line");
    this.element = h("div", { class: "plot" }, h("div", { class: "plot-name" }, h("span", {}, name), this.latest), svg, this.most);
  }

  /** @param {number} value */
  add(value) {
    this.points.push(value);
    if (this.points.length > POINTS) this.points.shift();
    const most = Math.max(...this.points, 0);
    const offset = POINTS - this.points.length;
    const path = this.points.map((point, i) => `${i ? "L" : "M"}${offset + i} ${(38 - (most ? (point / most) * 36 : 0)).toFixed(1)}`).join("");
    this.line.setAttribute("d", path);
    this.area.setAttribute("d", `${path}L${POINTS - 1} 40L${offset} 40Z`);
    write(this.latest, this.text(value));
    write(this.most, `at most ${this.text(most)}`);
  }
}

class Nodes extends Page {
  /** @type {{ at: number, created: number, ended: number, output: number, requests: number, commits: number, commitTime: number, lag: number, lags: number, cpu: number } | undefined} */
  totals = undefined;

  /** @param {AbortSignal} signal */
  start(signal) {
    if (!session.caller?.admin) return this.append(h("h1", {}, "Nodes and health"), h("p", { class: "notice" }, "Only an admin can see this."));
    const number = (/** @type {number} */ value) => Math.round(value).toLocaleString();
    const rate = (/** @type {number} */ value) => `${value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString()}/s`;
    const time = (/** @type {number} */ value) => (value < 1 ? `${value.toFixed(2)} ms` : span(value));
    const plots = {
      open: new Plot("Open tasks", number),
      created: new Plot("Tasks made", rate),
      ended: new Plot("Tasks ended", rate),
      output: new Plot("Output", (value) => `${bytes(value)}/s`),
      requests: new Plot("Requests", rate),
      queue: new Plot("Changes waiting to be written", number),
      commit: new Plot("A commit takes", time),
      lag: new Plot("Readers lag by", time),
      cpu: new Plot("Processor", (value) => `${Math.round(value)} %`),
      memory: new Plot("Memory", bytes),
      connections: new Plot("Connections", number),
    };
    const facts = h("dl", { class: "facts" });
    const health = h("div");
    const nodes = h("div");
    const problem = h("p", { class: "notice bad", role: "alert", hidden: true });
    this.append(h("h1", {}, "Nodes and health"), problem,
      h("div", { class: "columns even" }, h("section", { class: "panel" }, h("h2", {}, "This node"), health, facts), h("section", { class: "panel" }, h("h2", {}, "Nodes"), nodes)),
      h("section", { class: "panel" }, h("h2", {}, "This node, since this page was opened"), h("div", { class: "plots" }, ...Object.values(plots).map((plot) => plot.element))));
    const refused = new AbortController();
    repeat(REFRESH_MS, AbortSignal.any([signal, refused.signal]), async () => {
      try {
        const state = await api("server", { signal });
        problem.hidden = true;
        this.paintState(state, health, facts, nodes);
        plots.open.add(sum(state.tasks.open));
        plots.queue.add(state.queue.length);
        plots.connections.add(state.connections);
      } catch (error) {
        if (signal.aborted) return;
        problem.hidden = false;
        write(problem, reason(error));
        if (error instanceof Refused && error.status === 403) refused.abort();
        return;
      }
      // They can be turned off; then there are fewer plots.
      const text = await metrics(signal).catch(() => "");
      for (const key of /** @type {const} */ (["created", "ended", "output", "requests", "commit", "lag", "cpu", "memory"])) plots[key].element.hidden = !text;
      if (text) this.paintRates(read(text), plots);
    });
  }

  /**
   * @param {any} state
   * @param {HTMLElement} health
   * @param {HTMLElement} facts
   * @param {HTMLElement} nodes
   */
  paintState(state, health, facts, nodes) {
    const troubles = [
      state.draining ? "It drains: it takes no new calls, and ends when its tools have ended." : "",
      state.store.away ? "It cannot write just now: its store is away, its disk is full, or it has no lease." : "",
      state.queue.length > state.queue.capacity / 2 ? "More than half of the places for changes are taken." : "",
    ].filter(Boolean);
    fill(health, ...(troubles.length ? troubles.map((text) => h("p", { class: "notice bad" }, text)) : [h("p", { class: "notice good" }, "All is well.")]));
    const { created, ended } = state.tasks;
    const rows = /** @type {[string, string][]} */ ([
      ["Name", `${state.name} ${state.version}${state.node ? `, node ${state.node}` : ""}`],
      ["Up for", `${span(state.uptimeMs)}, since ${moment(state.startedAt)} (start ${state.epoch})`],
      ["Open tasks", `${state.tasks.open.working ?? 0} working, ${state.tasks.open.input_required ?? 0} waiting for an answer`],
      ["Since its start", `${created.toLocaleString()} made; ${Object.entries(ended).map(([how, count]) => `${count} ${how.replace("_", " ")}`).join(", ") || "none ended"}`],
      ["Waiting for a slot", String(state.commandsWaiting)],
      ["Sessions, streams", `${state.sessions}, ${sum(state.streams)}`],
      ["Store", state.store.usedBytes === undefined ? "shared" : `${bytes(state.store.usedBytes)} used, ${bytes(state.store.freeBytes ?? 0)} free`],
    ]);
    fill(facts, ...rows.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    const list = /** @type {{ name: string, epoch: number, since: string, leaseLeftMs: number, openTasks: number }[]} */ (state.nodes ?? []);
    if (!state.nodes) fill(nodes, h("p", { class: "muted" }, "The store cannot say it just now."));
    else if (list.length === 0) fill(nodes, h("p", { class: "muted" }, "This server has its store for itself."));
    else {
      fill(nodes, h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Nodes" }, h("table", {},
        h("thead", {}, h("tr", {}, ...["Node", "Start", "Since", "Lease left", "Open tasks"].map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", {}, ...list.map((node) => h("tr", {},
          h("th", { scope: "row" }, node.name, node.epoch === state.epoch ? " (answers)" : ""), h("td", {}, String(node.epoch)), h("td", {}, moment(node.since)),
          h("td", { class: node.leaseLeftMs < 2000 ? "bad" : "" }, span(node.leaseLeftMs)), h("td", {}, String(node.openTasks))))))));
    }
  }

  /**
   * @param {Map<string, number>} totals
   * @param {Record<"created" | "ended" | "output" | "requests" | "commit" | "lag" | "cpu" | "memory", Plot>} plots
   */
  paintRates(totals, plots) {
    const of = (/** @type {string} */ name) => totals.get(name) ?? 0;
    const now = {
      at: performance.now() / 1000,
      created: of("taskwire_tasks_created_total"),
      ended: of("taskwire_tasks_ended_total"),
      output: of("taskwire_output_bytes_total"),
      requests: of("taskwire_http_requests_total"),
      commits: of("taskwire_commit_duration_seconds_count"),
      commitTime: of("taskwire_commit_duration_seconds_sum"),
      lags: of("taskwire_feed_lag_seconds_count"),
      lag: of("taskwire_feed_lag_seconds_sum"),
      cpu: of("process_cpu_seconds_total"),
    };
    plots.memory.add(of("process_resident_memory_bytes"));
    const before = this.totals;
    this.totals = now;
    // Counters begin anew with the server.
    if (!before || now.requests < before.requests) return;
    const seconds = now.at - before.at;
    plots.created.add((now.created - before.created) / seconds);
    plots.ended.add((now.ended - before.ended) / seconds);
    plots.output.add((now.output - before.output) / seconds);
    plots.requests.add((now.requests - before.requests) / seconds);
    plots.commit.add(mean(now.commitTime - before.commitTime, now.commits - before.commits));
    plots.lag.add(mean(now.lag - before.lag, now.lags - before.lags));
    plots.cpu.add(((now.cpu - before.cpu) / seconds) * 100);
  }
}

/** The mean of seconds, in milliseconds. @param {number} total @param {number} count */
function mean(total, count) {
  return count > 0 ? (total / count) * 1000 : 0;
}

/** @param {Record<string, number>} counts */
function sum(counts) {
  return Object.values(counts).reduce((all, count) => all + count, 0);
}

/**
 * The text for Prometheus, added up over all labels but those of buckets.
 * @param {string} text
 * @returns {Map<string, number>}
 */
function read(text) {
  const totals = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-z_]+)(?:\{.*\})? ([0-9.eE+-]+)$/.exec(line);
    if (found && !found[1].endsWith("_bucket")) totals.set(found[1], (totals.get(found[1]) ?? 0) + Number(found[2]));
  }
  return totals;
}

customElements.define("tw-nodes", Nodes);
