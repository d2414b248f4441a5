// The page: what is typed, what is switched, what is computed from it, and where it is shown.
import { aliases, currentLanguage, h, number, percent, setLanguage, t } from "./dom.js";
import { Inspector } from "./inspector.js";
import { Model } from "./model.js";
import { beamSearch, limitOf } from "./search.js";
import { EmbeddingPart, LayerPart, OutputPart } from "./sections.js";
import { decode } from "./recurrent.js";
import { RecurrentAttentionPart, RecurrentPart } from "./recurrent_parts.js";
import { decoding, encoded } from "./stepping.js";
import { Switches } from "./switches.js";
import { TrainingPart } from "./training.js";
import { classify, project, run, undisturbed } from "./transformer.js";
import { TreePart } from "./tree.js";
import { languages } from "./words.js";

/** Longer texts take a browser too long, and no picture shows them. */
const MOST_TOKENS = 512;
/** Tokens that a language model goes on with. */
const CONTINUATION = 24;
/** Milliseconds after which a long search lets the page answer. */
const PATIENCE = 40;
const CHAPTERS = {
  "3.1": "3.1-stacks", "3.2.1": "3.2-attention", "3.2.2": "3.2-attention", "3.2.3": "3.2-attention", "3.3": "3.3-feed-forward",
  "3.4": "3.4-embeddings", "3.5": "3.5-positions", "5.3": "5.3-optimizer", "6.1": "6.1-translation", recurrent: "what-it-replaced",
};

export class App {
  constructor(model) {
    this.model = model;
    this.now = model; // The one that computes: at another moment of its training, if the reader has gone there.
    this.whatIf = undisturbed();
    this.other = "";
    this.forced = [];
    this.step = Infinity;
    this.chosen = new Map();
    this.text = model.examples[0];
    this.settings = model.search ? { ...model.search, width: Math.min(8, model.search.width) } : { width: 1, alpha: 0.6, google: true, early: "never" };
    this.generates = ["encoder-decoder", "language-model", "recurrent"].includes(model.family);
    this.undisturbedAnswers = new Map();
    this.run = 0;
    aliases["stack.only"] = model.family === "language-model" ? "stack.decoder" : "stack.encoder";
  }

  chapter = (section) => (this.model.documentation && CHAPTERS[section] ? `${this.model.documentation.replace(/\/$/, "")}/paper/${CHAPTERS[section]}.html` : null);

  // What a reader changes -------------------------------------------------------------------------------------------

  async type(text) {
    Object.assign(this, { text, forced: [], step: Infinity, row: null });
    await this.compute();
  }

  async set(name, value) {
    if (name === "other") this.other = value;
    else this.whatIf[name] = value;
    this.forced = [];
    await this.compute();
  }

  async toggle(kind, name) {
    const names = this.whatIf[kind];
    if (!names.delete(name)) names.add(name);
    this.forced = [];
    await this.compute();
  }

  async undo() {
    Object.assign(this, { whatIf: undisturbed(), other: "", forced: [] });
    await this.compute();
  }

  async search(name, value) {
    this.settings[name] = value;
    this.forced = [];
    await this.compute();
  }

  async goTo(step) {
    this.wanted = step;
    const model = await this.model.at(step);
    if (step !== this.wanted) return; // The reader has gone on in the meantime.
    this.now = model;
    await this.compute();
  }

  async goToToken(step) {
    const steps = this.result?.tokens.length ?? 0;
    this.step = Math.max(0, Math.min(steps - 1, step));
    this.show();
  }

  /** From the step that is shown the answer goes on with this token instead of its own. */
  async take(token) {
    this.forced = [...this.result.tokens.slice(0, this.step), token];
    this.step += 1;
    await this.compute();
  }

  chosenHead(place) {
    return this.chosen.get(place) ?? 0;
  }

  chooseHead(place, head) {
    this.chosen.set(place, head);
    this.show();
  }

  get disturbed() {
    const { heads, layers, positions, scale, mask, temperature } = this.whatIf;
    return heads.size + layers.size > 0 || positions !== "as-is" || !scale || !mask || temperature !== 1 || this.other !== "" || this.forced.length > 0 || this.now !== this.model;
  }

  // What is computed ------------------------------------------------------------------------------------------------

  /** The ids of a text; of one that is too long its first ones, which the page says. */
  ids(text) {
    const ids = text.trim() ? this.model.encode(text) : [], learned = this.model.config.positional_encoding === "learned";
    const most = Math.min(MOST_TOKENS, learned ? this.model.config.max_position_embeddings : MOST_TOKENS);
    return { ids: ids.length > most ? [...ids.slice(0, most - 1), ids.at(-1)] : ids, cut: ids.length > most ? most : null };
  }

  async compute() {
    const number = ++this.run, started = performance.now();
    const source = this.ids(this.other.trim() || this.text);
    this.cut = source.cut;
    if (!source.ids.length) {
      this.result = null;
      this.show();
      return;
    }
    const result = await this.answer(this.now, source.ids, structuredClone(this.whatIf), this.forced, number);
    if (!result || number !== this.run) return; // Something was typed in the meantime.
    // Who was at the end stays at the end, of whatever length the answer is now.
    if (this.step >= (this.result?.tokens?.length ?? 0) - 1 && !this.forced.length) this.step = Infinity;
    this.result = result;
    this.before = this.disturbed && this.text.trim() ? await this.asItIs(number) : null;
    if (number !== this.run) return;
    this.step = Math.max(0, Math.min(this.step, (result.tokens?.length ?? 1) - 1));
    this.show();
    this.took = performance.now() - started;
    this.state.textContent = this.told();
  }

  /** The answer of the whole model to the text itself. */
  async asItIs(number) {
    const key = JSON.stringify([this.text, this.settings]);
    if (!this.undisturbedAnswers.has(key)) {
      const answer = await this.answer(this.model, this.ids(this.text).ids, undisturbed(), [], number);
      if (!answer) return null;
      this.undisturbedAnswers.set(key, answer);
    }
    return this.undisturbedAnswers.get(key);
  }

  async answer(model, source, whatIf, forced, number) {
    if (!this.generates) {
      const only = run(model, "only", source, whatIf), head = model.family === "masked-language-model" ? project : classify;
      return { model, whatIf, source, only, ...head(model, only.output, whatIf) };
    }
    const encoder = encoded(model, source, whatIf);
    const prompt = encoder ? [model.tokens.start, ...forced] : [...source, ...forced];
    const limit = Math.max(1, (encoder ? limitOf(model, source.length) : roomAfter(model, source.length)) - forced.length);
    const settings = { ...this.settings, width: encoder ? this.settings.width : 1, limit, prompt, temperature: whatIf.temperature };
    const ended = forced.some((token) => model.tokens.ends.includes(token));
    const tree = ended ? { steps: [], best: [] } : await this.drain(beamSearch(model, decoding(model, source, whatIf, encoder), settings), number);
    if (!tree) return null;
    return { model, whatIf, source, encoder, tree, settings, tokens: [...forced, ...(tree.best[0]?.tokens ?? [])] };
  }

  /** Runs a search, and in between lets the page draw; null where another run has begun. */
  async drain(search, number) {
    let since = performance.now();
    for (;;) {
      const { done, value } = search.next();
      if (done) return value;
      if (performance.now() - since > PATIENCE) {
        await new Promise((resume) => setTimeout(resume));
        if (number !== this.run) return null;
        since = performance.now();
      }
    }
  }

  /** The decoder over what it has read before the step that is shown. */
  decoded(tokens = this.result.tokens.slice(0, this.step)) {
    const { result } = this, { model, whatIf } = result;
    if (model.family === "recurrent") {
      const decoder = decode(model, result.encoder, [model.tokens.start, ...tokens]);
      return { ...decoder, ...project(model, decoder.output, whatIf) };
    }
    const stack = result.encoder ? "decoder" : "only", before = result.encoder ? [model.tokens.start] : result.source;
    const decoder = run(model, stack, [...before, ...tokens], whatIf, { memory: result.encoder?.output ?? null, causal: true });
    return { ...decoder, ...project(model, decoder.output, whatIf) };
  }

  /** For the training's replay: the attention to the source of the head that is chosen, at a moment. */
  async attentionAt(step) {
    const model = await this.model.at(step), answer = this.before ?? this.result;
    const whatIf = undisturbed(), read = answer.tokens?.slice(0, -1);
    if (model.family === "recurrent") {
      const decoder = decode(model, encoded(model, answer.source, whatIf), [model.tokens.start, ...read]);
      return { weights: decoder.weights ?? decoder.output, rows: this.names(answer.tokens), columns: this.names(answer.source), path: t("recurrent.attention") };
    }
    const crosses = model.family === "encoder-decoder";
    const encoder = crosses ? run(model, "encoder", answer.source, whatIf) : null;
    const ids = crosses ? [model.tokens.start, ...read] : answer.source;
    const decoder = run(model, crosses ? "decoder" : "only", ids, whatIf, { memory: encoder?.output ?? null, causal: this.generates });
    const layer = decoder.layers.at(-1), attention = layer.cross ?? layer.self, head = this.chosenHead(attention.place);
    const rows = this.names(crosses ? answer.tokens : ids), columns = this.names(crosses ? answer.source : ids);
    return { weights: attention.heads[head].weights, rows, columns, path: `${t("layerPath", { stack: t(`stack.${decoder.stack}`), layer: decoder.layers.length })}, ${t("head", { head: head + 1 })}` };
  }

  names(ids) {
    return ids.map((id) => this.model.piece(id));
  }

  // What is shown ---------------------------------------------------------------------------------------------------

  build() {
    const { model } = this, { config, family } = model;
    this.inspector = new Inspector(this.chapter);
    this.switches = new Switches(this);
    this.input = h("input", { id: "text", type: "text", dir: "auto", autocomplete: "off", spellcheck: false, value: this.text, "aria-label": t("input"), placeholder: t("placeholder"), oninput: () => this.type(this.input.value) });
    this.state = h("p", { id: "state", role: "status" });
    this.answerBox = h("div", { id: "answer" });
    this.parts = this.partsOf(family, config);
    const language = h("select", { "aria-label": t("language"), onchange: () => this.speak(language.value) }, Object.entries(languages).map(([key, words]) => h("option", { value: key, selected: key === currentLanguage() }, words.name)));
    const theme = h("button", { type: "button", class: "quiet", onclick: () => this.turnTheme() }, t("theme"));
    const examples = h("div", { class: "examples", role: "group", "aria-label": t("examples") }, model.examples.map((text) => h("button", { type: "button", class: "quiet", dir: "auto", onclick: () => { this.input.value = text; this.type(text); } }, text)));
    document.getElementById("app").replaceChildren(
      h("a", { class: "skip", href: "#main" }, t("skip")),
      h("header", { class: "top" }, h("div", { class: "brand" }, h("p", { class: "kicker" }, t(`kicker.${family}`)), h("h1", {}, model.name), h("p", { class: "lead" }, t(`lead.${family}`, this.sizes()))), h("div", { class: "tools" }, language, theme)),
      h("div", { class: "asking" }, h("form", { onsubmit: (event) => event.preventDefault() }, this.input), examples),
      h("div", { class: "bar" }, this.answerBox, this.switches.element),
      h("div", { class: "columns" }, this.contents(), h("main", { id: "main" }, Object.values(this.parts).flat().map((part) => part.element), h("footer", {}, this.state, h("p", {}, t("footer")))), this.inspector.element),
    );
    document.title = `${model.name} · ${t("title")}`;
  }

  sizes() {
    const { config, parameters } = this.model;
    return { parameters: parameters.toLocaleString(currentLanguage()), encoder: config.encoder_layers, decoder: config.decoder_layers, layers: config.num_layers ?? config.encoder_layers ?? config.decoder_layers, d_model: config.d_model, heads: config.num_heads };
  }

  partsOf(family, config) {
    const layers = (stack, count, cross, open) => Array.from({ length: count }, (_, number) => new LayerPart(this, stack, number, { cross, open: number === open }));
    const pieces = (id) => this.model.piece(id), labels = (id) => config.labels[id] ?? String(id);
    const output = (names, choose) => new OutputPart(this, { title: t(`outputTitle.${family}`), text: t(`outputText.${family}`), names, choose });
    const training = this.model.training ? [new TrainingPart(this)] : [];
    if (family === "encoder-decoder") {
      return {
        source: [new EmbeddingPart(this, "encoder")], encoder: layers("encoder", config.encoder_layers, false, 0),
        target: [new EmbeddingPart(this, "decoder")], decoder: layers("decoder", config.decoder_layers, true, config.decoder_layers - 1),
        output: [output(pieces, (token) => this.take(token))], tree: [new TreePart(this)], training,
      };
    }
    if (family === "recurrent") {
      return {
        encoder: [new RecurrentPart(this, "encoder")], decoder: [new RecurrentPart(this, "decoder")], attention: [new RecurrentAttentionPart(this)],
        output: [output(pieces, (token) => this.take(token))], tree: [new TreePart(this)], training,
      };
    }
    const generates = family === "language-model";
    return {
      source: [new EmbeddingPart(this, "only")], only: layers("only", config.encoder_layers ?? config.decoder_layers, false, 0),
      output: [output(family.endsWith("language-model") ? pieces : labels, generates ? (token) => this.take(token) : null)], training,
    };
  }

  contents() {
    const entries = [];
    for (const part of Object.values(this.parts).flat()) {
      const { id } = part.element, name = part.element.querySelector("h2, h3")?.textContent, hue = part.element.style.getPropertyValue("--hue");
      entries.push(h("li", {}, h("a", { href: `#${id}`, style: `--hue: ${hue}`, class: part.place ? "indented" : "", onclick: () => { if (part.details) part.details.open = true; } }, name)));
    }
    return h("nav", { id: "contents", "aria-label": t("contents") }, h("ol", {}, entries));
  }

  show() {
    const { result, model, parts } = this;
    this.switches.update();
    this.state.textContent = this.told();
    document.getElementById("main").classList.toggle("empty", !result);
    this.showAnswer();
    if (!result) return;
    const source = this.names(result.source);
    if (!this.generates) {
      const pooled = model.family === "classifier", row = pooled ? null : this.row ?? this.firstRow(result);
      parts.source[0].update(result.only, source, row);
      parts.only.forEach((part, at) => part.update(result.only.layers[at], source, null, row));
      parts.output[0].update(result, pooled ? [t("text")] : source, pooled ? 0 : row);
    } else {
      const decoder = this.decoded(), rows = this.names(decoder.ids), current = decoder.ids.length - 1;
      if (model.family === "recurrent") {
        parts.encoder[0].update(result.encoder, source, null);
        parts.decoder[0].update(decoder, rows, current);
        parts.attention[0].update(decoder, rows, source, current);
      } else if (result.encoder) {
        parts.source[0].update(result.encoder, source, null);
        parts.encoder.forEach((part, at) => part.update(result.encoder.layers[at], source, null, null));
      }
      if (model.family !== "recurrent") {
        parts[result.encoder ? "target" : "source"][0].update(decoder, rows, current);
        parts[result.encoder ? "decoder" : "only"].forEach((part, at) => part.update(decoder.layers[at], rows, source, current));
      }
      parts.output[0].update(decoder, rows, current, result.tokens[this.step]);
      this.trace = decoder;
      if (parts.tree && result.tree.steps.length) parts.tree[0].update(result.tree, this.step - this.forced.length, result.settings);
    }
    parts.training[0]?.update(this.now.step);
  }

  firstRow({ source }) {
    return Math.max(0, source.indexOf(this.model.tokens.mask));
  }

  showAnswer() {
    const { result, model } = this;
    if (!result) {
      this.answerBox.replaceChildren(h("p", { class: "hint" }, t("empty")));
      return;
    }
    const note = [this.cut && h("p", { class: "warning" }, t("cut", { most: this.cut }))];
    const token = (text, { current = false, title = "", onclick = null, under = "" }) => h("li", { class: current ? "current" : "" }, onclick ? h("button", { type: "button", title, onclick, "aria-current": current ? "step" : null }, text) : h("span", {}, text), under && h("small", {}, under));
    const read = h("ol", { class: "read", "aria-label": t("read") }, this.names(result.source).slice(0, 80).map((text, at) => token(text, this.generates ? {} : {
      current: model.family !== "classifier" && at === (this.row ?? this.firstRow(result)), onclick: model.family === "classifier" ? null : () => { this.row = at; this.show(); },
      under: model.family === "tagger" ? this.label(result, at) : model.family === "masked-language-model" && result.source[at] === model.tokens.mask ? this.names([argmax(result.logits.row(at))])[0] : "",
    })));
    if (!this.generates) {
      const told = model.family === "classifier" ? h("p", { class: "verdict" }, h("b", {}, this.label(result, 0)), ` ${percent(Math.max(...result.probabilities.row(0)))}`) : null;
      const before = this.before && model.family === "classifier" ? h("p", { class: "before" }, t("before"), " ", h("b", {}, this.label(this.before, 0)), ` ${percent(Math.max(...this.before.probabilities.row(0)))}`) : null;
      this.answerBox.replaceChildren(read, ...[told, before, ...note].filter(Boolean));
      return;
    }
    const written = h("ol", { class: "written", "aria-label": t("written") }, result.tokens.map((id, at) => token(model.piece(id), { current: at === this.step, title: t("goToStep", { step: at + 1 }), onclick: () => this.goToToken(at) })));
    const stepper = h("div", { class: "stepper" },
      h("button", { type: "button", id: "back", "aria-label": t("back"), disabled: this.step === 0, onclick: () => this.goToToken(this.step - 1) }, "◀"),
      h("span", {}, t("stepOf", { step: this.step + 1, steps: result.tokens.length })),
      h("button", { type: "button", id: "forward", "aria-label": t("forward"), disabled: this.step >= result.tokens.length - 1, onclick: () => this.goToToken(this.step + 1) }, "▶"));
    const text = model.decode(result.tokens), before = this.before ? model.decode(this.before.tokens) : null;
    this.answerBox.replaceChildren(h("div", { class: "flow" }, read, h("span", { class: "arrow", "aria-hidden": "true" }, "→"), written, stepper),
      ...[h("p", { class: `said ${before !== null && before !== text ? "changed" : ""}` }, h("span", { class: "result", id: "result", dir: "auto" }, text || "∅"),
        before === null ? null : h("span", { class: "before", id: "before" }, before === text ? t("same") : [t("before"), " ", h("s", { dir: "auto" }, before || "∅")])), ...note].filter(Boolean));
  }

  label({ logits }, row) {
    return this.model.config.labels[argmax(logits.row(row))];
  }

  told() {
    const parts = [];
    if (this.checked !== undefined) parts.push(t(this.checked < 1e-3 ? "checkedRight" : "checkedWrong", { text: this.model.check.text, difference: number(this.checked, 7) }));
    if (this.took) parts.push(t("took", { milliseconds: Math.max(1, Math.round(this.took)) }));
    return parts.join(" ");
  }

  /** The largest difference from what Python says of the first example. */
  check() {
    const { model } = this, { source, target, likeliest, logits } = model.check, whatIf = undisturbed();
    let found;
    if (model.family === "recurrent") {
      found = project(model, decode(model, encoded(model, source, whatIf), target.slice(0, -1)).output, whatIf).logits;
    } else if (model.family === "encoder-decoder") {
      const encoder = run(model, "encoder", source, whatIf);
      found = project(model, run(model, "decoder", target.slice(0, -1), whatIf, { memory: encoder.output }).output, whatIf).logits;
    } else {
      const only = run(model, "only", source, whatIf, { causal: model.family === "language-model" });
      found = (model.family.endsWith("language-model") ? project : classify)(model, only.output, whatIf).logits;
    }
    const same = JSON.stringify(model.encode(model.check.text)) === JSON.stringify(source);
    this.checked = same ? Math.max(...likeliest.flatMap((ids, row) => ids.map((id, at) => Math.abs(found.at(row, id) - logits[row][at])))) : Infinity;
  }

  speak(language) {
    setLanguage(language);
    remember("language", language);
    this.build();
    this.show();
  }

  turnTheme() {
    const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark"), root = document.documentElement;
    root.dataset.theme = dark ? "light" : "dark";
    remember("theme", root.dataset.theme);
    this.show();
  }

  /** Keys for the whole page: the arrows step through the answer. */
  key(event) {
    if (event.target.closest("input, select, textarea, canvas, .scrolls") || event.altKey || event.ctrlKey || event.metaKey || !this.generates || !this.result) return;
    if (event.key === "ArrowRight") this.goToToken(this.step + 1);
    else if (event.key === "ArrowLeft") this.goToToken(this.step - 1);
    else if (event.key === "Escape") this.inspector.clear();
  }
}

/** Tokens that a language model may go on with: learned positions end. */
function roomAfter({ config }, length) {
  return config.positional_encoding === "learned" ? Math.min(CONTINUATION, config.max_position_embeddings - length + 1) : CONTINUATION;
}

const argmax = (row) => row.reduce((best, value, at) => (value > row[best] ? at : best), 0);

function remember(name, value) {
  try {
    localStorage.setItem(`explore-${name}`, value);
  } catch {
    // A browser that keeps nothing forgets it.
  }
}

function remembered(name) {
  try {
    return localStorage.getItem(`explore-${name}`);
  } catch {
    return null;
  }
}

export let app = null;

async function open() {
  const notice = document.getElementById("notice"), theme = remembered("theme");
  setLanguage(remembered("language") ?? navigator.language.slice(0, 2));
  if (theme) document.documentElement.dataset.theme = theme;
  notice.textContent = t("loading");
  try {
    app = new App(await Model.load());
    app.check();
    app.build();
    document.getElementById("app").hidden = false;
    await app.compute();
    notice.remove();
    addEventListener("keydown", (event) => app.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.show());
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    notice.textContent = t("failed", { reason: error.message });
    throw error;
  }
}

if (location.protocol !== "file:") await open();
