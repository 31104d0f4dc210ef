/** A thread: a conversation with one model, what is said in it, and the answer that is on its way. */

import { ask, endThoughts, newAnswer, requestBody } from "./answer.js";
import { add, branch, newConversation, parts, remove, said, showBranch } from "./conversation.js";
import { save } from "./history.js";
import { json, settings as server } from "./session.js";
import { signal } from "./view.js";

/** How often an answer on its way is kept: a tab that is closed or a machine that fails loses no more. */
const KEPT_MS = 3000;

export class Thread {
  /** The conversation; touched when a message comes, goes or ends. */
  conversation = signal(null);
  /** The name of the model. */
  model = signal("");
  /** What is sent beside the messages: `{ system, parameters, tools, schema }`. */
  settings = signal({});
  /** The message that is on its way; null while none is. */
  running = signal(null);
  /** What the server says that it waits for, such as the load of a model. */
  stage = signal("");
  /** What is wrong with the settings; empty for nothing. */
  trouble = signal("");
  #abort = null;
  #endsThoughts = false;
  #keptAt = 0;
  #listeners = new Map();

  constructor(model, conversation) {
    this.model.value = model;
    this.open(conversation ?? newConversation());
  }

  /** Show another conversation. */
  open(conversation) {
    this.stop();
    this.running.value = null;
    this.conversation.value = conversation;
    this.settings.value = { system: server.peek().system, parameters: {}, tools: "", schema: "", ...conversation.settings };
    if (conversation.settings.model) this.model.value = conversation.settings.model;
  }

  /** Begin a new conversation in place of one that is deleted: the end of an answer keeps it no more. */
  discard() {
    const gone = this.conversation.peek();
    this.open(newConversation());
    gone.leaf = null;
  }

  /** List the messages that are shown. */
  messages() {
    return branch(this.conversation.value);
  }

  /** Change the settings, for this conversation. */
  change(some) {
    this.settings.value = { ...this.settings.peek(), ...some };
  }

  /** Say something behind a message (by default the last one), and have it answered. */
  say(message, parent = this.conversation.peek().leaf) {
    add(this.conversation.peek(), parent, { role: "user", ...message });
    return this.answer();
  }

  /** Give the results of the calls of the last message, and have them answered. */
  giveResults(calls, results) {
    const conversation = this.conversation.peek();
    for (const [at, call] of calls.entries()) {
      add(conversation, conversation.leaf, { role: "tool", callId: call.id, name: call.name, content: results[at] });
    }
    return this.answer();
  }

  /** Have the message that is shown last answered. */
  async answer(parent = this.conversation.peek().leaf) {
    const conversation = this.conversation.peek();
    const model = this.model.peek();
    this.stop();
    let body;
    try {
      body = requestBody(model, branch(conversation, parent), this.settings.peek());
    } catch (error) {
      this.trouble.value = `The tools or the schema are no JSON: ${error.message}`;
      this.conversation.touch();
      return;
    }
    this.trouble.value = "";
    conversation.settings = { ...this.settings.peek(), model };
    const schema = this.settings.peek().schema?.trim() ?? "";
    const message = add(conversation, parent, { ...newAnswer(model), schema });
    this.running.value = message;
    this.conversation.touch();
    save(conversation);
    await this.#ask(body, message);
    this.#listeners.delete(message.id);
    if (this.running.peek() === message) {
      this.running.value = null;
      this.stage.value = "";
    }
    this.conversation.touch();
    await save(conversation);
  }

  /** Ask for a message, and once more where its thoughts are ended on the way. */
  async #ask(body, message) {
    for (let next = body; next; ) {
      const abort = (this.#abort = new AbortController());
      this.#endsThoughts = false;
      const goesOn = () => this.#endsThoughts && this.#abort === abort;
      const tell = (kind, text) => {
        if (kind !== "state" || text !== "stopped" || !goesOn()) this.#tell(message, kind, text);
      };
      await ask(next, message, tell, abort.signal);
      next = message.state === "stopped" && goesOn() ? endThoughts(body, message) : null;
      if (next) noteThoughts(message);
    }
  }

  /** End the thoughts of the answer that is on its way: the model goes on behind them. */
  endThoughts() {
    this.#endsThoughts = true;
    this.#abort?.abort();
  }

  /** Answer the parent of a message once more. */
  again(message) {
    return this.answer(message.parent);
  }

  /** Say what a message of the user should have said, as another branch. */
  edit(message, typed) {
    return this.say({ ...said(typed, parts(message)[1]), images: message.images }, message.parent);
  }

  /** Show the branch of a message. */
  show(message) {
    showBranch(this.conversation.peek(), message);
    this.conversation.touch();
    save(this.conversation.peek());
  }

  /** Remove a message and what follows it. */
  remove(message) {
    this.stop();
    remove(this.conversation.peek(), message);
    this.conversation.touch();
    save(this.conversation.peek());
  }

  /** Stop the answer that is on its way; what has come stays. */
  stop() {
    this.#abort?.abort();
    this.#abort = null;
  }

  /** Have a function told the pieces of a message that is on its way. */
  listen(message, onPiece) {
    this.#listeners.set(message.id, onPiece);
  }

  #tell(message, kind, text) {
    if (kind === "stage") this.stage.value = text.trim();
    if (kind === "state" && text === "answering") this.stage.value = "";
    this.#listeners.get(message.id)?.(kind, text);
    if (performance.now() < this.#keptAt + KEPT_MS) return;
    this.#keptAt = performance.now();
    save(this.conversation.peek());
  }
}

/** Note of thoughts that were ended when that was, and how many tokens they have: a stream that is left tells no usage. */
function noteThoughts(message) {
  message.thoughtsEnded = message.seconds;
  const asked = json("tokenize", { method: "POST", body: { model: message.model, content: message.thoughts } });
  asked.then(({ tokens }) => (message.thoughtsTokens = tokens.length), () => {});
}
