// The training, replayed: the loss by step, and how one head's attention came about; a moment of it is gone to by a click.
import { h, t } from "./dom.js";
import { picture, section } from "./sections.js";

export class TrainingPart {
  constructor(app) {
    this.app = app;
    const { steps, curve } = app.model.training;
    this.moments = [...steps, null];
    this.start = h("button", { type: "button", onclick: () => this.replay() }, t("replay", { count: steps.length }));
    this.frames = h("div", { class: "frames", role: "group", "aria-label": t("trainingTitle") });
    this.slider = h("input", { type: "range", min: 0, max: steps.length, step: 1, value: steps.length, "aria-label": t("moment"), oninput: () => this.goTo(Number(this.slider.value)) });
    this.output = h("output", { class: "moment" }, this.name(null));
    this.plot = h("div", { class: "plot" });
    this.element = section("training", {
      paper: "5.2 · 5.3", colour: "norm", title: t("trainingTitle"), text: t("trainingText"),
      body: [steps.length ? [h("div", { class: "sliders" }, h("label", { class: "slider wide" }, h("span", {}, t("moment")), this.slider, this.output), this.start), this.frames] : null, this.plot, h("p", { class: "place" }, app.inspector.place("5.3"))],
    });
    this.curve = curve;
    this.drawn = null;
  }

  name(step) {
    return step === null ? t("finalModel") : t("afterSteps", { step });
  }

  async goTo(at) {
    this.output.textContent = this.name(this.moments[at]);
    await this.app.goTo(this.moments[at]);
  }

  /** The cross-attention of the head that is chosen, at each moment, for the same source and the same answer. */
  async replay() {
    const { app } = this, made = [];
    this.start.disabled = true;
    for (const step of this.moments) {
      const { weights, rows, columns, path } = await app.attentionAt(step);
      const drawn = picture(app, "weights", "3.2.1", { title: this.name(step), kind: "weights", shape: "grid" }), at = this.moments.indexOf(step);
      drawn.update(weights, rows, columns, { path });
      made.push(h("div", { class: "frame" }, drawn.element, h("button", { type: "button", class: "quiet", onclick: () => { this.slider.value = at; this.goTo(at); } }, t("goThere"))));
      this.frames.replaceChildren(...made);
    }
    this.start.disabled = false;
  }

  /** Shows the moment that the reader asked for last: a drawing begun before then must not put the slider back. */
  update() {
    const step = this.app.wanted;
    this.slider.value = this.moments.indexOf(step);
    this.output.textContent = this.name(step);
    const width = Math.max(280, this.plot.clientWidth || 640), height = 200, margin = { top: 14, right: 126, bottom: 44, left: 44 };
    const key = `${width} ${step}`;
    if (this.drawn === key || !this.curve.length) return;
    this.drawn = key;
    const x = d3.scaleLinear().domain([0, d3.max(this.curve, (one) => one.step)]).range([margin.left, width - margin.right]);
    const y = d3.scaleLinear().domain([0, d3.max(this.curve, (one) => Math.max(one.loss ?? 0, one.dev_loss ?? 0))]).nice().range([height - margin.bottom, margin.top]);
    const svg = d3.create("svg").attr("viewBox", `0 0 ${width} ${height}`).attr("role", "img").attr("aria-label", t("curveLabel"));
    svg.append("g").attr("class", "axis").attr("transform", `translate(0,${height - margin.bottom})`).call(d3.axisBottom(x).ticks(Math.min(6, (width - margin.left - margin.right) / 60)).tickSizeOuter(0));
    svg.append("g").attr("class", "axis").attr("transform", `translate(${margin.left},0)`).call(d3.axisLeft(y).ticks(4).tickSizeOuter(0));
    for (const name of ["loss", "dev_loss"]) {
      const points = this.curve.filter((one) => one[name] !== undefined);
      if (!points.length) continue;
      svg.append("path").attr("class", `curve ${name}`).attr("d", d3.line((one) => x(one.step), (one) => y(one[name]))(points));
      svg.append("text").attr("class", `curve-name ${name}`).attr("x", x(points.at(-1).step) + 6).attr("y", y(points.at(-1)[name]) + (name === "loss" ? -4 : 10)).text(t(name));
    }
    for (const one of this.moments.filter((moment) => moment !== null)) {
      svg.append("line").attr("class", one === step ? "moment now" : "moment").attr("x1", x(one)).attr("x2", x(one)).attr("y1", margin.top).attr("y2", height - margin.bottom);
    }
    svg.append("text").attr("class", "axis-name").attr("x", width - margin.right).attr("y", height - 2).attr("text-anchor", "end").text(t("steps"));
    this.plot.replaceChildren(svg.node());
  }
}
