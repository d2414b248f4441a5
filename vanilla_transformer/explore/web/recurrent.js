// What the paper replaced: recurrent encoder-decoders, under the names of vanilla_transformer/model/recurrent_equations.py.
import { dot, linear, sigmoid, softmax } from "./arithmetic.js";
import { ops } from "./tape.js";

/** One row times a matrix, plus the bias of the same name where there is one. */
function times(model, name, x) {
  const { data, shape } = model.weight(name), bias = name.replace("weight", "bias");
  return linear(x, 1, data, shape[0], shape[1], model.weight(bias)?.data);
}
const proj = (model, name, x) => times(model, `${name}.weight`, x);
const joined = (...parts) => Float32Array.from(parts.flatMap((part) => [...part]));

/** One step of a cell: the new state, and what it was made from. */
function step(model, name, suffix, x, before) {
  const input = times(model, `${name}.weight_ih_${suffix}`, x), own = times(model, `${name}.weight_hh_${suffix}`, before.h);
  const width = before.h.length, h = new Float32Array(width);
  if (model.config.cell === "lstm") {
    const gates = new Float32Array(4 * width), c = new Float32Array(width);
    for (let at = 0; at < 4 * width; at++) {
      const sum = input[at] + own[at];
      gates[at] = at >= 2 * width && at < 3 * width ? Math.tanh(sum) : sigmoid(sum);
    }
    for (let at = 0; at < width; at++) {
      c[at] = gates[width + at] * before.c[at] + gates[at] * gates[2 * width + at];
      h[at] = gates[3 * width + at] * Math.tanh(c[at]);
    }
    return { h, c, gates, before };
  }
  const gates = new Float32Array(3 * width);
  for (let at = 0; at < width; at++) {
    const r = (gates[at] = sigmoid(input[at] + own[at])), z = (gates[width + at] = sigmoid(input[width + at] + own[width + at]));
    const n = (gates[2 * width + at] = Math.tanh(input[2 * width + at] + r * own[2 * width + at]));
    h[at] = (1 - z) * n + z * before.h[at];
  }
  return { h, gates, before };
}

const zeros = (width) => ({ h: new Float32Array(width), c: new Float32Array(width) });
const states = (model, steps) => ops.rows(steps.map((one) => one.h), { op: "step", cell: model.config.cell, steps });

/** Reads the source, in one direction or both. */
export function encode(model, ids) {
  const { d_model, num_layers, bidirectional } = model.config, name = "model.encoder.rnn", width = bidirectional ? d_model / 2 : d_model;
  const embedding = ops.embedding(ids, model.weight("model.encoder.embedding.weight")), layers = [], last = [];
  let x = embedding;
  for (let number = 0; number < num_layers; number++) {
    const directions = (bidirectional ? ["", "_reverse"] : [""]).map((direction) => {
      const order = ids.map((_, at) => (direction ? ids.length - 1 - at : at)), steps = [];
      let state = zeros(width);
      for (const at of order) steps[at] = state = step(model, name, `l${number}${direction}`, x.row(at), state);
      return { value: states(model, steps), last: state };
    });
    x = directions.length > 1 ? ops.concat(directions.map((one) => one.value)) : directions[0].value;
    layers.push(x);
    last.push({ h: joined(...directions.map((one) => one.last.h)), c: directions[0].last.c && joined(...directions.map((one) => one.last.c)) });
  }
  return { stack: "encoder", ids, embedding, layers, last, output: x };
}

/** A decoder one token at a time: `start()` is its state, `advance(state, token)` the next one with all that led to it. */
export function recurrence(model, encoder) {
  const { d_model: width, num_layers, attention, attention_window: half, input_feeding } = model.config, base = "model.decoder";
  const bahdanau = attention === "bahdanau", attends = attention !== "none", feeds = bahdanau || (attends && input_feeding);
  const additive = bahdanau || attention === "luong-concat", values = encoder.output, count = values.rows;
  const keyed = attends && attention !== "luong-dot";
  const keys = keyed ? ops.linear(values, model.weight(`${base}.attention.key_proj.weight`)) : values;
  const data = (name) => model.weight(`${base}.${name}`).data;

  function look(query) {
    const compared = additive ? proj(model, `${base}.attention.query_proj`, query) : query, scores = new Float32Array(count);
    for (let at = 0; at < count; at++) {
      if (!additive) scores[at] = dot(compared, 0, keys.data, at * width, width);
      else for (let i = 0; i < width; i++) scores[at] += data("attention.v")[i] * Math.tanh(compared[i] + keys.data[at * width + i]);
    }
    let window = null, seen = scores;
    if (half !== null && half !== undefined) {
      const moved = proj(model, `${base}.attention.position_proj`, query).map(Math.tanh);
      const centre = sigmoid(dot(moved, 0, data("attention.position_v"), 0, width)) * count;
      window = new Float32Array(count).map((_, at) => (Math.abs(at - centre) <= half ? Math.exp(-2 * ((at - centre) / half) ** 2) : 0));
      seen = scores.map((score, at) => (window[at] > 0 ? score : -Infinity));
    }
    const shares = softmax(seen, count), weights = window ? shares.map((share, at) => share * window[at]) : shares;
    const context = new Float32Array(width);
    for (let at = 0; at < count; at++) for (let i = 0; i < width; i++) context[i] += weights[at] * values.data[at * width + i];
    return { compared, scores, seen, shares, window, weights, context };
  }

  function start() {
    const layers = encoder.last.map(({ h, c }) => {
      if (!bahdanau) return { h, c };
      const ins = model.weight(`${base}.start_proj.weight`).shape[1];
      return { h: proj(model, `${base}.start_proj`, h.subarray(h.length - ins)).map(Math.tanh), c };
    });
    return { layers, fed: new Float32Array(width) };
  }

  function advance(state, token) {
    const { data: table } = model.weight(`${base}.embedding.weight`), embedded = table.subarray(token * width, (token + 1) * width);
    const above = state.layers.at(-1).h;
    let seen = bahdanau ? look(above) : null;
    const fed = bahdanau ? seen.context : state.fed, layers = [];
    let x = feeds ? joined(embedded, fed) : embedded;
    for (let number = 0; number < num_layers; number++) {
      layers.push(step(model, `${base}.rnn`, `l${number}`, x, state.layers[number]));
      x = layers.at(-1).h;
    }
    let output = x, before = null;
    if (bahdanau) {
      before = proj(model, `${base}.readout`, joined(above, embedded, seen.context));
      output = new Float32Array(width).map((_, at) => Math.max(before[2 * at], before[2 * at + 1]));
    } else if (attends) {
      seen = look(x);
      before = proj(model, `${base}.readout`, joined(seen.context, x));
      output = before.map(Math.tanh);
    }
    return { state: { layers, fed: output }, layers, seen, before, output };
  }

  return { start, advance, keys, additive, attends, bahdanau };
}

/** The decoder over what it has read, with every step kept. */
export function decode(model, encoder, ids) {
  const { start, advance, keys, additive, attends, bahdanau } = recurrence(model, encoder), records = [];
  for (const id of ids) records.push(advance(records.at(-1)?.state ?? start(), id));
  const rows = (name, from) => ops.rows(records.map((one) => one.seen[name]), from);
  const layers = model.config.num_layers, found = {
    stack: "decoder", ids, embedding: ops.embedding(ids, model.weight("model.decoder.embedding.weight")),
    layers: Array.from({ length: layers }, (_, number) => states(model, records.map((one) => one.layers[number]))),
  };
  found.output = found.layers.at(-1);
  if (!attends) return found;
  const queries = rows("compared", { op: "given" });
  found.scores = rows("scores", additive ? { op: "additive", q: queries, k: keys, v: "model.decoder.attention.v" } : { op: "scores", q: queries, k: keys, scale: 1 });
  found.shares = ops.softmax(rows("seen", { op: "mask", x: found.scores }));
  found.weights = records[0].seen.window ? rows("weights", { op: "window", x: found.shares, window: rows("window", { op: "given" }) }) : found.shares;
  found.context = ops.mix(found.weights, encoder.output);
  const before = ops.rows(records.map((one) => one.before), { op: "given" });
  found.output = ops.rows(records.map((one) => one.output), bahdanau ? { op: "maxout", x: before } : { op: "map", x: before, name: "tanh" });
  return found;
}

/** For the search: as `decoding` in computation.js. */
export function recurrentSteps(model, encoder) {
  const { start, advance } = recurrence(model, encoder);
  return {
    start: (ids) => ids.reduce((state, id) => advance(state, id).state, start()),
    step(hypotheses, tokens) {
      const next = hypotheses.map((state, row) => advance(state, tokens[row]));
      return { states: next.map((one) => one.state), logits: next.map((one) => proj(model, "lm_head", one.output)) };
    },
  };
}
