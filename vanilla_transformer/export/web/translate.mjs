// Standard input to standard output, line by line: `node translate.mjs < in.txt > out.txt`, or with `--dtype fp32`.
// It needs the package that README.md names, in a node_modules here or above.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

import * as library from "@huggingface/transformers";

import { load, translate } from "./model.js";

const { values } = parseArgs({ options: { dtype: { type: "string", default: "q8" } } });
const { limits } = JSON.parse(readFileSync(new URL("settings.json", import.meta.url), "utf-8"));
Object.assign(library.env, { allowRemoteModels: false, logLevel: library.LogLevel.ERROR });
const loaded = await load(library, fileURLToPath(new URL(".", import.meta.url)), { dtype: values.dtype });
const lines = readFileSync(0, "utf-8").split("\n");
if (lines.at(-1) === "") lines.pop();
for (const [index, line] of lines.entries()) {
  const { text, isCut } = await translate(loaded, limits, line);
  if (isCut) console.error(`warning: line ${index + 1} is too long for the model, and cut`);
  console.log(text);
}
