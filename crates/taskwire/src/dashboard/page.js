// What all pages have: they begin when they are shown, and whatever they have begun ends when they are left.

/** Who looks, as the server says. @type {{ caller: import("./server.js").Caller | undefined }} */
export const session = { caller: undefined };

export class Page extends HTMLElement {
  /** @type {AbortController | undefined} */
  controller = undefined;

  connectedCallback() {
    this.controller = new AbortController();
    this.start(this.controller.signal);
  }

  disconnectedCallback() {
    this.controller?.abort();
  }

  /**
   * @param {AbortSignal} _signal Says when the page is left.
   * @returns {void}
   */
  start(_signal) {}
}

/** What the address says after `#`: the parts of a path, and parameters. */
export function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

/** A part of an address; one that is no encoding stays as it is. @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * Changes the parameters in the address without leaving the page.
 * @param {URLSearchParams} query
 */
export function setQuery(query) {
  const text = query.toString();
  const path = location.hash.split("?")[0] || "#/tasks";
  history.replaceState(null, "", text ? `${path}?${text}` : path);
}

/** @param {string} id */
export function taskAddress(id) {
  return `#/task/${encodeURIComponent(id)}`;
}
