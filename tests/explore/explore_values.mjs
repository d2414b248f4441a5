// Computes as the page does and gives every value under the name that it has in Python.
// JSON has no −∞, which is what a mask writes.
const finite = (number) => Math.max(-1e9, number);
const rows = (value) => Array.from({ length: value.rows }, (_, row) => Array.from(value.row(row)));

/** Every value of a stack of layers. */
function ofStack(stack, prefix) {
  const { positions, sum } = stack.embedded;
  const values = { [`${prefix}.positional_encoding`]: rows(positions), [`${prefix}.layers.0.input`]: rows(sum) };
  const keep = (attention) => {
    if (!attention) return;
    values[`${attention.name}.weights`] = attention.heads.map((head) => rows(head.weights));
    for (const kind of ["q", "k", "v"]) {
      const parts = attention.heads.map((head) => rows(head[kind]));
      values[`${attention.name}.${kind}_proj`] = parts[0].map((_, row) => parts.flatMap((part) => part[row]));
    }
    values[`${attention.name}.scores`] = attention.heads.map((head) => rows(head.masked ?? head.scores).map((row) => row.map(finite)));
    values[`${attention.name}.out_proj.input`] = rows(attention.concat);
    values[`${attention.name}.out_proj`] = rows(attention.output);
  };
  stack.layers.forEach((layer, number) => {
    const name = `${prefix}.layers.${number}`;
    keep(layer.self);
    keep(layer.cross);
    for (const [kind, made] of [["self_attention", layer.afterSelf], ["cross_attention", layer.afterCross], ["feed_forward", layer.afterFeed]]) {
      if (!made) continue;
      values[`${name}.${kind}_norm.input`] = rows(made.residual);
      values[`${name}.${kind}_norm`] = rows(made.norm);
    }
    values[`${name}.feed_forward.w_1`] = rows(layer.feed.hidden);
    values[`${name}.feed_forward.activation`] = rows(layer.feed.active);
    values[`${name}.feed_forward.w_2`] = rows(layer.feed.output);
    values[name] = rows(layer.output);
  });
  return values;
}

/** What the page computes for a source and, of models that write, what has been written. */
export async function valuesOf(model, source, target) {
  const { run, project, classify, undisturbed } = await import("./transformer.js"), whatIf = undisturbed();
  if (model.family === "recurrent") {
    const { encode, decode } = await import("./recurrent.js");
    const encoder = encode(model, source), decoder = decode(model, encoder, target, whatIf);
    const weights = decoder.weights ? { weights: rows(decoder.weights) } : {};
    return { encoder: rows(encoder.output), ...weights, logits: rows(project(model, decoder.output, whatIf).logits) };
  }
  if (model.family === "encoder-decoder") {
    const encoder = run(model, "encoder", source, whatIf);
    const decoder = run(model, "decoder", target, whatIf, { memory: encoder.output });
    const logits = rows(project(model, decoder.output, whatIf).logits);
    return { ...ofStack(encoder, "model.encoder"), ...ofStack(decoder, "model.decoder"), logits };
  }
  const only = run(model, "only", source, whatIf, { causal: model.family === "language-model" });
  const head = model.family.endsWith("language-model") ? project : classify;
  return { ...ofStack(only, "model"), logits: rows(head(model, only.output, whatIf).logits) };
}

/** A whole search: each node of its tree as [tokens, log-probability], and the hypotheses it ends with as [tokens, score]. */
export async function searchOf(model, source, settings) {
  const { answer } = await import("./computation.js"), { undisturbed } = await import("./transformer.js");
  const work = answer(model, { source, whatIf: undisturbed(), settings: { ...model.search, ...settings } });
  let found = work.next();
  while (!found.done) found = work.next();
  const { steps, best } = found.value.tree;
  return {
    nodes: steps.flatMap((step) => step.candidates.map((node) => [node.tokens, node.score])),
    best: best.map((one) => [one.tokens, one.final]),
  };
}

/** The largest difference between the numbers of a few thousand cells and what is told of where they come from. */
export async function untrue(model, traces) {
  const { explain } = await import("./explain.js"), { Value } = await import("./tape.js"), seen = new Set();
  let worst = 0;
  const kinds = new Set();
  const visit = (thing) => {
    if (!thing || typeof thing !== "object" || seen.has(thing) || ArrayBuffer.isView(thing)) return;
    seen.add(thing);
    if (thing instanceof Value) {
      for (let at = 0; at < thing.data.length; at += 1 + Math.floor(thing.data.length / 7)) {
        const shown = thing.data[at], told = explain(model, thing, Math.floor(at / thing.cols), at % thing.cols);
        kinds.add(told.kind);
        if (shown !== told.value) worst = Math.max(worst, Math.abs(shown - told.value));
      }
    }
    Object.values(thing).forEach(visit);
  };
  visit(traces);
  return { worst, kinds: [...kinds] };
}
