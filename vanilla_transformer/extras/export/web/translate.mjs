// Standard input to standard output, line by line: `node translate.mjs < in.txt > out.txt`, or with `--dtype fp32`.
// It needs the packages that README.md names, in a node_modules here or above.
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";

import * as tokenizers from "@huggingface/tokenizers";
import * as runtime from "onnxruntime-web";

import { GRAPHS, load, translate } from "./model.js";

const { values } = parseArgs({ options: { dtype: { type: "string", default: "q8" } } });
const read = (name) => readFileSync(new URL(name, import.meta.url));
const [settings, ...parts] = ["settings", "tokenizer", "tokenizer_config"].map((name) => JSON.parse(read(`${name}.json`)));
runtime.env.logLevel = "error";
runtime.env.wasm.numThreads = 1;
const loaded = await load(runtime, tokenizers, parts, read(GRAPHS[values.dtype]));
const lines = readFileSync(0, "utf-8").split("\n");
if (lines.at(-1) === "") lines.pop();
for (const [index, line] of lines.entries()) {
  const { text, isCut } = await translate(loaded, settings.longest, line);
  if (isCut) console.error(`warning: line ${index + 1} is too long for the model, and cut`);
  console.log(text);
}
