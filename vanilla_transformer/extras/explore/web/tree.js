// Section 6.1: the search as a tree that grows from left to right, drawn by D3, with the numbers that decide.
import { h, number, t } from "./dom.js";
import { section } from "./sections.js";
import { penalty } from "./search.js";

const LINE = 25, TOP = 26, LEFT = 46, NARROWEST = 66, WIDEST = 110;

export class TreePart {
  constructor(app) {
    this.app = app;
    const slider = (name, properties, words) => {
      const told = h("output", {}), input = h("input", { type: "range", id: `tree-${name}`, ...properties, oninput: () => { told.textContent = input.value; app.search(name, Number(input.value)); } });
      told.textContent = input.value;
      return h("label", { class: "slider" }, h("span", {}, words), input, told);
    };
    const { width, alpha } = app.settings;
    this.told = h("p", { class: "told-node", role: "status" }, t("treeHint"));
    this.plot = h("div", { class: "plot scrolls", tabIndex: 0, role: "group", "aria-label": t("treeLabel") });
    this.stop = h("p", { class: "stop" });
    this.table = h("div", { class: "sheet open" });
    this.element = section("search", {
      paper: "6.1", colour: "linear", title: t("searchTitle"), text: t("searchText"), formula: t("searchFormula"),
      body: [
        h("div", { class: "sliders" }, slider("width", { min: 1, max: 8, step: 1, value: width }, t("beamWidth")), slider("alpha", { min: 0, max: 1, step: 0.05, value: alpha }, t("alpha"))),
        h("p", { class: "key", "aria-hidden": "true" }, h("span", { class: "dot running" }), t("running"), h("span", { class: "dot ended" }), t("ended"), h("span", { class: "dot dropped" }), t("dropped"), h("span", { class: "dot best" }), t("bestPath")),
        this.plot, this.told, this.stop, h("h4", {}, t("hypotheses")), this.table,
      ],
    });
  }

  update({ steps, best }, step, settings) {
    Object.assign(this, { settings });
    const path = new Set(), winner = best[0];
    for (let node = winner; node; node = node.parent) path.add(node);
    const nodes = steps.flatMap((one) => one.candidates), lines = Math.max(1, ...steps.map((one) => one.candidates.length));
    const column = Math.max(NARROWEST, Math.min(WIDEST, ((this.plot.clientWidth || 700) - LEFT - 40) / steps.length));
    const x = (node) => (node ? LEFT + (node.length - 0.6) * column : LEFT - 34), y = (node) => (node ? TOP + node.rank * LINE + 12 : TOP + 12);
    const width = LEFT + steps.length * column + 40, height = TOP + lines * LINE + 14;
    const svg = d3.create("svg").attr("viewBox", `0 0 ${width} ${height}`).attr("width", width).attr("height", height).attr("role", "img").attr("aria-label", t("treeLabel"));
    svg.append("g").attr("class", "ticks").selectAll("text").data(steps).join("text")
      .attr("x", (one) => x({ length: one.length, rank: 0 })).attr("y", 14).attr("class", (one) => (one.length === step + 1 ? "now" : null)).text((one) => one.length);
    const link = d3.linkHorizontal().source((node) => [x(node.parent) + (node.parent ? 34 : 8), y(node.parent)]).target((node) => [x(node) - 9, y(node)]);
    svg.append("g").selectAll("path").data(nodes).join("path").attr("d", link)
      .attr("class", (node) => `link ${node.fate} ${path.has(node) ? "best" : ""}`)
      .attr("stroke-width", (node) => 1 + 3 * Math.exp(node.logp));
    svg.append("circle").attr("class", "root").attr("cx", x(null)).attr("cy", y(null)).attr("r", 5);
    const group = svg.append("g").selectAll("g").data(nodes).join("g")
      .attr("class", (node) => `node ${node.fate} ${path.has(node) ? "best" : ""} ${node.length > step + 1 ? "later" : ""}`)
      .attr("transform", (node) => `translate(${x(node)},${y(node)})`)
      .on("pointerenter click", (_, node) => this.tell(node));
    group.filter((node) => node.fate === "ended").append("rect").attr("x", -6).attr("y", -6).attr("width", 12).attr("height", 12).attr("rx", 2);
    group.filter((node) => node.fate !== "ended").append("circle").attr("r", (node) => (node.fate === "dropped" ? 3 : 5.5));
    group.append("text").attr("x", 10).attr("dy", "0.33em").text((node) => short(this.app.model.piece(node.token)));
    this.plot.replaceChildren(svg.node());
    const last = steps.at(-1);
    this.stop.textContent = last.bound === null ? "" : t(last.goesOn ? "goesOn" : "stops", {
      step: last.length, bound: number(last.bound, 4), best: number(best[0]?.final, 4), limit: settings.limit,
    });
    this.tableOf(best, settings);
  }

  tell(node) {
    const { model } = this.app, before = node.parent?.score ?? 0;
    const words = { text: model.decode(node.tokens) || "∅", before: number(before, 4), logp: number(node.logp, 4), score: number(node.score, 4), piece: model.piece(node.token), p: number(Math.exp(node.logp), 4) };
    const told = t("nodeTold", words);
    const end = node.fate === "ended" ? t(this.settings.width === 1 ? "" : "nodeEnded", { length: node.length, alpha: this.settings.alpha, divisor: number(node.divisor, 4), final: number(node.final, 4) }) : t(`node.${node.fate}`);
    this.told.textContent = `${told} ${end}`;
  }

  tableOf(best, settings) {
    const head = ["rank", "hypothesis", "logProbability", "divisor", "score"].map((key) => h("th", { scope: "col" }, t(key)));
    const rows = best.map((one, rank) => h("tr", {}, h("td", {}, String(rank + 1)), h("td", { class: "text-cell" }, this.app.model.decode(one.tokens) || "∅"),
      h("td", {}, number(one.score, 4)), h("td", {}, number(settings.width === 1 ? 1 : penalty(one.length, settings), 4)), h("td", {}, h("b", {}, number(one.final, 4)))));
    this.table.replaceChildren(h("table", { class: "hypotheses" }, h("caption", { class: "unseen" }, t("hypotheses")), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
  }
}

const short = (piece) => (piece.length > 7 ? `${piece.slice(0, 6)}…` : piece);
