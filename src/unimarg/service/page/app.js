// The page: a case is changed by a click, answered at once by one pass of the network, and refined behind it.

import * as api from "./api.js";
import { bar, drawGroups, headline } from "./bars.js";
import * as cases from "./case.js";
import { $, keepingFocus, make, shown, stateButtons } from "./dom.js";
import { drawGraph } from "./graph.js";

const TARGETS = /disease|diagnos|fault|cause|condition/i;
const EVERYTHING = "everything", CHOSEN = "chosen";

let net = null; // the network as the service describes it
let evidence = new Map(); // variable -> state
let answer = null; // the latest
let chosen = null; // the variable under a closer look
let about = null; // what the questions are about: a group, everything, or the chosen variable
let running = null; // an AbortController for what is being asked
let preparing = false; // whether the service compiles what it answers with
let told = { stage: "asked" }; // the latest line about the answer
const open = new Set(); // groups that are shown whole

// --- asking

function changed(replace = false) {
  cases.write(net.model, evidence, replace);
  drawFindings();
  ask();
}

function set(name, state) {
  state === null ? evidence.delete(name) : evidence.set(name, state);
  $("search").value = "";
  drawMatches();
  changed();
}

async function ask() {
  running?.abort();
  running = new AbortController();
  const { signal } = running, body = { evidence: Object.fromEntries(evidence), method: "auto" };
  askQuestions(signal);
  explainChosen(signal);
  if (!evidence.size) return showPrior();
  drawTrust({ stage: "asked" });
  const began = performance.now();
  try {
    await api.stream(net.model, body, signal, (line) => {
      if (signal.aborted) return;
      if (line.stage === "first" || line.stage === "final") {
        answer = line;
        answer.round_trip = performance.now() - began;
        problem("");
        draw();
      } else if (line.stage === "error") forget();
      drawTrust(line);
    });
  } catch (e) {
    complain(e);
  }
}

// Without findings the bars are what changes are told against: another answer would differ from it by errors alone.
function showPrior() {
  const marginals = Object.fromEntries(net.variables.map((v) => [v.name, v.prior]));
  answer = { model: net.model, method: "prior", status: "ok", marginals, std_errors: null };
  problem("");
  draw();
  drawTrust({ stage: "prior" });
}

async function askQuestions(signal) {
  const targets = net.variables.filter((v) => about === EVERYTHING || (about === CHOSEN ? v.name === chosen : v.group === about))
    .map((v) => v.name).filter((n) => !evidence.has(n));
  const note = $("questions-note");
  if (!targets.length) {
    $("questions").replaceChildren();
    note.textContent = about === CHOSEN ? "Choose a variable first." : "All of them are known.";
    return;
  }
  const body = { evidence: Object.fromEntries(evidence), targets, limit: 5 };
  if (about === EVERYTHING) body.candidates = net.variables.filter((v) => v.observable && !evidence.has(v.name)).map((v) => v.name);
  try {
    const found = await api.questions(net.model, body, signal);
    keepingFocus(() => drawQuestions(found));
  } catch (e) {
    if (e.name === "AbortError") return;
    $("questions").replaceChildren();
    note.textContent = sentence(e.message);
  }
}

async function explainChosen(signal) {
  const list = $("why"), note = $("why-note");
  if (!chosen) return;
  if (!evidence.size || evidence.has(chosen)) {
    list.replaceChildren();
    note.textContent = evidence.size ? "It is itself a finding." : "Nothing yet: there are no findings.";
    return;
  }
  const body = { evidence: Object.fromEntries(evidence), target: chosen }, states = headline(net.byName.get(chosen));
  if (states.length === 1) body.state = states[0]; // the one that has the bar
  try {
    const found = await api.explain(net.model, body, signal);
    const how = net.trained ? " (by one pass of the network)" : "";
    note.textContent = `${shown(found.state)}: ${(100 * found.prior).toFixed(1)} % before, ${(100 * found.probability).toFixed(1)} % now${how}`;
    list.replaceChildren(...found.findings.map((f) => make("li", {},
      make("span", { text: `${shown(f.variable)}: ${shown(f.finding)}` }),
      make("span", { class: `change ${f.shift > 0.0005 ? "up" : f.shift < -0.0005 ? "down" : "same"}`,
        text: f.shift === null ? "decides" : `${f.shift < 0 ? "\u2212" : "+"}${Math.abs(100 * f.shift).toFixed(1)}` }))));
  } catch (e) {
    if (e.name === "AbortError") return;
    list.replaceChildren();
    note.textContent = sentence(e.message);
  }
}

function choose(name) {
  chosen = chosen === name ? null : name;
  draw();
  explainChosen(running?.signal);
  if (about === CHOSEN) askQuestions(running?.signal);
  if (chosen && matchMedia("(max-width: 1279px)").matches) $("detail").scrollIntoView({ block: "start" });
}

// --- drawing

function draw() {
  keepingFocus(() => {
    answer ? drawGroups($("results"), net, answer, evidence, open, chosen, choose, draw) : $("results").replaceChildren();
    drawDetail();
  });
}

// Bars of another case, or of one that turned out to be impossible, must not stay.
function forget() {
  answer = null;
  if (net) draw();
}

function drawTrust(line) {
  told = line;
  const badge = make("span", { class: "badge" }), parts = [];
  if (line.stage === "error") {
    badge.textContent = "no answer";
    badge.dataset.status = "failed";
    parts.push(sentence(line.error));
  } else if (line.stage === "asked") {
    badge.textContent = preparing ? "preparing" : "asking";
    badge.dataset.status = "busy";
    if (preparing) parts.push("the service is being prepared, which takes some seconds; the answer follows by itself");
    if (answer) parts.push("the bars are still those of the case before");
  } else if (line.stage === "prior") {
    badge.textContent = "prior";
    badge.dataset.status = "ok";
    parts.push("before any finding");
    if (preparing) parts.push("the service is being prepared, which takes some seconds");
  } else if (line.stage === "progress") {
    badge.textContent = "refining";
    badge.dataset.status = "busy";
    parts.push(`one pass shown; ${line.samples.toLocaleString("en")} samples drawn`);
  } else if (line.stage === "first") {
    badge.textContent = "refining";
    badge.dataset.status = "busy";
    parts.push("one pass of the network, without an error of its own", `${Math.round(line.round_trip)} ms`);
    if (preparing) parts.push("a better answer follows when the service is prepared");
  } else {
    badge.textContent = { ok: "trusted", low_ess: "with care", failed: "not to be trusted" }[line.status];
    badge.dataset.status = line.status;
    parts.push(`method ${line.method}`);
    if (line.samples) {
      parts.push(`${line.samples.toLocaleString("en")} samples worth ${Math.round(line.ess ?? 0).toLocaleString("en")} (ESS)`);
      parts.push(`at most \u00b1 ${(196 * largestError(line)).toFixed(1)} points (95 %)`);
    } else parts.push("no error");
    parts.push(line.seconds < 1 ? `${Math.round(1000 * line.seconds)} ms` : `${line.seconds.toFixed(1)} s`);
    if (line.message && line.status !== "ok") parts.push(line.message);
  }
  $("trust").replaceChildren(badge, make("span", { text: parts.join(" \u00b7 ") }));
}

function largestError(line) {
  return Math.max(0, ...Object.values(line.std_errors || {}).flatMap((e) => Object.values(e).map((x) => x ?? 0)));
}

function drawFindings() {
  keepingFocus(() => {
    $("findings").replaceChildren(...[...evidence].map(([name, state]) => {
      const variable = net.byName.get(name) || { name, states: [state] };
      const remove = make("button", { type: "button", class: "quiet x", text: "\u00d7", "aria-label": `Clear ${shown(name)}`,
        data: { key: `x/${name}` }, on: { click: () => set(name, null) } });
      return make("li", { data: { name } }, make("span", { class: "what", text: shown(name) }),
        stateButtons(variable, state, "finding", set), remove);
    }));
  });
  $("clear").hidden = !evidence.size;
  $("nothing").hidden = evidence.size > 0;
}

function drawMatches() {
  const wanted = $("search").value.trim().toLowerCase().replaceAll(" ", "_");
  const rank = (v) => (v.name.toLowerCase().startsWith(wanted) ? 0 : 1);
  const found = wanted && net ? net.variables.filter((v) => v.name.toLowerCase().replaceAll(" ", "_").includes(wanted)).sort((a, b) => rank(a) - rank(b)) : [];
  const rows = found.slice(0, 8).map((v) => make("li", { data: { name: v.name } },
    make("span", { class: "what", text: shown(v.name) }), stateButtons(v, evidence.get(v.name), "match", set)));
  if (wanted && !found.length) rows.push(make("li", { class: "hint", text: "No variable is called so." }));
  $("matches").replaceChildren(...rows);
}

function drawQuestions(found) {
  const best = found.questions[0]?.gain || 1;
  $("questions").replaceChildren(...found.questions.filter((q) => q.gain > 1e-6).map((q) => {
    const gain = make("span", { class: "gain", title: `expected information: ${q.gain.toFixed(4)} nats` });
    gain.style.width = `${(100 * q.gain) / best}%`;
    return make("li", { data: { name: q.variable } },
      make("span", { class: "what", text: shown(q.variable) }),
      make("span", { class: "nats", text: `${q.gain.toFixed(3)} nats` }),
      make("span", { class: "gain-track", "aria-hidden": "true" }, gain),
      stateButtons(net.byName.get(q.variable), undefined, "question", set));
  }));
  $("questions-note").textContent = found.questions.some((q) => q.gain > 1e-6)
    ? `Still unknown: ${found.entropy.toFixed(2)} nats.` : "No question would tell anything more.";
}

function drawDetail() {
  const variable = net.byName.get(chosen);
  $("detail-hint").hidden = Boolean(variable);
  $("detail-close").hidden = !variable;
  $("detail-body").hidden = !variable;
  $("detail-title").textContent = variable ? shown(variable.name) : "A closer look";
  if (!variable) return;
  $("detail-group").textContent = variable.group ? shown(variable.group) : "";
  $("detail-set").replaceChildren(stateButtons(variable, evidence.get(chosen), "detail", set));
  const marginal = answer?.marginals[chosen] || {}, errors = answer?.std_errors?.[chosen];
  $("detail-bars").replaceChildren(...variable.states.map((s) =>
    make("li", { class: "row" }, make("span", { class: "line", data: { state: s } }, ...bar(variable, s, marginal[s], errors?.[s])))));
  drawGraph($("graph"), net, chosen, answer || { marginals: {} }, evidence, choose);
}

function drawAbout() {
  const named = net.groups.filter((g) => g);
  about = named.find((g) => TARGETS.test(g)) || EVERYTHING;
  const options = [...named.map((g) => [g, shown(g)]), [CHOSEN, "the chosen variable"], [EVERYTHING, "everything"]];
  $("about").replaceChildren(...options.map(([value, text]) => make("option", { value, text })));
  $("about").value = about;
}

// --- trouble

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");

function problem(text) {
  $("problem").hidden = !text;
  $("problem").textContent = text && sentence(text);
}

function complain(e) {
  if (e.name === "AbortError") return;
  if (e.status === 401) return $("ask-token").showModal();
  forget();
  problem(e.message);
  $("trust").replaceChildren(make("span", { class: "badge", text: "no answer", data: { status: "failed" } }));
}

// --- exporting

function save(name, kind, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function csv() {
  const quoted = (x) => `"${String(x ?? "").replaceAll('"', '""')}"`;
  const rows = [["variable", "state", "probability", "std_error", "prior", "finding"]];
  for (const v of net.variables) {
    for (const s of v.states) {
      const p = answer.marginals[v.name]?.[s], error = answer.std_errors?.[v.name]?.[s];
      rows.push([v.name, s, p, error, v.prior[s], evidence.get(v.name) === s ? "yes" : ""]);
    }
  }
  return rows.map((r) => r.map(quoted).join(",")).join("\r\n") + "\r\n";
}

// --- keyboard: arrows move through the matches and their states

function arrows(e) {
  const buttons = [...$("matches").querySelectorAll("li")].map((li) => [...li.querySelectorAll("button")]).filter((b) => b.length);
  const row = buttons.findIndex((b) => b.includes(document.activeElement));
  const column = row < 0 ? 0 : buttons[row].indexOf(document.activeElement);
  const go = { ArrowDown: [row + 1, column], ArrowUp: [row - 1, column], ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1] }[e.key];
  if (e.key === "Escape") {
    $("search").value = "";
    drawMatches();
    $("search").focus();
  } else if (e.key === "Enter" && e.target === $("search") && buttons.length) {
    buttons[0][0].focus();
  } else if (go && (row >= 0 || e.key === "ArrowDown")) {
    e.preventDefault();
    if (go[0] < 0) return $("search").focus();
    const line = buttons[Math.min(go[0], buttons.length - 1)];
    line?.[Math.max(0, Math.min(go[1], line.length - 1))].focus();
  }
}

// --- start

async function load(model) {
  net = await api.network(model);
  net.groups.sort((a, b) => TARGETS.test(b) - TARGETS.test(a)); // what one wants to know comes first
  net.byName = new Map(net.variables.map((v) => [v.name, v]));
  net.children = new Map();
  for (const v of net.variables) for (const p of v.parents) net.children.set(p, [...(net.children.get(p) || []), v.name]);
  chosen = answer = null;
  open.clear();
  document.title = `${net.model} \u2013 unimarg`;
  $("model").value = model;
  drawAbout();
}

async function follow(replace) {
  const asked = cases.read();
  try {
    const known = [...$("model").options].map((o) => o.value);
    const model = asked.model || known[0];
    if (net?.model !== model) await load(model);
    evidence = asked.evidence;
    drawMatches();
    changed(replace);
  } catch (e) {
    complain(e);
  }
}

// Says so while the service is being prepared; answers come by themselves.
async function watch() {
  try {
    while ((preparing = await api.preparing())) {
      drawTrust(told);
      if (!$("questions").children.length) $("questions-note").textContent = "They follow when the service is prepared.";
      await new Promise((done) => setTimeout(done, 700));
    }
  } catch {
    preparing = false; // who asks says what is wrong
  }
  if (["asked", "first", "prior"].includes(told.stage)) drawTrust(told);
}

async function start() {
  watch();
  try {
    const models = await api.models();
    $("model").replaceChildren(...models.map((m) => make("option", { value: m.name, text: `${m.name} (${m.variables} variables)` })));
    await follow(true);
  } catch (e) {
    complain(e);
  }
}

$("search").addEventListener("input", drawMatches);
$("search").closest("section").addEventListener("keydown", arrows);
$("clear").addEventListener("click", () => { evidence.clear(); changed(); $("search").focus(); });
$("detail-close").addEventListener("click", () => {
  const back = `row/${chosen}`;
  choose(chosen);
  document.querySelector(`[data-key="${CSS.escape(back)}"]`)?.focus();
});
$("about").addEventListener("change", () => { about = $("about").value; askQuestions(running?.signal); });
$("model").addEventListener("change", () => { location.hash = `#${encodeURIComponent($("model").value)}`; });
$("json").addEventListener("click", () => answer && save(`${net.model}.json`, "application/json",
  JSON.stringify({ evidence: Object.fromEntries(evidence), ...answer }, null, 2)));
$("csv").addEventListener("click", () => answer && save(`${net.model}.csv`, "text/csv", csv()));
$("share").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(location.href);
    $("share").textContent = "Copied";
  } catch {
    $("share").textContent = "See address bar";
  }
  setTimeout(() => { $("share").textContent = "Copy link"; }, 1500);
});
$("token-form").addEventListener("submit", (e) => {
  e.preventDefault();
  sessionStorage.setItem("token", $("token").value);
  $("ask-token").close();
  start();
});
document.addEventListener("keydown", (e) => {
  if (e.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) { e.preventDefault(); $("search").focus(); }
});
document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); $("results").focus(); });
window.addEventListener("popstate", () => follow(true));
start();
