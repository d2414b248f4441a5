// The page's side of worker.js: sends it questions and models, and takes its answers.
import { Value } from "./tape.js";

export class Computer {
  constructor() {
    Object.assign(this, { worker: new Worker(new URL("worker.js", import.meta.url), { type: "module" }), waiting: new Map(), number: 0, sent: new Set() });
    this.worker.onmessage = ({ data: { number, reply, error } }) => {
      const { resolve, reject } = this.waiting.get(number);
      this.waiting.delete(number);
      if (error) reject(new Error(error));
      else resolve(revived(reply));
    };
    this.worker.onerror = ({ message }) => this.waiting.forEach(({ reject }) => reject(new Error(message ?? "worker.js")));
  }

  /** What a function of computation.js gives for a model; null where the same has been asked anew before it was done. */
  ask(call, model, request) {
    const number = ++this.number, { step, about, weights } = model;
    this.worker.postMessage({ number, call, step, request, ...(this.sent.has(step) ? {} : { about, weights }) });
    this.sent.add(step);
    return new Promise((resolve, reject) => this.waiting.set(number, { resolve, reject }));
  }
}

/** A message has lost the class of its values. */
function revived(thing, seen = new Set()) {
  if (thing && typeof thing === "object" && !ArrayBuffer.isView(thing) && !seen.has(thing)) {
    seen.add(thing);
    if ("rows" in thing && "data" in thing) Object.setPrototypeOf(thing, Value.prototype);
    for (const inner of Object.values(thing)) revived(inner, seen);
  }
  return thing;
}
