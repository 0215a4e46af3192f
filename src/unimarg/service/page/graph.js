// A variable between its parents and its children, as SVG; each neighbour is a button.

import { make, shown } from "./dom.js";
import { moved, percent, headline } from "./bars.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 340, BOX = 104, HIGH = 34, GAP = 8, PER_ROW = 3, MOST = 9;

function svg(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const short = (text, most = 14) => (text.length > most ? `${text.slice(0, most - 1)}\u2026` : text);

// The state to show: of those worth a line, the one that rose most.
function risen(variable, marginal) {
  const rise = (s) => (marginal?.[s] ?? 0) - variable.prior[s];
  return headline(variable).reduce((best, s) => (rise(s) > rise(best) ? s : best));
}

function node(x, y, variable, answer, evidence, role, choose) {
  const held = evidence.get(variable.name);
  const marginal = answer.marginals[variable.name];
  const state = risen(variable, marginal);
  const said = held !== undefined ? `is ${shown(held)}` : `${shown(state)} ${percent(marginal?.[state])}`;
  const change = held === undefined && marginal ? moved(variable, marginal) : 0;
  const box = svg("rect", { width: BOX, height: HIGH, rx: 6, class: `box ${role} ${held !== undefined ? "held" : ""}` });
  const shade = svg("rect", { width: BOX, height: HIGH, rx: 6, class: "shade", opacity: Math.min(0.6, change).toFixed(3) });
  const name = svg("text", { x: BOX / 2, y: 14, class: "label" });
  name.textContent = short(shown(variable.name));
  const value = svg("text", { x: BOX / 2, y: 27, class: "number" });
  value.textContent = short(said, 18);
  const title = svg("title", {});
  title.textContent = `${variable.name}: ${said}`;
  const group = svg("g", { transform: `translate(${x} ${y})`, class: "node", "data-name": variable.name }, title, box, shade, name, value);
  if (role !== "self") {
    group.setAttribute("tabindex", "0");
    group.setAttribute("role", "button");
    group.setAttribute("aria-label", `${role}: ${shown(variable.name)}, ${said}`);
    group.dataset.key = `graph/${variable.name}`;
    group.addEventListener("click", () => choose(variable.name));
    group.addEventListener("keydown", (e) => {
      if (e.key === "Enter" || e.key === " ") { e.preventDefault(); choose(variable.name); }
    });
  }
  return group;
}

function places(count, top) {
  const spots = [];
  for (let i = 0; i < count; i++) {
    const inRow = Math.min(PER_ROW, count - PER_ROW * Math.floor(i / PER_ROW));
    const left = (WIDTH - inRow * BOX - (inRow - 1) * GAP) / 2;
    spots.push([left + (i % PER_ROW) * (BOX + GAP), top + Math.floor(i / PER_ROW) * (HIGH + GAP)]);
  }
  return spots;
}

export function drawGraph(place, net, chosen, answer, evidence, choose) {
  const self = net.byName.get(chosen);
  const strongest = (names) => names.map((n) => net.byName.get(n))
    .sort((a, b) => weight(b, answer, evidence) - weight(a, answer, evidence)).slice(0, MOST);
  const parents = strongest(self.parents), children = strongest(net.children.get(chosen) || []);
  const above = places(parents.length, 0), rows = Math.ceil(parents.length / PER_ROW);
  const y = rows ? rows * (HIGH + GAP) + 22 : 0;
  const below = places(children.length, y + HIGH + 30);
  const height = (below.length ? below.at(-1)[1] : y) + HIGH + 2, x = (WIDTH - BOX) / 2;
  const arcs = [
    ...above.map(([a, b]) => [a + BOX / 2, b + HIGH, WIDTH / 2, y]),
    ...below.map(([a, b]) => [WIDTH / 2, y + HIGH, a + BOX / 2, b]),
  ].map(([x1, y1, x2, y2]) => svg("path", { d: `M${x1} ${y1}C${x1} ${(y1 + y2) / 2} ${x2} ${(y1 + y2) / 2} ${x2} ${y2}`, class: "arc" }));
  const nodes = [
    ...parents.map((v, i) => node(...above[i], v, answer, evidence, "parent", choose)),
    node(x, y, self, answer, evidence, "self", choose),
    ...children.map((v, i) => node(...below[i], v, answer, evidence, "child", choose)),
  ];
  const label = `${shown(chosen)} between ${self.parents.length} parents and ${(net.children.get(chosen) || []).length} children`;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "group", "aria-label": label }, ...arcs, ...nodes);
  const hidden = Math.max(0, self.parents.length - MOST) + Math.max(0, (net.children.get(chosen) || []).length - MOST);
  const caption = make("p", { class: "hint", text: `${self.parents.length} above (causes), ${(net.children.get(chosen) || []).length} below`
    + (hidden ? `; ${hidden} that moved least are not shown` : "") });
  place.replaceChildren(picture, caption);
}

const weight = (v, answer, evidence) => (evidence.has(v.name) ? 2 : answer.marginals[v.name] ? moved(v, answer.marginals[v.name]) : 0);
