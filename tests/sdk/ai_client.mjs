// Vercel's AI SDK against a running server, one check after the other.
//
//     node ai_client.mjs MAJOR BASE_URL[,BASE_URL...] KEY
//
// MAJOR is a version of the package `ai`, which stands with the providers of its time under `node_modules`. For each check at each URL it
// prints one line of JSON: name, ok, detail. `each("name", ...)` and `check("name", ...)` stand at the beginning of a line: the tests read
// the names there. A check of `each` runs over every API that the providers speak, and its line is named `name over api`.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { z } from "zod";

const [major, bases, key] = process.argv.slice(2);
let base;
const ai = await import(`ai${major}`);
const { createOpenAI } = await import(`ai${major}-openai`);
const { createOpenAICompatible } = await import(`ai${major}-openai-compatible`);
const { createAnthropic } = await import(`ai${major}-anthropic`);
const { APICallError, NoSuchToolError, Output, generateObject, generateText, streamObject, streamText, tool } = ai;
const atMost = ai.isStepCount ?? ai.stepCountIs;

globalThis.AI_SDK_LOG_WARNINGS = false; // they would stand between the lines of JSON
const checks = [];
const ASK = "What is the weather in Paris?";
const GREEDY = { maxOutputTokens: 64, temperature: 0, maxRetries: 0 };
const VERDICT = z.object({ likes_it: z.boolean(), stars: z.number().int().min(1).max(5) });
const openai = () => createOpenAI({ baseURL: base, apiKey: key });

const APIS = {
  responses: (apiKey = key) => createOpenAI({ baseURL: base, apiKey }),
  chat: (apiKey = key) => createOpenAI({ baseURL: base, apiKey }).chat,
  compatible: (apiKey = key) =>
    createOpenAICompatible({ baseURL: base, apiKey, name: "unilect", includeUsage: true, supportsStructuredOutputs: true }),
  messages: (apiKey = key) => createAnthropic({ baseURL: base, apiKey }),
};

function check(name, run) {
  checks.push([name, run]);
}

function each(name, run) {
  for (const [api, models] of Object.entries(APIS)) checks.push([`${name} over ${api}`, () => run(models()("demo"), api)]);
}

function weather(called = []) {
  return tool({
    description: "Get the weather.",
    inputSchema: z.object({ city: z.enum(["Paris", "Oslo"]) }),
    execute: async ({ city }) => (called.push(city), "sunny, 21 degrees"),
  });
}

async function partsOf(result) {
  const parts = [];
  for await (const part of result.stream ?? result.fullStream) parts.push(part);
  return parts;
}

each("generates text", async (model) => {
  const { text, finishReason, usage, response, warnings } = await generateText({ model, prompt: "Hello!", ...GREEDY });
  assert.ok(text);
  assert.equal(finishReason, "stop");
  assert.equal(response.modelId, "demo");
  assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
  assert.deepEqual(warnings ?? [], []);
});

each("streams text and usage", async (model) => {
  const whole = await generateText({ model, prompt: "Hello!", ...GREEDY });
  const result = streamText({ model, prompt: "Hello!", ...GREEDY });
  const pieces = [];
  for await (const piece of result.textStream) pieces.push(piece);
  assert.equal(pieces.join(""), whole.text);
  assert.equal(await result.text, whole.text);
  assert.equal(await result.finishReason, whole.finishReason);
  const usage = await result.usage;
  assert.equal(usage.outputTokens, whole.usage.outputTokens);
  assert.ok(usage.inputTokens > 0); // over Messages without those that the cache had, which hang on requests that were given up before
});

each("tells that an answer was cut", async (model) => {
  const fields = { model, prompt: "Hello!", ...GREEDY, maxOutputTokens: 1 };
  assert.equal((await generateText(fields)).finishReason, "length");
  const result = streamText(fields);
  await result.consumeStream();
  assert.equal(await result.finishReason, "length");
});

each("runs tools to the end", async (model) => {
  for (const stream of [false, true]) {
    const called = [];
    const fields = { model, prompt: ASK, tools: { get_weather: weather(called) }, stopWhen: atMost(4), ...GREEDY };
    const result = stream ? streamText(fields) : await generateText(fields);
    const parts = stream ? await partsOf(result) : [];
    const steps = await result.steps;
    assert.deepEqual(called, ["Paris"]);
    assert.deepEqual(steps.map((step) => step.finishReason), ["tool-calls", "stop"]);
    assert.deepEqual(steps[0].toolCalls.map((call) => [call.toolName, call.input]), [["get_weather", { city: "Paris" }]]);
    assert.match(await result.text, /21|sunny/);
    assert.deepEqual(parts.filter((part) => part.type === "error" || part.type === "tool-error"), []);
  }
});

each("is made to call", async (model) => {
  const tools = { get_weather: weather(), get_time: { ...weather(), description: "Get the time." } };
  for (const toolChoice of ["required", { type: "tool", toolName: "get_weather" }]) {
    const fields = { model, prompt: ASK, tools, toolChoice, ...GREEDY };
    const streamed = streamText(fields);
    await streamed.consumeStream();
    for (const { toolCalls, finishReason } of [
      await generateText(fields),
      { toolCalls: await streamed.toolCalls, finishReason: await streamed.finishReason },
    ]) {
      assert.deepEqual(toolCalls[0].input, { city: "Paris" });
      if (toolChoice !== "required") assert.equal(toolCalls[0].toolName, "get_weather");
      assert.equal(finishReason, "tool-calls");
    }
  }
});

each("fills objects", async (model) => {
  const { object } = await generateObject({ model, schema: VERDICT, prompt: "Hello!", ...GREEDY });
  VERDICT.parse(object);
  const streamed = streamObject({ model, schema: VERDICT, prompt: "Hello!", ...GREEDY });
  const partial = [];
  for await (const one of streamed.partialObjectStream) partial.push(one);
  assert.deepEqual(await streamed.object, object);
  assert.deepEqual(partial.at(-1), object);
});

each("fills the output of a text", async (model) => {
  const output = Output.object({ schema: VERDICT });
  const fields = { model, prompt: "Hello!", output, experimental_output: output, ...GREEDY };
  if (major === "5") delete fields.output;
  else delete fields.experimental_output;
  const result = await generateText(fields);
  VERDICT.parse(major === "5" ? result.experimental_output : result.output);
});

each("goes on from its own messages", async (model) => {
  const first = { role: "user", content: "My name is Ada." };
  const { response } = await generateText({ model, messages: [first], ...GREEDY });
  const messages = [first, ...response.messages, { role: "user", content: "What is my name?" }];
  assert.match((await generateText({ model, messages, ...GREEDY })).text, /Ada/);
});

each("goes on after a tool's result", async (model) => {
  const tools = { get_weather: weather() };
  const asked = { role: "user", content: ASK };
  const first = await generateText({ model, messages: [asked], tools, stopWhen: atMost(4), ...GREEDY });
  const messages = [asked, ...first.response.messages, { role: "user", content: "Hello!" }];
  assert.ok((await generateText({ model, messages, tools, ...GREEDY })).text);
});

each("reads the system's message", async (model) => {
  const fields = { model, prompt: "What is your name?", ...GREEDY };
  fields[major === "7" ? "instructions" : "system"] = "Your name is Mia.";
  assert.match((await generateText(fields)).text, /Mia/);
});

each("raises errors by their class", async (model, api) => {
  const refused = (status) => (error) => APICallError.isInstance(error) && error.statusCode === status;
  const long = "hello ".repeat(9000);
  const models = APIS[api];
  await assert.rejects(generateText({ model: models("sk-wrong")("demo"), prompt: "Hi", ...GREEDY }), refused(401));
  await assert.rejects(generateText({ model: models()("none"), prompt: "Hi", ...GREEDY }), refused(404));
  await assert.rejects(
    generateText({ model, prompt: long, ...GREEDY }),
    (error) => refused(400)(error) && /context|too long/.test(error.message),
  );
  const errors = [];
  const streamed = streamText({ model, prompt: long, ...GREEDY, onError: ({ error }) => errors.push(error) });
  const [told] = (await partsOf(streamed)).filter((part) => part.type === "error");
  assert.ok(refused(400)(told.error), String(told.error));
  assert.deepEqual(errors, [told.error]);
});

each("stops when it is told to", async (model) => {
  const leaving = new AbortController();
  const result = streamText({ model, prompt: "Tell me a story.", ...GREEDY, maxOutputTokens: 1024, abortSignal: leaving.signal });
  const kinds = [];
  for await (const part of result.stream ?? result.fullStream) {
    kinds.push(part.type);
    if (part.type === "text-delta") leaving.abort();
  }
  assert.ok(kinds.includes("abort"), kinds.join(" "));
});

check("goes on from a stored response", async () => {
  for (const stream of [false, true]) {
    const model = openai()("demo");
    const first = await generateText({ model, prompt: "My name is Ada.", ...GREEDY });
    const previousResponseId = first.providerMetadata.openai.responseId;
    const fields = { model, prompt: "What is my name?", providerOptions: { openai: { previousResponseId } }, ...GREEDY };
    assert.match(await (stream ? streamText(fields) : await generateText(fields)).text, /Ada/);
    const alone = { ...fields, providerOptions: { openai: { previousResponseId: "resp_none" } } };
    await assert.rejects(generateText(alone), (error) => error.statusCode === 400 && /resp_none/.test(error.message));
  }
});

check("goes on in a conversation", async () => {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const made = await fetch(`${base}/conversations`, { method: "POST", headers, body: "{}" });
  const { id } = await made.json();
  const fields = { model: openai()("demo"), providerOptions: { openai: { conversation: id } }, ...GREEDY };
  await generateText({ ...fields, prompt: "My name is Ada." });
  assert.match((await generateText({ ...fields, prompt: "What is my name?" })).text, /Ada/);
});

check("goes on without a store", async () => {
  const providerOptions = { openai: { store: false, include: ["reasoning.encrypted_content"] } };
  const fields = { model: openai()("demo"), tools: { get_weather: weather() }, stopWhen: atMost(4), providerOptions, ...GREEDY };
  const asked = { role: "user", content: ASK };
  const { response, steps } = await generateText({ ...fields, messages: [asked] });
  assert.equal(steps.length, 2);
  const messages = [asked, ...response.messages, { role: "user", content: "Hello!" }];
  assert.ok((await generateText({ ...fields, messages })).text);
});

check("leaves hosted tools out", async () => {
  const tools = { web_search: (openai().tools.webSearch ?? openai().tools.webSearchPreview)({}), get_weather: weather() };
  const { response, text, steps } = await generateText({ model: openai()("demo"), prompt: ASK, tools, stopWhen: atMost(4), ...GREEDY });
  assert.deepEqual(steps[0].toolCalls.map((call) => call.toolName), ["get_weather"]);
  assert.ok(text);
  assert.equal(decodeURIComponent(response.headers["x-unilect-ignored"]), "tools[0]:web_search");
});

check("embeds", async () => {
  const { embeddings, usage } = await ai.embedMany({ model: openai().textEmbeddingModel("demo"), values: ["a cat", "a dog"] });
  assert.equal(embeddings.length, 2);
  assert.equal(embeddings[0].length, embeddings[1].length);
  assert.ok(usage.tokens > 0);
});

check("completes", async () => {
  const { text } = await generateText({ model: openai().completion("demo"), prompt: "Once upon a time", ...GREEDY, maxOutputTokens: 8 });
  assert.ok(text);
});

check("does what its page says", async () => {
  const [, lines] = readFileSync("ai-sdk.md", "utf8").match(/```js\n(.*?)```/s);
  const here = lines
    .replace(/from "ai"/, `from "ai${major}"`)
    .replace(/@ai-sdk\//g, `ai${major}-`)
    .replace(/isStepCount/g, ai.isStepCount ? "isStepCount" : "stepCountIs")
    .replace("http://127.0.0.1:8000/v1", base)
    .replace("sk-my-key", key)
    .replace("console.log(text)", "said.push(text)");
  writeFileSync(`page${major}.mjs`, `export const said = [];\n${here}`);
  const { said } = await import(`${process.cwd()}/page${major}.mjs?${encodeURIComponent(base)}`);
  assert.equal(said.length, 4);
  for (const text of said) assert.match(text, /21 degrees/);
});

const version = JSON.parse(readFileSync(`node_modules/ai${major}/package.json`, "utf8")).version;
console.log(JSON.stringify({ name: "version", ok: true, detail: version }));
for (const [number, url] of bases.split(",").entries()) {
  base = url;
  for (const [name, run] of checks) {
    let [ok, detail] = [true, ""];
    try {
      await run();
    } catch (error) {
      [ok, detail] = [false, `${error?.stack ?? error} ${error?.responseBody ?? ""} ${error?.cause ?? ""}`];
    }
    console.log(JSON.stringify({ name: number ? `${name}-${number}` : name, ok, detail }));
  }
}
