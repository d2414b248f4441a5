// The model: fetched once, then one line after another. Nothing is sent anywhere.
let folder = null;
let code = null;
let libraries = null;
let settings = null;
let progress = null;
let stopped = false;
let work = Promise.resolve();
const models = new Map();

function count(bytes) {
  progress.loaded += bytes;
  postMessage({ type: "progress", ...progress });
}

// What does not fit its checksum is not run.
async function program({ url, integrity, size }) {
  const response = await fetch(new URL(url, folder), { integrity });
  if (!response.ok) throw new Error(`${url} was not found (${response.status})`);
  const content = await response.blob();
  count(size);
  return content;
}

async function content(name) {
  const response = await fetch(new URL(name, folder));
  if (!response.ok) throw new Error(`${name} was not found (${response.status})`);
  return response;
}

async function graph(dtype) {
  const counter = new TransformStream({
    transform(chunk, controller) {
      count(chunk.byteLength);
      controller.enqueue(chunk);
    },
  });
  const { body } = await content(code.GRAPHS[dtype]);
  return new Uint8Array(await new Response(body.pipeThrough(counter)).arrayBuffer());
}

async function loadLibraries() {
  const { tokenizers, runtime, wasm } = settings.programs;
  const script = async (file) => URL.createObjectURL(new Blob([await program(file)], { type: "text/javascript" }));
  const [splits, runs, binary] = await Promise.all([script(tokenizers), script(runtime), program(wasm)]);
  const loaded = { tokenizers: await import(splits), runtime: await import(runs) };
  loaded.runtime.env.logLevel = "error";
  Object.assign(loaded.runtime.env.wasm, { wasmBinary: await binary.arrayBuffer(), numThreads: 1 });
  return loaded;
}

async function loadModel(dtype) {
  const begun = performance.now();
  code ??= await import(new URL("model.js", folder));
  settings ??= await (await content("settings.json")).json();
  const programs = libraries ? [] : Object.values(settings.programs);
  progress = { loaded: 0, total: programs.reduce((sum, { size }) => sum + size, settings.weights[dtype]) };
  libraries ??= await loadLibraries();
  const files = ["tokenizer.json", "tokenizer_config.json"];
  const parts = await Promise.all(files.map(async (name) => (await content(name)).json()));
  const model = await code.load(libraries.runtime, libraries.tokenizers, parts, await graph(dtype));
  postMessage({ type: "ready", seconds: (performance.now() - begun) / 1000 });
  return model;
}

async function run({ lines, dtype, folder: served }) {
  stopped = false;
  folder = served;
  try {
    if (!models.has(dtype)) models.set(dtype, await loadModel(dtype));
    const begun = performance.now();
    const cut = [];
    let tokens = 0;
    for (const [index, line] of lines.entries()) {
      const found = await code.translate(models.get(dtype), settings.longest, line);
      tokens += found.tokens;
      if (found.isCut) cut.push(index + 1);
      postMessage({ type: "line", index, text: found.text });
      await new Promise((resolve) => setTimeout(resolve)); // A wish to stop is heard here.
      if (stopped) break;
    }
    postMessage({ type: "done", tokens, seconds: (performance.now() - begun) / 1000, cut, stopped });
  } catch (error) {
    postMessage({ type: "error", message: `It failed: ${error.message ?? error}.` });
  }
}

self.onmessage = ({ data }) => {
  if (data.type === "stop") stopped = true;
  else work = work.then(() => run(data));
};
