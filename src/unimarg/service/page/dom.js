// Elements from data. Text is only ever set as text: a name from a file can not become markup.

export function make(tag, options = {}, ...children) {
  const { text, data, on, ...rest } = options;
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(rest)) if (value !== undefined) element.setAttribute(name, value);
  for (const [name, value] of Object.entries(data || {})) element.dataset[name] = value;
  for (const [name, handler] of Object.entries(on || {})) element.addEventListener(name, handler);
  if (text !== undefined) element.textContent = text;
  element.append(...children);
  return element;
}

export const shown = (name) => name.replaceAll("_", " ");
export const $ = (id) => document.getElementById(id);

// Draws again without taking the focus away from a keyboard.
export function keepingFocus(draw) {
  const key = document.activeElement?.dataset?.key;
  draw();
  if (key === undefined || document.activeElement?.dataset?.key === key) return;
  const again = document.querySelector(`[data-key="${CSS.escape(key)}"]`);
  again?.focus({ preventScroll: true });
}

// A button for each state; the one that holds is pressed, and pressing it again clears it.
export function stateButtons(variable, held, place, set) {
  const box = make("span", { class: "states", role: "group", "aria-label": `${shown(variable.name)} is` });
  for (const state of variable.states) {
    const pressed = held === state;
    box.append(make("button", {
      type: "button", text: shown(state), "aria-pressed": String(pressed),
      data: { key: `${place}/${variable.name}/${state}` }, on: { click: () => set(variable.name, pressed ? null : state) },
    }));
  }
  return box;
}
