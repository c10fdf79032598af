// A form made from a JSON Schema: a field for each property where that can be, and JSON where it cannot. What is left empty is left out.

import { h } from "./dom.js";

/** @typedef {{ element: HTMLElement, value: () => unknown, set: (value: unknown) => void }} Field */

/** How deep objects are fields of their own; below that they are JSON. */
const DEPTH_MAX = 3;

let lastId = 0;

/** A form for an object. */
export class SchemaForm {
  /**
   * @param {any} schema
   * @param {any} [value] What it has at first.
   */
  constructor(schema, value) {
    this.schema = schema ?? {};
    this.fields = objectField(this.schema, 0);
    this.raw = h("textarea", { class: "code", rows: 8, spellcheck: false, "aria-label": "Arguments as JSON", oninput: () => this.raw.setCustomValidity("") });
    this.isRaw = !isPlainObject(this.schema);
    this.body = h("div", { class: "fields" });
    this.toggle = h("button", { type: "button", class: "quiet", onclick: () => this.flip() });
    this.element = h("div", { class: "schema-form" }, this.body, this.isRaw ? null : this.toggle);
    if (value !== undefined) this.set(value);
    else if (this.isRaw) this.raw.value = "{}";
    this.show();
  }

  show() {
    this.body.replaceChildren(this.isRaw ? this.raw : this.fields.element);
    this.toggle.textContent = this.isRaw ? "Edit as a form" : "Edit as JSON";
  }

  flip() {
    if (this.isRaw) {
      const value = this.read();
      if (value === undefined) return void this.raw.reportValidity();
      this.isRaw = false;
      this.fields.set(value);
    } else {
      this.raw.value = JSON.stringify(this.fields.value() ?? {}, null, 2);
      this.isRaw = true;
    }
    this.show();
  }

  /** @param {any} value */
  set(value) {
    this.raw.value = JSON.stringify(value, null, 2);
    this.fields.set(value);
  }

  /** The object in the JSON text; undefined if it is none. */
  read() {
    try {
      const value = JSON.parse(this.raw.value || "{}");
      if (value === null || typeof value !== "object" || Array.isArray(value)) throw new Error("this must be an object: {…}");
      this.raw.setCustomValidity("");
      return value;
    } catch (error) {
      this.raw.setCustomValidity(error instanceof Error ? error.message : "this is no JSON");
      return undefined;
    }
  }

  /** What was filled in. The form around it checks the fields before. */
  value() {
    return this.isRaw ? this.read() : (this.fields.value() ?? {});
  }
}

/** @param {any} schema */
function isPlainObject(schema) {
  return !("anyOf" in schema || "oneOf" in schema || "allOf" in schema || "$ref" in schema);
}

/**
 * @param {any} schema
 * @param {number} depth
 * @returns {Field}
 */
function objectField(schema, depth) {
  const required = new Set(schema.required ?? []);
  /** @type {Map<string, Field>} */
  const fields = new Map();
  const element = h("div", { class: "fields" });
  /** Members without a field of their own. @type {Record<string, unknown>} */
  let others = {};
  for (const [name, property] of Object.entries(schema.properties ?? {})) {
    const field = fieldOf(name, property === true ? {} : property, required.has(name), depth);
    fields.set(name, field);
    element.append(field.element);
  }
  if (fields.size === 0 && depth === 0) element.append(h("p", { class: "muted" }, "Nothing to fill in."));
  return {
    element,
    value: () => {
      /** @type {Record<string, unknown>} */
      const value = { ...others };
      for (const [name, field] of fields) {
        const inner = field.value();
        if (inner !== undefined) value[name] = inner;
      }
      return depth > 0 && Object.keys(value).length === 0 ? undefined : value;
    },
    set: (value) => {
      const object = /** @type {Record<string, unknown>} */ (value && typeof value === "object" ? value : {});
      others = Object.fromEntries(Object.entries(object).filter(([name]) => !fields.has(name)));
      for (const [name, field] of fields) field.set(object[name]);
    },
  };
}

/**
 * @param {string} name
 * @param {any} schema
 * @param {boolean} isRequired
 * @param {number} depth
 * @returns {Field}
 */
function fieldOf(name, schema, isRequired, depth) {
  const types = [schema.type].flat().filter((type) => type !== "null" && type !== undefined);
  const type = types.length === 1 ? types[0] : undefined;
  const title = schema.title ?? name;
  if (type === "object" && schema.properties && isPlainObject(schema) && depth < DEPTH_MAX) {
    const inner = objectField(schema, depth + 1);
    return { ...inner, element: h("fieldset", {}, h("legend", {}, title), hint(schema), inner.element) };
  }
  const choices = choicesOf(schema);
  const items = type === "array" && schema.items ? choicesOf(schema.items) : undefined;
  if (items) return checkboxes(title, schema, items);
  const id = `field-${++lastId}`;
  const described = schema.description ? `${id}-hint` : undefined;
  const common = { id, name, required: isRequired, "aria-describedby": described };
  /** @type {Field} */
  let field;
  if (choices) field = selectField(common, schema, choices, isRequired);
  else if (type === "boolean") field = isRequired || schema.default !== undefined ? checkbox(common, schema) : yesNo(common, schema);
  else if (type === "integer" || type === "number") field = numberField(common, schema, type);
  else if (type === "string") field = textField(common, schema);
  else field = jsonField(common, schema);
  const label = h("label", { htmlFor: id }, title, isRequired ? h("span", { class: "required", title: "required" }, " *") : null);
  const isCheck = field.element instanceof HTMLInputElement && field.element.type === "checkbox";
  return {
    ...field,
    element: h("div", { class: isCheck ? "field check" : "field" }, ...(isCheck ? [field.element, label] : [label, field.element]), hint(schema, described)),
  };
}

/**
 * @param {any} schema
 * @param {string} [id]
 */
function hint(schema, id) {
  return schema.description ? h("p", { class: "hint", id }, schema.description) : null;
}

/**
 * The values that a schema names, with their titles.
 * @param {any} schema
 * @returns {{ value: unknown, title: string }[] | undefined}
 */
function choicesOf(schema) {
  if (Array.isArray(schema.enum)) {
    return schema.enum.map((/** @type {unknown} */ value, /** @type {number} */ i) => ({ value, title: schema.enumNames?.[i] ?? String(value) }));
  }
  const named = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(named) && named.length && named.every((one) => one && typeof one === "object" && "const" in one)) {
    return named.map((one) => ({ value: one.const, title: one.title ?? String(one.const) }));
  }
  return undefined;
}

/**
 * @param {any} common
 * @param {any} schema
 * @param {{ value: unknown, title: string }[]} choices
 * @param {boolean} isRequired
 * @returns {Field}
 */
function selectField(common, schema, choices, isRequired) {
  const element = h("select", common);
  if (!isRequired || schema.default === undefined) element.append(h("option", { value: "" }, isRequired ? "Choose…" : "—"));
  choices.forEach((choice, i) => element.append(h("option", { value: String(i + 1) }, choice.title)));
  const set = (/** @type {unknown} */ value) => {
    const at = choices.findIndex((choice) => JSON.stringify(choice.value) === JSON.stringify(value));
    element.value = at < 0 ? "" : String(at + 1);
  };
  set(schema.default);
  return { element, value: () => (element.value ? choices[Number(element.value) - 1].value : undefined), set };
}

/**
 * @param {any} common
 * @param {any} schema
 * @returns {Field}
 */
function checkbox(common, schema) {
  // Not to be ticked is an answer too.
  const element = h("input", { ...common, type: "checkbox", required: false, checked: schema.default === true });
  return { element, value: () => element.checked, set: (value) => { element.checked = value === undefined ? schema.default === true : value === true; } };
}

/**
 * @param {any} common
 * @param {any} schema
 */
function yesNo(common, schema) {
  return selectField(common, schema, [{ value: true, title: "yes" }, { value: false, title: "no" }], false);
}

/**
 * @param {any} common
 * @param {any} schema
 * @param {string} type
 * @returns {Field}
 */
function numberField(common, schema, type) {
  const element = h("input", {
    ...common, type: "number", inputMode: type === "integer" ? "numeric" : "decimal", step: schema.multipleOf ?? (type === "integer" ? 1 : "any"),
    min: schema.minimum, max: schema.maximum, value: schema.default === undefined ? "" : String(schema.default),
  });
  return {
    element,
    value: () => (element.value === "" ? undefined : Number(element.value)),
    set: (value) => { element.value = typeof value === "number" ? String(value) : ""; },
  };
}

const INPUTS = /** @type {Record<string, string>} */ ({ email: "email", uri: "url", date: "date", "date-time": "datetime-local", password: "password" });

/**
 * @param {any} common
 * @param {any} schema
 * @returns {Field}
 */
function textField(common, schema) {
  const kind = INPUTS[schema.format];
  const bounds = { minLength: schema.minLength, maxLength: schema.maxLength };
  const isLong = !kind && !schema.pattern && (schema.maxLength ?? 0) > 200;
  const element = isLong
    ? h("textarea", { ...common, ...bounds, rows: 4 })
    : h("input", { ...common, ...bounds, type: kind ?? "text", pattern: !kind && schema.pattern ? anywhere(schema.pattern) : undefined, autocomplete: "off" });
  const isTime = schema.format === "date-time";
  if (isTime) element.setAttribute("step", "1");
  // A time that nobody changes stays as it was written, with its zone and its fractions.
  let given = { value: "", shown: "" };
  const set = (/** @type {unknown} */ value) => {
    const text = typeof value === "string" ? value : "";
    element.value = isTime ? localTime(text) : text;
    given = { value: text, shown: element.value };
  };
  set(schema.default);
  return {
    element,
    value: () => {
      const text = element.value;
      if (text === "" && (isTime || !common.required)) return undefined;
      if (!isTime) return text;
      return text === given.shown ? given.value : new Date(text).toISOString();
    },
    set,
  };
}

/**
 * A pattern of a schema for a field: a schema's may fit anywhere in the text, a field's fits all of it.
 * @param {string} pattern
 */
export function anywhere(pattern) {
  return `[\\s\\S]*(?:${pattern})[\\s\\S]*`;
}

/**
 * A time as a field shows it: that of this machine, to the second; empty if it is none.
 * @param {string} text
 */
export function localTime(text) {
  const date = new Date(text);
  if (Number.isNaN(date.getTime())) return "";
  return new Date(date.getTime() - date.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}

/**
 * Several of these.
 * @param {string} title
 * @param {any} schema
 * @param {{ value: unknown, title: string }[]} choices
 * @returns {Field}
 */
function checkboxes(title, schema, choices) {
  const boxes = choices.map((choice) => h("input", { type: "checkbox", checked: (schema.default ?? []).includes(choice.value) }));
  const element = h("fieldset", {}, h("legend", {}, title), hint(schema), ...choices.map((choice, i) => h("label", { class: "choice" }, boxes[i], ` ${choice.title}`)));
  return {
    element,
    value: () => {
      const chosen = choices.filter((_, i) => boxes[i].checked).map((choice) => choice.value);
      return chosen.length || schema.minItems === 0 ? chosen : undefined;
    },
    set: (value) => boxes.forEach((box, i) => { box.checked = Array.isArray(value) && value.includes(choices[i].value); }),
  };
}

/**
 * @param {any} common
 * @param {any} schema
 * @returns {Field}
 */
function jsonField(common, schema) {
  const element = h("textarea", { ...common, class: "code", rows: 3, spellcheck: false, placeholder: schema.type === "array" ? "[…]" : "JSON" });
  const parse = () => {
    try {
      const value = element.value.trim() === "" ? undefined : JSON.parse(element.value);
      element.setCustomValidity("");
      return value;
    } catch (error) {
      element.setCustomValidity(`this is no JSON: ${error instanceof Error ? error.message : error}`);
      return undefined;
    }
  };
  element.addEventListener("input", parse);
  if (schema.default !== undefined) element.value = JSON.stringify(schema.default, null, 2);
  return { element, value: parse, set: (value) => { element.value = value === undefined ? "" : JSON.stringify(value, null, 2); } };
}
