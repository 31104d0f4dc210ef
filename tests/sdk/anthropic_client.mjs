// The official `@anthropic-ai/sdk` package for JavaScript against a running server, one check after the other.
//
//     node anthropic_client.mjs PACKAGE BASE_URL KEY
//
// PACKAGE is the folder of the package under `node_modules`: a major version each. For each check it prints one line of JSON: name, ok,
// detail. Each check stands as `check("name", ...)` at the beginning of a line: the tests read the names there.

import assert from "node:assert/strict";

const [name, base, key] = process.argv.slice(2);
const { default: Anthropic } = await import(name);
const { betaTool, betaJSONSchemaOutputFormat } = await import(`${name}/helpers/beta/json-schema`);
const { VERSION } = await import(`${name}/version`);

const client = connect(key);
const checks = [];

const HELLO = [{ role: "user", content: "Hello!" }];
const ASK = [{ role: "user", content: "What is the weather in Paris?" }];
const CITY = { type: "object", properties: { city: { type: "string", enum: ["Paris", "Oslo"] } }, required: ["city"] };
const WEATHER = { name: "get_weather", description: "Get the weather.", input_schema: CITY };
const FORCED = { messages: ASK, tools: [WEATHER], tool_choice: { type: "any", disable_parallel_tool_use: true } };

function connect(apiKey) {
  return new Anthropic({ baseURL: base.replace(/\/v1$/, ""), apiKey, maxRetries: 0, timeout: 60_000 });
}

function check(name, run) {
  checks.push([name, run]);
}

function fields(more = {}) {
  return { model: "demo", max_tokens: 64, temperature: 0, messages: HELLO, ...more };
}

check("creates a message", async () => {
  const { data, request_id } = await client.messages.create(fields()).withResponse();
  assert.ok(data.content[0].text);
  assert.deepEqual([data.role, data.stop_reason, data.model], ["assistant", "end_turn", "demo"]);
  assert.ok(data.usage.output_tokens > 0);
  assert.match(request_id, /^req_/);
});

check("streams a message through its helper", async () => {
  const whole = await client.messages.create(fields());
  const stream = client.messages.stream(fields());
  const pieces = [];
  stream.on("text", (text) => pieces.push(text));
  const final = await stream.finalMessage();
  assert.equal(final.content[0].text, whole.content[0].text);
  assert.equal(pieces.join(""), whole.content[0].text);
  assert.equal(final.stop_reason, whole.stop_reason);
  assert.equal(final.usage.output_tokens, whole.usage.output_tokens);
});

check("streams raw events", async () => {
  const kinds = [];
  for await (const event of await client.messages.create(fields({ stream: true }))) kinds.push(event.type);
  assert.deepEqual(kinds.slice(0, 2), ["message_start", "content_block_start"]);
  assert.deepEqual(kinds.slice(-3), ["content_block_stop", "message_delta", "message_stop"]);
});

check("calls a tool whole and streamed", async () => {
  const whole = await client.messages.create(fields(FORCED));
  const streamed = await client.messages.stream(fields(FORCED)).finalMessage();
  for (const message of [whole, streamed]) {
    const [call] = message.content;
    assert.deepEqual([call.type, call.name, call.input], ["tool_use", "get_weather", { city: "Paris" }]);
    assert.equal(message.stop_reason, "tool_use");
  }
});

check("runs tools to the end", async () => {
  for (const stream of [false, true]) {
    const called = [];
    const run = ({ city }) => (called.push(city), "sunny, 21 degrees");
    const weather = betaTool({ name: "get_weather", description: "Get the weather.", inputSchema: CITY, run });
    const runner = client.beta.messages.toolRunner(fields({ messages: ASK, tools: [weather], stream, max_iterations: 4 }));
    const reasons = [];
    for await (const turn of runner) reasons.push((stream ? await turn.finalMessage() : turn).stop_reason);
    assert.deepEqual(called, ["Paris"]);
    assert.deepEqual(reasons, ["tool_use", "end_turn"]);
  }
});

check("parses an answer by its schema", async () => {
  const properties = { likes_it: { type: "boolean" }, city: CITY.properties.city };
  const schema = { type: "object", properties, required: ["likes_it", "city"], additionalProperties: false };
  const format = betaJSONSchemaOutputFormat(schema);
  // its place today, and in older betas
  const wanted = VERSION.startsWith("0.") ? { output_format: format } : { output_config: { format } };
  const { parsed_output } = await client.beta.messages.parse(fields(wanted));
  assert.equal(typeof parsed_output.likes_it, "boolean");
  assert.equal(typeof parsed_output.city, "string"); // older ones send no `enum`
  const final = await client.beta.messages.stream(fields(wanted)).finalMessage();
  assert.deepEqual(JSON.parse(final.content[0].text), parsed_output);
});

check("counts tokens", async () => {
  const { input_tokens } = await client.messages.countTokens({ model: "demo", messages: HELLO });
  const { usage } = await client.messages.create(fields());
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
});

check("lists models", async () => {
  const ids = [];
  for await (const model of client.models.list({ limit: 1 })) ids.push(model.id);
  assert.ok(ids.includes("demo"));
  assert.equal((await client.models.retrieve("demo")).type, "model");
});

check("raises errors by their class", async () => {
  const messages = [{ role: "user", content: "hello ".repeat(9000) }];
  await assert.rejects(client.messages.create(fields({ model: "none" })), Anthropic.NotFoundError);
  await assert.rejects(connect("sk-wrong").messages.create(fields()), Anthropic.AuthenticationError);
  await assert.rejects(client.messages.create(fields({ messages })), /prompt is too long: \d+ tokens > \d+ maximum/);
  await assert.rejects(client.messages.stream(fields({ messages })).finalMessage(), Anthropic.BadRequestError);
});

console.log(JSON.stringify({ name: "version", ok: true, detail: VERSION }));
for (const [name, run] of checks) {
  let [ok, detail] = [true, ""];
  try {
    await run();
  } catch (error) {
    [ok, detail] = [false, String(error?.stack ?? error)];
  }
  console.log(JSON.stringify({ name, ok, detail }));
}
