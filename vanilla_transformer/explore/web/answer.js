// At the top, always in view: what was read and what the model says of it, token by token, beside the undisturbed answer.
import { h, number, percent, t } from "./dom.js";

/** Tokens that may not fit: the list scrolls to the current one. */
const LONG = 30;
const total = (chances) => chances.reduce((product, { p }) => product * p, 1);

export class Answer {
  constructor(app) {
    this.app = app;
    this.element = h("div", { id: "answer" });
  }

  update() {
    const { app } = this, { result, cut } = app;
    this.element.removeAttribute("aria-busy");
    if (!result) this.element.replaceChildren(h("p", { class: "hint" }, t("empty")));
    else this.element.replaceChildren(...(app.generates ? this.text() : this.labels()).filter(Boolean), ...(cut ? [h("p", { class: "warning" }, t("cut", { most: cut }))] : []));
    const undo = app.disturbances.map(([words, onclick]) => h("button", { type: "button", class: "quiet", onclick }, words));
    if (undo.length) this.element.append(h("div", { id: "disturbed", class: "examples", role: "group", "aria-label": t("disturbed") }, undo));
    const current = this.element.querySelector(".current"), list = current?.parentElement;
    if (list?.childElementCount > LONG) list.scrollTop = current.offsetTop - list.offsetTop - list.clientHeight / 2;
  }

  /** Of a model that writes: source, arrow, target, and where the reader stands in it. */
  text() {
    const { app } = this, { result, before, step, model } = app, last = result.tokens.length - 1;
    const go = (at) => () => app.goToToken(at);
    const read = chips("read", app.names(result.source).map((text) => ({ text })));
    const written = chips("written", app.names(result.tokens).map((text, at) => ({ text, current: at === step, title: t("goToStep", { step: at + 1 }), onclick: go(at) })));
    const arrow = (id, to, sign) => h("button", { type: "button", id, "aria-label": t(id), disabled: to < 0 || to > last, onclick: go(to) }, sign);
    const stepper = h("div", { class: "stepper" }, arrow("back", step - 1, "◀"), h("span", {}, t("stepOf", { step: step + 1, steps: last + 1 })), arrow("forward", step + 1, "▶"));
    const text = model.decode(result.tokens), unlike = before && model.decode(before.tokens);
    const beside = before && h("span", { class: "before", id: "before" }, unlike === text ? t("same") : [t("before"), " ", h("s", { dir: "auto" }, unlike || "∅")]);
    const weighed = this.weighed(step, (id) => model.piece(id));
    return [
      h("div", { class: "flow" }, read, h("span", { class: "arrow", "aria-hidden": "true" }, "→"), written),
      h("div", { class: `reply ${before && unlike !== text ? "changed" : ""}` }, h("p", {}, h("span", { class: "result", id: "result", dir: "auto" }, text || "∅"), beside), stepper),
      weighed,
    ];
  }

  /** How probable the undisturbed answer was and is, and what comes second where the reader stands. */
  weighed(at, name) {
    const { chances, before } = this.app;
    if (!chances) return null;
    const { then, now } = chances, id = before.tokens?.[at] ?? d3.maxIndex(before.logits?.row(Math.min(at, before.logits.rows - 1)) ?? []);
    const sentences = [t("chances", { before: number(total(then), 3), after: number(total(now), 3) })];
    if (then[at] && now[at]) sentences.push(t("chancesHere", { piece: name(id), before: number(then[at].p, 3), after: number(now[at].p, 3), rival: name(now[at].rival), share: number(now[at].rivalP, 3) }));
    return h("p", { class: "weighed", id: "weighed" }, sentences.join(" "));
  }

  /** Of a model that labels the text, or each token of it. */
  labels() {
    const { app } = this, { result, before, model } = app, { family, tokens } = model;
    if (family === "classifier") {
      const likeliest = (one) => [h("b", {}, this.label(one, 0)), ` ${percent(Math.max(...one.probabilities.row(0)))}`];
      return [chips("read", app.names(result.source).map((text) => ({ text }))), h("p", { class: "verdict" }, likeliest(result), before && h("span", { class: "before", id: "before" }, t("before"), " ", likeliest(before))), this.weighed(0, (id) => model.config.labels[id])];
    }
    const under = (one, at) => (family === "tagger" ? this.label(one, at) : one.source[at] === tokens.mask ? model.piece(d3.maxIndex(one.logits.row(at))) : "");
    const list = (one, onclick = null) => app.names(one.source).map((text, at) => ({ text, under: under(one, at), current: onclick && at === app.position, onclick: onclick && onclick(at) }));
    const choose = (at) => () => { app.row = at; app.show(); };
    return [chips("read", list(result, choose)), before && h("div", { class: "before", id: "before" }, t("before"), chips("read", list(before))), this.weighed(app.position, family === "tagger" ? (id) => model.config.labels[id] : (id) => model.piece(id))];
  }

  label = ({ logits }, row) => this.app.model.config.labels[d3.maxIndex(logits.row(row))];
}

/** Tokens in a row; with `onclick` each is a button, with `under` a label stands below it. */
function chips(name, tokens) {
  return h("ol", { class: name, "aria-label": t(name) }, tokens.map(({ text, under, current = false, title, onclick }) => h("li", { class: current ? "current" : "" },
    onclick ? h("button", { type: "button", title, onclick, "aria-current": current ? "step" : null }, text) : h("span", {}, text), under && h("small", {}, under))));
}
