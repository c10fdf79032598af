// A question of a tool as a form, with the answers that the protocol knows.

import { h, reason, write } from "./dom.js";
import { SchemaForm } from "./form.js";

/** @typedef {import("./server.js").Question} Question */

/**
 * @param {string} text
 * @param {Question} question
 * @param {(answer: any) => Promise<void>} send
 * @returns {HTMLFormElement}
 */
export function answerForm(text, question, send) {
  const isForm = question.method === "elicitation/create";
  const url = isForm && question.params?.mode === "url" ? String(question.params.url ?? "") : "";
  // What is no form is answered with an object of the protocol.
  const fields = url ? undefined : new SchemaForm(isForm ? question.params?.requestedSchema : { anyOf: [] });
  const error = h("p", { class: "notice bad", role: "alert", hidden: true });
  const submit = async (/** @type {any} */ answer) => {
    error.hidden = true;
    form.inert = true;
    try {
      await send(answer);
    } catch (refused) {
      form.inert = false;
      error.hidden = false;
      write(error, reason(refused));
    }
  };
  const form = h(
    "form",
    {
      class: "question",
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        const content = fields?.value();
        if (!form.reportValidity()) return;
        submit(isForm ? (url ? { action: "accept" } : { action: "accept", content }) : content);
      },
    },
    h("h2", {}, text),
    url ? h("p", {}, h("a", { href: /^https?:/i.test(url) ? url : undefined, target: "_blank", rel: "noopener noreferrer" }, url)) : null,
    fields?.element,
    error,
    h("div", { class: "actions" },
      h("button", { type: "submit", class: "primary" }, url ? "I have done that" : "Answer"),
      isForm ? h("button", { type: "button", onclick: () => submit({ action: "decline" }) }, "Decline") : null),
  );
  return form;
}
