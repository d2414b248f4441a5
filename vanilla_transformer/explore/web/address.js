// The state of the page in its address, so that a link leads to a moment: text, token, block, heads and what-if.
import { undisturbed } from "./transformer.js";

const ASKED = ["positions", "scale", "mask", "temperature"], SEARCH = ["width", "alpha"];

export function addressOf(app) {
  const { whatIf, settings, generates } = app, usual = undisturbed(), changed = (names, now, then) => names.filter((name) => now[name] !== then[name]).map((name) => [name, now[name]]);
  const parts = [
    ["text", app.text], ["token", generates && app.result ? app.step + 1 : null], ["at", app.figure.here],
    ["heads", [...app.chosen].map(([place, head]) => `${place}.${head + 1}`).join()],
    ["off", [...whatIf.layers, ...whatIf.heads].join()], ...changed(ASKED, whatIf, usual), ["other", app.other], ["take", app.forced.join()],
    ...(generates ? changed(SEARCH, settings, app.ownSearch) : []), ["moment", app.wanted], ["theme", app.theme], ["lecture", app.lecture || null],
  ];
  return `#${new URLSearchParams(parts.filter(([, value]) => value !== null && value !== ""))}`;
}

/** Takes the state of an address; what it leaves out is as when the page opens, and what makes no sense is left out. */
export function stateOf(hash, app) {
  const params = new URLSearchParams(hash.replace(/^#/, "")), { model } = app, whatIf = undisturbed();
  const list = (name) => (params.get(name) ?? "").split(",").filter(Boolean), whole = (name) => (/^\d+$/.test(params.get(name) ?? "") ? Number(params.get(name)) : null);
  const within = (name, low, high, otherwise) => (Number.isFinite(Number(params.get(name) || NaN)) ? Math.min(high, Math.max(low, Number(params.get(name)))) : otherwise);
  for (const name of list("off")) if (/^(encoder|decoder|only)\.\d+(\.(self|cross)_attention\.\d+)?$/.test(name)) (name.split(".").length > 2 ? whatIf.heads : whatIf.layers).add(name);
  if (["none", "shuffled"].includes(params.get("positions"))) whatIf.positions = params.get("positions");
  for (const name of ["scale", "mask"]) whatIf[name] = params.get(name) !== "false";
  whatIf.temperature = within("temperature", 0.1, 10, 1);
  const heads = list("heads").map((name) => [name.slice(0, name.lastIndexOf(".")), Number(name.slice(name.lastIndexOf(".") + 1)) - 1]);
  const { ownSearch } = app, moment = whole("moment");
  return {
    whatIf, text: params.get("text") ?? model.examples[0], other: params.get("other") ?? "", step: params.has("token") ? Math.max(0, whole("token") - 1) : null,
    forced: list("take").map(Number).filter((id) => id in model.pieces), at: params.get("at"),
    chosen: new Map(heads.filter(([, head]) => head >= 0 && head < model.config.num_heads)),
    settings: ownSearch && { ...ownSearch, width: Math.round(within("width", 1, 8, ownSearch.width)), alpha: within("alpha", 0, Math.max(1, ownSearch.alpha), ownSearch.alpha) },
    wanted: model.training?.steps.includes(moment) ? moment : null, theme: params.get("theme"), lecture: whole("lecture") ?? 0,
  };
}
