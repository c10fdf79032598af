// The frame around the pages: who looks, where to go, whether the server is there.

import { fill, h, isWriting, reason, write } from "./dom.js";
import { place, session } from "./page.js";
import { api, events, isFinal, repeat, setToken, token } from "./server.js";
import "./nodes.js";
import "./task.js";
import "./tasks.js";
import "./tools.js";

/** @typedef {import("./server.js").Task} Task */

const PAGES = /** @type {Record<string, { tag: string, title: string }>} */ ({
  tasks: { tag: "tw-tasks", title: "Tasks" },
  task: { tag: "tw-task", title: "Task" },
  tools: { tag: "tw-tools", title: "Tools" },
  nodes: { tag: "tw-nodes", title: "Nodes" },
});
const THEME = "taskwire.theme";
const header = /** @type {HTMLElement} */ (document.getElementById("header"));
const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const waiting = h("span", { class: "waiting", hidden: true });
const lost = h("div", { class: "lost", role: "status" });
let shown = "";

/** Shows the page that the address names. */
function show() {
  if (!session.caller) return;
  const { parts } = place();
  const path = parts.join("/") || "tasks";
  for (const link of header.querySelectorAll("nav a")) {
    const isHere = link.getAttribute("href") === `#/${parts[0] === "task" ? "tasks" : (parts[0] ?? "tasks")}`;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (path === shown) return;
  const isFirst = shown === "";
  shown = path;
  const page = PAGES[parts[0] ?? "tasks"];
  document.title = `${page?.title ?? "Nothing here"} · Taskwire`;
  fill(main, page ? document.createElement(page.tag) : h("p", {}, "There is no such page. ", h("a", { href: "#/tasks" }, "All tasks")));
  if (!isFirst) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}

/** The bar at the top. */
function frame() {
  const { caller } = session;
  if (!caller) return;
  const theme = h("button", { type: "button", class: "quiet", onclick: () => write(theme, `Theme: ${nextTheme()}`) }, `Theme: ${localStorage.getItem(THEME) ?? "auto"}`);
  fill(header,
    h("a", { class: "brand", href: "#/tasks" }, caller.server),
    h("nav", { "aria-label": "Pages" },
      h("a", { href: "#/tasks" }, "Tasks", waiting), h("a", { href: "#/tools" }, "Tools"), caller.admin ? h("a", { href: "#/nodes" }, "Nodes") : null),
    h("span", { class: "gap" }),
    h("span", { class: "who muted", title: `taskwire ${caller.version}` }, caller.caller, caller.admin ? " (admin)" : caller.may.call || caller.may.cancel ? "" : " (may only look)"),
    theme,
    token() ? h("button", { type: "button", class: "quiet", onclick: () => { setToken(null); location.reload(); } }, "Sign out") : null,
    lost);
}

function nextTheme() {
  const themes = ["auto", "dark", "light"];
  const next = themes[(themes.indexOf(localStorage.getItem(THEME) ?? "auto") + 1) % themes.length];
  localStorage.setItem(THEME, next);
  applyTheme();
  return next;
}

function applyTheme() {
  document.documentElement.dataset.theme = localStorage.getItem(THEME) ?? "auto";
}

/** Asks for a token. @param {string} why What was wrong, if anything was. */
function signIn(why) {
  if (document.getElementById("sign-in")) return;
  session.caller = undefined;
  shown = "";
  fill(header, h("a", { class: "brand", href: "#/tasks" }, "Taskwire"));
  const field = h("input", { id: "token", type: "password", required: true, autocomplete: "off", spellcheck: false });
  const problem = h("p", { class: "notice bad", role: "alert", hidden: !why }, why);
  const form = h("form", {
    id: "sign-in", class: "panel sign-in",
    onsubmit: (/** @type {Event} */ event) => {
      event.preventDefault();
      setToken(field.value.trim().replace(/^Bearer\s+/i, ""));
      form.remove();
      begin();
    },
  }, h("h1", {}, "Sign in"), h("p", { class: "muted" }, "This server wants to know who looks. Your token stays in this window, until it is closed."),
    problem, h("label", { htmlFor: "token" }, "Token"), field, h("div", { class: "actions" }, h("button", { type: "submit", class: "primary" }, "Sign in")));
  fill(main, form);
  field.focus();
}

let isBeginning = false;

/** Asks who looks, until the server says it. */
async function begin() {
  if (isBeginning) return;
  isBeginning = true;
  const done = new AbortController();
  await repeat(1000, done.signal, async () => {
    try {
      session.caller = await api("caller");
      frame();
      show();
      done.abort();
      countWaiting().catch(() => {});
    } catch (error) {
      // Perhaps another token helps.
      if (isFinal(error)) signIn(reason(error));
      if (document.getElementById("sign-in")) done.abort();
      else fill(main, h("p", { class: "notice", role: "status" }, `Waiting for the server: ${reason(error)}`));
    }
  });
  isBeginning = false;
}

/** How many tasks wait for an answer is told on every page. */
async function countWaiting() {
  if (!session.caller?.may.list) return;
  let count = 0;
  let cursor = "";
  // The server looks at some tasks each time, and perhaps none of them waits.
  for (let reads = 0; reads < 5 && count < 100 && (reads === 0 || cursor); reads += 1) {
    const page = await api(`tasks?status=input_required&limit=100${cursor && `&cursor=${cursor}`}`);
    count += page.tasks.length;
    cursor = page.nextCursor ?? "";
  }
  waiting.hidden = count === 0;
  write(waiting, count === 0 ? "" : `${count}${cursor ? "+" : ""} waiting`);
  waiting.title = "Tasks that wait for an answer";
}

function help() {
  const keys = [["/", "search"], ["j  k  ↓  ↑", "next and previous task, in the list"], ["x", "choose a task, in the list"], ["Enter", "open; in a search, the next hit"], ["?", "this"], ["Esc", "close"]];
  const dialog = h("dialog", { class: "dialog", "aria-label": "Keys", onclose: () => dialog.remove() }, h("h2", {}, "Keys"),
    h("dl", { class: "facts" }, ...keys.flatMap(([key, text]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, text)])),
    h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

applyTheme();
addEventListener("hashchange", show);
addEventListener("keydown", (event) => {
  if (event.key === "?" && !isWriting(event) && !document.querySelector("dialog[open]")) help();
});
events.addEventListener("signin", (event) => signIn(token() ? /** @type {CustomEvent<string>} */ (event).detail : ""));
events.addEventListener("connection", (event) => {
  write(lost, /** @type {CustomEvent<boolean>} */ (event).detail ? "" : "The server cannot be reached. This page goes on when it can.");
});
document.addEventListener("click", (event) => {
  const skip = event.target instanceof Element && event.target.closest("a.skip");
  if (!skip) return;
  // The address says which page this is, so it cannot say this too.
  event.preventDefault();
  main.focus();
});
begin();
repeat(2000, new AbortController().signal, countWaiting);
