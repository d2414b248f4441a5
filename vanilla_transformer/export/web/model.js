// A line in, its translation out, as `generate(num_beams=1)` of the model has it: for the page and for node.

// Those that end a line for any reader of lines.
const BREAKS = /\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]/g;
const LAST_BREAK = new RegExp(`(?:${BREAKS.source})$`);

export async function load(library, folder, options) {
  const [tokenizer, model] = await Promise.all([
    library.AutoTokenizer.from_pretrained(folder),
    library.AutoModelForSeq2SeqLM.from_pretrained(folder, options),
  ]);
  return { library, tokenizer, model };
}

export async function translate({ library, tokenizer, model }, { longest, beyond, most }, line) {
  if (!line.trim()) return { text: "", tokens: 0, isCut: false };
  let ids = tokenizer.encode(line);
  const isCut = ids.length > longest;
  if (isCut) ids = [...ids.slice(0, longest - 1), ids.at(-1)];
  const row = (values) => new library.Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  const output = await model.generate({
    inputs: row(ids),
    attention_mask: row(ids.map(() => 1)),
    max_new_tokens: Math.max(1, Math.min(most ?? Infinity, beyond === null ? Infinity : ids.length + beyond)),
  });
  const [written] = output.tolist();
  const text = tokenizer.decode(written, { skip_special_tokens: true });
  return { text: text.replace(LAST_BREAK, "").replace(BREAKS, " "), tokens: written.length - 1, isCut };
}
