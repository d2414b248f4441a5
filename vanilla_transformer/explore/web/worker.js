// Computes beside the page, which stays free to answer its reader. A new question ends work on an old one of its kind.
import * as computation from "./computation.js";
import { Model } from "./model.js";

/** Milliseconds after which a search lets new questions in. */
const PATIENCE = 40;
/** The model, under null, and what it was after a step of its training. */
const models = new Map();
/** The newest question of each kind. */
const latest = {};

onmessage = async ({ data: { number, step, call, request, about, weights } }) => {
  if (weights) models.set(step, new Model(about, weights, step));
  latest[call] = number;
  try {
    postMessage({ number, reply: await compute(number, call, models.get(step), request) });
  } catch (error) {
    postMessage({ number, error: error.message });
  }
};

const others = () => new Promise((resume) => setTimeout(resume));

/** What `call` gives, or null where that has been asked anew. */
async function compute(number, call, model, request) {
  await others(); // Who types fast has asked again.
  if (number !== latest[call]) return null;
  const work = computation[call](model, request);
  if (!work.next) return work;
  for (let since = performance.now(); number === latest[call];) {
    const { done, value } = work.next();
    if (done) return value;
    if (performance.now() - since < PATIENCE) continue;
    await others();
    since = performance.now();
  }
  return null;
}
