// A decoder one token at a time, for the search: each hypothesis keeps the layers of its past, with their keys and values.
import { encode, recurrentSteps } from "./recurrent.js";
import { project, run } from "./transformer.js";

/** What a model with an encoder has read of a source. */
export function encoded(model, source, whatIf) {
  if (model.family === "recurrent") return encode(model, source);
  return model.family === "encoder-decoder" ? run(model, "encoder", source, whatIf) : null;
}

/** How a model goes on: `start(ids)` is the state after these, `step(states, tokens)` gives the next logits and states. */
export function decoding(model, whatIf, encoder) {
  if (model.family === "recurrent") return recurrentSteps(model, encoder);
  const stack = encoder ? "decoder" : "only", memory = encoder?.output ?? null;
  const after = ({ ids, layers }, more) => {
    const all = [...ids, ...more];
    // Without the mask a token changes what was computed before it: all is computed anew.
    const past = whatIf.mask ? layers : null;
    return { ...run(model, stack, past ? more : all, whatIf, { memory, causal: true, past, start: past ? ids.length : 0 }), ids: all };
  };
  return {
    start: (ids) => (ids.length ? after({ ids: [], layers: null }, ids) : { ids, layers: null }),
    step(states, tokens) {
      const next = states.map((state, row) => after(state, [tokens[row]]));
      const logits = next.map(({ output }) => project(model, { data: output.row(output.rows - 1), rows: 1, cols: output.cols }, whatIf).logits.data);
      return { states: next.map(({ ids, layers }) => ({ ids, layers })), logits };
    },
  };
}
