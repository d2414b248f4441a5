// The page: what is typed, what is switched, what is computed from it, and where it is shown.
import { addressOf, stateOf } from "./address.js";
import { Answer } from "./answer.js";
import { Computer } from "./computer.js";
import { aliases, h, number, painted, t } from "./dom.js";
import { Figure } from "./figure.js";
import { Inspector } from "./inspector.js";
import { Model } from "./model.js";
import { readStyle } from "./picture.js";
import { RecurrentAttentionPart, RecurrentPart } from "./recurrent_parts.js";
import { EmbeddingPart, LayerPart, OutputPart } from "./sections.js";
import { Switches } from "./switches.js";
import { TrainingPart } from "./training.js";
import { undisturbed } from "./transformer.js";
import { TreePart } from "./tree.js";
import { views } from "./views.js";

/** Longer texts take a browser too long, and no picture shows them. */
const MAX_TOKENS = 512;
const CHAPTERS = {
  "3.1": "3.1-stacks", "3.2.1": "3.2-attention", "3.2.2": "3.2-attention", "3.2.3": "3.2-attention", "3.3": "3.3-feed-forward",
  "3.4": "3.4-embeddings", "3.5": "3.5-positions", "5.3": "5.3-optimizer", "6.1": "6.1-translation", recurrent: "what-it-replaced",
};

export class App {
  constructor(computer, model) {
    Object.assign(this, { computer, model });
    this.now = model; // The one that computes: at another moment of its training, if the reader has gone there.
    this.generates = model.search !== null;
    this.ownSearch = this.generates ? { ...model.search, width: Math.min(8, model.search.width) } : null;
    // Among it `wanted`, the step of the training that the reader asked for last, which may still be loading; and
    // `step`, the token of the answer: null for one that tells something, Infinity for the last.
    Object.assign(this, stateOf(location.hash, this));
    this.run = 0;
    aliases["stack.only"] = model.family === "language-model" ? "stack.decoder" : "stack.encoder";
  }

  chapter = (section) => (this.model.documentation && CHAPTERS[section] ? `${this.model.documentation.replace(/\/$/, "")}/paper/${CHAPTERS[section]}.html` : null);

  // What a reader changes -------------------------------------------------------------------------------------------

  /** The answer is the model's own again, with what the reader has changed. */
  async change(changed = {}) {
    Object.assign(this, { forced: [], ...changed });
    await this.compute();
  }

  type = (text) => this.change({ text, step: Infinity, row: null });

  set = (name, value) => this.change(name === "other" ? { other: value } : { whatIf: { ...this.whatIf, [name]: value } });

  toggle(kind, name) {
    const names = this.whatIf[kind];
    if (!names.delete(name)) names.add(name);
    return this.change();
  }

  undo = () => this.change({ whatIf: undisturbed(), other: "" });

  /** Goes to the state of an address. */
  async follow(hash) {
    Object.assign(this, stateOf(hash, this));
    const { wanted } = this, model = wanted === null ? this.model : await this.model.at(wanted);
    if (wanted !== this.wanted) return; // The reader has followed another link in the meantime.
    this.now = model;
    const computed = this.compute();
    this.dress();
    this.input.value = this.text;
    await this.figure.go(this.at);
    await computed;
    await this.figure.go(this.at); // What is below the window has its height only now.
  }

  /** The address tells what is shown, so that it can be kept as a link. */
  keepAddress = () => history.replaceState(null, "", addressOf(this));

  /** In lecture mode the type is large, and the arrow keys go through the views: number 1 is the first, 0 ends it. */
  async lectureOn(at) {
    const there = this.views, number = Math.max(0, Math.min(there.length, at)), kept = { text: this.text, ...(this.theme && { theme: this.theme }) };
    await this.follow(number ? `${new URLSearchParams(kept)}&lecture=${number}&${there[number - 1]}` : `${new URLSearchParams({ ...kept, at: this.figure.here ?? "" })}`);
  }

  /** The views of a lecture that this model has. */
  get views() {
    return views.map((view) => view.replaceAll("{last}", `decoder-${this.model.config.decoder_layers}`)).filter((view) => this.figure.ids.includes(new URLSearchParams(view).get("at")));
  }

  /** Theme and size of the page. */
  dress() {
    const root = document.documentElement, { lecture } = this;
    if (this.theme) root.dataset.theme = this.theme;
    root.classList.toggle("lecture", lecture > 0);
    this.lectureButton.setAttribute("aria-pressed", String(lecture > 0));
    this.lectureButton.textContent = lecture ? t("lectureAt", { at: lecture, of: this.views.length }) : t("lecture");
  }

  search = (name, value) => this.change({ settings: { ...this.settings, [name]: value } });

  async goTo(step) {
    this.wanted = step;
    const model = await this.model.at(step);
    if (step !== this.wanted) return; // The reader has gone on in the meantime.
    this.now = model;
    await this.compute();
  }

  async goToToken(step) {
    const { result } = this, { source, whatIf, tokens } = result, at = Math.max(0, Math.min(tokens.length - 1, step));
    this.step = at;
    const found = await this.computer.ask("trace", result.model, { source, whatIf, tokens: tokens.slice(0, at) });
    if (!found || result !== this.result || at !== this.step) return; // The reader has gone on in the meantime.
    result.decoder = found.decoder;
    await this.compare();
    this.show();
  }

  /** From the step that is shown the answer goes on with this token instead of its own. */
  async take(token) {
    this.forced = [...this.result.tokens.slice(0, this.step), token];
    this.step += 1;
    await this.compute();
  }

  chosenHead = (place) => this.chosen.get(place) ?? 0;

  chooseHead(place, head) {
    this.chosen.set(place, head);
    this.show();
  }

  /** What is disturbed: the words for each, and what undoes it. */
  get disturbances() {
    const { whatIf, other, forced, now, model } = this, { positions, temperature } = whatIf;
    const place = ([stack, layer, kind, head]) => [t("layerPath", { stack: t(`stack.${stack}`), layer }), ...(kind ? [t(`${kind}.name`), t("head", { head })] : [])].join(", ");
    const off = (kind) => [...whatIf[kind]].map((name) => [t(`off.${kind}`, { place: place(name.split(".")) }), () => this.toggle(kind, name)]);
    const one = (is, key, value, undo) => (is ? [[t(`off.${key}`, { value }), undo]] : []), usual = undisturbed(), set = (name) => () => this.set(name, usual[name] ?? "");
    return [
      ...one(now !== model, "moment", t("afterSteps", { step: now.step }), () => this.goTo(null)), ...one(other, "other", other, set("other")), ...one(positions !== "as-is", `positions.${positions}`, "", set("positions")),
      ...["scale", "mask"].flatMap((name) => one(!whatIf[name], name, "", set(name))), ...off("layers"), ...off("heads"), ...one(temperature !== 1, "temperature", temperature, set("temperature")),
      ...one(forced.length, "take", model.piece(forced.at(-1)), () => this.change()),
    ];
  }

  /** Whether a stack keeps its tokens from seeing later ones. */
  masks = (stack) => stack === "decoder" || (stack === "only" && this.generates);

  // What is computed ------------------------------------------------------------------------------------------------

  /** The ids of a text; of one that is too long its first ones, which the page says. */
  ids(text) {
    const ids = text.trim() ? this.model.encode(text) : [], learned = this.model.config.positional_encoding === "learned";
    const most = Math.min(MAX_TOKENS, learned ? this.model.config.max_position_embeddings : MAX_TOKENS);
    return { ids: ids.length > most ? [...ids.slice(0, most - 1), ids.at(-1)] : ids, cut: ids.length > most ? most : null };
  }

  async compute() {
    const number = ++this.run, started = performance.now(), { now, whatIf, settings, forced } = this;
    const { ids: source, cut } = this.ids(this.other.trim() || this.text);
    this.cut = cut;
    // Who was at the end stays at the end, of whatever length the answer is now.
    if (this.step !== null && this.result && this.step >= (this.result.tokens?.length ?? 0) - 1 && !forced.length) this.step = Infinity;
    const answer = source.length ? this.computer.ask("answer", now, { source, whatIf, settings, forced, step: this.step }) : null;
    if (!this.parts) this.build(); // The first answer is computed meanwhile.
    this.answer.element.setAttribute("aria-busy", "true");
    const [result] = await Promise.all([answer, import("./vendor/d3.min.js")]);
    if (number !== this.run || (answer && !result)) return; // Something was typed in the meantime.
    const before = result && this.disturbances.length && this.text.trim() ? await this.asItIs() : null;
    if (number !== this.run) return;
    Object.assign(this, { before, result: result && { ...result, model: now } }, result && { step: result.step ?? 0, took: performance.now() - started });
    await this.compare();
    if (number === this.run) await this.show();
  }

  /** What the whole model computes where the disturbed one stands, and how probable both hold its answer. */
  async compare() {
    const { before, result, model, whatIf, computer } = this;
    this.plain = this.chances = null;
    if (!before) return;
    const source = this.ids(this.text).ids, usual = undisturbed(), tokens = this.generates ? before.tokens : this.likeliest(before);
    const plain = await computer.ask("trace", model, { source, whatIf: usual, tokens: result.tokens?.slice(0, this.step) });
    const then = plain && await computer.ask("chances", model, { source, whatIf: usual, tokens });
    const now = then && await computer.ask("chances", result.model, { source: result.source, whatIf, tokens });
    if (now && result === this.result) Object.assign(this, { plain, chances: { then, now } });
  }

  /** The answer of the whole model to the text itself. */
  async asItIs() {
    const key = JSON.stringify([this.text, this.settings]);
    if (this.undisturbed?.key !== key) {
      const answer = await this.computer.ask("answer", this.model, { source: this.ids(this.text).ids, whatIf: undisturbed(), settings: this.settings });
      if (!answer) return null;
      this.undisturbed = { key, answer };
    }
    return this.undisturbed.answer;
  }

  /** For the training's replay: the attention to the source of the head that is chosen, at a moment. */
  async attentionAt(step) {
    const { model, generates } = this, { family, config } = model, answer = this.before ?? this.result, crosses = generates && family !== "language-model";
    const tokens = generates ? answer.tokens.slice(0, -1) : [], source = this.names(answer.source), layers = config.decoder_layers ?? config.encoder_layers;
    const stack = crosses ? "decoder" : "only", head = this.chosenHead(`${stack}.${layers}.${crosses ? "cross" : "self"}_attention`);
    const weights = await this.computer.ask("attention", await model.at(step), { source: answer.source, tokens, head });
    const path = family === "recurrent" ? t("recurrent.attention") : `${t("layerPath", { stack: t(`stack.${stack}`), layer: layers })}, ${t("head", { head: head + 1 })}`;
    const rows = crosses ? this.names(answer.tokens) : [...source, ...this.names(tokens)];
    return { weights, rows, columns: crosses ? source : rows, path };
  }

  /** The likeliest label of each token, or of the text. */
  likeliest = ({ logits }) => Array.from({ length: logits.rows }, (_, row) => d3.maxIndex(logits.row(row)));

  names = (ids) => ids.map((id) => this.model.piece(id));

  // What is shown ---------------------------------------------------------------------------------------------------

  build() {
    const { model } = this, { config, family } = model;
    const kind = { "encoder-decoder": family, recurrent: family, "language-model": "decoder" }[family] ?? "encoder";
    this.inspector = new Inspector(this);
    this.switches = new Switches(this);
    this.input = h("input", { id: "text", type: "text", dir: "auto", autocomplete: "off", spellcheck: false, value: this.text, "aria-label": t("input"), placeholder: t("placeholder"), oninput: () => this.type(this.input.value) });
    this.state = h("p", { id: "state", role: "status" });
    this.answer = new Answer(this);
    this.parts = this.partsOf(family, config);
    const theme = h("button", { type: "button", class: "quiet", onclick: () => this.turnTheme() }, t("theme"));
    this.lectureButton = h("button", { type: "button", class: "quiet", title: t("lectureHint"), onclick: () => this.lectureOn(this.lecture ? 0 : 1) });
    const whatIf = h("button", { type: "button", class: "quiet", onclick: () => this.figure.go("what-if") }, t("whatIf"));
    const main = h("main", { id: "main" }, Object.values(this.parts).flat().map((part) => part.element), h("footer", {}, this.state, h("p", {}, t("footer"))));
    const columns = h("div", { class: "columns" }, main, this.inspector.element), bar = h("div", { class: "bar" }, h("div", { class: "title" }, h("h1", { title: model.name }, model.name), h("div", { class: "tools" }, this.lectureButton, theme)), h("form", { onsubmit: (event) => event.preventDefault() }, this.input, whatIf), this.answer.element);
    const examples = h("div", { class: "examples", role: "group", "aria-label": t("examples") }, model.examples.map((text) => h("button", { type: "button", class: "quiet", dir: "auto", onclick: () => { this.input.value = text; this.type(text); } }, text)));
    document.getElementById("app").replaceChildren(
      h("a", { class: "skip", href: "#main" }, t("skip")),
      bar, h("header", { class: "top" }, h("p", { class: "kicker" }, t(`kicker.${kind}`)), h("p", { class: "lead" }, this.lead()), examples), columns,
    );
    this.figure = new Figure(this);
    main.before(this.figure.element);
    // What sticks below the bar needs its height.
    new ResizeObserver(() => document.documentElement.style.setProperty("--bar", `${bar.offsetHeight}px`)).observe(bar);
    document.getElementById("app").hidden = false;
    document.title = `${model.name} · ${t("title")}`;
  }

  lead() {
    const { config, parameters } = this.model, { encoder_layers, decoder_layers, num_layers } = config;
    const counts = num_layers ? [`${num_layers} recurrent`] : [encoder_layers && `${encoder_layers} encoder`, decoder_layers && `${decoder_layers} decoder`];
    const sizes = { stacks: counts.filter(Boolean).join(" and "), d_model: config.d_model, heads: config.num_heads, parameters: String(parameters).replace(/\B(?=(\d{3})+$)/g, ",") };
    return t(num_layers ? "leadRecurrent" : "lead", sizes);
  }

  partsOf(family, config) {
    const layers = (stack, count, cross, open) => Array.from({ length: count }, (_, number) => new LayerPart(this, stack, number, { cross, open: number === open }));
    const names = family === "classifier" || family === "tagger" ? (id) => config.labels[id] ?? String(id) : (id) => this.model.piece(id);
    const embedding = (stack) => [new EmbeddingPart(this, stack)];
    const before = {
      "encoder-decoder": () => ({
        source: embedding("encoder"), encoder: layers("encoder", config.encoder_layers, false, 0),
        target: embedding("decoder"), decoder: layers("decoder", config.decoder_layers, true, config.decoder_layers - 1),
      }),
      recurrent: () => ({ encoder: [new RecurrentPart(this, "encoder")], decoder: [new RecurrentPart(this, "decoder")], attention: [new RecurrentAttentionPart(this)] }),
    }[family] ?? (() => ({ source: embedding("only"), only: layers("only", config.encoder_layers ?? config.decoder_layers, false, 0) }));
    const output = new OutputPart(this, { title: t(`outputTitle.${this.generates ? "writes" : family}`), text: t(`outputText.${this.generates ? "writes" : family}`), names, choose: this.generates ? (token) => this.take(token) : null });
    return { ...before(), output: [output], tree: this.generates ? [new TreePart(this)] : [], switches: [this.switches], training: this.model.training ? [new TrainingPart(this)] : [] };
  }

  /** Shows the answer with the stacks at once and the rest thereafter, so that a key is answered soon. */
  async show() {
    const [stacks, rest] = this.result ? this.shown() : [[], []];
    readStyle();
    document.getElementById("notice").hidden = true;
    this.figure.settle(() => {
      this.answer.update();
      this.figure.update();
      document.getElementById("main").classList.toggle("empty", !this.result);
      this.state.textContent = this.status();
      for (const [part, ...values] of stacks) part.update(...values);
    });
    await painted();
    this.keepAddress();
    for (const [part, ...values] of rest) part.update(...values);
    this.figure.follow();
  }

  /** Each part of the page with what it has to show: the stacks, and the rest. */
  shown() {
    const { result, parts, step } = this, { family } = this.model, source = this.names(result.source), { decoder } = result;
    const layers = (stack, found, plain, rest) => parts[stack].map((part, at) => [part, found.layers[at], { plain: plain?.layers[at], ...rest }]);
    const others = [...parts.switches, ...parts.training].map((part) => [part]), { plain } = this;
    if (!this.generates) {
      const pooled = family === "classifier", row = pooled ? null : this.position;
      const output = pooled ? [t("text")] : source;
      return [[[parts.source[0], result.only, source, row], ...layers("only", result.only, plain?.only, { rows: source, current: row }), [parts.output[0], result, output, row ?? 0]], others];
    }
    // A row of the decoder reads one token and writes the next: where it looks, it is named by the one that it writes.
    const rows = this.names(decoder.ids), current = rows.length - 1, written = this.names(result.tokens.slice(0, step + 1));
    const reads = rows.map((row, at) => `${row} → ${rows[at + 1] ?? this.model.piece(result.tokens[step])}`);
    const output = [parts.output[0], decoder, reads, current, result.tokens[step]];
    const tree = result.tree.steps.length ? [[parts.tree[0], result.tree, step - result.forced.length, result.settings]] : [];
    const middle = {
      "encoder-decoder": () => [
        [parts.source[0], result.encoder, source, null], ...layers("encoder", result.encoder, plain?.encoder, { rows: source, current: null }),
        [parts.target[0], decoder, rows, current], ...layers("decoder", decoder, plain?.decoder, { rows, written, memoryRows: source, current }),
      ],
      "language-model": () => [[parts.source[0], decoder, rows, current], ...layers("only", decoder, plain?.decoder, { rows, current })],
      recurrent: () => [[parts.encoder[0], result.encoder, source, null], [parts.decoder[0], decoder, rows, current], [parts.attention[0], decoder, written, source, current]],
    }[family]();
    return [[...middle, output], [...tree, ...others]];
  }

  /** Of a model that gives every token a label: the token whose label is told. */
  get position() {
    return this.row ?? Math.max(0, this.result.source.indexOf(this.model.tokens.mask));
  }

  status() {
    const parts = [];
    if (this.checked !== undefined) parts.push(t(this.checked < 1e-3 ? "checkedRight" : "checkedWrong", { text: this.model.check.text, difference: number(this.checked, 7) }));
    if (this.took) parts.push(t("took", { milliseconds: Math.max(1, Math.round(this.took)) }));
    return parts.join(" ");
  }

  /** Compares the page with what Python says of the first example. */
  async check() {
    const { model } = this, same = JSON.stringify(model.encode(model.check.text)) === JSON.stringify(model.check.source);
    this.checked = same ? await this.computer.ask("difference", model) : Infinity;
    this.state.textContent = this.status();
  }

  async turnTheme() {
    this.theme = getComputedStyle(document.documentElement).colorScheme.includes("dark") ? "light" : "dark";
    this.dress();
    await this.show();
  }

  /** Keys for the whole page: the arrows step through the answer, or a lecture through its views; Escape lets a number go, then the lecture. */
  key(event) {
    if (event.key === "Escape") return this.lecture && !this.inspector.shown?.pinned ? this.lectureOn(0) : this.inspector.clear();
    if (event.target.closest("input, select, textarea, canvas, .scrolls") || event.altKey || event.ctrlKey || event.metaKey || !this.result) return;
    const way = { ArrowRight: 1, PageDown: 1, ArrowLeft: -1, PageUp: -1 }[event.key] ?? 0;
    if (way && this.lecture) {
      event.preventDefault();
      this.lectureOn(Math.max(1, this.lecture + way));
    } else if (event.key.startsWith("Arrow") && way && this.generates) this.goToToken(this.step + way);
  }
}

export let app = null;

async function open() {
  const notice = document.getElementById("notice");
  notice.textContent = t("loading");
  try {
    app = new App(new Computer(), await Model.load());
    await app.follow(location.hash || opening(app.model));
    addEventListener("hashchange", () => app.follow(location.hash));
    addEventListener("unhandledrejection", ({ reason }) => {
      notice.textContent = t("broken", { reason: reason.message });
      notice.hidden = false;
    });
    await app.check();
    addEventListener("keydown", (event) => app.key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => app.show());
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    notice.textContent = t("failed", { reason: error.message });
    throw error;
  }
}

/** Where the page opens: at the attention between the stacks, which shows most at one look; on a telephone at the top. */
const opening = ({ family, config }) => (family === "encoder-decoder" && innerWidth > 760 ? `#at=decoder-${config.decoder_layers}-cross_attention` : "");

await open();
