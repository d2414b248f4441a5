// The Transformer in the paper's order: the same layers, under the same names, as vanilla_transformer/model/modeling_vanilla_transformer.py.
import { ops } from "./tape.js";

/** What is asked of the model beyond what it is. Heads and layers by their names, counted from 1: encoder.1.self_attention.2. */
export const undisturbed = () => ({
  heads: new Set(), layers: new Set(), positions: "as-is", scale: true, mask: true, temperature: 1,
});

// In each eight positions; so a permutation of any length.
const SHUFFLED = [5, 2, 7, 0, 3, 6, 1, 4];

const shuffled = (place) => place - (place % 8) + SHUFFLED[place % 8];

const stackOf = { encoder: "model.encoder", decoder: "model.decoder", only: "model" };

/** Sections 3.4 and 3.5: embeddings times √d_model, plus positions. */
function embed(model, ids, stack, whatIf, places) {
  const { d_model, positional_encoding } = model.config, prefix = stackOf[stack];
  const embedding = ops.embedding(ids, model.weight(`${prefix}.embed_tokens.weight`) ?? model.weight("model.shared.weight"));
  const scaled = ops.times(embedding, Math.sqrt(d_model));
  if (whatIf.positions === "shuffled") places = places.map(shuffled);
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
  const project = (kind, from, head, width) => linear(model, `${name}.${kind}_proj`, from, head * width, (head + 1) * width);
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
  return { name, place, heads, concat, output: linear(model, `${name}.out_proj`, concat) };
}

/** A layer of weights, or some rows of it, with its bias where there is one. */
const linear = (model, name, x, ...rows) => ops.linear(x, model.weight(`${name}.weight`), model.weight(`${name}.bias`), ...rows);

/** Section 3.1: LayerNorm(x + Sublayer(x)). */
function addAndNorm(model, name, x, sublayer) {
  const residual = ops.sum(x, sublayer);
  const norm = ops.norm(residual, model.weight(`${name}.weight`), model.weight(`${name}.bias`), model.config.layer_norm_eps);
  return { before: x, residual, norm };
}

/** Section 3.3, Eq. 2: max(0, xW₁ + b₁)W₂ + b₂. */
function feedForward(model, name, x) {
  const hidden = linear(model, `${name}.w_1`, x), active = ops.map(hidden, model.config.activation_function);
  return { hidden, active, output: linear(model, `${name}.w_2`, active) };
}

/** Section 3.1: one layer of either stack; with a memory there is cross-attention to it. */
function layer(model, stack, number, x, memory, whatIf, sees, past) {
  const place = `${stack}.${number + 1}`, name = `${stackOf[stack]}.layers.${number}`;
  if (whatIf.layers.has(place)) return { place, skipped: true, input: x, output: x };
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
 * other tokens, `past`, it goes on; then `sees` says which of all these a token sees, and `places` where each stands.
 */
export function run(model, stack, ids, whatIf, { memory = null, causal = stack === "decoder", past = null, sees = (query, key) => key <= query, places = ids.map((_, place) => place) } = {}) {
  const embedded = embed(model, ids, stack, whatIf, places), { config } = model;
  const count = (stack === "only" ? config.encoder_layers ?? config.decoder_layers : config[`${stack}_layers`]);
  const layers = [];
  let x = embedded.sum;
  for (let number = 0; number < count; number++) {
    layers.push(layer(model, stack, number, x, memory, whatIf, causal && whatIf.mask ? sees : null, past?.[number]));
    x = layers.at(-1).output;
  }
  return { stack, ids, embedded, layers, causal, output: x };
}

/** Section 3.4: the embedding is the output projection too; then the softmax. */
export function project(model, x, whatIf) {
  const logits = linear(model, "lm_head", x);
  return { logits, probabilities: ops.softmax(logits, whatIf.temperature) };
}

/** A classifier's head, over each token or over one state of the whole text. */
export function classify(model, x, whatIf) {
  const pooled = model.family === "classifier" ? ops.pool(x, model.config.classifier_pooling) : null;
  const logits = linear(model, "classifier", pooled ?? x);
  const several = model.config.problem_type === "multi_label_classification"; // Each label by itself.
  return { pooled, logits, probabilities: several ? ops.map(logits, "sigmoid") : ops.softmax(logits, whatIf.temperature) };
}
