/**
 * An answer: a request to a model, and the message that its stream becomes.
 *
 * The message is changed while it comes; whoever shows it gets each piece (`onPiece(kind, text)`), so that nothing is drawn twice.
 */

import { Failure, send } from "./session.js";

/** Firefox breaks requests off as soon as a page is about to be left, Chromium when it is: at most so long behind these events. */
const [LEAVING, LEAVING_MS] = [["beforeunload", "pagehide"], 1000];

/** Return the messages of a branch as the API takes them. */
export function apiMessages(messages, system) {
  const list = system ? [{ role: "system", content: system }] : [];
  for (const one of messages) {
    if (one.error && !one.content && !one.calls?.length) continue;
    if (one.role === "tool") list.push({ role: "tool", tool_call_id: one.callId, content: one.content });
    else if (one.role === "user" && one.images?.length) {
      const images = one.images.map((url) => ({ type: "image_url", image_url: { url } }));
      list.push({ role: "user", content: [{ type: "text", text: one.content }, ...images] });
    } else if (one.calls?.length) list.push({ role: one.role, content: one.content || null, tool_calls: one.calls.map(apiCall) });
    else list.push({ role: one.role, content: one.content });
  }
  return list;
}

const apiCall = (call) => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } });

/**
 * Return the body of a request.
 *
 * @param settings `{ system, parameters, tools, schema }`; the texts of `tools` and `schema` are JSON
 * @throws SyntaxError one of them is not
 */
export function requestBody(model, messages, settings) {
  const body = { model, messages: apiMessages(messages, settings.system), ...settings.parameters };
  if (settings.tools?.trim()) body.tools = JSON.parse(settings.tools);
  if (settings.schema?.trim()) {
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: JSON.parse(settings.schema) } };
  }
  return body;
}

/** Return the body of a request that goes on with a message behind its thoughts, which end as they are; the arguments are those of `ask`. */
export function endThoughts(body, message) {
  const begun = { role: "assistant", content: message.content, reasoning_content: message.thoughts };
  return { ...body, messages: [...body.messages, begun], continue_final_message: "content" };
}

/** Begin the message of an answer. */
export function newAnswer(model) {
  return { role: "assistant", model, content: "", thoughts: "", calls: [], tokens: [], state: "waiting" };
}

/**
 * Ask a model, and fill the message of its answer; one that has begun goes on.
 *
 * @param body as of `requestBody`
 * @param message as of `newAnswer`
 * @param onPiece is told `content`, `thoughts`, `calls`, `stage` and `state`, with the text that came
 * @param signal stops it; what has come stays
 */
export async function ask(body, message, onPiece, signal) {
  const began = performance.now() - 1000 * (message.seconds ?? 0);
  const wanted = { ...body, stream: true, stream_options: { include_usage: true } };
  let leftAt = -Infinity;
  const leave = () => (leftAt = performance.now());
  for (const name of LEAVING) addEventListener(name, leave);
  try {
    const { readEvents } = await import("./sse.js"); // a first visit does not wait for it
    const response = await send("v1/chat/completions", { method: "POST", body: wanted, signal });
    for await (const { name, data } of readEvents(response, { comments: true })) {
      if (name === ":") onPiece("stage", data);
      else if (data === "[DONE]") break;
      else take(JSON.parse(data), message, onPiece, began);
    }
    if (!message.finish) throw new Failure(0, "The answer broke off.");
    message.state = "done";
  } catch (error) {
    if (error.name === "AbortError") message.state = "stopped";
    else if (performance.now() - leftAt < LEAVING_MS) message.state = "left";
    else {
      message.state = "failed";
      const why = error instanceof TypeError ? "The connection to the server broke off. What has come stays; Again asks once more." : error.message;
      message.error = { message: why, code: error.code ?? "", param: error.param ?? "" };
    }
  } finally {
    for (const name of LEAVING) removeEventListener(name, leave);
  }
  message.seconds = (performance.now() - began) / 1000;
  onPiece("state", message.state);
}

/** Take a chunk of the stream. */
function take(chunk, message, onPiece, began) {
  if (chunk.error) throw new Failure(0, chunk.error.message, chunk.error);
  if (chunk.usage) message.usage = chunk.usage;
  const [choice] = chunk.choices ?? [];
  if (!choice) return;
  const { content, reasoning_content: thoughts, tool_calls: calls } = choice.delta ?? {};
  if ((content || thoughts || calls) && message.firstToken === undefined) {
    message.firstToken = (performance.now() - began) / 1000;
    message.state = "answering";
    onPiece("state", message.state);
  }
  if (thoughts) {
    message.thoughts += thoughts;
    onPiece("thoughts", thoughts);
  }
  if (content) {
    message.content += content;
    onPiece("content", content);
  }
  for (const call of calls ?? []) takeCall(call, message);
  if (calls) onPiece("calls", "");
  for (const token of choice.logprobs?.content ?? []) {
    message.tokens.push([token.token, token.logprob, (token.top_logprobs ?? []).map((one) => [one.token, one.logprob])]);
  }
  if (choice.finish_reason) message.finish = choice.finish_reason;
}

function takeCall(piece, message) {
  const call = (message.calls[piece.index ?? 0] ??= { id: "", name: "", arguments: "" });
  call.id ||= piece.id ?? "";
  call.name += piece.function?.name ?? "";
  call.arguments += piece.function?.arguments ?? "";
}

/** Write a number with commas; what the browser has for it is slow to begin. */
export const grouped = (number) => String(number).replace(/\B(?=(\d{3})+$)/g, ",");
