// Where a number comes from: its product, term by term, with its place in the paper.
import { moments } from "./arithmetic.js";

/**
 * What made the number at (row, col) of a model's value: `kind` names the sentence, `terms` are what was added up
 * ({name, left, right, value}), `parts` the other numbers of its formula, and `value` what they come to.
 */
export function explain(model, value, row, col) {
  const { from } = value, explanation = makers[from.op](from, row, col, value, (name) => model.weight(name));
  return { kind: from.op, terms: [], parts: {}, ...explanation };
}

const products = (pairs) => pairs.map(([name, left, right]) => ({ name, left, right, value: left * right }));
const total = (terms) => terms.reduce((sum, term) => sum + term.value, 0);

const makers = {
  embedding: ({ ids, weight }, row, col, { cols }, find) => ({ parts: { id: ids[row], weight }, value: find(weight).data[ids[row] * cols + col] }),
  times: ({ x, factor }, row, col) => ({ parts: { x: x.at(row, col), factor }, value: x.at(row, col) * factor }),
  none: () => ({ value: 0 }),
  off: ({ x }, row, col) => ({ parts: { x: x.at(row, col) }, value: 0 }),
  sinusoids: ({ positions }, row, col, { cols }) => {
    const pair = col - (col % 2), angle = positions[row] * 10000 ** -(pair / cols);
    return {
      kind: col % 2 ? "cosine" : "sine", value: col % 2 ? Math.cos(angle) : Math.sin(angle),
      parts: { position: positions[row], pair, cols, angle },
    };
  },
  sum: ({ a, b }, row, col) => ({ parts: { a: a.at(row, col), b: b.at(row, col) }, value: a.at(row, col) + b.at(row, col) }),
  difference: ({ a, b }, row, col) => ({ parts: { a: a.at(row, col), b: b.at(row, col) }, value: a.at(row, col) - b.at(row, col) }),
  linear: ({ x, weight, bias, start }, row, col, value, find) => {
    const { data } = find(weight), first = (start + col) * x.cols;
    const terms = products(Array.from({ length: x.cols }, (_, i) => [i + 1, x.at(row, i), data[first + i]]));
    const added = bias ? find(bias).data[start + col] : 0;
    return { terms, parts: { weight, row: start + col, bias: bias ? added : null }, value: total(terms) + added };
  },
  scores: ({ q, k, scale }, row, col) => {
    const terms = products(Array.from({ length: q.cols }, (_, i) => [i + 1, q.at(row, i), k.at(col, i)]));
    return { terms, parts: { product: total(terms), scale, width: q.cols }, value: total(terms) * scale };
  },
  mask: ({ x }, row, col, value) => ({ parts: { x: x.at(row, col) }, value: value.at(row, col) }),
  softmax: ({ x, temperature }, row, col) => {
    const most = Math.max(...x.row(row)), raised = Array.from(x.row(row), (one) => Math.exp((one - most) / temperature));
    const sum = raised.reduce((all, one) => all + one, 0);
    return { parts: { x: x.at(row, col), raised: raised[col], sum, most, temperature }, value: raised[col] / sum };
  },
  mix: ({ weights, v }, row, col) => {
    const terms = products(Array.from({ length: v.rows }, (_, key) => [{ key }, weights.at(row, key), v.at(key, col)]));
    return { terms, value: total(terms) };
  },
  concat: ({ parts }, row, col) => {
    let number = 0;
    while (col >= parts[number].cols) col -= parts[number++].cols;
    return { parts: { head: number + 1, place: col + 1 }, value: parts[number].at(row, col) };
  },
  norm: ({ x, gamma, beta, eps }, row, col, value, find) => {
    const { mean, variance } = moments(x.data, row * x.cols, x.cols), deviation = Math.sqrt(variance + eps);
    const parts = { x: x.at(row, col), mean, deviation, gamma: find(gamma).data[col], beta: find(beta).data[col] };
    return { parts, value: ((parts.x - mean) / deviation) * parts.gamma + parts.beta };
  },
  map: ({ x, name }, row, col, value) => ({ parts: { x: x.at(row, col), name }, value: value.at(row, col) }),
  pool: ({ x, how }, row, col, value) => ({
    kind: how === "first" ? "first" : "mean", value: value.at(0, col),
    terms: how === "first" ? [] : products(Array.from({ length: x.rows }, (_, key) => [{ key }, x.at(key, col), 1 / x.rows])),
  }),
  /** A state of a recurrent layer, from its gates. */
  step: ({ cell, steps }, row, col, { cols }) => {
    const { gates, c, before } = steps[row];
    if (cell === "lstm") {
      const [i, f, g, o] = [0, 1, 2, 3].map((gate) => gates[gate * cols + col]);
      return { kind: "lstm", parts: { i, f, g, o, c: c[col], before: before.c[col] }, value: o * Math.tanh(f * before.c[col] + i * g) };
    }
    const [r, z, n] = [0, 1, 2].map((gate) => gates[gate * cols + col]);
    return { kind: "gru", parts: { r, z, n, before: before.h[col] }, value: (1 - z) * n + z * before.h[col] };
  },
  additive: ({ q, k, v }, row, col, value, find) => {
    const terms = products(Array.from({ length: q.cols }, (_, i) => [i + 1, find(v).data[i], Math.tanh(q.at(row, i) + k.at(col, i))]));
    return { terms, value: total(terms) };
  },
  window: ({ x, window }, row, col) => ({ parts: { x: x.at(row, col), window: window.at(row, col) }, value: x.at(row, col) * window.at(row, col) }),
  maxout: ({ x }, row, col) => ({ parts: { a: x.at(row, 2 * col), b: x.at(row, 2 * col + 1) }, value: Math.max(x.at(row, 2 * col), x.at(row, 2 * col + 1)) }),
  given: (from, row, col, value) => ({ value: value.at(row, col) }),
};
