// The page from top to bottom, in the paper's order. Each part is built once and shown again for each new computation.
import { h, number, percent, t } from "./dom.js";
import { Picture, thumbnail } from "./picture.js";
import { ops } from "./tape.js";

/** A part of the page: its place in the paper, what to look for, and what it holds. */
export function section(id, { paper, title, text, colour, formula = null, body = [] }) {
  return h("section", { id, class: "part", style: `--hue: var(--${colour})`, "aria-labelledby": `${id}-title` },
    h("header", {}, paper && h("span", { class: "number" }, paper), h("h2", { id: `${id}-title` }, title)),
    text && h("p", { class: "text" }, text), formula && equation(formula), body);
}

/** A formula of the words of the page, which are MathML. */
const equation = (formula) => h("p", { class: "equation", innerHTML: `<math display="block">${formula}</math>` });

/** Tokens in a row, each a chip. */
export function chips(tokens, label) {
  return h("ol", { class: "chips", "aria-label": label }, tokens.map(({ text, id, current }) => h("li", { class: current ? "current" : "" }, h("span", { class: "piece" }, text), h("small", {}, String(id)))));
}

export const picture = (app, key, section, options = {}) => {
  const made = new Picture({ title: t(key), inspector: app.inspector, ...options });
  made.section = section;
  return made;
};

/** Pictures by the keys of their titles, each with its section of the paper. */
export const pictures = (app, sections, options) => Object.fromEntries(Object.entries(sections).map(([key, place]) => [key, picture(app, key, place, options)]));

/** Sections 3.4 and 3.5 of one stack. */
export class EmbeddingPart {
  constructor(app, stack) {
    this.stack = stack;
    this.tokens = h("div");
    this.pictures = pictures(app, { scaled: "3.4", positions: "3.5", sum: "3.5" });
    const [scaled, positions, sum] = Object.values(this.pictures).map((one) => one.element), sign = (text) => h("p", { class: "sign", "aria-hidden": "true" }, text);
    this.element = section(`${stack}-embedding`, {
      paper: "3.4 · 3.5", colour: "embedding", title: t(`${stack}.embeddingTitle`), text: t("embeddingText", { root: number(Math.sqrt(app.model.config.d_model), 2) }),
      formula: t("embeddingFormula"),
      body: [this.tokens, scaled, sign("+"), positions, sign("="), sum],
    });
  }

  update({ embedded, ids }, rows, current) {
    this.tokens.replaceChildren(chips(ids.map((id, at) => ({ text: rows[at], id, current: at === current })), t("tokens")));
    const caption = { current, path: t(`stack.${this.stack}`) };
    // Beside each other sines and cosines are stripes, apart they are waves.
    const sine = embedded.positions.from.op === "sinusoids", dimensions = d3.range(embedded.positions.cols);
    this.pictures.positions.order = sine ? d3.sort(dimensions, (one) => one % 2) : null;
    for (const [name, one] of Object.entries(this.pictures)) one.update(embedded[name], rows, null, caption);
  }
}

/** Section 3.2: all heads as small pictures, one of them in full, and how they are joined. */
class AttentionPart {
  constructor(app, stack, number, kind) {
    Object.assign(this, { app, stack, number, kind, place: `${stack}.${number + 1}.${kind}` });
    const heads = app.model.config.num_heads;
    this.small = Array.from({ length: heads }, (_, head) => {
      const canvas = h("canvas", { class: "thumb", width: 64, height: 64, "aria-hidden": "true" });
      const choose = h("button", { type: "button", class: "head", "aria-pressed": "false", onclick: () => app.chooseHead(this.place, head) }, canvas, h("span", {}, t("head", { head: head + 1 })));
      const power = h("button", { type: "button", class: "power", "aria-pressed": "false", title: t("switchHead"), "aria-label": t("switchHeadNumber", { head: head + 1 }), onclick: () => app.toggle("heads", `${this.place}.${head + 1}`) }, "✕");
      return { canvas, choose, power, box: h("div", { class: "small" }, choose, power) };
    });
    Object.assign(this, pictures(app, { q: "3.2.2", k: "3.2.2", v: "3.2.2", mixed: "3.2.1", concat: "3.2.2", joined: "3.2.2" }));
    Object.assign(this, pictures(app, { scores: "3.2.1", difference: "3.2.1" }, { shape: "grid" }));
    this.masked = kind === "self_attention" && app.masks(stack) ? picture(app, "masked", "3.2.3", { shape: "grid" }) : null;
    this.weights = picture(app, "weights", "3.2.1", { shape: "grid", kind: "weights" });
    this.heading = h("h4");
    this.element = h("div", { class: "attention sub", id: `${stack}-${number + 1}-${kind}` },
      this.heading, h("p", { class: "text" }, t(`${kind}.text`)),
      h("div", { class: "headrow", role: "group", "aria-label": t("heads") }, this.small.map((one) => one.box)),
      h("div", { class: "three" }, this.q.element, this.k.element, this.v.element),
      h("div", { class: "two" }, this.scores.element, this.masked?.element, this.weights.element, this.difference.element),
      this.mixed.element, this.concat.element, this.joined.element);
  }

  /** `plain` is the same attention undisturbed. */
  update(attention, queries, keys, current, plain) {
    const { app } = this, chosen = app.chosenHead(this.place), head = attention.heads[chosen];
    const path = `${t("layerPath", { stack: t(`stack.${this.stack}`), layer: this.number + 1 })}, ${t(`${this.kind}.name`)}`;
    const caption = { current, path: `${path}, ${t("head", { head: chosen + 1 })}` };
    this.small.forEach(({ canvas, choose, power }, at) => {
      thumbnail(canvas, attention.heads[at].weights);
      choose.setAttribute("aria-pressed", String(at === chosen));
      choose.classList.toggle("off", attention.heads[at].off);
      power.setAttribute("aria-pressed", String(attention.heads[at].off));
    });
    this.q.update(head.q, queries, null, caption);
    this.k.update(head.k, keys, null, { path: caption.path });
    this.v.update(head.v, keys, null, { path: caption.path });
    this.scores.update(head.scores, queries, keys, { ...caption, title: t(head.scores.from.scale === 1 ? "undivided" : "scores") });
    // Headings tell what was computed: without its mask a decoder sees later tokens.
    this.heading.textContent = t(`${this.kind}.${head.masked ? "masked" : this.masked ? "unmasked" : "free"}`);
    if (this.masked) this.masked.element.hidden = !head.masked;
    if (head.masked) this.masked.update(head.masked, queries, keys, caption);
    this.weights.update(head.weights, queries, keys, caption);
    const usual = plain?.heads[chosen].weights, comparable = usual?.rows === head.weights.rows && usual.cols === head.weights.cols;
    this.difference.element.hidden = !comparable;
    if (comparable) this.difference.update(ops.difference(head.weights, usual), queries, keys, caption);
    this.mixed.keyName = (key) => keys[key];
    this.mixed.update(head.output, queries, null, caption);
    this.concat.update(attention.concat, queries, null, { current, path });
    this.joined.update(attention.output, queries, null, { current, path });
  }
}

/** Section 3.1: a layer, folded until it is asked for. */
export class LayerPart {
  constructor(app, stack, number, { cross, open }) {
    Object.assign(this, { app, stack, number, place: `${stack}.${number + 1}` });
    const id = `${stack}-${number + 1}`;
    this.self = new AttentionPart(app, stack, number, "self_attention");
    this.cross = cross ? new AttentionPart(app, stack, number, "cross_attention") : null;
    this.norms = ["self", ...(cross ? ["cross"] : []), "feed"].map((name) => ({ name, ...pictures(app, { residual: "3.1", norm: "3.1" }) }));
    Object.assign(this, pictures(app, { active: "3.3", feedOutput: "3.3" }));
    this.fires = h("p", { class: "fires" });
    const sublayers = { self: "self_attention", cross: "cross_attention", feed: "feed_forward" };
    const addAndNorm = (one) => h("div", { class: "addnorm sub", id: `${id}-${sublayers[one.name]}_norm` }, h("h4", {}, t("addNorm")), one.residual.element, one.norm.element);
    this.skip = h("button", { type: "button", class: "quiet skip-layer", "aria-pressed": "false", onclick: (event) => { event.preventDefault(); app.toggle("layers", this.place); } }, t("skipLayer"));
    this.peek = h("span", { class: "peek", "aria-hidden": "true" });
    this.skipped = h("p", { class: "text", hidden: true }, t("skippedText"));
    const feed = h("div", { class: "feed sub", id: `${id}-feed_forward` }, h("h4", {}, t("feedTitle")), h("p", { class: "text" }, t("feedText", { d_ff: app.model.config.d_ff })), equation(t("feedFormula")), this.active.element, this.fires, this.feedOutput.element);
    const elements = [this.self, this.cross].filter(Boolean).map((one) => one.element).concat(feed);
    this.content = h("div", { class: "inside" }, elements.map((one, at) => [one, addAndNorm(this.norms[at])]));
    this.details = h("details", { open, class: "layer" }, h("summary", {}, h("span", { class: "number" }, "3.1"), h("h3", {}, t("layerTitle", { stack: t(`stack.${stack}`), layer: number + 1 })), this.peek, this.skip), this.skipped, this.content);
    this.element = h("section", { id, class: "part layerpart", style: "--hue: var(--attention)", "aria-label": t("layerPath", { stack: t(`stack.${stack}`), layer: number + 1 }) }, this.details);
    this.details.addEventListener("toggle", () => this.details.open && this.shown && this.update(...this.shown));
  }

  /** `rows` are the tokens that are read, `written` those that the decoder writes after each of them. */
  update(layer, shown) {
    this.shown = [layer, shown];
    const { rows, written, memoryRows, current, plain } = shown;
    this.skip.setAttribute("aria-pressed", String(Boolean(layer.skipped)));
    this.skipped.hidden = !layer.skipped;
    this.content.hidden = Boolean(layer.skipped);
    if (layer.skipped) return this.peek.replaceChildren();
    const heads = [...layer.self.heads, ...(layer.cross?.heads ?? [])].slice(0, 16);
    if (!this.peek.children.length) this.peek.append(...heads.map(() => h("canvas", { class: "tiny" })));
    heads.forEach(({ weights }, at) => thumbnail(this.peek.children[at], weights));
    if (!this.details.open) return;
    this.self.update(layer.self, rows, rows, current, plain?.self);
    if (this.cross) this.cross.update(layer.cross, written, memoryRows, current, plain?.cross);
    const path = t("layerPath", { stack: t(`stack.${this.stack}`), layer: this.number + 1 });
    for (const { name, residual, norm } of this.norms) {
      const made = layer[{ self: "afterSelf", cross: "afterCross", feed: "afterFeed" }[name]];
      residual.update(made.residual, rows, null, { current, path });
      norm.update(made.norm, rows, null, { current, path });
    }
    this.active.update(layer.feed.active, rows, null, { current, path });
    this.feedOutput.update(layer.feed.output, rows, null, { current, path });
    const row = layer.feed.active.row(current ?? layer.feed.active.rows - 1), firing = row.reduce((count, unit) => count + (unit > 0), 0);
    this.fires.textContent = t("fires", { token: rows[current ?? rows.length - 1], count: firing, all: row.length, share: percent(firing / row.length) });
  }
}

/** Section 3.4 again: the output projection, and the softmax over what may come next. */
export class OutputPart {
  constructor(app, { title, text, names, choose = null }) {
    Object.assign(this, { app, names, choose });
    this.logits = picture(app, "logits", "3.4", { columns: names });
    this.probabilities = picture(app, "probabilities", "3.4", { kind: "amounts", columns: names });
    this.list = h("ol", { class: "likeliest" });
    this.element = section("output", { paper: "3.4", colour: "softmax", title, text, body: [this.logits.element, this.probabilities.element, h("h4", {}, t("likeliest")), this.list] });
  }

  /** `row` is the position whose likeliest are listed; `chosen` what the answer has there. */
  update({ logits, probabilities }, rows, row, chosen = null) {
    const path = t("output");
    this.logits.update(logits, rows, null, { current: row, path });
    this.probabilities.update(probabilities, rows, null, { current: row, path });
    const shares = probabilities.row(row), order = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, 10);
    const most = shares[order[0]];
    this.list.replaceChildren(...order.map((id) => {
      const line = [h("span", { class: "piece" }, this.names(id)), h("span", { class: "bar plus", style: `--share: ${shares[id] / most}` }), h("span", { class: "share" }, percent(shares[id])), h("span", { class: "log" }, `log ${number(Math.log(shares[id]), 3)}`)];
      const ask = ({ pointerType, target }) => (pointerType === "mouse" || target.matches(":focus-visible")) && this.app.inspector.show(this.probabilities, row, id, false);
      return h("li", { class: id === chosen ? "chosen" : "", onpointerenter: ask, onfocusin: ask }, this.choose
        ? h("button", { type: "button", title: t("takeInstead"), onclick: () => this.choose(id) }, line) : h("span", { class: "line" }, line));
    }));
  }
}
