// The tools of the server: what they say about themselves, and a form to run each.

import { fill, h, reason, write } from "./dom.js";
import { SchemaForm } from "./form.js";
import { tree } from "./json.js";
import { Page, place, session, setQuery, taskAddress } from "./page.js";
import { answerForm } from "./question.js";
import { outcomeView } from "./result.js";
import { call, tools } from "./server.js";

/** @typedef {import("./server.js").Tool} Tool */

class Tools extends Page {
  /** @param {AbortSignal} signal */
  start(signal) {
    const list = h("div", { class: "tools" }, h("p", { class: "muted" }, "Loading…"));
    const { query } = place();
    const search = h("input", { type: "search", placeholder: "Search", "aria-label": "Search the tools", value: query.get("q") ?? "", oninput: () => show() });
    const count = h("p", { class: "counts" });
    this.append(h("h1", {}, "Tools"), h("div", { class: "bar" }, search, count), list);
    /** @type {{ tool: Tool, element: HTMLElement }[]} */
    let all = [];
    const show = () => {
      const text = search.value.toLowerCase();
      let shown = 0;
      for (const { tool, element } of all) {
        element.hidden = !`${tool.name} ${tool.title ?? ""} ${tool.description ?? ""}`.toLowerCase().includes(text);
        if (!element.hidden) shown += 1;
      }
      write(count, `${shown} ${shown === 1 ? "tool" : "tools"}`);
      setQuery(new URLSearchParams(search.value ? { q: search.value } : {}));
    };
    tools(signal).then((found) => {
      all = found.map((tool) => ({ tool, element: toolView(tool) }));
      fill(list, ...all.map(({ element }) => element));
      if (all.length === 0) fill(list, h("p", { class: "muted" }, "This server has no tools."));
      show();
    }, (error) => signal.aborted || fill(list, h("p", { class: "notice bad", role: "alert" }, reason(error))));
  }
}

/** @param {Tool} tool */
function toolView(tool) {
  const details = h("details", { class: "panel tool", name: "tool" },
    h("summary", {}, h("h2", {}, tool.title ?? tool.name), h("span", { class: "muted" }, firstLine(tool.description ?? ""))));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const rest = (tool.description ?? "").slice(firstLine(tool.description ?? "").length).trim();
    details.append(
      rest ? h("p", { class: "long" }, rest) : "",
      session.caller?.may.call ? runner(tool, undefined) : h("p", { class: "muted" }, "You may look, but not run tools."),
      h("details", { class: "raw" }, h("summary", {}, "Schema"), tree(tool.inputSchema)),
    );
  });
  return details;
}

/** @param {string} text */
function firstLine(text) {
  return text.split("\n")[0];
}

/**
 * A form that runs a tool, and what came of it. What becomes a task is shown on its own page.
 * @param {Tool} tool
 * @param {any} args What it has at first.
 * @param {() => void} [done]
 */
export function runner(tool, args, done) {
  const fields = new SchemaForm(tool.inputSchema, args);
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const button = h("button", { type: "submit", class: "primary" }, "Run");
  const ask = async (/** @type {any} */ more) => {
    button.disabled = true;
    fill(answer, h("p", { class: "muted" }, "Running…"));
    try {
      const result = await call("tools/call", { name: tool.name, arguments: fields.value(), ...more });
      if (result.resultType === "task") {
        done?.();
        location.hash = taskAddress(result.taskId);
      } else if (result.resultType === "input_required") {
        const questions = Object.entries(/** @type {Record<string, import("./server.js").Question>} */ (result.inputRequests ?? {}));
        /** @type {Record<string, any>} */
        const inputResponses = {};
        fill(answer, ...questions.map(([key, question]) => answerForm(question.params?.message ?? key, question, async (given) => {
          inputResponses[key] = given;
          if (Object.keys(inputResponses).length === questions.length) await ask({ inputResponses, requestState: result.requestState });
        })));
      } else {
        fill(answer, h("h3", {}, "Result"), outcomeView({ result }));
      }
    } catch (error) {
      fill(answer, h("p", { class: "notice bad", role: "alert" }, reason(error)));
    }
    button.disabled = false;
  };
  const form = h("form", {
    onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      fields.value();
      if (form.reportValidity()) ask({});
    },
  }, fields.element, h("div", { class: "actions" }, button, done ? h("button", { type: "button", onclick: done }, "Close") : null));
  return h("div", { class: "runner" }, form, answer);
}

customElements.define("tw-tools", Tools);
