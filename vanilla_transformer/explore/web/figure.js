// Figure 1 of the paper as the map of the page: a click leads to a block, and the block where the reader is lights up.
import { h, painted, percent, t } from "./dom.js";

const SUBLAYERS = { self_attention: "attention", cross_attention: "attention", feed_forward: "feed" };

export class Figure {
  constructor(app) {
    this.app = app;
    this.links = new Map();
    this.ids = [...document.querySelectorAll("main section[id], main .sub[id]")].map((one) => one.id);
    this.layer = {};
    this.live = {};
    const stacks = Object.keys(app.parts).filter((name) => app.parts[name][0]?.details), rest = ["search", "what-if", "training"];
    const columns = stacks.length ? stacks.map((stack) => this.column(stack, stack === stacks.at(-1)))
      : [h("div", { class: "stack" }, this.ids.filter((id) => !rest.includes(id)).map((id) => this.block(id, document.getElementById(`${id}-title`).textContent, "feed")).reverse())];
    this.element = h("nav", { id: "map", "aria-label": t("map") }, h("div", { class: "figure1" }, columns),
      h("div", { class: "beside" }, rest.filter((id) => this.ids.includes(id)).map((id) => this.block(id, t(`map.${id}`), "linear"))));
    addEventListener("scroll", () => requestAnimationFrame(() => this.follow()), { passive: true });
  }

  /** A stack from its inputs at the bottom to what it gives at the top, as the paper draws it. */
  column(stack, writes) {
    const { parts } = this.app, layers = parts[stack], kinds = ["self_attention", ...(layers[0].cross ? ["cross_attention"] : []), "feed_forward"];
    this.layer[stack] = stack === "decoder" ? layers.length : 1;
    const input = (this.live[stack] = h("span", { class: "live" })), output = writes ? (this.live.output = h("b", { class: "live" })) : null;
    const blocks = kinds.flatMap((kind) => [this.block(`${stack}-${kind}`, t(`map.${kind}`), SUBLAYERS[kind], stack), this.block(`${stack}-${kind}_norm`, t("map.norm"), "norm", stack)]);
    const numbers = layers.map((_, at) => this.block(`${stack}-${at + 1}`, String(at + 1), "attention"));
    return h("div", { class: "stack" }, output, writes && this.block("output", t("map.output"), "softmax"),
      h("div", { class: "frame" }, h("p", { class: "times" }, h("span", {}, `${layers.length}×`), numbers), blocks.reverse()),
      this.block(`${stack}-embedding`, t("map.embedding"), "embedding"), input);
  }

  /** A link to a block; those of a stack lead to the layer where the reader was last. */
  block(name, words, colour, stack = null) {
    const id = () => (stack ? name.replace(stack, `${stack}-${this.layer[stack]}`) : name);
    const link = h("a", { href: `#at=${id()}`, style: `--hue: var(--${colour})`, class: "block", onclick: (event) => { event.preventDefault(); this.go(id()); } }, words);
    this.links.set(name, link);
    return link;
  }

  /** Opens the layer of a block, and brings the block to the top of the page. */
  async go(id) {
    if (!this.ids.includes(id)) return;
    const element = document.getElementById(id), details = element.closest("section").querySelector("details");
    if (details) details.open = true;
    await painted(); // Only then its pictures have their size.
    element.scrollIntoView({ behavior: "instant", block: "start" });
    this.follow(id);
  }

  /** Lights up where the reader is: the last block that begins in the upper part of the window. */
  follow(found = null) {
    const line = document.querySelector(".bar").getBoundingClientRect().bottom + 0.2 * innerHeight;
    const begun = (block) => !block.closest("details:not([open])") && block.offsetHeight && block.getBoundingClientRect().top <= line;
    const here = found ?? this.ids.findLast((id) => begun(document.getElementById(id))) ?? null;
    if (here === this.here) return;
    this.here = here;
    const [, stack, layer, kind] = here?.match(/^(\w+)-(\d+)(?:-(\w+))?$/) ?? [];
    if (layer) this.layer[stack] = Number(layer);
    const lit = layer ? [`${stack}-${layer}`, `${stack}-${kind}`] : [here];
    this.links.forEach((link, name) => (lit.includes(name) ? link.setAttribute("aria-current", "location") : link.removeAttribute("aria-current")));
    this.app.keepAddress();
  }

  /** Lets parts change their heights, and keeps the block of the reader where it is below the bar. */
  settle(change) {
    const here = document.getElementById(this.here), bar = document.querySelector(".bar");
    const below = () => (here?.offsetHeight ? here.getBoundingClientRect().top - bar.getBoundingClientRect().bottom : null), before = below();
    change();
    if (scrollY > 0 && before !== null && below() !== null) scrollBy({ top: below() - before, behavior: "instant" });
  }

  /** What goes in and what comes out at the moment that is shown. */
  update() {
    const { result, model, generates, step, whatIf } = this.app, { encoder, only, output } = this.live;
    for (const stack of Object.keys(this.layer)) this.links.get(`${stack}-self_attention`).textContent = t(`map.${this.app.masks(stack) && whatIf.mask ? "masked" : "self_attention"}`);
    if (!result) return;
    const written = generates ? result.tokens.slice(0, step).map((id) => model.piece(id)) : [];
    for (const input of [encoder, only]) if (input) input.textContent = this.app.names(result.source).join(" ");
    if (this.live.decoder) this.live.decoder.textContent = [model.piece(model.tokens.start), ...written].join(" ");
    if (only && generates) only.textContent += ` ${written.join(" ")}`;
    if (output && generates) output.textContent = `${model.piece(result.tokens[step])} ${percent(result.decoder.probabilities.row(result.decoder.probabilities.rows - 1)[result.tokens[step]])}`;
  }
}
