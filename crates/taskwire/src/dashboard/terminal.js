// The output of a task as a terminal would show it. Only the lines that can be seen are elements, so 100,000 of them cost what fifty do.

import { Screen } from "./ansi.js";
import { announce, copy, h, write } from "./dom.js";
import { tree } from "./json.js";

/** @typedef {import("./ansi.js").Line} Line */

/** The height of a line, as in the style sheet. */
const LINE_PX = 19;
/** Lines above and below those that can be seen. */
const SPARE = 20;
/** A browser knows no element that is higher. */
const HEIGHT_MAX_PX = 16_000_000;
/** How long a search may take before the page does something else. */
const SLICE_MS = 8;

const LINK = /\bhttps?:\/\/[^\s"'<>`\x00-\x1f]+[^\s"'<>`.,;:!?)\]}]/g;

export class Terminal extends HTMLElement {
  constructor() {
    super();
    this.screen = new Screen();
    this.isFollowing = true;
    this.isPaused = false;
    /** What came while it is paused. @type {string[]} */
    this.held = [];
    this.frame = 0;
    /** The rows that are elements, and what was looked for when they were drawn. @type {Map<number, { element: HTMLElement, key: string }>} */
    this.drawn = new Map();
    /** Lines that the screen had dropped when last looked at. */
    this.dropped = 0;
    this.query = "";
    /** Lines in which the search has found something. @type {number[]} */
    this.hits = [];
    this.searched = 0;
    this.hit = -1;
    this.name = "output";

    this.rows = h("div", { class: "rows" });
    this.spacer = h("div", { class: "spacer" }, this.rows);
    this.view = h("div", { class: "view", tabIndex: 0, role: "region", "aria-label": "Output", onscroll: () => this.scrolled() }, this.spacer);
    this.count = h("span", { class: "muted count" });
    this.found = h("span", { class: "muted found", "aria-live": "polite" });
    this.followButton = h("button", { type: "button", "aria-pressed": "true", title: "Show the latest line", onclick: () => this.follow(!this.isFollowing) }, "Follow");
    this.pauseButton = h("button", { type: "button", "aria-pressed": "false", title: "Keep what is shown while more is written", onclick: () => this.pause(!this.isPaused) }, "Pause");
    this.search = h("input", {
      type: "search", placeholder: "Search the output", "aria-label": "Search the output", spellcheck: false,
      oninput: () => this.find(this.search.value),
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key !== "Enter") return;
        event.preventDefault();
        this.step(event.shiftKey ? -1 : 1);
      },
    });
  }

  connectedCallback() {
    if (this.childElementCount === 0) this.append(
      h(
        "div",
        { class: "bar", role: "toolbar", "aria-label": "Output" },
        this.search,
        h("button", { type: "button", "aria-label": "Previous hit", onclick: () => this.step(-1) }, "↑"),
        h("button", { type: "button", "aria-label": "Next hit", onclick: () => this.step(1) }, "↓"),
        this.found,
        h("span", { class: "gap" }),
        this.count,
        this.followButton,
        this.pauseButton,
        h("button", { type: "button", onclick: () => copy(this.text()) }, "Copy"),
        h("button", { type: "button", onclick: () => this.download() }, "Download"),
      ),
      this.view,
    );
    this.resizing = new ResizeObserver(() => this.paintSoon());
    this.resizing.observe(this.view);
    this.paintSoon();
  }

  disconnectedCallback() {
    this.resizing?.disconnect();
    cancelAnimationFrame(this.frame);
    this.frame = 0;
  }

  /** @param {string} text */
  write(text) {
    if (this.isPaused) {
      this.held.push(text);
      write(this.pauseButton, "Resume (more)");
      return;
    }
    this.put(text);
    this.paintSoon();
  }

  /** @param {string} text */
  put(text) {
    this.screen.write(text);
    const gone = this.screen.dropped - this.dropped;
    if (gone === 0) return;
    this.dropped += gone;
    const current = this.hits[this.hit];
    this.hits = this.hits.map((line) => line - gone).filter((line) => line >= 0);
    this.hit = this.hits.indexOf(current - gone);
    this.searched = Math.max(0, this.searched - gone);
    this.tellHits();
    if (!this.isFollowing) this.view.scrollTop = this.lastTop = Math.max(0, this.view.scrollTop - gone * LINE_PX);
  }

  /** A line of our own, such as that something is no longer kept. @param {string} text */
  remark(text) {
    const isFresh = this.screen.column === 0 && this.screen.lines[this.screen.row].text === "";
    this.write(`${isFresh ? "" : "\n"}\x1b[0;2;3m${text}\x1b[0m\n`);
  }

  /** @param {boolean} on */
  follow(on) {
    this.isFollowing = on;
    this.followButton.setAttribute("aria-pressed", String(on));
    if (on) this.paintSoon();
  }

  /** @param {boolean} on */
  pause(on) {
    this.isPaused = on;
    this.pauseButton.setAttribute("aria-pressed", String(on));
    write(this.pauseButton, on ? "Resume" : "Pause");
    if (on) return;
    for (const text of this.held.splice(0)) this.put(text);
    this.paintSoon();
  }

  /** How many lines there are: an empty one after the last newline is none. */
  get length() {
    const { lines } = this.screen;
    return lines[lines.length - 1].text === "" ? lines.length - 1 : lines.length;
  }

  text() {
    return this.screen.lines.map((line) => line.text).join("\n");
  }

  download() {
    const url = URL.createObjectURL(new Blob([this.text()], { type: "text/plain;charset=utf-8" }));
    h("a", { href: url, download: `${this.name}.txt` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  scrolled() {
    const { scrollTop, clientHeight, scrollHeight } = this.view;
    const isAtEnd = scrollTop + clientHeight >= scrollHeight - LINE_PX;
    // Whoever scrolls up wants to read there; whoever scrolls to the end wants to see what comes.
    if (scrollTop < this.lastTop && this.isFollowing && !isAtEnd) this.follow(false);
    else if (isAtEnd && !this.isFollowing && scrollTop > this.lastTop) this.follow(true);
    this.lastTop = scrollTop;
    this.paintSoon();
  }

  lastTop = 0;
  height = -1;

  paintSoon() {
    if (this.frame || !this.isConnected) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.paint();
    });
  }

  paint() {
    const { length } = this;
    const height = Math.min(length * LINE_PX, HEIGHT_MAX_PX);
    if (height !== this.height) {
      this.height = height;
      this.spacer.style.height = `${height}px`;
      write(this.count, `${length.toLocaleString()} ${length === 1 ? "line" : "lines"}`);
    }
    if (this.isFollowing) {
      this.view.scrollTop = this.view.scrollHeight;
      this.lastTop = this.view.scrollTop;
    }
    const { scrollTop, clientHeight } = this.view;
    const shown = Math.ceil(clientHeight / LINE_PX);
    // Where all lines together are too high, a place in the bar stands for several of them.
    const scale = length * LINE_PX > HEIGHT_MAX_PX ? (length - shown) / Math.max(1, (height - clientHeight) / LINE_PX) : 1;
    const top = Math.floor((scrollTop / LINE_PX) * scale);
    const first = Math.max(0, top - SPARE);
    const last = Math.min(length, top + shown + SPARE);
    const offset = scale === 1 ? first * LINE_PX : scrollTop - (top - first) * LINE_PX;
    this.rows.style.transform = `translateY(${offset}px)`;
    this.paintRows(first, last);
    if (this.query && this.searched < length) this.searchOn();
  }

  /**
   * Rows that have not changed stay the same elements, so that a selection and the focus stay.
   * @param {number} first
   * @param {number} last
   */
  paintRows(first, last) {
    const changed = this.screen.changedFrom;
    this.screen.changedFrom = Infinity;
    const key = (/** @type {number} */ number) => `${number === this.hits[this.hit]} ${this.query}`;
    for (const [number, drawn] of this.drawn) {
      if (number >= first && number < last && number < changed && drawn.key === key(number)) continue;
      drawn.element.remove();
      this.drawn.delete(number);
    }
    let place = this.rows.firstElementChild;
    for (let number = first; number < last; number += 1) {
      const drawn = this.drawn.get(number);
      if (drawn) {
        place = drawn.element.nextElementSibling;
        continue;
      }
      const element = this.row(number);
      this.rows.insertBefore(element, place);
      this.drawn.set(number, { element, key: key(number) });
    }
  }

  /** @param {number} number */
  row(number) {
    const line = this.screen.lines[number];
    const element = h("div", { class: number === this.hits[this.hit] ? "row current" : "row" });
    const marks = this.marks(line.text);
    const looksLikeJson = /^\s*(\{\s*".*\}|\[\s*[[{"\d-].*\])\s*$/.test(line.text);
    if (looksLikeJson) {
      element.append(h("button", { type: "button", class: "unfold", title: "Show as a tree", "aria-label": "Show as a tree", onclick: () => unfold(line.text) }, "{}"));
    }
    if (line.runs.length === 0 && marks.length === 0) {
      element.append(line.text);
      return element;
    }
    // Every place where something begins or ends: a style, a hit, a link.
    const cuts = new Set([0, line.text.length]);
    for (let i = 0; i < line.runs.length; i += 2) cuts.add(Math.min(line.runs[i], line.text.length));
    for (const mark of marks) cuts.add(mark.from).add(mark.to);
    const places = [...cuts].sort((a, b) => a - b);
    let run = 0;
    for (let i = 0; i + 1 < places.length; i += 1) {
      const [from, to] = [places[i], places[i + 1]];
      while (run < line.runs.length && line.runs[run] <= from) run += 2;
      const style = run ? this.screen.styles[line.runs[run - 1]] : {};
      const link = marks.find((mark) => mark.href && mark.from <= from && mark.to >= to);
      const isHit = marks.some((mark) => !mark.href && mark.from <= from && mark.to >= to);
      const text = line.text.slice(from, to);
      let part = link?.href ? anchor(link.href, text) : h("span", {}, text);
      if (isHit) part = h("mark", {}, part);
      dress(part, style);
      element.append(part);
    }
    return element;
  }

  /**
   * Links, and what the search has found.
   * @param {string} text
   * @returns {{ from: number, to: number, href?: string }[]}
   */
  marks(text) {
    /** @type {{ from: number, to: number, href?: string }[]} */
    const marks = [];
    if (text.includes("://")) {
      for (const found of text.matchAll(LINK)) marks.push({ from: found.index, to: found.index + found[0].length, href: found[0] });
    }
    if (this.query) {
      const low = text.toLowerCase();
      for (let at = low.indexOf(this.query); at >= 0; at = low.indexOf(this.query, at + this.query.length)) {
        marks.push({ from: at, to: at + this.query.length });
      }
    }
    return marks;
  }

  /** @param {string} query */
  find(query) {
    this.query = query.toLowerCase();
    this.hits = [];
    this.hit = -1;
    this.searched = 0;
    if (this.query) this.searchOn();
    else this.tellHits();
    this.paintSoon();
  }

  /** Looks through a part of the lines; what follows is looked through when the page has time. */
  searchOn() {
    const { length } = this;
    const until = performance.now() + SLICE_MS;
    // The last line may go on.
    const last = length - 1;
    if (this.hits[this.hits.length - 1] === this.searched) this.hits.pop();
    while (this.searched < length && (this.searched % 256 !== 0 || performance.now() < until)) {
      if (this.screen.lines[this.searched].text.toLowerCase().includes(this.query)) this.hits.push(this.searched);
      if (this.searched === last) break;
      this.searched += 1;
      if (this.searched % 256 === 0 && performance.now() >= until) break;
    }
    if (this.searched < last) this.searching ??= window.setTimeout(() => {
      this.searching = undefined;
      if (this.query) this.searchOn();
    });
    this.tellHits();
  }

  /** @type {number | undefined} */
  searching = undefined;

  tellHits() {
    const count = this.hits.length;
    write(this.found, !this.query ? "" : count === 0 ? "no hit" : `${this.hit < 0 ? "" : `${this.hit + 1} of `}${count.toLocaleString()} ${count === 1 ? "line" : "lines"}`);
  }

  /** Goes to another hit. @param {number} by */
  step(by) {
    const count = this.hits.length;
    if (count === 0) return announce("no hit");
    if (this.hit < 0) {
      const top = Math.floor(this.view.scrollTop / LINE_PX);
      const next = this.hits.findIndex((line) => line >= top);
      this.hit = by > 0 ? (next < 0 ? 0 : next) : (next <= 0 ? count : next) - 1;
    } else {
      this.hit = (this.hit + by + count) % count;
    }
    this.follow(false);
    this.showLine(this.hits[this.hit]);
    this.tellHits();
  }

  /** @param {number} line */
  showLine(line) {
    const all = this.length * LINE_PX;
    const scale = Math.min(1, HEIGHT_MAX_PX / all);
    this.view.scrollTop = Math.max(0, line * LINE_PX * scale - this.view.clientHeight / 2);
    this.lastTop = this.view.scrollTop;
    this.paintSoon();
  }
}

/**
 * A link that leads away, and tells the other side nothing.
 * @param {string} href
 * @param {string} text
 */
export function anchor(href, text) {
  return h("a", { href, target: "_blank", rel: "noopener noreferrer" }, text);
}

/**
 * @param {HTMLElement} element
 * @param {import("./ansi.js").Style} style
 */
function dress(element, style) {
  let { fg, bg } = style;
  if (style.inverse) [fg, bg] = [bg ?? "inverse-fg", fg ?? "inverse-bg"];
  if (fg) fg.startsWith("rgb") ? (element.style.color = fg) : element.classList.add(`fg-${fg}`);
  if (bg) bg.startsWith("rgb") ? (element.style.backgroundColor = bg) : element.classList.add(`bg-${bg}`);
  for (const name of /** @type {const} */ (["bold", "dim", "italic", "underline", "strike"])) if (style[name]) element.classList.add(name);
}

/** @param {string} text */
function unfold(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return announce("this is no JSON");
  }
  const dialog = h("dialog", { class: "dialog wide", "aria-label": "A line as a tree", onclose: () => dialog.remove() }, tree(value, { open: 3 }),
    h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
  document.body.append(dialog);
  dialog.showModal();
}

customElements.define("tw-terminal", Terminal);
