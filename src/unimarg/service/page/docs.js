// The interface, drawn from openapi.json.

import { $, make } from "./dom.js";

const named = (schema, all) => (schema?.$ref ? all[schema.$ref.split("/").at(-1)] : schema);

function kind(schema) {
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.const !== undefined) return String(schema.const);
  if (schema.type === "array") return `list of ${kind(schema.items || {})}`;
  return schema.type || "anything";
}

function fields(schema, all, asked) {
  const given = named(schema, all);
  const body = make("tbody");
  for (const [name, field] of Object.entries(given?.properties || {})) {
    const needed = asked && given.required?.includes(name);
    body.append(make("tr", {}, make("td", {}, make("code", { text: name })), make("td", { text: kind(field) + (needed ? ", needed" : "") }),
      make("td", { text: field.description || "" })));
  }
  return body.children.length ? make("table", {}, body) : make("p", { text: kind(schema) });
}

function operation(path, verb, what, all) {
  const body = what.requestBody?.content["application/json"]?.schema;
  const good = what.responses?.["200"]?.content?.["application/json"]?.schema;
  const card = make("section", { class: "card" },
    make("h2", {}, make("span", { class: "verb", text: verb.toUpperCase() }), make("code", { text: path })),
    make("p", { text: what.description || what.summary || "" }));
  for (const p of what.parameters || []) card.append(make("p", { class: "hint", text: `${p.name}: ${kind(p.schema)}` }));
  if (body) {
    const example = `curl -s ${location.origin}${path} -H 'content-type: application/json' -d '{"evidence": {}}'`;
    card.append(make("h3", { text: "Asked" }), fields(body, all, true), make("pre", { text: example }));
  }
  if (good) card.append(make("h3", { text: "Answered" }), fields(good, all));
  return card;
}

try {
  const token = sessionStorage.getItem("token");
  const answer = await fetch("openapi.json", { headers: token ? { authorization: `Bearer ${token}` } : {} });
  const described = await answer.json();
  if (!answer.ok) throw new Error(described.error);
  const all = described.components?.schemas || {};
  const cards = Object.entries(described.paths).flatMap(([path, verbs]) => Object.entries(verbs).map(([v, w]) => operation(path, v, w, all)));
  $("docs").replaceChildren(make("p", { text: described.info.summary || "" }), ...cards);
} catch (e) {
  $("docs").replaceChildren(make("p", { class: "problem", text: e.message }));
}
