// A model as `explore` has written it: what is known of it, its weights, and those of earlier moments of its training.

export class Model {
  /** Reads the folder `model` beside the page. */
  static async load(folder = "model") {
    const [{ Tokenizer }, { tokenizer, ...about }, weights] = await Promise.all([
      import("./vendor/tokenizers.min.mjs"), // Only here, because the worker reads no text.
      fetched(`${folder}/model.json`, "json"),
      fetched(`${folder}/weights.bin`, "arrayBuffer"),
    ]);
    return Object.assign(new Model(about, new Float32Array(weights)), { about, folder, tokenizer: new Tokenizer(...tokenizer) });
  }

  /** `step` is null for the model itself, else that of its training whose weights these are. */
  constructor(about, weights, step = null) {
    Object.assign(this, about, { moments: new Map() });
    this.use(weights, step);
  }

  /** The weights of a name, as {data, shape}, where there are any. */
  weight(name) {
    return this.byName.get(name);
  }

  use(weights, step) {
    Object.assign(this, { weights, step });
    this.byName = new Map();
    for (const [name, [offset, shape]] of Object.entries(this.tensors)) {
      const length = shape.reduce((product, size) => product * size, 1);
      this.byName.set(name, { name, data: weights.subarray(offset, offset + length), shape });
    }
  }

  /** The same model with the weights after a step of its training, or itself where that is null. */
  async at(step) {
    if (step === null) return this;
    if (!this.moments.has(step)) {
      const then = Object.create(this);
      then.use(this.unpack(await fetched(`${this.folder}/step-${step}.bin`, "arrayBuffer")), step);
      this.moments.set(step, then);
    }
    return this.moments.get(step);
  }

  /** Rows of 8-bit numbers times their scale, as packing.py writes them. */
  unpack(buffer) {
    const weights = new Float32Array(this.weights.length);
    const distinct = new Map(Object.values(this.tensors).map(([offset, shape]) => [offset, shape]));
    const tensors = [...distinct].sort(([a], [b]) => a - b);
    const exact = tensors.reduce((sum, [, shape]) => sum + shape[0], 0);
    const floats = new Float32Array(buffer, 0, exact), rounded = new Int8Array(buffer, 4 * exact);
    let float = 0, number = 0;
    for (const [offset, [rows, ...rest]] of tensors) {
      const cols = rest.reduce((product, size) => product * size, 1);
      for (let row = 0; row < rows; row++, float++) {
        if (!rest.length) weights[offset + row] = floats[float];
        else for (let c = 0; c < cols; c++) weights[offset + row * cols + c] = rounded[number++] * floats[float];
      }
    }
    return weights;
  }

  /** The ids of a text, as Python's tokenizer gives them. */
  encode(text) {
    return Array.from(this.tokenizer.encode(text).ids, Number);
  }

  /** A text of ids, without special tokens. */
  decode(ids) {
    const special = new Set(this.tokens.special), plain = ids.filter((id) => !special.has(id));
    return plain.length ? this.tokenizer.decode(plain, { skip_special_tokens: true }).trim() : "";
  }

  piece(id) {
    return this.pieces[id] ?? `<${id}>`;
  }
}

async function fetched(url, as) {
  const reply = await fetch(url);
  if (!reply.ok) throw new Error(`${url}: ${reply.status} ${reply.statusText}`);
  return reply[as]();
}
