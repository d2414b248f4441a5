// What the page asks of a model: answers, with all that led to them. It runs in worker.js, beside the page.
import { decode, encode, recurrentSteps } from "./recurrent.js";
import { beamSearch, limitOf } from "./search.js";
import { ops } from "./tape.js";
import { classify, project, run, undisturbed } from "./transformer.js";

const writes = (model) => model.search !== null;

/** The answer to a source, token by token, or the labels of a model that does not write. It pauses after each token. */
export function* answer(model, { source, whatIf, settings, forced = [], step = Infinity }) {
  if (!writes(model)) return labels(model, source, whatIf);
  const encoder = encoded(model, source, whatIf), limit = Math.max(1, limitOf(model, source.length) - forced.length);
  const all = { ...settings, limit, prompt: [...opening(model, source), ...forced], temperature: whatIf.temperature };
  const ended = forced.some((token) => model.tokens.ends.includes(token));
  const tree = ended ? { steps: [], best: [] } : yield* beamSearch(model, decoding(model, whatIf, encoder), all);
  const tokens = [...forced, ...(tree.best[0]?.tokens ?? [])], at = Math.max(0, step === null ? Math.floor(tokens.length / 2) : Math.min(step, tokens.length - 1));
  return { whatIf, source, encoder, tree, settings: all, forced, tokens, step: at, decoder: read(model, source, encoder, tokens.slice(0, at), whatIf) };
}

function labels(model, source, whatIf) {
  const only = run(model, "only", source, whatIf), head = model.family === "masked-language-model" ? project : classify;
  return { whatIf, source, only, ...head(model, only.output, whatIf) };
}

/** Both stacks over what has been read before a token is written, and what is likely there; or the labels of a text. */
export function trace(model, { source, whatIf, tokens }) {
  if (!writes(model)) return labels(model, source, whatIf);
  const encoder = encoded(model, source, whatIf);
  return { encoder, decoder: read(model, source, encoder, tokens, whatIf) };
}

/** How probable each token of an answer is after those before it, or each label; and which other one is likeliest there. It pauses after each. */
export function* chances(model, { source, whatIf, tokens }) {
  const after = (count) => (writes(model) ? read(model, source, encoded(model, source, whatIf), tokens.slice(0, count), whatIf) : labels(model, source, whatIf)).probabilities;
  const last = tokens.length - 1, together = whatIf.mask && after(last), probabilities = [];
  for (const [at, token] of tokens.entries()) {
    // Without the mask a token would be seen before it is written: each is asked for by itself, as a search does.
    const found = together || after(at), row = found.row(Math.max(0, found.rows - 1 - (together ? last - at : 0)));
    const rival = row.reduce((best, share, id) => (id !== token && (best < 0 || share > row[best]) ? id : best), -1);
    probabilities.push({ p: row[token], rival, rivalP: row[rival] });
    yield;
  }
  return probabilities;
}

/** The probability of an answer, now and with each head and each layer switched off by itself. */
export function* effects(model, { source, whatIf, tokens, switches }) {
  const all = (one) => one.reduce((product, { p }) => product * p, 1), without = {};
  for (const { kind, name } of switches) {
    const changed = { ...whatIf, [kind]: new Set([...whatIf[kind], name]) };
    without[name] = all(yield* chances(model, { source, whatIf: changed, tokens }));
  }
  return { now: all(yield* chances(model, { source, whatIf, tokens })), without };
}

let kept = {};
/** What a model with an encoder has read of a source, kept until another is asked for: most questions are about the same. */
function encoded(model, source, whatIf) {
  if (!["recurrent", "encoder-decoder"].includes(model.family)) return null;
  const { heads, layers, positions, scale } = whatIf, off = [...heads, ...layers].filter((name) => name.startsWith("encoder"));
  const key = JSON.stringify([source, off, positions, scale]);
  if (kept.model !== model || kept.key !== key) kept = { model, key, encoder: model.family === "recurrent" ? encode(model, source) : run(model, "encoder", source, whatIf) };
  return kept.encoder;
}

/**
 * How a model goes on: `start(ids)` is the state after these, `step(states, tokens)` gives the next logits and states.
 * Hypotheses go on together, over what any of them has read before; `rows` of a state are those that are its own.
 */
function decoding(model, whatIf, encoder) {
  if (model.family === "recurrent") return recurrentSteps(model, encoder);
  const stack = encoder ? "decoder" : "only", settings = { memory: encoder?.output ?? null, causal: true };
  let last = null, count = 0;
  const goOn = (ids, options) => {
    count += ids.length;
    last = run(model, stack, ids, whatIf, { ...settings, past: last?.layers, ...options });
    return last.output;
  };
  // Without the mask a token changes what was computed before it: all is computed anew.
  const anew = ({ ids }) => run(model, stack, ids, whatIf, settings).output.row(ids.length - 1);
  return {
    start(ids) {
      if (ids.length && whatIf.mask) goOn(ids);
      return { ids, rows: ids.map((_, row) => row) };
    },
    step(states, tokens) {
      const next = states.map(({ ids, rows }, at) => ({ ids: [...ids, tokens[at]], rows: [...rows, count + at] }));
      const own = next.map(({ rows }) => new Set(rows)), places = next.map(({ rows }) => rows.length - 1);
      const output = whatIf.mask ? goOn(tokens, { places, sees: (query, row) => own[query].has(row) }) : ops.rows(next.map(anew), { op: "given" });
      const { logits } = project(model, output, whatIf);
      return { states: next, logits: next.map((_, row) => logits.row(row)) };
    },
  };
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
  const { decoder: found = null, only } = trace(model, { source, whatIf, tokens });
  const last = (found ?? only).layers.at(-1);
  return model.family === "recurrent" ? found.weights ?? found.output : (last.cross ?? last.self).heads[head].weights;
}

/** The largest difference of the logits from what Python says of the first example. */
export function difference(model) {
  const { source, target, likeliest, logits } = model.check, whatIf = undisturbed();
  const traced = trace(model, { source, whatIf, tokens: target?.slice(1, -1) ?? [] }), { logits: found } = traced.decoder ?? traced;
  return Math.max(...likeliest.flatMap((ids, row) => ids.map((id, at) => Math.abs(found.at(row, id) - logits[row][at]))));
}
