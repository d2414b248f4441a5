// A line in, its translation out, as `generate` of the model has it: for the page and for node.

// Those that end a line for any reader of lines.
const BREAKS = /\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]/g;
const LAST_BREAK = new RegExp(`(?:${BREAKS.source})$`);
export const GRAPHS = { q8: "translate_int8.onnx", fp32: "translate.onnx" };

export async function load(runtime, { Tokenizer }, [tokenizer, config], graph) {
  const session = await runtime.InferenceSession.create(graph, { executionProviders: ["wasm"], logSeverityLevel: 3 });
  return { runtime, tokenizer: new Tokenizer(tokenizer, config), session };
}

export async function translate({ runtime, tokenizer, session }, longest, line) {
  if (!line.trim()) return { text: "", tokens: 0, isCut: false };
  let { ids } = tokenizer.encode(line);
  const isCut = ids.length > longest;
  if (isCut) ids = [...ids.slice(0, longest - 1), ids.at(-1)];
  const input_ids = new runtime.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
  const { sequences, lengths } = await session.run({ input_ids });
  const tokens = Number(lengths.data[0]);
  const written = Array.from(sequences.data.subarray(0, tokens), Number);
  const text = tokenizer.decode(written, { skip_special_tokens: true, clean_up_tokenization_spaces: false });
  return { text: text.replace(LAST_BREAK, "").replace(BREAKS, " "), tokens, isCut };
}
