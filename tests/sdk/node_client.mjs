// The official `openai` package for JavaScript against a running server, one check after the other.
//
//     node node_client.mjs PACKAGE BASE_URL KEY [--knowledge]
//
// PACKAGE is the folder of the package under `node_modules`. For each check it prints one line of JSON: name, ok, detail. `--knowledge` adds
// the checks of what the bundled model knows. Each check stands as `check("name", ...)` or `knows("name", ...)` at the beginning of a line: the tests read the names there.

import assert from "node:assert/strict";

import { z } from "zod";

const [name, base, key, flag] = process.argv.slice(2);
const { default: OpenAI } = await import(name);
const { zodResponseFormat, zodTextFormat } = await import(`${name}/helpers/zod`);
const { VERSION } = await import(`${name}/version`);
const client = new OpenAI({ baseURL: base, apiKey: key, maxRetries: 0, timeout: 60_000 });
const model = "demo";
const checks = [];

function check(name, run) {
  checks.push([name, run]);
}

function knows(name, run) {
  if (flag === "--knowledge") check(name, run);
}

const HELLO = [{ role: "user", content: "Hello!" }];
const ASK = [{ role: "user", content: "What is the weather in Paris?" }];
const CITIES = ["Paris", "Berlin", "Oslo"];
const WEATHER = tool("get_weather", "Get the weather.", { city: { type: "string", enum: CITIES } });
const TIME = tool("get_time", "Get the time.", { zone: { type: "string", enum: ["UTC", "CET"] } });
const FORCED = { tools: [WEATHER], tool_choice: "required", max_tokens: 64 };
const Verdict = z.strictObject({
  likes_it: z.boolean(),
  colour: z.enum(["red", "green", "blue"]),
  stars: z.number().int().min(1).max(5),
});

function tool(name, description, properties) {
  const required = Object.keys(properties);
  const parameters = { type: "object", properties, required, additionalProperties: false };
  return { type: "function", function: { name, description, parameters } };
}

function chat(fields = {}) {
  const defaults = { model, messages: HELLO, max_tokens: 16, temperature: 0 };
  return client.chat.completions.create({ ...defaults, ...fields });
}

function complete(fields = {}) {
  const defaults = { model, prompt: "Once upon a time", max_tokens: 8, temperature: 0 };
  return client.completions.create({ ...defaults, ...fields });
}

function embed(input, fields = {}) {
  return client.embeddings.create({ model, input, ...fields });
}

async function all(stream) {
  const items = [];
  for await (const item of await stream) items.push(item);
  return items;
}

function text(chunks, index = 0) {
  const choices = chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index);
  return choices.map((choice) => choice.delta.content ?? "").join("");
}

// One id, the role first, a finish reason last, for each choice; a chunk without choices only for the usage.
function soundChunks(chunks, choices = 1) {
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  assert.deepEqual(chunks.filter((chunk) => !chunk.choices.length && !chunk.usage), []);
  for (let index = 0; index < choices; index++) {
    const mine = chunks.flatMap((chunk) => chunk.choices).filter((choice) => choice.index === index);
    assert.deepEqual(mine.map((choice) => choice.delta.role ?? null), mine.map((_, i) => (i ? null : "assistant")));
    assert.deepEqual(mine.slice(0, -1).filter((choice) => choice.finish_reason !== null), []);
    assert.ok(mine.at(-1).finish_reason, "no finish reason");
  }
}

function soundCall(call, name = "get_weather") {
  assert.deepEqual([call.type, call.function.name], ["function", name]);
  assert.ok(call.id, "no id");
  return JSON.parse(call.function.arguments);
}

async function raises(errorClass, call, expected = {}) {
  let error;
  try {
    await call();
  } catch (raised) {
    error = raised;
  }
  assert.ok(error, "no error");
  assert.equal(error.constructor, errorClass, String(error));
  for (const [name, value] of Object.entries(expected)) assert.equal(error[name], value, name);
  assert.ok(error.message && error.error.message, "no message");
  assert.ok(error.requestID, "no x-request-id");
  return error;
}

// chat

check("chat_whole", async () => {
  const answer = await chat();
  assert.deepEqual([answer.object, answer.model], ["chat.completion", model]);
  const [choice] = answer.choices;
  assert.deepEqual([choice.index, choice.logprobs, choice.message.refusal], [0, null, null]);
  assert.equal(choice.message.role, "assistant");
  assert.ok(choice.message.content);
  assert.ok(["stop", "length"].includes(choice.finish_reason));
  const { prompt_tokens, completion_tokens, total_tokens } = answer.usage;
  assert.equal(prompt_tokens + completion_tokens, total_tokens);
  assert.ok(answer._request_id, "no x-request-id");
});

check("chat_stream", async () => {
  const chunks = await all(chat({ stream: true }));
  soundChunks(chunks);
  assert.deepEqual(chunks.filter((chunk) => chunk.usage), []);
  assert.equal(text(chunks), (await chat()).choices[0].message.content);
});

check("chat_stream_usage", async () => {
  const chunks = await all(chat({ stream: true, stream_options: { include_usage: true } }));
  soundChunks(chunks);
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.deepEqual(chunks.slice(0, -1).filter((chunk) => chunk.usage !== null), []);
  assert.equal(chunks.at(-1).usage.total_tokens, (await chat()).usage.total_tokens);
});

check("chat_stream_left", async () => {
  const stream = await chat({ stream: true, max_tokens: 200, messages: [{ role: "user", content: "Tell me a story." }] });
  for await (const chunk of stream) {
    assert.ok(chunk.id);
    break;
  }
  assert.ok((await chat()).choices.length);
});

check("chat_stream_helper", async () => {
  let said = "";
  const stream = client.chat.completions.stream({ model, messages: HELLO, max_tokens: 64, temperature: 0 });
  stream.on("content", (delta) => (said += delta));
  const final = await stream.finalChatCompletion();
  const whole = await chat({ max_tokens: 64 });
  assert.equal(said, whole.choices[0].message.content);
  assert.equal(final.choices[0].message.content, said);
  assert.equal(final.choices[0].finish_reason, whole.choices[0].finish_reason);
});

check("chat_parse", async () => {
  const response_format = zodResponseFormat(Verdict, "verdict");
  const fields = { model, messages: HELLO, response_format, max_tokens: 64, temperature: 0 };
  const whole = await client.chat.completions.parse(fields);
  assert.equal(whole.choices[0].finish_reason, "stop");
  Verdict.parse(whole.choices[0].message.parsed);
  const final = await client.chat.completions.stream(fields).finalChatCompletion();
  assert.deepEqual(final.choices[0].message.parsed, whole.choices[0].message.parsed);
});

check("chat_json_object", async () => {
  const [choice] = (await chat({ response_format: { type: "json_object" }, max_tokens: 64 })).choices;
  assert.ok(choice.message.content.trimStart().startsWith("{"));
  if (choice.finish_reason === "stop") assert.equal(typeof JSON.parse(choice.message.content), "object");
});

check("chat_n", async () => {
  const fields = { n: 2, temperature: 1, seed: 1 };
  const answer = await chat(fields);
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1]);
  soundChunks(await all(chat({ ...fields, stream: true })), 2);
});

check("chat_stop", async () => {
  const full = (await chat()).choices[0].message.content;
  const word = full.slice(full.length / 2).slice(0, 3);
  const [choice] = (await chat({ stop: [word] })).choices;
  assert.deepEqual([choice.message.content, choice.finish_reason], [full.split(word)[0], "stop"]);
});

check("chat_seed", async () => {
  const said = async (seed) => (await chat({ temperature: 2, seed })).choices[0].message.content;
  assert.equal(await said(7), await said(7));
});

check("chat_logprobs", async () => {
  const [choice] = (await chat({ logprobs: true, top_logprobs: 2, max_tokens: 4 })).choices;
  for (const token of choice.logprobs.content) {
    assert.ok(token.logprob <= 0);
    assert.equal(token.top_logprobs.length, 2);
  }
});

check("chat_ignored", async () => {
  const { data, response } = await chat({ no_such_parameter: 1 }).withResponse();
  assert.equal(response.headers.get("x-unilect-ignored"), "no_such_parameter");
  assert.deepEqual(data.unilect, { ignored: ["no_such_parameter"] });
});

// tools

check("tools_required", async () => {
  const [choice] = (await chat({ ...FORCED, messages: ASK })).choices;
  assert.equal(choice.finish_reason, "tool_calls");
  assert.ok(CITIES.includes(soundCall(choice.message.tool_calls[0]).city));
});

check("tools_named", async () => {
  const tool_choice = { type: "function", function: { name: "get_time" } };
  const [choice] = (await chat({ ...FORCED, messages: ASK, tools: [WEATHER, TIME], tool_choice })).choices;
  assert.deepEqual(Object.keys(soundCall(choice.message.tool_calls[0], "get_time")), ["zone"]);
});

check("tools_stream_helper", async () => {
  const names = [];
  const stream = client.chat.completions.stream({ model, messages: ASK, temperature: 0, ...FORCED });
  stream.on("tool_calls.function.arguments.done", (call) => names.push(call.name));
  const [choice] = (await stream.finalChatCompletion()).choices;
  assert.deepEqual(names, ["get_weather"]);
  const whole = await chat({ ...FORCED, messages: ASK });
  assert.deepEqual(soundCall(choice.message.tool_calls[0]), soundCall(whole.choices[0].message.tool_calls[0]));
});

check("tools_round_trip", async () => {
  const { message } = (await chat({ ...FORCED, messages: ASK })).choices[0];
  const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: '{"weather": "sunny"}' };
  const [choice] = (await chat({ messages: [...ASK, message, result], tools: [WEATHER], max_tokens: 64 })).choices;
  assert.ok(["stop", "tool_calls"].includes(choice.finish_reason));
});

check("functions_legacy", async () => {
  const functions = [WEATHER.function];
  const fields = { messages: ASK, functions, function_call: { name: "get_weather" }, max_tokens: 64 };
  const [choice] = (await chat(fields)).choices;
  assert.equal(choice.finish_reason, "function_call");
  assert.deepEqual(Object.keys(JSON.parse(choice.message.function_call.arguments)), ["city"]);
  const chunks = await all(chat({ ...fields, stream: true }));
  const deltas = chunks.map((chunk) => chunk.choices[0].delta.function_call).filter(Boolean);
  assert.equal(deltas[0].name, "get_weather");
  assert.equal(deltas.map((delta) => delta.arguments ?? "").join(""), choice.message.function_call.arguments);
});

// completions, embeddings, models

check("completions_whole", async () => {
  const answer = await complete();
  assert.equal(answer.object, "text_completion");
  assert.deepEqual([answer.choices[0].index, answer.choices[0].logprobs], [0, null]);
  const many = await complete({ prompt: ["One day", "Once"], n: 2, temperature: 1 });
  assert.deepEqual(many.choices.map((choice) => choice.index), [0, 1, 2, 3]);
  assert.equal((await complete({ prompt: [10, 11, 12] })).usage.prompt_tokens, 3);
  const echo = await complete({ echo: true });
  assert.equal(echo.choices[0].text, `Once upon a time${answer.choices[0].text}`);
});

check("completions_stream", async () => {
  const whole = await complete();
  const chunks = await all(complete({ stream: true }));
  assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), whole.choices[0].text);
  assert.equal(chunks.at(-1).choices[0].finish_reason, whole.choices[0].finish_reason);
});

check("embeddings_forms", async () => {
  const coded = (await embed("A cat.")).data[0].embedding;
  const floats = (await embed("A cat.", { encoding_format: "float" })).data[0].embedding;
  assert.equal(coded.length, floats.length);
  coded.forEach((value, i) => assert.ok(Math.abs(value - floats[i]) < 1e-6));
  assert.equal((await embed("A cat.", { dimensions: 4 })).data[0].embedding.length, 4);
  assert.deepEqual((await embed(["one", "two"])).data.map((item) => item.index), [0, 1]);
});

check("models_all", async () => {
  const models = await all(client.models.list());
  assert.deepEqual(models.map((item) => item.id), [model]);
  assert.equal((await client.models.retrieve(model)).object, "model");
});

// responses

function respond(input = "Hello!", rest = {}) {
  return client.responses.create({ model, input, max_output_tokens: 32, temperature: 0, ...rest });
}

check("responses_whole", async () => {
  const answer = await respond();
  assert.deepEqual([answer.object, answer.status], ["response", "completed"]);
  assert.equal(answer.output_text, (await chat({ max_tokens: 32 })).choices[0].message.content);
});

check("responses_stream", async () => {
  const events = await all(respond("Hello!", { stream: true }));
  assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, i) => i));
  const deltas = events.filter((event) => event.type === "response.output_text.delta");
  assert.equal(deltas.map((event) => event.delta).join(""), (await respond()).output_text);
});

check("responses_stream_helper", async () => {
  const stream = client.responses.stream({ model, input: "Hello!", max_output_tokens: 32, temperature: 0 });
  const final = await stream.finalResponse(); // version 5 tells no `output_text` here
  assert.equal(final.output[0].content[0].text, (await respond()).output_text);
});

check("responses_tools", async () => {
  const tools = [{ type: "function", strict: false, ...WEATHER.function }];
  const stream = client.responses.stream({ model, input: ASK, tools, tool_choice: "required", max_output_tokens: 64, temperature: 0 });
  const [call] = (await stream.finalResponse()).output;
  assert.deepEqual([call.type, call.name], ["function_call", "get_weather"]);
  assert.ok(CITIES.includes(JSON.parse(call.arguments).city));
});

check("responses_parse", async () => {
  const text = { format: zodTextFormat(Verdict, "verdict") };
  const fields = { model, input: "Hello!", text, max_output_tokens: 64, temperature: 0 };
  const whole = await client.responses.parse(fields);
  Verdict.parse(whole.output_parsed);
  const final = await client.responses.stream(fields).finalResponse();
  assert.deepEqual(final.output_parsed, whole.output_parsed);
});

check("responses_background", async () => {
  const answer = await respond("Hello!", { background: true });
  assert.equal(answer.status, "queued");
  const events = await all(client.responses.retrieve(answer.id, { stream: true, starting_after: 1 }));
  assert.deepEqual([events[0].sequence_number, events.at(-1).type], [2, "response.completed"]);
  assert.equal((await client.responses.retrieve(answer.id)).status, "completed");
  const long = await respond("Hello!", { background: true, max_output_tokens: 2000, ignore_eos: true });
  assert.equal((await client.responses.cancel(long.id)).status, "cancelled");
});

check("responses_stored", async () => {
  const answer = await respond();
  const next = await respond("And?", { previous_response_id: answer.id });
  assert.equal(next.previous_response_id, answer.id);
  assert.equal((await client.responses.retrieve(answer.id)).output_text, answer.output_text);
  await client.responses.delete(answer.id);
  await raises(OpenAI.NotFoundError, () => client.responses.retrieve(answer.id));
});

// errors

check("error_key", async () => {
  for (const apiKey of ["sk-wrong", `${key}x`]) {
    const other = new OpenAI({ baseURL: base, apiKey, maxRetries: 0 });
    await raises(OpenAI.AuthenticationError, () => other.models.list(), { code: "invalid_api_key", status: 401 });
  }
});

check("error_model", async () => {
  const expected = { code: "model_not_found", param: "model", status: 404 };
  await raises(OpenAI.NotFoundError, () => chat({ model: "gpt-x" }), expected);
  await raises(OpenAI.NotFoundError, () => chat({ model: "gpt-x", stream: true }), expected);
  await raises(OpenAI.NotFoundError, () => complete({ model: "gpt-x" }), expected);
  await raises(OpenAI.NotFoundError, () => embed("a", { model: "gpt-x" }), expected);
  await raises(OpenAI.NotFoundError, () => client.models.retrieve("gone/with:wind"), expected);
});

check("error_route", async () => {
  await raises(OpenAI.NotFoundError, () => client.moderations.create({ input: "a" }), { code: "unknown_url" });
});

check("error_value", async () => {
  const bad = { temperature: 9, n: 0, max_tokens: -5, seed: "abc", messages: [], tool_choice: "required" };
  for (const [param, value] of Object.entries(bad)) {
    for (const stream of [false, true]) {
      const call = () => chat({ stream, [param]: value });
      await raises(OpenAI.BadRequestError, call, { param, code: "invalid_value", type: "invalid_request_error" });
    }
  }
});

check("error_context", async () => {
  const { context } = (await client.models.retrieve(model)).unilect;
  const long = "cat dog ".repeat(context);
  const code = "context_length_exceeded";
  const messages = [{ role: "user", content: long }];
  await raises(OpenAI.BadRequestError, () => chat({ messages }), { code, param: "messages" });
  await raises(OpenAI.BadRequestError, () => chat({ messages, stream: true }), { code, param: "messages" });
  await raises(OpenAI.BadRequestError, () => complete({ prompt: long }), { code, param: "prompt" });
  await raises(OpenAI.BadRequestError, () => embed(long), { code, param: "input" });
});

check("error_parameter", async () => {
  const expected = { code: "unsupported_parameter", param: "suffix", status: 400 };
  await raises(OpenAI.BadRequestError, () => complete({ suffix: " the end" }), expected);
});

// what the bundled model knows

knows("knows_capitals", async () => {
  const pairs = [["What is the capital of France?", "Paris"], ["告诉我中国的首都在哪里", "北京"]];
  for (const [content, capital] of pairs) {
    const answer = await chat({ messages: [{ role: "user", content }] });
    assert.ok(answer.choices[0].message.content.includes(capital), answer.choices[0].message.content);
  }
});

knows("knows_run_tools", async () => {
  const asked = [];
  const weather = tool("get_weather", "Get the weather in a city.", { city: { type: "string" } });
  const run = ({ city }) => {
    asked.push(city);
    return '{"weather": "sunny", "temperature": 21}';
  };
  weather.function = { ...weather.function, function: run, parse: JSON.parse };
  const fields = { model, messages: ASK, tools: [weather], max_tokens: 64, temperature: 0 };
  for (const stream of [false, true]) {
    const runner = client.chat.completions.runTools({ ...fields, stream }, { maxChatCompletions: 3 });
    const answer = await runner.finalContent();
    assert.match(answer, /sunny|21/);
  }
  assert.deepEqual(asked, ["Paris", "Paris"]);
});

knows("knows_run_response_tools", async () => {
  if (Number.parseInt(VERSION) < 7) return; // they have no such runner
  const { ResponsesToolRunner } = await import(`${name}/helpers/responses-tool-runner`);
  const asked = [];
  const execute = ({ city }) => (asked.push(city), '{"weather": "sunny", "temperature": 21}');
  const runner = new ResponsesToolRunner({ functions: [{ tool: { type: "function", strict: false, ...WEATHER.function }, execute }] });
  for (const stream of [false, true]) {
    const answer = await runner.run(client, { model, input: ASK, max_output_tokens: 64, temperature: 0 }, { stream, maxSteps: 3 });
    assert.match(answer.output_text, /sunny|21/);
  }
  assert.deepEqual(asked, ["Paris", "Paris"]);
});

console.log(JSON.stringify({ name: "version", ok: true, detail: VERSION }));
for (const [name, run] of checks) {
  let detail = "";
  try {
    await run();
  } catch (error) {
    detail = error?.stack ?? String(error);
  }
  console.log(JSON.stringify({ name, ok: detail === "", detail }));
}
