// A matrix as a picture: colours on a canvas, each cell to be pointed at, reached by keys, and read as a table.
import { h, number, t } from "./dom.js";

/** Pixels around the window in which pictures are drawn, so that who scrolls sees them at once. */
const AROUND = 300;
/** Elements with new numbers, and how each is drawn; whether the next frame draws those near the window. */
const stale = new Map();
let scheduled = null;

function drawNear() {
  scheduled = null;
  const near = [...stale].filter(([element]) => { const { top, bottom } = element.getBoundingClientRect(); return bottom > -AROUND && top < innerHeight + AROUND; });
  for (const [element, draw] of near) if (stale.delete(element)) draw();
}

const scrolled = new IntersectionObserver(drawNear, { rootMargin: `${AROUND}px` });

function drawSoon(element, draw) {
  scrolled.observe(element);
  stale.set(element, draw);
  scheduled ||= requestAnimationFrame(drawNear);
}

// Widths come from here: who asks a box for its width between two changes has the browser lay out the page each time.
const resized = new ResizeObserver((entries) => {
  for (const { target: { picture }, contentRect: { width } } of entries) if (width !== picture.width) picture.invalidate(width);
});

/** What pictures need of the style sheet, read once for all of them. */
let look = {};
export function readStyle() {
  const style = getComputedStyle(document.documentElement), read = (name) => style.getPropertyValue(name).trim();
  const font = `${Math.round(0.69 * parseFloat(style.fontSize))}px ${read("--mono")}`, ground = read("--ground");
  if (look.font === font && look.ground === ground) return;
  const signed = colours(["--least", "--less", "--zero", "--more", "--most"].map(read)), amounts = colours(["--zero", "--some", "--much"].map(read));
  look = { font, ground, signed, amounts, ink: read("--ink"), accent: read("--accent") };
}

/** 256 colours between these, as pixels; d3 blends them in a space that the eye finds even. */
function colours(stops) {
  const scale = d3.piecewise(d3.interpolateRgb.gamma(2.2), stops);
  return Uint32Array.from({ length: 256 }, (_, at) => {
    const { r, g, b } = d3.rgb(scale(at / 255));
    return pixel(r, g, b, 255);
  });
}

const pixel = (r, g, b, a) => (a << 24) | (b << 16) | (g << 8) | r;
const MASKED = pixel(128, 128, 128, 70);

/** A matrix as an image of a pixel a cell; `share` gives where on the scale a number is, from 0 to 1. */
function image({ data, cols, rows }, table, share) {
  const made = new ImageData(cols, rows), pixels = new Uint32Array(made.data.buffer);
  for (let at = 0; at < data.length; at++) {
    pixels[at] = Number.isFinite(data[at]) ? table[Math.max(0, Math.min(255, Math.round(255 * share(data[at]))))] : MASKED;
  }
  return made;
}

/** Of another size a canvas is made anew, which takes long. */
function size(canvas, width, height) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  return canvas.getContext("2d");
}

/** A head's weights, a pixel a cell, with the small ones brought out. */
export function thumbnail(canvas, weights) {
  drawSoon(canvas, () => size(canvas, weights.cols, weights.rows).putImageData(image(weights, look.amounts, Math.sqrt), 0, 0));
}

/** The cells of one picture, before they are drawn large. */
const cells = new OffscreenCanvas(1, 1);

export class Picture {
  /**
   * kind: "signed" (blue below 0, orange above), "weights" (0 to 1) or "amounts" (0 to the largest); of the last two
   * the colours bring out small numbers.
   * shape: "strip" (many columns without names) or "grid" (rows and columns are tokens).
   * inspector: is told of a cell that is pointed at, and that the numbers are new.
   */
  constructor({ title, kind = "signed", shape = "strip", inspector, columns = null }) {
    Object.assign(this, { title, kind, shape, inspector, columns, cursor: null });
    this.canvas = h("canvas", {
      tabIndex: 0, role: "img", "aria-roledescription": t("picture"),
      onpointermove: (event) => this.point(event, false), onpointerdown: (event) => this.point(event, true),
      onpointerleave: () => this.leave(), onkeydown: (event) => this.key(event), onblur: () => this.leave(),
    });
    this.caption = h("span", { class: "caption" }, title);
    this.scale = h("span", { class: "scale", "aria-hidden": "true" });
    this.button = h("button", { class: "quiet", type: "button", "aria-expanded": "false", onclick: () => this.toggleTable() }, t("table"));
    this.sheet = h("div", { class: "sheet", hidden: true });
    this.box = h("div", { class: "canvas" }, this.canvas);
    this.element = h("figure", { class: `picture ${shape}` },
      h("figcaption", {}, this.caption, this.scale, this.button), this.box, this.sheet);
    this.box.picture = this;
    resized.observe(this.box);
  }

  /** Shows a value; rows and columns are the names of its tokens, `current` the row that is being computed, `title` a new one. */
  update(value, rows, columns = null, { current = null, path = "", title = this.title } = {}) {
    Object.assign(this, { value, rowNames: rows, columnNames: columns, current, path, title });
    this.caption.textContent = title;
    this.canvas.setAttribute("aria-label", t("pictureLabel", { title: this.title, rows: value.rows, cols: value.cols }));
    if (this.cursor && (this.cursor.row >= value.rows || this.cursor.col >= value.cols)) this.cursor = null;
    if (!this.sheet.hidden) this.fillTable();
    this.invalidate();
    this.inspector.renew(this);
  }

  /** Gives the picture its height, so that nothing moves when it is drawn, and has it drawn if it is near the window. */
  invalidate(width = this.width) {
    this.width = width;
    if (!this.value || !width) return;
    this.at = this.layout();
    this.canvas.style.height = `${this.at.height}px`;
    drawSoon(this.box, () => this.draw());
  }

  layout() {
    const { value, shape } = this, width = Math.max(60, Math.round(this.width)), context = cells.getContext("2d");
    context.font = look.font;
    const longest = (names) => Math.ceil(Math.max(0, ...names.slice(0, 200).map((name) => context.measureText(cut(name)).width)));
    const labelled = value.rows <= 60;
    const left = labelled && this.rowNames ? Math.min(this.shape === "grid" ? 76 : 124, longest(this.rowNames)) + 8 : 6;
    const room = width - left - 2;
    let cellWidth = room / value.cols, cellHeight = value.rows <= 24 ? 17 : Math.max(2, Math.min(17, 420 / value.rows)), top = 2, turned = [];
    if (shape === "grid") {
      cellWidth = Math.min(30, cellWidth);
      cellHeight = Math.max(2, Math.min(24, cellWidth * 0.8, 480 / value.rows));
      cellHeight = value.rows <= 24 ? Math.max(13, cellHeight) : cellHeight;
      this.names = this.columnNames && cellWidth >= 7;
      turned = this.names ? this.columnNames.filter((name) => context.measureText(cut(name)).width + 2 > cellWidth) : [];
      top = this.names ? (turned.length ? Math.min(60, longest(turned)) + 6 : 16) : 2;
    }
    return { width, left, top, cellWidth, cellHeight, height: Math.ceil(top + value.rows * cellHeight + 3), labelled, turned };
  }

  draw() {
    const { value, kind, at } = this, ratio = devicePixelRatio || 1, { ink, accent } = look;
    const context = size(this.canvas, Math.round(at.width * ratio), Math.round(at.height * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, at.width, at.height);
    let most = 0;
    for (const number of value.data) if (Number.isFinite(number)) most = Math.max(most, Math.abs(number));
    if (kind === "weights") most = 1;
    this.drawCells(context, at, most);
    context.font = look.font;
    context.textBaseline = "middle";
    if (at.labelled && this.rowNames) {
      context.textAlign = "right";
      this.rowNames.forEach((name, row) => {
        if (at.cellHeight < 10 && row % Math.ceil(10 / at.cellHeight)) return;
        context.fillStyle = row === this.current ? accent : ink;
        context.fillText(cut(name), at.left - 5, at.top + (row + 0.5) * at.cellHeight);
      });
    }
    if (this.shape === "grid" && this.names) {
      context.fillStyle = ink;
      this.columnNames.forEach((name, col) => {
        if (at.cellWidth < 11 && col % Math.ceil(11 / at.cellWidth)) return;
        const x = at.left + (col + 0.5) * at.cellWidth;
        context.save();
        context.translate(x, at.top - 4);
        const upright = !at.turned.includes(name);
        if (!upright) context.rotate(-Math.PI / 2);
        context.textAlign = upright ? "center" : "left";
        context.textBaseline = upright ? "bottom" : "middle";
        context.fillText(cut(name), 0, upright ? 1 : 0);
        context.restore();
      });
    }
    if (this.current !== null && value.rows > 1) this.outline(context, at, this.current, 0, value.cols, accent, 1.2);
    if (this.cursor) this.outline(context, at, this.cursor.row, this.cursor.col, 1, ink, 2);
    this.scale.textContent = kind === "weights" ? "0 … 1" : kind === "signed" ? `±${number(most, 2)}` : `0 … ${number(most, 2)}`;
  }

  drawCells(context, at, most) {
    const { value, kind } = this, { cols, rows } = value, signed = kind === "signed";
    const share = signed ? (number) => (most ? (number / most + 1) / 2 : 0.5) : (number) => (most ? Math.sqrt(number / most) : 0);
    const data = this.order ? value.data.map((_, at) => value.data[at - (at % cols) + this.order[at % cols]]) : value.data;
    size(cells, cols, rows).putImageData(image({ data, cols, rows }, signed ? look.signed : look.amounts, share), 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(cells, at.left, at.top, value.cols * at.cellWidth, value.rows * at.cellHeight);
    if (at.cellHeight >= 8) {
      context.fillStyle = look.ground;
      const gap = this.shape === "grid" ? 1 : 1.5;
      for (let row = 1; row < value.rows; row++) context.fillRect(at.left, at.top + row * at.cellHeight - gap / 2, value.cols * at.cellWidth, gap);
      if (this.shape === "grid" && at.cellWidth >= 8) {
        for (let col = 1; col < value.cols; col++) context.fillRect(at.left + col * at.cellWidth - 0.5, at.top, 1, value.rows * at.cellHeight);
      }
    }
  }

  outline(context, at, row, col, cols, colour, width) {
    context.strokeStyle = colour;
    context.lineWidth = width;
    context.strokeRect(at.left + col * at.cellWidth, at.top + row * at.cellHeight + 0.5, cols * at.cellWidth, at.cellHeight - 1);
  }

  point(event, pinned) {
    if (!this.at || !this.value) return;
    const box = this.canvas.getBoundingClientRect(), { left, top, cellWidth, cellHeight } = this.at;
    const col = Math.floor((event.clientX - box.left - left) / cellWidth), row = Math.floor((event.clientY - box.top - top) / cellHeight);
    if (row < 0 || col < 0 || row >= this.value.rows || col >= this.value.cols) return;
    if (!pinned && event.pointerType === "touch") return;
    this.go(row, col, pinned);
  }

  key(event) {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], Enter: [0, 0] }[event.key];
    if (!steps || !this.value) return;
    event.preventDefault();
    event.stopPropagation();
    const { row, col } = this.cursor ?? { row: 0, col: 0 }, clamp = (place, size) => Math.max(0, Math.min(size - 1, place));
    this.go(clamp(row + steps[0], this.value.rows), clamp(col + steps[1], this.value.cols), event.key === "Enter");
  }

  go(row, col, pinned) {
    this.cursor = { row, col };
    this.invalidate();
    this.inspector.show(this, row, this.order?.[col] ?? col, pinned);
  }

  leave() {
    if (!this.cursor) return;
    this.cursor = null;
    this.invalidate();
  }

  rowName = (row) => this.rowNames?.[row] ?? String(row);

  columnName = (col) => (this.shape === "grid" && this.columnNames ? this.columnNames[col] : this.columns?.(col) ?? String(col + 1));

  toggleTable() {
    this.sheet.hidden = !this.sheet.hidden;
    this.button.setAttribute("aria-expanded", String(!this.sheet.hidden));
    if (!this.sheet.hidden) this.fillTable();
  }

  /** The same numbers in words: what a screen reader reads, and what can be copied. */
  fillTable() {
    const { value } = this;
    const head = h("tr", {}, h("th", {}, ""), Array.from({ length: value.cols }, (_, col) => h("th", { scope: "col" }, this.columnName(col))));
    const rows = Array.from({ length: value.rows }, (_, row) => h("tr", {}, h("th", { scope: "row" }, this.rowName(row)),
      Array.from(value.row(row), (one) => h("td", {}, number(one)))));
    this.sheet.replaceChildren(h("table", {}, h("caption", {}, this.title), h("thead", {}, head), h("tbody", {}, rows)));
  }
}

/** A name that is not too long: of a token, or of one → the next. */
export const cut = (name) => name.split(" → ").map((part, _, { length }) => short(part, length > 1 ? 7 : 10)).join(" → ");
const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);
