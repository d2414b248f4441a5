// The model: fetched once, then one line after another. Nothing is sent anywhere.
let folder = null;
let code = null;
let library = null;
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

async function fetchFile(url, options) {
  const response = await fetch(new URL(url, folder), options);
  if (!response.ok || !String(url).endsWith(".onnx")) return response;
  const counter = new TransformStream({
    transform(chunk, controller) {
      count(chunk.byteLength);
      controller.enqueue(chunk);
    },
  });
  return new Response(response.body.pipeThrough(counter), response);
}

async function loadLibrary() {
  const { transformers, runtime, wasm } = settings.programs;
  const script = async (file) => URL.createObjectURL(new Blob([await program(file)], { type: "text/javascript" }));
  const [main, mjs, binary] = await Promise.all([script(transformers), script(runtime), program(wasm)]);
  const loaded = await import(main);
  Object.assign(loaded.env, {
    allowRemoteModels: false,
    allowLocalModels: true,
    fetch: fetchFile,
    useBrowserCache: false, // The browser keeps files for as long as their server tells it to.
    useWasmCache: false,
    logLevel: loaded.LogLevel.ERROR,
  });
  const wasmBinary = await binary.arrayBuffer();
  Object.assign(loaded.env.backends.onnx.wasm, { wasmPaths: { mjs }, wasmBinary, numThreads: 1 });
  return loaded;
}

async function loadModel(dtype) {
  const begun = performance.now();
  code ??= await import(new URL("model.js", folder));
  settings ??= await (await fetch(new URL("settings.json", folder))).json();
  const programs = library ? [] : Object.values(settings.programs);
  progress = { loaded: 0, total: programs.reduce((sum, { size }) => sum + size, settings.weights[dtype]) };
  library ??= await loadLibrary();
  const model = await code.load(library, ".", { dtype, device: "wasm" });
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
      const found = await code.translate(models.get(dtype), settings.limits, line);
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
