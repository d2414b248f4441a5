// Elements, the words of the page, and numbers as they are written.
import { words } from "./words.js";

/** An element with properties, listeners (`onclick`) and children; text is only ever text. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "style") element.style.cssText = value;
    else if (name in element && !name.startsWith("aria") && name !== "list") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Keys that are said by the words of another, as the one stack of a classifier by those of an encoder. */
export const aliases = {};

/** The words of a key; {names} in them are filled in. */
export function t(key, values = {}) {
  key = aliases[key] ?? key;
  return (words[key] ?? key).replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);
}

/** A number with so many digits after the point, with a real minus; −∞ as what it is. */
export function number(value, digits = 4) {
  if (value === -Infinity) return "−∞";
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const small = value !== 0 && Math.abs(value) < 10 ** -digits;
  const text = small ? value.toExponential(2).replace("e-", "·10⁻").replace(/⁻(\d+)$/, (_, d) => `⁻${superscript(d)}`) : value.toFixed(digits);
  return text.replace(/^-/, "−");
}

const superscript = (digits) => [...digits].map((digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[digit]).join("");

/** When the browser has drawn what was changed. */
export const painted = () => new Promise((resume) => requestAnimationFrame(() => setTimeout(resume)));

export const percent = (share) => (share > 0 && share < 0.001 ? `< ${number(0.1, 1)} %` : `${number(100 * share, 1)} %`);
