// What if: the switches that a lecture asks for, all in one place; a head or a layer can be switched at its own place too.
import { h, number, t } from "./dom.js";
import { section } from "./sections.js";

export class Switches {
  constructor(app) {
    this.app = app;
    const { model, whatIf } = app, { config } = model;
    const recurrent = model.family === "recurrent";
    this.temperature = h("input", { type: "range", min: -1, max: 1, step: 0.05, value: Math.log10(whatIf.temperature), "aria-label": t("temperature"), oninput: () => app.set("temperature", Number((10 ** this.temperature.value).toFixed(2))) });
    this.temperatureTold = h("output", {});
    this.positions = h("select", { onchange: () => app.set("positions", this.positions.value) }, ["as-is", "none", "shuffled"].map((one) => h("option", { value: one }, t(`positions.${one}`))));
    const box = (name, words) => (this[name] = h("input", { type: "checkbox", checked: whatIf[name], onchange: () => app.set(name, this[name].checked) }), h("label", { class: "check" }, this[name], words));
    this.other = h("input", { type: "text", dir: "auto", spellcheck: false, placeholder: t("otherPlaceholder"), "aria-label": t("other"), onfocus: () => { this.other.value ||= app.text; }, oninput: () => app.set("other", this.other.value) });
    this.board = recurrent ? null : this.switchboard(config);
    this.reset = h("button", { type: "button", class: "quiet", onclick: () => app.undo() }, t("undo"));
    const masks = ["encoder-decoder", "language-model"].includes(model.family);
    this.element = section("what-if", { paper: "", colour: "linear", title: t("whatIf"), text: t("whatIfHint"), body: [
      h("div", { class: "switches" },
        h("label", { class: "slider" }, h("span", {}, t("temperature")), this.temperature, this.temperatureTold),
        recurrent ? null : h("label", {}, h("span", {}, t("positions")), " ", this.positions),
        recurrent ? null : box("scale", t("scaleSwitch")), masks ? box("mask", t("maskSwitch")) : null,
        h("label", { class: "other" }, h("span", {}, t("other")), this.other)),
      this.board, this.reset] });
    new IntersectionObserver(([{ isIntersecting }]) => { this.inView = isIntersecting; this.weigh(); }).observe(this.element);
  }

  /** A row for each layer, a button for each head. */
  switchboard({ num_heads: heads, encoder_layers, decoder_layers }) {
    const { family } = this.app.model, stacks = family === "encoder-decoder" ? [["encoder", encoder_layers], ["decoder", decoder_layers]] : [["only", encoder_layers ?? decoder_layers]];
    this.buttons = [];
    const button = (kind, name, words, label) => {
      const made = h("button", { type: "button", class: `switch ${kind}`, "aria-label": label, onclick: () => this.app.toggle(kind, name) }, words);
      this.buttons.push({ kind, name, made, label });
      return made;
    };
    const row = (stack, number) => {
      const place = `${stack}.${number + 1}`, path = t("layerPath", { stack: t(`stack.${stack}`), layer: number + 1 });
      const headsOf = (kind) => h("td", {}, Array.from({ length: heads }, (_, head) => button("heads", `${place}.${kind}.${head + 1}`, String(head + 1), `${path}, ${t(`${kind}.name`)}, ${t("head", { head: head + 1 })}`)));
      return h("tr", {}, h("th", { scope: "row" }, path), h("td", {}, button("layers", place, t("whole"), `${path}: ${t("skipLayer")}`)), headsOf("self_attention"), stack === "decoder" ? headsOf("cross_attention") : h("td"));
    };
    const head = ["layerWord", "whole", "self_attention.name", "cross_attention.name"].slice(0, family === "encoder-decoder" ? 4 : 3).map((key) => h("th", { scope: "col" }, t(key)));
    return h("div", { class: "scrolls" }, h("table", { class: "board" }, h("caption", {}, t("boardCaption")), h("thead", {}, h("tr", {}, head)), h("tbody", {}, stacks.flatMap(([stack, count]) => Array.from({ length: count }, (_, number) => row(stack, number))))));
  }

  update() {
    const { whatIf, disturbances } = this.app;
    this.temperatureTold.textContent = String(whatIf.temperature);
    this.temperature.value = Math.log10(whatIf.temperature);
    this.positions.value = whatIf.positions;
    for (const name of ["scale", "mask"]) if (this[name]) this[name].checked = whatIf[name];
    if (document.activeElement !== this.other) this.other.value = this.app.other;
    for (const { kind, name, made } of this.buttons ?? []) made.setAttribute("aria-pressed", String(whatIf[kind].has(name)));
    this.reset.hidden = !disturbances.length;
    this.weigh();
  }

  /** Colours each head and layer by how much less probable the answer is without it: a strip of those that matter. */
  async weigh() {
    const { app } = this, { result, whatIf } = app;
    if (!this.inView || !result || !this.buttons || this.weighed === result) return;
    this.weighed = result;
    const tokens = app.generates ? result.tokens : app.likeliest(result), switches = this.buttons.map(({ kind, name }) => ({ kind, name }));
    const found = await app.computer.ask("effects", result.model, { source: result.source, whatIf, tokens, switches });
    if (!found || result !== app.result) return;
    for (const { name, made, label } of this.buttons) {
      const without = found.without[name], lost = Math.max(0, 1 - without / found.now);
      made.style.setProperty("--lost", `${Math.round(100 * lost)}%`);
      made.classList.toggle("dark", lost > 0.5);
      made.title = `${label}: ${number(found.now, 3)} → ${number(without, 3)}`;
    }
  }
}
