/** Conversations out of files: exports of this page, and of llama-server's. */

import { newConversation, newId, said } from "./conversation.js";

const IMAGE = /^data:image\/(png|jpeg|gif|webp|bmp|avif);base64,/; // nothing that is loaded from elsewhere

/** Return a conversation out of an export: this page's own, or one of llama-server's; null for anything else. */
export function readExport(found) {
  if (found?.nodes && typeof found.nodes === "object" && typeof found.id === "string") return ownExport(found);
  if (found?.conv && Array.isArray(found.messages)) return llamaServerExport(found);
  return null;
}

function ownExport(found) {
  const nodes = {};
  for (const [id, node] of Object.entries(found.nodes)) {
    if (!/^[\w-]{1,64}$/.test(id) || typeof node?.role !== "string") continue;
    const images = [node.images ?? []].flat().filter((one) => IMAGE.test(one));
    nodes[id] = { ...node, id, images, parent: typeof node.parent === "string" ? node.parent : null, at: Number(node.at) || 0, content: String(node.content ?? "") };
  }
  mendParents(nodes);
  const leaf = found.leaf in nodes ? found.leaf : (Object.keys(nodes).at(-1) ?? null);
  return { id: found.id.slice(0, 64), title: String(found.title ?? ""), at: Number(found.at) || 0, leaf, nodes, settings: found.settings ?? {} };
}

/** Begin a branch at each message whose parent is missing, or behind itself. */
function mendParents(nodes) {
  const sound = new Set();
  for (let node of Object.values(nodes)) {
    const way = new Set();
    while (node && !sound.has(node)) {
      way.add(node);
      const parent = Object.hasOwn(nodes, node.parent) ? nodes[node.parent] : null;
      if (!parent || way.has(parent)) node.parent = null;
      node = node.parent === null ? null : parent;
    }
    for (const one of way) sound.add(one);
  }
}

/** Source: https://github.com/ggml-org/llama.cpp/tree/master/tools (the page's export: `{ conv, messages }`) */
function llamaServerExport({ conv, messages }) {
  const made = newConversation();
  const ids = new Map(messages.map((one) => [one.id, newId()]));
  for (const one of messages) {
    if (one.type === "root" || !["user", "assistant", "system", "tool"].includes(one.role)) continue;
    const id = ids.get(one.id);
    const extra = [one.extra ?? []].flat();
    const files = extra.map((file) => file?.content).filter((text) => typeof text === "string");
    const images = extra.map((file) => file?.base64Url).filter((url) => IMAGE.test(url));
    const message = { id, role: one.role, ...said(String(one.content ?? ""), files.join("\n\n")), images, thoughts: String(one.reasoningContent ?? one.thinking ?? "") };
    made.nodes[id] = { ...message, at: Number(one.timestamp) || 0, parent: ids.get(one.parent) ?? null };
  }
  mendParents(made.nodes);
  made.title = String(conv.name ?? "");
  made.at = Number(conv.lastModified) || Date.now();
  made.leaf = ids.get(conv.currNode) ?? null;
  if (!(made.leaf in made.nodes)) made.leaf = Object.keys(made.nodes).at(-1) ?? null;
  return made;
}
