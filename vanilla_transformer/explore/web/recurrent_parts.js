// The parts of the page that a recurrent model has instead of the Transformer's layers.
import { h, t } from "./dom.js";
import { chips, picture, pictures, section } from "./sections.js";

/** The states of one side, layer by layer. */
export class RecurrentPart {
  constructor(app, stack) {
    this.stack = stack;
    this.tokens = h("div");
    this.embedding = picture(app, "embeddings", "recurrent");
    this.layers = Array.from({ length: app.model.config.num_layers }, (_, layer) => picture(app, "statesOf", "recurrent", { title: t("statesOf", { layer: layer + 1 }) }));
    this.element = section(`${stack}-states`, {
      paper: "2014", colour: stack === "encoder" ? "embedding" : "feed", title: t(`recurrent.${stack}`), text: t(`recurrent.${stack}Text`),
      body: [this.tokens, this.embedding.element, this.layers.map((one) => one.element)],
    });
  }

  update({ ids, embedding, layers }, rows, current) {
    const caption = { current, path: t(`stack.${this.stack}`) };
    this.tokens.replaceChildren(chips(ids.map((id, at) => ({ text: rows[at], id, current: at === current })), t("tokens")));
    this.embedding.update(embedding, rows, null, caption);
    this.layers.forEach((one, number) => one.update(layers[number], rows, null, caption));
  }
}

/** The attention of Bahdanau et al. and of Luong et al., where there is one. */
export class RecurrentAttentionPart {
  constructor(app) {
    this.attends = app.model.config.attention !== "none";
    this.scores = picture(app, "comparison", "recurrent", { shape: "grid" });
    this.weights = picture(app, "weights", "recurrent", { shape: "grid", kind: "weights" });
    Object.assign(this, pictures(app, { context: "recurrent", attentional: "recurrent" }));
    this.element = section("attention", {
      paper: "2015", colour: "attention", title: t("recurrent.attention"), text: t(this.attends ? "recurrent.attentionText" : "recurrent.none"),
      body: this.attends ? [h("div", { class: "two" }, this.scores.element, this.weights.element), this.context.element, this.attentional.element] : [],
    });
  }

  update(decoder, written, columns, current) {
    if (!this.attends) return;
    const caption = { current, path: t("recurrent.attention") };
    this.context.keyName = (key) => columns[key];
    this.scores.update(decoder.scores, written, columns, caption);
    this.weights.update(decoder.weights, written, columns, caption);
    this.context.update(decoder.context, written, null, caption);
    this.attentional.update(decoder.output, written, null, caption);
  }
}
