// What the page asks of a model: answers, with all that led to them. It runs in worker.js, beside the page.
import { decode } from "./recurrent.js";
import { beamSearch, limitOf } from "./search.js";
import { decoding, encoded } from "./stepping.js";
import { classify, project, run, undisturbed } from "./transformer.js";

const writes = (model) => model.search !== null;

/** The answer to a source, token by token, or the labels of a model that does not write. It pauses after each token. */
export function* answer(model, { source, whatIf, settings, forced = [], step = Infinity }) {
  if (!writes(model)) return labels(model, source, whatIf);
  const encoder = encoded(model, source, whatIf), limit = Math.max(1, limitOf(model, source.length) - forced.length);
  const all = { ...settings, limit, prompt: [...opening(model, source), ...forced], temperature: whatIf.temperature };
  const ended = forced.some((token) => model.tokens.ends.includes(token));
  const tree = ended ? { steps: [], best: [] } : yield* beamSearch(model, decoding(model, source, whatIf, encoder), all);
  const tokens = [...forced, ...(tree.best[0]?.tokens ?? [])], at = Math.max(0, Math.min(step, tokens.length - 1));
  return { whatIf, source, encoder, tree, settings: all, forced, tokens, step: at, decoder: read(model, source, encoder, tokens.slice(0, at), whatIf) };
}

function labels(model, source, whatIf) {
  const only = run(model, "only", source, whatIf), head = model.family === "masked-language-model" ? project : classify;
  return { whatIf, source, only, ...head(model, only.output, whatIf) };
}

/** The decoder over what it has read before a token is written, and what it holds likely there. */
export function decoder(model, { source, whatIf, tokens }) {
  return read(model, source, encoded(model, source, whatIf), tokens, whatIf);
}

function read(model, source, encoder, tokens, whatIf) {
  const ids = [...opening(model, source), ...tokens];
  const found = model.family === "recurrent" ? decode(model, encoder, ids)
    : run(model, encoder ? "decoder" : "only", ids, whatIf, { memory: encoder?.output ?? null, causal: true });
  return { ...found, ...project(model, found.output, whatIf) };
}

/** What a decoder begins with: its own first token, or the text that it goes on with. */
const opening = (model, source) => (model.family === "language-model" ? source : [model.tokens.start]);

/** The attention weights of a head of the last layer, undisturbed: to the source where there is one. */
export function attention(model, { source, tokens, head }) {
  const whatIf = undisturbed();
  const found = writes(model) ? decoder(model, { source, whatIf, tokens }) : labels(model, source, whatIf).only;
  const last = found.layers.at(-1);
  return model.family === "recurrent" ? found.weights ?? found.output : (last.cross ?? last.self).heads[head].weights;
}

/** The largest difference of the logits from what Python says of the first example. */
export function difference(model) {
  const { source, target, likeliest, logits } = model.check, whatIf = undisturbed();
  const { logits: found } = writes(model) ? decoder(model, { source, whatIf, tokens: target?.slice(1, -1) ?? [] }) : labels(model, source, whatIf);
  return Math.max(...likeliest.flatMap((ids, row) => ids.map((id, at) => Math.abs(found.at(row, id) - logits[row][at]))));
}
