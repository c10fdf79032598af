// Content that is no line of text: what a tool returned, and images, sounds and links in its output.

import { bytes, h, reason } from "./dom.js";
import { tree } from "./json.js";
import { call } from "./server.js";
import { anchor } from "./terminal.js";

/** @typedef {import("./server.js").Block} Block */

/**
 * A result of a tool, or an error.
 * @param {{ result?: any, error?: { code: number, message: string, data?: any } }} outcome
 * @returns {HTMLElement}
 */
export function outcomeView({ result, error }) {
  if (error) {
    return h("div", { class: "outcome bad" }, h("p", {}, error.message), h("p", { class: "muted" }, `error ${error.code}`), error.data === undefined ? null : tree(error.data));
  }
  const content = /** @type {Block[]} */ (Array.isArray(result?.content) ? result.content : []);
  const structured = result?.structuredContent;
  return h(
    "div",
    { class: result?.isError ? "outcome bad" : "outcome" },
    result?.isError ? h("p", {}, "The tool says that it failed.") : null,
    ...content.map(blockView),
    structured === undefined ? null : h("div", {}, h("h3", {}, "Structured"), tree(structured)),
    content.length === 0 && structured === undefined ? tree(result) : null,
    h("details", { class: "raw" }, h("summary", {}, "As JSON"), tree(result, { open: 1 })),
  );
}

/**
 * One block of content.
 * @param {Block} block
 * @returns {HTMLElement}
 */
export function blockView(block) {
  switch (block.type) {
    case "text":
      return textView(block.text ?? "");
    case "image":
      return h("figure", {}, h("img", { src: dataUrl(block, "image/png"), alt: "An image of the tool" }), caption(block));
    case "audio":
      return h("figure", {}, h("audio", { controls: true, src: dataUrl(block, "audio/wav"), "aria-label": "A sound of the tool" }), caption(block));
    case "resource_link":
      return h("p", { class: "link" }, link(block.uri ?? "", block.title ?? block.name ?? block.uri ?? ""), block.description ? h("span", { class: "muted" }, ` ${block.description}`) : null);
    case "resource": {
      const resource = block.resource ?? {};
      if (resource.text !== undefined) return h("div", {}, h("p", { class: "muted" }, resource.uri ?? ""), textView(resource.text));
      if (resource.blob && resource.mimeType?.startsWith("image/")) return blockView({ type: "image", data: resource.blob, mimeType: resource.mimeType });
      return h("p", { class: "link" }, link(resource.uri ?? "", resource.uri ?? "a resource"), h("span", { class: "muted" }, ` ${resource.mimeType ?? ""}`));
    }
    default:
      return tree(block);
  }
}

/** A text; one that is JSON can be unfolded. @param {string} text */
function textView(text) {
  if (/^\s*[[{]/.test(text)) {
    try {
      return tree(JSON.parse(text));
    } catch {
      // It only begins like that.
    }
  }
  return h("pre", { tabIndex: text.includes("\n") ? 0 : undefined }, text);
}

/** @param {Block} block */
function caption(block) {
  return h("figcaption", { class: "muted" }, `${block.mimeType ?? ""}, ${bytes(((block.data?.length ?? 0) * 3) / 4)}`);
}

/**
 * @param {Block} block
 * @param {string} kind
 */
function dataUrl(block, kind) {
  // Nothing but a type: the rest of the address is the data.
  const type = /^[a-z]+\/[a-z0-9.+-]+$/i.test(block.mimeType ?? "") ? block.mimeType : kind;
  return `data:${type};base64,${block.data ?? ""}`;
}

/**
 * A link, if a browser should follow it.
 * @param {string} uri
 * @param {string} text
 */
function link(uri, text) {
  if (/^https?:\/\//i.test(uri)) return anchor(uri, text);
  const place = h("span", {}, h("code", {}, text === uri ? uri : `${text} (${uri})`), " ");
  // What is too large for the output is kept by the server.
  const button = h("button", { type: "button", class: "quiet", onclick: async () => {
    try {
      const { contents } = await call("resources/read", { uri });
      button.replaceWith(...contents.map((/** @type {any} */ resource) => blockView({ type: "resource", resource })));
    } catch (error) {
      button.replaceWith(h("span", { class: "muted" }, reason(error)));
    }
  } }, "Load");
  if (uri) place.append(button);
  return place;
}
