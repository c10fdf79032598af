// Which tasks the list has when others come and go, without a browser.

import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.HTMLElement = class {};
globalThis.customElements = { define() {} };
globalThis.sessionStorage = { getItem: () => null };
const { Tasks } = await import("../../crates/taskwire/src/dashboard/tasks.js");

const { signal } = new AbortController();
const LIMIT = 100;

/** A server with as many tasks, numbered in the order of time. It looks at `looks` of them for a page, and gives those that fit. */
class Store {
  constructor(count, looks = LIMIT, fits = () => true) {
    this.count = count;
    this.reads = 0;
    this.status = "working";
    globalThis.fetch = async (path) => {
      this.reads += 1;
      const cursor = new URL(path, "http://localhost").searchParams.get("cursor");
      const below = cursor === null ? this.count : Number(cursor);
      const end = Math.max(0, below - looks);
      const tasks = [];
      for (let number = below - 1; number >= end; number -= 1) if (fits(number)) tasks.push({ id: id(number), status: this.status });
      return new Response(JSON.stringify({ tasks, ...(end > 0 && { nextCursor: id(end) }) }));
    };
  }
}

const id = (number) => String(number).padStart(6, "0");
const ids = (list) => [...list.tasks.keys()].sort();
const range = (from, to) => Array.from({ length: to - from }, (_, i) => id(from + i));

test("a list that nobody unfolds stays one page long while tasks come", async () => {
  const store = new Store(150);
  const list = new Tasks();
  for (let more = 0; more < 20; more += 1) {
    await list.refresh(signal);
    assert.deepEqual(ids(list), range(store.count - LIMIT, store.count));
    store.count += 30;
  }
});

test("further pages move with the first one, without a gap and without what is old", async () => {
  const store = new Store(1000);
  const list = new Tasks();
  await list.refresh(signal);
  await list.readMore(signal);
  await list.readMore(signal);
  assert.deepEqual(ids(list), range(700, 1000));
  store.count += 60;
  store.status = "completed";
  for (let turn = 0; turn < 4; turn += 1) await list.refresh(signal);
  assert.deepEqual(ids(list), range(760, 1060));
  assert.deepEqual(new Set([...list.tasks.values()].map(({ status }) => status)), new Set(["completed"]), "all of them are read again");
});

test("pages of which nothing is left are no more", async () => {
  const store = new Store(250);
  const list = new Tasks();
  await list.refresh(signal);
  await list.readMore(signal);
  await list.readMore(signal);
  assert.deepEqual([ids(list).length, list.next], [250, undefined]);
  store.count = 40;
  await list.refresh(signal);
  assert.deepEqual([ids(list), list.cursors, list.next], [range(0, 40), [], undefined]);
});

test("a page without a task that fits is followed by the next, but not for ever", async () => {
  const few = new Store(450, LIMIT, (number) => number < 200 && number > 195);
  const list = new Tasks();
  await list.refresh(signal);
  assert.deepEqual([ids(list), few.reads], [range(196, 200), 3]);
  const none = new Store(100_000, LIMIT, () => false);
  await new Tasks().refresh(signal);
  assert.equal(none.reads, 5);
});
