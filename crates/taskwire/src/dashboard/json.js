// A value of JSON as a tree that can be folded. What is far inside, or long, is only made when somebody unfolds it.

import { copy, h } from "./dom.js";

/** Members that are shown at once, and how many more each time. */
const MEMBERS = 100;

/**
 * @param {unknown} value
 * @param {{ open?: number }} [options] How deep it is unfolded at first.
 * @returns {HTMLElement}
 */
export function tree(value, { open = 2 } = {}) {
  return h(
    "div",
    { class: "json" },
    h("button", { type: "button", class: "quiet corner", onclick: () => copy(JSON.stringify(value, null, 2)) }, "Copy"),
    node(undefined, value, open),
  );
}

/**
 * @param {string | undefined} name
 * @param {unknown} value
 * @param {number} open
 * @returns {HTMLElement}
 */
function node(name, value, open) {
  const label = name === undefined ? null : h("span", { class: "key" }, `${name}: `);
  if (value === null || typeof value !== "object") return h("div", { class: "leaf" }, label, leaf(value));
  const entries = Object.entries(value);
  const [left, right] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (entries.length === 0) return h("div", { class: "leaf" }, label, left + right);
  const details = h("details", {}, h("summary", {}, label, left, h("span", { class: "muted" }, ` ${entries.length} `), right));
  const body = h("div", { class: "members" });
  details.append(body);
  let shown = 0;
  const more = () => {
    body.querySelector(":scope > button")?.remove();
    for (const [key, member] of entries.slice(shown, shown + MEMBERS)) {
      body.append(node(Array.isArray(value) ? undefined : key, member, open - 1));
    }
    shown += MEMBERS;
    const rest = entries.length - shown;
    if (rest > 0) body.append(h("button", { type: "button", class: "quiet", onclick: more }, `${rest} more`));
  };
  details.addEventListener("toggle", () => { if (details.open && shown === 0) more(); });
  if (open > 0) {
    details.open = true;
    more();
  }
  return details;
}

/** @param {unknown} value */
function leaf(value) {
  if (typeof value !== "string") return h("span", { class: `value ${value === null ? "null" : typeof value}` }, String(value));
  return h("span", { class: "value string" }, JSON.stringify(value));
}
