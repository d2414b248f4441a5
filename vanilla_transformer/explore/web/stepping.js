// A decoder one token at a time, for the search: each hypothesis keeps keys and values of its past, and copies nothing.
import { activations, add, dot, layerNorm, linear, softmax } from "./arithmetic.js";
import { encode, recurrentSteps } from "./recurrent.js";
import { embed, project, run } from "./transformer.js";

/** How a model goes on: `start(ids)` is the state after these, `step(states, tokens)` gives the next logits and states. */
export function decoding(model, source, whatIf, encoder = encoded(model, source, whatIf)) {
  if (model.family === "recurrent") return recurrentSteps(model, encoder);
  const stack = encoder ? "decoder" : "only", memory = encoder?.output ?? null;
  return whatIf.mask ? cached(model, stack, memory, whatIf) : whole(model, stack, memory, whatIf);
}

/** What a model with an encoder has read of a source. */
export function encoded(model, source, whatIf) {
  if (model.family === "recurrent") return encode(model, source);
  return model.family === "encoder-decoder" ? run(model, "encoder", source, whatIf) : null;
}

/** Without the mask a token changes what was computed before it: all is computed anew. */
function whole(model, stack, memory, whatIf) {
  return {
    start: (ids) => ids,
    step(states, tokens) {
      const next = states.map((state, row) => [...state, tokens[row]]);
      const logits = next.map((ids) => {
        const { output } = run(model, stack, ids, whatIf, { memory, causal: true });
        return project(model, { data: output.row(output.rows - 1), rows: 1, cols: output.cols }, whatIf).logits.data;
      });
      return { states: next, logits };
    },
  };
}

function cached(model, stack, memory, whatIf) {
  const { config } = model, prefix = stack === "only" ? "model" : "model.decoder";
  const { num_heads: heads, d_k, d_v, d_model, d_ff, layer_norm_eps: eps } = config;
  const scale = whatIf.scale ? d_k ** -0.5 : 1, count = config.decoder_layers;
  const data = (name) => (model.has(name) ? model.weight(name).data : null);
  const times = (name, x, rows, outs, ins) => linear(x, rows, data(`${name}.weight`), outs, ins, data(`${name}.bias`));
  const split = (x, rows, width) => Array.from({ length: rows }, (_, row) => x.subarray(row * width, (row + 1) * width));
  const sources = Array.from({ length: count }, (_, number) => {
    const name = `${prefix}.layers.${number}.cross_attention`;
    if (!memory || whatIf.layers.has(`${stack}.${number}`)) return null;
    const rows = memory.rows;
    return {
      k: split(times(`${name}.k_proj`, memory.data, rows, heads * d_k, d_model), rows, heads * d_k),
      v: split(times(`${name}.v_proj`, memory.data, rows, heads * d_v, d_model), rows, heads * d_v),
    };
  });

  /** Eq. 1 for one query in every head; returns the heads side by side. */
  function attend(q, keys, values, place) {
    const mixed = new Float64Array(heads * d_v), scores = new Float32Array(keys.length);
    for (let head = 0; head < heads; head++) {
      if (whatIf.heads.has(`${place}.${head}`)) continue;
      for (let at = 0; at < keys.length; at++) scores[at] = dot(q, head * d_k, keys[at], head * d_k, d_k) * scale;
      const weights = softmax(scores, keys.length);
      for (let at = 0; at < keys.length; at++) {
        const weight = weights[at], value = values[at];
        for (let i = head * d_v; i < (head + 1) * d_v; i++) mixed[i] += weight * value[i];
      }
    }
    return Float32Array.from(mixed);
  }

  const joined = (rows) => {
    const all = new Float32Array(rows.length * rows[0].length);
    rows.forEach((row, at) => all.set(row, at * row.length));
    return all;
  };

  function sublayer(name, x, rows, output) {
    return layerNorm(add(x, output), d_model, data(`${name}.weight`), data(`${name}.bias`), eps);
  }

  return {
    start(ids) {
      const past = ids.length ? run(model, stack, ids, whatIf, { memory, causal: true }).layers : [];
      const rows = (number, kind) => ids.flatMap((_, row) => (past[number].self ? [joined(past[number].self.heads.map((head) => head[kind].row(row)))] : []));
      return { length: ids.length, layers: Array.from({ length: count }, (_, number) => ({ k: rows(number, "k"), v: rows(number, "v") })) };
    },
    step(states, tokens) {
      const rows = tokens.length, act = activations[config.activation_function];
      let x = joined(tokens.map((token, row) => embed(model, [token], stack, whatIf, states[row].length).sum.data));
      const next = states.map((state) => ({ length: state.length + 1, layers: [] }));
      for (let number = 0; number < count; number++) {
        const place = `${stack}.${number}`, name = `${prefix}.layers.${number}`;
        if (whatIf.layers.has(place)) {
          next.forEach((state, row) => { state.layers[number] = states[row].layers[number]; });
          continue;
        }
        const self = `${name}.self_attention`;
        const q = split(times(`${self}.q_proj`, x, rows, heads * d_k, d_model), rows, heads * d_k);
        const k = split(times(`${self}.k_proj`, x, rows, heads * d_k, d_model), rows, heads * d_k);
        const v = split(times(`${self}.v_proj`, x, rows, heads * d_v, d_model), rows, heads * d_v);
        const mixed = q.map((query, row) => {
          const past = states[row].layers[number];
          const here = (next[row].layers[number] = { k: [...past.k, k[row]], v: [...past.v, v[row]] });
          return attend(query, here.k, here.v, `${place}.self_attention`);
        });
        x = sublayer(`${self}_norm`, x, rows, times(`${self}.out_proj`, joined(mixed), rows, d_model, heads * d_v));
        if (memory) {
          const cross = `${name}.cross_attention`, source = sources[number];
          const queries = split(times(`${cross}.q_proj`, x, rows, heads * d_k, d_model), rows, heads * d_k);
          const seen = queries.map((query) => attend(query, source.k, source.v, `${place}.cross_attention`));
          x = sublayer(`${cross}_norm`, x, rows, times(`${cross}.out_proj`, joined(seen), rows, d_model, heads * d_v));
        }
        const hidden = times(`${name}.feed_forward.w_1`, x, rows, d_ff, d_model).map(act);
        x = sublayer(`${name}.feed_forward_norm`, x, rows, times(`${name}.feed_forward.w_2`, hidden, rows, d_model, d_ff));
      }
      const logits = times("lm_head", x, rows, config.vocab_size, d_model);
      return { states: next, logits: split(logits, rows, config.vocab_size) };
    },
  };
}
