// Posteriors as bars: a line for each state (for yes/no variables one is enough), sorted by how far they moved from the prior.

import { make, shown } from "./dom.js";

const NEUTRAL = /^(no|none|never|absent|false|normal|negative|0|low|f)$/i;
const FEW = 8;

export const percent = (p) => (p === null || p === undefined ? "unknown" : `${(100 * p).toFixed(1)} %`);

// What is left of a difference beyond what sampling may have made of it, with 95 %.
const beyond = (difference, error) => Math.max(0, Math.abs(difference) - 1.96 * (error || 0));

// How far a variable moved: the total variation distance between prior and posterior, as far as it is sure.
export function moved(variable, marginal, errors) {
  return variable.states.reduce((sum, s) => sum + beyond((marginal[s] ?? variable.prior[s]) - variable.prior[s], errors?.[s]), 0) / 2;
}

// The states worth a line: of two, the one that is not neutral.
export function headline(variable) {
  if (variable.states.length !== 2) return variable.states;
  return [NEUTRAL.test(variable.states[1]) ? variable.states[0] : variable.states[1]];
}

export function bar(variable, state, p, error) {
  const prior = variable.prior[state];
  const fill = make("span", { class: "fill" });
  fill.style.width = `${100 * (p ?? 0)}%`;
  const mark = make("span", { class: "mark" });
  mark.style.left = `${100 * prior}%`;
  const track = make("span", { class: "track", "aria-hidden": "true" }, fill, mark);
  if (error > 0) {
    const low = Math.max(0, p - 1.96 * error), high = Math.min(1, p + 1.96 * error);
    const whisker = make("span", { class: "whisker" });
    whisker.style.left = `${100 * low}%`;
    whisker.style.width = `${100 * (high - low)}%`;
    track.append(whisker);
  }
  const change = 100 * ((p ?? prior) - prior);
  const sign = beyond(change, 100 * error) < 0.05 ? "same" : change > 0 ? "up" : "down";
  const words = sign === "same" ? "" : `${change > 0 ? "+" : "\u2212"}${Math.abs(change).toFixed(1)}`;
  const value = make("span", { class: "value", text: percent(p) });
  const spread = make("span", { class: "error", text: error > 0 ? `\u00b1 ${(196 * error).toFixed(1)}` : "" });
  return [
    make("span", { class: "state", text: shown(state) }), track, value, spread,
    make("span", { class: `change ${sign}`, text: words, title: `${percent(prior)} before any finding` }),
  ];
}

function row(variable, answer, chosen, choose) {
  const marginal = answer.marginals[variable.name], errors = answer.std_errors?.[variable.name];
  const name = make("button", {
    type: "button", class: "name", text: shown(variable.name), "aria-expanded": String(chosen === variable.name), "aria-controls": "detail",
    data: { key: `row/${variable.name}` }, on: { click: () => choose(variable.name) },
  });
  const item = make("li", { class: "row", data: { name: variable.name } }, name);
  for (const state of headline(variable)) {
    item.append(make("span", { class: "line", data: { state } }, ...bar(variable, state, marginal[state], errors?.[state])));
  }
  return item;
}

export function drawGroups(place, net, answer, evidence, open, chosen, choose, redraw) {
  const sections = net.groups.map((group, g) => {
    const members = net.variables.filter((v) => v.group === group && !evidence.has(v.name) && answer.marginals[v.name]);
    const order = members.map((v) => [moved(v, answer.marginals[v.name], answer.std_errors?.[v.name]), v]).sort((a, b) => b[0] - a[0]).map(([, v]) => v);
    const all = open.has(group), some = all ? order : order.slice(0, FEW);
    const title = make("h2", { id: `group-${g}`, text: group ? shown(group) : "Variables" });
    const head = make("div", { class: "head" }, title);
    if (order.length > FEW) {
      head.append(make("button", {
        type: "button", class: "quiet", text: all ? `Show ${FEW}` : `Show all ${order.length}`, "aria-expanded": String(all),
        data: { key: `more/${group}` }, on: { click: () => { all ? open.delete(group) : open.add(group); redraw(); } },
      }));
    }
    const list = make("ul", { class: "bars" }, ...some.map((v) => row(v, answer, chosen, choose)));
    return order.length ? make("section", { class: "card group", "aria-labelledby": `group-${g}` }, head, list) : "";
  });
  place.replaceChildren(...sections);
}
