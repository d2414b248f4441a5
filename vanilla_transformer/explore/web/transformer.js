// The Transformer in the paper's order: the same layers, under the same names, as vanilla_transformer/model/modeling_vanilla_transformer.py.
import { ops } from "./tape.js";

/** What is asked of the model beyond what it is. Heads and layers by their names, counted from 1: encoder.1.self_attention.2. */
export const undisturbed = () => ({
  heads: new Set(), layers: new Set(), positions: "as-is", scale: true, mask: true, temperature: 1,
});

// In each eight positions; so a permutation of any length.
const SHUFFLED = [5, 2, 7, 0, 3, 6, 1, 4];

export function positionsOf(length, whatIf, start = 0) {
  const positions = Array.from({ length }, (_, place) => start + place);
  return whatIf.positions === "shuffled" ? positions.map((p) => p - (p % 8) + SHUFFLED[p % 8]) : positions;
}

const stackOf = { encoder: "model.encoder", decoder: "model.decoder", only: "model" };

/** Sections 3.4 and 3.5: embeddings times √d_model, plus positions. */
export function embed(model, ids, stack, whatIf, start = 0) {
  const { d_model, positional_encoding } = model.config, prefix = stackOf[stack];
  const name = [`${prefix}.embed_tokens.weight`, "model.shared.weight"].find((one) => model.has(one));
  const embedding = ops.embedding(ids, model.weight(name));
  const scaled = ops.times(embedding, Math.sqrt(d_model));
  const places = positionsOf(ids.length, whatIf, start);
  let positions;
  if (whatIf.positions === "none") positions = ops.none(ids.length, d_model);
  else if (positional_encoding === "learned") {
    const table = model.weight(`${prefix}.positional_encoding.learned.weight`);
    positions = ops.embedding(places.map((place) => Math.min(place, table.shape[0] - 1)), table);
  } else positions = ops.sinusoids(places, d_model);
  return { embedding, scaled, positions, sum: ops.sum(scaled, positions) };
}

/**
 * Section 3.2: multi-head attention from x to a memory, or to x itself. `sees(query, key)` says what is not masked;
 * `past` are the heads of the same attention when it was computed for earlier tokens, whose keys and values are kept.
 */
function attention(model, name, x, memory, whatIf, place, { sees = null, past = null } = {}) {
  const { num_heads, d_k, d_v } = model.config;
  const project = (kind, from, head, width) => ops.linear(
    from, model.weight(`${name}.${kind}_proj.weight`), biasOf(model, `${name}.${kind}_proj`), head * width, (head + 1) * width,
  );
  const heads = Array.from({ length: num_heads }, (_, head) => {
    const made = (kind, width) => (past && memory ? past[head][kind] : ops.below(past?.[head][kind], project(kind, memory ?? x, head, width)));
    const q = project("q", x, head, d_k), k = made("k", d_k), v = made("v", d_v);
    const scores = ops.scores(q, k, whatIf.scale ? d_k ** -0.5 : 1);
    const masked = sees ? ops.mask(scores, sees) : null;
    const weights = ops.softmax(masked ?? scores);
    const mixed = ops.mix(weights, v), off = whatIf.heads.has(`${place}.${head + 1}`);
    return { q, k, v, scores, masked, weights, output: off ? ops.off(mixed) : mixed, off };
  });
  const concat = ops.concat(heads.map((head) => head.output));
  return { name, place, heads, concat, output: out(model, name, concat) };
}

const biasOf = (model, name) => (model.has(`${name}.bias`) ? model.weight(`${name}.bias`) : null);
const out = (model, name, x) => ops.linear(x, model.weight(`${name}.out_proj.weight`), biasOf(model, `${name}.out_proj`));

/** Section 3.1: LayerNorm(x + Sublayer(x)). */
function addAndNorm(model, name, x, sublayer) {
  const residual = ops.sum(x, sublayer);
  const norm = ops.norm(residual, model.weight(`${name}.weight`), model.weight(`${name}.bias`), model.config.layer_norm_eps);
  return { before: x, residual, norm };
}

/** Section 3.3, Eq. 2: max(0, xW₁ + b₁)W₂ + b₂. */
function feedForward(model, name, x) {
  const hidden = ops.linear(x, model.weight(`${name}.w_1.weight`), model.weight(`${name}.w_1.bias`));
  const active = ops.map(hidden, model.config.activation_function);
  return { hidden, active, output: ops.linear(active, model.weight(`${name}.w_2.weight`), model.weight(`${name}.w_2.bias`)) };
}

/** Section 3.1: one layer of either stack; with a memory there is cross-attention to it. */
function layer(model, stack, number, x, memory, causal, whatIf, past) {
  const place = `${stack}.${number + 1}`, name = `${stackOf[stack]}.layers.${number}`;
  if (whatIf.layers.has(place)) return { place, skipped: true, input: x, output: x };
  const sees = causal && whatIf.mask && !past ? (query, key) => key <= query : null; // With a past there is only one query, the last.
  const self = attention(model, `${name}.self_attention`, x, null, whatIf, `${place}.self_attention`, { sees, past: past?.self.heads });
  const afterSelf = addAndNorm(model, `${name}.self_attention_norm`, x, self.output);
  let cross = null, afterCross = null;
  if (memory) {
    cross = attention(model, `${name}.cross_attention`, afterSelf.norm, memory, whatIf, `${place}.cross_attention`, { past: past?.cross.heads });
    afterCross = addAndNorm(model, `${name}.cross_attention_norm`, afterSelf.norm, cross.output);
  }
  const middle = (afterCross ?? afterSelf).norm, feed = feedForward(model, `${name}.feed_forward`, middle);
  const afterFeed = addAndNorm(model, `${name}.feed_forward_norm`, middle, feed.output);
  return { place, input: x, self, afterSelf, cross, afterCross, feed, afterFeed, output: afterFeed.norm };
}

/**
 * A stack of layers over tokens: `encoder`, `decoder`, or the `only` one of a model of one stack. With the layers of
 * the tokens before, `past`, it goes on with one token.
 */
export function run(model, stack, ids, whatIf, { memory = null, causal = stack === "decoder", past = null, start = 0 } = {}) {
  const embedded = embed(model, ids, stack, whatIf, start), { config } = model;
  const count = (stack === "only" ? config.encoder_layers ?? config.decoder_layers : config[`${stack}_layers`]);
  const layers = [];
  let x = embedded.sum;
  for (let number = 0; number < count; number++) {
    layers.push(layer(model, stack, number, x, memory, causal, whatIf, past?.[number]));
    x = layers.at(-1).output;
  }
  return { stack, ids, embedded, layers, causal, output: x };
}

/** Section 3.4: the embedding is the output projection too; then the softmax. */
export function project(model, x, whatIf) {
  const logits = ops.linear(x, model.weight("lm_head.weight"), biasOf(model, "lm_head"));
  return { logits, probabilities: ops.softmax(logits, whatIf.temperature) };
}

/** A classifier's head, over each token or over one state of the whole text. */
export function classify(model, x, whatIf) {
  const pooled = model.family === "classifier" ? ops.pool(x, model.config.classifier_pooling) : null;
  const logits = ops.linear(pooled ?? x, model.weight("classifier.weight"), model.weight("classifier.bias"));
  const several = model.config.problem_type === "multi_label_classification"; // Each label by itself.
  return { pooled, logits, probabilities: several ? ops.map(logits, "sigmoid") : ops.softmax(logits, whatIf.temperature) };
}
