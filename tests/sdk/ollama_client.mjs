// The official `ollama` package for JavaScript against a running server, one check after the other.
//
//     node ollama_client.mjs BASE_URL KEY
//
// For each check it prints one line of JSON: name, ok, detail. Each check stands as `check("name", ...)` at the beginning of a line.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

import { Ollama } from "ollama";

const [base, key] = process.argv.slice(2);
const client = new Ollama({ host: base.replace(/\/v1$/, ""), headers: { Authorization: `Bearer ${key}` } });
const model = "demo";
const checks = [];
const HELLO = [{ role: "user", content: "Hello!" }];
const ASK = [{ role: "user", content: "What is the weather in Paris?" }];
const options = { temperature: 0, num_predict: 64 };
const parameters = { type: "object", properties: { city: { type: "string", enum: ["Paris", "Oslo"] } }, required: ["city"] };
const TOOLS = [{ type: "function", function: { name: "get_weather", description: "Get the weather.", parameters } }];

function check(name, run) {
  checks.push([name, run]);
}

async function all(stream) {
  const rows = [];
  for await (const row of await stream) rows.push(row);
  return rows;
}

check("chats", async () => {
  const answer = await client.chat({ model, messages: HELLO, options });
  assert.ok(answer.message.content);
  assert.deepEqual([answer.done, answer.done_reason, answer.message.role], [true, "stop", "assistant"]);
  assert.ok(answer.eval_count > 0 && answer.total_duration >= answer.eval_duration);
});

check("streams", async () => {
  const whole = await client.chat({ model, messages: HELLO, options });
  const rows = await all(client.chat({ model, messages: HELLO, options, stream: true }));
  assert.equal(rows.map((row) => row.message.content).join(""), whole.message.content);
  assert.deepEqual(rows.map((row) => row.done), rows.map((_, i) => i === rows.length - 1));
});

check("leaves", async () => {
  const story = [{ role: "user", content: "Tell me a story about a cat." }];
  // so long an answer that it is not over before its first row is read
  const format = { type: "array", items: { type: "integer" }, minItems: 300 };
  const stream = await client.chat({ model, messages: story, format, options: { num_predict: 1000 }, stream: true });
  await assert.rejects(async () => {
    for await (const row of stream) if (row) stream.abort();
  }, { name: "AbortError" });
  assert.ok((await client.chat({ model, messages: HELLO, options })).done);
});

check("generates", async () => {
  const whole = await client.generate({ model, prompt: "Hello!", options });
  const rows = await all(client.generate({ model, prompt: "Hello!", options, stream: true }));
  assert.equal(rows.map((row) => row.response).join(""), whole.response);
  const more = await client.generate({ model, prompt: "And?", context: whole.context, options });
  assert.ok(more.prompt_eval_count > whole.prompt_eval_count);
});

check("calls_tools", async () => {
  const { message } = await client.chat({ model, messages: ASK, tools: TOOLS, options });
  assert.deepEqual(message.tool_calls.map((call) => call.function.arguments), [{ city: "Paris" }]);
  const result = { role: "tool", content: "sunny", tool_name: "get_weather" };
  assert.ok((await client.chat({ model, messages: [...ASK, message, result], options })).message.content);
  const rows = await all(client.chat({ model, messages: ASK, tools: TOOLS, options, stream: true }));
  assert.equal(rows.flatMap((row) => row.message.tool_calls ?? []).length, 1);
});

check("fills_schemas", async () => {
  const { message } = await client.chat({ model, messages: ASK, format: parameters, options });
  assert.ok(["Paris", "Oslo"].includes(JSON.parse(message.content).city));
});

check("embeds", async () => {
  const { embeddings } = await client.embed({ model, input: ["a cat", "a dog"] });
  assert.equal(embeddings.length, 2);
  assert.equal((await client.embeddings({ model, prompt: "a cat" })).embedding.length, embeddings[0].length);
});

check("lists_models", async () => {
  const [listed] = (await client.list()).models;
  assert.deepEqual([listed.name, listed.details.family], ["demo:latest", "llama"]);
  assert.equal((await client.show({ model })).model_info["llama.context_length"], 2048);
  await client.generate({ model, prompt: "", keep_alive: "5m" });
  assert.deepEqual((await client.ps()).models.map((one) => one.name), ["demo:latest"]);
  assert.match((await client.version()).version, /^\d+\.\d+\.\d+$/);
});

check("pulls", async () => {
  assert.equal((await client.pull({ model })).status, "success");
  assert.deepEqual((await all(client.pull({ model, stream: true }))).map((row) => row.status), ["success"]);
  await assert.rejects(client.pull({ model: "other" }), /file does not exist/);
});

check("tells_errors", async () => {
  const wrong = new Ollama({ host: base.replace(/\/v1$/, ""), headers: { Authorization: "Bearer sk-wrong" } });
  for (const [status, call, words] of [
    [404, () => client.chat({ model: "none", messages: HELLO }), /model 'none' not found/],
    [401, () => wrong.list(), /key/],
    [400, () => client.chat({ model, messages: HELLO, options: { seed: "x" } }), /option "seed" must be of type integer/],
    [501, () => client.delete({ model }), /deleted/],
  ])
    await assert.rejects(call, (error) => {
      assert.equal(error.status_code, status);
      assert.match(error.message, words);
      return true;
    });
});

const { version } = createRequire(import.meta.url)("ollama/package.json");
console.log(JSON.stringify({ name: "version", ok: true, detail: version }));
for (const [name, run] of checks) {
  let [ok, detail] = [true, ""];
  try {
    await run();
  } catch (error) {
    [ok, detail] = [false, String(error.stack)];
  }
  console.log(JSON.stringify({ name, ok, detail }));
}
