// Section 6.1: the search as a tree that grows from left to right, drawn by D3, with the numbers that decide.
import { h, number, t } from "./dom.js";
import { section } from "./sections.js";
import { penalty } from "./search.js";

const LINE = 25, TOP = 26, LEFT = 46, WIDEST = 110;

export class TreePart {
  constructor(app) {
    this.app = app;
    const slider = (name, properties, words) => {
      const output = h("output", {}), input = h("input", { type: "range", id: `tree-${name}`, ...properties, oninput: () => { output.textContent = input.value; app.search(name, Number(input.value)); } });
      output.textContent = input.value;
      return h("label", { class: "slider" }, h("span", {}, words), input, output);
    };
    const { width, alpha, google } = app.settings;
    this.hint = h("p", { class: "node-hint", role: "status" }, t("treeHint"));
    this.plot = h("div", { class: "plot scrolls", tabIndex: 0, role: "group", "aria-label": t("treeLabel"), onkeydown: (event) => this.key(event) });
    this.stop = h("p", { class: "stop" });
    this.table = h("div", { class: "sheet open" });
    this.element = section("search", {
      paper: "6.1", colour: "linear", title: t("searchTitle"), text: t("searchText"), formula: t("searchFormula", { penalty: t(google ? "googlePenalty" : "libraryPenalty") }),
      body: [
        h("div", { class: "sliders" }, slider("width", { min: 1, max: 8, step: 1, value: width }, t("beamWidth")), slider("alpha", { min: 0, max: Math.max(1, alpha), step: 0.05, value: alpha }, t("alpha"))),
        h("p", { class: "key", "aria-hidden": "true" }, ["running", "ended", "dropped", "bestPath"].map((name) => h("span", {}, h("span", { class: `dot ${name}` }), t(name)))),
        this.plot, this.hint, this.stop, h("p", { class: "place" }, app.inspector.place("6.1")), h("h4", {}, t("hypotheses")), this.table,
      ],
    });
  }

  update({ steps, best }, step, settings) {
    Object.assign(this, { steps, settings });
    const path = new Set();
    for (let node = best[0]; node; node = node.parent) path.add(node);
    const nodes = steps.flatMap((one) => one.candidates), lines = Math.max(1, ...steps.map((one) => one.candidates.length));
    if (!nodes.includes(this.node)) this.node = null;
    const { model } = this.app, label = 13 + 7 * d3.max(nodes, (node) => short(model.piece(node.token)).length);
    const column = Math.max(label + 24, Math.min(WIDEST, ((this.plot.clientWidth || 700) - LEFT - 40) / steps.length));
    const x = (node) => (node ? LEFT + (node.length - 0.6) * column : LEFT - 34), y = (node) => (node ? TOP + node.rank * LINE + 12 : TOP + 12);
    const width = LEFT + steps.length * column + 40, height = TOP + lines * LINE + 14;
    const svg = d3.create("svg").attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height).attr("role", "img").attr("aria-label", t("treeLabel"));
    svg.append("g").attr("class", "ticks").selectAll("text").data(steps).join("text")
      .attr("x", (one) => x({ length: one.length, rank: 0 })).attr("y", 14).attr("class", (one) => (one.length === step + 1 ? "now" : null)).text((one) => one.length);
    const link = d3.linkHorizontal().source((node) => [x(node.parent) + (node.parent ? label : 8), y(node.parent)]).target((node) => [x(node) - 9, y(node)]);
    svg.append("g").selectAll("path").data(nodes).join("path").attr("d", link)
      .attr("class", (node) => `link ${node.fate} ${path.has(node) ? "best" : ""}`)
      .attr("stroke-width", (node) => 1 + 3 * Math.exp(node.logp));
    svg.append("circle").attr("class", "root").attr("cx", x(null)).attr("cy", y(null)).attr("r", 5);
    this.groups = svg.append("g").selectAll("g").data(nodes).join("g")
      .attr("class", (node) => `node ${node.fate} ${path.has(node) ? "best" : ""} ${node.length > step + 1 ? "later" : ""}`)
      .attr("transform", (node) => `translate(${x(node)},${y(node)})`)
      .on("pointerenter click", (_, node) => this.describe(node));
    this.groups.append("rect").attr("class", "target").attr("x", -10).attr("y", -LINE / 2).attr("width", column - 12).attr("height", LINE);
    this.groups.filter((node) => node.fate === "ended").append("rect").attr("class", "end").attr("x", -6).attr("y", -6).attr("width", 12).attr("height", 12).attr("rx", 2);
    this.groups.filter((node) => node.fate !== "ended").append("circle").attr("r", (node) => (node.fate === "dropped" ? 3 : 5.5));
    this.groups.append("text").attr("x", 10).attr("dy", "0.33em").text((node) => short(model.piece(node.token)));
    this.plot.replaceChildren(svg.node());
    const shown = steps[Math.max(0, Math.min(step, steps.length - 1))];
    this.plot.scrollLeft = x(shown) - this.plot.clientWidth * 0.7;
    this.stop.textContent = [...new Set([shown, steps.at(-1)])].map((one) => this.decision(one)).join(" ");
    this.tableOf(best, settings);
  }

  /** Whether the search goes on after a step, and why. */
  decision({ length, bound, best, goesOn }) {
    const { limit } = this.settings;
    if (length >= limit) return t("limitReached", { limit });
    if (bound === null) return "";
    if (!best) return t("noneEnded", { step: length });
    return t(goesOn ? "goesOn" : "stops", { step: length, bound: number(bound, 4), best: number(best.final, 4) });
  }

  /** With the arrow keys from a node to its parent, its likeliest child, and those beside it. */
  key(event) {
    const { node, steps } = this, at = (length, rank) => steps[length - 1]?.candidates[rank];
    const next = node ? {
      ArrowLeft: () => node.parent, ArrowRight: () => steps[node.length]?.candidates.find((one) => one.parent === node),
      ArrowUp: () => at(node.length, node.rank - 1), ArrowDown: () => at(node.length, node.rank + 1),
    }[event.key] : event.key.startsWith("Arrow") ? () => at(1, 0) : null;
    if (!next) return;
    event.preventDefault();
    const found = next();
    if (found) this.describe(found);
  }

  describe(node) {
    const { model } = this.app, { alpha, google, width } = this.settings, before = node.parent?.score ?? 0;
    this.node = node;
    this.groups.classed("touched", (one) => one === node);
    const words = { text: model.decode(node.tokens) || "∅", before: number(before, 4), logp: number(node.logp, 4), score: number(node.score, 4), piece: model.piece(node.token), p: number(Math.exp(node.logp), 4) };
    const end = node.fate === "ended" && width > 1 ? t("nodeEnded", { penalty: formula(node.length, alpha, google), divisor: number(node.divisor, 4), final: number(node.final, 4) }) : t(`node.${node.fate}`);
    this.hint.textContent = `${t("nodeTold", words)} ${end}`;
  }

  tableOf(best, settings) {
    const head = ["rank", "hypothesis", "logProbability", "divisor", "score"].map((key) => h("th", { scope: "col" }, t(key)));
    const rows = best.map((one, rank) => h("tr", {}, h("td", {}, String(rank + 1)), h("td", { class: "text-cell" }, this.app.model.decode(one.tokens) || "∅"),
      h("td", {}, number(one.score, 4)), h("td", {}, number(settings.width === 1 ? 1 : penalty(one.length, settings), 4)), h("td", {}, h("b", {}, number(one.final, 4)))));
    this.table.replaceChildren(h("table", { class: "hypotheses" }, h("caption", { class: "unseen" }, t("hypotheses")), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
  }
}

/** The length penalty as it is written: of section 6.1, or the library's. */
const formula = (length, alpha, google) => (google ? `((5 + ${length}) / 6)^${alpha}` : `${length}^${alpha}`);
const short = (piece) => (piece.length > 7 ? `${piece.slice(0, 6)}…` : piece);
