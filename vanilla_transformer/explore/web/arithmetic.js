// The few operations that the models are made of, on Float32Arrays in row-major order. Sums are added up in 64 bits.

/** y = x Wᵀ + b, as `nn.Linear`: x has `rows` rows of `ins` numbers, W `outs` rows of `ins`. */
export function linear(x, rows, W, outs, ins, bias = null) {
  const y = new Float32Array(rows * outs);
  // Two rows and four columns at a time: a number that was read is used several times. A last row is its own pair.
  for (let row = 0; row < rows; row += 2) {
    const next = Math.min(row + 1, rows - 1), a = row * ins, b = next * ins, at = row * outs, below = next * outs;
    let out = 0;
    for (; out + 3 < outs; out += 4) {
      const w = out * ins;
      let s0 = 0, s1 = 0, s2 = 0, s3 = 0, t0 = 0, t1 = 0, t2 = 0, t3 = 0;
      for (let i = 0; i < ins; i++) {
        const p = x[a + i], q = x[b + i], w0 = W[w + i], w1 = W[w + ins + i], w2 = W[w + 2 * ins + i], w3 = W[w + 3 * ins + i];
        s0 += p * w0; s1 += p * w1; s2 += p * w2; s3 += p * w3;
        t0 += q * w0; t1 += q * w1; t2 += q * w2; t3 += q * w3;
      }
      y[at + out] = s0; y[at + out + 1] = s1; y[at + out + 2] = s2; y[at + out + 3] = s3;
      y[below + out] = t0; y[below + out + 1] = t1; y[below + out + 2] = t2; y[below + out + 3] = t3;
    }
    for (; out < outs; out++) for (const one of [row, next]) y[one * outs + out] = dot(x, one * ins, W, out * ins, ins);
  }
  if (bias) for (let at = 0; at < y.length; at++) y[at] += bias[at % outs];
  return y;
}

export function dot(x, from, y, start, length) {
  let sum = 0;
  for (let i = 0; i < length; i++) sum += x[from + i] * y[start + i];
  return sum;
}

/** The largest number of a row, and the sum of all exponentials after it is subtracted. */
function exponentials(row, temperature) {
  let most = -Infinity, sum = 0;
  for (const value of row) most = Math.max(most, value);
  for (const value of row) sum += Math.exp((value - most) / temperature);
  return { most, sum };
}

/** Softmax of each row, of the numbers divided by a temperature; −∞ becomes 0. */
export function softmax(x, cols, temperature = 1) {
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += cols) {
    const row = x.subarray(start, start + cols), { most, sum } = exponentials(row, temperature);
    y.set(row.map((value) => Math.exp((value - most) / temperature) / sum), start);
  }
  return y;
}

export function logSoftmax(row, temperature = 1) {
  const { most, sum } = exponentials(row, temperature), log = Math.log(sum);
  return row.map((value) => (value - most) / temperature - log);
}

/** Mean and variance of a row, as layer normalisation has them. */
export function moments(x, from, cols) {
  let mean = 0, variance = 0;
  for (let c = 0; c < cols; c++) mean += x[from + c];
  mean /= cols;
  for (let c = 0; c < cols; c++) variance += (x[from + c] - mean) ** 2;
  return { mean, variance: variance / cols };
}

export function layerNorm(x, cols, gamma, beta, eps) {
  const y = new Float32Array(x.length);
  for (let start = 0; start < x.length; start += cols) {
    const { mean, variance } = moments(x, start, cols);
    const scale = 1 / Math.sqrt(variance + eps);
    for (let c = 0; c < cols; c++) y[start + c] = (x[start + c] - mean) * scale * gamma[c] + beta[c];
  }
  return y;
}

export const sigmoid = (x) => 1 / (1 + Math.exp(-x));
const tanhGelu = (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3)));

/** By the names of transformers; `ACTIVATIONS` in computable.py lists the same. */
export const activations = {
  relu: (x) => Math.max(0, x),
  gelu: (x) => 0.5 * x * (1 + erf(x / Math.SQRT2)),
  gelu_new: tanhGelu,
  gelu_pytorch_tanh: tanhGelu,
  silu: (x) => x * sigmoid(x),
  swish: (x) => x * sigmoid(x),
  tanh: Math.tanh,
  sigmoid,
};

/** Abramowitz and Stegun 1964, 7.1.26: right to 1.5e-7. */
function erf(x) {
  const t = 1 / (1 + 0.3275911 * Math.abs(x));
  const sum = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
  return Math.sign(x) * (1 - sum * Math.exp(-x * x));
}
