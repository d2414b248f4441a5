// Numbers that remember what they were made from, so that each can be asked for its product.
import { activations, layerNorm, linear, softmax } from "./arithmetic.js";

/**
 * A matrix, and the operation that made it: `from.op` and its operands, which explain.js tells in words. Weights are
 * among them by their names, so that a value can be sent from the worker without them.
 */
export class Value {
  constructor(data, rows, cols, from) {
    Object.assign(this, { data, rows, cols, from });
  }

  at(row, col) {
    return this.data[row * this.cols + col];
  }

  row(row) {
    return this.data.subarray(row * this.cols, (row + 1) * this.cols);
  }
}

const like = (x, data, from) => new Value(data, x.rows, x.cols, from);

export const ops = {
  embedding(ids, weight) {
    const cols = weight.shape[1], data = new Float32Array(ids.length * cols);
    ids.forEach((id, row) => data.set(weight.data.subarray(id * cols, (id + 1) * cols), row * cols));
    return new Value(data, ids.length, cols, { op: "embedding", ids, weight: weight.name });
  },
  times: (x, factor) => like(x, x.data.map((value) => value * factor), { op: "times", x, factor }),
  sinusoids(positions, cols) {
    const data = new Float32Array(positions.length * cols);
    positions.forEach((position, row) => {
      for (let c = 0; c < cols; c += 2) {
        // The exponent and the power are rounded to 32 bits, as torch has them.
        const angle = Math.fround(position * Math.fround(10000 ** -Math.fround(c / cols)));
        data[row * cols + c] = Math.sin(angle);
        data[row * cols + c + 1] = Math.cos(angle);
      }
    });
    return new Value(data, positions.length, cols, { op: "sinusoids", positions });
  },
  none: (rows, cols) => new Value(new Float32Array(rows * cols), rows, cols, { op: "none" }),
  sum: (a, b) => like(a, a.data.map((value, at) => value + b.data[at]), { op: "sum", a, b }),
  /** x Wᵀ + b by the rows of W from `start` to `end`, as those of one head. */
  linear(x, weight, bias = null, start = 0, end = weight.shape[0]) {
    const ins = weight.shape[1], part = weight.data.subarray(start * ins, end * ins);
    const data = linear(x.data, x.rows, part, end - start, ins, bias?.data.subarray(start, end));
    return new Value(data, x.rows, end - start, { op: "linear", x, weight: weight.name, bias: bias?.name, start });
  },
  scores(q, k, scale) {
    const data = linear(q.data, q.rows, k.data, k.rows, q.cols).map((value) => value * scale);
    return new Value(data, q.rows, k.rows, { op: "scores", q, k, scale });
  },
  /** Section 3.2.3: what a position must not see is −∞. */
  mask(x, sees) {
    const data = x.data.map((value, at) => (sees(Math.floor(at / x.cols), at % x.cols) ? value : -Infinity));
    return like(x, data, { op: "mask", x });
  },
  softmax: (x, temperature = 1) => like(x, softmax(x.data, x.cols, temperature), { op: "softmax", x, temperature }),
  /** Each row of weights times the rows of v: the weighted sum of Eq. 1. */
  mix(weights, v) {
    const data = new Float32Array(weights.rows * v.cols);
    for (let row = 0; row < weights.rows; row++) {
      for (let c = 0; c < v.cols; c++) {
        let sum = 0;
        for (let key = 0; key < v.rows; key++) sum += weights.data[row * weights.cols + key] * v.data[key * v.cols + c];
        data[row * v.cols + c] = sum;
      }
    }
    return new Value(data, weights.rows, v.cols, { op: "mix", weights, v });
  },
  /** The rows of x below those that there were. */
  below(there, x) {
    if (!there) return x;
    const data = new Float32Array(there.data.length + x.data.length);
    data.set(there.data);
    data.set(x.data, there.data.length);
    return new Value(data, there.rows + x.rows, x.cols, { op: "given" });
  },
  difference: (a, b) => like(a, a.data.map((value, at) => value - b.data[at]), { op: "difference", a, b }),
  off: (x) => like(x, new Float32Array(x.data.length), { op: "off", x }),
  concat(parts) {
    const cols = parts.reduce((sum, part) => sum + part.cols, 0), data = new Float32Array(parts[0].rows * cols);
    let start = 0;
    for (const part of parts) {
      for (let row = 0; row < part.rows; row++) data.set(part.row(row), row * cols + start);
      start += part.cols;
    }
    return new Value(data, parts[0].rows, cols, { op: "concat", parts });
  },
  norm: (x, gamma, beta, eps) => like(x, layerNorm(x.data, x.cols, gamma.data, beta.data, eps), { op: "norm", x, gamma: gamma.name, beta: beta.name, eps }),
  map: (x, name) => like(x, x.data.map(activations[name]), { op: "map", x, name }),
  /** One row: the mean of all, or the first. */
  pool(x, how) {
    const taken = Array.from({ length: how === "first" ? 1 : x.rows }, (_, row) => x.row(row));
    const data = taken[0].map((_, c) => taken.reduce((sum, row) => sum + row[c], 0) / taken.length);
    return new Value(data, 1, x.cols, { op: "pool", x, how });
  },
  /** Of a recurrent model: rows that were computed one after the other, with what each was made from. */
  rows(rows, from) {
    const cols = rows[0].length, data = new Float32Array(rows.length * cols);
    rows.forEach((row, at) => data.set(row, at * cols));
    return new Value(data, rows.length, cols, from);
  },
};
