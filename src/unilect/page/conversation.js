/**
 * A conversation: a tree of messages, of which one branch is shown.
 *
 * `{ id, title, at, leaf, nodes, removed, settings }`: `nodes` has messages by id, each with its `parent`; `leaf` is the last one shown;
 * `removed` has the ids of those that are not to come back from another tab.
 * An edit, another answer and the answer of a second model are siblings, so that nothing is lost.
 */

const ENDED = new Set(["done", "stopped", "failed"]);

/** Make an id; `crypto.randomUUID` is not there on a page that came by plain HTTP from another machine. */
export function newId() {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((one) => one.toString(16).padStart(2, "0")).join("");
}

/** Begin a conversation. */
export function newConversation(settings = {}) {
  return { id: newId(), title: "", at: Date.now(), leaf: null, nodes: {}, removed: [], settings };
}

/** Add a message behind a parent (null: the first) and show its branch; returns the message. */
export function add(conversation, parent, message) {
  const node = { ...message, id: newId(), parent, at: Date.now() };
  conversation.nodes[node.id] = node;
  conversation.leaf = node.id;
  conversation.at = node.at;
  return node;
}

/** Return what is said: a text that was typed, and one that was pasted behind it; `pasted` has its length. */
export const said = (typed, pasted) => ({ content: [typed, pasted].filter(Boolean).join("\n\n"), pasted: pasted.length });

/** Return the two texts of what was said. */
export const parts = ({ content, pasted }) => (pasted ? [content.slice(0, -pasted).trimEnd(), content.slice(-pasted)] : [content, ""]);

/** List the messages of the branch that is shown, or of the one that ends with `leaf`. */
export function branch(conversation, leaf = conversation.leaf) {
  const shown = [];
  for (let node = conversation.nodes[leaf]; node; node = conversation.nodes[node.parent]) shown.push(node);
  return shown.reverse();
}

/** List the messages with the same parent, the oldest first, the message itself among them. */
export function siblings(conversation, node) {
  return Object.values(conversation.nodes)
    .filter((one) => one.parent === node.parent)
    .sort((one, other) => one.at - other.at);
}

/** Show the branch of a message, down to its latest leaf. */
export function showBranch(conversation, node) {
  const children = new Map();
  for (const one of Object.values(conversation.nodes)) {
    const last = children.get(one.parent);
    if (!last || last.at <= one.at) children.set(one.parent, one);
  }
  let leaf = node;
  while (children.has(leaf.id)) leaf = children.get(leaf.id);
  conversation.leaf = leaf.id;
}

/** Remove a message and all behind it; what is shown ends before it where it was shown. */
export function remove(conversation, node) {
  const gone = new Set([node.id]);
  for (let size = 0; size !== gone.size; ) {
    size = gone.size;
    for (const one of Object.values(conversation.nodes)) if (gone.has(one.parent)) gone.add(one.id);
  }
  const others = siblings(conversation, node).filter((one) => one !== node);
  for (const id of gone) delete conversation.nodes[id];
  conversation.removed = [...(conversation.removed ?? []), ...gone];
  if (!gone.has(conversation.leaf)) return;
  if (others.length) showBranch(conversation, others.at(-1));
  else conversation.leaf = node.parent;
}

/**
 * Take over what another tab has said in a conversation meanwhile, as branches beside what was said here, and what it has removed; a message
 * that somebody has gone on behind stays.
 */
export function join(conversation, other) {
  const { nodes } = conversation;
  const gone = new Set([conversation, other ?? {}].flatMap((one) => one.removed ?? []));
  for (const [id, node] of Object.entries(other?.nodes ?? {})) {
    const own = nodes[id];
    if (!own || (ENDED.has(node.state) && !ENDED.has(own.state))) nodes[id] = node;
  }
  for (const node of Object.values(nodes).filter((one) => !gone.has(one.id))) {
    for (let above = nodes[node.parent]; above && gone.delete(above.id); ) above = nodes[above.parent];
  }
  while (gone.has(conversation.leaf)) conversation.leaf = nodes[conversation.leaf]?.parent ?? null;
  for (const id of gone) delete nodes[id];
  conversation.removed = [...gone];
}

/** Say if an answer was left while it came, as when its tab was closed. */
export const wasLeft = (message) => message.role === "assistant" && message.state !== undefined && !ENDED.has(message.state);

/** Name a conversation after the first thing that was said in it. */
export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = branch(conversation).find((one) => one.role === "user");
  const text = (first?.content ?? "").trim().split(/\s+/, 60).join(" ");
  return text.length > 60 ? `${[...text].slice(0, 57).join("")}...` : text || "New conversation";
}
