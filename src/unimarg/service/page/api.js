// Requests to the service. A refusal is thrown as an Error whose message is the service's sentence.

async function send(path, body, signal) {
  const headers = { "content-type": "application/json" };
  const token = sessionStorage.getItem("token");
  if (token) headers.authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new Error("the service does not answer; is it still running?");
  }
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => ({}));
  const error = new Error(said.error || `the service answered ${answer.status}`);
  error.status = answer.status;
  throw error;
}

const at = (model, what) => `v1/models/${encodeURIComponent(model)}${what}`;

export const models = async () => (await send("v1/models")).json();
export const preparing = async (signal) => (await (await send("health", undefined, signal)).json()).status !== "ok";
export const network = async (model) => (await send(at(model, ""))).json();
export const questions = async (model, body, signal) => (await send(at(model, "/questions"), body, signal)).json();
export const explain = async (model, body, signal) => (await send(at(model, "/explain"), body, signal)).json();

// Calls told(line) for each line: first, progress, final or error.
export async function stream(model, body, signal, told) {
  const answer = await send(at(model, "/stream"), body, signal);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) told(JSON.parse(line));
  }
}
