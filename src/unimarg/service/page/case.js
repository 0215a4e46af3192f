// A case lives in the address: #model?variable=state&variable=state. What follows the # is never sent to the service.

export function read() {
  const text = location.hash.slice(1);
  const cut = text.indexOf("?");
  const model = decode(cut < 0 ? text : text.slice(0, cut));
  const evidence = new Map(new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1)));
  return { model, evidence };
}

export function write(model, evidence, replace) {
  const found = new URLSearchParams([...evidence]).toString();
  const hash = `#${encodeURIComponent(model)}${found ? `?${found}` : ""}`;
  if (hash !== location.hash) history[replace ? "replaceState" : "pushState"](null, "", hash);
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
