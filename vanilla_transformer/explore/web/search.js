// Section 6.1: beam search with the length penalty, as vanilla_transformer/engine/search.py, kept as the tree that it grows.
import { logSoftmax } from "./arithmetic.js";

/** Section 6.1, after Wu et al. 2016, Eq. 14: ((5 + |Y|) / 6)^α, or the library's |Y|^α. */
export function penalty(length, { alpha, google }) {
  return (google ? (5 + length) / 6 : length) ** alpha;
}

/** New tokens that a search may write after a source of so many tokens, which a language model goes on with. */
export function limitOf(model, sourceLength) {
  const { beyond, most } = model.search, { positional_encoding, max_position_embeddings } = model.config;
  const read = model.family === "language-model" ? sourceLength - 1 : 0;
  const room = positional_encoding === "learned" ? max_position_embeddings - read : Infinity;
  return Math.max(1, Math.min(most ?? sourceLength + beyond, room));
}

/**
 * Searches for the likeliest target, and pauses after each token.
 *
 * settings: width, alpha, google, early ("never", true or false, as the library's early_stopping), limit, temperature,
 * the prompt, which the decoder begins with, and `wanted`, the hypotheses that must be certain (1). Returns `steps`,
 * for each the candidates that were ranked (running on, ended or dropped) and the bound that decides whether to go on,
 * and `best`, the hypotheses that ended, best first.
 */
export function* beamSearch(model, decoding, settings) {
  const { width, limit, temperature = 1, prompt } = settings, ends = new Set(model.tokens.ends);
  let running = [{ tokens: [], score: 0, state: decoding.start(prompt.slice(0, -1)), node: null, last: prompt.at(-1) }];
  let finished = [];
  const steps = [];
  for (let length = 1; running.length; length++) {
    const { states, logits } = decoding.step(running.map((one) => one.state), running.map((one) => one.last));
    const scored = logits.map((row) => logSoftmax(row, temperature));
    const count = width === 1 ? 1 : Math.max(2, 1 + ends.size) * width;
    const candidates = bestContinuations(scored, running, count).map(({ score, parent, token, logp }, rank) => ({
      id: `${length}.${rank}`, length, rank, token, logp, score, parent: running[parent].node, hypothesis: parent,
      tokens: [...running[parent].tokens, token],
      ended: ends.has(token) || length >= limit,
      divisor: width === 1 ? 1 : penalty(length, settings), fate: "dropped",
    }));
    // Only the best W candidates of a step may end, and the best W of those that have not ended run on.
    for (const one of candidates.slice(0, width)) {
      if (one.ended) Object.assign(one, { fate: "ended", final: one.score / one.divisor });
    }
    finished = [...finished, ...candidates.filter((one) => one.fate === "ended")]
      .sort((a, b) => b.final - a.final).slice(0, width);
    const next = candidates.filter((one) => !one.ended).slice(0, width);
    for (const one of next) one.fate = "running";
    running = next.map((one) => ({ tokens: one.tokens, score: one.score, state: states[one.hypothesis], node: one, last: one.token }));
    const step = { length, candidates, best: finished[0] ?? null, ...decide(running, finished, length, settings) };
    steps.push(step);
    yield step;
    if (!step.goesOn) break;
  }
  return { steps, best: finished };
}

/** Whether what runs may still change what is returned; see `may_improve` in search.py. */
function decide(running, finished, length, { width, wanted = 1, alpha, google, early, limit }) {
  if (!running.length) return { bound: null, goesOn: false };
  if (width === 1) return { bound: null, goesOn: !finished.length };
  const certain = early === "never", counted = certain ? wanted : width, enough = finished.length >= counted;
  if (early === true) return { bound: null, goesOn: !enough };
  const bound = running[0].score / penalty(certain && alpha > 0 ? limit : length, { alpha, google });
  return { bound, goesOn: !enough || bound > finished[counted - 1].final };
}

/** The best tokens after all hypotheses together. */
function bestContinuations(scored, running, count) {
  const best = [];
  scored.forEach((row, parent) => {
    for (let token = 0; token < row.length; token++) {
      const score = row[token] + running[parent].score;
      if (best.length === count && !(score > best[count - 1].score)) continue;
      let at = best.length;
      while (at > 0 && score > best[at - 1].score) at--;
      best.splice(at, 0, { score, parent, token, logp: row[token] });
      if (best.length > count) best.pop();
    }
  });
  return best;
}
