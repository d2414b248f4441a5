// The panel beside the page: the number that is touched, the product that it comes from, and where to read about it.
import { h, number, t } from "./dom.js";
import { explain } from "./explain.js";

const SHOWN = 9;

export class Inspector {
  constructor(app) {
    this.app = app;
    this.body = h("div", { class: "explanation", "aria-live": "polite" });
    const close = h("button", { class: "quiet close", type: "button", onclick: () => this.clear() }, t("close"));
    this.element = h("aside", { id: "inspector", "aria-label": t("inspector") }, h("h2", {}, t("inspector")), this.body, close);
    this.clear();
  }

  clear() {
    this.shown = null;
    this.element.classList.remove("full");
    this.body.replaceChildren(h("p", { class: "hint" }, t("touchHint")));
  }

  show(picture, row, col, pinned) {
    if (this.shown?.pinned && !pinned) return;
    this.shown = { picture, row, col, pinned };
    const { value } = picture, explained = explain(this.app.result.model, value, row, col), shown = value.at(row, col);
    const parts = Object.fromEntries(Object.entries(explained.parts).map(([name, part]) => [name, typeof part === "number" ? plain(part) : part]));
    this.element.classList.add("full");
    this.body.replaceChildren(...[
      h("p", { class: "where" }, picture.path, h("br"), h("b", {}, picture.title), `: ${t("cell", { row: picture.rowName(row), column: picture.columnName(col) })}`),
      h("output", { class: "big" }, number(shown, 6)),
      h("p", { class: "formula" }, t(`made.${explained.kind}`, { ...parts, value: number(explained.value, 4), cols: value.cols, count: explained.terms.length })),
      explained.terms.length ? this.terms(explained, picture) : null,
      h("p", { class: "place" }, this.place(picture.section)),
      h("p", { class: "hint" }, pinned ? t("pinned") : t("pinHint")),
    ].filter(Boolean));
  }

  /** The picture of the number that is shown has new numbers. */
  renew(picture) {
    const { shown } = this;
    if (shown?.picture !== picture) return;
    if (shown.row < picture.value.rows && shown.col < picture.value.cols) this.show(picture, shown.row, shown.col, shown.pinned);
    else this.clear();
  }

  /** The largest products as bars around zero, the others as one. */
  terms({ terms, parts }, picture) {
    const largest = [...terms].sort((a, b) => Math.abs(b.value) - Math.abs(a.value)).slice(0, SHOWN);
    const rest = terms.filter((term) => !largest.includes(term));
    const most = Math.max(...terms.map((term) => Math.abs(term.value)), 1e-12);
    const bar = (value) => h("span", { class: `bar ${value < 0 ? "minus" : "plus"}`, style: `--share: ${Math.min(1, Math.abs(value) / most)}` });
    const name = (one) => (typeof one === "object" ? picture.keyName?.(one.key) ?? String(one.key + 1) : String(one));
    const line = (first, second, value) => h("tr", {}, h("th", { scope: "row" }, first), h("td", {}, second), h("td", { class: "sum" }, number(value, 3)), h("td", {}, bar(value)));
    const rows = largest.map((term) => line(name(term.name), `${number(term.left, 3)} × ${number(term.right, 3)}`, term.value));
    if (rest.length) rows.push(line("…", t("others", { count: rest.length }), rest.reduce((sum, term) => sum + term.value, 0)));
    if (typeof parts.bias === "number") rows.push(line("b", t("bias"), parts.bias));
    return h("table", { class: "terms" }, h("caption", { class: "unseen" }, t("inspector")), h("tbody", {}, rows));
  }

  place(section) {
    const link = this.app.chapter(section);
    return [h("span", {}, t(`place.${section}`)), link ? " · " : "", link ? h("a", { href: link, target: "_blank", rel: "noopener" }, t("chapter")) : ""];
  }
}

const plain = (value) => (Number.isInteger(value) ? String(value).replace("-", "−") : number(value, 4));
