// The server: questions with one answer, and runs that answer line by line.

const GONE = "The server does not answer. Is `recap studio` still running? Start it again and try once more.";
const LOST = "The connection to the server was lost before the run ended. Is `recap studio` still running?";

/** What went wrong, in words for people. */
export class Problem extends Error {
  constructor(message, code = null) {
    super(message);
    this.code = code;
  }
}

/** True for what a caller has stopped itself. */
export const stopped = (error) => error.name === "AbortError";

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, redirect: "error", credentials: "omit" });
  } catch (error) {
    throw stopped(error) ? error : new Problem(GONE, "gone");
  }
  if (!response.ok) throw await problem(response);
  return response;
}

async function problem(response) {
  let told = {};
  try {
    told = (await response.json()).error ?? {};
  } catch {
    told = {}; // no JSON: the status has to do
  }
  let message = told.message ?? `The server answered ${response.status} ${response.statusText}.`;
  const wait = Number(response.headers.get("Retry-After"));
  if (response.status === 429) message += ` Try again in ${wait > 1 ? `${wait} seconds` : "a second"}.`;
  return new Problem(message, told.code ?? response.status);
}

const sent = (body, signal) => ({
  method: "POST",
  headers: { "Content-Type": "application/json" },
  body: JSON.stringify(body),
  signal,
});

export const get = async (path, signal) => (await ask(path, { signal })).json();
export const post = async (path, body, signal) => (await ask(path, sent(body, signal))).json();

/** The events of a run as they come; ends with "done", else throws. Aborting the signal cancels the run. */
export async function* events(path, body, signal) {
  const response = await ask(path, sent(body, signal));
  for await (const line of lines(response.body)) {
    const event = JSON.parse(line);
    if (event.event === "error") throw new Problem(event.message, event.code);
    yield event;
    if (event.event === "done") return;
  }
  throw new Problem(LOST, "lost");
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const whole = (rest + value).split("\n");
      rest = whole.pop();
      for (const line of whole) if (line.trim()) yield line;
    }
  } catch (error) {
    throw stopped(error) ? error : new Problem(LOST, "lost");
  } finally {
    reader.cancel().catch(() => {}); // closed already, or closing
  }
  if (rest.trim()) yield rest;
}

/** The bytes of base64 as a file. */
export function blob(base64, type) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new Blob([bytes], { type });
}

/** A file as base64. */
export async function base64(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  const pieces = [];
  for (let i = 0; i < bytes.length; i += 0x8000) pieces.push(String.fromCharCode(...bytes.subarray(i, i + 0x8000)));
  return btoa(pieces.join(""));
}
